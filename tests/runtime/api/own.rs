//! Requests of an app to its own sidecar.

use serde_json::json;
use tollway_testkit::retry_until;
use tollway_wire::dapr::proto::runtime::v1::{
    GetMetadataRequest, SetMetadataRequest, ShutdownRequest,
};
use tonic::Code;

use super::{call, client};
use tollway_tests::mesh::http::{get, runtime};
use tollway_tests::mesh::{AppProtocol, Mesh, PATIENCE};

#[test]
fn metadata_is_the_same_over_both_apis() {
    let mesh = Mesh::start();
    let sidecar = mesh.west.sidecar_of("web", 4711, AppProtocol::H2c);
    runtime().block_on(async {
        let mut grpc = client(sidecar.grpc()).await;
        let set = |key: &str, value: String| SetMetadataRequest { key: key.to_owned(), value };
        grpc.set_metadata(set("by-grpc", "one".to_owned())).await.unwrap();
        let put = call(sidecar.http(), "PUT", "/v1.0/metadata/by-http", &[], "two").await;
        assert_eq!(put.0.as_u16(), 204);

        let reported = grpc.get_metadata(GetMetadataRequest {}).await.unwrap().into_inner();
        assert_eq!((reported.id.as_str(), reported.extended_metadata.len()), ("web", 3));
        assert_eq!(reported.extended_metadata["by-http"], "two");
        let app = reported.app_connection_properties.unwrap();
        assert_eq!((app.port, app.protocol.as_str()), (4711, "h2c"));

        let reported = grpc.set_metadata(set("", "x".to_owned())).await.unwrap_err();
        assert_eq!(reported.code(), Code::InvalidArgument, "{reported}");
        let reported = grpc.set_metadata(set("k", "x".repeat(64 * 1024 + 1))).await.unwrap_err();
        assert_eq!(reported.code(), Code::InvalidArgument, "{reported}");
        for number in 2..128 {
            grpc.set_metadata(set(&number.to_string(), "x".to_owned())).await.unwrap();
        }
        let reported = grpc.set_metadata(set("one more", "x".to_owned())).await.unwrap_err();
        assert_eq!(reported.code(), Code::ResourceExhausted, "{reported}");
        grpc.set_metadata(set("by-grpc", "again".to_owned())).await.unwrap();
    });
    let shown = get(sidecar.http(), "/v1.0/metadata");
    let (_, shown) = shown.split_once("\r\n\r\n").unwrap();
    let shown: serde_json::Value = serde_json::from_str(shown).unwrap();
    assert_eq!(shown["extended"]["by-grpc"], "again");
    assert_eq!(shown["extended"]["by-http"], "two");
}

#[test]
fn each_part_of_the_metadata_is_where_dapr_has_it() {
    let mesh = Mesh::start();
    let app = ["--app-port", "4711", "--app-protocol", "h2c", "--app-max-concurrency", "7"];
    let sidecar = mesh.west.sidecar("web", &[&app[..], &["--enable-app-health-check"]].concat());
    let (status, _, reported) =
        runtime().block_on(call(sidecar.http(), "GET", "/v1.0/metadata", &[], ""));
    assert_eq!(status, 200, "{reported}");
    let reported: serde_json::Value = serde_json::from_str(&reported).unwrap();
    for (place, value) in [
        ("/id", json!("web")),
        ("/runtimeVersion", json!(env!("CARGO_PKG_VERSION"))),
        ("/enabledFeatures", json!([])),
        ("/actors", json!([])),
        ("/components/0/name", json!("statestore")),
        ("/components/0/type", json!("state.tollway")),
        ("/components/0/version", json!("v1")),
        ("/extended", json!({ "daprRuntimeVersion": env!("CARGO_PKG_VERSION") })),
        ("/subscriptions", json!([])),
        ("/httpEndpoints", json!([])),
        ("/appConnectionProperties/port", json!(4711)),
        ("/appConnectionProperties/protocol", json!("h2c")),
        ("/appConnectionProperties/channelAddress", json!("127.0.0.1")),
        ("/appConnectionProperties/maxConcurrency", json!(7)),
        ("/appConnectionProperties/health/healthCheckPath", json!("/healthz")),
        ("/appConnectionProperties/health/healthProbeInterval", json!("5s")),
        ("/appConnectionProperties/health/healthProbeTimeout", json!("500ms")),
        ("/appConnectionProperties/health/healthThreshold", json!(3)),
        ("/actorRuntime/runtimeStatus", json!("DISABLED")),
        ("/actorRuntime/hostReady", json!(false)),
        ("/actorRuntime/activeActors", json!([])),
        ("/actorRuntime/placement", json!("")),
    ] {
        assert_eq!(reported.pointer(place), Some(&value), "{place} of {reported}");
    }
    let capabilities = reported.pointer("/components/0/capabilities").unwrap();
    for word in ["ETAG", "TRANSACTIONAL", "ACTOR", "TTL"] {
        assert!(capabilities.as_array().unwrap().contains(&json!(word)), "{word} of {reported}");
    }
    // Dapr's members but for those of what is not served, and what it has no word for.
    for (place, members) in [
        (
            "",
            "actorRuntime actors appConnectionProperties components enabledFeatures extended \
             httpEndpoints id namespace network runtimeVersion subscriptions",
        ),
        ("/components/0", "capabilities name type version"),
        ("/appConnectionProperties", "channelAddress health maxConcurrency port protocol"),
        ("/actorRuntime", "activeActors hostReady placement runtimeStatus"),
    ] {
        let reported = reported.pointer(place).and_then(serde_json::Value::as_object).unwrap();
        let mut names: Vec<&str> = reported.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names.join(" "), members, "{place}");
    }
}

