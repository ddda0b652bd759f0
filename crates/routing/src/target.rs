//! The target of a request: service by API path, by header, by host name.
//!
//! The order is Dapr's: header `dapr-app-id`, basic auth with that user, then the path
//! `/v1.0/invoke/<target>/method/<path>`; host names `*.mesh` on the outbound port.

use std::borrow::Cow;

use thiserror::Error;
use tollway_model::{NameError, ServiceName};

/// The route of calls in the HTTP API, for every method: `{x}` is one part, `{*x}` the rest, which may be
/// empty.
pub const CALL_ROUTE: &str = "/v1.0/invoke/{id}/method/{*method}";

/// Through which listener of the sidecar a request came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppListener {
    /// The HTTP API (3500).
    HttpApi,
    /// The gRPC API (50001).
    GrpcApi,
    /// The outbound proxy (15001).
    Outbound,
}

/// The parts of a request that decide.
#[derive(Clone, Copy, Debug)]
pub struct RequestParts<'a> {
    pub listener: AppListener,
    pub is_connect: bool,
    /// Host and port as the request names them.
    pub authority: &'a [u8],
    /// Path and query.
    pub path: &'a [u8],
    /// The value of `dapr-app-id`.
    pub app_id: Option<&'a [u8]>,
    /// The value of `authorization`.
    pub authorization: Option<&'a [u8]>,
    /// The names of external endpoints, which may be called as may absolute URLs. `None`: neither
    /// may.
    pub external_endpoints: Option<&'a [String]>,
}

/// Where it goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target<'a> {
    /// To a service, with this path and query.
    Service { name: ServiceName, path: Cow<'a, [u8]>, credentials_used: bool },
    /// Out of the mesh, to this name or URL.
    External { id: String, path: Cow<'a, [u8]>, credentials_used: bool },
    /// To the sidecar's own API.
    Api,
}

/// Why it goes nowhere.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TargetError {
    #[error("{0}")]
    Name(#[from] NameError),
    #[error("the app id is not readable text")]
    Unreadable,
    #[error("no app id: call /v1.0/invoke/<app>/method/<path>, or set the header dapr-app-id")]
    NoAppId,
    #[error("no app id: set the metadata dapr-app-id")]
    NoAppIdMetadata,
    #[error(
        "`{0}` is not a service of the mesh; the outbound port takes host names that end in .mesh"
    )]
    NotMesh(String),
}

/// Decides the target of a request; `home` completes short names.
///
/// # Errors
/// [`TargetError`]: no target is named, or its name is not valid.
pub fn decide_target<'a>(
    parts: RequestParts<'a>,
    home: &ServiceName,
) -> Result<Target<'a>, TargetError> {
    // Metadata of such a call is for the app that it names in its message.
    if parts.listener == AppListener::GrpcApi && is_own_grpc(parts.path) {
        return Ok(Target::Api);
    }
    if let Some(id) = parts.app_id {
        return named(id, Cow::Borrowed(parts.path), false, parts.external_endpoints, home);
    }
    match parts.listener {
        AppListener::GrpcApi if is_reflection(parts.path) => Ok(Target::Api),
        AppListener::GrpcApi => Err(TargetError::NoAppIdMetadata),
        AppListener::Outbound => by_host(parts, home),
        AppListener::HttpApi => by_path(parts, home),
    }
}

fn is_own_grpc(path: &[u8]) -> bool {
    path.starts_with(b"/dapr.proto.runtime.v1.Dapr/")
}

/// Asked of an app if it names one, of the sidecar otherwise.
fn is_reflection(path: &[u8]) -> bool {
    path.starts_with(b"/grpc.reflection.")
}

fn by_host<'a>(parts: RequestParts<'a>, home: &ServiceName) -> Result<Target<'a>, TargetError> {
    let host =
        std::str::from_utf8(host_of(parts.authority)).map_err(|_| TargetError::Unreadable)?;
    match ServiceName::parse_host(host, home) {
        Ok(name) => {
            Ok(Target::Service { name, path: Cow::Borrowed(parts.path), credentials_used: false })
        }
        Err(NameError::NotMesh(host)) => Err(TargetError::NotMesh(host)),
        Err(error) => Err(error.into()),
    }
}

/// The host of `host[:port]`, with the brackets of IPv6.
fn host_of(authority: &[u8]) -> &[u8] {
    let bracket = authority.iter().rposition(|b| *b == b']').map_or(0, |at| at + 1);
    match authority[bracket..].iter().position(|b| *b == b':') {
        Some(at) => &authority[..bracket + at],
        None => authority,
    }
}

