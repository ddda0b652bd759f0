//! The cases of the Gateway API's conformance tests, v1.7.0, as far as they are about which rule holds
//! and what it makes of a request. Each is named as the test there; [`CASES`] has its routes and its
//! requests in a short form of our own, which [`read_rule`] and [`Request::read`] read. What a sidecar
//! does with a decision is tested elsewhere; `docs/guide/routes.md` lists what we do not have.

use super::*;

/// Rules of one route, and requests with what is expected of each.
struct Case {
    test: &'static str,
    rules: &'static [&'static str],
    requests: &'static [(&'static str, &'static str)],
}

const MATCHING: [(&str, &str); 9] = [
    ("GET /", "v1"),
    ("GET /example", "v1"),
    ("GET / @Version=one", "v1"),
    ("GET /v2", "v2"),
    ("GET /v2/example", "v2"),
    ("GET / @Version=two", "v2"),
    ("GET /v2/", "v2"),
    ("GET /v2example", "v1"),
    ("GET /foo/v2/example", "v1"),
];

/// For each rule the edits, of the rule or of its backend.
const REQUEST_HEADERS: [(&str, &str); 7] = [
    (
        "GET /set @Some-Other-Header=val",
        "v1 @some-other-header=val @x-header-set=set-overwrites-values",
    ),
    (
        "GET /set @Some-Other-Header=val @X-Header-Set=some-other-value",
        "v1 @some-other-header=val @x-header-set=set-overwrites-values",
    ),
    (
        "GET /add @Some-Other-Header=val",
        "v1 @some-other-header=val @x-header-add=add-appends-values",
    ),
    (
        "GET /add @Some-Other-Header=val @X-Header-Add=some-other-value",
        "v1 @some-other-header=val @x-header-add=some-other-value,add-appends-values",
    ),
    ("GET /remove @X-Header-Remove=val", "v1"),
    (
        "GET /multiple @X-Header-Set-2=set-val-2 @X-Header-Add-2=add-val-2 \
         @X-Header-Remove-2=remove-val-2 @Another-Header=another-header-val",
        "v1 @another-header=another-header-val @x-header-add-1=header-add-1 \
         @x-header-add-2=add-val-2,header-add-2 @x-header-add-3=header-add-3 \
         @x-header-set-1=header-set-1 @x-header-set-2=header-set-2",
    ),
    (
        "GET /case-insensitivity @x-header-set=original-val-set @x-header-add=original-val-add \
         @x-header-remove=original-val-remove @Another-Header=another-header-val",
        "v1 @another-header=another-header-val @x-header-add=original-val-add,header-add \
         @x-header-set=header-set",
    ),
];

const REDIRECT_PATH: [&str; 6] = [
    "/original-prefix => redirect prefix=/replacement-prefix",
    "/full => redirect full=/full-path-replacement",
    "/path-and-host => redirect host=example.org prefix=/replacement-prefix",
    "/path-and-status => redirect prefix=/replacement-prefix status=301",
    "/full-path-and-host => redirect host=example.org full=/replacement-full",
    "/full-path-and-status => redirect full=/replacement-full status=301",
];

