//! The label `path` of metrics about HTTP, as Dapr makes it of a request's path.

use std::borrow::Cow;

use super::patterns::{PathPatterns, normal};
use super::table::OTHER;

/// Most bytes of a label that is made of a path.
pub const PATH_LABEL_BYTES: usize = 255;

/// Paths that are never shortened or left out.
const FIXED: [&str; 4] = ["/dapr/config", "/dapr/metrics", "/dapr/subscribe", "/healthz"];
/// Most parts of a path that are looked at; the last one has what is left.
const PARTS: usize = 6;

/// How labels are made of paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PathLabels {
    /// Every path has its label (`increasedCardinality`).
    pub(super) is_detailed: bool,
    pub(super) patterns: Option<PathPatterns>,
}

impl PathLabels {
    /// Whether requests of the app have a label.
    pub(super) fn has_label(&self) -> bool {
        self.is_detailed || self.patterns.is_some()
    }

    /// The label for a request of the app to its sidecar.
    pub(super) fn of_request(&self, target: &str) -> String {
        if !self.has_label() {
            return String::new();
        }
        let path = path_of(target);
        let path = normal(&path);
        bounded(match self.patterns {
            Some(_) => self.label(&path),
            None => short_form(&path),
        })
    }

    /// The label for a request of the sidecar to its app.
    pub(super) fn of_app<'a>(&'a self, target: &'a str) -> Cow<'a, str> {
        let is_plain = !target.contains(['%', '?']) && normal(target) == target;
        if is_plain {
            return self.of_app_path(target);
        }
        let path = path_of(target);
        let path = normal(&path);
        Cow::Owned(self.of_app_path(&path).into_owned())
    }

    fn of_app_path<'a>(&'a self, path: &'a str) -> Cow<'a, str> {
        // Dapr has no path for the root.
        if path == "/" {
            return Cow::Borrowed("");
        }
        let label = match &self.patterns {
            Some(patterns) if self.is_detailed => patterns.find(path),
            _ => self.label(path),
        };
        if !self.has_label() {
            return label;
        }
        match label {
            Cow::Borrowed(label) => bounded_cow(short_form(label)),
            Cow::Owned(label) => Cow::Owned(bounded(short_form(&label))),
        }
    }

    /// The label of a path in its normal form.
    fn label<'a>(&'a self, path: &'a str) -> Cow<'a, str> {
        if FIXED.contains(&path) {
            return Cow::Borrowed(path);
        }
        if let Some(patterns) = &self.patterns {
            let found = patterns.find(path);
            if !found.is_empty() && (!self.is_detailed || found != path) {
                return found;
            }
            let short = short_form(path);
            if short != path {
                let short = normal(&short);
                let found = patterns.find(&short);
                if found != "/" && !found.is_empty() {
                    return Cow::Owned(found.into_owned());
                }
            }
        }
        if self.is_detailed { short_form(path) } else { Cow::Borrowed("") }
    }
}

/// The path of a target, without its query and decoded.
fn path_of(target: &str) -> Cow<'_, str> {
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    decoded(path)
}

/// Undoes percent-encoding, unless it is malformed.
pub(super) fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Cow::Borrowed(text) };
        // Both are below 16.
        out.push((high * 16 + low) as u8);
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

/// A path in its normal form without the names that make it one of many: keys of state, ids of actors.
fn short_form(path: &str) -> Cow<'_, str> {
    let mut parts = [""; PARTS];
    let mut count = 0;
    for (at, part) in path.strip_prefix('/').unwrap_or(path).splitn(PARTS, '/').enumerate() {
        parts[at] = part;
        count = at + 1;
    }
    if count < 3 {
        return Cow::Borrowed(path);
    }
    if parts[0] == "actors" {
        parts[2] = "{id}";
        return Cow::Owned(parts[..count].join("/"));
    }
    let from_root = |parts: &[&str]| Cow::Owned(format!("/{}", parts.join("/")));
    match (parts[1], count) {
        ("state" | "secrets", 3) => Cow::Borrowed(path),
        ("state" | "secrets", _) => from_root(&parts[..3]),
        ("actors", 5..) => {
            parts[3] = "{id}";
            from_root(&parts[..5])
        }
        ("workflows", 5) if parts[4].starts_with("start") => {
            from_root(&[parts[0], parts[1], parts[2], parts[3], "start"])
        }
        ("workflows", 4..) => {
            parts[3] = "{instanceId}";
            let is_event = count == PARTS && parts[4] == "raiseEvent" && !parts[5].is_empty();
            parts[5] = "{eventName}";
            from_root(&parts[..if is_event { PARTS } else { count.min(5) }])
        }
        _ => Cow::Borrowed(path),
    }
}

fn bounded(label: Cow<'_, str>) -> String {
    bounded_cow(label).into_owned()
}

