//! Decides how the server answers a request, alike for HTTP/1.1 and HTTP/2.

use std::fmt::Write as _;
use std::time::Duration;

use tollway_http::{Method, RequestHead};
use tollway_record::SplitMix64;

use crate::actor_timer::ActorTimer;
use crate::faults::{Fate, Faults};
use crate::timer_fires::timer_of_path;

/// Path of the unary call.
pub const UNARY_PATH: &str = "/tollway.lab.v1.Echo/Unary";

/// Longest delay that is granted.
pub(crate) const MAX_DELAY_US: u64 = 3_600_000_000;

/// The answer to a request for faults that do not exist.
const FAULTS_HELP: &str = "faults are delay=1ms:50,10ms:5 status=503:10 size=4096 close=1: a value, \
                           or values with their chances in percent\n";

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send the body back as it comes, with its trailers.
    Echo,
    /// Send this many bytes.
    Size(u64),
    /// Answer with this status and no body.
    Status(u16),
    /// Send the request's head as text.
    Headers,
    /// List the actor types that it runs.
    ActorTypes,
    /// Record that a timer of `tollway load timers` has fired, and write state if the timer has
    /// that option.
    TimerFired(ActorTimer),
    /// List the fires since the last such request.
    TimerFires,
    /// Close the connection without an answer.
    Close,
    Grpc(Rpc),
    /// Answer with this status and this text.
    Text(u16, &'static str),
}

impl Action {
    /// Whether the window of a request's body is given back as the answer is sent.
    pub(crate) fn gives_window_back(self) -> bool {
        match self {
            Self::Echo | Self::Grpc(Rpc::Unary | Rpc::BidiStream) => true,
            Self::Grpc(
                Rpc::ServerStream
                | Rpc::ClientStream
                | Rpc::Push
                | Rpc::OnInvoke
                | Rpc::Unknown
                | Rpc::Fail(_),
            )
            | Self::Size(_)
            | Self::Status(_)
            | Self::Headers
            | Self::ActorTypes
            | Self::TimerFired(_)
            | Self::TimerFires
            | Self::Close
            | Self::Text(..) => false,
        }
    }
}

/// What to do with a request, and how long to wait before the answer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) action: Action,
    pub(crate) delay: Option<Duration>,
}

impl From<Action> for Plan {
    fn from(action: Action) -> Self {
        Self { action, delay: None }
    }
}

/// A gRPC method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rpc {
    Unary,
    ServerStream,
    ClientStream,
    BidiStream,
    Push,
    /// A call that came to the sidecar before this app over HTTP or by `InvokeService`.
    OnInvoke,
    Unknown,
    /// The call is to fail with this status.
    Fail(u32),
}

/// Decides by path and, for gRPC, by content type; then at random, by the server's faults or those
/// of the query.
pub(crate) fn plan(head: &RequestHead, faults: &Faults, random: &mut SplitMix64) -> Plan {
    let (_, query) = split_query(&head.path);
    let Ok(faults) = faults.asked(query) else {
        return Action::Text(400, FAULTS_HELP).into();
    };
    let fate = faults.draw(random);
    let mut plan = decide(head);
    plan.delay = fate.delay.or(plan.delay);
    plan.action = match (plan.action, fate) {
        (_, Fate { closes: true, .. }) => Action::Close,
        (Action::Grpc(_), Fate { status: Some(status), .. }) if status != 200 => {
            Action::Grpc(Rpc::Fail(grpc_status(status)))
        }
        (Action::Grpc(rpc), _) => Action::Grpc(rpc),
        (_, Fate { status: Some(status), .. }) if status != 200 => Action::Status(status),
        (_, Fate { size: Some(bytes), .. }) => Action::Size(bytes),
        (action, _) => action,
    };
    plan
}

/// What a client of gRPC makes of a status of HTTP.
fn grpc_status(status: u16) -> u32 {
    match status {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502..=504 => 14,
        _ => 2,
    }
}

/// Decides for an app that runs actors. An actor answers with the body that it got; `None` for a
/// request that does not concern actors.
pub(crate) fn plan_for_actor(head: &RequestHead) -> Option<Plan> {
    let action = match (&head.method, split_query(&head.path).0) {
        (Method::Get, b"/dapr/config") => Action::ActorTypes,
        (Method::Get, b"/timer-fires") => Action::TimerFires,
        (Method::Put, path) if is_of_actor(path) => {
            timer_of_path(path).map_or(Action::Echo, Action::TimerFired)
        }
        (Method::Delete, path) if is_of_actor(path) => Action::Status(200),
        _ => return None,
    };
    Some(action.into())
}