const CASES: &[Case] = &[
    Case {
        test: "MeshHTTPRouteSimpleSameNamespace, HTTPRouteSimpleSameNamespace",
        rules: &["=> v1"],
        requests: &[("GET /", "v1")],
    },
    Case {
        test: "MeshTrafficSplit",
        rules: &["=/v1 => v1", "=/v2 => v2"],
        requests: &[("GET /v1", "v1"), ("GET /v2", "v2")],
    },
    Case {
        test: "MeshHTTPRouteMatching, HTTPRouteMatching",
        rules: &["/ | @version=one => v1", "/v2 | @version=two => v2"],
        requests: &MATCHING,
    },
    Case {
        test: "MeshHTTPRouteNamedRule, HTTPRouteNamedRule",
        rules: &["/named => v1", "/unnamed => v2"],
        requests: &[("GET /named", "v1"), ("GET /unnamed", "v2")],
    },
    Case {
        test: "HTTPRouteExactPathMatching",
        rules: &["=/one => v1", "=/two => v2"],
        requests: &[
            ("GET /one", "v1"),
            ("GET /two", "v2"),
            ("GET /", "none"),
            ("GET /one/example", "none"),
            ("GET /two/", "none"),
            ("GET /Two", "none"),
        ],
    },
    Case {
        test: "HTTPRoutePathMatchOrder",
        rules: &[
            "=/match => v1",
            "=/match/exact => v2",
            "=/match/exact/one => v3",
            "/match/ => v3",
            "/match/prefix/ => v1",
            "/match/prefix/one => v2",
        ],
        requests: &[
            ("GET /match/exact/one", "v3"),
            ("GET /match/exact", "v2"),
            ("GET /match", "v1"),
            ("GET /match/prefix/one/any", "v2"),
            ("GET /match/prefix/any", "v1"),
            ("GET /match/any", "v3"),
        ],
    },
    Case {
        test: "HTTPRouteRuleOrder",
        rules: &[
            "=/rule-order @x-version=one @x-color=blue => v1",
            "=/rule-order @x-color=blue @x-version=one => v2",
            "=/rule-order-invalid-backend => nonexistent",
            "=/rule-order-invalid-backend => v2",
        ],
        requests: &[
            ("GET /rule-order @x-version=one @x-color=blue", "v1"),
            ("GET /rule-order-invalid-backend", "nonexistent"),
        ],
    },
    Case {
        test: "HTTPRouteHeaderMatching, GRPCRouteHeaderMatching",
        rules: &[
            "@version=one => v1",
            "@version=two => v2",
            "@version=two @color=orange => v1",
            "@color=blue | @color=green => v1",
            "@color=red | @color=yellow => v2",
        ],
        requests: &[
            ("GET / @Version=one", "v1"),
            ("GET / @Version=two", "v2"),
            ("GET / @Version=two @Color=orange", "v1"),
            ("GET / @Version=two @Color=blue", "v2"),
            ("GET / @Color=orange", "none"),
            ("GET / @Some-Other-Header=one", "none"),
            ("GET / @Color=blue", "v1"),
            ("GET / @Color=green", "v1"),
            ("GET / @Color=red", "v2"),
            ("GET / @Color=yellow", "v2"),
            ("GET / @Color=purple", "none"),
            ("gRPC /grpcecho.GrpcEcho/Echo @Version=one", "v1"),
            ("gRPC /grpcecho.GrpcEcho/Echo @Version=two @Color=orange", "v1"),
            ("gRPC /grpcecho.GrpcEcho/Echo @Version=two @Color=blue", "v2"),
            ("gRPC /grpcecho.GrpcEcho/Echo @Color=purple", "none"),
        ],
    },
    Case {
        test: "HTTPRouteMethodMatching",
        rules: &[
            "POST => v1",
            "GET => v2",
            "/path1 GET => v1",
            "PUT @version=one => v2",
            "/path2 POST @version=two => v3",
            "/path3 PATCH | /path4 DELETE @version=three => v1",
            "/path5 => v1",
            "PATCH => v2",
            "@version=four => v3",
        ],
        requests: &[
            ("POST /", "v1"),
            ("GET /", "v2"),
            ("HEAD /", "none"),
            ("GET /path1", "v1"),
            ("PUT / @version=one", "v2"),
            ("POST /path2 @version=two", "v3"),
            ("PATCH /path3", "v1"),
            ("DELETE /path4 @version=three", "v1"),
            ("PUT /", "none"),
            ("DELETE /path4", "none"),
            ("PATCH /path5", "v1"),
            ("PATCH / @version=four", "v2"),
        ],
    },
    Case {
        test: "HTTPRouteQueryParamMatching, MeshHTTPRouteQueryParamMatching",
        rules: &[
            "?animal=whale => v1",
            "?animal=dolphin => v2",
            "?animal=dolphin ?color=blue | ?ANIMAL=Whale => v3",
            "/path1 ?animal=whale => v1",
            "@version=one ?animal=whale => v2",
            "/path2 @version=two ?animal=whale => v3",
            "/path3 ?animal=shark | /path4 @version=three ?animal=kraken => v1",
            "/path5 => v1",
            "?animal=hydra => v2",
            "@version=four => v3",
        ],
        requests: &[
            ("GET /?animal=whale", "v1"),
            ("GET /?animal=dolphin", "v2"),
            ("GET /?animal=dolphin&color=blue", "v3"),
            ("GET /?ANIMAL=Whale", "v3"),
            ("GET /?animal=whale&otherparam=irrelevant", "v1"),
            ("GET /?animal=dolphin&color=yellow", "v2"),
            ("GET /?color=blue", "none"),
            ("GET /?animal=dog", "none"),
            ("GET /?animal=whaledolphin", "none"),
            ("GET /", "none"),
            ("GET /path1?animal=whale", "v1"),
            ("GET /?animal=whale @version=one", "v2"),
            ("GET /path2?animal=whale @version=two", "v3"),
            ("GET /path3?animal=shark", "v1"),
            ("GET /path4?animal=kraken @version=three", "v1"),
            ("GET /?animal=shark", "none"),
            ("GET /path4?animal=kraken", "none"),
            ("GET /path5?animal=hydra", "v1"),
            ("GET /?animal=hydra @version=four", "v3"),
        ],
    },
    Case {
        test: "GRPCExactMethodMatching, GRPCRouteNamedRule",
        rules: &["grpc:grpcecho.GrpcEcho/Echo => v1", "grpc:grpcecho.GrpcEcho/EchoTwo => v2"],
        requests: &[
            ("gRPC /grpcecho.GrpcEcho/Echo", "v1"),
            ("gRPC /grpcecho.GrpcEcho/EchoTwo", "v2"),
            ("gRPC /grpcecho.GrpcEcho/EchoThree", "none"),
        ],
    },
    Case {
        test: "MeshHTTPRouteRequestHeaderModifier, HTTPRouteRequestHeaderModifier",
        rules: &[
            "/set => v1; request =X-Header-Set: set-overwrites-values",
            "/add => v1; request +X-Header-Add: add-appends-values",
            "/remove => v1; request -X-Header-Remove",
            "/multiple => v1; request =X-Header-Set-1: header-set-1; \
             request =X-Header-Set-2: header-set-2; request +X-Header-Add-1: header-add-1; \
             request +X-Header-Add-2: header-add-2; request +X-Header-Add-3: header-add-3; \
             request -X-Header-Remove-1; request -X-Header-Remove-2",
            "/case-insensitivity => v1; request =X-Header-Set: header-set; \
             request +X-Header-Add: header-add; request -X-Header-Remove",
        ],
        requests: &REQUEST_HEADERS,
    },
    Case {
        test: "MeshHTTPRouteBackendRequestHeaderModifier",
        rules: &[
            "/set => v1; backend =X-Header-Set: set-overwrites-values",
            "/add => v1; backend +X-Header-Add: add-appends-values",
            "/remove => v1; backend -X-Header-Remove",
            "/multiple => v1; backend =X-Header-Set-1: header-set-1; \
             backend =X-Header-Set-2: header-set-2; backend +X-Header-Add-1: header-add-1; \
             backend +X-Header-Add-2: header-add-2; backend +X-Header-Add-3: header-add-3; \
             backend -X-Header-Remove-1; backend -X-Header-Remove-2",
            "/case-insensitivity => v1; backend =X-Header-Set: header-set; \
             backend +X-Header-Add: header-add; backend -X-Header-Remove",
        ],
        requests: &REQUEST_HEADERS,
    },
    Case {
        test: "MeshGRPCRouteRequestHeaderModifier",
        rules: &[
            "@x-test-case=set => v1; request =x-header-set: set-overwrites-values",
            "@x-test-case=add => v1; request +x-header-add: add-appends-values",
            "@x-test-case=remove => v1; request -x-header-remove",
            "@x-test-case=multi => v2; request =x-header-set-1: header-set-1; \
             request =x-header-set-2: header-set-2; request +x-header-add-1: header-add-1; \
             request +x-header-add-2: header-add-2; request -x-header-remove-1; \
             request -x-header-remove-2",
        ],
        requests: &[
            (
                "gRPC /e.E/Echo @x-test-case=set @some-other-header=this-header-should-be-set \
                 @x-header-set=this-value-should-be-overwritten",
                "v1 @some-other-header=this-header-should-be-set \
                 @x-header-set=set-overwrites-values @x-test-case=set",
            ),
            (
                "gRPC /e.E/Echo @x-test-case=add @x-header-add=this-value-should-be-appended",
                "v1 @x-header-add=this-value-should-be-appended,add-appends-values \
                 @x-test-case=add",
            ),
            (
                "gRPC /e.E/Echo @x-test-case=remove @x-header-remove=this-should-be-removed",
                "v1 @x-test-case=remove",
            ),
            (
                "gRPC /e.E/Echo @x-test-case=multi @x-header-set-2=set-header-2 \
                 @x-header-add-2=add-header-2 @x-header-remove-2=should-be-removed-2",
                "v2 @x-header-add-1=header-add-1 @x-header-add-2=add-header-2,header-add-2 \
                 @x-header-set-1=header-set-1 @x-header-set-2=header-set-2 @x-test-case=multi",
            ),
        ],
    },
    Case {
        test: "MeshHTTPRouteRewritePath, HTTPRouteRewritePath",
        rules: &[
            "/prefix/one => v1; prefix /one",
            "/strip-prefix => v1; prefix /",
            "/full/one => v1; full /one",
            "/full/rewrite-path-and-modify-headers => v1; full /test; \
             request =X-Header-Set: set-overwrites-values; request +X-Header-Add: header-val-1; \
             request +X-Header-Add-Append: header-val-2; request -X-Header-Remove",
            "/prefix/rewrite-path-and-modify-headers => v1; prefix /prefix; \
             request =X-Header-Set: set-overwrites-values; request +X-Header-Add: header-val-1; \
             request +X-Header-Add-Append: header-val-2; request -X-Header-Remove",
        ],
        requests: &[
            ("GET /prefix/one/two", "v1 /one/two"),
            ("GET /strip-prefix/three", "v1 /three"),
            ("GET /strip-prefix", "v1 /"),
            ("GET /full/one/two", "v1 /one"),
            (
                "GET /full/rewrite-path-and-modify-headers/test @X-Header-Remove=remove-val \
                 @X-Header-Add-Append=append-val-1 @X-Header-Set=set-val",
                "v1 /test @x-header-add=header-val-1 \
                 @x-header-add-append=append-val-1,header-val-2 \
                 @x-header-set=set-overwrites-values",
            ),
            (
                "GET /prefix/rewrite-path-and-modify-headers/one @X-Header-Remove=remove-val \
                 @X-Header-Add-Append=append-val-1 @X-Header-Set=set-val",
                "v1 /prefix/one @x-header-add=header-val-1 \
                 @x-header-add-append=append-val-1,header-val-2 \
                 @x-header-set=set-overwrites-values",
            ),
        ],
    },
    Case {
        test: "HTTPRouteRewriteHost",
        rules: &[
            "/one => v1; host one.example.org",
            "=> v2; host example.org",
            "/rewrite-host-and-modify-headers => v2; host test.example.org; \
             request =X-Header-Set: set-overwrites-values; request +X-Header-Add: header-val-1; \
             request +X-Header-Add-Append: header-val-2; request -X-Header-Remove",
        ],
        requests: &[
            ("GET /one", "v1 host:one.example.org"),
            ("GET /two", "v2 host:example.org"),
            (
                "GET /rewrite-host-and-modify-headers @X-Header-Remove=remove-val \
                 @X-Header-Add-Append=append-val-1",
                "v2 host:test.example.org @x-header-add=header-val-1 \
                 @x-header-add-append=append-val-1,header-val-2 \
                 @x-header-set=set-overwrites-values",
            ),
        ],
    },
    Case {
        test: "MeshHTTPRoute303Redirect, MeshHTTPRoute307Redirect, MeshHTTPRoute308Redirect, and \
               HTTPRoute303Redirect, HTTPRoute307Redirect, HTTPRoute308Redirect",
        rules: &[
            "/redirect => redirect status=303",
            "/temporary => redirect status=307",
            "/permanent => redirect status=308",
        ],
        requests: &[
            ("GET /redirect", "303 http://echo/redirect"),
            ("GET /temporary", "307 http://echo/temporary"),
            ("GET /permanent", "308 http://echo/permanent"),
        ],
    },
    Case {
        test: "MeshHTTPRouteRedirectHostAndStatus, HTTPRouteRedirectHostAndStatus",
        rules: &[
            "/hostname-redirect => redirect host=example.org",
            "/host-and-status => redirect status=301 host=example.org",
        ],
        requests: &[
            ("GET /hostname-redirect", "302 http://example.org/hostname-redirect"),
            ("GET /host-and-status", "301 http://example.org/host-and-status"),
        ],
    },
    Case {
        test: "MeshHTTPRouteRedirectPath, HTTPRouteRedirectPath",
        rules: &REDIRECT_PATH,
        requests: &[
            ("GET /original-prefix/lemon", "302 http://echo/replacement-prefix/lemon"),
            ("GET /full/path/original", "302 http://echo/full-path-replacement"),
            ("GET /path-and-host", "302 http://example.org/replacement-prefix"),
            ("GET /path-and-status", "301 http://echo/replacement-prefix"),
            ("GET /full-path-and-host", "302 http://example.org/replacement-full"),
            ("GET /full-path-and-status", "301 http://echo/replacement-full"),
        ],
    },
    Case {
        test: "MeshHTTPRouteRedirectPort, HTTPRouteRedirectPort",
        rules: &[
            "/port => redirect port=8083",
            "/port-and-host => redirect host=example.org port=8083",
            "/port-and-status => redirect port=8083 status=301",
            "/port-and-host-and-status => redirect port=8083 host=example.org status=302",
        ],
        requests: &[
            ("GET /port", "302 http://echo:8083/port"),
            ("GET /port-and-host", "302 http://example.org:8083/port-and-host"),
            ("GET /port-and-status", "301 http://echo:8083/port-and-status"),
            (
                "GET /port-and-host-and-status",
                "302 http://example.org:8083/port-and-host-and-status",
            ),
        ],
    },
    Case {
        test: "MeshHTTPRouteSchemeRedirect, HTTPRouteRedirectScheme",
        rules: &[
            "/scheme => redirect scheme=https",
            "/scheme-and-host => redirect host=example.org scheme=https",
            "/scheme-and-status => redirect scheme=https status=301",
            "/scheme-and-host-and-status => redirect scheme=https status=302 host=example.org",
        ],
        requests: &[
            ("GET /scheme", "302 https://echo/scheme"),
            ("GET /scheme-and-host", "302 https://example.org/scheme-and-host"),
            ("GET /scheme-and-status", "301 https://echo/scheme-and-status"),
            (
                "GET /scheme-and-host-and-status",
                "302 https://example.org/scheme-and-host-and-status",
            ),
        ],
    },
    Case {
        // The part for a listener of plain HTTP on port 80, which is how a mesh takes requests.
        test: "HTTPRouteRedirectPortAndScheme",
        rules: &[
            "/scheme-nil-and-port-nil => redirect host=example.org",
            "/scheme-nil-and-port-80 => redirect host=example.org port=80",
            "/scheme-nil-and-port-8080 => redirect host=example.org port=8080",
            "/scheme-https-and-port-nil => redirect host=example.org scheme=https",
            "/scheme-https-and-port-443 => redirect host=example.org scheme=https port=443",
            "/scheme-https-and-port-8443 => redirect host=example.org scheme=https port=8443",
        ],
        requests: &[
            ("GET /scheme-nil-and-port-nil", "302 http://example.org/scheme-nil-and-port-nil"),
            ("GET /scheme-nil-and-port-80", "302 http://example.org/scheme-nil-and-port-80"),
            (
                "GET /scheme-nil-and-port-8080",
                "302 http://example.org:8080/scheme-nil-and-port-8080",
            ),
            ("GET /scheme-https-and-port-nil", "302 https://example.org/scheme-https-and-port-nil"),
            ("GET /scheme-https-and-port-443", "302 https://example.org/scheme-https-and-port-443"),
            (
                "GET /scheme-https-and-port-8443",
                "302 https://example.org:8443/scheme-https-and-port-8443",
            ),
        ],
    },
];

