//! Routes.

use std::time::Duration;

use prost::Message as _;
use tollway_model::route::{
    Affinity, Backend, GrpcMatch, HeaderEdits, Mirror, NamedMatch, PathEdit, PathMatch, Redirect,
    RetryBudget, Rewrite, RouteAction, RouteMatch, RouteRetry, RouteRule, RouteTimeouts, TextMatch,
};
use tollway_model::{MethodName, ObjectId, ObjectKind, Route, ServiceRef};

use crate::object::{check_size, read_name};
use crate::{ConvertError, label, v1};

impl From<&Route> for v1::Route {
    fn from(route: &Route) -> Self {
        Self {
            namespace: route.name.namespace.to_string(),
            name: route.name.name.to_string(),
            service: route.service.to_string(),
            rules: route.rules.iter().map(Into::into).collect(),
            created_unix_ms: route.created_unix_ms,
        }
    }
}

impl From<&RouteRule> for v1::RouteRule {
    fn from(rule: &RouteRule) -> Self {
        let action = match &rule.action {
            RouteAction::Forward(backends) => v1::route_rule::Action::Forward(v1::Forward {
                backends: backends.iter().map(Into::into).collect(),
            }),
            RouteAction::Redirect(redirect) => v1::route_rule::Action::Redirect(redirect.into()),
        };
        Self {
            name: rule.name.as_ref().map(ToString::to_string).unwrap_or_default(),
            matches: rule.matches.iter().map(Into::into).collect(),
            action: Some(action),
            rewrite: stated(&rule.rewrite),
            request: stated(&rule.request),
            response: stated(&rule.response),
            mirrors: rule.mirrors.iter().map(Into::into).collect(),
            timeouts: stated(&rule.timeouts),
            retry: rule.retry.as_ref().map(Into::into),
            affinity: rule.affinity.as_ref().map(Into::into),
        }
    }
}

/// A part that changes nothing is not sent.
fn stated<'a, T: Default + PartialEq, W: From<&'a T>>(part: &'a T) -> Option<W> {
    (*part != T::default()).then(|| part.into())
}

impl From<&RouteMatch> for v1::RouteMatch {
    fn from(of: &RouteMatch) -> Self {
        Self {
            path: of.path.as_ref().map(Into::into),
            method: of.method.as_ref().map(ToString::to_string).unwrap_or_default(),
            grpc: of.grpc.as_ref().map(Into::into),
            headers: of.headers.iter().map(Into::into).collect(),
            query: of.query.iter().map(Into::into).collect(),
            from: of.from.iter().map(ToString::to_string).collect(),
        }
    }
}

impl From<&TextMatch> for v1::TextMatch {
    fn from(of: &TextMatch) -> Self {
        let text = match of {
            TextMatch::Exact(text) => v1::text_match::Text::Exact(text.clone()),
            TextMatch::Regex(regex) => v1::text_match::Text::Regex(regex.clone()),
        };
        Self { text: Some(text) }
    }
}

impl From<&PathMatch> for v1::PathMatch {
    fn from(of: &PathMatch) -> Self {
        let path = match of {
            PathMatch::Exact(path) => v1::path_match::Path::Exact(path.clone()),
            PathMatch::Prefix(path) => v1::path_match::Path::Prefix(path.clone()),
            PathMatch::Regex(regex) => v1::path_match::Path::Regex(regex.clone()),
        };
        Self { path: Some(path) }
    }
}

impl From<&NamedMatch> for v1::NamedMatch {
    fn from(of: &NamedMatch) -> Self {
        Self { name: of.name.clone(), value: Some((&of.value).into()) }
    }
}

impl From<&GrpcMatch> for v1::GrpcMatch {
    fn from(of: &GrpcMatch) -> Self {
        Self {
            service: of.service.as_ref().map(Into::into),
            method: of.method.as_ref().map(Into::into),
        }
    }
}

impl From<&HeaderEdits> for v1::HeaderEdits {
    fn from(edits: &HeaderEdits) -> Self {
        let values = |list: &[(String, String)]| {
            let value = |(name, value): &(String, String)| v1::HeaderValue {
                name: name.clone(),
                value: value.clone(),
            };
            list.iter().map(value).collect()
        };
        Self { remove: edits.remove.clone(), set: values(&edits.set), add: values(&edits.add) }
    }
}

impl From<&PathEdit> for v1::PathEdit {
    fn from(edit: &PathEdit) -> Self {
        let path = match edit {
            PathEdit::Full(path) => v1::path_edit::Path::Full(path.clone()),
            PathEdit::Prefix(path) => v1::path_edit::Path::Prefix(path.clone()),
        };
        Self { path: Some(path) }
    }
}

impl From<&Rewrite> for v1::Rewrite {
    fn from(rewrite: &Rewrite) -> Self {
        Self { host: rewrite.host.clone(), path: rewrite.path.as_ref().map(Into::into) }
    }
}

impl From<&Backend> for v1::Backend {
    fn from(backend: &Backend) -> Self {
        Self {
            service: backend.service.to_string(),
            weight: backend.weight,
            request: stated(&backend.request),
            response: stated(&backend.response),
        }
    }
}

