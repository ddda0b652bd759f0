//! `tollway lab serve`: a folder's results as pages.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use tollway_report::serve::{ServeOptions, Server};

use crate::async_runtime;

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// The folder whose results are shown: experiments, runs of `tollway load --json`, files of
    /// Fortio's.
    #[arg(value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
    /// Address to listen on; everyone who reaches it can read the results. Port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// A name by which browsers may call this server, in addition to addresses and `localhost`. Can be
    /// given several times.
    #[arg(long, value_name = "NAME")]
    host_name: Vec<String>,
    /// File that receives the bound address as JSON.
    #[arg(long, value_name = "FILE")]
    ports_file: Option<PathBuf>,
}

pub(super) fn run(args: &ServeArgs) -> Result<()> {
    async_runtime::block_on(serve(args))?
}

async fn serve(args: &ServeArgs) -> Result<()> {
    let stop = async_runtime::shutdown_or_hangup()?;
    let server = Server::bind(ServeOptions {
        folder: args.folder.clone(),
        listen: args.listen,
        host_names: args.host_name.clone(),
    })
    .await?;
    let address = server.address();
    println!("Results of {}: http://{}/", args.folder.display(), reachable(address));
    if !address.ip().is_loopback() {
        eprintln!(
            "warning: {address} is reachable from other machines: everyone who reaches it can read the \
             results"
        );
    }
    if let Some(path) = &args.ports_file {
        tollway_net::write_ports(path, [("http", address)])
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    tokio::select! {
        () = server.run() => {}
        () = stop => {}
    }
    Ok(())
}

/// An address that a browser can call: for the unspecified address, this machine's own.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}
