//! The tokens between an app and its sidecar, and who must show one: every request to the HTTP and
//! gRPC API, whether it is answered here or goes on into the mesh. The outbound port is no part of
//! the API, and what this process asks of itself was let in before.

use tollway_http::{Method, RequestHead};
use tollway_identity::SharedToken;
use tollway_routing::path_parts;

use crate::conn::ListenerKind;
use crate::headers::API_TOKEN;
use crate::request_error::RequestError;

/// Monitoring has no token: Dapr answers these without one.
const HEALTH: [&[u8]; 2] = [b"/v1.0/healthz", b"/v1.0/healthz/outbound"];

/// What the public port serves besides.
const METADATA: &[u8] = b"/v1.0/metadata";

/// What an app and its sidecar show each other; nothing by default.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// What requests to the HTTP and gRPC API have to show.
    pub api: Option<SharedToken>,
    /// What the app is shown with each request.
    pub app: Option<SharedToken>,
}

/// Lets a request to the API in that shows the token, which goes no further. `is_own`: the sidecar
/// answers it itself.
///
/// # Errors
/// [`RequestError::ApiToken`].
pub(crate) fn admit(
    token: &SharedToken,
    via: &ListenerKind,
    head: &mut RequestHead,
    is_own: bool,
) -> Result<(), RequestError> {
    if !matches!(via, ListenerKind::HttpApi | ListenerKind::GrpcApi) {
        return Ok(());
    }
    let is_shown = head.fields.value(API_TOKEN).is_some_and(|shown| token.is(shown));
    if is_shown || (is_own && asks_for_health(head)) {
        head.fields.remove(API_TOKEN);
        return Ok(());
    }
    Err(RequestError::ApiToken)
}

/// Whether a request at the public port is answered.
pub(crate) fn is_public(head: &RequestHead) -> bool {
    asks_for_health(head) || (head.method == Method::Get && is_path(head, METADATA))
}

pub(crate) fn asks_for_health(head: &RequestHead) -> bool {
    head.method == Method::Get && HEALTH.iter().any(|path| is_path(head, path))
}

/// Whether a request is for `path`.
fn is_path(head: &RequestHead, path: &[u8]) -> bool {
    path_parts(&head.path).eq(path_parts(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a request is let in, and whether it still has a token then.
    fn admitted(
        via: &ListenerKind,
        method: Method,
        path: &str,
        shown: &[&[u8]],
        is_own: bool,
    ) -> bool {
        let token = SharedToken::new("sesame").unwrap();
        let mut head = RequestHead { method, path: path.into(), ..Default::default() };
        shown.iter().for_each(|value| head.fields.push(API_TOKEN, value));
        let admitted = admit(&token, via, &mut head, is_own);
        if admitted.is_ok() && matches!(via, ListenerKind::HttpApi | ListenerKind::GrpcApi) {
            assert!(!head.fields.contains(API_TOKEN), "{path}");
        }
        admitted.is_ok()
    }

    #[test]
    fn only_the_token_opens_the_api() {
        for via in [ListenerKind::HttpApi, ListenerKind::GrpcApi] {
            let check = |shown: &[&[u8]]| admitted(&via, Method::Post, "/a", shown, false);
            assert!(check(&[b"sesame"]));
            let wrong: [&[&[u8]]; 5] =
                [&[], &[b""], &[b"Sesame"], &[b"other", b"sesame"], &[b"sesame,x"]];
            for wrong in wrong {
                assert!(!check(wrong), "{via:?} {wrong:?}");
            }
        }
        for via in [ListenerKind::Outbound, ListenerKind::Loopback] {
            assert!(admitted(&via, Method::Post, "/a", &[], false));
        }
    }

    #[test]
    fn the_public_port_serves_health_and_metadata() {
        let check = |method, path: &str| {
            is_public(&RequestHead { method, path: path.into(), ..Default::default() })
        };
        assert!(check(Method::Get, "/v1.0/healthz") && check(Method::Get, "/v1.0/metadata"));
        assert!(!check(Method::Post, "/v1.0/metadata") && !check(Method::Put, "/v1.0/metadata/a"));
        assert!(!check(Method::Get, "/v1.0/metadata/a") && !check(Method::Get, "/"));
    }

    #[test]
    fn only_the_sidecars_own_health_needs_no_token() {
        let check =
            |method, path, is_own| admitted(&ListenerKind::HttpApi, method, path, &[], is_own);
        for path in [
            "/v1.0/healthz",
            "/v1.0/healthz?appid=web",
            "/v1.0/healthz/outbound",
            "//v1.0/healthz",
            "/v1.0//healthz/",
        ] {
            assert!(check(Method::Get, path, true), "{path}");
            // A header may name an app for the same path.
            assert!(!check(Method::Get, path, false), "{path}");
            assert!(!check(Method::Post, path, true), "{path}");
        }
        for path in ["/v1.0/healthzz", "/v1.0/metadata", "/v1.0/healthz/a"] {
            assert!(!check(Method::Get, path, true), "{path}");
        }
    }
}
