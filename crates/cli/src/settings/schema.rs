//! The JSON Schema of a part's settings file, for editors that complete and check it. It is made
//! of the same options that read the file; what only a whole command line shows (an option that
//! needs another) is left to the part itself.

use std::any::TypeId;
use std::net::SocketAddr;

use clap::{Arg, ArgAction, Command};
use serde_json::{Map, Value, json};
use tollway_proxy::NAMED_LIMITS;
use tollway_routing::SamplingRatio;

use super::limit_value::LimitSetting;
use super::merge;
use tollway_config::AppScheme;

/// What most editors know.
const DIALECT: &str = "http://json-schema.org/draft-07/schema#";
/// `IP:PORT`, an IPv6 address in brackets.
const ADDRESS: &str = r"^(\[[0-9a-fA-F:.]+\]|[0-9.]+):[0-9]{1,5}$";

/// The schema of the settings of `command`, which must be built. `live` has the keys of those that
/// change while the part runs. A line break ends the text.
pub(super) fn of(command: &Command, live: &[&str]) -> String {
    let part = command.get_name();
    let settings = command.get_arguments().filter(|arg| merge::is_setting(arg));
    let properties: Map<String, Value> = settings
        .map(|arg| {
            let key = merge::key_of(arg);
            let schema = property(arg, live.contains(&key.as_str()));
            (key, schema)
        })
        .collect();
    let schema = json!({
        "$schema": DIALECT,
        "title": format!("Settings of `tollway {part}`"),
        "description": "Given with --config. A flag wins over the file; a key is a long flag.",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    });
    format!("{schema:#}\n")
}

fn property(arg: &Arg, is_live: bool) -> Value {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let when = if is_live { "Changes while the part runs." } else { "Changes with a restart." };
    let mut schema = Map::new();
    schema.insert("description".into(), format!("{}. {when}", help.trim_end_matches('.')).into());
    let one = value(arg);
    let defaults = arg.get_default_values().iter().map(|text| text.to_string_lossy());
    let default = defaults.map(|text| typed(&one, &text)).next();
    if arg.get_value_parser().type_id() == TypeId::of::<LimitSetting>() {
        schema.insert("anyOf".into(), limits());
    } else if merge::is_list(arg) {
        schema.extend([("type".into(), "array".into()), ("items".into(), one.into())]);
    } else {
        schema.extend(one);
        schema.extend(default.map(|default| ("default".into(), default)));
    }
    schema.into()
}

/// A section with the limits by name, or a list of `NAME=VALUE`.
fn limits() -> Value {
    let properties: Map<String, Value> = NAMED_LIMITS
        .iter()
        .map(|limit| {
            let (least, most) = limit.range;
            let default = limit.default_value();
            let number =
                json!({ "type": "integer", "minimum": least, "maximum": most, "default": default });
            (limit.name.to_owned(), number)
        })
        .collect();
    let names: Vec<&str> = NAMED_LIMITS.iter().map(|limit| limit.name).collect();
    let item = json!({ "type": "string", "pattern": format!("^({})=[0-9]+$", names.join("|")) });
    json!([
        { "type": "object", "additionalProperties": false, "properties": properties },
        { "type": "array", "items": item },
    ])
}

/// What one value looks like.
fn value(arg: &Arg) -> Map<String, Value> {
    let kind = arg.get_value_parser().type_id();
    let is = |of: TypeId| kind == of;
    let names: Vec<String> =
        arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let schema = if matches!(arg.get_action(), ArgAction::SetTrue) {
        json!({ "type": "boolean" })
    } else if is(TypeId::of::<AppScheme>()) {
        json!({ "enum": AppScheme::WORDS })
    } else if !names.is_empty() {
        json!({ "enum": names })
    } else if is(TypeId::of::<u16>()) {
        json!({ "type": "integer", "minimum": 0, "maximum": u16::MAX })
    } else if is(TypeId::of::<u64>()) || is(TypeId::of::<usize>()) || is(TypeId::of::<u32>()) {
        json!({ "type": "integer", "minimum": 0 })
    } else if is(TypeId::of::<SamplingRatio>()) {
        json!({ "type": "number", "minimum": 0, "maximum": 1 })
    } else if is(TypeId::of::<SocketAddr>()) {
        json!({ "type": "string", "pattern": ADDRESS })
    } else {
        // A plain value is taken as it is written, also where YAML sees a number in it.
        json!({ "type": ["string", "number", "boolean"] })
    };
    let Value::Object(schema) = schema else { return Map::new() };
    schema
}

/// A default as a value of that kind.
fn typed(schema: &Map<String, Value>, text: &str) -> Value {
    let kind = schema.get("type").and_then(Value::as_str);
    let is_text = !matches!(kind, Some("integer" | "number" | "boolean"));
    let value = if is_text { None } else { serde_json::from_str(text).ok() };
    value.unwrap_or_else(|| text.into())
}
