//! HTTPRoutes and GRPCRoutes of the Gateway API as they are read. No I/O.
//!
//! Fields that have no meaning here are refused, so that no request goes past what a route says. Only what
//! the API's standard channel has is read; `hostnames` mean nothing to a mesh (GEP-1294).

use std::time::Duration;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tollway_config::go;
use tollway_model::route::{
    GrpcMatch, HeaderEdits, NamedMatch, PathEdit, PathMatch, Redirect, RetryBudget, Rewrite,
    RouteAction, RouteMatch, RouteRetry, RouteRule, RouteTimeouts, TextMatch, WHOLE_SHARE,
};
use tollway_model::{Label, MethodName};

/// Retries of a rule that states no number, and pauses between them.
const RETRIES: u32 = 1;
const BACKOFF: Duration = Duration::from_millis(25);
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

/// Which of the two kinds a route is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum RouteKind {
    Http,
    Grpc,
}

impl RouteKind {
    /// As in `kind: HTTPRoute`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Http => "HTTPRoute",
            Self::Grpc => "GRPCRoute",
        }
    }

    /// As in the paths of the API.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Http => "httproutes",
            Self::Grpc => "grpcroutes",
        }
    }
}

/// What a route is attached to, as it states it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ParentRef {
    pub(super) group: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) section_name: Option<String>,
    pub(super) port: Option<u16>,
}

impl ParentRef {
    /// A Service; what is attached to a gateway is read by others.
    pub(super) fn is_service(&self) -> bool {
        // Left out, the group is the API's own and the kind Gateway.
        self.group.as_deref() == Some("") && self.kind.as_deref() == Some("Service")
    }
}

/// The parents of a route that are Services, each with how it is written.
pub(super) fn parents(spec: &Value) -> Vec<(ParentRef, Value)> {
    let stated = spec.get("parentRefs").and_then(Value::as_array).into_iter().flatten();
    let read = |value: &Value| {
        let parent: ParentRef = serde_json::from_value(value.clone()).ok()?;
        parent.is_service().then(|| (parent, value.clone()))
    };
    stated.filter_map(read).collect()
}

/// What requests are sent to, as a route states it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Target {
    #[serde(default)]
    pub(super) group: String,
    #[serde(default = "service_kind")]
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    pub(super) port: Option<u16>,
}

fn service_kind() -> String {
    "Service".to_owned()
}

/// A rule whose backends and mirrors are not looked up yet.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Rule {
    /// Without backends and mirrors.
    pub(super) rule: RouteRule,
    pub(super) backends: Vec<WeighedTarget>,
    /// Each with its share of [`WHOLE_SHARE`].
    pub(super) mirrors: Vec<(Target, u32)>,
}

/// A backend before it is looked up.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct WeighedTarget {
    pub(super) target: Target,
    pub(super) weight: u32,
    pub(super) request: HeaderEdits,
    pub(super) response: HeaderEdits,
}

/// The rules of a route.
///
/// # Errors
/// What is wrong with the first rule that cannot be read, with its place.
pub(super) fn rules(kind: RouteKind, spec: &Value) -> Result<Vec<Rule>, String> {
    let stated = spec.get("rules").and_then(Value::as_array).into_iter().flatten();
    let read = |(index, value): (usize, &Value)| {
        let rule = match kind {
            RouteKind::Http => read_rule::<HttpMatch>(value),
            RouteKind::Grpc => read_rule::<GrpcRouteMatch>(value),
        };
        rule.map_err(|why| format!("rules[{index}]: {why}"))
    };
    stated.enumerate().map(read).collect()
}

fn read_rule<M: DeserializeOwned + Into<RouteMatch>>(value: &Value) -> Result<Rule, String> {
    let stated = RuleSpec::<M>::deserialize(value).map_err(|error| error.to_string())?;
    let mut rule = RouteRule::forward(Vec::new());
    // A name that is none here is longer than a label, or has dots; it is for metrics alone.
    rule.name = stated.name.as_deref().and_then(|name| Label::new(name).ok());
    rule.matches = stated.matches.into_iter().map(Into::into).collect();
    rule.timeouts = stated.timeouts.map(Into::into).unwrap_or_default();
    rule.retry = stated.retry.map(Into::into);
    let mut mirrors = Vec::new();
    for filter in stated.filters {
        match filter {
            Filter::RequestHeaderModifier { edits } => rule.request = edits.into(),
            Filter::ResponseHeaderModifier { edits } => rule.response = edits.into(),
            Filter::RequestMirror { mirror } => mirrors.push(mirror.read()?),
            Filter::RequestRedirect { redirect } => {
                rule.action = RouteAction::Redirect(redirect.into());
            }
            Filter::UrlRewrite { rewrite } => rule.rewrite = rewrite.into(),
        }
    }
    if let RouteAction::Redirect(_) = rule.action {
        // Nothing is sent on, so what would change on the way has no effect.
        rule.request = HeaderEdits::default();
        rule.timeouts = RouteTimeouts::default();
        rule.retry = None;
    }
    // Where every request matches, the prefix is the whole path.
    if rule.matches.is_empty() && replaces_prefix(&rule) {
        rule.matches.push(RouteMatch {
            path: Some(PathMatch::Prefix("/".to_owned())),
            ..RouteMatch::default()
        });
    }
    let backends = stated.backend_refs.into_iter().map(BackendRef::read);
    Ok(Rule { rule, backends: backends.collect::<Result<_, _>>()?, mirrors })
}

