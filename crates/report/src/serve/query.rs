//! The state of a page is its address: every page can be stored and passed on.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Pairs of one address that are read.
const PAIRS_LIMIT: usize = 500;

/// What needs no escape in an address.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// Names and values after the question mark, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).take(PAIRS_LIMIT);
        Self(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(name, value)| (decoded(name), decoded(value)))
                .collect(),
        )
    }

    pub(crate) fn first(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// The address of `page` in the state of these pairs.
pub(crate) fn address<'a>(
    page: &str,
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> String {
    let mut address = page.to_owned();
    for (index, (name, value)) in pairs.into_iter().enumerate() {
        address.push(if index == 0 { '?' } else { '&' });
        address.push_str(name);
        address.push('=');
        address.extend(utf8_percent_encode(value, ESCAPED));
    }
    address
}

fn decoded(text: &str) -> String {
    let text = text.replace('+', " ");
    percent_decode_str(&text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_back_from_its_address() {
        let hostile = "a b+c&d=e?#%/\"'<é\u{202e}";
        let made = address("overlay", [("file", hostile), ("file", "x"), ("row", "")]);
        assert!(made.is_ascii() && !made.contains(['"', '\'', '<', ' ']), "{made}");
        let query = Query::parse(made.split_once('?').unwrap().1);
        assert_eq!(query.all("file").collect::<Vec<_>>(), [hostile, "x"]);
        assert_eq!(query.first("row"), Some(""));
        assert_eq!(query.first("q"), None);
    }

    #[test]
    fn broken_addresses_are_read_as_far_as_they_go() {
        let query = Query::parse("&&q=%zz%ff+x&flag&=y");
        assert_eq!(query.first("q"), Some("%zz\u{fffd} x"));
        assert_eq!(query.first("flag"), Some(""));
        assert_eq!(Query::parse(&"a=1&".repeat(10_000)).0.len(), PAIRS_LIMIT);
    }
}