impl From<&Redirect> for v1::Redirect {
    fn from(redirect: &Redirect) -> Self {
        Self {
            scheme: redirect.scheme.clone(),
            host: redirect.host.clone(),
            port: redirect.port.map(u32::from),
            path: redirect.path.as_ref().map(Into::into),
            status: u32::from(redirect.status),
        }
    }
}

impl From<&Mirror> for v1::Mirror {
    fn from(mirror: &Mirror) -> Self {
        Self { service: mirror.service.to_string(), share_millionths: mirror.share }
    }
}

impl From<&RouteTimeouts> for v1::RouteTimeouts {
    fn from(times: &RouteTimeouts) -> Self {
        Self {
            request_ns: times.request.map(nanos),
            attempt_ns: times.attempt.map(nanos),
            idle_ns: times.idle.map(nanos),
        }
    }
}

impl From<&RouteRetry> for v1::RouteRetry {
    fn from(retry: &RouteRetry) -> Self {
        Self {
            attempts: retry.attempts,
            statuses: retry.statuses.iter().map(|status| u32::from(*status)).collect(),
            grpc_statuses: retry.grpc_statuses.iter().map(|status| u32::from(*status)).collect(),
            backoff_ns: nanos(retry.backoff),
            longest_backoff_ns: nanos(retry.longest_backoff),
            idempotent: retry.idempotent,
            budget_percent: retry.budget.percent,
            budget_min_per_second: retry.budget.min_per_second,
        }
    }
}

impl From<&Affinity> for v1::Affinity {
    fn from(affinity: &Affinity) -> Self {
        let by = match affinity {
            Affinity::Header(name) => v1::affinity::By::Header(name.clone()),
            Affinity::Cookie { name, ttl } => v1::affinity::By::Cookie(v1::AffinityCookie {
                name: name.clone(),
                ttl_ns: ttl.map(nanos),
            }),
        };
        Self { by: Some(by) }
    }
}

/// No route has a time of centuries.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads a route and checks it as a whole, its regular expressions excepted.
///
/// # Errors
/// [`ConvertError`] for the first thing that is wrong.
pub fn route(route: &v1::Route) -> Result<Route, ConvertError> {
    let name = read_name(&route.namespace, &route.name)?;
    let id = ObjectId { kind: ObjectKind::Route, name: name.clone() };
    check_size(&id, route.encoded_len())?;
    let in_route = |source| ConvertError::InObject { object: id.clone(), source: Box::new(source) };
    let read = Route {
        name,
        service: service(&route.service, "service").map_err(in_route)?,
        rules: list(&route.rules, rule).map_err(in_route)?,
        created_unix_ms: route.created_unix_ms,
    };
    read.check().map_err(|source| ConvertError::Route { object: id.clone(), source })?;
    Ok(read)
}

fn list<T, U>(
    parts: &[T],
    read: impl Fn(&T) -> Result<U, ConvertError>,
) -> Result<Vec<U>, ConvertError> {
    parts.iter().map(read).collect()
}

fn part<T, U>(
    part: Option<&T>,
    read: impl Fn(&T) -> Result<U, ConvertError>,
) -> Result<Option<U>, ConvertError> {
    part.map(read).transpose()
}

/// Reads a part that changes nothing where it is missing.
fn part_or_default<T, U: Default>(
    of: Option<&T>,
    read: impl Fn(&T) -> Result<U, ConvertError>,
) -> Result<U, ConvertError> {
    Ok(part(of, read)?.unwrap_or_default())
}

fn service(text: &str, field: &'static str) -> Result<ServiceRef, ConvertError> {
    ServiceRef::parse(text).map_err(|source| ConvertError::Name { field, source })
}

fn missing<T>(part: Option<T>, field: &'static str) -> Result<T, ConvertError> {
    part.ok_or(ConvertError::Missing { field })
}

fn number<T: TryFrom<u32>>(value: u32, field: &'static str) -> Result<T, ConvertError> {
    T::try_from(value).map_err(|_| ConvertError::Number { field, value })
}

fn rule(rule: &v1::RouteRule) -> Result<RouteRule, ConvertError> {
    let action = match missing(rule.action.as_ref(), "action")? {
        v1::route_rule::Action::Forward(forward) => {
            RouteAction::Forward(list(&forward.backends, backend)?)
        }
        v1::route_rule::Action::Redirect(of) => RouteAction::Redirect(redirect(of)?),
    };
    let name = (!rule.name.is_empty()).then(|| label(&rule.name, "rule.name")).transpose()?;
    Ok(RouteRule {
        name,
        matches: list(&rule.matches, route_match)?,
        action,
        rewrite: part_or_default(rule.rewrite.as_ref(), rewrite)?,
        request: edits(rule.request.as_ref()),
        response: edits(rule.response.as_ref()),
        mirrors: list(&rule.mirrors, |mirror| {
            let service = service(&mirror.service, "mirror.service")?;
            Ok(Mirror { service, share: mirror.share_millionths })
        })?,
        timeouts: rule.timeouts.as_ref().map(timeouts).unwrap_or_default(),
        retry: part(rule.retry.as_ref(), retry)?,
        affinity: part(rule.affinity.as_ref(), affinity)?,
    })
}

