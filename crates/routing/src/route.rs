//! Which rule of a service's routes holds for a request, and what it makes of the request.
//!
//! A [`RouteSet`] holds the routes of one service as they are for the caller beside one sidecar. It is
//! made once per change of the routes. Of all matches of all routes the most specific one decides, in
//! the order of the Gateway API: an exact path, a path by a regular expression, the longest prefix, a
//! method, the number of header fields, the number of parameters; then the older route, the name, and
//! the order within the route. Of gRPC a named service counts before a named method.

mod affinity;
mod backoff;
mod budget;
mod matcher;
mod path;
mod rule;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use thiserror::Error;
use tollway_model::route::{PathMatch, RouteMatch, TextMatch};
use tollway_model::{Caller, ObjectName, Route, ServiceName};

use matcher::{Matcher, Rank};

pub use affinity::{AffinityHash, pick_by_key};
pub use backoff::{pause_before, retry_after};
pub use budget::RetryCounts;
pub use rule::{BackendTarget, FieldEdit, Rule, RuleAction, RuleName};

/// The header fields of a request.
pub trait RequestFields {
    /// The value of a field, its name in lower case; several lines of one name are joined by `,`.
    fn value(&self, name: &[u8]) -> Option<Cow<'_, [u8]>>;
}

/// The parts of a request that decide.
#[derive(Clone, Copy)]
pub struct RoutedRequest<'a> {
    pub method: &'a [u8],
    /// Path and query.
    pub target: &'a [u8],
    pub is_grpc: bool,
    pub fields: &'a dyn RequestFields,
}

/// The rule that holds, and how much of the path its match names.
#[derive(Debug)]
pub struct Routed<'a> {
    pub rule: &'a Arc<Rule>,
    /// Length in bytes of the prefix of the path in its normal form, without a slash at its end;
    /// `None` if the match has no prefix.
    pub prefix: Option<usize>,
}

/// A regular expression of a route cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RegexError {
    #[error("the regular expression `{regex}` is not valid: {reason}")]
    Invalid { regex: String, reason: String },
    #[error(
        "the regular expression `{regex}` takes more than {} KiB of memory; write a simpler one",
        matcher::COMPILED_REGEX_BYTES / 1024
    )]
    TooLarge { regex: String },
}

/// Checks that every regular expression of a route can be used.
///
/// # Errors
/// [`RegexError`] for the first that cannot.
pub fn check_regexes(route: &Route) -> Result<(), RegexError> {
    for of in route.rules.iter().flat_map(|rule| &rule.matches) {
        for regex in regexes(of) {
            matcher::compile(regex)?;
        }
    }
    Ok(())
}

fn regexes(of: &RouteMatch) -> impl Iterator<Item = &str> {
    let path = match &of.path {
        Some(PathMatch::Regex(regex)) => Some(regex.as_str()),
        Some(PathMatch::Exact(_) | PathMatch::Prefix(_)) | None => None,
    };
    let grpc = of.grpc.iter().flat_map(|grpc| [&grpc.service, &grpc.method]).flatten();
    let named = of.headers.iter().chain(&of.query).map(|named| &named.value);
    let regex = |text: &'_ TextMatch| matches!(text, TextMatch::Regex(_));
    let texts = grpc.chain(named).filter(move |text| regex(text));
    path.into_iter().chain(texts.map(|text| match text {
        TextMatch::Regex(text) | TextMatch::Exact(text) => text.as_str(),
    }))
}

/// The routes of one service, as they hold for one caller.
#[derive(Debug)]
pub struct RouteSet {
    /// In the order of precedence.
    candidates: Vec<Candidate>,
    /// Those that are for requests of the caller, each at its place.
    rules: Vec<Arc<Rule>>,
}

#[derive(Debug)]
struct Candidate {
    matcher: Matcher,
    rule: Arc<Rule>,
}

/// What decides between two matches that both hold.
type Precedence = (Rank, u64, ObjectName, usize, usize);

