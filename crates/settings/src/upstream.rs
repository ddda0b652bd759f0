//! A loopback port that stands for a TCP service: `PORT=SERVICE`.

use std::fmt;
use std::str::FromStr;

use tollway_model::{Label, NameError, ServiceName};

/// A port and the service behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upstream {
    pub port: u16,
    /// `app[.namespace[.network]]`; the network that completes it is known later.
    pub service: String,
}

impl FromStr for Upstream {
    type Err = String;

    /// Checks the form.
    fn from_str(text: &str) -> Result<Self, String> {
        let (port, name) = text.split_once('=').ok_or("use PORT=SERVICE, as 5432=db.shop.east")?;
        let port = port.parse().map_err(|_| "the port is not a number up to 65535")?;
        check_service(name).map_err(|error| error.to_string())?;
        Ok(Self { port, service: name.to_owned() })
    }
}

fn check_service(name: &str) -> Result<(), NameError> {
    let home = ServiceName {
        app: Label::new("a")?,
        namespace: Label::new("b")?,
        network: Label::new("c")?,
    };
    ServiceName::parse(name, &home).map(|_| ())
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.port, self.service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_port_and_a_service() {
        let read: Upstream = "5432=db.shop".parse().unwrap();
        assert_eq!(read, Upstream { port: 5432, service: "db.shop".to_owned() });
        assert_eq!(read.to_string(), "5432=db.shop");
        for (text, words) in [
            ("db", "use PORT=SERVICE"),
            ("70000=db", "not a number up to 65535"),
            ("1=a.b.c.d", "4 parts"),
            ("1=", "empty"),
        ] {
            let error = text.parse::<Upstream>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
