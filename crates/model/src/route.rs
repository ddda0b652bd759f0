//! Routes: what the sidecars of callers do with requests for a service.
//!
//! The meaning is that of the Gateway API for calls within a mesh (its HTTPRoute and GRPCRoute)
//! wherever both have the same notion. A route of the service's own namespace holds for every caller;
//! one of another namespace holds for the callers of that namespace, in place of those. This module
//! validates one route; `routing` combines several and decides.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::name::{Label, NetworkName, ServiceName};
use crate::object::{ObjectName, ServiceRef};
use crate::policy::{CallerPattern, MethodName};

/// Rules of one route.
pub const ROUTE_RULES_LIMIT: usize = 64;
/// Matches of one rule.
pub const ROUTE_MATCHES_LIMIT: usize = 64;
/// Conditions on header fields, on parameters or on callers of one match.
pub const MATCH_ENTRIES_LIMIT: usize = 16;
/// Backends, or mirrors, of one rule.
pub const BACKENDS_LIMIT: usize = 16;
/// Header fields that one list of edits sets, adds or removes.
pub const HEADER_EDITS_LIMIT: usize = 16;
/// Longest text of a route that a request is compared with or that is written into one, in bytes.
pub const ROUTE_TEXT_BYTES_LIMIT: usize = 4096;
/// Longest regular expression, in bytes.
pub const REGEX_BYTES_LIMIT: usize = 1024;
/// Largest weight of a backend.
pub const WEIGHT_LIMIT: u32 = 1_000_000;
/// Statuses at which a rule retries.
pub const RETRY_STATUSES_LIMIT: usize = 32;
/// Most attempts after the first.
pub const RETRIES_LIMIT: u32 = 100;
/// Longest time that a route sets.
pub const ROUTE_TIME_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Parts in which the share of mirrored requests is counted.
pub const WHOLE_SHARE: u32 = 1_000_000;

/// Why a route was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RouteError {
    #[error("the route has no rules; without a route requests go to the service as they are")]
    NoRules,
    #[error(
        "`service` is in any network, where requests go by the routes of the network that is chosen; name a network or leave it out"
    )]
    AnyNetwork,
    #[error("`{field}` has {count} entries; at most {limit} are accepted")]
    TooMany { field: &'static str, count: usize, limit: usize },
    #[error("`{field}` has {bytes} bytes; at most {limit} are accepted")]
    TooLong { field: &'static str, bytes: usize, limit: usize },
    #[error("two rules have the name `{name}`")]
    SameName { name: Label },
    #[error("the path `{path}` does not begin with `/`")]
    PathNotAbsolute { path: String },
    #[error("the path `{path}` has a query or a fragment; match parameters with `query`")]
    PathQuery { path: String },
    #[error("`{name}` is not the name of a header field")]
    HeaderName { name: String },
    #[error("`{name}` is set by Tollway or carries the connection; a route does not change it")]
    ReservedHeader { name: String },
    #[error("the value of the header field `{name}` has a control character")]
    HeaderValue { name: String },
    #[error("`{name}` is named twice in `{field}`")]
    SameEntry { field: &'static str, name: String },
    #[error("a parameter without a name")]
    ParameterName,
    #[error("a match by gRPC names neither a service nor a method")]
    EmptyGrpc,
    #[error("`{text}` is not the name of a gRPC service or method")]
    GrpcName { text: String },
    #[error("a match has `grpc` beside `path` or `method`; a gRPC call is matched by `grpc` alone")]
    GrpcWithPath,
    #[error("a rule has neither `backends` nor `redirect`, so its requests go nowhere")]
    NoAction,
    #[error("the weight {weight} is larger than {WEIGHT_LIMIT}")]
    Weight { weight: u32 },
    #[error(
        "`{field}` replaces the prefix of a path, so every match of the rule needs a path with a prefix"
    )]
    PrefixWithoutMatch { field: &'static str },
    #[error("a rule with `redirect` has `{field}`, which only requests that are sent on can have")]
    NotWithRedirect { field: &'static str },
    #[error("the status {status} is not one of 301, 302, 303, 307 and 308")]
    RedirectStatus { status: u16 },
    #[error("the scheme `{scheme}` is neither http nor https")]
    Scheme { scheme: String },
    #[error("`{host}` is not a host name")]
    Host { host: String },
    #[error("a share of {share} millionths is larger than the whole")]
    Share { share: u32 },
    #[error("`{field}` is longer than a day")]
    TimeTooLong { field: &'static str },
    #[error("`timeouts.attempt` is longer than `timeouts.request`")]
    AttemptOverRequest,
    #[error("`retry.attempts` is {attempts}; at most {RETRIES_LIMIT} are accepted")]
    Retries { attempts: u32 },
    #[error("`{status}` is not a status of a failed response: 400 to 599")]
    RetryStatus { status: u16 },
    #[error("`{status}` is not the number of a gRPC status that reports a failure: 1 to 16")]
    RetryGrpcStatus { status: u8 },
    #[error("`retry.backoff` is longer than `retry.longestBackoff`")]
    Backoff,
    #[error("`retry.budget.percent` is {percent}; at most 100 are accepted")]
    BudgetPercent { percent: u32 },
}

/// A text with which a part of a request is compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TextMatch {
    /// Exactly this text.
    Exact(String),
    /// A regular expression that holds for the whole text; `routing` compiles it.
    Regex(String),
}

/// The path of a request, without its query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathMatch {
    /// Exactly this path.
    Exact(String),
    /// This path and everything below it, by whole segments.
    Prefix(String),
    /// A regular expression that holds for the whole path.
    Regex(String),
}

/// A header field or a parameter of the query, and its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedMatch {
    pub name: String,
    pub value: TextMatch,
}