/// The edits of responses: the fields of a response of the backend, and what the caller gets of them.
const RESPONSE_HEADERS: [(&str, &str, &str); 8] = [
    (
        "/set",
        "@some-other-header=val",
        "@some-other-header=val @x-header-set=set-overwrites-values",
    ),
    (
        "/set",
        "@some-other-header=val @x-header-set=some-other-value",
        "@some-other-header=val @x-header-set=set-overwrites-values",
    ),
    ("/add", "@some-other-header=val", "@some-other-header=val @x-header-add=add-appends-values"),
    (
        "/add",
        "@some-other-header=val @x-header-add=some-other-value",
        "@some-other-header=val @x-header-add=some-other-value,add-appends-values",
    ),
    ("/remove", "@x-header-remove=val", ""),
    (
        "/multiple",
        "@x-header-set-2=set-val-2 @x-header-add-2=add-val-2 @x-header-remove-2=remove-val-2 \
         @another-header=another-header-val @x-header-remove-1=val",
        "@another-header=another-header-val @x-header-add-1=header-add-1 \
         @x-header-add-2=add-val-2,header-add-2 @x-header-add-3=header-add-3 \
         @x-header-set-1=header-set-1 @x-header-set-2=header-set-2",
    ),
    (
        "/case-insensitivity",
        "@x-header-set=original-val-set @x-header-add=original-val-add \
         @x-header-remove=original-val-remove @another-header=another-header-val",
        "@another-header=another-header-val @x-header-add=original-val-add,header-add \
         @x-header-set=header-set @x-lowercase-add=lowercase-add \
         @x-mixedcase-add-1=mixedcase-add-1 @x-mixedcase-add-2=mixedcase-add-2 \
         @x-uppercase-add=uppercase-add",
    ),
    (
        "/response-and-request-header-modifiers",
        "@x-header-set-2=set-val-2 @x-header-add-2=add-val-2 @x-header-remove-2=remove-val-2 \
         @another-header=another-header-val @x-header-remove-1=remove-val-1 @x-header-echo=echo",
        "@another-header=another-header-val @x-header-add-1=header-add-1 \
         @x-header-add-2=add-val-2,header-add-2 @x-header-echo=echo \
         @x-header-set-1=header-set-1 @x-header-set-2=header-set-2",
    ),
];

