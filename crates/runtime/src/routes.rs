//! The routes of the HTTP API that the runtime serves: the table by which it routes, and which callers
//! each route has. Invocation is routed in the data loop.

use hyper::Method;

/// A route of the API.
#[derive(Debug)]
pub struct Route {
    /// Its methods, such as `GET`.
    pub methods: &'static [&'static str],
    /// Its path: `{x}` is one part, `{*x}` the rest; neither is empty.
    pub path: &'static str,
    /// Served to the sidecar's own app.
    pub to_app: bool,
    /// Served to other sidecars, as policies and the route's own rules allow.
    pub to_mesh: bool,
    endpoint: Endpoint,
}

/// What a route leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Endpoint {
    Health,
    OutboundHealth,
    Metadata,
    SetMetadata,
    Shutdown,
    State(StateEndpoint),
    Actor(ActorEndpoint),
    ListRemindersOfType,
    DeleteRemindersOfType,
}

/// Of the state API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StateEndpoint {
    Save,
    BulkGet,
    Transaction,
    Query,
    Get,
    Delete,
}

/// Of one actor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ActorEndpoint {
    Method,
    Transact,
    GetState,
    PutTimer,
    DeleteTimer,
    PutReminder,
    GetReminder,
    DeleteReminder,
    ListReminders,
    DeleteReminders,
}

const GET: &[&str] = &["GET"];
const DELETE: &[&str] = &["DELETE"];
const WRITE: &[&str] = &["POST", "PUT"];

/// The table. The first route of a method and path is taken.
pub const ROUTES: &[Route] = &[
    app(GET, "/v1.0/healthz", Endpoint::Health),
    app(GET, "/v1.0/healthz/outbound", Endpoint::OutboundHealth),
    app(GET, "/v1.0/metadata", Endpoint::Metadata),
    app(&["PUT"], "/v1.0/metadata/{*key}", Endpoint::SetMetadata),
    app(&["POST"], "/v1.0/shutdown", Endpoint::Shutdown),
    app(WRITE, "/v1.0/state/{store}", Endpoint::State(StateEndpoint::Save)),
    app(WRITE, "/v1.0/state/{store}/bulk", Endpoint::State(StateEndpoint::BulkGet)),
    app(WRITE, "/v1.0/state/{store}/transaction", Endpoint::State(StateEndpoint::Transaction)),
    app(WRITE, "/v1.0/state/{store}/query", Endpoint::State(StateEndpoint::Query)),
    app(WRITE, "/v1.0-alpha1/state/{store}/query", Endpoint::State(StateEndpoint::Query)),
    app(GET, "/v1.0/state/{store}/{key}", Endpoint::State(StateEndpoint::Get)),
    app(DELETE, "/v1.0/state/{store}/{key}", Endpoint::State(StateEndpoint::Delete)),
    both(
        &["GET", "POST", "PUT", "DELETE"],
        "/v1.0/actors/{type}/{id}/method/{*method}",
        Endpoint::Actor(ActorEndpoint::Method),
    ),
    app(WRITE, "/v1.0/actors/{type}/{id}/state", Endpoint::Actor(ActorEndpoint::Transact)),
    app(GET, "/v1.0/actors/{type}/{id}/state/{*key}", Endpoint::Actor(ActorEndpoint::GetState)),
    both(
        WRITE,
        "/v1.0/actors/{type}/{id}/timers/{*name}",
        Endpoint::Actor(ActorEndpoint::PutTimer),
    ),
    both(
        DELETE,
        "/v1.0/actors/{type}/{id}/timers/{*name}",
        Endpoint::Actor(ActorEndpoint::DeleteTimer),
    ),
    both(
        WRITE,
        "/v1.0/actors/{type}/{id}/reminders/{*name}",
        Endpoint::Actor(ActorEndpoint::PutReminder),
    ),
    both(
        GET,
        "/v1.0/actors/{type}/{id}/reminders/{*name}",
        Endpoint::Actor(ActorEndpoint::GetReminder),
    ),
    both(
        DELETE,
        "/v1.0/actors/{type}/{id}/reminders/{*name}",
        Endpoint::Actor(ActorEndpoint::DeleteReminder),
    ),
    mesh(GET, "/v1.0/actors/{type}/{id}/reminders", Endpoint::Actor(ActorEndpoint::ListReminders)),
    mesh(
        DELETE,
        "/v1.0/actors/{type}/{id}/reminders",
        Endpoint::Actor(ActorEndpoint::DeleteReminders),
    ),
    mesh(GET, "/v1.0/actor-reminders/{type}", Endpoint::ListRemindersOfType),
    mesh(DELETE, "/v1.0/actor-reminders/{type}", Endpoint::DeleteRemindersOfType),
];

