//! `tollway load` as a user runs it, and the echo servers that it is run against.

use std::net::SocketAddr;
use std::process::{Command, Output};

use tollway_record::RunResult;
use tollway_testkit::{Process, Start, TempDir, binary};

/// An echo server for HTTP and for raw TCP.
pub struct Echo {
    pub process: Process,
}

impl Echo {
    /// `flags` add to its listeners, or set its behaviour.
    pub fn start(flags: &[&str]) -> Self {
        let process = Start::new(binary("tollway").unwrap())
            .args(["echo", "--http", "127.0.0.1:0", "--tcp", "127.0.0.1:0"])
            .args(flags)
            .start_listening()
            .unwrap();
        Self { process }
    }

    pub fn http(&self) -> SocketAddr {
        self.process.port("http").unwrap()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.http())
    }

    pub fn tcp(&self) -> String {
        self.process.port("tcp").unwrap().to_string()
    }
}

pub fn tollway(arguments: &[&str]) -> Output {
    Command::new(binary("tollway").unwrap()).args(arguments).output().unwrap()
}

/// The result of `tollway load` with these arguments.
#[track_caller]
pub fn run(arguments: &[&str]) -> RunResult {
    let files = TempDir::new().unwrap();
    let path = files.path().join("result.json");
    let json = ["--quiet", "--json", path.to_str().unwrap()];
    let output = tollway(&[&["load"], arguments, &json].concat());
    assert!(output.status.success(), "{output:?}");
    RunResult::from_json(&std::fs::read_to_string(&path).unwrap()).unwrap()
}
