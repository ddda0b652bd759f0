//! A relay between two processes that can be cut: nothing passes meanwhile, and neither gets an
//! error.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    is_cut: watch::Sender<bool>,
}

impl Relay {
    /// To `target`, as long as the runtime lives.
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((target.ip(), 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (is_cut, cut) = watch::channel(false);
        tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let cut = cut.clone();
                tokio::spawn(async move {
                    // A new connection finds no listener.
                    let Ok(far) = TcpStream::connect(target).await else { return };
                    let ((near_in, near_out), (far_in, far_out)) =
                        (near.into_split(), far.into_split());
                    tokio::spawn(pass(near_in, far_out, cut.clone()));
                    pass(far_in, near_out, cut).await;
                });
            }
        });
        Self { address, is_cut }
    }

    pub(crate) fn cut(&self, is_cut: bool) {
        self.is_cut.send_replace(is_cut);
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut cut: watch::Receiver<bool>) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if cut.wait_for(|cut| !*cut).await.is_err()
            || to.write_all(&buffer[..length]).await.is_err()
        {
            return;
        }
    }
}