/// Whether the path is that of an actor of type `Echo` or `Echo` with a number.
fn is_of_actor(path: &[u8]) -> bool {
    let Some(rest) = path.strip_prefix(b"/actors/Echo") else { return false };
    rest.iter().find(|byte| !byte.is_ascii_digit()) == Some(&b'/')
}

/// The answer to a sidecar that reads the app's actor types: `Echo`, `Echo1001`, `Echo1002`, …
/// Numbers have four digits each, as those of a range in a load target.
pub(crate) fn actor_types(count: u32) -> Vec<u8> {
    let mut names = vec![r#""Echo""#.to_owned()];
    names.extend((1..count).map(|number| format!(r#""Echo{}""#, 1000 + number)));
    format!(r#"{{"entities":[{}]}}"#, names.join(",")).into_bytes()
}

fn decide(head: &RequestHead) -> Plan {
    let is_grpc = head
        .fields
        .value(b"content-type")
        .is_some_and(|kind| kind.starts_with(b"application/grpc"));
    if is_grpc {
        return Action::Grpc(rpc(&head.path)).into();
    }
    let (path, query) = split_query(&head.path);
    let action = match path {
        b"/echo" => Action::Echo,
        b"/size" => match number(query, b"bytes") {
            Some(bytes) => Action::Size(bytes),
            None => Action::Text(400, "say how much: /size?bytes=N\n"),
        },
        b"/delay" => match delay(query) {
            Some(delay) => return Plan { action: Action::Status(200), delay: Some(delay) },
            None => Action::Text(400, "say how long: /delay?ms=N or /delay?us=N\n"),
        },
        b"/headers" => Action::Headers,
        b"/close" => Action::Close,
        b"/" | b"/healthz" => Action::Status(200),
        _ => match path.strip_prefix(b"/status/").and_then(decimal) {
            Some(status @ 200..=599) => Action::Status(u16::try_from(status).unwrap_or(500)),
            Some(_) => Action::Text(400, "a final status is 200 to 599\n"),
            None => Action::Text(
                404,
                "here are /echo /size?bytes=N /delay?ms=N /status/NNN /headers /close\n",
            ),
        },
    };
    action.into()
}

fn rpc(path: &[u8]) -> Rpc {
    match split_query(path).0 {
        b"/tollway.lab.v1.Echo/Unary" => Rpc::Unary,
        b"/tollway.lab.v1.Echo/ServerStream" => Rpc::ServerStream,
        b"/tollway.lab.v1.Echo/ClientStream" => Rpc::ClientStream,
        b"/tollway.lab.v1.Echo/BidiStream" => Rpc::BidiStream,
        b"/tollway.lab.v1.Echo/Push" => Rpc::Push,
        b"/dapr.proto.runtime.v1.AppCallback/OnInvoke" => Rpc::OnInvoke,
        _ => Rpc::Unknown,
    }
}

fn delay(query: &[u8]) -> Option<Duration> {
    let us = match number(query, b"ms") {
        Some(ms) => ms.checked_mul(1000)?,
        None => number(query, b"us")?,
    };
    (us <= MAX_DELAY_US).then(|| Duration::from_micros(us))
}

fn split_query(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().position(|byte| *byte == b'?') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (path, b""),
    }
}

/// The number that `query` gives `name`.
fn number(query: &[u8], name: &[u8]) -> Option<u64> {
    query
        .split(|byte| *byte == b'&')
        .filter_map(|pair| pair.strip_prefix(name)?.strip_prefix(b"="))
        .find_map(decimal)
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let all_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if all_digits { str::from_utf8(digits).ok()?.parse().ok() } else { None }
}

/// A request's head as lines of text: what arrived here, after all proxies.
pub(crate) fn describe(head: &RequestHead) -> Vec<u8> {
    let mut text = String::new();
    let lossy = String::from_utf8_lossy;
    // Writing into a string does not fail.
    let _ = writeln!(text, ":method: {}", lossy(head.method.as_bytes()));
    let _ = writeln!(text, ":authority: {}", lossy(&head.authority));
    let _ = writeln!(text, ":path: {}", lossy(&head.path));
    for field in head.fields.iter() {
        let _ = writeln!(text, "{}: {}", lossy(field.name), lossy(field.value));
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_actions() {
        for (path, action) in [
            ("/echo", Action::Echo),
            ("/echo?x", Action::Echo),
            ("/size?bytes=10", Action::Size(10)),
            ("/size?a=1&bytes=7", Action::Size(7)),
            ("/status/503", Action::Status(503)),
            ("/headers", Action::Headers),
            ("/close", Action::Close),
        ] {
            assert_eq!(decide(&head(path, None)), action.into(), "{path}");
        }
        for (path, us) in [("/delay?ms=2", 2_000), ("/delay?us=500", 500)] {
            let plan = decide(&head(path, None));
            let delay = Some(Duration::from_micros(us));
            assert_eq!(plan, Plan { action: Action::Status(200), delay }, "{path}");
        }
    }

    #[test]
    fn actor_paths_select_their_actions() {
        let asked = |method: &str, path: &str| {
            let method = Method::from_token(method.as_bytes());
            plan_for_actor(&RequestHead { method, ..head(path, None) }).map(|plan| plan.action)
        };
        assert_eq!(asked("GET", "/dapr/config"), Some(Action::ActorTypes));
        assert_eq!(actor_types(3), br#"{"entities":["Echo","Echo1001","Echo1002"]}"#);
        assert_eq!(asked("PUT", "/actors/Echo12/7/method/say"), Some(Action::Echo));
        assert_eq!(asked("PUT", "/actors/Echos/7/method/say"), None);
        assert_eq!(asked("PUT", "/actors/Echo/7/method/say"), Some(Action::Echo));
        assert_eq!(asked("DELETE", "/actors/Echo/7"), Some(Action::Status(200)));
        assert_eq!(asked("PUT", "/actors/Other/7/method/say"), None);
        assert_eq!(asked("GET", "/healthz"), None);
    }

    #[test]
    fn faults_of_the_query_or_the_server_change_the_plan() {
        let own = Faults { status: "503".parse().unwrap(), ..Faults::default() };
        let random = &mut SplitMix64::new(1);
        let mut action = |path: &str, kind| plan(&head(path, kind), &own, random).action;
        assert_eq!(action("/echo", None), Action::Status(503));
        assert_eq!(action("/echo?status=200&size=9", None), Action::Size(9));
        assert_eq!(action("/echo?close=100", None), Action::Close);
        assert!(matches!(action("/echo?status=1", None), Action::Text(400, _)));
        let grpc = Some("application/grpc");
        assert_eq!(action(UNARY_PATH, grpc), Action::Grpc(Rpc::Fail(14)));
        let delayed = plan(&head("/echo?delay=3ms", None), &Faults::default(), random);
        assert_eq!(delayed.delay, Some(Duration::from_millis(3)));
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        for (path, status) in [
            ("/size", 400),
            ("/size?bytes=-1", 400),
            ("/size?bytes=99999999999999999999999", 400),
            ("/delay?ms=99999999999999", 400),
            ("/status/101", 400),
            ("/status/9999999", 400),
            ("/status/abc", 404),
            ("/else", 404),
        ] {
            assert!(
                matches!(decide(&head(path, None)).action, Action::Text(given, _) if given == status),
                "{path}"
            );
        }
    }

    #[test]
    fn grpc_is_known_by_its_content_type() {
        let kind = Some("application/grpc+proto");
        assert_eq!(decide(&head(UNARY_PATH, kind)).action, Action::Grpc(Rpc::Unary));
        assert_eq!(decide(&head("/a.B/C", kind)).action, Action::Grpc(Rpc::Unknown));
        let invoked = "/dapr.proto.runtime.v1.AppCallback/OnInvoke";
        assert_eq!(decide(&head(invoked, kind)).action, Action::Grpc(Rpc::OnInvoke));
        assert!(matches!(decide(&head(UNARY_PATH, None)).action, Action::Text(404, _)));
    }

    fn head(path: &str, content_type: Option<&str>) -> RequestHead {
        let mut head = RequestHead { path: path.as_bytes().to_vec(), ..RequestHead::default() };
        if let Some(kind) = content_type {
            head.fields.push(b"content-type", kind.as_bytes());
        }
        head
    }
}