const fn app(methods: &'static [&'static str], path: &'static str, endpoint: Endpoint) -> Route {
    Route { methods, path, to_app: true, to_mesh: false, endpoint }
}

const fn mesh(methods: &'static [&'static str], path: &'static str, endpoint: Endpoint) -> Route {
    Route { methods, path, to_app: false, to_mesh: true, endpoint }
}

const fn both(methods: &'static [&'static str], path: &'static str, endpoint: Endpoint) -> Route {
    Route { methods, path, to_app: true, to_mesh: true, endpoint }
}

/// Who makes a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum From {
    /// The sidecar's own app.
    App,
    /// Another sidecar.
    Mesh,
}

/// The endpoint of a request, and the parts of its path that vary, as they were sent.
pub(crate) fn find<'a>(
    from: From,
    method: &Method,
    path: &'a str,
) -> Option<(Endpoint, Vec<&'a str>)> {
    let (route, parts) = route_of(from, method, path)?;
    Some((route.endpoint, parts))
}

fn route_of<'a>(
    from: From,
    method: &Method,
    path: &'a str,
) -> Option<(&'static Route, Vec<&'a str>)> {
    let is_served = |route: &&Route| match from {
        From::App => route.to_app,
        From::Mesh => route.to_mesh,
    };
    ROUTES
        .iter()
        .filter(is_served)
        .filter(|route| route.methods.contains(&method.as_str()))
        .find_map(|route| Some((route, parts(route.path, path)?)))
}

/// The parts of `path` that stand for those in braces. Several slashes before a part, or at the end, are
/// one, as for Dapr.
fn parts<'a>(pattern: &str, path: &'a str) -> Option<Vec<&'a str>> {
    let mut rest = path.strip_prefix('/')?;
    let mut found = Vec::new();
    for part in pattern.split('/').skip(1) {
        rest = rest.trim_start_matches('/');
        if part.starts_with("{*") {
            return (!rest.is_empty()).then(|| {
                found.push(rest);
                found
            });
        }
        let is_fixed = !part.starts_with('{');
        let (one, more) = rest.split_once('/').unwrap_or((rest, ""));
        match is_fixed {
            true if one != part => return None,
            false if one.is_empty() => return None,
            true => {}
            false => found.push(one),
        }
        rest = more;
    }
    rest.chars().all(|byte| byte == '/').then_some(found)
}

#[cfg(test)]
mod tests {
    use tollway_routing::path_parts;

    use super::*;

    fn of_app(method: &str, path: &str) -> Option<(Endpoint, Vec<String>)> {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let (endpoint, parts) = find(From::App, &method, path)?;
        Some((endpoint, parts.into_iter().map(str::to_owned).collect()))
    }

    #[test]
    fn the_first_route_of_a_method_and_path_is_taken() {
        let found = |method, path| of_app(method, path).map(|(endpoint, _)| endpoint);
        assert_eq!(
            found("POST", "/v1.0/state/s/bulk"),
            Some(Endpoint::State(StateEndpoint::BulkGet))
        );
        assert_eq!(found("GET", "/v1.0/state/s/bulk"), Some(Endpoint::State(StateEndpoint::Get)));
        assert_eq!(
            found("PUT", "/v1.0-alpha1/state/s/query"),
            Some(Endpoint::State(StateEndpoint::Query))
        );
        assert_eq!(found("PATCH", "/v1.0/state/s/k"), None);
        assert_eq!(found("GET", "/v1.0/healthz/outbound/x"), None);
        assert_eq!(found("GET", "v1.0/healthz"), None);
    }

    #[test]
    fn parts_are_as_they_were_sent() {
        let (_, parts) = of_app("PUT", "/v1.0/actors/a%7Cb/7/method//c/../d%20e/").unwrap();
        assert_eq!(parts, ["a%7Cb", "7", "c/../d%20e/"]);
        let (_, parts) = of_app("PUT", "/v1.0/metadata/a/b").unwrap();
        assert_eq!(parts, ["a/b"]);
    }

