//! Names of objects of Kubernetes clusters.

use std::fmt;
use std::str::FromStr;

/// The name of an object in a namespace of a cluster, such as a service account. Its text form is
/// `NAMESPACE/NAME`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KubeName {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for KubeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for KubeName {
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
    fn a_name_has_its_namespace_before_it() {
        let name: KubeName = "tollway/gateway".parse().unwrap();
        assert_eq!((name.namespace.as_str(), name.name.as_str()), ("tollway", "gateway"));
        assert_eq!(name.to_string(), "tollway/gateway");
        for text in ["", "gateway", "/gateway", "tollway/", "a/b/c"] {
            assert!(text.parse::<KubeName>().unwrap_err().contains("NAMESPACE/NAME"), "{text}");
        }
    }
}
