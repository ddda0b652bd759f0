//! A2: an app over gRPC states how many streams a connection has.

use tokio::task::JoinSet;
use tollway_testkit::metric_in;
use tollway_tests::mesh::http::{call, get, runtime};
use tollway_tests::user::User;
use tollway_wire::dapr::proto::common::v1::http_extension::Verb;
use tollway_wire::dapr::proto::runtime::v1::InvokeServiceRequest;
use tonic::Code;

use crate::api::app::GrpcApp;
use crate::api::daprd::Daprd;
use crate::api::{client, invoke, message};

/// Calls that are all under way before the app answers one of them.
const CALLS: usize = 300;

/// An app with so many streams on a connection, beside daprd.
struct Limited {
    daprd: Daprd,
    runtime: tokio::runtime::Runtime,
    _user: User,
}

impl Limited {
    fn start(streams: u32) -> Self {
        let (user, runtime, app) = (User::new(), runtime(), GrpcApp::default());
        let address = runtime.block_on(app.serve_limited(Some(streams)));
        let port = address.port().to_string();
        let daprd = Daprd::start(&user, "crowd", &["--app-port", &port, "--app-protocol", "grpc"]);
        daprd.until_served("crowd");
        Self { daprd, runtime, _user: user }
    }

    fn dials(&self) -> f64 {
        metric_in(&get(self.daprd.metrics(), "/metrics"), "tollway_app_dials_total").unwrap()
    }

    /// Makes calls that wait for each other, over HTTP.
    fn meet_over_http(&self) {
        let (http, path) = (self.daprd.http(), format!("/v1.0/invoke/crowd/method/meet/{CALLS}"));
        self.runtime.block_on(async {
            let mut calls = JoinSet::new();
            for _ in 0..CALLS {
                let path = path.clone();
                calls.spawn(async move { call(http, "POST", &path, &[], "{}").await });
            }
            while let Some(answer) = calls.join_next().await {
                let (status, _, body) = answer.unwrap();
                assert_eq!(status.as_u16(), 200, "{body}");
            }
        });
    }

    /// Makes calls that wait for each other, by `InvokeService`.
    fn meet_by_message(&self) {
        let grpc = self.daprd.grpc_address();
        self.runtime.block_on(async {
            let client = client(grpc).await;
            let mut calls = JoinSet::new();
            for _ in 0..CALLS {
                let mut client = client.clone();
                let message = Some(message(&format!("meet/{CALLS}"), ""));
                let request = InvokeServiceRequest { id: "crowd".to_owned(), message };
                calls.spawn(async move { client.invoke_service(request).await });
            }
            while let Some(answer) = calls.join_next().await {
                answer.unwrap().unwrap();
            }
        });
    }
}

#[test]
fn a2_calls_above_the_apps_stream_limit_open_a_further_connection() {
    let limited = Limited::start(100);
    let before = limited.dials();
    limited.meet_over_http();
    let made = limited.dials() - before;
    assert!((2.0..=4.0).contains(&made), "{made} further connections for {CALLS} calls");
}

#[test]
fn a2_messages_above_the_apps_stream_limit_open_a_further_connection() {
    Limited::start(100).meet_by_message();
}

#[test]
fn a2_an_app_of_one_stream_a_connection_gets_all_calls_that_wait_for_each_other() {
    Limited::start(1).meet_over_http();
    Limited::start(7).meet_by_message();
}

#[test]
fn a2_a_failure_has_its_reason_for_every_verb() {
    let user = User::new();
    let daprd = Daprd::listening(&user, "alone", &[]);
    for verb in [Verb::Head, Verb::Post] {
        let mut asked = message("x", "");
        asked.http_extension.as_mut().unwrap().set_verb(verb);
        let failed = invoke(daprd.grpc_address(), "nobody", asked);
        let failed = runtime().block_on(failed).unwrap_err();
        assert_ne!(failed.code(), Code::Ok);
        let reason = failed.message().strip_prefix("failed to invoke, id: nobody, err: ");
        assert!(reason.is_some_and(|reason| reason.len() > 10), "{verb:?}: {failed}");
    }
}