    #[test]
    fn several_slashes_are_one_only_where_no_part_could_be_meant() {
        let found = |method, path| of_app(method, path).map(|(endpoint, _)| endpoint);
        assert_eq!(found("GET", "/v1.0//state/s/k"), Some(Endpoint::State(StateEndpoint::Get)));
        assert_eq!(found("POST", "//v1.0/state/s/"), Some(Endpoint::State(StateEndpoint::Save)));
        assert_eq!(
            found("POST", "/v1.0/actors/Cart/7//state"),
            Some(Endpoint::Actor(ActorEndpoint::Transact))
        );
        for path in ["/v1.0/state//k", "/v1.0/state/s/", "/v1.0/actors//7/method/m"] {
            assert_eq!(found("GET", path), None, "{path}");
        }
    }

    /// Other spellings of a path: of its parts, of what is between them, and of its ends. No parser of the
    /// data loop lets a `#` in.
    fn spellings(path: &str) -> Vec<String> {
        const BETWEEN: [&str; 8] = ["/", "//", "///", "/./", "/../", "%2f", "\\", "/x/../"];
        const ENDS: [&str; 9] = ["", "/", "//", "?", "?a=/v1.0/state", "/?a", ";a", "%00", "/."];
        let encoded = |part: &str| format!("%{:02x}{}", part.as_bytes()[0], &part[1..]);
        let of_part = |part: &str| {
            let capitals =
                [part.to_uppercase(), format!("{}{}", part[..1].to_uppercase(), &part[1..])];
            let around =
                [format!("{part};a"), format!(" {part}"), format!("{part}%20"), format!("{part}.")];
            [&[part.to_owned(), encoded(part)][..], &capitals, &around].concat()
        };
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let mut spelled = Vec::new();
        for between in BETWEEN {
            spelled.push(between.to_owned() + &parts.join(between));
            for at in 0..parts.len() {
                let (before, behind) = parts.split_at(at);
                let join = |parts: &[&str]| {
                    parts.iter().map(|part| format!("/{part}")).collect::<String>()
                };
                spelled.push(format!("{}{between}{}", join(before), behind.join("/")));
                spelled.extend(
                    of_part(behind[0]).into_iter().map(|part| {
                        format!("{}{between}{part}{}", join(before), join(&behind[1..]))
                    }),
                );
            }
        }
        let with_ends = |path: &String| ENDS.map(|end| format!("{path}{end}"));
        spelled.iter().flat_map(with_ends).collect()
    }

    /// The harm: rules, tokens and the public port judge the path of a request in the data loop; where
    /// they read it as another part of the API than the router does, it gets round them.
    #[test]
    fn the_data_loop_reads_every_path_as_the_router_does() {
        let as_read =
            |path: &str| path_parts(path.as_bytes()).map(<[u8]>::to_vec).collect::<Vec<_>>();
        let mut found_otherwise = 0;
        for route in ROUTES {
            let example = route.path.replace(['{', '}', '*'], "");
            for spelled in spellings(&example) {
                // The server's parser is between the two.
                let Ok(uri) = spelled.parse::<hyper::Uri>() else { continue };
                let in_loop = as_read(&spelled);
                for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
                    let method = Method::from_bytes(method.as_bytes()).unwrap();
                    let found = route_of(From::App, &method, uri.path());
                    if let Some((found, _)) = &found {
                        // Rules judge the first two parts.
                        assert_eq!(in_loop[..2], as_read(found.path)[..2], "{method} {spelled}");
                        found_otherwise += usize::from(spelled != example);
                    }
                    // Health needs no token, and the public port serves it: these paths are read whole.
                    for fixed in ["/v1.0/healthz", "/v1.0/healthz/outbound", "/v1.0/metadata"] {
                        let is_read_as = method == Method::GET && in_loop == as_read(fixed);
                        let is_routed_to =
                            found.as_ref().is_some_and(|(found, _)| found.path == fixed);
                        assert_eq!(is_read_as, is_routed_to, "{method} {spelled} for {fixed}");
                    }
                }
            }
        }
        assert!(found_otherwise > 1000, "only {found_otherwise} other spellings lead anywhere");
    }

    #[test]
    fn what_sidecars_ask_each_other_is_not_served_to_apps() {
        for path in ["/v1.0/actors/Cart/7/reminders", "/v1.0/actor-reminders/Cart"] {
            assert_eq!(of_app("GET", path), None, "{path}");
            assert!(find(From::Mesh, &Method::GET, path).is_some(), "{path}");
        }
        assert!(find(From::Mesh, &Method::GET, "/v1.0/state/s/k").is_none());
    }
}
