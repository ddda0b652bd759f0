//! Which parts of the API an app may use, where its operator restricts it: lists of what is allowed
//! and of what is denied, by name, version and protocol, as in Dapr's Configuration. Requests for
//! health are always allowed, and services that are proxied over gRPC are no part of the API.

use tollway_http::RequestHead;
use tollway_routing::path_parts;

use crate::conn::ListenerKind;
use crate::tokens::asks_for_health;

/// Lists over the parts of the API. What is denied stays so; where something is allowed for a
/// protocol, nothing else is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ApiRules {
    pub allowed: Vec<ApiRule>,
    pub denied: Vec<ApiRule>,
}

/// One part of the API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiRule {
    /// `invoke`, `metadata` …
    pub name: String,
    /// `v1`; over HTTP also as it stands in paths, `v1.0`.
    pub version: String,
    pub protocol: ApiProtocol,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ApiProtocol {
    Http,
    Grpc,
}

/// The methods of the gRPC API before which everything belongs to it.
const GRPC_API: &[u8] = b"/dapr.proto.runtime.v1.Dapr/";

/// The parts that methods of gRPC belong to, each with its version.
const GRPC_PARTS: &[(&str, &str, &[&str])] = &[
    ("invoke", "v1", &["InvokeService"]),
    ("metadata", "v1", &["GetMetadata", "SetMetadata"]),
    ("shutdown", "v1", &["Shutdown"]),
    (
        "state",
        "v1",
        &[
            "GetState",
            "GetBulkState",
            "SaveState",
            "DeleteState",
            "DeleteBulkState",
            "ExecuteStateTransaction",
        ],
    ),
    ("state", "v1alpha1", &["QueryStateAlpha1"]),
    (
        "actors",
        "v1",
        &[
            "RegisterActorTimer",
            "UnregisterActorTimer",
            "GetActorTimer",
            "ListActorTimers",
            "RegisterActorReminder",
            "UnregisterActorReminder",
            "UnregisterActorRemindersByType",
            "GetActorReminder",
            "ListActorReminders",
            "GetActorState",
            "ExecuteActorStateTransaction",
            "InvokeActor",
            "SubscribeActorEventsAlpha1",
        ],
    ),
];

/// All parts of Dapr's API (1.17), served here or not.
const PARTS: [&str; 18] = [
    "actors",
    "bindings",
    "configuration",
    "conversation",
    "crypto",
    "healthz",
    "invoke",
    "jobs",
    "lock",
    "metadata",
    "publish",
    "secrets",
    "shutdown",
    "state",
    "subscribe",
    "subtlecrypto",
    "unlock",
    "workflows",
];
/// Their versions; over HTTP also as they stand in paths.
const VERSIONS: [&str; 7] =
    ["v1", "v1alpha1", "v1alpha2", "v1beta1", "v1.0", "v1.0-alpha1", "v1.0-beta1"];

impl ApiRule {
    /// What of the rule is no name of Dapr's API, so that it would mean nothing.
    #[must_use]
    pub fn unknown(&self) -> Option<String> {
        if !PARTS.contains(&self.name.as_str()) {
            return Some(format!("no part of the API is `{}`; use one of {PARTS:?}", self.name));
        }
        let is_known = VERSIONS.contains(&self.version.as_str())
            && (self.protocol == ApiProtocol::Http || !self.version.contains('.'));
        let of = match self.protocol {
            ApiProtocol::Http => &VERSIONS[..],
            ApiProtocol::Grpc => &VERSIONS[..4],
        };
        (!is_known).then(|| format!("no version is `{}`; use one of {of:?}", self.version))
    }
}

