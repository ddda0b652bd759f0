//! Lets a client without a workload identity reach an mTLS listener.
//!
//! `h2spec` or `curl` connect to the relay over plain TCP; the relay connects to the program under
//! test over TLS with a given certificate, and passes bytes and half-closes in both directions.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;

/// A plain TCP listener on 127.0.0.1 in front of a TLS server. Ends on drop.
pub struct TlsRelay {
    address: SocketAddr,
    last_error: LastError,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

type LastError = Arc<Mutex<Option<String>>>;

#[derive(Clone)]
struct Target {
    address: SocketAddr,
    name: ServerName<'static>,
    connector: TlsConnector,
}

impl TlsRelay {
    /// Relays each connection to `target`, with `server_name` and `config` (identity, trusted roots
    /// and ALPN are the caller's).
    pub fn start(target: SocketAddr, server_name: &str, config: Arc<ClientConfig>) -> Result<Self> {
        let name = ServerName::try_from(server_name.to_owned())
            .with_context(|| format!("`{server_name}` is no server name"))?;
        let target = Target { address: target, name, connector: TlsConnector::from(config) };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("could not make a runtime for the relay")?;
        let listener = runtime
            .block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
            .context("could not bind 127.0.0.1:0")?;
        let address = listener.local_addr().context("a bound socket has no address")?;
        let last_error = LastError::default();
        let (stop, stopped) = oneshot::channel();
        let errors = Arc::clone(&last_error);
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, target, errors) => {}
                    _ = stopped => {}
                }
            });
        });
        Ok(Self { address, last_error, stop: Some(stop), thread: Some(thread) })
    }

    /// Where plain clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Why the last connection failed, if one did: a refused handshake shows only here.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for TlsRelay {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A relay that panicked has already printed why.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, target: Target, errors: LastError) {
    while let Ok((client, _)) = listener.accept().await {
        let target = target.clone();
        let errors = Arc::clone(&errors);
        tokio::spawn(async move {
            if let Err(error) = relay(client, &target).await {
                let text = format!("{error:#}");
                *errors.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
            }
        });
    }
}

/// At which end the way from client to server broke.
enum Broken {
    Client(io::Error),
    Server(io::Error),
}

impl Broken {
    fn into_inner(self) -> io::Error {
        match self {
            Self::Client(error) | Self::Server(error) => error,
        }
    }
}

async fn relay(client: TcpStream, target: &Target) -> Result<()> {
    let server = TcpStream::connect(target.address)
        .await
        .with_context(|| format!("could not connect to {}", target.address))?;
    client.set_nodelay(true).context("could not switch off Nagle's algorithm")?;
    server.set_nodelay(true).context("could not switch off Nagle's algorithm")?;
    let server = target
        .connector
        .connect(target.name.clone(), server)
        .await
        .context("the TLS handshake failed")?;
    let (mut of_client, mut to_client) = client.into_split();
    let (mut of_server, mut to_server) = tokio::io::split(server);
    let there = async {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let count = of_client.read(&mut buffer).await.map_err(Broken::Client)?;
            if count == 0 {
                return to_server.shutdown().await.map_err(Broken::Server);
            }
            to_server.write_all(&buffer[..count]).await.map_err(Broken::Server)?;
            to_server.flush().await.map_err(Broken::Server)?;
        }
    };
    let back = async {
        copy(&mut of_server, &mut to_client).await?;
        to_client.shutdown().await
    };
    let (mut there, mut back) = (pin!(there), pin!(back));
    let relayed = tokio::select! {
        ended = &mut back => match ended {
            Ok(()) => there.await.map_err(Broken::into_inner),
            Err(error) => Err(error),
        },
        ended = &mut there => match ended {
            Ok(()) => back.await,
            // What a server has sent before it broke off still goes to the client.
            Err(Broken::Server(error)) => back.await.and(Err(error)),
            Err(Broken::Client(error)) => Err(error),
        },
    };
    relayed.context("the relayed connection broke")
}

#[cfg(test)]
mod tests;
