//! `tollway load` against a foreign gRPC server: grpcio, with a flow control and settings of its
//! own.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use tollway_record::RunResult;
use tollway_testkit::{Process, Start, binary, retry_until, skip};
use tollway_tests::grpcio::{PROTO, python, script};

const SOON: Duration = Duration::from_secs(30);

#[test]
fn every_kind_of_stream_runs_against_grpcio() {
    let server = match Server::start() {
        Ok(server) => server,
        Err(reason) => skip!("{reason}"),
    };
    let shape = ["--streams", "4", "--messages", "30", "--message-size", "20000"];
    for (kind, requests) in [("push", 240), ("bidi", 240), ("client", 8), ("server", 8)] {
        let in_flight = ["--in-flight", "5", "-c", "2", "--stream", kind];
        let result = server.load(&[&shape[..], &in_flight].concat());
        let (traffic, streaming) = (&result.traffic, result.streaming.as_ref().unwrap());
        assert_eq!((traffic.requests, traffic.errors), (requests, 0), "{kind}: {traffic:?}");
        assert_eq!((streaming.completed, streaming.failed), (8, 0), "{kind}");
        let bytes = 8 * 30 * 20_000;
        let (there, back) = match kind {
            "bidi" => (true, true),
            "server" => (false, true),
            _ => (true, false),
        };
        assert_eq!(traffic.bytes.sent > bytes, there, "{kind}: {:?}", traffic.bytes);
        assert_eq!(traffic.bytes.received > bytes, back, "{kind}: {:?}", traffic.bytes);
    }
}

#[test]
fn a_unary_call_comes_back_from_grpcio_byte_for_byte() {
    let server = match Server::start() {
        Ok(server) => server,
        Err(reason) => skip!("{reason}"),
    };
    let calls = ["-n", "200", "-c", "2", "--streams", "10", "--warm-up", "0s"];
    let checked = ["--payload-size", "100000", "--verify-echo"];
    let result = server.load(&[&calls[..], &checked].concat());
    assert_eq!((result.traffic.requests, result.traffic.errors), (200, 0), "{:?}", result.traffic);
}

struct Server {
    _process: Process,
    address: SocketAddr,
}

impl Server {
    /// The reason if grpcio cannot be had.
    fn start() -> Result<Self, String> {
        let server = script("measure/load_foreign/grpcio_server.py");
        let process = Start::new(python()?).arg(server).env(PROTO.0, PROTO.1).start().unwrap();
        let port = retry_until(SOON, "the server's port", || port_in(&process.log())).unwrap();
        Ok(Self { _process: process, address: ([127, 0, 0, 1], port).into() })
    }

    fn load(&self, arguments: &[&str]) -> RunResult {
        let output = Command::new(binary("tollway").unwrap())
            .args(["load", "grpc", "--quiet", "--json", "-"])
            .args(arguments)
            .arg(self.address.to_string())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        RunResult::from_json(&String::from_utf8(output.stdout).unwrap()).unwrap()
    }
}

fn port_in(log: &str) -> Option<u16> {
    log.lines().find_map(|line| line.strip_prefix("port "))?.trim().parse().ok()
}
