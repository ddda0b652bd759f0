//! Strangers who would have each listener write its log until the disk is full.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use tollway_testkit::{Process, TlsRelay};
use tollway_tests::network::{CONTROL, metric};
use tollway_tests::tls_client::{bad_hello, dial, trusting};
use tollway_wire::v1;
use tollway_wire::v1::identity_client::IdentityClient;
use tonic::Code;
use tonic::transport::Endpoint;

use crate::listeners::tls_listener::{H2, West};

/// Connections, and requests, of one stranger.
const MANY: usize = 1_000;
/// As docs/limits.md has them: lines of one kind at once; then one more each second.
const LOG_LINES: usize = 100;

/// Lines of a log at the usual levels.
fn lines(process: &Process) -> usize {
    process.log().lines().filter(|line| !line.contains(" DEBUG ")).count()
}

/// No more lines were written than one kind may have.
#[track_caller]
fn check(process: &Process, before: usize, began: Instant, what: &str) {
    let lines = lines(process) - before;
    let more = usize::try_from(began.elapsed().as_secs()).unwrap() + 1;
    // A few of other kinds may have come meanwhile.
    let most = LOG_LINES + more + 20;
    assert!(lines <= most, "{lines} lines for {what}:\n{}", process.log());
}

#[test]
fn strangers_do_not_fill_the_log() {
    let west = West::start();
    let hello = bad_hello();
    let [sidecar, _, control, _] = west.listeners();
    let gateway = ("gateway", west.gateway.port("gateway").unwrap(), &west.gateway);
    let others = [&sidecar, &control].map(|one| (one.name, one.address, one.judge));
    for (name, address, process) in others.into_iter().chain([gateway]) {
        for (what, bytes) in
            [("a bad name", &hello[..]), ("no TLS", &b"GET / HTTP/1.1\r\n\r\n"[..])]
        {
            let (before, began) = (lines(process), Instant::now());
            for _ in 0..MANY {
                let mut stream = dial(address, Duration::from_secs(10));
                // It may be closed before it has read all of it.
                let _ = stream.write_all(bytes).and_then(|()| stream.read(&mut [0; 16]));
            }
            check(process, before, began, &format!("{MANY} connections with {what} at the {name}"));
        }
    }
    let (before, began) = (lines(&west.network.control), Instant::now());
    ask_for_certificates(&west, trusting(None, H2));
    check(&west.network.control, before, began, "certificates that were refused");
    let left_out = metric(&west.network.control, "tollway_log_lines_left_out_total");
    assert!(left_out > 100, "{left_out}");
}

/// Asks for certificates without the right to one.
fn ask_for_certificates(west: &West, config: std::sync::Arc<ClientConfig>) {
    let relay = TlsRelay::start(west.network.control_address(), CONTROL, config).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{}", relay.address())).unwrap();
        let mut client = IdentityClient::new(endpoint.connect().await.unwrap());
        for _ in 0..MANY {
            let service = v1::ServiceName {
                app: "evil".to_owned(),
                namespace: "default".to_owned(),
                network: "west".to_owned(),
            };
            let request = v1::IssueRequest {
                service: Some(service),
                instance: "e-1".to_owned(),
                token: "made-up".to_owned(),
                ..v1::IssueRequest::default()
            };
            let refused = client.issue(request).await.unwrap_err();
            assert_ne!(refused.code(), Code::Unavailable, "{refused}");
        }
    });
}
