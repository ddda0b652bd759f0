//! A17: ends by force and at the end of the time for calls under way. A21: descriptors.

use std::collections::HashMap;

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use tollway_testkit::{Process, binary, retry_until};
use tollway_tests::scripted_app::{App, Reply, Then};
use tollway_tests::user::{PATIENCE, User};
use tollway_wire::dapr::proto::runtime::v1::ShutdownRequest;

use super::ask;
use crate::api::client;
use crate::api::daprd::Daprd;

/// An app that never answers `/hold`.
fn holding() -> App {
    App::start(HashMap::from([("/hold", Reply { bytes: Vec::new(), then: Then::Hang })]))
}

/// Begins a call that the app does not answer, and returns once the app has it.
fn hold(daprd: &Daprd, app: &App) {
    let http = daprd.http();
    std::thread::spawn(move || {
        std::panic::catch_unwind(|| ask(http, "POST", "/v1.0/invoke/web/method/hold", &[]))
    });
    retry_until(PATIENCE, "the call", || (!app.requests("/hold").is_empty()).then_some(()))
        .unwrap();
}

fn status(process: &mut Process) -> Option<i32> {
    process.wait(PATIENCE).unwrap().code()
}

#[test]
fn a17_the_end_by_force_waits_for_no_call() {
    for over_http in [true, false] {
        let (user, app) = (User::new(), holding());
        let flags = ["--app-port", &app.port(), "--dapr-graceful-shutdown-seconds", "3600"];
        let mut daprd = Daprd::listening(&user, "web", &flags);
        daprd.until_served("web");
        hold(&daprd, &app);
        if over_http {
            let forced = [("dapr-force-shutdown", "true")];
            assert_eq!(ask(daprd.http(), "POST", "/v1.0/shutdown", &forced).status, 204);
        } else {
            let mut request = tonic::Request::new(ShutdownRequest {});
            request.metadata_mut().insert("dapr-force-shutdown", "TRUE".parse().unwrap());
            tollway_tests::mesh::http::runtime().block_on(async {
                client(daprd.grpc_address()).await.shutdown(request).await.unwrap();
            });
        }
        assert_eq!(status(daprd.process()), Some(1), "{}", daprd.log());
    }
}

#[test]
fn a17_a_call_that_is_cut_off_at_the_end_makes_the_exit_status_1() {
    let (user, app) = (User::new(), holding());
    let flags = ["--app-port", &app.port(), "--dapr-graceful-shutdown-seconds", "1"];
    let mut daprd = Daprd::listening(&user, "web", &flags);
    daprd.until_served("web");
    hold(&daprd, &app);
    daprd.process().signal(Signal::TERM).unwrap();
    assert_eq!(status(daprd.process()), Some(1), "{}", daprd.log());
}

#[test]
fn a17_an_end_in_order_makes_the_exit_status_0() {
    let user = User::new();
    let mut daprd = Daprd::listening(&user, "web", &[]);
    assert_eq!(ask(daprd.http(), "POST", "/v1.0/shutdown", &[]).status, 204);
    assert_eq!(status(daprd.process()), Some(0), "{}", daprd.log());
}

/// The harm: an app does not answer to the end of an actor, and the sidecar waits for it until it is cut
/// off, with the exit status of a call that failed.
#[test]
fn a17_an_app_that_does_not_deactivate_its_actor_does_not_make_the_exit_status_1() {
    let user = User::new();
    let config = br#"{"entities":["Cart"]}"#;
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", config.len());
    let config = Reply { bytes: [head.as_bytes(), config].concat(), then: Then::GoOn };
    let silent = Reply { bytes: Vec::new(), then: Then::Hang };
    let app = App::start(HashMap::from([("/dapr/config", config), ("/actors/Cart/1", silent)]));
    let mut daprd = Daprd::listening(&user, "web", &["--app-port", &app.port()]);
    retry_until(PATIENCE, "the turn", || {
        let answer = ask(daprd.http(), "POST", "/v1.0/actors/Cart/1/method/m", &[]);
        (answer.status == 200).then_some(())
    })
    .unwrap();
    daprd.process().signal(Signal::TERM).unwrap();
    assert_eq!(status(daprd.process()), Some(0), "{}", daprd.log());
    assert!(app.was_sent("DELETE /actors/Cart/1 "));
}

/// The soft limit on descriptors of a process, and the hard one.
fn limits(pid: u32) -> (Option<u64>, Option<u64>) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap());
    let Rlimit { current, maximum } = rustix::process::getrlimit(Resource::Nofile);
    let found = prlimit(pid, Resource::Nofile, Rlimit { current, maximum });
    let Rlimit { current, maximum } = found.unwrap();
    (current, maximum)
}

#[test]
fn a21_the_limit_on_descriptors_is_raised_by_what_serves_and_not_for_its_app() {
    let user = User::new();
    // As a shell with the usual limit starts it.
    let tollway = binary("tollway").unwrap();
    let script = format!(
        "ulimit -Sn 256; exec '{}' run --app-id app -- sh -c 'ulimit -Sn > {}; sleep 3600'",
        tollway.display(),
        user.path("limit").display(),
    );
    let mut run = tollway_testkit::Start::new("/bin/sh").args(["-c", &script]);
    for (name, value) in user.variables() {
        run = run.env(name, value);
    }
    let run = run.start().unwrap();
    let limit = retry_until(PATIENCE, "the app", || {
        std::fs::read_to_string(user.path("limit")).ok().filter(|text| text.ends_with('\n'))
    });
    assert_eq!(limit.unwrap().trim(), "256", "the app's");
    let (soft, hard) = limits(run.pid());
    assert_eq!(soft, hard);
    assert_ne!(soft, Some(256));
}
