//! A6: methods and query strings between two that speak gRPC.

use tollway_tests::mesh::http::runtime;
use tollway_tests::user::User;
use tollway_wire::dapr::proto::common::v1::http_extension::Verb;

use super::ask;
use crate::api::app::GrpcApp;
use crate::api::daprd::{Daprd, file};
use crate::api::{invoke, message};

#[test]
fn a6_methods_and_queries_reach_an_app_of_grpc_as_they_were_sent() {
    let (user, runtime, app) = (User::new(), runtime(), GrpcApp::default());
    let port = runtime.block_on(app.serve()).port().to_string();
    let daprd = Daprd::start(&user, "app", &["--app-port", &port, "--app-protocol", "grpc"]);
    daprd.until_served("app");
    let called = |method: &str, query: &str| {
        let mut asked = message(method, "");
        let extension = asked.http_extension.as_mut().unwrap();
        query.clone_into(&mut extension.querystring);
        extension.set_verb(Verb::Put);
        runtime.block_on(invoke(daprd.grpc_address(), "app", asked)).map(|_| {
            let (_, asked) = app.asked();
            (asked.method, asked.http_extension.unwrap().querystring)
        })
    };
    for (method, query, arrives) in [
        ("größe", "", "größe"),
        ("say hello", "a=b c", "say hello"),
        (r#"a"b"#, "a=ŀʭ&é=1", r#"a"b"#),
        (r"test\stream", r"a=\b", r"test\stream"),
        ("a{b}|c^`", "a={\"k\":1}", "a{b}|c^`"),
        ("%25x", "a=%zz", "%25x"),
        ("a%zz", "a=#b", "a%zz"),
        ("test%2Fstream", "", "test%2Fstream"),
        ("admin%2F..%2Fpublic", "", "admin%2F..%2Fpublic"),
        ("a/../b", "", "b"),
        ("admin/../../public", "", "public"),
        ("a/", "", "a"),
        ("a//b", "", "a/b"),
        ("", "a=\nb", ""),
    ] {
        let found = called(method, query).unwrap();
        assert_eq!(found, (arrives.to_owned(), query.to_owned()), "{method}");
    }
    for method in ["a#b", "a?b", "a\0b", "a\rb", "a#b?c%d"] {
        let refused = called(method, "").unwrap_err();
        assert!(refused.message().contains("the method contains a "), "{method:?}: {refused}");
    }
    // Over HTTP it is the path, decoded.
    let answer = ask(daprd.http(), "PUT", "/v1.0/invoke/app/method/gr%C3%B6%C3%9Fe?a=%20", &[]);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let (_, asked) = app.asked();
    assert_eq!((&*asked.method, &*asked.http_extension.unwrap().querystring), ("größe", "a=%20"));
}

#[test]
fn a6_no_form_of_a_method_gets_round_access_rules() {
    let (user, runtime, app) = (User::new(), runtime(), GrpcApp::default());
    let port = runtime.block_on(app.serve()).port().to_string();
    let access = "kind: Configuration\nspec:\n  accessControl:\n    defaultAction: allow\n    \
                  trustDomain: public\n    policies:\n    - appId: caller\n      namespace: default\n      \
                  trustDomain: public\n      defaultAction: allow\n      operations:\n      - {name: \
                  /admin/**, httpVerb: ['*'], action: deny}\n      - {name: /admin, httpVerb: ['*'], \
                  action: deny}\n";
    let access = file(&user, "access.yaml", access);
    let beside = ["--app-port", &port, "--app-protocol", "grpc", "--config", &access];
    let _guarded = Daprd::listening(&user, "guarded", &beside);
    let caller = Daprd::listening(&user, "caller", &[]);
    caller.until_served("guarded");
    for method in [
        "admin/x",
        "public/../admin/x",
        "/admin/x",
        "//admin/x",
        "admin%2Fx",
        "%61dmin/x",
        "public%2F..%2Fadmin%2Fx",
        r"admin\x",
        "admin",
        "admin/",
    ] {
        let denied =
            runtime.block_on(invoke(caller.grpc_address(), "guarded", message(method, "")));
        let got = app.all_asked();
        assert!(denied.is_err() && got.is_empty(), "{method}: {got:?}");
        let over_http = format!("/v1.0/invoke/guarded/method/{}", method.replace('\\', "%5C"));
        let exact = [("dapr-invoke-method", "admin%2Fx?")];
        for (path, fields) in
            [(&*over_http, &[][..]), ("/v1.0/invoke/guarded/method/public", &exact)]
        {
            ask(caller.http(), "POST", path, fields);
            let got = app.all_asked();
            assert!(got.iter().all(|(_, asked)| asked.method == "public"), "{path}: {got:?}");
        }
    }
}
