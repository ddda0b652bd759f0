//! In daprd's place OpenTelemetry's variables name the collector, as they do for daprd.

use tollway_testkit::{Start, binary, need_tool, retry_until};

use crate::tracing::collector::{Collector, Span};
use tollway_tests::mesh::PATIENCE;
use tollway_tests::mesh::http::get;
use tollway_tests::user::User;

const SHARE: &str = "kind: Configuration\nspec:\n  tracing: {samplingRate: '1'}\n";

#[test]
fn a16_spans_go_to_the_collector_that_the_environment_names() {
    let otelcol = need_tool!("otelcol");
    let collector = Collector::anywhere(&otelcol);
    let (grpc, http) = (collector.grpc.to_string(), format!("http://{}", collector.http));
    for (name, variables) in [
        ("over-grpc", [("ENDPOINT", &*grpc), ("INSECURE", "true"), ("PROTOCOL", "")]),
        // Of two variables that of traces counts.
        (
            "over-http",
            [
                ("ENDPOINT", "http://127.0.0.1:9"),
                ("TRACES_ENDPOINT", &http),
                ("TRACES_PROTOCOL", "http/protobuf"),
            ],
        ),
    ] {
        let user = User::new();
        let config = user.path("config.yaml");
        std::fs::write(&config, SHARE).unwrap();
        let home = user.directory().parent().unwrap().to_owned();
        let mut program = Start::new(binary("tollway").unwrap())
            .args(["sidecar", "--dapr", "--app-id", "web", "--dapr-http-port", "0"])
            .args(["--dapr-grpc-port", "0", "--metrics-port", "0"])
            .args(["--dapr-internal-grpc-port", "0", "--config"])
            .arg(&config)
            .env("XDG_RUNTIME_DIR", home)
            .env("OTEL_SERVICE_NAME", name);
        for (variable, value) in variables {
            program = program.env(format!("OTEL_EXPORTER_OTLP_{variable}"), value);
        }
        let daprd = program.start_listening().unwrap();
        let listener = daprd.port("http").unwrap();
        let is_of_call = |span: &Span| {
            let path = span.attributes.get("url.path").map_or("", String::as_str);
            span.resource["service.name"] == name && path.ends_with("/x")
        };
        let received = retry_until(PATIENCE, name, || {
            let answer = get(listener, "/v1.0/invoke/nobody/method/x");
            assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
            collector.spans().into_iter().find(is_of_call)
        });
        let span = received.map_err(|error| error.context(daprd.log())).unwrap();
        assert!(span.failed, "{span:#?}");
    }
}
