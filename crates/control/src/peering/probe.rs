//! One probe of a gateway of a joined network, over the route that calls use: a connection, a question,
//! an answer that only a gateway of that network can give ([`tollway_identity::ProbeQuestion`]).

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollway_identity::{GatewayState, PROBE_ANSWER, ProbeQuestion};
use tollway_model::{NetworkName, ProbeSecret};

/// Time for a probe: what answers later shows nothing any more.
pub(super) const PROBE_WITHIN: Duration = Duration::from_millis(1_700);

/// What the gateway answers; `None` where it does not, or is not of that network.
pub(super) async fn probe(
    gateway: SocketAddr,
    secret: ProbeSecret,
    network: NetworkName,
) -> Option<GatewayState> {
    let asked = tokio::time::timeout(PROBE_WITHIN, ask(gateway, secret, network));
    asked.await.ok().flatten()
}

async fn ask(
    gateway: SocketAddr,
    secret: ProbeSecret,
    network: NetworkName,
) -> Option<GatewayState> {
    let question = ProbeQuestion::new(secret, network)?;
    let mut stream = TcpStream::connect(gateway).await.ok()?;
    stream.set_nodelay(true).ok()?;
    stream.write_all(&question.hello()).await.ok()?;
    let mut answer = [0; PROBE_ANSWER];
    stream.read_exact(&mut answer).await.ok()?;
    question.read(&answer)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_limit_is_documented() {
        const PAGE: &str = include_str!("../../../../docs/limits.md");
        tollway_testkit::check_limit(PAGE, "PROBE_WITHIN", "1700 ms");
    }
}
