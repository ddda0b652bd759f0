//! The target of a call: a service and a path.

use std::str::FromStr;

use hyper::http::uri::PathAndQuery;
use tollway_model::{Label, ServiceName};

/// `APP[.NAMESPACE[.NETWORK]]/PATH`, as it was typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub(super) service: String,
    pub(super) path: PathAndQuery,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains("://") {
            return Err("name a service of the mesh, not a URL: APP/PATH".to_owned());
        }
        let end = text.find(['/', '?']).unwrap_or(text.len());
        let (service, rest) = text.split_at(end);
        let anywhere = Label::new("default").expect("a valid label");
        ServiceName::parse_in(service, &anywhere, &anywhere).map_err(|error| error.to_string())?;
        let path = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
        let path = path.parse().map_err(|_| {
            format!("`{path}` is not a path; write special characters as %XX, a space as %20")
        })?;
        Ok(Self { service: service.to_owned(), path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, service: &str, path: &str) {
        let target: Target = text.parse().unwrap();
        assert_eq!((target.service.as_str(), target.path.as_str()), (service, path));
    }

    #[test]
    fn service_and_path_are_separated() {
        check("files/", "files", "/");
        check("files", "files", "/");
        check("stock.shop.east/items/1?a=b/c", "stock.shop.east", "/items/1?a=b/c");
        check("files?x=1", "files", "/?x=1");
        check("files//two", "files", "//two");
    }

    #[test]
    fn what_is_no_target_is_refused_with_the_form() {
        let refused = |text: &str, part: &str| {
            let reason = text.parse::<Target>().unwrap_err();
            assert!(reason.contains(part), "{text}: {reason}");
        };
        refused("", "app[.namespace[.network]]");
        refused("a..b/", "app[.namespace[.network]]");
        refused("http://files/", "APP/PATH");
        refused("files/a b", "%20");
    }
}
