//! A16: fields about traces, and the process in its spans.

use std::collections::HashMap;

use tollway_tests::mesh::http::runtime;
use tollway_tests::scripted_app::App;
use tollway_tests::user::User;
use tollway_wire::dapr::proto::runtime::v1::GetMetadataRequest;
use tonic::Code;

use super::ask;
use crate::api::app::GrpcApp;
use crate::api::daprd::Daprd;
use crate::api::{client, invoke, message};

const PATH: &str = "/v1.0/invoke/web/method/test";

#[test]
fn a16_baggage_reaches_the_app_and_comes_back_and_a_malformed_one_is_refused() {
    let (user, app) = (User::new(), App::start(HashMap::new()));
    let daprd = Daprd::listening(&user, "web", &["--app-port", &app.port()]);
    daprd.until_served("web");
    app.forget();
    assert_eq!(ask(daprd.http(), "POST", PATH, &[]).field("baggage"), "");
    assert!(app.requests("/test")[0].values("baggage").is_empty());
    let baggage = "key1=value1,key2=value2";
    let answer = ask(daprd.http(), "POST", PATH, &[("baggage", baggage)]);
    assert_eq!((answer.status, answer.field("baggage")), (200, baggage));
    assert_eq!(app.requests("/test")[1].values("baggage"), [baggage]);
    let refused = ask(daprd.http(), "POST", PATH, &[("baggage", "invalid-baggage")]);
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("invalid baggage header"), "{}", refused.body);
    assert_eq!(app.requests("/test").len(), 2);
    runtime().block_on(async {
        let mut client = client(daprd.grpc_address()).await;
        let asked = |baggage: &str| {
            let mut request = tonic::Request::new(GetMetadataRequest {});
            request.metadata_mut().insert("baggage", baggage.parse().unwrap());
            request
        };
        let answer = client.get_metadata(asked(baggage)).await.unwrap();
        assert_eq!(answer.metadata().get("baggage").unwrap(), baggage);
        let refused = client.get_metadata(asked("invalid-baggage")).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains("invalid baggage header"), "{refused}");
    });
}

#[test]
fn a16_an_app_gets_a_trace_context_without_tracing() {
    let (user, app) = (User::new(), App::start(HashMap::new()));
    let daprd = Daprd::listening(&user, "web", &["--app-port", &app.port()]);
    daprd.until_served("web");
    app.forget();
    ask(daprd.http(), "POST", PATH, &[]);
    runtime().block_on(invoke(daprd.grpc_address(), "web", message("test", ""))).unwrap();
    let own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    ask(daprd.http(), "POST", PATH, &[("traceparent", own)]);
    let requests = app.requests("/test");
    let none = "00-00000000000000000000000000000000-0000000000000000-00";
    let contexts: Vec<_> = requests.iter().flat_map(|asked| asked.values("traceparent")).collect();
    assert_eq!(contexts, [none, none, own]);
}

#[test]
fn a16_an_app_of_grpc_gets_a_trace_context_in_its_own_form() {
    let (user, runtime, app) = (User::new(), runtime(), GrpcApp::default());
    let port = runtime.block_on(app.serve()).port().to_string();
    let daprd = Daprd::start(&user, "web", &["--app-port", &port, "--app-protocol", "grpc"]);
    daprd.until_served("web");
    runtime.block_on(invoke(daprd.grpc_address(), "web", message("test", ""))).unwrap();
    let (metadata, _) = app.asked();
    let trace = metadata.get_bin("grpc-trace-bin").unwrap().to_bytes().unwrap();
    assert_eq!(trace.len(), 29);
}
