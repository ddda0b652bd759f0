//! What a call by message asks for, as the target of a request between two sidecars and back.

use hyper::Uri;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tollway_routing::{
    MethodError, clean_method, method_of_path, path_of_method, query_on_the_wire,
};

/// Between two sidecars: method and query string as they were, both encoded and with `?` between them,
/// where the target of the request does not give them. It counts only if it has that very target, by
/// which policies judge the call.
pub(crate) const EXACT_METHOD: HeaderName = HeaderName::from_static("dapr-invoke-method");

/// The method of an app, clean, and the query string.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Called {
    pub(crate) method: String,
    pub(crate) query: String,
}

impl Called {
    /// Path and query of the request.
    pub(crate) fn target(&self) -> String {
        let mut target = path_of_method(&self.method);
        if !self.query.is_empty() {
            target.push('?');
            target.push_str(&query_on_the_wire(&self.query));
        }
        target
    }

    /// The value of [`EXACT_METHOD`], if the request needs the field.
    pub(crate) fn exact(&self) -> Option<HeaderValue> {
        let target = self.target();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        if Self::of_target(path, query).as_ref() == Ok(self) {
            return None;
        }
        let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
        let value = format!("{}?{}", encoded(&self.method), encoded(&self.query));
        HeaderValue::try_from(value).ok()
    }

    /// What a request calls.
    ///
    /// # Errors
    /// [`MethodError`]: its path is no method.
    pub(crate) fn of(uri: &Uri, fields: &HeaderMap) -> Result<Self, MethodError> {
        let (path, query) = (uri.path(), uri.query().unwrap_or_default());
        let exact = fields.get(EXACT_METHOD).and_then(|value| value.to_str().ok());
        let exact = exact.and_then(Self::of_exact).filter(|exact| {
            path_of_method(&exact.method) == path && query_on_the_wire(&exact.query) == query
        });
        exact.map_or_else(|| Self::of_target(path, query), Ok)
    }

    fn of_exact(value: &str) -> Option<Self> {
        let (method, query) = value.split_once('?')?;
        let decoded = |text| Some(percent_decode_str(text).decode_utf8().ok()?.into_owned());
        let (method, query) = (decoded(method)?, decoded(query)?);
        let is_clean = clean_method(&method).is_ok_and(|clean| clean == method);
        is_clean.then_some(Self { method, query })
    }

    fn of_target(path: &str, query: &str) -> Result<Self, MethodError> {
        Ok(Self { method: method_of_path(path)?, query: query.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(method: &str, query: &str) -> (String, HeaderMap) {
        let called = Called { method: method.to_owned(), query: query.to_owned() };
        let mut fields = HeaderMap::new();
        if let Some(exact) = called.exact() {
            fields.insert(EXACT_METHOD, exact);
        }
        (called.target(), fields)
    }

    #[test]
    fn a6_methods_and_queries_arrive_as_they_were_sent() {
        for (method, query) in [
            ("x", "a=b c"),
            ("x", "a=ŀʭ&é=1"),
            ("x", "a=#b"),
            ("x", r"a=\b"),
            ("x", "a=\"b\"<>"),
            ("x", "a=\nb"),
            ("x", "a=%zz"),
            ("x", "a={\"k\":1}"),
            ("x", "a=b%20c d"),
            ("größe", ""),
            ("say hello", ""),
            ("a\"b", ""),
            (r"a\b", "x=1"),
            ("a{b}|c^`", ""),
            ("%25x", ""),
            ("a%zz", ""),
            ("a%20b", "q"),
            ("/a", ""),
            ("", ""),
        ] {
            let (target, fields) = sent(method, query);
            let called = Called::of(&target.parse().unwrap(), &fields).unwrap();
            assert_eq!((&*called.method, &*called.query), (method, query), "{target} {fields:?}");
        }
        assert!(sent("größe/say hello", "a=b").1.is_empty(), "the path is enough");
    }

    #[test]
    fn a6_a_method_by_which_policies_did_not_judge_does_not_count() {
        let (_, fields) = sent("admin%2Fx", "");
        assert!(!fields.is_empty());
        let called = |target: &str| Called::of(&target.parse().unwrap(), &fields).unwrap().method;
        assert_eq!(called("/public"), "public");
        assert_eq!(called("/admin/x"), "admin/x");
        assert_eq!(called("/admin%2Fx?"), "admin%2Fx");
        assert_eq!(called("/admin%2Fx?y"), "admin/x");
        let unclean =
            HeaderMap::from_iter([(EXACT_METHOD, HeaderValue::from_static("a%2F%2E%2E%2Fadmin?"))]);
        let called = Called::of(&Uri::from_static("/a/../admin"), &unclean).unwrap();
        assert_eq!(called.method, "admin");
    }

    #[test]
    fn a6_a_path_without_a_method_is_refused() {
        for path in ["/a%23b", "/a%3Fb", "/a%0Db"] {
            let uri: Uri = path.parse().unwrap();
            assert!(Called::of(&uri, &HeaderMap::new()).is_err(), "{path}");
        }
    }
}
