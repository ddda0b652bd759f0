//! Every metric of every part: name, type, labels, parts and help text.
//!
//! Names begin with `tollway_`. Two groups are exceptions: metrics of the process, which have the
//! names that all Prometheus clients share, and Dapr's metrics, which have Dapr's names. A name ends
//! in its base unit (`_seconds`, `_bytes`); a counter ends in `_total` and nothing else does.

use super::page::{Kind, Metric};
use super::part::Part;

const ALL: &[Part] =
    &[Part::Sidecar, Part::Gateway, Part::Front, Part::Control, Part::Fabric, Part::Injector];
const DATA: &[Part] = &[Part::Sidecar, Part::Gateway, Part::Front];
const SERVERS: &[Part] = &[Part::Sidecar, Part::Gateway, Part::Front, Part::Control];
const MEMBERS: &[Part] = &[Part::Sidecar, Part::Gateway];
const MESH: &[Part] = &[Part::Sidecar, Part::Gateway, Part::Control];
const FRONT: &[Part] = &[Part::Front];
const CONTROL: &[Part] = &[Part::Control];
const FABRIC: &[Part] = &[Part::Fabric];
const INJECTOR: &[Part] = &[Part::Injector];
const DAPRD: &[Part] = &[Part::Daprd];

/// Declares the metrics and the list of them.
macro_rules! metrics {
    ($($part:ident { $($constant:ident: $kind:ident $name:literal $labels:expr, $help:literal;)+ })+) => {
        /// The metrics by name.
        pub mod names {
            use super::{
                ALL, CONTROL, DAPRD, DATA, FABRIC, FRONT, INJECTOR, Kind, MEMBERS, MESH, Metric,
                SERVERS,
            };
            $($(
                #[doc = $help]
                pub static $constant: Metric = Metric {
                    name: $name,
                    kind: Kind::$kind,
                    labels: &$labels,
                    parts: $part,
                    help: $help,
                };
            )+)+
        }

        /// All metrics in the order of the documentation.
        pub static METRICS: &[&Metric] = &[$($(&names::$constant,)+)+];
    };
}

