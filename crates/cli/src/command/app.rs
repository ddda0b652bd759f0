//! The app beside a sidecar: what it speaks, how many requests it gets at a time, how it is asked
//! for its health.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use tollway_model::AppProtocol;
use tollway_proxy::{AppOptions, HealthCheck};

/// What an app speaks, by the words of `--app-protocol`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Speech {
    pub(crate) protocol: AppProtocol,
    /// Over TLS, with a certificate that nobody checks.
    pub(crate) is_tls: bool,
}

impl Speech {
    /// Every word there is.
    pub(crate) const WORDS: [&str; 6] = ["http", "https", "h2c", "grpc", "grpcs", "tcp"];
}

impl FromStr for Speech {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |protocol| Self { protocol, is_tls: false };
        let over_tls = |protocol| Self { protocol, is_tls: true };
        Ok(match text {
            "http" => plain(AppProtocol::Http),
            "https" => over_tls(AppProtocol::Http),
            "h2c" => plain(AppProtocol::H2c),
            "grpc" => plain(AppProtocol::Grpc),
            "grpcs" => over_tls(AppProtocol::Grpc),
            "tcp" => plain(AppProtocol::Tcp),
            _ => {
                return Err(format!(
                    "`{text}` is not an app protocol; use http, https, h2c, grpc, grpcs or tcp"
                ));
            }
        })
    }
}

impl fmt::Display for Speech {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.protocol.as_str())?;
        f.write_str(if self.is_tls { "s" } else { "" })
    }
}

#[derive(Args, Clone, Debug)]
pub(crate) struct AppArgs {
    /// Most requests that the app has at a time; others wait [default: any number].
    #[arg(long, value_name = "COUNT", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    pub(crate) app_max_concurrency: Option<usize>,
    /// Ask the app for its health, and have it called only while it is well.
    #[arg(long)]
    enable_app_health_check: bool,
    /// Path that is asked for over HTTP; 2xx says that the app is well.
    #[arg(long, value_name = "PATH", default_value = "/healthz", value_parser = path)]
    app_health_check_path: String,
    /// Time between two health checks, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    app_health_probe_interval_ms: u64,
    /// Time for the answer to a health check, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    app_health_probe_timeout_ms: u64,
    /// Failed health checks in a row that make the app ill; one that succeeds makes it well.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    app_health_threshold: u32,
}

impl AppArgs {
    /// An app at an address.
    pub(crate) fn at(&self, address: SocketAddr, speech: Speech) -> AppOptions {
        let health_check = self.enable_app_health_check.then(|| HealthCheck {
            path: self.app_health_check_path.clone(),
            interval: Duration::from_millis(self.app_health_probe_interval_ms),
            timeout: Duration::from_millis(self.app_health_probe_timeout_ms),
            threshold: self.app_health_threshold,
        });
        AppOptions {
            address,
            protocol: speech.protocol,
            is_tls: speech.is_tls,
            max_concurrency: self.app_max_concurrency,
            health_check,
            asks_actors: true,
        }
    }
}

/// A path as it stands in a request.
pub(crate) fn path(text: &str) -> Result<String, String> {
    let is_visible = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    if text.starts_with('/') && text.bytes().all(is_visible) {
        return Ok(text.to_owned());
    }
    Err("write a path such as /healthz".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_and_written() {
        for word in Speech::WORDS {
            let speech: Speech = word.parse().unwrap();
            assert_eq!(speech.to_string(), word);
            assert_eq!(speech.is_tls, word.ends_with('s'));
        }
        assert!("HTTP".parse::<Speech>().unwrap_err().contains("http, https, h2c"));
    }

    #[test]
    fn a_path_of_a_health_check_is_one_of_a_request() {
        assert_eq!(path("/healthz?deep=1").unwrap(), "/healthz?deep=1");
        for wrong in ["", "healthz", "/a b", "/a\r\n", "/a#b", "/é"] {
            assert!(path(wrong).is_err(), "{wrong:?}");
        }
    }
}