/// The method of a gRPC call; a part that is left out is any.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrpcMatch {
    /// Full name of the service, as `shop.v1.Stock`.
    pub service: Option<TextMatch>,
    pub method: Option<TextMatch>,
}

/// It holds for a request if each part that it has holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RouteMatch {
    pub path: Option<PathMatch>,
    pub method: Option<MethodName>,
    pub grpc: Option<GrpcMatch>,
    /// All of these header fields.
    pub headers: Vec<NamedMatch>,
    /// All of these parameters.
    pub query: Vec<NamedMatch>,
    /// Any of these callers; empty means every caller for which the route holds.
    pub from: Vec<CallerPattern>,
}

/// Changes of header fields, in this order: removed, set, added.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeaderEdits {
    pub remove: Vec<String>,
    pub set: Vec<(String, String)>,
    pub add: Vec<(String, String)>,
}

/// How the path changes; the query stays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathEdit {
    /// To this path.
    Full(String),
    /// The prefix that the match names, to this one.
    Prefix(String),
}

/// What changes in the target of a request that is sent on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rewrite {
    /// The host that the app gets to see as the one that was called (`x-forwarded-host`).
    pub host: Option<String>,
    pub path: Option<PathEdit>,
}

/// A service that takes a share of the requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backend {
    pub service: ServiceRef,
    /// Its share is this over the sum of the weights of the rule; 0 takes none.
    pub weight: u32,
    /// Changes of requests that go there, after those of the rule.
    pub request: HeaderEdits,
    /// Changes of its responses, before those of the rule.
    pub response: HeaderEdits,
}

/// The answer that sends a caller elsewhere. Parts that are left out are those of the request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Redirect {
    pub scheme: Option<String>,
    pub host: Option<String>,
    pub port: Option<u16>,
    pub path: Option<PathEdit>,
    pub status: u16,
}

/// What is done with the requests of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RouteAction {
    Forward(Vec<Backend>),
    Redirect(Redirect),
}

/// A service that gets a copy of a share of the requests; its responses are dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mirror {
    pub service: ServiceRef,
    /// In parts of [`WHOLE_SHARE`].
    pub share: u32,
}

