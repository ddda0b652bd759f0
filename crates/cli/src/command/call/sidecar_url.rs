//! The URL of a sidecar on the command line.

use std::str::FromStr;

use hyper::Uri;

/// `http://HOST:PORT` of a sidecar.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SidecarUrl(pub(super) String);

impl FromStr for SidecarUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("`{text}` is not a URL such as http://127.0.0.1:3500");
        let uri: Uri = text.parse().map_err(|_| malformed())?;
        let authority = uri.authority().ok_or_else(malformed)?;
        let port = authority.port_u16();
        if uri.scheme_str().is_some_and(|scheme| scheme != "http") || port.is_none() {
            return Err(malformed());
        }
        Ok(Self(authority.as_str().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecar_is_named_by_host_and_port() {
        let parse = |text: &str| text.parse::<SidecarUrl>();
        let local = SidecarUrl("127.0.0.1:3500".to_owned());
        assert_eq!(parse("http://127.0.0.1:3500").unwrap(), local);
        assert_eq!(parse("http://127.0.0.1:3500/").unwrap(), local);
        assert_eq!(parse("127.0.0.1:3500").unwrap(), local);
        for wrong in ["https://127.0.0.1:3500", "http://127.0.0.1", "/v1.0", "", "a b"] {
            assert!(parse(wrong).unwrap_err().contains("http://127.0.0.1:3500"), "{wrong}");
        }
    }
}