fn route_match(of: &v1::RouteMatch) -> Result<RouteMatch, ConvertError> {
    let method = (!of.method.is_empty()).then(|| of.method.parse::<MethodName>()).transpose();
    let from: Result<_, _> = of.from.iter().map(|text| text.parse()).collect();
    let pattern = |source| ConvertError::RoutePattern { source };
    Ok(RouteMatch {
        path: part(of.path.as_ref(), |of| {
            Ok(match missing(of.path.as_ref(), "match.path")? {
                v1::path_match::Path::Exact(path) => PathMatch::Exact(path.clone()),
                v1::path_match::Path::Prefix(path) => PathMatch::Prefix(path.clone()),
                v1::path_match::Path::Regex(regex) => PathMatch::Regex(regex.clone()),
            })
        })?,
        method: method.map_err(pattern)?,
        grpc: part(of.grpc.as_ref(), |of| {
            Ok(GrpcMatch {
                service: part(of.service.as_ref(), text)?,
                method: part(of.method.as_ref(), text)?,
            })
        })?,
        headers: list(&of.headers, named)?,
        query: list(&of.query, named)?,
        from: from.map_err(pattern)?,
    })
}

fn text(of: &v1::TextMatch) -> Result<TextMatch, ConvertError> {
    Ok(match missing(of.text.as_ref(), "text")? {
        v1::text_match::Text::Exact(text) => TextMatch::Exact(text.clone()),
        v1::text_match::Text::Regex(regex) => TextMatch::Regex(regex.clone()),
    })
}

fn named(of: &v1::NamedMatch) -> Result<NamedMatch, ConvertError> {
    let value = text(missing(of.value.as_ref(), "value")?)?;
    Ok(NamedMatch { name: of.name.clone(), value })
}

fn edits(of: Option<&v1::HeaderEdits>) -> HeaderEdits {
    let Some(of) = of else { return HeaderEdits::default() };
    let values = |list: &[v1::HeaderValue]| {
        list.iter().map(|of| (of.name.clone(), of.value.clone())).collect()
    };
    HeaderEdits { remove: of.remove.clone(), set: values(&of.set), add: values(&of.add) }
}

fn path_edit(of: &v1::PathEdit) -> Result<PathEdit, ConvertError> {
    Ok(match missing(of.path.as_ref(), "path")? {
        v1::path_edit::Path::Full(path) => PathEdit::Full(path.clone()),
        v1::path_edit::Path::Prefix(path) => PathEdit::Prefix(path.clone()),
    })
}

fn rewrite(of: &v1::Rewrite) -> Result<Rewrite, ConvertError> {
    Ok(Rewrite { host: of.host.clone(), path: part(of.path.as_ref(), path_edit)? })
}

fn backend(of: &v1::Backend) -> Result<Backend, ConvertError> {
    Ok(Backend {
        service: service(&of.service, "backend.service")?,
        weight: of.weight,
        request: edits(of.request.as_ref()),
        response: edits(of.response.as_ref()),
    })
}

fn redirect(of: &v1::Redirect) -> Result<Redirect, ConvertError> {
    let port = of.port.map(|port| match u16::try_from(port) {
        Ok(number) if number != 0 => Ok(number),
        _ => Err(ConvertError::Port { field: "redirect.port", port }),
    });
    Ok(Redirect {
        scheme: of.scheme.clone(),
        host: of.host.clone(),
        port: port.transpose()?,
        path: part(of.path.as_ref(), path_edit)?,
        status: number(of.status, "redirect.status")?,
    })
}

fn timeouts(of: &v1::RouteTimeouts) -> RouteTimeouts {
    RouteTimeouts {
        request: of.request_ns.map(Duration::from_nanos),
        attempt: of.attempt_ns.map(Duration::from_nanos),
        idle: of.idle_ns.map(Duration::from_nanos),
    }
}

fn retry(of: &v1::RouteRetry) -> Result<RouteRetry, ConvertError> {
    Ok(RouteRetry {
        attempts: of.attempts,
        statuses: list(&of.statuses, |status| number(*status, "retry.statuses"))?,
        grpc_statuses: list(&of.grpc_statuses, |status| number(*status, "retry.grpc_statuses"))?,
        backoff: Duration::from_nanos(of.backoff_ns),
        longest_backoff: Duration::from_nanos(of.longest_backoff_ns),
        idempotent: of.idempotent,
        budget: RetryBudget {
            percent: of.budget_percent,
            min_per_second: of.budget_min_per_second,
        },
    })
}

fn affinity(of: &v1::Affinity) -> Result<Affinity, ConvertError> {
    Ok(match missing(of.by.as_ref(), "affinity")? {
        v1::affinity::By::Header(name) => Affinity::Header(name.clone()),
        v1::affinity::By::Cookie(cookie) => Affinity::Cookie {
            name: cookie.name.clone(),
            ttl: cookie.ttl_ns.map(Duration::from_nanos),
        },
    })
}

#[cfg(test)]
mod tests;
