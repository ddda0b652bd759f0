//! The app behind a front: where it is, and what is spoken to it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use thiserror::Error;
use tokio::net::TcpStream;
use tollway_dial::{in_turn, race};
use tollway_model::AppProtocol;

use crate::app_addresses::AppAddresses;
use crate::event_loop::AppTarget;

/// Time in which one of an app's addresses is found that takes connections.
const FIND_WITHIN: Duration = Duration::from_secs(2);

/// `http://HOST:PORT` (HTTP/1.1) or `h2c://HOST:PORT` (HTTP/2 without TLS).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrontTarget {
    host: String,
    port: u16,
    protocol: AppProtocol,
}

/// Why a text names no app.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FrontTargetError {
    #[error("write http://HOST:PORT, or h2c://HOST:PORT for HTTP/2")]
    Form,
    #[error("`{0}` is not spoken to the app; write http:// for HTTP/1.1 or h2c:// for HTTP/2")]
    Scheme(String),
    #[error("a path cannot stand there; requests go on with the path that they have")]
    Path,
    #[error("a user name cannot stand there")]
    User,
}

impl FromStr for FrontTarget {
    type Err = FrontTargetError;

    fn from_str(text: &str) -> Result<Self, FrontTargetError> {
        let uri: Uri = text.parse().map_err(|_| FrontTargetError::Form)?;
        let protocol = match uri.scheme_str() {
            Some("http") => AppProtocol::Http,
            Some("h2c") => AppProtocol::H2c,
            Some(other) => return Err(FrontTargetError::Scheme(other.to_owned())),
            None => return Err(FrontTargetError::Form),
        };
        let authority = uri.authority().ok_or(FrontTargetError::Form)?;
        if authority.as_str().contains('@') {
            return Err(FrontTargetError::User);
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(FrontTargetError::Path);
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = match authority.port_u16() {
            Some(port) => port,
            // `host:` and `host:70000` have one that is none.
            None if authority.as_str().ends_with(authority.host()) => 80,
            None => return Err(FrontTargetError::Form),
        };
        if host.is_empty() || port == 0 {
            return Err(FrontTargetError::Form);
        }
        Ok(Self { host, port, protocol })
    }
}

impl fmt::Display for FrontTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.protocol == AppProtocol::Http { "http" } else { "h2c" };
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

impl FrontTarget {
    /// Host and port.
    #[must_use]
    pub fn authority(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// Whether it is a name, whose address may change.
    pub(super) fn is_name(&self) -> bool {
        self.host.parse::<std::net::IpAddr>().is_err()
    }

    /// Its addresses, the best of which takes connections if any does.
    ///
    /// # Errors
    /// When the system finds none.
    pub(super) async fn resolve(&self) -> std::io::Result<AppTarget> {
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await?;
        let found = in_turn(found);
        let none = || std::io::Error::other("the name has no address");
        let addresses = AppAddresses::new(*found.first().ok_or_else(none)?, found);
        find_best(&addresses).await;
        let host = [].into();
        Ok(AppTarget { addresses, protocol: self.protocol, host, names_host: false })
    }
}

/// Finds which of an app's addresses takes connections, if there are several.
pub(super) async fn find_best(addresses: &AppAddresses) {
    if !addresses.are_several() {
        return;
    }
    let all: Vec<_> = addresses.all().collect();
    let found = tokio::time::timeout(FIND_WITHIN, race(&all, TcpStream::connect)).await;
    if let Ok(Ok((_, address))) = found {
        addresses.note_good(address);
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn an_app_is_read_as_it_is_shown() {
        let check = |text: &str, shown: &str, protocol: AppProtocol| {
            let target: FrontTarget = text.parse().unwrap();
            assert_eq!((target.to_string().as_str(), target.protocol), (shown, protocol));
        };
        check("http://127.0.0.1:8080", "http://127.0.0.1:8080", AppProtocol::Http);
        check("http://app.example/", "http://app.example:80", AppProtocol::Http);
        check("h2c://[::1]:50051", "h2c://[::1]:50051", AppProtocol::H2c);
    }

    #[test]
    fn what_names_no_app_is_refused_with_the_form_that_does() {
        let check = |text: &str, expected: FrontTargetError| {
            assert_eq!(text.parse::<FrontTarget>(), Err(expected), "{text}");
        };
        for text in
            ["", "app", "app:80", "127.0.0.1:8080", "http://", "http://a:0", "http://a:70000"]
        {
            let refused = text.parse::<FrontTarget>().unwrap_err();
            assert!(
                matches!(refused, FrontTargetError::Form | FrontTargetError::Scheme(_)),
                "{text}"
            );
        }
        check("https://a:443", FrontTargetError::Scheme("https".to_owned()));
        check("http://a:80/path", FrontTargetError::Path);
        check("http://a:80?x", FrontTargetError::Path);
        check("http://me@a:80", FrontTargetError::User);
    }

    #[tokio::test]
    async fn a_name_has_the_address_at_which_the_app_listens() {
        let target: FrontTarget = "http://127.0.0.1:81".parse().unwrap();
        assert_eq!(
            target.resolve().await.unwrap().addresses.best(),
            "127.0.0.1:81".parse().unwrap()
        );
        let app = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
        let listens = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (away, here) = (app.unwrap(), listens.local_addr().unwrap());
        let addresses = AppAddresses::new(away, [here]);
        find_best(&addresses).await;
        assert_eq!(addresses.best(), here);
        assert!(
            !target.is_name() && "http://localhost:1".parse::<FrontTarget>().unwrap().is_name()
        );
    }
}
