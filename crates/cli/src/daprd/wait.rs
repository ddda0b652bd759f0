//! `daprd --wait`: until the sidecar of this machine can call others.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::failure::Failure;
use tollway_model::ErrorCode;

/// How long it waits.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Health needs no token.
const REQUEST: &[u8] =
    b"GET /v1.0/healthz/outbound HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// Returns once the sidecar whose HTTP API has that port is ready.
///
/// # Errors
/// When the port is none, and when it is not ready in a minute.
pub(super) fn until_ready(port: &str) -> Result<ExitCode> {
    let Ok(port) = port.parse() else {
        let what = format!("error parsing dapr-http-port flag: `{port}` is no port; use a number");
        return Err(Failure::new(ErrorCode::BadConfiguration, what).into());
    };
    let sidecar = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if is_ready(sidecar) {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    bail!("the sidecar at {sidecar} is not ready after {} s", PATIENCE.as_secs())
}

fn is_ready(sidecar: SocketAddr) -> bool {
    let ask = || -> std::io::Result<[u8; 12]> {
        let mut stream = TcpStream::connect_timeout(&sidecar, ANSWER_TIMEOUT)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.write_all(REQUEST)?;
        let mut line = [0; 12];
        stream.read_exact(&mut line)?;
        Ok(line)
    };
    ask().is_ok_and(|line| line.ends_with(b" 204"))
}