/// Times after which a request is over. What is left out is not limited by the route.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RouteTimeouts {
    /// From the request's head to the response's last byte, all attempts and pauses included. Zero
    /// sets no limit.
    pub request: Option<Duration>,
    /// From the moment an attempt is sent whole to the head of its response. Zero sets no limit.
    pub attempt: Option<Duration>,
    /// Without a byte in either direction.
    pub idle: Option<Duration>,
}

/// How much retries may add to the requests of a caller's sidecar for the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryBudget {
    /// Retries per hundred requests of the last ten seconds.
    pub percent: u32,
    /// Retries each second that are made however few requests there are.
    pub min_per_second: u32,
}

impl RetryBudget {
    /// What holds where a rule names none.
    pub const DEFAULT: Self = Self { percent: 20, min_per_second: 1 };
}

/// Further attempts after one that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteRetry {
    /// Most attempts after the first.
    pub attempts: u32,
    /// HTTP statuses of a response after which another attempt is made.
    pub statuses: Vec<u16>,
    /// Numbers of gRPC statuses after which another attempt is made.
    pub grpc_statuses: Vec<u8>,
    /// Pause before the first retry; it doubles with each, up to `longest_backoff`, and a random part
    /// of up to half of it is left out.
    pub backoff: Duration,
    pub longest_backoff: Duration,
    /// Every request of the rule may be carried out twice, also by methods that HTTP does not define
    /// as idempotent.
    pub idempotent: bool,
    pub budget: RetryBudget,
}

/// By which value the requests of one user go to the same replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Affinity {
    /// The value of this header field; requests without it go to any replica.
    Header(String),
    /// The value of this cookie, which the sidecar sets where it is missing; it lives for `ttl`, or as
    /// long as the client's session.
    Cookie { name: String, ttl: Option<Duration> },
}

/// Requests that a rule is for, and what is done with them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteRule {
    /// As it stands in metrics and explanations; the index of the rule stands there otherwise.
    pub name: Option<Label>,
    /// Any of these; empty means every request.
    pub matches: Vec<RouteMatch>,
    pub action: RouteAction,
    pub rewrite: Rewrite,
    pub request: HeaderEdits,
    pub response: HeaderEdits,
    pub mirrors: Vec<Mirror>,
    pub timeouts: RouteTimeouts,
    pub retry: Option<RouteRetry>,
    pub affinity: Option<Affinity>,
}

impl RouteRule {
    /// A rule that sends every request to `backends`.
    #[must_use]
    pub fn forward(backends: Vec<Backend>) -> Self {
        Self {
            name: None,
            matches: Vec::new(),
            action: RouteAction::Forward(backends),
            rewrite: Rewrite::default(),
            request: HeaderEdits::default(),
            response: HeaderEdits::default(),
            mirrors: Vec::new(),
            timeouts: RouteTimeouts::default(),
            retry: None,
            affinity: None,
        }
    }
}

/// What the sidecars of callers do with requests for one service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    pub name: ObjectName,
    /// The service whose calls it is about.
    pub service: ServiceRef,
    pub rules: Vec<RouteRule>,
    /// When it was created, in milliseconds since 1970: of two matches that are equal otherwise, the
    /// one of the older route holds.
    pub created_unix_ms: u64,
}

/// Which callers a route is for.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RouteScope {
    pub service: ServiceName,
    /// `None` for every caller, as a route of the service's namespace has it.
    pub callers: Option<Label>,
}

impl Route {
    /// The requests that it may concern, where it is applied in `network`.
    #[must_use]
    pub fn scope(&self, network: &NetworkName) -> RouteScope {
        let service = self.service.resolve(&self.name.namespace, network);
        let is_own = service.namespace == self.name.namespace && service.network == *network;
        RouteScope { service, callers: (!is_own).then(|| self.name.namespace.clone()) }
    }

