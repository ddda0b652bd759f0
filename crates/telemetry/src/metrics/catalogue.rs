//! Every metric of every part: the one place where names are written.
//!
//! Names begin with `tollway_`, but for those of the process, which all Prometheus clients share.
//! Units are base units and stand in the name; counters end in `_total`.

use super::page::{Kind, Metric};

/// A process of Tollway that has a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Sidecar,
    Gateway,
    Front,
    Control,
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
        }
    }
}

const ALL: &[Part] = &[Part::Sidecar, Part::Gateway, Part::Front, Part::Control];
const DATA: &[Part] = &[Part::Sidecar, Part::Gateway, Part::Front];
const MEMBERS: &[Part] = &[Part::Sidecar, Part::Gateway];
const MESH: &[Part] = &[Part::Sidecar, Part::Gateway, Part::Control];
const FRONT: &[Part] = &[Part::Front];
const CONTROL: &[Part] = &[Part::Control];

/// Declares the metrics, and the list of all of them.
macro_rules! metrics {
    ($($part:ident { $($constant:ident: $kind:ident $name:literal $labels:expr, $help:literal;)+ })+) => {
        /// The metrics by name.
        pub mod names {
            use super::{ALL, CONTROL, DATA, FRONT, Kind, MEMBERS, MESH, Metric};
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
        REQUESTS_REFUSED: Counter "tollway_requests_refused_total" [],
            "Requests and connections refused for malformed or abusive HTTP.";
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
            "Connections not accepted: over a limit or out of descriptors.";
        HANDSHAKES: Counter "tollway_handshakes_total" [],
            "TLS connections accepted at the mesh door or by a front.";
        HANDSHAKES_FAILED: Counter "tollway_handshakes_failed_total" [],
            "TLS connections refused in their handshake.";
        DIALS: Counter "tollway_dials_total" [],
            "Mesh connections dialled.";
        DIALS_FAILED: Counter "tollway_dials_failed_total" [],
            "Dials that failed.";
        CONNECTIONS_SILENT: Counter "tollway_connections_silent_total" [],
            "Mesh connections that gave no sign of life with requests under way.";
        RELAYED_BYTES: Counter "tollway_relayed_bytes_total" [],
            "Bytes relayed unread: gateways, TCP, upgraded connections.";
        GATEWAY_CONNECTIONS: Counter "tollway_gateway_connections_total" [],
            "Connections a gateway sent on.";
        GATEWAY_REFUSED: Counter "tollway_gateway_refused_total" [],
            "Connections a gateway refused: no TLS or a server name it does not serve.";
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
            assert_eq!(metric.kind == Kind::Counter, metric.name.ends_with("_total"), "{metric:?}");
            assert!(metric.name.starts_with("tollway_") || metric.name.starts_with("process_"));
            assert!(metric.help.ends_with('.'), "{metric:?}");
        }
    }

    #[test]
    fn the_documentation_has_each_metric_as_it_is() {
        let page = include_str!("../../../../docs/metrics.md");
        let documented: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("| `tollway_") || line.starts_with("| `process_"))
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
