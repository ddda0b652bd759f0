//! How the connections of a run are secured and used: the flags of curl where it has them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use tollway_load::{Reuse, Target, TlsOptions, TlsVersions};

use super::duration::duration;

#[derive(Args)]
#[command(next_help_heading = "Connections and TLS")]
pub(super) struct TlsArgs {
    /// Close a connection after so many requests; the next one opens another.
    #[arg(hide_short_help = true, long, value_name = "COUNT")]
    requests_per_connection: Option<u64>,
    /// A connection for each request.
    #[arg(hide_short_help = true, long, conflicts_with = "requests_per_connection")]
    disable_keepalive: bool,
    /// Do not use a connection that has been idle for longer.
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = duration)]
    max_idle: Option<Duration>,
    /// A TLS handshake for each request, of this kind.
    #[arg(long, value_name = "KIND")]
    handshakes: Option<Handshakes>,
    /// Believe any server.
    #[arg(short = 'k', long)]
    insecure: bool,
    /// Authorities to believe instead of the system's (PEM).
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Own certificate with what it chains to, for mutual TLS (PEM).
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Its key [default: in the file of --cert].
    #[arg(hide_short_help = true, long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Server name to request and to verify [default: the URL's host].
    #[arg(hide_short_help = true, long, value_name = "NAME")]
    server_name: Option<String>,
    /// TLS 1.3 only.
    #[arg(hide_short_help = true, long = "tlsv1.3", conflicts_with = "tls_max")]
    tls13: bool,
    /// Highest version: 1.2 or 1.3.
    #[arg(hide_short_help = true, long, value_name = "VERSION")]
    tls_max: Option<TlsMax>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Handshakes {
    /// Nothing is reused from earlier connections.
    Full,
    /// The session of a connection before is resumed where the server lets it.
    Resumed,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TlsMax {
    #[value(name = "1.2")]
    V12,
    #[value(name = "1.3")]
    V13,
}

impl TlsArgs {
    /// Refuses flags that mean nothing for `target`.
    pub(super) fn options(&self, target: &Target) -> Result<(TlsOptions, Reuse)> {
        if !target.tls {
            self.refuse_without_tls()?;
        }
        let tls = TlsOptions {
            insecure: self.insecure,
            authorities: self.cacert.clone(),
            certificate: self.cert.clone(),
            key: self.key.clone(),
            server_name: self.server_name.clone(),
            versions: match self.tls_max {
                Some(TlsMax::V12) => TlsVersions::Only12,
                Some(TlsMax::V13) | None if self.tls13 => TlsVersions::Only13,
                Some(TlsMax::V13) | None => TlsVersions::Any,
            },
            full_handshakes: self.handshakes == Some(Handshakes::Full),
            ready: None,
        };
        let each = self.disable_keepalive || self.handshakes.is_some();
        let requests = self.requests_per_connection.or(each.then_some(1));
        Ok((tls, Reuse { requests, idle: self.max_idle }))
    }

    /// Refuses the flags that end connections: `kind` keeps those it has.
    pub(super) fn refuse_reuse(&self, kind: &str) -> Result<()> {
        let given = [
            (self.requests_per_connection.is_some(), "--requests-per-connection"),
            (self.disable_keepalive, "--disable-keepalive"),
            (self.max_idle.is_some(), "--max-idle"),
        ];
        match given.into_iter().find(|(given, _)| *given) {
            Some((_, flag)) => {
                bail!("{flag} ends connections, and {kind} keeps its own; leave it out")
            }
            None => Ok(()),
        }
    }

    fn refuse_without_tls(&self) -> Result<()> {
        let given = [
            (self.handshakes.is_some(), "--handshakes"),
            (self.cacert.is_some(), "--cacert"),
            (self.cert.is_some(), "--cert"),
            (self.server_name.is_some(), "--server-name"),
            (self.tls13, "--tlsv1.3"),
            (self.tls_max.is_some(), "--tls-max"),
        ];
        match given.into_iter().find(|(given, _)| *given) {
            Some((_, flag)) => bail!("{flag} is for TLS; write the URL with https:// or grpcs://"),
            None => Ok(()),
        }
    }
}
