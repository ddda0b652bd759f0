//! Which web pages read answers of the API: Cross-Origin Resource Sharing, as daprd has it.

use tollway_http::{Fields, Method, RequestHead, ResponseHead};

const ORIGIN: &[u8] = b"origin";
const ASKED_METHOD: &[u8] = b"access-control-request-method";
const ASKED_FIELDS: &[u8] = b"access-control-request-headers";
const ALLOW_ORIGIN: &[u8] = b"access-control-allow-origin";
const ALLOW_METHODS: &[u8] = b"access-control-allow-methods";
const ALLOW_FIELDS: &[u8] = b"access-control-allow-headers";
const VARY: &[u8] = b"vary";
/// What a page may use.
const METHODS: [&[u8]; 7] = [b"HEAD", b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"];

/// The origins whose pages read answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cors {
    Any,
    /// Those of this list. One `*` in an entry stands for any text.
    List(Vec<String>),
}

impl Cors {
    /// Reads the value of `--allowed-origins`; `None` for an empty one, by which no page reads answers.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        match text {
            "" => None,
            "*" => Some(Self::Any),
            list => Some(Self::List(list.split(',').map(|one| one.trim().to_owned()).collect())),
        }
    }

    /// The answer to a browser that asks what a page may do; `None` for any other request.
    pub(super) fn preflight(&self, head: &RequestHead) -> Option<ResponseHead> {
        let asked = asked_method(head)?;
        let mut answer = ResponseHead::new(200);
        for varies in [ORIGIN, ASKED_METHOD, ASKED_FIELDS] {
            answer.fields.push(VARY, varies);
        }
        let Some(origin) = self.admitted(&head.fields) else { return Some(answer) };
        let method = asked.to_ascii_uppercase();
        if !METHODS.contains(&&*method) {
            return Some(answer);
        }
        answer.fields.push(ALLOW_ORIGIN, origin);
        answer.fields.push(ALLOW_METHODS, &method);
        if let Some(fields) = head.fields.value(ASKED_FIELDS).filter(|fields| !fields.is_empty()) {
            answer.fields.push(ALLOW_FIELDS, fields);
        }
        Some(answer)
    }

    /// Adds to an answer whether the page that has asked may read it.
    pub(super) fn complete(&self, asked: &RequestHead, answer: &mut ResponseHead) {
        answer.fields.push(VARY, ORIGIN);
        if let Some(origin) = self.admitted(&asked.fields) {
            answer.fields.set(ALLOW_ORIGIN, origin);
        }
    }

    /// The origin of a request, if its page may read answers: `*` where any may.
    fn admitted<'f>(&self, fields: &'f Fields) -> Option<&'f [u8]> {
        let origin = fields.value(ORIGIN).filter(|origin| !origin.is_empty())?;
        match self {
            Self::Any => Some(b"*"),
            Self::List(list) => {
                list.iter().any(|known| matches(known.as_bytes(), origin)).then_some(origin)
            }
        }
    }
}

/// Whether a browser asks what a page may do.
pub(super) fn is_preflight(head: &RequestHead) -> bool {
    asked_method(head).is_some()
}

fn asked_method(head: &RequestHead) -> Option<&[u8]> {
    let asked = head.fields.value(ASKED_METHOD).filter(|asked| !asked.is_empty());
    asked.filter(|_| head.method == Method::Options)
}

/// Whether an origin is one of an entry of a list, in which one `*` stands for any text.
pub(crate) fn matches(entry: &[u8], origin: &[u8]) -> bool {
    match entry.iter().position(|byte| *byte == b'*') {
        None => entry.eq_ignore_ascii_case(origin),
        Some(at) => {
            let (before, after) = (&entry[..at], &entry[at + 1..]);
            origin.len() >= before.len() + after.len()
                && origin[..before.len()].eq_ignore_ascii_case(before)
                && origin[origin.len() - after.len()..].eq_ignore_ascii_case(after)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: Method, fields: &[(&str, &str)]) -> RequestHead {
        let mut head = RequestHead { method, ..RequestHead::default() };
        for (name, value) in fields {
            head.fields.push(name.as_bytes(), value.as_bytes());
        }
        head
    }

    fn field<'h>(head: &'h ResponseHead, name: &[u8]) -> &'h str {
        head.fields.value(name).map_or("", |value| std::str::from_utf8(value).unwrap())
    }

    #[test]
    fn a9_a_preflight_is_answered_as_daprd_answers_it() {
        let page = [("origin", "https://example.com"), ("access-control-request-method", "get")];
        let any = Cors::of("*").unwrap();
        let answer = any.preflight(&asked(Method::Options, &page)).unwrap();
        assert_eq!((answer.status, field(&answer, ALLOW_ORIGIN)), (200, "*"));
        assert_eq!(field(&answer, ALLOW_METHODS), "GET");
        assert_eq!(answer.fields.values(VARY).count(), 3);
        let list = Cors::of("https://shop.example, https://example.com").unwrap();
        let with_fields = [&page[..], &[("access-control-request-headers", "dapr-api-token")]];
        let answer = list.preflight(&asked(Method::Options, &with_fields.concat())).unwrap();
        assert_eq!(field(&answer, ALLOW_ORIGIN), "https://example.com");
        assert_eq!(field(&answer, ALLOW_FIELDS), "dapr-api-token");
        // Another site, and a method that no page may use.
        for (origin, method) in
            [("https://foobaz.com", "GET"), ("", "GET"), ("https://example.com", "TRACE")]
        {
            let fields = [("origin", origin), ("access-control-request-method", method)];
            let answer = list.preflight(&asked(Method::Options, &fields)).unwrap();
            assert_eq!(
                (answer.status, field(&answer, ALLOW_ORIGIN)),
                (200, ""),
                "{origin} {method}"
            );
            assert!(!field(&answer, VARY).is_empty());
        }
        assert!(any.preflight(&asked(Method::Options, &page[..1])).is_none());
        assert!(any.preflight(&asked(Method::Get, &page)).is_none());
        assert_eq!(Cors::of(""), None);
    }

    #[test]
    fn a9_an_answer_names_the_origin_that_may_read_it() {
        let list = Cors::of("https://*.example.com").unwrap();
        let completed = |origin: &str| {
            let mut answer = ResponseHead::new(200);
            list.complete(&asked(Method::Get, &[("origin", origin)]), &mut answer);
            assert_eq!(field(&answer, VARY), "origin");
            field(&answer, ALLOW_ORIGIN).to_owned()
        };
        assert_eq!(completed("https://shop.example.com"), "https://shop.example.com");
        assert_eq!(completed("https://SHOP.EXAMPLE.com"), "https://SHOP.EXAMPLE.com");
        assert_eq!(completed("https://example.com"), "");
        assert_eq!(completed("https://evil.com"), "");
        assert_eq!(completed(""), "");
    }
}