#[test]
fn health_is_asked_for_by_the_name_of_an_app() {
    let mesh = Mesh::start();
    let sidecar = mesh.west.caller(&[]);
    let well = retry_until(PATIENCE, "a sidecar that is ready", || {
        get(sidecar.http(), "/v1.0/healthz").starts_with("HTTP/1.1 204").then_some(())
    });
    well.unwrap();
    runtime().block_on(async {
        for query in ["appid=caller", "a=b&appid=caller", ""] {
            let path = format!("/v1.0/healthz?{query}");
            let (status, _, reported) = call(sidecar.http(), "GET", &path, &[], "").await;
            assert_eq!((status.as_u16(), reported.as_str()), (204, ""), "{query}");
        }
        let path = "/v1.0/healthz?appid=other";
        let (status, fields, reported) = call(sidecar.http(), "GET", path, &[], "").await;
        assert_eq!(status.as_u16(), 500, "{reported}");
        assert_eq!(fields["content-type"], "application/json");
        let reported: serde_json::Value = serde_json::from_str(&reported).unwrap();
        assert_eq!(reported["errorCode"], "ERR_HEALTH_APPID_NOT_MATCH", "{reported}");
        assert_eq!(reported["message"], "dapr app-id does not match", "{reported}");
    });
}

#[test]
fn an_app_ends_its_sidecar() {
    let mesh = Mesh::start();
    let mut by_http = mesh.west.caller(&[]);
    let mut by_grpc = mesh.west.caller(&[]);
    runtime().block_on(async {
        let asked = call(by_http.http(), "POST", "/v1.0/shutdown", &[], "").await;
        assert_eq!(asked.0.as_u16(), 204);
        client(by_grpc.grpc()).await.shutdown(ShutdownRequest {}).await.unwrap();
    });
    for sidecar in [&mut by_http, &mut by_grpc] {
        let status = sidecar.process.wait(PATIENCE).unwrap();
        assert!(status.success(), "{status}: {}", sidecar.process.log());
    }
}

#[test]
fn a_method_that_is_not_served_is_unimplemented() {
    let mesh = Mesh::start();
    let sidecar = mesh.west.caller(&[]);
    runtime().block_on(async {
        let endpoint =
            tonic::transport::Endpoint::from_shared(format!("http://{}", sidecar.grpc()));
        let mut client = tonic::client::Grpc::new(endpoint.unwrap().connect().await.unwrap());
        client.ready().await.unwrap();
        let path = "/dapr.proto.runtime.v1.Dapr/PublishEvent".parse().unwrap();
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        let reported = client.unary(tonic::Request::new(()), path, codec).await.unwrap_err();
        assert_eq!(reported.code(), Code::Unimplemented, "{reported}");
    });
}