    /// Whether both say the same, whenever they were created.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.service == other.service && self.rules == other.rules
    }

    /// Checks what the types alone do not hold. Regular expressions are compiled by `routing`.
    ///
    /// # Errors
    /// [`RouteError`] for the first rule of the format that is broken.
    pub fn check(&self) -> Result<(), RouteError> {
        if self.rules.is_empty() {
            return Err(RouteError::NoRules);
        }
        if self.service.network.as_ref().is_some_and(Label::is_any_network) {
            return Err(RouteError::AnyNetwork);
        }
        check_count("rules", self.rules.len(), ROUTE_RULES_LIMIT)?;
        let mut names = HashSet::new();
        for rule in &self.rules {
            if let Some(name) = &rule.name
                && !names.insert(name)
            {
                return Err(RouteError::SameName { name: name.clone() });
            }
            check_rule(rule)?;
        }
        Ok(())
    }
}

impl fmt::Display for RouteScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.callers {
            None => write!(f, "every caller of {}", self.service),
            Some(namespace) => {
                write!(f, "the callers of {} in the namespace {namespace}", self.service)
            }
        }
    }
}

fn check_count(field: &'static str, count: usize, limit: usize) -> Result<(), RouteError> {
    if count > limit {
        return Err(RouteError::TooMany { field, count, limit });
    }
    Ok(())
}

fn check_text(field: &'static str, text: &str, limit: usize) -> Result<(), RouteError> {
    if text.len() > limit {
        return Err(RouteError::TooLong { field, bytes: text.len(), limit });
    }
    Ok(())
}

fn check_rule(rule: &RouteRule) -> Result<(), RouteError> {
    check_count("matches", rule.matches.len(), ROUTE_MATCHES_LIMIT)?;
    rule.matches.iter().try_for_each(check_match)?;
    check_edits(&rule.request)?;
    check_edits(&rule.response)?;
    check_times(&rule.timeouts)?;
    match &rule.action {
        RouteAction::Forward(backends) => check_forward(rule, backends),
        RouteAction::Redirect(redirect) => check_redirect(rule, redirect),
    }
}

fn check_match(of: &RouteMatch) -> Result<(), RouteError> {
    match &of.path {
        Some(PathMatch::Exact(path) | PathMatch::Prefix(path)) => check_path(path)?,
        Some(PathMatch::Regex(regex)) => check_text("path.regex", regex, REGEX_BYTES_LIMIT)?,
        None => {}
    }
    if let Some(grpc) = &of.grpc {
        if of.path.is_some() || of.method.is_some() {
            return Err(RouteError::GrpcWithPath);
        }
        check_grpc(grpc)?;
    }
    check_count("headers", of.headers.len(), MATCH_ENTRIES_LIMIT)?;
    check_count("query", of.query.len(), MATCH_ENTRIES_LIMIT)?;
    check_count("from", of.from.len(), MATCH_ENTRIES_LIMIT)?;
    let mut names = HashSet::new();
    for header in &of.headers {
        check_header_name(&header.name)?;
        check_value("headers", &header.value)?;
        if !names.insert(header.name.to_ascii_lowercase()) {
            return Err(RouteError::SameEntry { field: "headers", name: header.name.clone() });
        }
    }
    names.clear();
    for parameter in &of.query {
        if parameter.name.is_empty() {
            return Err(RouteError::ParameterName);
        }
        check_text("query", &parameter.name, ROUTE_TEXT_BYTES_LIMIT)?;
        check_value("query", &parameter.value)?;
        if !names.insert(parameter.name.clone()) {
            return Err(RouteError::SameEntry { field: "query", name: parameter.name.clone() });
        }
    }
    Ok(())
}

fn check_value(field: &'static str, value: &TextMatch) -> Result<(), RouteError> {
    match value {
        TextMatch::Exact(text) => check_text(field, text, ROUTE_TEXT_BYTES_LIMIT),
        TextMatch::Regex(regex) => check_text(field, regex, REGEX_BYTES_LIMIT),
    }
}

