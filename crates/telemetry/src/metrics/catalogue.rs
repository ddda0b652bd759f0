//! Every metric of every part: the one place where names are written.
//!
//! Names begin with `tollway_`, but for those of the process, which all Prometheus clients share, and
//! Dapr's own, which are as Dapr has them. Units are base units and stand in the name; counters end
//! in `_total`.

use super::page::{Kind, Metric};

/// A process of Tollway that has a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Sidecar,
    Gateway,
    Front,
    Control,
    /// The agent of a forwarder.
    Fabric,
    /// A sidecar in daprd's place: what it has beside that of a sidecar.
    Daprd,
}

impl Part {
    /// As the label `part` and the documentation write it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Sidecar => "sidecar",
            Self::Gateway => "gateway",
            Self::Front => "front",
            Self::Control => "control",
            Self::Fabric => "fabric",
            Self::Daprd => "daprd",
        }
    }
}

const ALL: &[Part] = &[Part::Sidecar, Part::Gateway, Part::Front, Part::Control, Part::Fabric];
const DATA: &[Part] = &[Part::Sidecar, Part::Gateway, Part::Front];
const SERVERS: &[Part] = &[Part::Sidecar, Part::Gateway, Part::Front, Part::Control];
const MEMBERS: &[Part] = &[Part::Sidecar, Part::Gateway];
const MESH: &[Part] = &[Part::Sidecar, Part::Gateway, Part::Control];
const FRONT: &[Part] = &[Part::Front];
const CONTROL: &[Part] = &[Part::Control];
const FABRIC: &[Part] = &[Part::Fabric];
const DAPRD: &[Part] = &[Part::Daprd];