fn by_path<'a>(parts: RequestParts<'a>, home: &ServiceName) -> Result<Target<'a>, TargetError> {
    if let Some(id) = parts.authorization.and_then(app_id_of_basic_auth) {
        return named(&id, Cow::Borrowed(parts.path), true, parts.external_endpoints, home);
    }
    if segments(parts.path, &[b"v1.0-alpha1"]).is_some() {
        return Ok(Target::Api);
    }
    let Some(rest) = segments(parts.path, &[b"v1.0"]) else {
        if ServiceName::parse_host(&String::from_utf8_lossy(host_of(parts.authority)), home).is_ok()
        {
            return by_host(parts, home);
        }
        return Err(TargetError::NoAppId);
    };
    let Some(rest) = segments(rest, &[b"invoke"]) else {
        return Ok(Target::Api);
    };
    let rest = skip_slashes(rest);
    let end = match parts.external_endpoints {
        Some(_) if is_url(rest) => end_of_url(rest),
        _ => rest.iter().position(|b| *b == b'/' || *b == b'?'),
    };
    let (id, rest) = rest.split_at(end.ok_or(TargetError::NoAppId)?);
    let rest = segments(rest, &[b"method"]).ok_or(TargetError::NoAppId)?;
    let id = percent_decoded(id);
    let path = match rest.first() {
        Some(b'/') => Cow::Borrowed(collapse_leading(rest)),
        _ => Cow::Owned([b"/", rest].concat()),
    };
    named(&id, path, false, parts.external_endpoints, home)
}

/// Whether a target is a URL.
fn is_url(id: &[u8]) -> bool {
    id.starts_with(b"http://") || id.starts_with(b"https://")
}

/// Where a URL ends in front of `/method/…`.
fn end_of_url(rest: &[u8]) -> Option<usize> {
    const METHOD: &[u8] = b"/method";
    rest.windows(METHOD.len()).enumerate().find_map(|(at, part)| {
        let is_end = matches!(rest.get(at + METHOD.len()), None | Some(b'/' | b'?'));
        (part == METHOD && is_end).then_some(at)
    })
}

/// What follows `/<names>/…` in `path`, repeated slashes allowed, up to but with the next `/`
/// or `?`.
fn segments<'a>(mut path: &'a [u8], names: &[&[u8]]) -> Option<&'a [u8]> {
    for name in names {
        let trimmed = skip_slashes(path);
        if trimmed.len() == path.len() {
            return None;
        }
        path = trimmed.strip_prefix(*name)?;
        if !matches!(path.first(), None | Some(b'/' | b'?')) {
            return None;
        }
    }
    Some(path)
}

/// The parts of a path of the API, without its query. Several slashes are one, and one at the end is
/// none, as for the router of the API; no part has another spelling.
pub fn path_parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
}

fn skip_slashes(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|b| *b != b'/').unwrap_or(path.len());
    &path[start..]
}

/// `//a` → `/a`.
fn collapse_leading(path: &[u8]) -> &[u8] {
    let slashes = path.len() - skip_slashes(path).len();
    &path[slashes.saturating_sub(1)..]
}

fn named<'a>(
    id: &[u8],
    path: Cow<'a, [u8]>,
    credentials_used: bool,
    external_endpoints: Option<&[String]>,
    home: &ServiceName,
) -> Result<Target<'a>, TargetError> {
    let text = std::str::from_utf8(id).map_err(|_| TargetError::Unreadable)?;
    if external_endpoints.is_some() && is_url(id) && !id.iter().all(u8::is_ascii_graphic) {
        return Err(TargetError::Unreadable);
    }
    let is_external = |names: &[String]| is_url(id) || names.iter().any(|name| name == text);
    if external_endpoints.is_some_and(is_external) {
        return Ok(Target::External { id: text.to_owned(), path, credentials_used });
    }
    let name = ServiceName::parse(text, home)?;
    Ok(Target::Service { name, path, credentials_used })
}

/// `%41` → `A`; anything that is not an escape stays.
fn percent_decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'%') {
        return Cow::Borrowed(text);
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        match (byte, after) {
            (b'%', [high, low, after @ ..]) if hex(*high).is_some() && hex(*low).is_some() => {
                decoded.push(hex(*high).unwrap_or(0) << 4 | hex(*low).unwrap_or(0));
                rest = after;
            }
            _ => {
                decoded.push(byte);
                rest = after;
            }
        }
    }
    Cow::Owned(decoded)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|d| u8::try_from(d).ok())
}

