//! The `spec` of a route. Names are those of the Gateway API where the meaning is the same; instead of
//! a list of filters there is a field for each.

pub(super) mod fields;

use std::num::NonZeroU16;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_saphyr::{Location, Spanned};
use tollway_model::route as model;
use tollway_model::{CallerPattern, Label, MethodName, ObjectName, Route, ServiceRef};

use super::Problem;
use super::values::{Text, Time, bare, filled, texts};
use fields::{GrpcStatus, HeaderEdits, NamedMatch, Percent, TextMatch};

/// Weight of a backend that names none.
const WEIGHT: u32 = 1;
/// What a redirect without a status has.
const REDIRECT_STATUS: u16 = 302;
/// What a retry without them has.
const ATTEMPTS: u32 = 2;
const BACKOFF: Duration = Duration::from_millis(25);
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);
/// After which a retry that names none is made: HTTP statuses, and the gRPC status UNAVAILABLE.
const STATUSES: [u16; 3] = [502, 503, 504];
const GRPC_STATUSES: [u8; 1] = [14];

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spec {
    service: Text<ServiceRef>,
    rules: Vec<Spanned<Rule>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Rule {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Text<Label>>,
    #[serde(default, deserialize_with = "filled", skip_serializing_if = "Vec::is_empty")]
    matches: Vec<Match>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backends: Option<Vec<Backend>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    redirect: Option<Redirect>,
    #[serde(default, skip_serializing_if = "Rewrite::is_empty")]
    rewrite: Rewrite,
    #[serde(default, skip_serializing_if = "HeaderEdits::is_empty")]
    request_headers: HeaderEdits,
    #[serde(default, skip_serializing_if = "HeaderEdits::is_empty")]
    response_headers: HeaderEdits,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    mirrors: Vec<Mirror>,
    #[serde(default, skip_serializing_if = "Timeouts::is_empty")]
    timeouts: Timeouts,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Retry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    affinity: Option<Affinity>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Match {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathMatch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<Text<MethodName>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grpc: Option<GrpcMatch>,
    #[serde(default, deserialize_with = "filled", skip_serializing_if = "Vec::is_empty")]
    headers: Vec<NamedMatch>,
    #[serde(default, deserialize_with = "filled", skip_serializing_if = "Vec::is_empty")]
    query: Vec<NamedMatch>,
    #[serde(default, deserialize_with = "filled", skip_serializing_if = "Vec::is_empty")]
    from: Vec<Text<CallerPattern>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum PathMatch {
    Exact(String),
    Prefix(String),
    Regex(String),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrpcMatch {
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<TextMatch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<TextMatch>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Backend {
    service: Text<ServiceRef>,
    #[serde(default = "weight", skip_serializing_if = "is_weight")]
    weight: u32,
    #[serde(default, skip_serializing_if = "HeaderEdits::is_empty")]
    request_headers: HeaderEdits,
    #[serde(default, skip_serializing_if = "HeaderEdits::is_empty")]
    response_headers: HeaderEdits,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Redirect {
    #[serde(skip_serializing_if = "Option::is_none")]
    scheme: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<NonZeroU16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathEdit>,
    #[serde(default = "redirect_status")]
    status: u16,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum PathEdit {
    Full(String),
    Prefix(String),
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rewrite {
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathEdit>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mirror {
    service: Text<ServiceRef>,
    #[serde(default, skip_serializing_if = "Percent::is_whole")]
    percent: Percent,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Timeouts {
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<Time>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Retry {
    #[serde(default = "attempts")]
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    statuses: Option<Vec<u16>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grpc_statuses: Option<Vec<GrpcStatus>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    longest_backoff: Option<Time>,
    #[serde(default, skip_serializing_if = "is_false")]
    idempotent: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<Budget>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Budget {
    #[serde(skip_serializing_if = "Option::is_none")]
    percent: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_per_second: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Affinity {
    Header(String),
    Cookie(Cookie),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cookie {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<Time>,
}

fn weight() -> u32 {
    WEIGHT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_weight(weight: &u32) -> bool {
    *weight == WEIGHT
}

fn redirect_status() -> u16 {
    REDIRECT_STATUS
}

fn attempts() -> u32 {
    ATTEMPTS
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

impl Spec {
    pub(super) fn into_route(self, name: ObjectName) -> Result<Route, Problem> {
        let route = |rules| Route {
            name: name.clone(),
            service: self.service.0.clone(),
            rules,
            created_unix_ms: 0,
        };
        let mut rules = Vec::with_capacity(self.rules.len());
        for Spanned { value, referenced, .. } in self.rules {
            let in_rule = |problem: Problem| Problem { at: Some(referenced), ..problem };
            let rule = value.read().map_err(in_rule)?;
            // One rule alone, so that its mistakes have its position.
            let alone = check(route(vec![rule])).map_err(in_rule)?;
            rules.extend(alone.rules);
        }
        check(route(rules))
    }
}

fn check(route: Route) -> Result<Route, Problem> {
    route.check().map_err(|error| Problem::of(&error))?;
    tollway_routing::check_regexes(&route).map_err(|error| Problem::of(&error))?;
    Ok(route)
}

impl Rule {
    fn read(self) -> Result<model::RouteRule, Problem> {
        let action = match (self.backends, self.redirect) {
            (Some(_), Some(_)) => {
                let what = "a rule has `backends` and `redirect`; a request cannot go both ways";
                return Err(Problem { at: None, what: what.to_owned() });
            }
            (backends, None) => {
                let backends = backends.unwrap_or_default();
                model::RouteAction::Forward(backends.into_iter().map(Into::into).collect())
            }
            (None, Some(redirect)) => model::RouteAction::Redirect(redirect.into()),
        };
        Ok(model::RouteRule {
            name: self.name.map(|name| name.0),
            matches: self.matches.into_iter().map(Into::into).collect(),
            action,
            rewrite: model::Rewrite {
                host: self.rewrite.host,
                path: self.rewrite.path.map(Into::into),
            },
            request: self.request_headers.into(),
            response: self.response_headers.into(),
            mirrors: self.mirrors.into_iter().map(Into::into).collect(),
            timeouts: model::RouteTimeouts {
                request: self.timeouts.request.map(|time| time.0),
                attempt: self.timeouts.attempt.map(|time| time.0),
                idle: self.timeouts.idle.map(|time| time.0),
            },
            retry: self.retry.map(Into::into),
            affinity: self.affinity.map(Into::into),
        })
    }
}

impl From<&Route> for Spec {
    fn from(route: &Route) -> Self {
        let rule = |rule| Spanned::new(Rule::from(rule), Location::UNKNOWN, Location::UNKNOWN);
        Self { service: Text(route.service.clone()), rules: route.rules.iter().map(rule).collect() }
    }
}

impl From<&model::RouteRule> for Rule {
    fn from(rule: &model::RouteRule) -> Self {
        let (backends, redirect) = match &rule.action {
            model::RouteAction::Forward(backends) => {
                (Some(backends.iter().map(Into::into).collect()), None)
            }
            model::RouteAction::Redirect(redirect) => (None, Some(redirect.into())),
        };
        Self {
            name: rule.name.clone().map(Text),
            matches: rule.matches.iter().map(Into::into).collect(),
            backends,
            redirect,
            rewrite: Rewrite {
                host: rule.rewrite.host.clone(),
                path: rule.rewrite.path.as_ref().map(Into::into),
            },
            request_headers: (&rule.request).into(),
            response_headers: (&rule.response).into(),
            mirrors: rule.mirrors.iter().map(Into::into).collect(),
            timeouts: Timeouts {
                request: rule.timeouts.request.map(Time),
                attempt: rule.timeouts.attempt.map(Time),
                idle: rule.timeouts.idle.map(Time),
            },
            retry: rule.retry.as_ref().map(Into::into),
            affinity: rule.affinity.as_ref().map(Into::into),
        }
    }
}

impl From<Match> for model::RouteMatch {
    fn from(of: Match) -> Self {
        Self {
            path: of.path.map(|path| match path {
                PathMatch::Exact(path) => model::PathMatch::Exact(path),
                PathMatch::Prefix(path) => model::PathMatch::Prefix(path),
                PathMatch::Regex(regex) => model::PathMatch::Regex(regex),
            }),
            method: of.method.map(|method| method.0),
            grpc: of.grpc.map(|of| model::GrpcMatch {
                service: of.service.map(Into::into),
                method: of.method.map(Into::into),
            }),
            headers: of.headers.into_iter().map(Into::into).collect(),
            query: of.query.into_iter().map(Into::into).collect(),
            from: bare(of.from),
        }
    }
}

impl From<&model::RouteMatch> for Match {
    fn from(of: &model::RouteMatch) -> Self {
        Self {
            path: of.path.as_ref().map(|path| match path {
                model::PathMatch::Exact(path) => PathMatch::Exact(path.clone()),
                model::PathMatch::Prefix(path) => PathMatch::Prefix(path.clone()),
                model::PathMatch::Regex(regex) => PathMatch::Regex(regex.clone()),
            }),
            method: of.method.clone().map(Text),
            grpc: of.grpc.as_ref().map(|of| GrpcMatch {
                service: of.service.clone().map(Into::into),
                method: of.method.clone().map(Into::into),
            }),
            headers: of.headers.iter().cloned().map(Into::into).collect(),
            query: of.query.iter().cloned().map(Into::into).collect(),
            from: texts(&of.from),
        }
    }
}

impl From<Backend> for model::Backend {
    fn from(backend: Backend) -> Self {
        Self {
            service: backend.service.0,
            weight: backend.weight,
            request: backend.request_headers.into(),
            response: backend.response_headers.into(),
        }
    }
}

impl From<&model::Backend> for Backend {
    fn from(backend: &model::Backend) -> Self {
        Self {
            service: Text(backend.service.clone()),
            weight: backend.weight,
            request_headers: (&backend.request).into(),
            response_headers: (&backend.response).into(),
        }
    }
}

impl From<Redirect> for model::Redirect {
    fn from(redirect: Redirect) -> Self {
        Self {
            scheme: redirect.scheme,
            host: redirect.host,
            port: redirect.port.map(NonZeroU16::get),
            path: redirect.path.map(Into::into),
            status: redirect.status,
        }
    }
}

impl From<&model::Redirect> for Redirect {
    fn from(redirect: &model::Redirect) -> Self {
        Self {
            scheme: redirect.scheme.clone(),
            host: redirect.host.clone(),
            port: redirect.port.and_then(NonZeroU16::new),
            path: redirect.path.as_ref().map(Into::into),
            status: redirect.status,
        }
    }
}

impl From<PathEdit> for model::PathEdit {
    fn from(edit: PathEdit) -> Self {
        match edit {
            PathEdit::Full(path) => Self::Full(path),
            PathEdit::Prefix(path) => Self::Prefix(path),
        }
    }
}

impl From<&model::PathEdit> for PathEdit {
    fn from(edit: &model::PathEdit) -> Self {
        match edit {
            model::PathEdit::Full(path) => Self::Full(path.clone()),
            model::PathEdit::Prefix(path) => Self::Prefix(path.clone()),
        }
    }
}

impl From<Mirror> for model::Mirror {
    fn from(mirror: Mirror) -> Self {
        Self { service: mirror.service.0, share: mirror.percent.share() }
    }
}

impl From<&model::Mirror> for Mirror {
    fn from(mirror: &model::Mirror) -> Self {
        Self { service: Text(mirror.service.clone()), percent: Percent::of_share(mirror.share) }
    }
}

impl From<Retry> for model::RouteRetry {
    fn from(retry: Retry) -> Self {
        let (statuses, grpc_statuses) = match (retry.statuses, retry.grpc_statuses) {
            (None, None) => (STATUSES.to_vec(), GRPC_STATUSES.to_vec()),
            (statuses, grpc) => {
                let grpc = grpc.unwrap_or_default();
                (statuses.unwrap_or_default(), grpc.into_iter().map(|status| status.0).collect())
            }
        };
        let backoff = retry.backoff.map_or(BACKOFF, |time| time.0);
        let longest = retry.longest_backoff.map(|time| time.0);
        let usual = model::RetryBudget::DEFAULT;
        let budget = retry.budget.map_or(usual, |budget| model::RetryBudget {
            percent: budget.percent.unwrap_or(usual.percent),
            min_per_second: budget.min_per_second.unwrap_or(usual.min_per_second),
        });
        Self {
            attempts: retry.attempts,
            statuses,
            grpc_statuses,
            backoff,
            longest_backoff: longest.unwrap_or(LONGEST_BACKOFF.max(backoff)),
            idempotent: retry.idempotent,
            budget,
        }
    }
}

impl From<&model::RouteRetry> for Retry {
    fn from(retry: &model::RouteRetry) -> Self {
        // With neither list the usual ones would hold.
        let has_none = retry.statuses.is_empty() && retry.grpc_statuses.is_empty();
        let grpc = || retry.grpc_statuses.iter().copied().map(GrpcStatus).collect();
        let budget = || Budget {
            percent: Some(retry.budget.percent),
            min_per_second: Some(retry.budget.min_per_second),
        };
        Self {
            attempts: retry.attempts,
            statuses: (has_none || !retry.statuses.is_empty()).then(|| retry.statuses.clone()),
            grpc_statuses: (!retry.grpc_statuses.is_empty()).then(grpc),
            backoff: Some(Time(retry.backoff)),
            longest_backoff: Some(Time(retry.longest_backoff)),
            idempotent: retry.idempotent,
            budget: (retry.budget != model::RetryBudget::DEFAULT).then(budget),
        }
    }
}

impl From<Affinity> for model::Affinity {
    fn from(affinity: Affinity) -> Self {
        match affinity {
            Affinity::Header(name) => Self::Header(name),
            Affinity::Cookie(Cookie { name, ttl }) => {
                Self::Cookie { name, ttl: ttl.map(|time| time.0) }
            }
        }
    }
}

impl From<&model::Affinity> for Affinity {
    fn from(affinity: &model::Affinity) -> Self {
        match affinity {
            model::Affinity::Header(name) => Self::Header(name.clone()),
            model::Affinity::Cookie { name, ttl } => {
                Self::Cookie(Cookie { name: name.clone(), ttl: ttl.map(Time) })
            }
        }
    }
}

impl Rewrite {
    fn is_empty(&self) -> bool {
        self.host.is_none() && self.path.is_none()
    }
}

impl Timeouts {
    fn is_empty(&self) -> bool {
        self.request.is_none() && self.attempt.is_none() && self.idle.is_none()
    }
}
