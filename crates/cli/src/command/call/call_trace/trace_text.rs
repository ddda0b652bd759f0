//! A call trace as lines of at most 60 columns, as far as names allow.

use std::fmt::Write as _;

use hyper::StatusCode;
use tollway_model::Level;
use tollway_model::call_trace::{
    Admission, CallTrace, Connection, EgressTaken, EgressWord, FailedAttempt, Failure, Fault,
    LevelShown, LimitWord, NetworkTaken, OverLimit, RouteTaken, Service, ServiceWord, Stage, Times,
};

use super::explanation::Explanation;

/// Columns of a line; a longer word has a line of its own.
const COLUMNS: usize = 60;
/// Column at which the text of a hop begins.
const INDENT: usize = 12;

/// The lines, each with its end.
pub(super) fn write(explanation: &Explanation) -> String {
    let mut page = Page::default();
    page.line(&format!("{} {}{}", explanation.method, explanation.service, explanation.path));
    match &explanation.call_trace {
        Some(trace) => write_hops(&mut page, trace),
        None => page.hop("trace", "none: the sidecar is on another machine, or older than this"),
    }
    write_answer(&mut page, explanation);
    write_times(&mut page, explanation);
    page.text
}

fn write_hops(page: &mut Page, trace: &CallTrace) {
    if let Some(name) = &trace.name {
        page.hop("name", name);
    }
    if let Some(NetworkTaken { called, network, priority, by }) = &trace.failover {
        let why = match by.as_str() {
            "priority" => "the first",
            "health" => "too few replicas of those before it are healthy",
            "load" => "those before it have all the requests that they may",
            "last_resort" => "none is known to be healthy",
            "retry" => "another network failed",
            other => other,
        };
        page.hop("network", &format!("{network} for {called}, priority {priority}: {why}"));
    }
    if let Some(RouteTaken { service, route, rule }) = &trace.route {
        page.hop("route", &format!("{route}, rule {rule}, of {service}"));
    }
    if let Some(service) = &trace.service {
        page.hop("service", &service_text(service));
        if !service.levels.is_empty() {
            page.hop("levels", &levels_text(&service.levels));
        }
    }
    if let Some(fault) = &trace.fault {
        page.hop("fault", &fault_text(*fault));
    }
    if let Some(connection) = &trace.connection {
        write_connection(page, trace, connection);
    } else {
        page.hop("caller", &trace.caller);
    }
    match &trace.admission {
        Some(Admission::Unprotected) => page.hop("policy", "none protects the service"),
        Some(Admission::NotRefused) => page.hop("policy", "none refuses it"),
        Some(Admission::Allowed(policy)) => page.hop("policy", &format!("allowed by {policy}")),
        Some(Admission::WouldBeRefused(policy)) => {
            page.hop("policy", &format!("admitted; {policy}, in shadow mode, would refuse it"));
        }
        Some(Admission::Refused(policy)) => page.hop("policy", &format!("refused by {policy}")),
        None => {}
    }
    if let Some(OverLimit { limit, is_shadow }) = trace.limit {
        let what = match limit {
            LimitWord::Caller => "requests of this caller",
            LimitWord::Service => "requests of all callers together",
            LimitWord::Concurrency => "requests of this caller at one time",
        };
        let effect = match is_shadow {
            true => "admitted; a limit in shadow mode would refuse it",
            false => "refused by a limit",
        };
        page.hop("limit", &format!("{effect}: {what}"));
    }
    if let Some(egress) = &trace.egress {
        page.hop("egress", &egress_text(egress));
    }
    for FailedAttempt { code, address, instance } in &trace.failed_attempts {
        let at = address.as_ref().map(|address| format!(" at {address}")).unwrap_or_default();
        let of = instance.as_ref().map(|instance| format!(", {instance}")).unwrap_or_default();
        page.hop("failed", &format!("{code}{at}{of}"));
    }
    if trace.attempts > 1 {
        page.hop("attempts", &trace.attempts.to_string());
    }
    if let Some(Failure { code, reported_by, at }) = &trace.failure {
        page.hop("ended", &format!("at {}: {code}, by {reported_by}", stage_text(*at)));
    }
}

fn write_connection(page: &mut Page, trace: &CallTrace, connection: &Connection) {
    let Connection { address, through_gateway, instance, level, callee, is_new, tls } = connection;
    let replica = instance.as_deref().unwrap_or("one without a name");
    if *through_gateway {
        write_gateways(page, trace, address);
        page.hop("replica", replica);
    } else {
        let how_near = match level {
            Some(Level::Zone) => ", in the caller's zone",
            Some(Level::Region) => ", in the caller's region",
            Some(Level::Network) => ", elsewhere in the network",
            None => "",
        };
        page.hop("replica", &format!("{replica} at {address}{how_near}"));
    }
    page.hop("caller", &trace.caller);
    page.hop("callee", callee);
    let link = if *is_new { "new" } else { "reused" };
    match tls {
        Some(tls) => {
            let resumed = if tls.is_resumed { ", resumed" } else { "" };
            page.hop("link", &format!("{link}, TLS {}{resumed}, {}", tls.version, tls.cipher));
        }
        None => page.hop("link", link),
    }
}

