//! One limit of a data plane by its name in `docs/limits.md`, such as `head_ms=5000`.

use std::fmt;
use std::str::FromStr;

use schemars::{Schema, json_schema};
use serde_json::{Map, Value as Json, json};
use tollway_config::suggest::nearest;
use tollway_proxy::{Limits, NAMED_LIMITS, NamedLimit, Timeouts};

use crate::value::Value;

/// A limit and the value it is to have, which is within its range.
#[derive(Clone)]
pub struct LimitValue {
    limit: &'static NamedLimit,
    value: u64,
}

impl LimitValue {
    /// Sets it.
    pub fn apply(&self, limits: &mut Limits, timeouts: &mut Timeouts) {
        self.limit.set(limits, timeouts, self.value);
    }
}

impl FromStr for LimitValue {
    type Err = String;

    /// Reads `NAME=VALUE`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) =
            text.split_once('=').ok_or("write NAME=VALUE, such as `head_ms=5000`")?;
        let limit = NamedLimit::find(name).ok_or_else(|| unknown(name))?;
        let (least, most) = limit.range;
        let value = value.parse().ok().filter(|value| (least..=most).contains(value));
        let value = value.ok_or_else(|| format!("`{name}` is a number from {least} to {most}"))?;
        Ok(Self { limit, value })
    }
}

impl fmt::Display for LimitValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.limit.name, self.value)
    }
}

impl fmt::Debug for LimitValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for LimitValue {
    fn eq(&self, other: &Self) -> bool {
        (self.limit.name, self.value) == (other.limit.name, other.value)
    }
}

impl Value for LimitValue {
    const IS_PAIR: bool = true;
    const EXAMPLE: &'static str = "head_ms=5000";

    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }

    fn text(&self) -> String {
        self.to_string()
    }

    fn schema() -> Schema {
        let names: Vec<&str> = NAMED_LIMITS.iter().map(|limit| limit.name).collect();
        json_schema!({ "type": "string", "pattern": format!("^({})=[0-9]+$", names.join("|")) })
    }

    /// The limits by name.
    fn section_schema() -> Schema {
        let properties: Map<String, Json> = NAMED_LIMITS
            .iter()
            .map(|limit| {
                let (least, most) = limit.range;
                let default = limit.default_value();
                let number = json!({
                    "type": "integer", "minimum": least, "maximum": most, "default": default
                });
                (limit.name.to_owned(), number)
            })
            .collect();
        json_schema!({ "type": "object", "additionalProperties": false, "properties": properties })
    }
}

fn unknown(name: &str) -> String {
    let names: Vec<&str> = NAMED_LIMITS.iter().map(|limit| limit.name).collect();
    match nearest(name, &names) {
        Some(meant) => format!("no limit is called `{name}`; did you mean `{meant}`?"),
        None => format!("no limit is called `{name}`; use one of {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_set_by_its_name_and_within_its_range() {
        let (mut limits, mut timeouts) = (Limits::default(), Timeouts::default());
        for text in ["app_connections=7", "head_ms=1500"] {
            LimitValue::read(text).unwrap().apply(&mut limits, &mut timeouts);
        }
        assert_eq!((limits.app_connections, timeouts.head.as_millis()), (7, 1500));
    }

    #[test]
    fn what_is_no_limit_is_refused_with_what_is() {
        let check = |text: &str, words: &str| {
            let error = LimitValue::read(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        };
        check("head_ms", "NAME=VALUE");
        check("hed_ms=1", "did you mean `head_ms`?");
        check("colour=1", "use one of waiting_per_service, services");
        check("head_ms=0", "a number from 1 to 86400000");
        check("head_ms=5s", "a number from");
        check("fields=-1", "a number from 16");
    }
}
