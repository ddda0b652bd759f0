//! The location of a control plane's store: a directory, or etcd.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

const SCHEME: &str = "etcd://";

/// What `--store` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreLocation {
    Directory(PathBuf),
    Etcd { members: Vec<String>, prefix: String },
}

impl FromStr for StoreLocation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return match text.split_once("://") {
                Some((scheme, _)) => Err(format!(
                    "`{scheme}` is no kind of store; write a directory, or {SCHEME}HOST:PORT/PREFIX"
                )),
                None if text.is_empty() => Err("write a directory".to_owned()),
                None => Ok(Self::Directory(text.into())),
            };
        };
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if prefix.trim_matches('/').is_empty() {
            return Err(format!(
                "name what the keys in etcd begin with: {SCHEME}{members}/tollway/NETWORK"
            ));
        }
        let members: Vec<_> = members.split(',').map(str::to_owned).collect();
        for member in &members {
            let port = member.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
                return Err(format!("`{member}` is no member of etcd; write HOST:PORT"));
            }
        }
        Ok(Self::Etcd { members, prefix: format!("/{}/", prefix.trim_matches('/')) })
    }
}

impl fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Etcd { members, prefix } => {
                write!(f, "{SCHEME}{}{}", members.join(","), prefix.trim_end_matches('/'))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_directories_or_in_etcd() {
        let read = |text: &str| text.parse::<StoreLocation>();
        assert_eq!(read("some/dir"), Ok(StoreLocation::Directory("some/dir".into())));
        let members = vec!["a:2379".to_owned(), "[::1]:2379".to_owned()];
        let prefix = "/tollway/west/".to_owned();
        for text in
            ["etcd://a:2379,[::1]:2379/tollway/west", "etcd://a:2379,[::1]:2379/tollway/west/"]
        {
            let location = StoreLocation::Etcd { members: members.clone(), prefix: prefix.clone() };
            assert_eq!(location.to_string(), "etcd://a:2379,[::1]:2379/tollway/west");
            assert_eq!(read(text), Ok(location));
        }
    }

    #[test]
    fn an_invalid_location_is_refused_with_what_to_write() {
        for (text, words) in [
            ("", "write a directory"),
            ("redis://a:1/x", "`redis` is no kind of store"),
            ("etcd://a:2379", "etcd://a:2379/tollway/NETWORK"),
            ("etcd://a:2379//", "etcd://a:2379/tollway/NETWORK"),
            ("etcd://a/x", "`a` is no member of etcd"),
            ("etcd://a:2379,/x", "`` is no member of etcd"),
            ("etcd://:2379/x", "`:2379` is no member of etcd"),
            ("etcd://a:99999/x", "`a:99999` is no member of etcd"),
        ] {
            let refused = text.parse::<StoreLocation>().unwrap_err();
            assert!(refused.contains(words), "{text}: {refused}");
        }
    }
}
