//! Placeholders: `{{name}}` in the texts of an adapter file.
//!
//! A text of several lines whose placeholder begins a line, or an entry of a YAML list, is
//! indented like it, so that blocks can be put together.

use std::collections::BTreeMap;

const OPEN: &str = "{{";
const CLOSE: &str = "}}";
/// How deep texts may name other texts.
const DEPTH_LIMIT: u32 = 8;
/// Largest text that comes of filling one in, bytes.
const FILLED_BYTES_LIMIT: usize = 256 * 1024;

/// The values of placeholders.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meanings<'a> {
    pub(super) values: &'a BTreeMap<String, String>,
    /// Texts that hold placeholders themselves.
    pub(super) texts: &'a BTreeMap<String, String>,
}

/// Why a text cannot be filled in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("unknown placeholder `{name}`")]
    Unknown { name: String },
    #[error("`{{{{` is never closed by `}}}}`")]
    Open,
    #[error("`texts` name each other more than {DEPTH_LIMIT} deep at `{name}`")]
    TooDeep { name: String },
    #[error("the filled-in text has more than {FILLED_BYTES_LIMIT} bytes")]
    TooLong,
}

impl Meanings<'_> {
    /// Replaces all placeholders by their values.
    pub(super) fn fill(&self, text: &str) -> Result<String, TemplateError> {
        self.fill_at(text, 0)
    }

    fn fill_at(&self, text: &str, depth: u32) -> Result<String, TemplateError> {
        let (mut filled, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once(OPEN) {
            let (name, after) = after.split_once(CLOSE).ok_or(TemplateError::Open)?;
            filled.push_str(before);
            let meaning = self.meaning(name.trim(), depth)?;
            let line = filled.rsplit('\n').next().unwrap_or_default();
            if line.chars().all(|c| matches!(c, ' ' | '-')) {
                let indented = format!("\n{}", line.replace('-', " "));
                filled.push_str(&meaning.trim_end().replace('\n', &indented));
            } else {
                filled.push_str(meaning.trim_end());
            }
            if filled.len() > FILLED_BYTES_LIMIT {
                return Err(TemplateError::TooLong);
            }
            rest = after;
        }
        filled.push_str(rest);
        Ok(filled)
    }

    fn meaning(&self, name: &str, depth: u32) -> Result<String, TemplateError> {
        if let Some(value) = self.values.get(name) {
            return Ok(value.clone());
        }
        let text = self.texts.get(name);
        let text = text.ok_or_else(|| TemplateError::Unknown { name: name.to_owned() })?;
        if depth == DEPTH_LIMIT {
            return Err(TemplateError::TooDeep { name: name.to_owned() });
        }
        self.fill_at(text, depth + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(text: &str) -> Result<String, TemplateError> {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let values = map(&[("listen", "127.0.0.1:80")]);
        let texts = map(&[
            ("head", "bind {{listen}}\nmode http\n"),
            ("loop", "{{loop}}"),
            ("twice", "{{head}}{{head}}"),
        ]);
        Meanings { values: &values, texts: &texts }.fill(text)
    }

    #[test]
    fn placeholders_are_replaced_and_blocks_keep_their_indentation() {
        let check = |text: &str, expected: &str| assert_eq!(fill(text).unwrap(), expected);
        check("none { at } all", "none { at } all");
        check("a {{listen}} b {{ listen }}", "a 127.0.0.1:80 b 127.0.0.1:80");
        check("x:\n  {{head}}\ny", "x:\n  bind 127.0.0.1:80\n  mode http\ny");
        check("- {{head}}", "- bind 127.0.0.1:80\n  mode http");
        check("x {{head}}", "x bind 127.0.0.1:80\nmode http");
    }

    #[test]
    fn a_template_that_cannot_be_filled_in_names_the_mistake() {
        let check = |text: &str, expected: &str| {
            assert_eq!(fill(text).unwrap_err().to_string(), expected);
        };
        check("{{liste}}", "unknown placeholder `liste`");
        check("a {{listen", "`{{` is never closed by `}}`");
        check("{{loop}}", "`texts` name each other more than 8 deep at `loop`");
    }

    #[test]
    fn growth_is_limited() {
        let values = BTreeMap::new();
        let mut texts: BTreeMap<String, String> = BTreeMap::new();
        texts.insert("t0".into(), "x".repeat(1024));
        for level in 1..8 {
            texts.insert(format!("t{level}"), format!("{{{{t{}}}}}", level - 1).repeat(64));
        }
        let filled = Meanings { values: &values, texts: &texts }.fill("{{t7}}");
        assert_eq!(filled, Err(TemplateError::TooLong));
    }
}
