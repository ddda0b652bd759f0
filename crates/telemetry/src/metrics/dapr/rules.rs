//! Rules of a Configuration that replace parts of label values, so that fewer series are counted.

use std::borrow::Cow;
use std::collections::BTreeMap;

use regex::Regex;

use super::super::page::Metric;

/// What a Configuration has replaced in the values of one label of one metric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabelRule {
    /// The metric's name; Dapr's prefix may be left out.
    pub metric: String,
    pub label: String,
    /// What takes the place of what a regular expression of Go finds: `(REPLACEMENT, EXPRESSION)`.
    pub replaced: Vec<(String, String)>,
}

/// Rules by metric and label.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules(BTreeMap<(String, String), Vec<(Regex, String)>>);

impl Rules {
    /// Compiles rules; of two for one label the last counts.
    ///
    /// # Errors
    /// Which expression cannot be read, and why.
    pub(super) fn compile(rules: &[LabelRule]) -> Result<Self, String> {
        let mut compiled = BTreeMap::new();
        for rule in rules {
            let of_label = rule.replaced.iter().map(|(replacement, expression)| {
                let regex = Regex::new(&translated(expression)).map_err(|error| {
                    format!("the rule for {}, {}: {error}", rule.metric, rule.label)
                })?;
                Ok((regex, replacement.clone()))
            });
            let of_label = of_label.collect::<Result<Vec<_>, String>>()?;
            compiled.insert((key(&rule.metric), rule.label.clone()), of_label);
        }
        Ok(Self(compiled))
    }

    /// Whether a label of this metric has rules.
    pub(super) fn concern(&self, metric: &Metric) -> bool {
        !self.0.is_empty() && {
            let name = key(metric.name);
            self.0.keys().any(|(of, _)| *of == name)
        }
    }

    /// Those of one label.
    pub(super) fn of(&self, metric: &Metric, label: &str) -> LabelRules {
        let found = self.0.get(&(key(metric.name), label.to_owned()));
        LabelRules(found.cloned().unwrap_or_default())
    }
}

/// The rules of one label, one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct LabelRules(Vec<(Regex, String)>);

impl LabelRules {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A value after the rules; nothing stays nothing.
    pub(super) fn apply<'a>(&self, value: &'a str) -> Cow<'a, str> {
        if value.is_empty() {
            return Cow::Borrowed(value);
        }
        self.0.iter().fold(Cow::Borrowed(value), |value, (regex, replacement)| {
            match regex.replace_all(&value, replacement.as_str()) {
                Cow::Borrowed(_) => value,
                Cow::Owned(replaced) => Cow::Owned(replaced),
            }
        })
    }
}

/// A metric's name as rules are compared: Prometheus' names have `_` where Dapr's own have `/` and `.`.
fn key(name: &str) -> String {
    name.replacen("dapr_", "", 1).replace(['/', '.'], "_")
}

