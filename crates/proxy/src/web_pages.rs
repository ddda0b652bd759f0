//! Requests that a web page has a browser make. A browser on this machine reaches the ports of a sidecar,
//! and runs pages of any site. So where no token is required, a request of a page of another site is
//! refused, and one by a name that the owner of a public domain can lead to this machine.

use tollway_http::RequestHead;
use tollway_model::HostNames;

use crate::as_daprd::matches_origin;
use crate::request_error::RequestError;

const ORIGIN: &[u8] = b"origin";
/// Browsers say here how a page is related to what it asks for; no page can set it.
const SITE: &[u8] = b"sec-fetch-site";
/// The page is of the same origin; or no page has asked.
const NO_OTHER_SITE: [&[u8]; 2] = [b"same-origin", b"none"];
/// Admits every origin.
const ANY: &str = "*";

/// Which web pages may use the API, beside those that come from it. The default: none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WebPages {
    /// Further names by which the API may be called.
    pub host_names: HostNames,
    /// Origins of pages, such as `https://shop.example`; one `*` in it stands for any text, and alone for
    /// every origin.
    pub origins: Vec<String>,
}

impl WebPages {
    /// Whether a request comes from no page, from one that the server itself served, or from one of these
    /// origins.
    ///
    /// # Errors
    /// [`RequestError::CrossSite`].
    pub(crate) fn admit_site(&self, head: &RequestHead) -> Result<(), RequestError> {
        let (mut has_listed_origin, mut has_foreign_origin, mut is_of_site) = (false, false, true);
        for field in head.fields.iter() {
            if field.name == ORIGIN {
                let is_listed = self.lists(field.value);
                has_listed_origin |= is_listed;
                has_foreign_origin |= !is_listed && !is_of(field.value, &head.authority);
            } else if field.name == SITE {
                is_of_site &= NO_OTHER_SITE.contains(&field.value);
            }
        }
        let is_foreign = has_foreign_origin || !(is_of_site || has_listed_origin);
        if is_foreign && !self.origins.iter().any(|known| known == ANY) {
            return Err(RequestError::CrossSite);
        }
        Ok(())
    }

    /// Whether the API may be called by the request's host.
    ///
    /// # Errors
    /// [`RequestError::HostName`].
    pub(crate) fn admit_host(&self, head: &RequestHead) -> Result<(), RequestError> {
        if self.host_names.admit(&head.authority) {
            return Ok(());
        }
        let host = String::from_utf8_lossy(&head.authority).into_owned();
        Err(RequestError::HostName { host })
    }

    fn lists(&self, origin: &[u8]) -> bool {
        self.origins.iter().any(|known| matches_origin(known.as_bytes(), origin))
    }
}

/// Whether an origin is the server that is called. TLS may end in front of it.
fn is_of(origin: &[u8], authority: &[u8]) -> bool {
    let host = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    host.is_some_and(|host| host.eq_ignore_ascii_case(authority))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(pages: &WebPages, host: &str, fields: &[(&str, &str)]) -> bool {
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let head = RequestHead {
            authority: host.into(),
            fields: fields.collect(),
            ..RequestHead::default()
        };
        pages.admit_site(&head).is_ok()
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let none = WebPages::default();
        let check = |fields: &[(&str, &str)]| admitted(&none, "localhost:3500", fields);
        for own in [
            &[][..],
            &[("sec-fetch-site", "none")],
            &[("sec-fetch-site", "same-origin"), ("origin", "http://localhost:3500")],
            &[("origin", "https://LOCALHOST:3500")],
            &[("x-origin", "https://evil.example")],
        ] {
            assert!(check(own), "{own:?}");
        }
        for foreign in [
            &[("sec-fetch-site", "cross-site")][..],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "")],
            &[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")],
            &[("origin", "https://evil.example")],
            &[("origin", "null")],
            &[("origin", "http://localhost:8080")],
            &[("origin", "http://localhost")],
            &[("origin", "localhost:3500")],
            &[("origin", "http://localhost:3500"), ("origin", "https://evil.example")],
            &[("sec-fetch-site", "same-origin"), ("origin", "https://evil.example")],
        ] {
            assert!(!check(foreign), "{foreign:?}");
        }
    }

    #[test]
    fn origins_that_are_listed_are_admitted() {
        let shop =
            WebPages { origins: vec!["https://shop.example".to_owned()], ..Default::default() };
        let any = WebPages { origins: vec!["*".to_owned()], ..Default::default() };
        let of = |origin| [("sec-fetch-site", "cross-site"), ("origin", origin)];
        assert!(admitted(&shop, "a:1", &of("https://shop.example")));
        assert!(!admitted(&shop, "a:1", &of("https://evil.example")));
        // A page can send such a request of any site without its origin.
        assert!(!admitted(&shop, "a:1", &[("sec-fetch-site", "cross-site")]));
        assert!(admitted(&any, "a:1", &of("https://evil.example")));
        assert!(admitted(&any, "a:1", &[("sec-fetch-site", "cross-site")]));
    }
}