/// The gateway that was dialled, and those behind it where it is the caller's own.
fn write_gateways(page: &mut Page, trace: &CallTrace, dialled: &str) {
    let network = trace.name.as_deref().and_then(|name| name.rsplit('.').next()).unwrap_or("?");
    let (known, remote) = match &trace.service {
        Some(service) => (service.gateways.len(), service.remote_gateways.as_slice()),
        None => (0, &[][..]),
    };
    let one_of = if known > 1 { format!(", one of {known}") } else { String::new() };
    match remote {
        [] => page.hop("gateway", &format!("{dialled} of network {network}{one_of}")),
        [far] => {
            page.hop("gateway", &format!("{dialled} of the own network{one_of}"));
            page.hop("remote", &format!("{far} of network {network}"));
        }
        all => {
            page.hop("gateway", &format!("{dialled} of the own network{one_of}"));
            page.hop("remote", &format!("one of {} of network {network}", all.len()));
        }
    }
}

fn service_text(service: &Service) -> String {
    let protocol = service.protocol.as_deref().unwrap_or("?");
    let replicas = match service.ready_replicas {
        1 => "1 replica ready".to_owned(),
        count => format!("{count} replicas ready"),
    };
    let replicas = match service.ejected_replicas {
        0 => replicas,
        ejected => format!("{replicas}, {ejected} of them ejected"),
    };
    match service.state {
        ServiceWord::OwnNetwork => format!("{protocol}, {replicas}, own network"),
        ServiceWord::JoinedNetwork => format!("{protocol}, {replicas}, joined network"),
        ServiceWord::UnknownService => "not known".to_owned(),
        ServiceWord::UnknownNetwork => "its network is not joined".to_owned(),
        ServiceWord::UnreachableNetwork => "its network cannot be reached now".to_owned(),
        ServiceWord::NoReadyEndpoint => "no replica is ready".to_owned(),
        ServiceWord::NoFailover => "no network may serve it".to_owned(),
    }
}

/// What each level takes: `zone 71%, 5 of 10 healthy; region 29%, 3 of 3 healthy`.
fn levels_text(levels: &[LevelShown]) -> String {
    let one = |LevelShown { level, healthy, registered, percent }: &LevelShown| {
        format!("{level} {percent}%, {healthy} of {registered} healthy")
    };
    levels.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn egress_text(EgressTaken { host, decision, egress }: &EgressTaken) -> String {
    let decided = match (decision, egress) {
        (EgressWord::Allowed, Some(name)) => format!("allowed by {name}"),
        (EgressWord::Allowed, None) => "allowed".to_owned(),
        (EgressWord::Default, _) => "passes by default".to_owned(),
        (EgressWord::Refused, _) => "refused: no Egress allows it".to_owned(),
        (EgressWord::ShadowRefused, _) => {
            "passes; no Egress allows it, so that it would be refused".to_owned()
        }
    };
    format!("{host}: {decided}")
}

fn fault_text(Fault { delay_us, is_aborted }: Fault) -> String {
    let delay = delay_us.map(|micros| format!("delayed by {} ms", micros / 1000));
    let abort = is_aborted.then(|| "not sent".to_owned());
    let what: Vec<String> = delay.into_iter().chain(abort).collect();
    format!("{}, on purpose by a traffic policy", what.join(", "))
}

fn stage_text(stage: Stage) -> &'static str {
    match stage {
        Stage::CallerSidecar => "the caller's sidecar",
        Stage::Name => "the name",
        Stage::Service => "the service",
        Stage::Network => "the network",
        Stage::Gateway => "the gateway",
        Stage::Replica => "the replica",
        Stage::Policy => "the policy",
        Stage::App => "the app",
    }
}

fn write_answer(page: &mut Page, explanation: &Explanation) {
    let Some(CallTrace { failure: None, .. }) = &explanation.call_trace else { return };
    let reason = StatusCode::from_u16(explanation.status).ok().and_then(|s| s.canonical_reason());
    let reason = reason.map(|reason| format!(" {reason}")).unwrap_or_default();
    page.hop(
        "answer",
        &format!("{}{reason}, {}", explanation.status, bytes_text(explanation.body_bytes)),
    );
}

fn bytes_text(count: u64) -> String {
    if count == 1 { "1 byte".to_owned() } else { format!("{count} bytes") }
}

fn write_times(page: &mut Page, explanation: &Explanation) {
    page.line("time                    ms");
    let times = explanation.call_trace.as_ref().map(|trace| trace.times_us);
    if let Some(start) = explanation.start_us {
        page.time("start", start, "before the call: an identity");
    }
    if let Some(times) = times {
        write_stage_times(page, explanation, &times);
    }
    page.time("answered", explanation.answered_us, "sum, until the answer's head");
    page.time("body", explanation.body_us, "after it");
    if times.is_some() {
        page.line("  * what remains of the time around it");
    }
}

