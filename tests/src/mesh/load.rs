//! Load from `tollway load` in the background of a test, and what came of it.

use std::net::SocketAddr;
use std::time::Duration;

use tollway_record::RunResult;
use tollway_testkit::{Process, TempDir};

use super::{PATIENCE, start_newest};

/// Load under way.
pub struct Load {
    process: Process,
    files: TempDir,
}

impl Load {
    /// HTTP/1.1 requests for `url`, so many per second for so long.
    pub fn http(url: &str, rate: u32, duration: Duration) -> Self {
        let body = ["--payload-size", "1024", "--verify-echo"];
        Self::start(&[&["http", url, "--connections", "8"][..], &body].concat(), rate, duration)
    }

    /// Unary gRPC calls of `service` at a sidecar's gRPC API.
    pub fn grpc(api: SocketAddr, service: &str, rate: u32, duration: Duration) -> Self {
        let (url, service) = (api.to_string(), format!("dapr-app-id: {service}"));
        let what = ["grpc", &url, "--connections", "2", "--payload-size", "1024", "-H", &service];
        Self::start(&what, rate, duration)
    }

    fn start(what: &[&str], rate: u32, duration: Duration) -> Self {
        let files = TempDir::new().unwrap();
        let process = start_newest("load")
            .args(what)
            .args(["--rate", &rate.to_string(), "--warm-up", "0ms"])
            .args(["--duration", &format!("{}ms", duration.as_millis()), "--json"])
            .arg(files.path().join("result.json"))
            .start()
            .unwrap();
        Self { process, files }
    }

    /// Waits for the end of the load.
    pub fn result(mut self) -> RunResult {
        let status = self.process.wait(PATIENCE * 2).unwrap();
        assert!(status.success(), "the load failed: {}", self.process.log());
        let text = std::fs::read_to_string(self.files.path().join("result.json")).unwrap();
        RunResult::from_json(&text).unwrap()
    }

    /// Waits for the end, and fails unless every request had a good answer.
    pub fn assert_no_errors(self) -> u64 {
        let traffic = self.result().traffic;
        let lost = traffic.errors + traffic.unfinished + traffic.dropped;
        assert_eq!(lost, 0, "of {} requests: {:?}", traffic.requests, traffic.errors_by_kind);
        assert!(traffic.requests > 0);
        traffic.requests
    }
}