/// Reads `MATCH | MATCH => BACKENDS; CHANGE; CHANGE`.
///
/// A match has `/prefix`, `=/exact`, `@header=value`, `?parameter=value`, a method, or
/// `grpc:Service/Method`. Backends are `v1` or `v1*70,v2*30`, or there is `redirect` with its parts.
/// Changes are of the `request`, the `response` or (requests to) the first `backend`.
fn read_rule(line: &str) -> RouteRule {
    let (matches, actions) = line.split_once("=>").unwrap();
    let matches = matches.trim();
    let mut actions = actions.split(';').map(str::trim);
    let first = actions.next().unwrap();
    let mut rule = match first.strip_prefix("redirect") {
        Some(parts) => {
            let action = RouteAction::Redirect(read_redirect(parts));
            RouteRule { action, ..RouteRule::forward(Vec::new()) }
        }
        None => RouteRule::forward(first.split(',').map(read_backend).collect()),
    };
    if !matches.is_empty() {
        rule.matches = matches.split('|').map(read_match).collect();
    }
    actions.for_each(|change| read_change(change, &mut rule));
    rule
}

fn read_match(text: &str) -> RouteMatch {
    let mut of = RouteMatch::default();
    let pair = |text: &str| {
        let (name, value) = text.split_once('=').unwrap();
        named(name, value)
    };
    for part in text.split_whitespace() {
        if let Some(path) = part.strip_prefix("=/") {
            of.path = Some(PathMatch::Exact(format!("/{path}")));
        } else if part.starts_with('/') {
            of.path = Some(PathMatch::Prefix(part.to_owned()));
        } else if let Some(header) = part.strip_prefix('@') {
            of.headers.push(pair(header));
        } else if let Some(parameter) = part.strip_prefix('?') {
            of.query.push(pair(parameter));
        } else if let Some(call) = part.strip_prefix("grpc:") {
            let (service, method) = call.split_once('/').unwrap();
            let exact = |text: &str| Some(TextMatch::Exact(text.to_owned()));
            of.grpc = Some(GrpcMatch { service: exact(service), method: exact(method) });
        } else {
            of.method = Some(MethodName::new(part).unwrap());
        }
    }
    of
}