/// An expression of Go with what differs in Rust's syntax written so that it means the same: `\Q…\E`,
/// `\<` and `\>`, braces that repeat nothing, and set operations of classes.
fn translated(expression: &str) -> String {
    let mut out = String::with_capacity(expression.len());
    let mut rest = expression;
    let mut in_class = false;
    while let Some(first) = rest.chars().next() {
        let after = &rest[first.len_utf8()..];
        if first == '\\' {
            if let Some(quoted) = after.strip_prefix('Q') {
                let (text, more) = quoted.split_once("\\E").unwrap_or((quoted, ""));
                out.push_str(&regex::escape(text));
                rest = more;
                continue;
            }
            let Some(next) = after.chars().next() else {
                out.push('\\');
                break;
            };
            if !matches!(next, '<' | '>') {
                out.push('\\');
            }
            out.push(next);
            rest = &after[next.len_utf8()..];
            // The braces of `\x{…}` and `\p{…}`.
            if matches!(next, 'x' | 'p' | 'P')
                && let Some(end) = rest.strip_prefix('{').and_then(|inner| inner.find('}'))
            {
                out.push_str(&rest[..end + 2]);
                rest = &rest[end + 2..];
            }
            continue;
        }
        match first {
            '[' if !in_class => {
                in_class = true;
                out.push('[');
                rest = after;
                // A bracket that comes first stands for itself.
                for start in ["^]", "]", "^"] {
                    if let Some(more) = rest.strip_prefix(start) {
                        out.push_str(&start.replace(']', "\\]"));
                        rest = more;
                        break;
                    }
                }
                continue;
            }
            '[' if after.starts_with(':') => {
                let end = after.find(":]").map_or(0, |end| end + 2);
                out.push('[');
                out.push_str(&after[..end]);
                rest = &after[end..];
                continue;
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            '[' | '&' | '~' if in_class => {
                out.push('\\');
                out.push(first);
            }
            '{' if !in_class && !is_repetition(after) => out.push_str("\\{"),
            other => out.push(other),
        }
        rest = after;
    }
    out
}

/// Whether what follows a brace makes it a repetition: `2}`, `2,}`, `2,3}`.
fn is_repetition(after: &str) -> bool {
    let Some((inner, _)) = after.split_once('}') else { return false };
    let (least, most) = inner.split_once(',').unwrap_or((inner, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !least.is_empty() && is_number(least) && is_number(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::names;

    fn rule(metric: &str, label: &str, replaced: &[(&str, &str)]) -> LabelRule {
        let own = |(to, from): &(&str, &str)| ((*to).to_owned(), (*from).to_owned());
        let replaced = replaced.iter().map(own).collect();
        LabelRule { metric: metric.to_owned(), label: label.to_owned(), replaced }
    }

    #[test]
    fn a14_a_rule_replaces_what_its_expression_finds() {
        let rules = Rules::compile(&[
            rule("dapr_http_server_request_count", "path", &[("/orders/*", "/orders/[0-9]+")]),
            rule("http/server/latency", "method", &[("$2-$1", "(P)(O)")]),
            rule("dapr_grpc.io_server_completed_rpcs", "grpc_server_method", &[("", ".*")]),
        ])
        .unwrap();
        let of = |metric, label| rules.of(metric, label);
        let path = of(&names::DAPR_HTTP_SERVER_REQUESTS, "path");
        assert_eq!(path.apply("/v1.0/invoke/a/method/orders/77"), "/v1.0/invoke/a/method/orders/*");
        assert_eq!(path.apply("/items/7"), "/items/7");
        assert_eq!(of(&names::DAPR_HTTP_SERVER_LATENCY, "method").apply("POST"), "O-PST");
        let grpc = of(&names::DAPR_GRPC_SERVER_COMPLETED, "grpc_server_method");
        assert_eq!((grpc.apply("/a/B"), grpc.apply("")), ("".into(), "".into()));
        assert!(of(&names::DAPR_HTTP_SERVER_REQUESTS, "method").is_empty());
        assert!(rules.concern(&names::DAPR_HTTP_SERVER_LATENCY));
        assert!(!rules.concern(&names::DAPR_HTTP_CLIENT_LATENCY));
    }

    #[test]
    fn a14_expressions_mean_what_they_mean_in_go() {
        for (expression, value, expected) in [
            (r"\Qa.b\E", "a.b axb", "- axb"),
            (r"\<a\>", "<a> a", "- a"),
            ("{id}", "/{id}", "/-"),
            ("a{2}", "aaa a{2}", "-a a{2}"),
            ("a{2,}b{x}", "aaab{x}", "-"),
            ("[[a]", "[ab", "--b"),
            ("[a&&b]", "a&b", "---"),
            ("[]x]", "]xy", "--y"),
            ("[^]x]", "]xy", "]x-"),
            ("[[:digit:]]+", "a12", "a-"),
            (r"\x{41}\pL", "AB", "-"),
            (r"\p{Greek}", "aα", "a-"),
            (r"(?i)ab\d+", "AB12", "-"),
            (r"[{}]", "{}", "--"),
            (r"\/\-\_", "/-_", "-"),
        ] {
            let rules = Rules::compile(&[rule("m", "l", &[("-", expression)])]);
            let rules = rules.unwrap_or_else(|error| panic!("{expression}: {error}"));
            let of_label = LabelRules(rules.0.into_values().next().unwrap());
            assert_eq!(of_label.apply(value), expected, "{expression}");
        }
    }

    #[test]
    fn a14_an_expression_that_cannot_be_read_is_named() {
        for expression in ["(", "[a", r"\8", "(?=a)", "a\\", "*"] {
            let refused = Rules::compile(&[rule("m", "l", &[("-", expression)])]);
            assert!(refused.unwrap_err().contains("the rule for m, l: "), "{expression}");
        }
    }
}