impl ApiRules {
    /// Whether a request at a listener may have an answer. `is_call`: it is for another service, whatever
    /// its path.
    pub(crate) fn admit(&self, listener: &ListenerKind, head: &RequestHead, is_call: bool) -> bool {
        match listener {
            ListenerKind::HttpApi if is_call => self.admit_http(Some(b"v1.0"), Some(b"invoke")),
            ListenerKind::HttpApi => {
                let mut parts = path_parts(&head.path);
                asks_for_health(head) || self.admit_http(parts.next(), parts.next())
            }
            ListenerKind::GrpcApi => {
                head.path.strip_prefix(GRPC_API).is_none_or(|method| self.admit_grpc(method))
            }
            ListenerKind::Loopback
            | ListenerKind::Public
            | ListenerKind::Outbound
            | ListenerKind::Tunnel(_)
            | ListenerKind::Inbound
            | ListenerKind::Tcp(_)
            | ListenerKind::Intercepted
            | ListenerKind::Gateway
            | ListenerKind::GatewayInside
            | ListenerKind::Front => true,
        }
    }

    fn admit_http(&self, version: Option<&[u8]>, name: Option<&[u8]>) -> bool {
        self.decide(ApiProtocol::Http, |rule| {
            let of_rule = |text: &str| version == Some(text.as_bytes());
            name == Some(rule.name.as_bytes())
                && (of_rule(&rule.version) || of_rule(in_paths(&rule.version)))
        })
    }

    fn admit_grpc(&self, method: &[u8]) -> bool {
        // The server of the methods looks at no query.
        let method = method.split(|byte| *byte == b'?').next().unwrap_or_default();
        let is_of = |part: &&(&str, &str, &[&str])| part.2.iter().any(|m| m.as_bytes() == method);
        let part = GRPC_PARTS.iter().find(is_of);
        self.decide(ApiProtocol::Grpc, |rule| {
            part.is_some_and(|(name, version, _)| *name == rule.name && *version == rule.version)
        })
    }

    fn decide(&self, protocol: ApiProtocol, is_meant: impl Fn(&ApiRule) -> bool) -> bool {
        let of_protocol = |rule: &&ApiRule| rule.protocol == protocol;
        if self.denied.iter().filter(of_protocol).any(&is_meant) {
            return false;
        }
        let mut allowed = self.allowed.iter().filter(of_protocol).peekable();
        allowed.peek().is_none() || allowed.any(is_meant)
    }
}

