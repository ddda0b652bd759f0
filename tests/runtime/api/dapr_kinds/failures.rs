//! A12: statuses of calls that fail, and paths of calls.

use std::collections::HashMap;

use tollway_testkit::{free_port, retry_until};
use tollway_tests::mesh::http::runtime;
use tollway_tests::scripted_app::App;
use tollway_tests::user::{PATIENCE, User};
use tonic::Code;

use super::ask;
use crate::api::daprd::{Daprd, file};
use crate::api::{invoke, message};

/// Daprd's answer to a call that failed, and the code of the reason.
#[track_caller]
fn check(daprd: &Daprd, id: &str, reason: &str) {
    let path = format!("/v1.0/invoke/{id}/method/x");
    let failed = retry_until(PATIENCE, reason, || {
        let answer = ask(daprd.http(), "POST", &path, &[]);
        (answer.field("x-tollway-error") == reason).then_some(answer)
    });
    let failed = failed.map_err(|error| error.context(daprd.log())).unwrap();
    let body = failed.json();
    assert_eq!((failed.status, body["errorCode"].as_str()), (500, Some("ERR_DIRECT_INVOKE")));
    let text = body["message"].as_str().unwrap();
    let why = text.strip_prefix(&format!("failed to invoke, id: {id}, err: "));
    assert!(why.is_some_and(|why| why.len() > 10), "{text}");
}

#[test]
fn a12_calls_that_fail_are_answered_with_500_whatever_the_reason() {
    let (user, app) = (User::new(), App::start(HashMap::new()));
    let silent = free_port().unwrap().to_string();
    let _silent = Daprd::listening(&user, "silent", &["--app-port", &silent]);
    let ill = ["--app-port", &app.port(), "--enable-app-health-check", "--app-health-check-path"];
    let ill = [&ill[..], &["/ill", "--app-health-probe-interval", "1"]].concat();
    let _app_that_is_ill = Daprd::listening(&user, "ill", &ill);
    let caller = Daprd::listening(&user, "caller", &[]);
    check(&caller, "nobody", "ERR_UNKNOWN_SERVICE");
    check(&caller, "a.b.c", "ERR_UNKNOWN_NETWORK");
    check(&caller, "silent", "ERR_NO_READY_ENDPOINT");
    let grpc = caller.grpc_address();
    let failed = runtime().block_on(invoke(grpc, "nobody", message("x", ""))).unwrap_err();
    assert_eq!(failed.code(), Code::Internal, "{failed}");
    let nowhere = ask(caller.http(), "POST", "/x", &[]);
    assert_eq!((nowhere.status, &nowhere.json()["errorCode"]), (404, &"ERR_DIRECT_INVOKE".into()));
}

/// As daprd has it where no file describes a store; the network's is there by its own name.
#[test]
fn without_files_of_stores_no_other_name_is_configured() {
    let user = User::new();
    let daprd = Daprd::listening(&user, "web", &[]);
    let answer = ask(daprd.http(), "POST", "/v1.0/state/mystore", &[]);
    let body = answer.json();
    assert_eq!(
        (answer.status, &body["errorCode"]),
        (500, &"ERR_STATE_STORE_NOT_CONFIGURED".into())
    );
    assert_eq!(body["message"], "state store mystore is not configured");
    let detail = &body["details"][0];
    assert_eq!(detail["@type"], "type.googleapis.com/google.rpc.ErrorInfo");
    assert_eq!(
        (&detail["domain"], &detail["reason"]),
        (&"dapr.io".into(), &"DAPR_STATE_NOT_CONFIGURED".into())
    );
    assert_eq!(ask(daprd.http(), "GET", "/v1.0/state/statestore/k", &[]).status, 204);
}

#[test]
fn a12_what_the_callees_sidecar_reports_is_answered_as_daprd_does() {
    let (user, app) = (User::new(), App::start(HashMap::new()));
    let access = "kind: Configuration\nspec:\n  accessControl:\n    defaultAction: deny\n";
    let access = file(&user, "access.yaml", access);
    let guarded = ["--app-port", &app.port(), "--config", &access];
    let _guarded = Daprd::listening(&user, "guarded", &guarded);
    let caller = Daprd::listening(&user, "caller", &[]);
    let denied = retry_until(PATIENCE, "a denial", || {
        let answer = ask(caller.http(), "GET", "/v1.0/invoke/guarded/method/x", &[]);
        (answer.status == 403).then_some(answer)
    });
    let denied = denied.unwrap();
    assert_eq!(denied.json()["errorCode"], "ERR_DIRECT_INVOKE");
    assert_eq!(denied.field("x-tollway-error"), "ERR_POLICY_DENIED");
    let text = denied.json()["message"].to_string();
    assert!(text.contains("failed to invoke, id: guarded, err: "), "{text}");
}

#[test]
fn a12_paths_reach_the_app_as_daprd_sends_them() {
    let (user, app) = (User::new(), App::start(HashMap::new()));
    let daprd = Daprd::listening(&user, "web", &["--app-port", &app.port()]);
    daprd.until_served("web");
    for (asked, sent) in [
        ("admin/../public", "/public"),
        ("admin%2F..%2Fpublic?a=%2F", "/public?a=%2F"),
        ("test%2Astream", "/test*stream"),
        ("a//b/", "/a/b"),
        ("gr%C3%B6%C3%9Fe", "/gr%C3%B6%C3%9Fe"),
    ] {
        app.forget();
        let answer = ask(daprd.http(), "GET", &format!("/v1.0/invoke/web/method/{asked}"), &[]);
        assert_eq!(answer.status, 200, "{asked}: {}", answer.body);
        assert_eq!(app.requests(sent).len(), 1, "{asked}");
        let answer = ask(daprd.http(), "GET", &format!("/{asked}"), &[("dapr-app-id", "web")]);
        assert_eq!(answer.status, 200, "{asked}: {}", answer.body);
        assert_eq!(app.requests(sent).len(), 2, "{asked} by the field");
    }
    for refused in ["test%23stream", "test%3Fstream", "test%25stream", "test%00x", "test%0Dx"] {
        let answer = ask(daprd.http(), "GET", &format!("/v1.0/invoke/web/method/{refused}"), &[]);
        assert_eq!(answer.status, 500, "{refused}: {}", answer.body);
        assert_eq!(answer.json()["errorCode"], "ERR_DIRECT_INVOKE");
    }
}