fn read_backend(text: &str) -> Backend {
    let (service, weight) = text.split_once('*').unwrap_or((text, "1"));
    to(service, weight.parse().unwrap())
}

fn read_redirect(parts: &str) -> Redirect {
    let mut redirect = Redirect { scheme: None, host: None, port: None, path: None, status: 302 };
    for part in parts.split_whitespace() {
        let (name, value) = part.split_once('=').unwrap();
        match name {
            "scheme" => redirect.scheme = Some(value.to_owned()),
            "host" => redirect.host = Some(value.to_owned()),
            "port" => redirect.port = Some(value.parse().unwrap()),
            "status" => redirect.status = value.parse().unwrap(),
            "prefix" => redirect.path = Some(PathEdit::Prefix(value.to_owned())),
            "full" => redirect.path = Some(PathEdit::Full(value.to_owned())),
            other => panic!("{other}"),
        }
    }
    redirect
}

fn read_change(text: &str, rule: &mut RouteRule) {
    let (what, change) = text.split_once(' ').unwrap();
    let edits = match (what, &mut rule.action) {
        ("prefix", _) => {
            rule.rewrite.path = Some(PathEdit::Prefix(change.to_owned()));
            return;
        }
        ("full", _) => {
            rule.rewrite.path = Some(PathEdit::Full(change.to_owned()));
            return;
        }
        ("host", _) => {
            rule.rewrite.host = Some(change.to_owned());
            return;
        }
        ("request", _) => &mut rule.request,
        ("response", _) => &mut rule.response,
        ("backend", RouteAction::Forward(backends)) => &mut backends[0].request,
        other => panic!("{other:?}"),
    };
    let (kind, field) = change.split_at(1);
    let pair = || {
        let (name, value) = field.split_once(": ").unwrap();
        (name.to_owned(), value.to_owned())
    };
    match kind {
        "-" => edits.remove.push(field.to_owned()),
        "=" => edits.set.push(pair()),
        "+" => edits.add.push(pair()),
        other => panic!("{other}"),
    }
}