fn bounded_cow(label: Cow<'_, str>) -> Cow<'_, str> {
    if label.len() > PATH_LABEL_BYTES { Cow::Borrowed(OTHER) } else { label }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(is_detailed: bool, patterns: &[&str]) -> PathLabels {
        let list: Vec<String> = patterns.iter().map(|text| (*text).to_owned()).collect();
        let patterns = PathPatterns::read(&list, is_detailed).unwrap();
        PathLabels { is_detailed, patterns: (!list.is_empty()).then_some(patterns) }
    }

    #[test]
    fn a14_a_path_in_detail_lacks_keys_and_ids() {
        let labels = labels(true, &[]);
        for (target, expected) in [
            ("/v1.0/invoke/shop/method/orders/7?a=b", "/v1.0/invoke/shop/method/orders/7"),
            ("//v1.0//invoke/shop/method/a%20b", "/v1.0/invoke/shop/method/a b"),
            ("/v1.0/state/store/key/more", "/v1.0/state/store"),
            ("/v1.0/state/store", "/v1.0/state/store"),
            ("/v1.0/actors/Cart/7/method/add", "/v1.0/actors/Cart/{id}/method"),
            ("/v1.0/actors/Cart/7", "/v1.0/actors/Cart/7"),
            ("/v1.0/healthz", "/v1.0/healthz"),
            ("/v1.0-alpha1/workflows/dapr/shop/start?x", "/v1.0-alpha1/workflows/dapr/shop/start"),
            ("/v1.0/workflows/dapr/7/pause", "/v1.0/workflows/dapr/{instanceId}/pause"),
            ("/v1.0/workflows/dapr/7", "/v1.0/workflows/dapr/{instanceId}"),
            (
                "/v1.0/workflows/dapr/7/raiseEvent/paid",
                "/v1.0/workflows/dapr/{instanceId}/raiseEvent/{eventName}",
            ),
            ("/%zz", "/%zz"),
            ("", "/"),
        ] {
            assert_eq!(labels.of_request(target), expected, "{target}");
        }
        for (target, expected) in [
            ("/hi", "/hi"),
            ("/actors/Cart/7/method/add", "actors/Cart/{id}/method/add"),
            ("/shop/state/store/7", "/shop/state/store"),
            ("/dapr/config", "/dapr/config"),
            ("/?a=b", ""),
        ] {
            assert_eq!(labels.of_app(target), expected, "{target}");
        }
    }

    #[test]
    fn a14_without_detail_and_patterns_a_path_has_no_label() {
        let labels = labels(false, &[]);
        assert_eq!(labels.of_request("/v1.0/state/store/key"), "");
        assert_eq!(labels.of_request("/healthz"), "");
        assert_eq!(labels.of_app("/orders/7"), "");
        assert_eq!(labels.of_app("/dapr/config"), "/dapr/config");
    }

    #[test]
    fn a14_patterns_come_before_the_short_form() {
        let list = ["/orders/{id}", "/v1.0/state/store/{key}", "/v1.0/state/other"];
        for (is_detailed, unmatched) in [(false, ""), (true, "/v1.0/invoke/shop/method/items/7")] {
            let labels = labels(is_detailed, &list);
            for (target, expected) in [
                ("/v1.0/invoke/shop/method/orders/7", "/v1.0/invoke/{app_id}/method/orders/{id}"),
                ("/v1.0/state/store/7", "/v1.0/state/store/{key}"),
                ("/v1.0/invoke/shop/method/items/7", unmatched),
            ] {
                assert_eq!(labels.of_request(target), expected, "{target}");
            }
            assert_eq!(labels.of_app("/orders/7?x=1"), "/orders/{id}");
        }
        assert_eq!(labels(false, &list).of_request("/v1.0/state/other/7"), "/v1.0/state/other");
    }

    #[test]
    fn a14_a_path_of_any_length_has_a_short_label() {
        let long = format!("/{}", "a".repeat(PATH_LABEL_BYTES));
        for labels in [labels(true, &[]), labels(true, &["/b"])] {
            assert_eq!(labels.of_request(&long), OTHER);
            assert_eq!(labels.of_app(&long), OTHER);
            assert_eq!(labels.of_request(&long[..PATH_LABEL_BYTES]).len(), PATH_LABEL_BYTES);
        }
    }

    #[test]
    fn a14_labels_are_those_of_daprs_own_functions() {
        let mut count = 0;
        for line in include_str!("labels.tsv").lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            let is_detailed = fields[0] == "true";
            let list: Vec<String> = fields[1].split(' ').map(str::to_owned).collect();
            count += 1;
            let read = PathPatterns::read(&list, is_detailed);
            if fields[2] == "REFUSED" {
                assert!(read.is_err(), "{line}");
                continue;
            }
            let labels = PathLabels { is_detailed, patterns: Some(read.expect(line)) };
            let found = [labels.of_request(fields[3]), labels.of_app(fields[3]).into_owned()];
            let expected = [4, 5].map(|at| fields.get(at).copied().unwrap_or_default());
            assert_eq!(found, expected, "{line}");
        }
        assert_eq!(count, 200);
    }
}