fn check_path(path: &str) -> Result<(), RouteError> {
    check_text("path", path, ROUTE_TEXT_BYTES_LIMIT)?;
    if !path.starts_with('/') {
        return Err(RouteError::PathNotAbsolute { path: path.to_owned() });
    }
    if path.contains(['?', '#']) {
        return Err(RouteError::PathQuery { path: path.to_owned() });
    }
    Ok(())
}

fn check_grpc(of: &GrpcMatch) -> Result<(), RouteError> {
    if of.service.is_none() && of.method.is_none() {
        return Err(RouteError::EmptyGrpc);
    }
    for part in [&of.service, &of.method].into_iter().flatten() {
        check_value("grpc", part)?;
        if let TextMatch::Exact(text) = part {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
            if text.is_empty() || !text.chars().all(is_name) {
                return Err(RouteError::GrpcName { text: text.clone() });
            }
        }
    }
    Ok(())
}

fn check_forward(rule: &RouteRule, backends: &[Backend]) -> Result<(), RouteError> {
    if backends.is_empty() {
        return Err(RouteError::NoAction);
    }
    check_count("backends", backends.len(), BACKENDS_LIMIT)?;
    for backend in backends {
        if backend.weight > WEIGHT_LIMIT {
            return Err(RouteError::Weight { weight: backend.weight });
        }
        check_edits(&backend.request)?;
        check_edits(&backend.response)?;
    }
    if let Some(host) = &rule.rewrite.host {
        check_host(host)?;
    }
    check_path_edit("rewrite.path", rule.rewrite.path.as_ref(), &rule.matches)?;
    check_count("mirrors", rule.mirrors.len(), BACKENDS_LIMIT)?;
    if let Some(mirror) = rule.mirrors.iter().find(|mirror| mirror.share > WHOLE_SHARE) {
        return Err(RouteError::Share { share: mirror.share });
    }
    if let Some(retry) = &rule.retry {
        check_retry(retry)?;
    }
    match &rule.affinity {
        Some(Affinity::Header(name)) => check_header_name(name),
        Some(Affinity::Cookie { name, ttl }) => {
            check_time("affinity.cookie.ttl", ttl.unwrap_or_default())?;
            check_header_name(name)
        }
        None => Ok(()),
    }
}

fn check_redirect(rule: &RouteRule, redirect: &Redirect) -> Result<(), RouteError> {
    let has = [
        ("rewrite", rule.rewrite != Rewrite::default()),
        ("mirrors", !rule.mirrors.is_empty()),
        ("retry", rule.retry.is_some()),
        ("affinity", rule.affinity.is_some()),
        ("requestHeaders", rule.request != HeaderEdits::default()),
        ("timeouts", rule.timeouts != RouteTimeouts::default()),
    ];
    if let Some((field, _)) = has.into_iter().find(|(_, is_there)| *is_there) {
        return Err(RouteError::NotWithRedirect { field });
    }
    if !matches!(redirect.status, 301 | 302 | 303 | 307 | 308) {
        return Err(RouteError::RedirectStatus { status: redirect.status });
    }
    if let Some(scheme) = &redirect.scheme
        && scheme != "http"
        && scheme != "https"
    {
        return Err(RouteError::Scheme { scheme: scheme.clone() });
    }
    if let Some(host) = &redirect.host {
        check_host(host)?;
    }
    check_path_edit("redirect.path", redirect.path.as_ref(), &rule.matches)
}

fn check_path_edit(
    field: &'static str,
    edit: Option<&PathEdit>,
    matches: &[RouteMatch],
) -> Result<(), RouteError> {
    match edit {
        Some(PathEdit::Full(path)) => check_path(path),
        Some(PathEdit::Prefix(path)) => {
            if !path.is_empty() {
                check_path(path)?;
            }
            let has_prefix = |of: &RouteMatch| matches!(of.path, Some(PathMatch::Prefix(_)));
            if matches.is_empty() || !matches.iter().all(has_prefix) {
                return Err(RouteError::PrefixWithoutMatch { field });
            }
            Ok(())
        }
        None => Ok(()),
    }
}