fn routes_of(rules: &[&str]) -> RouteSet {
    only(rules.iter().map(|line| read_rule(line)).collect())
}

/// `METHOD /path @field=value`; the method `gRPC` is a POST of gRPC.
struct Request<'a> {
    method: &'a str,
    target: &'a str,
    is_grpc: bool,
    fields: Vec<(String, String)>,
}

/// Lines such as `@name=value`, with the names in lower case.
fn read_fields<'a>(parts: impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
    let field = |part: &str| {
        let (name, value) = part.strip_prefix('@').unwrap().split_once('=').unwrap();
        (name.to_ascii_lowercase(), value.to_owned())
    };
    parts.map(field).collect()
}

impl<'a> Request<'a> {
    fn read(line: &'a str) -> Self {
        let mut parts = line.split_whitespace();
        let (method, target) = (parts.next().unwrap(), parts.next().unwrap());
        let is_grpc = method == "gRPC";
        let method = if is_grpc { "POST" } else { method };
        Self { method, target, is_grpc, fields: read_fields(parts) }
    }
}

/// The fields after the edits, sorted, lines of one name joined.
fn edited(fields: &[(String, String)], edits: &[FieldEdit]) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut fields = fields.to_vec();
    for edit in edits {
        match edit {
            FieldEdit::Remove(name) => fields.retain(|(own, _)| *own != text(name)),
            FieldEdit::Set(name, value) => {
                fields.retain(|(own, _)| *own != text(name));
                fields.push((text(name), text(value)));
            }
            FieldEdit::Add(name, value) => fields.push((text(name), text(value))),
        }
    }
    fields.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut lines: Vec<(String, String)> = Vec::new();
    for (name, value) in fields {
        match lines.last_mut() {
            Some((last, values)) if *last == name => *values = format!("{values},{value}"),
            Some(_) | None => lines.push((name, value)),
        }
    }
    let shown: Vec<_> = lines.iter().map(|(name, value)| format!("@{name}={value}")).collect();
    shown.join(" ")
}

