//! The words that describe an app in flags and settings: its protocol and the path of its health
//! checks.

use std::fmt;
use std::str::FromStr;

use tollway_model::AppProtocol;

/// The protocol of an app, and whether it is over TLS: a word of `--app-protocol`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppScheme {
    pub protocol: AppProtocol,
    /// Over TLS; the certificate of the app is not checked.
    pub is_tls: bool,
}

impl AppScheme {
    /// All words.
    pub const WORDS: [&str; 6] = ["http", "https", "h2c", "grpc", "grpcs", "tcp"];
}

impl FromStr for AppScheme {
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

impl fmt::Display for AppScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.protocol.as_str())?;
        f.write_str(if self.is_tls { "s" } else { "" })
    }
}

/// Checks a path as it is written in a request.
///
/// # Errors
/// What to write instead.
pub fn request_path(text: &str) -> Result<String, String> {
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
        for word in AppScheme::WORDS {
            let scheme: AppScheme = word.parse().unwrap();
            assert_eq!(scheme.to_string(), word);
            assert_eq!(scheme.is_tls, word.ends_with('s'));
        }
        assert!("HTTP".parse::<AppScheme>().unwrap_err().contains("http, https, h2c"));
    }

    #[test]
    fn a_path_of_a_health_check_is_one_of_a_request() {
        assert_eq!(request_path("/healthz?deep=1").unwrap(), "/healthz?deep=1");
        for wrong in ["", "healthz", "/a b", "/a\r\n", "/a#b", "/é"] {
            assert!(request_path(wrong).is_err(), "{wrong:?}");
        }
    }
}
