//! Finds out whether the peer that does not answer is a sidecar: another program may hold the port,
//! accept the connection and never send a byte. A service that answers late is waited for; its
//! request is sent once.

use std::future::Future;
use std::time::Duration;

use hyper::client::conn::http1::handshake;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tollway_dial::dial;

use super::body::{self, Body};

/// Time that an answer may take before the sidecar is probed.
const SILENCE_LIMIT: Duration = Duration::from_secs(2);
/// Time for that sign: a sidecar gives it by itself, at once, whatever its app does.
const SIGN_TIMEOUT: Duration = Duration::from_secs(3);
/// The path of the probe.
const SIGN_PATH: &str = "/v1.0/healthz";

/// Waits for `answer` as long as it takes, but only for a sidecar.
///
/// # Errors
/// What the program at `address` did in place of a sidecar.
pub(super) async fn wait<T>(address: &str, answer: impl Future<Output = T>) -> Result<T, String> {
    let mut answer = std::pin::pin!(answer);
    if let Ok(answer) = timeout(SILENCE_LIMIT, answer.as_mut()).await {
        return Ok(answer);
    }
    tokio::select! {
        // The answer may have arrived in the meantime.
        biased;
        answer = &mut answer => return Ok(answer),
        asked = ask(address) => asked?,
    }
    Ok(answer.await)
}

async fn ask(address: &str) -> Result<(), String> {
    let silent = || {
        let limit = (SILENCE_LIMIT + SIGN_TIMEOUT).as_secs();
        format!("it takes connections, but has not said a word for {limit} s")
    };
    let status = timeout(SIGN_TIMEOUT, status_of_health(address)).await.map_err(|_| silent())?;
    match status? {
        // Not well, it is a sidecar all the same.
        StatusCode::NO_CONTENT | StatusCode::INTERNAL_SERVER_ERROR => Ok(()),
        other => Err(format!("it answers {SIGN_PATH} with {other}")),
    }
}

async fn status_of_health(address: &str) -> Result<StatusCode, String> {
    let failed = |error: &dyn std::error::Error| format!("a second connection failed: {error}");
    let stream = dial(address, None, SIGN_TIMEOUT).await;
    let stream = stream.map_err(|error| failed(&std::io::Error::from(error)))?;
    let (mut sender, connection) =
        handshake::<_, Body>(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
    tokio::spawn(connection);
    let request = Request::get(SIGN_PATH).header(HOST, address).body(body::empty());
    let request = request.map_err(|error| error.to_string())?;
    let answer = sender.send_request(request).await;
    Ok(answer.map_err(|error| format!("it does not answer in HTTP ({error})"))?.status())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Waits for an answer that comes after `late`, from a program that answers every connection
    /// with `says`; says nothing if that is empty.
    async fn check(says: &'static [u8], late: Duration) -> Result<&'static str, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(says).await;
                open.push(stream);
            }
        });
        let answer = async {
            tokio::time::sleep(late).await;
            "answered"
        };
        wait(&address, answer).await
    }

    #[tokio::test]
    async fn a_slow_answer_of_a_sidecar_is_waited_for() {
        let soon = Duration::from_millis(10);
        assert_eq!(check(b"", soon).await, Ok("answered"));
        let late = SILENCE_LIMIT + Duration::from_millis(500);
        let well: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";
        let ill: &[u8] = b"HTTP/1.1 500 Not Ready\r\nContent-Length: 0\r\n\r\n";
        let (well, ill) = tokio::join!(check(well, late), check(ill, late));
        assert_eq!((well, ill), (Ok("answered"), Ok("answered")));
    }

    #[tokio::test]
    async fn another_program_is_distinguished_from_a_sidecar() {
        let never = Duration::from_secs(3600);
        let (silent, web, talker) = tokio::join!(
            check(b"", never),
            check(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", never),
            check(b"SSH-2.0-Other\r\n", never),
        );
        let silent = silent.unwrap_err();
        assert_eq!(silent, "it takes connections, but has not said a word for 5 s");
        assert_eq!(web.unwrap_err(), "it answers /v1.0/healthz with 404 Not Found");
        let talker = talker.unwrap_err();
        assert!(talker.starts_with("it does not answer in HTTP ("), "{talker}");
    }
}