/// Declares the metrics, and the list of all of them.
macro_rules! metrics {
    ($($part:ident { $($constant:ident: $kind:ident $name:literal $labels:expr, $help:literal;)+ })+) => {
        /// The metrics by name.
        pub mod names {
            use super::{
                ALL, CONTROL, DAPRD, DATA, FABRIC, FRONT, Kind, MEMBERS, MESH, Metric, SERVERS,
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

        /// All of them, in the order of the documentation.
        pub static METRICS: &[&Metric] = &[$($(&names::$constant,)+)+];
    };
}

metrics! {
    DATA {
        REQUEST_DURATION: Histogram "tollway_request_duration_seconds" ["direction"],
            "From a request's head to the end of its response.";
        RESPONSES: Counter "tollway_responses_total" ["direction", "status"],
            "Responses by direction and class of status.";
        SERVICE_DURATION: Histogram "tollway_service_request_duration_seconds" ["service"],
            "From the head of a request to a service to the end of the service's answer.";
        SERVICE_REQUESTS: Counter "tollway_service_requests_total" ["service", "outcome"],
            "Requests to each service that the app calls, by how they ended.";
        INBOUND_REQUESTS: Counter "tollway_inbound_requests_total" [],
            "Requests taken from the mesh, or by a front from its clients.";
        OUTBOUND_REQUESTS: Counter "tollway_outbound_requests_total" [],
            "Requests taken from the app.";
    }
    SERVERS {
        REQUESTS_REFUSED: Counter "tollway_requests_refused_total" [],
            "Requests and connections refused for malformed or abusive HTTP.";
    }
    DATA {
        POLICY_DENIED: Counter "tollway_policy_denied_total" [],
            "Requests and connections that policies did not let in.";
        POLICY_CLOSED: Counter "tollway_policy_closed_total" [],
            "Relayed connections ended because policies changed.";
        RETRIES: Counter "tollway_retries_total" [],
            "Attempts made again after one that was not processed.";
        FAULTS: Counter "tollway_faults_total" [],
            "Requests that failed in the data plane.";
        CANCELLED: Counter "tollway_cancelled_total" [],
            "Requests whose caller went away.";
        CONNECTIONS: Gauge "tollway_connections" [],
            "Open connections.";
        CONNECTIONS_REFUSED: Counter "tollway_connections_refused_total" [],
            "Connections not accepted, or that gave way: over a limit or out of descriptors.";
        HANDSHAKES: Counter "tollway_handshakes_total" [],
            "TLS connections accepted at the mesh door or by a front.";
        HANDSHAKES_FAILED: Counter "tollway_handshakes_failed_total" [],
            "TLS connections refused in their handshake.";
        DIALS: Counter "tollway_dials_total" [],
            "Mesh connections dialled.";
        APP_DIALS: Counter "tollway_app_dials_total" [],
            "Connections dialled to the app for requests over HTTP.";
        DIALS_FAILED: Counter "tollway_dials_failed_total" [],
            "Dials that failed.";
        WAITING_BYTES: Gauge "tollway_waiting_bytes" [],
            "Bytes of bodies that wait until whom they are for takes them, at most a tenth of a second old.";
        SOURCES_PAUSED: Counter "tollway_sources_paused_total" [],
            "Times that a connection was not read because what came of it was not taken, or its answers were not; or was given no more requests because those before were not read.";
        BULK_BODIES: Counter "tollway_bulk_bodies_total" [],
            "Bodies that grew so large that small requests avoid their connection.";
        BODIES_NOT_KEPT: Counter "tollway_bodies_not_kept_total" [],
            "Requests whose body grew too large to be kept for another attempt.";
        CONNECTIONS_SILENT: Counter "tollway_connections_silent_total" [],
            "Mesh connections that gave no sign of life with requests under way.";
        RELAYED_BYTES: Counter "tollway_relayed_bytes_total" [],
            "Bytes relayed unread: gateways, TCP, upgraded connections.";
        GATEWAY_CONNECTIONS: Counter "tollway_gateway_connections_total" [],
            "Connections a gateway sent on.";
        GATEWAY_REFUSED: Counter "tollway_gateway_refused_total" [],
            "Connections a gateway refused: no TLS or a server name it does not serve.";
        GATEWAY_LOOPS: Counter "tollway_gateway_loops_total" [],
            "Connections a gateway refused because it had passed them on before.";
        SPANS_EXPORTED: Counter "tollway_spans_exported_total" [],
            "Spans that the collector took.";
        SPANS_DROPPED: Counter "tollway_spans_dropped_total" ["reason"],
            "Spans that were lost: no room to wait, or refused by the collector.";
        SPAN_EXPORTS_FAILED: Counter "tollway_span_exports_failed_total" [],
            "Exports of spans that failed, those that are tried again too.";
        LINES_WRITTEN: Counter "tollway_access_log_lines_total" [],
            "Lines written to the access log.";
        LINES_DROPPED: Counter "tollway_access_log_dropped_total" ["reason"],
            "Lines that were lost: no room to wait, or they could not be written.";
    }
    MEMBERS {
        APP_READY: Gauge "tollway_app_ready" [],
            "Whether the app takes connections; 1 without an app.";
        CONTROL_CONNECTED: Gauge "tollway_control_connected" [],
            "Whether the stream from the control plane is open.";
        CONTROL_REGISTERED: Gauge "tollway_control_registered" [],
            "Whether the control plane holds this instance's registration.";
        CONTROL_REVISION: Gauge "tollway_control_revision" [],
            "The last revision of the mesh's state that was applied here.";
    }
    CONTROL {
        CONTROL_CONNECTIONS: Gauge "tollway_control_connections" ["state"],
            "Connections to a control plane, by what they have proved.";
        CONTROL_CONNECTIONS_REFUSED: Counter "tollway_control_connections_refused_total" ["reason"],
            "Connections that a control plane refused or ended, or that gave way to others.";
        CONTROL_UNTAKEN_BYTES: Gauge "tollway_control_untaken_bytes" [],
            "Bytes of answers of a control plane that wait until whom they are for takes them.";
        WATCHERS: Gauge "tollway_watchers" [],
            "Streams of data planes and joined control planes that follow the state.";
        WATCHER_LAG: Gauge "tollway_watcher_lag_revisions" [],
            "Revisions that the slowest of the watchers has not acknowledged yet.";
        SERVICES: Gauge "tollway_services" ["scope"],
            "Known services: local ones, and those of joined networks.";
        WORKLOADS: Gauge "tollway_workloads" [],
            "Registered instances of local services.";
        GATEWAYS: Gauge "tollway_gateways" [],
            "Registered gateways of this network.";
        NETWORKS_JOINED: Gauge "tollway_networks_joined" [],
            "Networks that this one is joined with.";
        NETWORKS_REACHABLE: Gauge "tollway_networks_reachable" [],
            "Joined networks that answer now.";
        STORE_REVISION: Gauge "tollway_store_revision" [],
            "Revision of the last durable transaction.";
        STORE_COMMIT_DURATION: Histogram "tollway_store_commit_duration_seconds" [],
            "Writing a group of transactions until it is durable.";
        STORE_COMMITS_FAILED: Counter "tollway_store_commits_failed_total" [],
            "Groups of transactions that could not be written.";
        STORE_ENTRIES: Gauge "tollway_store_entries" [],
            "Keys in the store.";
        STORE_LIVE_BYTES: Gauge "tollway_store_live_bytes" [],
            "Bytes of the store that the present entries need.";
        STORE_FILE_BYTES: Gauge "tollway_store_file_bytes" [],
            "Size of the store's file; compaction takes it back to the live bytes.";
        STORE_LEASES: Gauge "tollway_store_leases" [],
            "Running leases: one for each registration.";
        STATE_ENTRIES: Gauge "tollway_state_entries" [],
            "Entries that apps keep in the network's store, once the first app has come for it.";
        STATE_BYTES: Gauge "tollway_state_bytes" [],
            "Bytes of them: keys and values, which the control plane has in memory.";
        REMINDERS: Gauge "tollway_reminders" [],
            "Reminders of actors that are kept.";
        REMINDER_BYTES: Gauge "tollway_reminder_bytes" [],
            "Bytes of them, with their names and data.";
        REMINDER_CHANGES: Counter "tollway_reminder_changes_total" ["result"],
            "Changes to reminders that hosts of actors asked for.";
        REMINDERS_EXPIRED: Counter "tollway_reminders_expired_total" [],
            "Reminders that were removed because their time to live was over.";
        REMINDER_COMMIT_DURATION: Histogram "tollway_reminder_commit_duration_seconds" [],
            "Writing a group of changes to reminders until it is durable.";
        REMINDER_COMMITS_FAILED: Counter "tollway_reminder_commits_failed_total" [],
            "Groups of changes to reminders that could not be written.";
        NEIGHBOUR_GROUPS: Gauge "tollway_neighbour_groups" [],
            "Groups of neighbours that were written or watched.";
        NEIGHBOURS: Gauge "tollway_neighbours" [],
            "Neighbours of the fabric that are kept.";
        NEIGHBOUR_TOMBSTONES: Gauge "tollway_neighbour_tombstones" [],
            "Tombstones of deleted neighbours that are kept for agents that were away.";
        NEIGHBOUR_TOMBSTONES_COMPACTED: Counter "tollway_neighbour_tombstones_compacted_total" [],
            "Tombstones that were removed.";
        NEIGHBOUR_CHANGES: Counter "tollway_neighbour_changes_total" ["result"],
            "Changes to neighbours that were asked for.";
        NEIGHBOURS_LOOKED_UP: Counter "tollway_neighbours_looked_up_total" [],
            "Keys of neighbours that were looked up.";
        NEIGHBOUR_WATCHERS: Gauge "tollway_neighbour_watchers" [],
            "Agents and operators that follow neighbours.";
        NEIGHBOURS_TOLD: Counter "tollway_neighbours_told_total" [],
            "Neighbours and tombstones that watchers were told from the table.";
        NEIGHBOUR_FULL_LISTS: Counter "tollway_neighbour_full_lists_total" [],
            "Times that a watcher was told a whole group.";
        NEIGHBOUR_RESYNCS: Counter "tollway_neighbour_resyncs_total" [],
            "Times that a watcher that was away or behind was told from the table what had changed.";
        NEIGHBOUR_COMMIT_DURATION: Histogram "tollway_neighbour_commit_duration_seconds" [],
            "Writing a group of changes to neighbours until it is durable.";
        NEIGHBOUR_COMMITS_FAILED: Counter "tollway_neighbour_commits_failed_total" [],
            "Groups of changes to neighbours that could not be written.";
    }
    FABRIC {
        FABRIC_CONNECTED: Gauge "tollway_fabric_connected" [],
            "Whether a connection to the control plane is open.";
        FABRIC_NEIGHBOURS: Gauge "tollway_fabric_neighbours" [],
            "Neighbours in the kernel's table; after many were written at once, a minute old at most.";
        FABRIC_CAPACITY: Gauge "tollway_fabric_capacity_neighbours" [],
            "Neighbours that the kernel's table holds at most.";
        FABRIC_WAITING: Gauge "tollway_fabric_waiting_neighbours" [],
            "Neighbours that wait for room in the kernel's table.";
        FABRIC_REVISION: Gauge "tollway_fabric_revision" [],
            "Everything of the group up to this revision is in the kernel's table.";
        FABRIC_TROUBLED: Gauge "tollway_fabric_troubled" [],
            "Whether the kernel refuses to take neighbours, and that has not passed by itself.";
        FABRIC_WRITTEN: Counter "tollway_fabric_written_total" [],
            "Neighbours written to the kernel's table.";
        FABRIC_REMOVED: Counter "tollway_fabric_removed_total" [],
            "Neighbours removed from the kernel's table.";
        FABRIC_REPAIRED: Counter "tollway_fabric_repaired_total" [],
            "Entries that differed from the control plane's when the table was compared.";
        FABRIC_LISTINGS: Counter "tollway_fabric_listings_total" [],
            "Times that the whole group was written.";
        FABRIC_PACKETS: Counter "tollway_fabric_packets_total" ["outcome"],
            "Packets that the programs in the kernel took, by what became of them.";
    }
    FRONT {
        CERTIFICATES_REVISION: Gauge "tollway_front_certificates_revision" [],
            "The certificates that are served: 1 at the start, one more each time the files change.";
        CERTIFICATES_REFUSED: Counter "tollway_front_certificates_refused_total" [],
            "Changes of the certificate files that were refused; the old ones are served on.";
    }
    MESH {
        TRUST_REVISION: Gauge "tollway_trust_revision" [],
            "Revision of the trust bundles in use.";
    }
    ALL {
        CERTIFICATE_EXPIRY: Gauge "tollway_certificate_expiry_timestamp_seconds" [],
            "Unix time at which the present certificate ends (of a front's, the first that ends).";
        CONFIG_REVISION: Gauge "tollway_config_revision" [],
            "The settings that run: 1 at the start, one more with every change.";
        CONFIG_REFUSED: Counter "tollway_config_refused_total" [],
            "Changes of the settings file that were refused.";
        BUILD_INFO: Gauge "tollway_build_info" ["part", "version"],
            "1; which part of which version this is.";
        PROCESS_CPU_SECONDS: Counter "process_cpu_seconds_total" [],
            "CPU time of the process.";
        PROCESS_RESIDENT_BYTES: Gauge "process_resident_memory_bytes" [],
            "Memory of the process that is in RAM.";
        PROCESS_OPEN_FDS: Gauge "process_open_fds" [],
            "Open file descriptors.";
        PROCESS_MAX_FDS: Gauge "process_max_fds" [],
            "File descriptors that the process may open.";
        PROCESS_START_TIME: Gauge "process_start_time_seconds" [],
            "Unix time at which the process started.";
    }
    DAPRD {
        DAPR_HTTP_SERVER_REQUESTS: Counter "dapr_http_server_request_count" ["app_id", "method", "status"],
            "Requests of the app to its sidecar over HTTP that were answered.";
        DAPR_HTTP_SERVER_RESPONSES: Counter "dapr_http_server_response_count" ["app_id", "method", "status"],
            "The same: answers to them.";
        DAPR_HTTP_SERVER_LATENCY: Histogram "dapr_http_server_latency" ["app_id", "method", "status"],
            "Milliseconds from the head of such a request to the end of its answer.";
        DAPR_HTTP_SERVER_REQUEST_BYTES: Histogram "dapr_http_server_request_bytes" ["app_id"],
            "Bytes of their bodies.";
        DAPR_HTTP_SERVER_RESPONSE_BYTES: Histogram "dapr_http_server_response_bytes" ["app_id"],
            "Bytes of the bodies of their answers.";
        DAPR_HTTP_CLIENT_COMPLETED: Counter "dapr_http_client_completed_count" ["app_id", "method", "status"],
            "Requests of the sidecar to its app over HTTP that were answered.";
        DAPR_HTTP_CLIENT_LATENCY: Histogram "dapr_http_client_roundtrip_latency" ["app_id", "method", "status"],
            "Milliseconds from the head of such a request to the end of its answer.";
        DAPR_HTTP_CLIENT_SENT_BYTES: Histogram "dapr_http_client_sent_bytes" ["app_id", "method"],
            "Bytes of their bodies.";
        DAPR_HTTP_CLIENT_RECEIVED_BYTES: Histogram "dapr_http_client_received_bytes" ["app_id"],
            "Bytes of the bodies of their answers.";
        DAPR_GRPC_SERVER_COMPLETED: Counter "dapr_grpc_io_server_completed_rpcs" ["app_id", "grpc_server_method", "grpc_server_status"],
            "Calls of the app to its sidecar over gRPC that were answered.";
        DAPR_GRPC_SERVER_LATENCY: Histogram "dapr_grpc_io_server_server_latency" ["app_id", "grpc_server_method", "grpc_server_status"],
            "Milliseconds from the head of such a call to the end of its answer.";
        DAPR_GRPC_SERVER_RECEIVED_BYTES: Histogram "dapr_grpc_io_server_received_bytes_per_rpc" ["app_id", "grpc_server_method"],
            "Bytes of their messages.";
        DAPR_GRPC_SERVER_SENT_BYTES: Histogram "dapr_grpc_io_server_sent_bytes_per_rpc" ["app_id", "grpc_server_method"],
            "Bytes of the messages of their answers.";
        DAPR_GRPC_CLIENT_COMPLETED: Counter "dapr_grpc_io_client_completed_rpcs" ["app_id", "grpc_client_method", "grpc_client_status"],
            "Calls of the sidecar to its app over gRPC that were answered.";
        DAPR_GRPC_CLIENT_LATENCY: Histogram "dapr_grpc_io_client_roundtrip_latency" ["app_id", "grpc_client_method", "grpc_client_status"],
            "Milliseconds from the head of such a call to the end of its answer.";
        DAPR_GRPC_CLIENT_SENT_BYTES: Histogram "dapr_grpc_io_client_sent_bytes_per_rpc" ["app_id", "grpc_client_method"],
            "Bytes of their messages.";
        DAPR_GRPC_CLIENT_RECEIVED_BYTES: Histogram "dapr_grpc_io_client_received_bytes_per_rpc" ["app_id", "grpc_client_method"],
            "Bytes of the messages of their answers.";
        DAPR_INVOCATION_REQUESTS_SENT: Counter "dapr_runtime_service_invocation_req_sent_total" ["app_id", "dst_app_id", "type"],
            "Calls of other apps that were answered, by them or in the mesh.";
        DAPR_INVOCATION_REQUESTS_RECEIVED: Counter "dapr_runtime_service_invocation_req_recv_total" ["app_id", "src_app_id"],
            "Calls by other apps that were answered.";
        DAPR_INVOCATION_RESPONSES_SENT: Counter "dapr_runtime_service_invocation_res_sent_total" ["app_id", "dst_app_id", "status"],
            "The same, by how they ended.";
        DAPR_INVOCATION_RESPONSES_RECEIVED: Counter "dapr_runtime_service_invocation_res_recv_total" ["app_id", "src_app_id", "status", "type"],
            "Calls of other apps, by how they ended.";
        DAPR_INVOCATION_LATENCY: Histogram "dapr_runtime_service_invocation_res_recv_latency_ms" ["app_id", "src_app_id", "status"],
            "Milliseconds that they took.";
        DAPR_HTTP_PROBES: Counter "dapr_http_healthprobes_completed_count" ["app_id", "status"],
            "Times that the app was asked for its health over HTTP; no answer counts as 500.";
        DAPR_HTTP_PROBE_LATENCY: Histogram "dapr_http_healthprobes_roundtrip_latency" ["app_id", "status"],
            "Milliseconds until it answered.";
        DAPR_ACCESS_ALLOWED: Counter "dapr_runtime_acl_app_policy_action_allowed_total" ["app_id", "trustDomain", "namespace"],
            "Calls that the access control of a Configuration has let in, of callers that it names.";
        DAPR_ACCESS_BLOCKED: Counter "dapr_runtime_acl_app_policy_action_blocked_total" ["app_id", "trustDomain", "namespace"],
            "Calls of such callers that it has refused.";
        DAPR_ACCESS_OTHERS_ALLOWED: Counter "dapr_runtime_acl_global_policy_action_allowed_total" ["app_id", "trustDomain", "namespace"],
            "Calls that it has let in, of callers that it does not name.";
        DAPR_ACCESS_OTHERS_BLOCKED: Counter "dapr_runtime_acl_global_policy_action_blocked_total" ["app_id", "trustDomain", "namespace"],
            "Calls of such callers that it has refused.";
        DAPR_ACTOR_PENDING: Gauge "dapr_runtime_actor_pending_actor_calls" ["app_id", "actor_type"],
            "Calls that wait for their turn.";
        DAPR_ACTOR_TIMERS: Gauge "dapr_runtime_actor_timers" ["app_id", "actor_type"],
            "Timers of the actors here.";
        DAPR_ACTOR_REMINDERS: Gauge "dapr_runtime_actor_reminders" ["app_id", "actor_type"],
            "Reminders of the actors whose place is here.";
        DAPR_ACTOR_TIMERS_FIRED: Counter "dapr_runtime_actor_timers_fired_total" ["app_id", "actor_type", "success"],
            "Timers that fired, by whether the app took them.";
        DAPR_ACTOR_REMINDERS_FIRED: Counter "dapr_runtime_actor_reminders_fired_total" ["app_id", "actor_type", "success"],
            "Reminders that fired, by whether the app took them.";
        DAPR_ACTOR_DEACTIVATED: Counter "dapr_runtime_actor_deactivated_total" ["app_id", "actor_type"],
            "Actors that the app has let go.";
        DAPR_ACTOR_DEACTIVATED_FAILED: Counter "dapr_runtime_actor_deactivated_failed_total" ["app_id", "actor_type"],
            "Actors that it did not let go in time.";
        DAPR_ACTOR_REBALANCED: Counter "dapr_runtime_actor_rebalanced_total" ["app_id", "actor_type"],
            "Times that actors were asked back, for another host.";
        DAPR_RESILIENCY_LOADED: Counter "dapr_resiliency_loaded" ["app_id", "name", "namespace"],
            "1 for each Resiliency file that was read.";
        DAPR_RESILIENCY_COUNT: Counter "dapr_resiliency_count" ["app_id", "name", "policy", "namespace", "flow_direction", "target", "status"],
            "Times that a rule of a Resiliency file was applied; of a breaker, by how it stood.";
        DAPR_RESILIENCY_ACTIVATIONS: Counter "dapr_resiliency_activations_total" ["app_id", "name", "policy", "namespace", "flow_direction", "target", "status"],
            "Times that one did something: a call ended early, was made again, a breaker changed.";
        DAPR_RESILIENCY_CIRCUIT: Gauge "dapr_resiliency_cb_state" ["app_id", "name", "policy", "namespace", "flow_direction", "target", "status"],
            "1 for how the breaker of the last call stands, 0 for how it does not.";
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fmt::Write;

    use super::*;

    #[test]
    fn names_are_unique_and_say_their_kind() {
        let names: HashSet<_> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for metric in METRICS {
            assert!(metric.help.ends_with('.'), "{metric:?}");
            if metric.parts == DAPRD {
                assert!(metric.name.starts_with("dapr_"), "{metric:?}");
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