fn write_stage_times(page: &mut Page, explanation: &Explanation, times: &Times) {
    page.time("this command", explanation.answered_us.saturating_sub(times.total), "*");
    if let Some(discovery) = times.discovery {
        page.time("discovery", discovery, "");
    }
    if let Some(connection) = times.connection {
        let parts = times.connect.zip(times.handshake);
        let parts = parts.map(|(tcp, tls)| format!("TCP {}, TLS {}", ms(tcp), ms(tls)));
        page.time("connection", connection, &parts.unwrap_or_default());
    }
    if let Some(failed) = times.failed_attempts {
        page.time("failed attempts", failed, "");
    }
    page.time("caller's sidecar", times.caller_sidecar, "*");
    let is_joined = explanation.call_trace.as_ref().and_then(|trace| trace.connection.as_ref());
    let is_joined = is_joined.is_some_and(|connection| connection.through_gateway);
    match (times.network, times.round_trip) {
        (Some(network), _) => {
            let name = if is_joined { "network, gateway" } else { "network" };
            page.time(name, network, "*");
        }
        (None, Some(round_trip)) => page.time("upstream", round_trip, "network, sidecar and app"),
        (None, None) => {}
    }
    if let Some(sidecar) = times.callee_sidecar {
        page.time("callee's sidecar", sidecar, "");
    }
    if let Some(app) = times.app {
        page.time("app", app, "");
    }
}

/// Lines that are being written.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn line(&mut self, text: &str) {
        self.text.extend(text.chars().map(printable));
        self.text.push('\n');
    }

    /// Writes one hop; long text goes on in the same column.
    fn hop(&mut self, label: &str, text: &str) {
        let mut line = format!("  {label:<width$}", width = INDENT - 2);
        let mut is_empty = true;
        for word in text.split(' ') {
            if !is_empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
                self.line(&line);
                line = " ".repeat(INDENT);
                is_empty = true;
            }
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
            is_empty = false;
        }
        self.line(&line);
    }

    fn time(&mut self, name: &str, micros: u64, note: &str) {
        let line = format!("  {name:<16}{:>10}  {note}", ms(micros));
        self.line(line.trim_end());
    }
}

/// A trace may come from another network: its text must not control the terminal.
fn printable(c: char) -> char {
    if c.is_control() { '?' } else { c }
}

fn ms(micros: u64) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write!(text, "{}.{:03}", micros / 1000, micros % 1000);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explanation(call_trace: Option<CallTrace>) -> Explanation {
        Explanation {
            method: "GET".to_owned(),
            service: "stock".to_owned(),
            path: "/".to_owned(),
            status: 200,
            body_bytes: 1,
            start_us: None,
            answered_us: 1500,
            body_us: 2,
            call_trace,
            error: None,
        }
    }

    #[test]
    fn a_sidecar_without_a_trace_is_named_as_such() {
        let text = write(&explanation(None));
        assert!(text.starts_with("GET stock/\n  trace     none: "), "{text}");
        assert!(text.contains("\n  answered             1.500  "), "{text}");
        assert!(!text.contains('*'), "{text}");
    }

    #[test]
    fn what_came_from_far_does_not_steer_the_terminal() {
        let failure = Failure {
            code: "ERR_RESET".to_owned(),
            reported_by: "side\u{1b}[2Jcar\n  policy    allowed by me\u{9b}".to_owned(),
            at: Stage::Replica,
        };
        let text =
            write(&explanation(Some(CallTrace { failure: Some(failure), ..CallTrace::default() })));
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        assert!(!text.contains("\n  policy"), "{text}");
    }

    #[test]
    fn long_lines_go_on_below_and_long_names_stand_alone() {
        let mut page = Page::default();
        let name = "a".repeat(80);
        page.hop("ended", &format!("at the replica: ERR_RESET, by sidecar {name} of it"));
        let lines: Vec<&str> = page.text.lines().collect();
        let rest = format!("{}{name}", " ".repeat(INDENT));
        assert_eq!(lines[0], "  ended     at the replica: ERR_RESET, by sidecar");
        assert_eq!(lines[1..], [rest.as_str(), "            of it"]);
    }

    #[test]
    fn replicas_that_were_tried_are_named() {
        let attempt = |address: Option<&str>, instance: Option<&str>| FailedAttempt {
            code: "ERR_APP_UNREACHABLE".to_owned(),
            address: address.map(str::to_owned),
            instance: instance.map(str::to_owned),
        };
        let failed_attempts =
            vec![attempt(Some("10.0.0.1:1"), Some("stock-2")), attempt(None, None)];
        let text = write(&explanation(Some(CallTrace {
            failed_attempts,
            attempts: 3,
            ..CallTrace::default()
        })));
        assert!(text.contains("\n  failed    ERR_APP_UNREACHABLE at 10.0.0.1:1, stock-2\n"));
        assert!(text.contains("\n  failed    ERR_APP_UNREACHABLE\n  attempts  3\n"), "{text}");
        assert!(text.contains("\n  answer    200 OK, 1 byte\n"), "{text}");
    }
}
