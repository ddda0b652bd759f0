//! Service accounts of Kubernetes clusters.

use std::fmt;
use std::str::FromStr;

/// A service account of a cluster. Its text form is `NAMESPACE/NAME`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceAccount {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for ServiceAccount {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_name = |name: &str| !name.is_empty() && !name.contains('/');
        match text.split_once('/') {
            Some((namespace, name)) if is_name(namespace) && is_name(name) => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            Some(_) | None => Err("use NAMESPACE/NAME, as tollway/gateway"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_account_is_a_namespace_and_a_name() {
        let account: ServiceAccount = "tollway/gateway".parse().unwrap();
        assert_eq!((account.namespace.as_str(), account.name.as_str()), ("tollway", "gateway"));
        assert_eq!(account.to_string(), "tollway/gateway");
        for text in ["", "gateway", "/gateway", "tollway/", "a/b/c"] {
            assert!(
                text.parse::<ServiceAccount>().unwrap_err().contains("NAMESPACE/NAME"),
                "{text}"
            );
        }
    }
}
