//! Whether an app takes calls, as the health of its sidecar has it.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LOOK_EVERY: Duration = Duration::from_millis(50);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Health needs no token.
const REQUEST: &[u8] =
    b"GET /v1.0/healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// Returns once the app of the sidecar whose HTTP API listens at `api` can be called.
pub(super) async fn until_called(api: SocketAddr) {
    let api = reached(api);
    loop {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, answer(api)).await;
        if matches!(answer, Ok(Ok(line)) if line.ends_with(b" 204")) {
            return;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The beginning of the answer's first line.
async fn answer(api: SocketAddr) -> std::io::Result<[u8; 12]> {
    let mut stream = TcpStream::connect(api).await?;
    stream.write_all(REQUEST).await?;
    let mut line = [0; 12];
    stream.read_exact(&mut line).await?;
    Ok(line)
}

/// Where a listener of this machine is reached: one at every address, at loopback.
fn reached(listens: SocketAddr) -> SocketAddr {
    let ip = listens.ip();
    let ip = match (ip.is_unspecified(), ip.is_ipv4()) {
        (false, _) => ip,
        (true, true) => Ipv4Addr::LOCALHOST.into(),
        (true, false) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, listens.port())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_app_is_waited_for_until_its_sidecar_answers_204() {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let api = listener.local_addr().unwrap();
        let serving = async {
            for status in ["500 Internal Server Error", "204 No Content"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = [0; REQUEST.len()];
                stream.read_exact(&mut head).await.unwrap();
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        };
        // It answers twice, so the first answer did not end the wait.
        tokio::join!(serving, until_called(api));
    }
}