metrics! {
    DATA {
        REQUEST_DURATION: Histogram "tollway_request_duration_seconds" ["direction"],
            "Time from a request's head to the end of its response.";
        RESPONSES: Counter "tollway_responses_total" ["direction", "status"],
            "Responses by direction and class of status.";
        SERVICE_DURATION: Histogram "tollway_service_request_duration_seconds" ["service"],
            "Time from the head of a request to a service to the end of the response of the service.";
        SERVICE_REQUESTS: Counter "tollway_service_requests_total" ["service", "outcome"],
            "Requests of the app to each service, by outcome.";
        INBOUND_REQUESTS: Counter "tollway_inbound_requests_total" [],
            "Requests received from other workloads, or by a front from its clients.";
        OUTBOUND_REQUESTS: Counter "tollway_outbound_requests_total" [],
            "Requests received from the app.";
    }
    SERVERS {
        REQUESTS_REFUSED: Counter "tollway_requests_refused_total" [],
            "Requests and connections refused because their HTTP is malformed or abusive.";
    }
    DATA {
        POLICY_DENIALS: Counter "tollway_policy_denials_total" [],
            "Requests and connections that a policy denied.";
        POLICY_CLOSED_CONNECTIONS: Counter "tollway_policy_closed_connections_total" [],
            "Relayed connections closed because a changed policy denies them.";
        POLICY_SHADOW_DENIALS: Counter "tollway_policy_shadow_denials_total" [],
            "Requests and connections that were let in, and that policies in shadow mode would refuse.";
        RATE_LIMITED: Counter "tollway_rate_limited_total" [],
            "Requests that a limit of a traffic policy refused: too many in a time, or at one time.";
        REQUESTS_SHED: Counter "tollway_requests_shed_total" [],
            "Requests that a traffic policy had refused, since they had waited for an app that takes less than comes.";
        EJECTIONS: Counter "tollway_ejections_total" ["reason"],
            "Ejections of replicas of called services, by reason: consecutive failures, or a success rate below that of the others. Each data thread ejects by what it has seen.";
        EJECTED_REPLICAS: Gauge "tollway_ejected_replicas" [],
            "Replicas of called services that are ejected now; one that two data threads have ejected counts twice.";
        REPLICA_PANICS: Counter "tollway_replica_panics_total" [],
            "Ejections that left so few replicas of a service that all are used.";
        LOCALITY: Counter "tollway_locality_requests_total" ["level", "reason"],
            "Requests to services of which a traffic policy prefers near replicas, by the level of the replica and why it is of that level.";
        FAULTS: Counter "tollway_faults_total" ["kind"],
            "Requests that a traffic policy has had delayed or aborted on purpose, by kind.";
        RATE_SHADOW_LIMITED: Counter "tollway_rate_shadow_limited_total" [],
            "Requests that limits of traffic policies in shadow mode would refuse.";
        RETRIES: Counter "tollway_retries_total" [],
            "Retries: further attempts after one that changed nothing.";
        MIRRORED_REQUESTS: Counter "tollway_mirrored_requests_total" [],
            "Copies of requests that were sent to the mirrors of routes.";
        MIRRORS_SKIPPED: Counter "tollway_mirrors_skipped_total" [],
            "Copies of requests that were not made, because the body is larger than the replay buffer or too many requests are under way.";
        MIRRORS_FAILED: Counter "tollway_mirrors_failed_total" [],
            "Copies of requests that were begun and had no response of the mirror.";
        ROUTE_REQUESTS: Counter "tollway_route_requests_total" ["route", "rule"],
            "Requests of the app by the rule of a route that decided what became of them.";
        ROUTE_REDIRECTS: Counter "tollway_route_redirects_total" ["route", "rule"],
            "Requests that a rule had answered with a redirect.";
        ROUTE_UNMATCHED: Counter "tollway_route_unmatched_requests_total" [],
            "Requests refused because their service has routes, and no rule is for them.";
        ROUTE_RETRIES: Counter "tollway_route_retries_total" ["route", "rule", "result"],
            "Retries that a rule asks for, by result: made, or refused since the budget of the service is used up.";
        ROUTE_AFFINITY: Counter "tollway_route_affinity_total" ["route", "rule", "result"],
            "Requests with a key of affinity, by result: kept at the replica of the key, or moved to another one, since that could not be used.";
        TIMEOUTS: Counter "tollway_timeouts_total" ["kind"],
            "Requests and attempts that were ended because their time was over, by kind: the caller's deadline, the time of a route for a request or an attempt, the usual time for a response, or no byte for too long.";
        REQUEST_FAILURES: Counter "tollway_request_failures_total" [],
            "Requests that failed in the data plane.";
        REQUESTS_CANCELLED: Counter "tollway_requests_cancelled_total" [],
            "Requests that the caller cancelled before the response ended.";
        CONNECTIONS: Gauge "tollway_connections" [],
            "Open connections.";
        CONNECTIONS_REFUSED: Counter "tollway_connections_refused_total" [],
            "Connections refused or evicted because a limit or the file descriptors were exhausted.";
        TLS_HANDSHAKES: Counter "tollway_tls_handshakes_total" [],
            "TLS handshakes that an inbound listener or a front completed.";
        TLS_HANDSHAKE_FAILURES: Counter "tollway_tls_handshake_failures_total" [],
            "TLS handshakes that an inbound listener or a front refused.";
        DIALS: Counter "tollway_dials_total" [],
            "Connections dialled to other data planes.";
        APP_DIALS: Counter "tollway_app_dials_total" [],
            "Connections dialled to the app for HTTP requests.";
        DIAL_FAILURES: Counter "tollway_dial_failures_total" [],
            "Dials that failed.";
        BUFFERED_BODY_BYTES: Gauge "tollway_buffered_body_bytes" [],
            "Bytes of bodies buffered until their sink accepts them; the value is at most 0.1 s old.";
        BACKPRESSURE_PAUSES: Counter "tollway_backpressure_pauses_total" [],
            "Pauses of a connection: it was not read, or got no further request, because a sink or its own peer accepted no more bytes.";
        BULK_BODIES: Counter "tollway_bulk_bodies_total" [],
            "Bodies so large that small requests avoid their connection.";
        RETRY_BUFFER_EXCEEDED: Counter "tollway_retry_buffer_exceeded_total" [],
            "Requests with a body too large for the replay buffer, which cannot be retried.";
        KEEPALIVE_TIMEOUTS: Counter "tollway_keepalive_timeouts_total" [],
            "Connections to other data planes closed because they answered no keepalive while requests were under way.";
        RELAYED_BYTES: Counter "tollway_relayed_bytes_total" [],
            "Bytes relayed without parsing: by gateways, for TCP services and on upgraded connections.";
        INTERCEPTED_CONNECTIONS: Counter "tollway_intercepted_connections_total" ["decision"],
            "Connections that were led here from an app, by what decided where they go.";
        FAILOVER: Counter "tollway_failover_total" ["reason"],
            "Choices of a network for requests and connections to services in any network, by why that network: its priority, the health or the load of those before it, as a last resort, or a retry after another network failed.";
        GATEWAY_CONNECTIONS: Counter "tollway_gateway_connections_total" [],
            "Connections that a gateway forwarded.";
        GATEWAY_CONNECTIONS_REFUSED: Counter "tollway_gateway_connections_refused_total" [],
            "Connections that a gateway refused: no TLS, a server name it does not serve, or one of another network from outside.";
        GATEWAY_ANSWERS_REFUSED: Counter "tollway_gateway_answers_refused_total" [],
            "Connections that a gateway ended because what answered the ClientHello does not speak TLS.";
        GATEWAY_LOOPS: Counter "tollway_gateway_loops_total" [],
            "Connections that a gateway refused because it had forwarded them before.";
        GATEWAY_REVERSE_CONNECTIONS: Gauge "tollway_gateway_reverse_connections" [],
            "Reverse connections of a gateway, on either side, that wait for a connection to carry.";
        GATEWAY_REVERSE_CARRIED: Counter "tollway_gateway_reverse_carried_total" [],
            "Reverse connections of a gateway, on either side, that have carried a connection.";
        GATEWAY_REVERSE_REFUSED: Counter "tollway_gateway_reverse_refused_total" [],
            "Reverse connections that a gateway refused: of who is no gateway of a joined network that only dials out, or too many.";
        GATEWAY_REVERSE_SILENT: Counter "tollway_gateway_reverse_silent_total" [],
            "Reverse connections that did not answer a gateway in time: what they were to carry went to the next one.";
        SPANS_EXPORTED: Counter "tollway_spans_exported_total" [],
            "Spans that the collector accepted.";
        SPANS_DROPPED: Counter "tollway_spans_dropped_total" ["reason"],
            "Spans lost because the queue was full or the collector refused them.";
        SPAN_EXPORT_FAILURES: Counter "tollway_span_export_failures_total" [],
            "Failed exports of spans, including those that are tried again.";
        ACCESS_LOG_LINES: Counter "tollway_access_log_lines_total" [],
            "Lines written to the access log.";
        ACCESS_LOG_LINES_DROPPED: Counter "tollway_access_log_lines_dropped_total" ["reason"],
            "Lines of the access log lost because the queue was full or the write failed.";
    }
    MEMBERS {
        INTERCEPTED_NAMES: Counter "tollway_intercepted_names_total" ["answer"],
            "Answers to questions for names of an app whose connections are intercepted.";
        EGRESS: Counter "tollway_egress_total" ["decision"],
            "Calls of hosts out of the mesh that the sidecar passes or refuses, by decision: an Egress allows it, the default lets it pass, it is refused, or it would be refused if what is in shadow mode were enforced.";
        APP_READY: Gauge "tollway_app_ready" [],
            "Whether the app accepts connections; 1 without an app.";
        CONTROL_CONNECTED: Gauge "tollway_control_connected" [],
            "Whether the watch of the control plane is open.";
        CONTROL_REGISTERED: Gauge "tollway_control_registered" [],
            "Whether the control plane holds the registration of this workload.";
        CONTROL_REVISION: Gauge "tollway_control_revision" [],
            "Last revision of the control plane's catalog that is in use here.";
    }
    CONTROL {
        CONTROL_SERVES: Gauge "tollway_control_serves" [],
            "Whether this control plane serves; 0 while it stands by for another one.";
        CONTROL_CONNECTIONS: Gauge "tollway_control_connections" ["state"],
            "Open connections to the control plane, by state of authentication.";
        CONTROL_CONNECTIONS_REFUSED: Counter "tollway_control_connections_refused_total" ["reason"],
            "Connections that the control plane refused, closed or evicted, by reason.";
        CONTROL_SHARES: Gauge "tollway_control_shares" ["kind"],
            "Streams, requests and bytes that count for the share of their identity at the control plane, by kind.";
        CONTROL_SHARES_REFUSED: Counter "tollway_control_shares_refused_total" ["kind", "reason"],
            "Streams, requests and bytes that an identity was refused, or lost because it had most, by kind and reason.";
        CONTROL_SEND_BUFFER_BYTES: Gauge "tollway_control_send_buffer_bytes" [],
            "Bytes of responses of the control plane that their peers have not accepted yet.";
        INSTANCES_REMEMBERED: Gauge "tollway_instances_remembered" [],
            "Instances of services whose keys are remembered, to bind renewals to the last one.";
        RENEWALS_LATE: Counter "tollway_renewals_late_total" [],
            "Certificates that were renewed after they had ended, within the grace.";
        RENEWALS_REFUSED: Counter "tollway_renewals_refused_total" ["reason"],
            "Renewals that were refused for their key, by reason: reused (two processes have the instance's key), barred, replaced by an enrolment, forgotten, pod-ended (the pod of the instance is deleted or has ended).";
        WATCHERS: Gauge "tollway_watchers" [],
            "Open watches of data planes and joined control planes.";
        WATCHER_LAG: Gauge "tollway_watcher_lag_revisions" [],
            "Revisions that the slowest watcher has not acknowledged yet.";
        WATCHERS_AHEAD: Counter "tollway_watchers_ahead_total" [],
            "Watches of data planes that had seen a later state than the store has: it is an old copy, or they state what is not so.";
        SERVICES: Gauge "tollway_services" ["scope"],
            "Known services, by scope: local, or of joined networks.";
        WORKLOADS: Gauge "tollway_workloads" [],
            "Registered workloads of local services.";
        GATEWAYS: Gauge "tollway_gateways" [],
            "Registered gateways of this network.";
        JOINED_NETWORKS: Gauge "tollway_joined_networks" [],
            "Networks that this network is joined with.";
        JOINED_NETWORKS_REACHABLE: Gauge "tollway_joined_networks_reachable" [],
            "Joined networks of which a gateway answers.";
        JOINED_GATEWAYS_PASSED_OVER: Gauge "tollway_joined_gateways_passed_over" [],
            "Gateways of joined networks that callers pass over: they do not answer, or end soon.";
        JOINED_NETWORKS_WITHDRAWN: Counter "tollway_joined_networks_withdrawn_total" [],
            "Times that the services of a joined network were withdrawn, since no gateway of it answered.";
        GATEWAY_PROBES: Counter "tollway_gateway_probes_total" ["result"],
            "Probes of the gateways of joined networks, by result.";
        PEER_CHANGES_REFUSED: Counter "tollway_peer_changes_refused_total" ["reason"],
            "Changes that joined networks stated and that were held or refused, and streams of theirs that were ended, by reason.";
        CUSTOM_RESOURCES: Gauge "tollway_custom_resources" ["kind", "state"],
            "Custom resources of the Kubernetes cluster, by kind and state: accepted, or refused, of which the status of the resource has the reason.";
        CLUSTER_SERVICES: Gauge "tollway_cluster_services" ["state"],
            "Services of the Kubernetes cluster of which some pod takes calls of the mesh, by state: mesh, or mixed, of which a port does not go through the mesh since a pod that is ready does not take its calls.";
        STORE_REVISION: Gauge "tollway_store_revision" [],
            "Revision of the last durable transaction.";
        STORE_COMMIT_DURATION: Histogram "tollway_store_commit_duration_seconds" [],
            "Time to write a group of transactions until it is durable.";
        STORE_COMMIT_FAILURES: Counter "tollway_store_commit_failures_total" [],
            "Groups of transactions that could not be written.";
        STORE_ENTRIES: Gauge "tollway_store_entries" [],
            "Keys in the store.";
        STORE_LIVE_BYTES: Gauge "tollway_store_live_bytes" [],
            "Bytes of the store's present entries.";
        STORE_FILE_BYTES: Gauge "tollway_store_file_bytes" [],
            "Size of the store's file; compaction reduces it to the live bytes.";
        STORE_LEASES: Gauge "tollway_store_leases" [],
            "Running leases; each registration has one.";
        APP_STATE_ENTRIES: Gauge "tollway_app_state_entries" [],
            "Entries of app state in the network's store; 0 until the first app uses it.";
        APP_STATE_BYTES: Gauge "tollway_app_state_bytes" [],
            "Bytes of app state in the network's store, keys and values, which are in the control plane's memory.";
        REMINDERS: Gauge "tollway_reminders" [],
            "Stored reminders of actors.";
        REMINDER_BYTES: Gauge "tollway_reminder_bytes" [],
            "Bytes of stored reminders with their names and data.";
        REMINDER_CHANGES: Counter "tollway_reminder_changes_total" ["result"],
            "Changes to reminders that hosts of actors requested, by result.";
        REMINDERS_EXPIRED: Counter "tollway_reminders_expired_total" [],
            "Reminders removed because their time to live ended.";
        REMINDER_COMMIT_DURATION: Histogram "tollway_reminder_commit_duration_seconds" [],
            "Time to write a group of changes to reminders until it is durable.";
        REMINDER_COMMIT_FAILURES: Counter "tollway_reminder_commit_failures_total" [],
            "Groups of changes to reminders that could not be written.";
        NEIGHBOUR_GROUPS: Gauge "tollway_neighbour_groups" [],
            "Groups of neighbours that were written or watched.";
        NEIGHBOURS: Gauge "tollway_neighbours" [],
            "Stored neighbours of the fabric.";
        NEIGHBOUR_TOMBSTONES: Gauge "tollway_neighbour_tombstones" [],
            "Tombstones of deleted neighbours that some watcher has not seen yet.";
        NEIGHBOUR_TOMBSTONES_COMPACTED: Counter "tollway_neighbour_tombstones_compacted_total" [],
            "Removed tombstones of neighbours.";
        NEIGHBOUR_CHANGES: Counter "tollway_neighbour_changes_total" ["result"],
            "Requested changes to neighbours, by result.";
        NEIGHBOUR_LOOKUPS: Counter "tollway_neighbour_lookups_total" [],
            "Looked up keys of neighbours.";
        NEIGHBOUR_WATCHERS: Gauge "tollway_neighbour_watchers" [],
            "Open watches of neighbours by agents and operators.";
        NEIGHBOUR_RECORDS_SENT: Counter "tollway_neighbour_records_sent_total" [],
            "Neighbours and tombstones sent to watchers from the table.";
        NEIGHBOUR_SNAPSHOTS_SENT: Counter "tollway_neighbour_snapshots_sent_total" [],
            "Snapshots of a whole group sent to a watcher.";
        NEIGHBOUR_RESYNCS: Counter "tollway_neighbour_resyncs_total" [],
            "Watches that a reconnected or slow watcher resumed from the table.";
        NEIGHBOUR_COMMIT_DURATION: Histogram "tollway_neighbour_commit_duration_seconds" [],
            "Time to write a group of changes to neighbours until it is durable.";
        NEIGHBOUR_COMMIT_FAILURES: Counter "tollway_neighbour_commit_failures_total" [],
            "Groups of changes to neighbours that could not be written.";
    }
    FABRIC {
        FABRIC_CONNECTED: Gauge "tollway_fabric_connected" [],
            "Whether a connection to the control plane is open.";
        FABRIC_NEIGHBOURS: Gauge "tollway_fabric_neighbours" [],
            "Neighbours in the kernel's table; the value is at most a minute old after a bulk write.";
        FABRIC_CAPACITY: Gauge "tollway_fabric_capacity_neighbours" [],
            "Most neighbours that the kernel's table holds.";
        FABRIC_WAITING: Gauge "tollway_fabric_waiting_neighbours" [],
            "Neighbours that wait for space in the kernel's table.";
        FABRIC_REVISION: Gauge "tollway_fabric_revision" [],
            "Revision of the group up to which the kernel's table is complete.";
        FABRIC_DEGRADED: Gauge "tollway_fabric_degraded" [],
            "Whether the kernel refuses neighbours and repeating the write did not help.";
        FABRIC_NEIGHBOURS_WRITTEN: Counter "tollway_fabric_neighbours_written_total" [],
            "Neighbours written to the kernel's table.";
        FABRIC_NEIGHBOURS_REMOVED: Counter "tollway_fabric_neighbours_removed_total" [],
            "Neighbours removed from the kernel's table.";
        FABRIC_NEIGHBOURS_REPAIRED: Counter "tollway_fabric_neighbours_repaired_total" [],
            "Entries of the kernel's table that differed from the control plane's and were corrected.";
        FABRIC_FULL_SYNCS: Counter "tollway_fabric_full_syncs_total" [],
            "Full syncs: writes of the whole group to the kernel's table.";
        FABRIC_PACKETS: Counter "tollway_fabric_packets_total" ["outcome"],
            "Packets that the programs in the kernel processed, by outcome.";
    }
    INJECTOR {
        INJECTOR_REVIEWS: Counter "tollway_injector_reviews_total" ["outcome"],
            "Pods that the API server asked about, by outcome: a sidecar was added, the pod was left as it is, or it was refused.";
    }
    FRONT {
        CERTIFICATES_REVISION: Gauge "tollway_front_certificates_revision" [],
            "Revision of the certificates in use: 1 at the start, one more with each change of the files.";
        CERTIFICATE_CHANGES_REFUSED: Counter "tollway_front_certificate_changes_refused_total" [],
            "Changes of the certificate files that were refused; the previous certificates stay in use.";
    }
    MESH {
        TRUST_REVISION: Gauge "tollway_trust_revision" [],
            "Revision of the trust bundles in use.";
    }
    ALL {
        CERTIFICATE_EXPIRY: Gauge "tollway_certificate_expiry_timestamp_seconds" [],
            "Unix time at which the certificate in use ends; of a front with several, the first that ends.";
        CONFIG_REVISION: Gauge "tollway_config_revision" [],
            "Revision of the settings in use: 1 at the start, one more with each change.";
        CONFIG_CHANGES_REFUSED: Counter "tollway_config_changes_refused_total" [],
            "Changes of the settings file that were refused.";
        BUILD_INFO: Gauge "tollway_build_info" ["part", "version"],
            "Always 1; the labels name the part and the version.";
        LOG_LINES_LEFT_OUT: Counter "tollway_log_lines_left_out_total" [],
            "Lines that the log leaves out, since it has had many of their kind lately.";
        PROCESS_CPU_SECONDS: Counter "process_cpu_seconds_total" [],
            "CPU time of the process.";
        PROCESS_RESIDENT_BYTES: Gauge "process_resident_memory_bytes" [],
            "Resident memory of the process.";
        PROCESS_OPEN_FDS: Gauge "process_open_fds" [],
            "Open file descriptors.";
        PROCESS_MAX_FDS: Gauge "process_max_fds" [],
            "Most file descriptors that the process may open.";
        PROCESS_START_TIME: Gauge "process_start_time_seconds" [],
            "Unix time at which the process started.";
    }
    DAPRD {
        DAPR_HTTP_SERVER_REQUESTS: Counter "dapr_http_server_request_count" ["app_id", "method", "path", "status"],
            "Answered HTTP requests of the app to its sidecar.";
        DAPR_HTTP_SERVER_RESPONSES: Counter "dapr_http_server_response_count" ["app_id", "method", "path", "status"],
            "Responses to HTTP requests of the app to its sidecar; only with `increasedCardinality`.";
        DAPR_HTTP_SERVER_LATENCY: Histogram "dapr_http_server_latency" ["app_id", "method", "path", "status"],
            "Milliseconds from the head of an HTTP request of the app to the end of its response.";
        DAPR_HTTP_SERVER_REQUEST_BYTES: Histogram "dapr_http_server_request_bytes" ["app_id"],
            "Body bytes of HTTP requests of the app to its sidecar.";
        DAPR_HTTP_SERVER_RESPONSE_BYTES: Histogram "dapr_http_server_response_bytes" ["app_id"],
            "Body bytes of responses to HTTP requests of the app to its sidecar.";
        DAPR_HTTP_CLIENT_COMPLETED: Counter "dapr_http_client_completed_count" ["app_id", "method", "path", "status"],
            "Answered HTTP requests of the sidecar to its app.";
        DAPR_HTTP_CLIENT_LATENCY: Histogram "dapr_http_client_roundtrip_latency" ["app_id", "method", "path", "status"],
            "Milliseconds from the head of an HTTP request to the app to the end of its response.";
        DAPR_HTTP_CLIENT_SENT_BYTES: Histogram "dapr_http_client_sent_bytes" ["app_id", "method", "path", "status"],
            "Body bytes of HTTP requests of the sidecar to its app; `status` is empty.";
        DAPR_HTTP_CLIENT_RECEIVED_BYTES: Histogram "dapr_http_client_received_bytes" ["app_id"],
            "Body bytes of responses of the app over HTTP.";
        DAPR_GRPC_SERVER_COMPLETED: Counter "dapr_grpc_io_server_completed_rpcs" ["app_id", "grpc_server_method", "grpc_server_status"],
            "Answered gRPC calls of the app to its sidecar.";
        DAPR_GRPC_SERVER_LATENCY: Histogram "dapr_grpc_io_server_server_latency" ["app_id", "grpc_server_method", "grpc_server_status"],
            "Milliseconds from the head of a gRPC call of the app to the end of its response.";
        DAPR_GRPC_SERVER_RECEIVED_BYTES: Histogram "dapr_grpc_io_server_received_bytes_per_rpc" ["app_id", "grpc_server_method"],
            "Message bytes of gRPC calls of the app to its sidecar.";
        DAPR_GRPC_SERVER_SENT_BYTES: Histogram "dapr_grpc_io_server_sent_bytes_per_rpc" ["app_id", "grpc_server_method"],
            "Message bytes of responses to gRPC calls of the app to its sidecar.";
        DAPR_GRPC_CLIENT_COMPLETED: Counter "dapr_grpc_io_client_completed_rpcs" ["app_id", "grpc_client_method", "grpc_client_status"],
            "Answered gRPC calls of the sidecar to its app.";
        DAPR_GRPC_CLIENT_LATENCY: Histogram "dapr_grpc_io_client_roundtrip_latency" ["app_id", "grpc_client_method", "grpc_client_status"],
            "Milliseconds from the head of a gRPC call to the app to the end of its response.";
        DAPR_GRPC_CLIENT_SENT_BYTES: Histogram "dapr_grpc_io_client_sent_bytes_per_rpc" ["app_id", "grpc_client_method"],
            "Message bytes of gRPC calls of the sidecar to its app.";
        DAPR_GRPC_CLIENT_RECEIVED_BYTES: Histogram "dapr_grpc_io_client_received_bytes_per_rpc" ["app_id", "grpc_client_method"],
            "Message bytes of responses of the app over gRPC.";
        DAPR_INVOCATION_REQUESTS_SENT: Counter "dapr_runtime_service_invocation_req_sent_total" ["app_id", "dst_app_id", "type"],
            "Calls of this app to other apps that were answered, by the app or by a data plane.";
        DAPR_INVOCATION_REQUESTS_RECEIVED: Counter "dapr_runtime_service_invocation_req_recv_total" ["app_id", "src_app_id"],
            "Calls of other apps to this app that were answered.";
        DAPR_INVOCATION_RESPONSES_SENT: Counter "dapr_runtime_service_invocation_res_sent_total" ["app_id", "dst_app_id", "status"],
            "Responses to calls of other apps, by status.";
        DAPR_INVOCATION_RESPONSES_RECEIVED: Counter "dapr_runtime_service_invocation_res_recv_total" ["app_id", "src_app_id", "status", "type"],
            "Responses to calls of this app to other apps, by status.";
        DAPR_INVOCATION_LATENCY: Histogram "dapr_runtime_service_invocation_res_recv_latency_ms" ["app_id", "src_app_id", "status"],
            "Milliseconds from the head of a call to another app to the end of its response.";
        DAPR_HTTP_PROBES: Counter "dapr_http_healthprobes_completed_count" ["app_id", "status"],
            "Health probes of the app over HTTP; a probe without a response counts as status 500.";
        DAPR_HTTP_PROBE_LATENCY: Histogram "dapr_http_healthprobes_roundtrip_latency" ["app_id", "status"],
            "Milliseconds from a health probe to the response of the app.";
        DAPR_ACCESS_ALLOWED: Counter "dapr_runtime_acl_app_policy_action_allowed_total" ["app_id", "namespace", "trustDomain"],
            "Calls that the access control of a Configuration allowed by a policy for the caller.";
        DAPR_ACCESS_BLOCKED: Counter "dapr_runtime_acl_app_policy_action_blocked_total" ["app_id", "namespace", "trustDomain"],
            "Calls that the access control of a Configuration denied by a policy for the caller.";
        DAPR_ACCESS_OTHERS_ALLOWED: Counter "dapr_runtime_acl_global_policy_action_allowed_total" ["app_id", "namespace", "trustDomain"],
            "Calls that the access control of a Configuration allowed without a policy for the caller.";
        DAPR_ACCESS_OTHERS_BLOCKED: Counter "dapr_runtime_acl_global_policy_action_blocked_total" ["app_id", "namespace", "trustDomain"],
            "Calls that the access control of a Configuration denied without a policy for the caller.";
        DAPR_ACTOR_PENDING: Gauge "dapr_runtime_actor_pending_actor_calls" ["actor_type", "app_id"],
            "Actor calls that wait for their turn.";
        DAPR_ACTOR_TIMERS: Gauge "dapr_runtime_actor_timers" ["actor_type", "app_id"],
            "Timers of the actors on this host.";
        DAPR_ACTOR_REMINDERS: Gauge "dapr_runtime_actor_reminders" ["actor_type", "app_id"],
            "Reminders of the actors that are placed on this host.";
        DAPR_ACTOR_TIMERS_FIRED: Counter "dapr_runtime_actor_timers_fired_total" ["actor_type", "app_id", "success"],
            "Timers that fired, by whether the app accepted the call.";
        DAPR_ACTOR_REMINDERS_FIRED: Counter "dapr_runtime_actor_reminders_fired_total" ["actor_type", "app_id", "success"],
            "Reminders that fired, by whether the app accepted the call.";
        DAPR_ACTOR_DEACTIVATED: Counter "dapr_runtime_actor_deactivated_total" ["actor_type", "app_id"],
            "Actors that the app deactivated.";
        DAPR_ACTOR_DEACTIVATED_FAILED: Counter "dapr_runtime_actor_deactivated_failed_total" ["actor_type", "app_id"],
            "Actors that the app did not deactivate in time.";
        DAPR_ACTOR_REBALANCED: Counter "dapr_runtime_actor_rebalanced_total" ["actor_type", "app_id"],
            "Times that this host handed actors over to another host.";
        DAPR_RESILIENCY_LOADED: Counter "dapr_resiliency_loaded" ["app_id", "name", "namespace"],
            "1 for each Resiliency file in use.";
        DAPR_RESILIENCY_COUNT: Counter "dapr_resiliency_count" ["app_id", "flow_direction", "name", "namespace", "policy", "status", "target"],
            "Applications of a Resiliency policy; of a circuit breaker, by its state.";
        DAPR_RESILIENCY_ACTIVATIONS: Counter "dapr_resiliency_activations_total" ["app_id", "flow_direction", "name", "namespace", "policy", "status", "target"],
            "Times that a Resiliency policy acted: a timeout ended a call, a retry was made, a circuit breaker changed its state.";
        DAPR_RESILIENCY_CIRCUIT: Gauge "dapr_resiliency_cb_state" ["app_id", "flow_direction", "name", "namespace", "policy", "status", "target"],
            "1 for the state of the circuit breaker at its last call, 0 for the other states.";
        DAPR_ERRORS: Counter "dapr_error_code_total" ["app_id", "category", "error_code"],
            "Requests of the app that the API has answered with an error code, if `recordErrorCodes` is on.";
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fmt::Write;

    use super::*;

    #[test]
    fn names_are_unique_and_show_their_kind() {
        let names: HashSet<_> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for metric in METRICS {
            assert!(metric.help.ends_with('.'), "{metric:?}");
            if metric.parts == DAPRD {
                assert!(metric.name.starts_with("dapr_"), "{metric:?}");
                assert!(metric.labels.is_sorted(), "as Dapr has them: {metric:?}");
                continue;
            }
            assert_eq!(metric.kind == Kind::Counter, metric.name.ends_with("_total"), "{metric:?}");
            assert!(metric.name.starts_with("tollway_") || metric.name.starts_with("process_"));
        }
    }

    #[test]
    fn the_documentation_has_each_metric_as_it_is() {
        let page = include_str!("../../../../docs/metrics.md");
        let documented: Vec<&str> = page
            .lines()
            .filter(|line| {
                ["tollway_", "process_", "dapr_"]
                    .iter()
                    .any(|p| line.starts_with(&format!("| `{p}")))
            })
            .collect();
        let wanted: Vec<String> = METRICS.iter().map(|metric| row(metric)).collect();
        let mut missing = String::new();
        for line in wanted.iter().filter(|line| !documented.contains(&line.as_str())) {
            let _ = writeln!(missing, "{line}");
        }
        assert!(missing.is_empty(), "docs/metrics.md lacks these rows:\n{missing}");
        let extra: Vec<_> =
            documented.iter().filter(|line| !wanted.iter().any(|row| row == *line)).collect();
        assert!(extra.is_empty(), "docs/metrics.md has rows that are not true: {extra:#?}");
    }

    fn row(metric: &Metric) -> String {
        let parts: Vec<_> = metric.parts.iter().map(|part| part.word()).collect();
        let parts = if metric.parts == ALL { "all".to_owned() } else { parts.join(", ") };
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let cells = [
            format!("`{}`", metric.name),
            metric.kind.word().to_owned(),
            labels.join(", "),
            parts,
            metric.help.to_owned(),
        ];
        format!("| {} |", cells.join(" | "))
    }
}