fn check_host(host: &str) -> Result<(), RouteError> {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    if host.len() > 253 || !host.split('.').all(is_label) {
        return Err(RouteError::Host { host: host.to_owned() });
    }
    Ok(())
}

/// Fields that frame a message or belong to one connection (RFC 9110 section 7.6.1), and those by
/// which a message names its target.
const RESERVED_FIELDS: [&str; 10] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "dapr-app-id",
];

/// Fields that only the mesh sets begin so.
const RESERVED_PREFIXES: [&str; 3] = ["x-tollway-", "dapr-caller-", "dapr-callee-"];

fn check_edits(edits: &HeaderEdits) -> Result<(), RouteError> {
    for (field, count) in
        [("remove", edits.remove.len()), ("set", edits.set.len()), ("add", edits.add.len())]
    {
        check_count(field, count, HEADER_EDITS_LIMIT)?;
    }
    let written = edits.set.iter().chain(&edits.add);
    let names = edits.remove.iter().chain(written.clone().map(|(name, _)| name));
    for name in names {
        check_header_name(name)?;
        let lower = name.to_ascii_lowercase();
        let is_reserved = RESERVED_FIELDS.contains(&lower.as_str())
            || RESERVED_PREFIXES.iter().any(|prefix| lower.starts_with(prefix));
        if is_reserved {
            return Err(RouteError::ReservedHeader { name: name.clone() });
        }
    }
    for (name, value) in written {
        check_text("value", value, ROUTE_TEXT_BYTES_LIMIT)?;
        if value.bytes().any(|b| b < b' ' && b != b'\t' || b == 0x7f) {
            return Err(RouteError::HeaderValue { name: name.clone() });
        }
    }
    let mut seen = HashSet::new();
    for (name, _) in &edits.set {
        if !seen.insert(name.to_ascii_lowercase()) {
            return Err(RouteError::SameEntry { field: "set", name: name.clone() });
        }
    }
    Ok(())
}

fn check_header_name(name: &str) -> Result<(), RouteError> {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || name.len() > 256 || !name.bytes().all(is_token) {
        return Err(RouteError::HeaderName { name: name.to_owned() });
    }
    Ok(())
}

fn check_times(times: &RouteTimeouts) -> Result<(), RouteError> {
    for (field, time) in [
        ("timeouts.request", times.request),
        ("timeouts.attempt", times.attempt),
        ("timeouts.idle", times.idle),
    ] {
        check_time(field, time.unwrap_or_default())?;
    }
    match (times.request, times.attempt) {
        (Some(request), Some(attempt)) if attempt > request && !request.is_zero() => {
            Err(RouteError::AttemptOverRequest)
        }
        _ => Ok(()),
    }
}

fn check_time(field: &'static str, time: Duration) -> Result<(), RouteError> {
    if time > ROUTE_TIME_LIMIT {
        return Err(RouteError::TimeTooLong { field });
    }
    Ok(())
}

fn check_retry(retry: &RouteRetry) -> Result<(), RouteError> {
    if retry.attempts > RETRIES_LIMIT {
        return Err(RouteError::Retries { attempts: retry.attempts });
    }
    check_count("retry.statuses", retry.statuses.len(), RETRY_STATUSES_LIMIT)?;
    check_count("retry.grpcStatuses", retry.grpc_statuses.len(), RETRY_STATUSES_LIMIT)?;
    if let Some(status) = retry.statuses.iter().find(|status| !(400..600).contains(*status)) {
        return Err(RouteError::RetryStatus { status: *status });
    }
    if let Some(status) = retry.grpc_statuses.iter().find(|status| !(1..=16).contains(*status)) {
        return Err(RouteError::RetryGrpcStatus { status: *status });
    }
    check_time("retry.backoff", retry.backoff)?;
    check_time("retry.longestBackoff", retry.longest_backoff)?;
    if retry.backoff > retry.longest_backoff {
        return Err(RouteError::Backoff);
    }
    if retry.budget.percent > 100 {
        return Err(RouteError::BudgetPercent { percent: retry.budget.percent });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