/// The password of `Basic dapr-app-id:<id>`.
fn app_id_of_basic_auth(value: &[u8]) -> Option<Vec<u8>> {
    let (scheme, encoded) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let decoded = base64_decoded(encoded.trim_ascii())?;
    decoded.strip_prefix(b"dapr-app-id:").map(<[u8]>::to_vec)
}

/// Standard base64 (RFC 4648 section 4), short texts.
fn base64_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.strip_suffix(b"==").or(text.strip_suffix(b"=")).unwrap_or(text);
    let mut decoded = Vec::with_capacity(digits.len() * 3 / 4);
    let mut bits = 0_u32;
    let mut count = 0;
    for digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            decoded.push((bits >> count & 0xff) as u8);
        }
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_model::Label;

    fn home() -> ServiceName {
        let label = |text| Label::new(text).unwrap();
        ServiceName::parse_in("me", &label("default"), &label("west")).unwrap()
    }

    fn parts(listener: AppListener, path: &str) -> RequestParts<'_> {
        RequestParts {
            listener,
            is_connect: false,
            authority: b"localhost:3500",
            path: path.as_bytes(),
            app_id: None,
            authorization: None,
            external_endpoints: None,
        }
    }

    fn print(target: Result<Target<'_>, TargetError>) -> String {
        match target {
            Ok(Target::Service { name, path, .. }) => {
                format!("{name} {}", String::from_utf8_lossy(&path))
            }
            Ok(Target::External { id, path, .. }) => {
                format!("external: {id} {}", String::from_utf8_lossy(&path))
            }
            Ok(Target::Api) => "api".to_owned(),
            Err(error) => format!("refused: {error}"),
        }
    }

    #[track_caller]
    fn check_path(path: &str, expected: &str) {
        assert_eq!(
            print(decide_target(parts(AppListener::HttpApi, path), &home())),
            expected,
            "{path}"
        );
    }

    const BAD_URL: &str = "refused: `https://a\r\n` holds the character ':'; a label has letters, digits, `-` and `_`";
    const NO_APP_ID: &str =
        "refused: no app id: call /v1.0/invoke/<app>/method/<path>, or set the header dapr-app-id";

    #[test]
    fn the_route_of_calls_leads_to_a_service() {
        let path = CALL_ROUTE.replace("{id}", "stock").replace("{*method}", "a/b");
        check_path(&path, "stock.default.west /a/b");
    }

    #[test]
    fn invoke_paths_name_service_and_path() {
        check_path("/v1.0/invoke/stock/method/a/b?c=d", "stock.default.west /a/b?c=d");
        check_path("/v1.0/invoke/stock.shop.east/method/a", "stock.shop.east /a");
        check_path("/v1.0/invoke/stock/method", "stock.default.west /");
        check_path("/v1.0/invoke/stock/method/", "stock.default.west /");
        check_path("/v1.0/invoke/stock/method?x", "stock.default.west /?x");
        check_path("/v1.0//invoke//x/method//foo", "x.default.west /foo");
        check_path("/v1.0/invoke/st%6Fck/method/%2e", "stock.default.west /%2e");
        check_path("/v1.0/invoke/a/method/b/method/c", "a.default.west /b/method/c");
    }

    #[test]
    fn external_endpoints_are_called_where_that_is_allowed() {
        let names = ["github".to_owned(), "my.shop".to_owned()];
        for (path, with_endpoints, without) in [
            ("github/method/a?b", "external: github /a?b", "github.default.west /a?b"),
            ("my.shop/method/a", "external: my.shop /a", "my.shop.west /a"),
            ("other/method/a", "other.default.west /a", "other.default.west /a"),
            ("http://a:80/method/b/c", "external: http://a:80 /b/c", NO_APP_ID),
            ("https://a/method/b/method/c", "external: https://a /b/method/c", NO_APP_ID),
            ("https://a/x/methods/method?q", "external: https://a/x/methods /?q", NO_APP_ID),
            ("https://a/x", NO_APP_ID, NO_APP_ID),
            ("https%3A%2F%2Fa%0D%0A/method/b", "refused: the app id is not readable text", BAD_URL),
        ] {
            let path = format!("/v1.0/invoke/{path}");
            let with = RequestParts {
                external_endpoints: Some(&names),
                ..parts(AppListener::HttpApi, &path)
            };
            assert_eq!(print(decide_target(with, &home())), with_endpoints, "{path}");
            check_path(&path, without);
        }
        let encoded = "/v1.0/invoke/http%3A%2F%2Fa%3A80/method/b";
        let with = RequestParts {
            external_endpoints: Some(&names),
            ..parts(AppListener::HttpApi, encoded)
        };
        assert_eq!(print(decide_target(with, &home())), "external: http://a:80 /b");
        let with = RequestParts { app_id: Some(b"https://a"), ..with };
        assert_eq!(print(decide_target(with, &home())), format!("external: https://a {encoded}"));
    }

    #[test]
    fn other_paths_are_the_api_or_nothing() {
        check_path("/v1.0/healthz", "api");
        check_path("/v1.0/metadata?x", "api");
        check_path("/v1.0-alpha1/state/a/query", "api");
        check_path("/v1.0-alpha2/state/a/query", NO_APP_ID);
        check_path("/v1.0invoke/a/method/b", NO_APP_ID);
        check_path("/v1.0/invoke/stock", NO_APP_ID);
        check_path("/v1.0/invoke/stock/methods/x", NO_APP_ID);
        check_path("/other", NO_APP_ID);
        check_path(
            "/v1.0/invoke/a.b.c.d/method/x",
            "refused: `a.b.c.d` has 4 parts; a service has at most three: app[.namespace[.network]]",
        );
    }

    #[test]
    fn the_header_comes_first_and_takes_the_whole_path() {
        let with_id = RequestParts {
            app_id: Some(b"stock"),
            ..parts(AppListener::HttpApi, "/v1.0/invoke/x/method/y")
        };
        assert_eq!(
            print(decide_target(with_id, &home())),
            "stock.default.west /v1.0/invoke/x/method/y"
        );
    }

    #[test]
    fn basic_auth_may_carry_the_app_id() {
        // dapr-app-id:stock
        let with_auth = RequestParts {
            authorization: Some(b"Basic ZGFwci1hcHAtaWQ6c3RvY2s="),
            ..parts(AppListener::HttpApi, "/a")
        };
        assert_eq!(print(decide_target(with_auth, &home())), "stock.default.west /a");
        let foreign = RequestParts {
            authorization: Some(b"Basic dTpw"),
            ..parts(AppListener::HttpApi, "/a")
        };
        assert_eq!(print(decide_target(foreign, &home())), NO_APP_ID);
    }

    #[test]
    fn host_names_of_the_mesh_are_services() {
        let host = |authority| {
            let parts = RequestParts { authority, ..parts(AppListener::Outbound, "/a") };
            print(decide_target(parts, &home()))
        };
        assert_eq!(host(b"stock.mesh"), "stock.default.west /a");
        assert_eq!(host(b"Stock.shop.EAST.mesh:80"), "Stock.shop.EAST /a");
        assert!(host(b"example.org").starts_with("refused: `example.org` is not a service"));
        assert!(host(b"[::1]:80").starts_with("refused: `[::1]` is not"));
        assert!(host(b"a.b.c.d.mesh").starts_with("refused: `a.b.c.d` has 4 parts"));
    }

    #[test]
    fn grpc_needs_the_metadata() {
        let grpc = |path| print(decide_target(parts(AppListener::GrpcApi, path), &home()));
        assert_eq!(grpc("/dapr.proto.runtime.v1.Dapr/GetMetadata"), "api");
        assert_eq!(grpc("/x.Y/Z"), "refused: no app id: set the metadata dapr-app-id");
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_asked_gets_an_absolute_path_or_a_reason(
            path in "/[!-~]{0,60}",
            authority in "[!-~]{0,30}",
            id in proptest::option::of("[ -~]{0,30}"),
        ) {
            for listener in [AppListener::HttpApi, AppListener::GrpcApi, AppListener::Outbound] {
                let parts = RequestParts {
                    authority: authority.as_bytes(),
                    app_id: id.as_deref().map(str::as_bytes),
                    ..parts(listener, &path)
                };
                if let Ok(Target::Service { path, .. }) = decide_target(parts, &home()) {
                    proptest::prop_assert!(path.starts_with(b"/"));
                }
            }
        }

        #[test]
        fn invocation_keeps_the_rest_of_the_path(rest in "[a-z0-9/?=&.%-]{0,40}") {
            let path = format!("/v1.0/invoke/stock/method/{rest}");
            let target = decide_target(parts(AppListener::HttpApi, &path), &home()).unwrap();
            let Target::Service { path, .. } = target else { panic!("a service was named") };
            let expected = format!("/{}", rest.trim_start_matches('/'));
            proptest::prop_assert_eq!(String::from_utf8_lossy(&path), expected);
        }
    }
}