/// What becomes of a request: `none`, `STATUS URL`, or the backend with the host and the path if they
/// change, and the fields, if there are rules with edits.
fn outcome(set: &RouteSet, line: &str) -> String {
    let request = Request::read(line);
    let lines: Vec<(&str, &str)> =
        request.fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let lines = Lines(&lines);
    let target = request.target.as_bytes();
    let routed = RoutedRequest {
        method: request.method.as_bytes(),
        target,
        is_grpc: request.is_grpc,
        fields: &lines,
    };
    let Some(routed) = set.decide(routed) else { return "none".to_owned() };
    if let Some((status, url)) = routed.location(b"echo", target) {
        return format!("{status} {}", String::from_utf8(url).unwrap());
    }
    let backend = routed.rule.backend(routed.rule.choose(0).unwrap()).unwrap();
    let mut shown = backend.service.app.to_string();
    if let Some(host) = routed.rule.host() {
        shown += &format!(" host:{}", String::from_utf8_lossy(host));
    }
    if let Some(path) = routed.rewritten(target) {
        shown += &format!(" {}", String::from_utf8(path).unwrap());
    }
    let fields = edited(&request.fields, &backend.request);
    if !backend.request.is_empty() && !fields.is_empty() {
        shown += &format!(" {fields}");
    }
    shown
}

#[test]
fn requests_go_where_the_conformance_tests_expect_them() {
    for Case { test, rules, requests } in CASES {
        let set = routes_of(rules);
        for (request, expected) in *requests {
            assert_eq!(outcome(&set, request), *expected, "{test}: {request}");
        }
    }
}

/// `HTTPRouteResponseHeaderModifier`
#[test]
fn responses_are_edited_as_the_conformance_test_expects() {
    let several = "response =X-Header-Set-1: header-set-1; response =X-Header-Set-2: header-set-2; \
         response +X-Header-Add-1: header-add-1; response +X-Header-Add-2: header-add-2; \
         response -X-Header-Remove-1; response -X-Header-Remove-2";
    let set = routes_of(&[
        "/set => v1; response =X-Header-Set: set-overwrites-values",
        "/add => v1; response +X-Header-Add: add-appends-values",
        "/remove => v1; response -X-Header-Remove",
        &format!("/multiple => v1; {several}; response +X-Header-Add-3: header-add-3"),
        "/case-insensitivity => v1; response =X-Header-Set: header-set; \
         response +X-Header-Add: header-add; response +x-lowercase-add: lowercase-add; \
         response +x-Mixedcase-ADD-1: mixedcase-add-1; \
         response +X-mixeDcase-add-2: mixedcase-add-2; \
         response +X-UPPERCASE-ADD: uppercase-add; response -X-Header-Remove",
        &format!(
            "/response-and-request-header-modifiers => v1; {several}; \
             request =X-Header-Set: set-overwrites-values; request +X-Header-Add: header-val-1; \
             request +X-Header-Add-Append: header-val-2; request -X-Header-Remove"
        ),
    ]);
    let no_fields = Lines(&[]);
    for (path, response, expected) in RESPONSE_HEADERS {
        let rule = set.decide(request("GET", path, &no_fields)).unwrap().rule;
        let backend = rule.backend(0).unwrap();
        let fields = read_fields(response.split_whitespace());
        assert_eq!(edited(&fields, &backend.response), expected, "{path}");
    }
    let line = "GET /response-and-request-header-modifiers @x-header-remove=remove-val \
         @x-header-add-append=append-val-1 @x-header-echo=echo";
    let expected = "v1 @x-header-add=header-val-1 @x-header-add-append=append-val-1,header-val-2 \
         @x-header-echo=echo @x-header-set=set-overwrites-values";
    assert_eq!(outcome(&set, line), expected);
}

/// `HTTPRouteMatchingAcrossRoutes`, for one of its two host names: a mesh matches by service.
#[test]
fn routes_of_one_service_are_matched_together() {
    let routes = [
        route("shop/part1", vec![read_rule("/ | @version=one => v1")]),
        route("shop/part2", vec![read_rule("/v2 | @version=two => v2")]),
    ];
    let set = set_for("web", &routes).unwrap();
    for (request, expected) in MATCHING {
        assert_eq!(outcome(&set, request), expected, "{request}");
    }
}