fn replaces_prefix(rule: &RouteRule) -> bool {
    let redirected = match &rule.action {
        RouteAction::Redirect(redirect) => redirect.path.as_ref(),
        RouteAction::Forward(_) => None,
    };
    let edits = [redirected, rule.rewrite.path.as_ref()];
    edits.into_iter().flatten().any(|edit| matches!(edit, PathEdit::Prefix(_)))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RuleSpec<M> {
    name: Option<String>,
    #[serde(default = "Vec::new")]
    matches: Vec<M>,
    #[serde(default)]
    filters: Vec<Filter>,
    #[serde(default)]
    backend_refs: Vec<BackendRef>,
    timeouts: Option<Timeouts>,
    retry: Option<Retry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct HttpMatch {
    path: Option<HttpPath>,
    #[serde(default)]
    headers: Vec<Named>,
    #[serde(default)]
    query_params: Vec<Named>,
    #[serde(default, deserialize_with = "method")]
    method: Option<MethodName>,
}

fn method<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<MethodName>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
}

impl From<HttpMatch> for RouteMatch {
    fn from(of: HttpMatch) -> Self {
        Self {
            path: of.path.map(Into::into),
            method: of.method,
            headers: named(of.headers, str::eq_ignore_ascii_case),
            query: named(of.query_params, |one, other| one == other),
            ..Self::default()
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpPath {
    #[serde(default = "path_prefix")]
    r#type: PathType,
    #[serde(default = "root")]
    value: String,
}

#[derive(Deserialize)]
enum PathType {
    Exact,
    PathPrefix,
    RegularExpression,
}

fn path_prefix() -> PathType {
    PathType::PathPrefix
}

fn root() -> String {
    "/".to_owned()
}

impl From<HttpPath> for PathMatch {
    fn from(HttpPath { r#type, value }: HttpPath) -> Self {
        match r#type {
            PathType::Exact => Self::Exact(value),
            PathType::PathPrefix => Self::Prefix(value),
            PathType::RegularExpression => Self::Regex(value),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GrpcRouteMatch {
    method: Option<GrpcMethod>,
    #[serde(default)]
    headers: Vec<Named>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GrpcMethod {
    #[serde(default)]
    r#type: TextType,
    service: Option<String>,
    method: Option<String>,
}

impl From<GrpcRouteMatch> for RouteMatch {
    fn from(of: GrpcRouteMatch) -> Self {
        let grpc = of.method.map(|of| GrpcMatch {
            service: of.service.filter(|text| !text.is_empty()).map(|text| of.r#type.of(text)),
            method: of.method.filter(|text| !text.is_empty()).map(|text| of.r#type.of(text)),
        });
        Self {
            grpc: grpc.filter(|of| of.service.is_some() || of.method.is_some()),
            headers: named(of.headers, str::eq_ignore_ascii_case),
            ..Self::default()
        }
    }
}

#[derive(Clone, Copy, Default, Deserialize)]
enum TextType {
    #[default]
    Exact,
    RegularExpression,
}

impl TextType {
    fn of(self, text: String) -> TextMatch {
        match self {
            Self::Exact => TextMatch::Exact(text),
            Self::RegularExpression => TextMatch::Regex(text),
        }
    }
}

/// A header field or a parameter.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    #[serde(default)]
    r#type: TextType,
    name: String,
    value: String,
}

/// Of several with one name, the API has the first one count.
fn named(all: Vec<Named>, is_same: impl Fn(&str, &str) -> bool) -> Vec<NamedMatch> {
    let mut kept: Vec<NamedMatch> = Vec::new();
    for Named { r#type, name, value } in all {
        if !kept.iter().any(|of| is_same(&of.name, &name)) {
            kept.push(NamedMatch { name, value: r#type.of(value) });
        }
    }
    kept
}

/// What happens to requests on their way. Another type is refused by its name.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum Filter {
    RequestHeaderModifier {
        #[serde(rename = "requestHeaderModifier")]
        edits: Edits,
    },
    ResponseHeaderModifier {
        #[serde(rename = "responseHeaderModifier")]
        edits: Edits,
    },
    RequestMirror {
        #[serde(rename = "requestMirror")]
        mirror: Mirror,
    },
    RequestRedirect {
        #[serde(rename = "requestRedirect")]
        redirect: RedirectSpec,
    },
    #[serde(rename = "URLRewrite")]
    UrlRewrite {
        #[serde(rename = "urlRewrite")]
        rewrite: RewriteSpec,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Edits {
    #[serde(default)]
    set: Vec<Field>,
    #[serde(default)]
    add: Vec<Field>,
    #[serde(default)]
    remove: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Field {
    name: String,
    value: String,
}

impl From<Edits> for HeaderEdits {
    fn from(of: Edits) -> Self {
        let pairs = |of: Vec<Field>| of.into_iter().map(|of| (of.name, of.value)).collect();
        Self { remove: of.remove, set: pairs(of.set), add: pairs(of.add) }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Mirror {
    backend_ref: Target,
    percent: Option<u32>,
    fraction: Option<Fraction>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fraction {
    numerator: u32,
    #[serde(default = "hundred")]
    denominator: u32,
}

fn hundred() -> u32 {
    100
}

impl Mirror {
    /// Its target and its share.
    fn read(self) -> Result<(Target, u32), String> {
        let (part, whole) = match (self.percent, self.fraction) {
            (None, None) => (1, 1),
            (Some(percent), None) => (percent, hundred()),
            (None, Some(of)) => (of.numerator, of.denominator),
            (Some(_), Some(_)) => return Err("a mirror has `percent` and `fraction`".to_owned()),
        };
        let share = u64::from(part) * u64::from(WHOLE_SHARE);
        let share = share.checked_div(u64::from(whole)).and_then(|of| u32::try_from(of).ok());
        let share = share.filter(|share| *share <= WHOLE_SHARE);
        let share = share.ok_or_else(|| format!("a mirror of {part}/{whole} of the requests"))?;
        Ok((self.backend_ref, share))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RedirectSpec {
    scheme: Option<String>,
    hostname: Option<String>,
    path: Option<PathModifier>,
    port: Option<u16>,
    #[serde(default = "found")]
    status_code: u16,
}

fn found() -> u16 {
    302
}

impl From<RedirectSpec> for Redirect {
    fn from(of: RedirectSpec) -> Self {
        Self {
            scheme: of.scheme,
            host: of.hostname,
            port: of.port,
            path: of.path.map(Into::into),
            status: of.status_code,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RewriteSpec {
    hostname: Option<String>,
    path: Option<PathModifier>,
}

impl From<RewriteSpec> for Rewrite {
    fn from(of: RewriteSpec) -> Self {
        Self { host: of.hostname, path: of.path.map(Into::into) }
    }
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum PathModifier {
    ReplaceFullPath {
        #[serde(rename = "replaceFullPath", default)]
        path: String,
    },
    ReplacePrefixMatch {
        #[serde(rename = "replacePrefixMatch", default)]
        path: String,
    },
}

impl From<PathModifier> for PathEdit {
    fn from(of: PathModifier) -> Self {
        match of {
            PathModifier::ReplaceFullPath { path } if path.is_empty() => Self::Full(root()),
            PathModifier::ReplaceFullPath { path } => Self::Full(path),
            PathModifier::ReplacePrefixMatch { path } => Self::Prefix(path),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BackendRef {
    group: Option<String>,
    kind: Option<String>,
    name: String,
    namespace: Option<String>,
    port: Option<u16>,
    #[serde(default = "one")]
    weight: u32,
    #[serde(default)]
    filters: Vec<Filter>,
}

fn one() -> u32 {
    1
}

impl BackendRef {
    fn read(self) -> Result<WeighedTarget, String> {
        let (mut request, mut response) = (HeaderEdits::default(), HeaderEdits::default());
        for filter in self.filters {
            let refused = match filter {
                Filter::RequestHeaderModifier { edits } => {
                    request = edits.into();
                    continue;
                }
                Filter::ResponseHeaderModifier { edits } => {
                    response = edits.into();
                    continue;
                }
                Filter::RequestMirror { .. } => "RequestMirror",
                Filter::RequestRedirect { .. } => "RequestRedirect",
                Filter::UrlRewrite { .. } => "URLRewrite",
            };
            return Err(format!(
                "a backend has the filter {refused}, which a rule alone may have; write a rule for it"
            ));
        }
        let target = Target {
            group: self.group.unwrap_or_default(),
            kind: self.kind.unwrap_or_else(service_kind),
            name: self.name,
            namespace: self.namespace,
            port: self.port,
        };
        Ok(WeighedTarget { target, weight: self.weight, request, response })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Timeouts {
    #[serde(default, deserialize_with = "time")]
    request: Option<Duration>,
    #[serde(default, deserialize_with = "time")]
    backend_request: Option<Duration>,
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let read = |text: String| {
        go::duration(&text).ok_or_else(|| D::Error::custom(format!("`{text}` is not a time")))
    };
    text.map(read).transpose()
}

impl From<Timeouts> for RouteTimeouts {
    fn from(of: Timeouts) -> Self {
        Self { request: of.request, attempt: of.backend_request, idle: None }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Retry {
    #[serde(default)]
    codes: Vec<u16>,
    attempts: Option<u32>,
    #[serde(default, deserialize_with = "time")]
    backoff: Option<Duration>,
}

impl From<Retry> for RouteRetry {
    fn from(of: Retry) -> Self {
        let backoff = of.backoff.unwrap_or(BACKOFF);
        Self {
            attempts: of.attempts.unwrap_or(RETRIES),
            statuses: of.codes,
            grpc_statuses: Vec::new(),
            backoff,
            longest_backoff: LONGEST_BACKOFF.max(backoff),
            idempotent: false,
            budget: RetryBudget::DEFAULT,
        }
    }
}