impl RouteSet {
    /// Compiles the routes of `service` for `caller`, whose own service is `home`. `None` if none of
    /// them holds for it: its requests then go to the service as they are.
    ///
    /// # Errors
    /// [`RegexError`].
    pub fn new(
        service: &ServiceName,
        routes: &[Arc<Route>],
        caller: Caller<'_>,
        home: &ServiceName,
    ) -> Result<Option<Self>, RegexError> {
        let mut candidates: Vec<(Precedence, Candidate)> = Vec::new();
        let mut rules: Vec<Arc<Rule>> = Vec::new();
        let holding = holding(service, routes, home);
        if holding.is_empty() {
            return Ok(None);
        }
        for route in holding {
            for (number, rule) in route.rules.iter().enumerate() {
                let place = rules.len();
                let compiled = Arc::new(Rule::new(route, number, place, rule, &home.network));
                let before = candidates.len();
                let every = [RouteMatch::default()];
                let matches = if rule.matches.is_empty() { &every[..] } else { &rule.matches };
                for (place, of) in matches.iter().enumerate() {
                    let namespace = &route.name.namespace;
                    let is_meant = of.from.is_empty()
                        || of
                            .from
                            .iter()
                            .any(|from| from.matches(caller, namespace, &home.network));
                    if !is_meant {
                        continue;
                    }
                    let matcher = Matcher::new(of)?;
                    let precedence =
                        (matcher.rank(), route.created_unix_ms, route.name.clone(), number, place);
                    candidates
                        .push((precedence, Candidate { matcher, rule: Arc::clone(&compiled) }));
                }
                if candidates.len() > before {
                    rules.push(compiled);
                }
            }
        }
        candidates.sort_by(|(a, _), (b, _)| a.cmp(b));
        let candidates = candidates.into_iter().map(|(_, of)| of).collect();
        Ok(Some(Self { candidates, rules }))
    }

    /// The rules that may hold, each at its [place](Rule::place).
    #[must_use]
    pub fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }

    /// The rule that holds for a request; `None` if none does: the request is then refused, since the
    /// routes of a service state all that may be asked of it.
    #[must_use]
    pub fn decide(&self, request: RoutedRequest<'_>) -> Option<Routed<'_>> {
        let path = path::normal(request.target);
        let query = path::query(request.target);
        self.candidates.iter().find_map(|candidate| {
            let prefix = candidate.matcher.matches(&request, &path, query)?;
            Some(Routed { rule: &candidate.rule, prefix })
        })
    }
}

/// Those of another namespace hold for the callers there, in place of those of the service's own.
fn holding<'a>(
    service: &ServiceName,
    routes: &'a [Arc<Route>],
    home: &ServiceName,
) -> Vec<&'a Arc<Route>> {
    let called = service.as_app();
    let scoped = routes.iter().filter_map(|route| {
        let scope = route.scope(&home.network);
        (scope.service == *service || scope.service == *called).then_some((scope.callers, route))
    });
    let scoped: Vec<_> = scoped.collect();
    let of_callers = |callers: &Option<_>| callers.as_ref() == Some(&home.namespace);
    let has_own = scoped.iter().any(|(callers, _)| of_callers(callers));
    let is_meant =
        |callers: &Option<_>| if has_own { of_callers(callers) } else { callers.is_none() };
    scoped.into_iter().filter(|(callers, _)| is_meant(callers)).map(|(_, route)| route).collect()
}

/// The host of `host[:port]`, and the port.
fn host_and_port(authority: &[u8]) -> (&[u8], Option<u16>) {
    let colon = authority.iter().rposition(|byte| *byte == b':');
    let is_in_brackets = authority.last() == Some(&b']');
    let Some(colon) = colon.filter(|_| !is_in_brackets) else { return (authority, None) };
    let port = std::str::from_utf8(&authority[colon + 1..]).ok().and_then(|port| port.parse().ok());
    (&authority[..colon], port)
}

impl Routed<'_> {
    /// Path and query of a request as its rule sends it on, where the rule changes them.
    #[must_use]
    pub fn rewritten(&self, target: &[u8]) -> Option<Vec<u8>> {
        path::rewrite(target, self.prefix, self.rule.path()?)
    }

    /// Where its rule redirects a request, which was for `authority`, as a URL; `None` for a rule that
    /// sends requests on.
    #[must_use]
    pub fn location(&self, authority: &[u8], target: &[u8]) -> Option<(u16, Vec<u8>)> {
        let RuleAction::Redirect(redirect) = self.rule.action() else { return None };
        let path = redirect.path.as_ref().and_then(|edit| path::rewrite(target, self.prefix, edit));
        let path = path.as_deref().unwrap_or(target);
        let scheme = redirect.scheme.as_deref().unwrap_or("http");
        let (host, called) = host_and_port(authority);
        let mut url = format!("{scheme}://").into_bytes();
        url.extend_from_slice(redirect.host.as_ref().map_or(host, |host| host.as_bytes()));
        let is_usual = |port| matches!((scheme, port), ("http", 80) | ("https", 443));
        // Another scheme has a port of its own.
        let own = called.filter(|_| redirect.scheme.is_none());
        if let Some(port) = redirect.port.or(own).filter(|port| !is_usual(*port)) {
            url.extend_from_slice(format!(":{port}").as_bytes());
        }
        url.extend_from_slice(path);
        Some((redirect.status, url))
    }
}