/// The version of a part as it stands in paths.
fn in_paths(version: &str) -> &str {
    match version {
        "v1" => "v1.0",
        "v1alpha1" => "v1.0-alpha1",
        "v1beta1" => "v1.0-beta1",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use tollway_http::Method;

    use super::*;

    fn rules(texts: &[&str]) -> Vec<ApiRule> {
        let rule = |text: &&str| {
            let [protocol, version, name] = text.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{text}")
            };
            let protocol = if protocol == "http" { ApiProtocol::Http } else { ApiProtocol::Grpc };
            ApiRule { name: name.to_owned(), version: version.to_owned(), protocol }
        };
        texts.iter().map(rule).collect()
    }

    /// What of the API may be used: paths of the sidecar's own, calls as `call`.
    fn admitted(allowed: &[&str], denied: &[&str]) -> String {
        let rules = ApiRules { allowed: rules(allowed), denied: rules(denied) };
        let check = |listener: &ListenerKind, path: &str, is_call| {
            let head = RequestHead { method: Method::Get, path: path.into(), ..Default::default() };
            rules.admit(listener, &head, is_call)
        };
        let mut admitted = Vec::new();
        for path in ["/v1.0/metadata", "//v1.0/metadata?a", "/v1.0/metadata-x", "/v1.0/healthz"] {
            admitted.extend(check(&ListenerKind::HttpApi, path, false).then_some(path));
        }
        admitted.extend(check(&ListenerKind::HttpApi, "/v1.0/metadata", true).then_some("call"));
        for method in ["GetMetadata", "InvokeService", "PublishEvent"] {
            let path = format!("/dapr.proto.runtime.v1.Dapr/{method}");
            admitted.extend(check(&ListenerKind::GrpcApi, &path, false).then_some(method));
        }
        assert!(check(&ListenerKind::GrpcApi, "/pkg.Service/Method", true), "proxied");
        assert!(check(&ListenerKind::Loopback, "/v1.0/metadata", true), "its own");
        admitted.join(" ")
    }

    #[test]
    fn what_is_allowed_is_all_there_is_of_its_protocol() {
        let over_grpc = "GetMetadata InvokeService PublishEvent";
        let calls = format!("/v1.0/healthz call {over_grpc}");
        assert_eq!(admitted(&["http v1 invoke"], &[]), calls);
        assert_eq!(admitted(&["http v1.0 invoke"], &[]), calls);
        let metadata = "/v1.0/metadata //v1.0/metadata?a /v1.0/healthz";
        assert_eq!(admitted(&["http v1 metadata"], &[]), format!("{metadata} {over_grpc}"));
        let all = "/v1.0/metadata //v1.0/metadata?a /v1.0/metadata-x /v1.0/healthz call";
        assert_eq!(admitted(&["grpc v1 metadata"], &[]), format!("{all} GetMetadata"));
        assert_eq!(admitted(&["grpc v2 metadata"], &[]), all);
        assert_eq!(admitted(&[], &[]), format!("{all} {over_grpc}"));
    }

    /// The harm: a path that the router reads as a part of the API, and a rule does not, gets round it.
    #[test]
    fn several_slashes_and_queries_and_methods_of_actors_do_not_get_round_a_rule() {
        let denied = ["http v1 state", "http v1 actors", "grpc v1 actors", "http v1alpha1 state"];
        let rules = ApiRules { allowed: Vec::new(), denied: rules(&denied) };
        for path in [
            "/v1.0/state/s/k",
            "/v1.0//state/s/k",
            "//v1.0///state//s",
            "/v1.0/state",
            "/v1.0/state?x",
            "/v1.0//actors/T/1/state",
            "/v1.0-alpha1//state/s/query",
        ] {
            let head = RequestHead { method: Method::Get, path: path.into(), ..Default::default() };
            assert!(!rules.admit(&ListenerKind::HttpApi, &head, false), "{path}");
        }
        for method in [
            "InvokeActor",
            "GetActorState",
            "RegisterActorReminder",
            "InvokeActor?",
            "InvokeActor?a/b",
        ] {
            let path = format!("/dapr.proto.runtime.v1.Dapr/{method}");
            let head = RequestHead { path: path.into(), ..Default::default() };
            assert!(!rules.admit(&ListenerKind::GrpcApi, &head, false), "{method}");
        }
    }

    /// A method without a part would be let in by every list of what is denied.
    #[test]
    fn every_method_of_the_grpc_api_belongs_to_a_part() {
        let text = include_str!("../../wire/proto/dapr/proto/runtime/v1/dapr.proto");
        let methods = text.lines().filter_map(|line| line.trim().strip_prefix("rpc "));
        let methods: Vec<&str> = methods.filter_map(|line| line.split('(').next()).collect();
        assert!(methods.len() > 20, "{methods:?}");
        for method in methods {
            let has_part = GRPC_PARTS.iter().any(|(_, _, of)| of.contains(&method.trim()));
            assert!(has_part, "{method} is in no part");
        }
    }

    #[test]
    fn a_rule_that_names_nothing_is_known_as_such() {
        let unknown = |text| rules(&[text])[0].unknown().unwrap_or_default();
        for good in ["http v1.0 state", "grpc v1 actors", "http v1alpha1 lock", "grpc v1 publish"] {
            assert_eq!(unknown(good), "");
        }
        assert!(unknown("http v1 stat").starts_with("no part of the API is `stat`; use one of"));
        assert!(unknown("http v7 state").starts_with("no version is `v7`; use one of"));
        assert!(unknown("grpc v1.0 state").starts_with("no version is `v1.0`; use one of"));
    }

    #[test]
    fn what_is_denied_stays_so() {
        let denied = ["http v1 invoke", "grpc v1 invoke", "grpc v1 publish"];
        let left = "/v1.0/metadata //v1.0/metadata?a /v1.0/metadata-x /v1.0/healthz GetMetadata \
                    PublishEvent";
        assert_eq!(admitted(&[], &denied), left);
        let both = admitted(&["http v1 invoke"], &["http v1.0 invoke", "http v1 healthz"]);
        assert_eq!(both, "/v1.0/healthz GetMetadata InvokeService PublishEvent");
    }
}