/// `MeshConsumerRoute`
#[test]
fn a_route_of_another_namespace_holds_for_callers_there_alone() {
    let consumer =
        [route("office/add", vec![read_rule("=> stock.shop; response =X-Header-Set: set")])];
    let set = set_for("web.office", &consumer).unwrap();
    let no_fields = Lines(&[]);
    let rule = set.decide(request("GET", "/", &no_fields)).unwrap().rule;
    assert_eq!(edited(&[], &rule.backend(0).unwrap().response), "@x-header-set=set");
    assert!(set_for("web", &consumer).is_none());
}

/// The backends of requests, by random numbers that fill the range evenly, in thousandths.
fn shares(rule: &str) -> Vec<(String, u32)> {
    let set = routes_of(&[rule]);
    let no_fields = Lines(&[]);
    let rule = set.decide(request("GET", "/", &no_fields)).unwrap().rule;
    let mut counts: Vec<(String, u32)> = Vec::new();
    let mut random = 0_u64;
    for _ in 0..100_000 {
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let backend = rule.backend(rule.choose(random).unwrap()).unwrap();
        let (name, edits) = (backend.service.app.to_string(), edited(&[], &backend.request));
        let shown = format!("{name} {edits}").trim_end().to_owned();
        match counts.iter_mut().find(|(own, _)| *own == shown) {
            Some((_, count)) => *count += 1,
            None => counts.push((shown, 1)),
        }
    }
    counts.sort();
    counts.into_iter().map(|(name, count)| (name, (count + 50) / 100)).collect()
}

/// `MeshHTTPRouteWeight`, `HTTPRouteWeight`, `MeshGRPCRouteWeight`, `GRPCRouteWeight`,
/// `HTTPRouteRequestHeaderModifierBackendWeights`
#[test]
fn weights_are_shares() {
    let share = |name: &str, thousandths| (name.to_owned(), thousandths);
    assert_eq!(shares("=> v1*70,v2*30"), [share("v1", 700), share("v2", 300)]);
    assert_eq!(shares("=> v1*70,v2*30,v3*0"), [share("v1", 700), share("v2", 300)]);
    let edited = shares("=> v1*10,v2*10; backend =Backend: v1");
    assert_eq!(edited, [share("v1 @backend=v1", 500), share("v2", 500)]);
}

/// `HTTPRouteRequestMirror`, `HTTPRouteRequestMultipleMirrors`, `HTTPRouteRequestPercentageMirror`
#[test]
fn mirrors_get_their_share() {
    let mirrored = |mirrors: &[(&str, u32)]| {
        let mut rule = read_rule("/mirror => v1; request =X-Header-Set: set-overwrites-values");
        let mirror = |(service, share): &(&str, u32)| Mirror {
            service: ServiceRef::parse(service).unwrap(),
            share: *share,
        };
        rule.mirrors = mirrors.iter().map(mirror).collect();
        let set = only(vec![rule]);
        let no_fields = Lines(&[]);
        let rule = set.decide(request("GET", "/mirror", &no_fields)).unwrap().rule;
        let mut counts = vec![0_u32; mirrors.len()];
        let mut random = 0_u64;
        for _ in 0..100_000 {
            let next = || {
                random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
                random ^ (random >> 31)
            };
            for service in rule.mirrored(next) {
                let at = mirrors.iter().position(|(name, _)| service.app.as_str() == *name);
                counts[at.unwrap()] += 1;
            }
        }
        counts
    };
    assert_eq!(mirrored(&[("v2", WHOLE_SHARE)]), [100_000]);
    assert_eq!(mirrored(&[("v2", WHOLE_SHARE), ("v3", WHOLE_SHARE)]), [100_000; 2]);
    // 20 of 100, 25 of 50, and 35 of 100.
    for (share, expected) in [(200_000, 20_000_u32), (500_000, 50_000), (350_000, 35_000)] {
        let counts = mirrored(&[("v2", share)]);
        assert!(counts[0].abs_diff(expected) < 500, "{share}: {counts:?}");
    }
}

/// `HTTPRouteNoBackendRefs`: the route is refused when it is applied, not its requests.
#[test]
fn a_rule_that_sends_requests_nowhere_is_refused() {
    let rule = RouteRule::forward(Vec::new());
    let (name, service) = (ObjectName::new("shop", "r").unwrap(), ServiceRef::parse("stock"));
    let route = Route { name, service: service.unwrap(), rules: vec![rule], created_unix_ms: 0 };
    assert!(route.check().is_err());
}
