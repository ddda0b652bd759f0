//! The JSON Schema of a part's settings file, for editors that complete and check it. It is made
//! of the same list that reads the file; what only the whole shows (a setting that needs another)
//! is left to the part itself.

use schemars::Schema;
use serde_json::{Map, Value as Json, json};

use crate::part::{Part, PartEntry};
use crate::setting::{Kind, Setting};

/// What most editors know.
const DIALECT: &str = "http://json-schema.org/draft-07/schema#";

/// The schema of a part's settings.
pub(crate) fn of<P: Part>() -> Schema {
    let properties: Map<String, Json> =
        P::settings().iter().map(|setting| (setting.key.to_owned(), property(setting))).collect();
    schemars::json_schema!({
        "title": format!("Settings of `tollway {}`", P::NAME),
        "description": "Given with --config. A flag wins over the file; a key is a long flag.",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

/// The schema of a part's settings file. A line break ends the text.
#[must_use]
pub fn schema_text(part: &PartEntry) -> String {
    let mut schema = (part.schema)();
    schema.insert("$schema".to_owned(), DIALECT.into());
    format!("{:#}\n", schema.to_value())
}

fn property(setting: &Setting) -> Json {
    let when =
        if setting.is_live { "Changes while the part runs." } else { "Changes with a restart." };
    let mut schema = Map::new();
    schema.insert("description".into(), format!("{}. {when}", setting.help).into());
    let one = one_value(setting);
    if setting.is_pair {
        let list = json!({ "type": "array", "items": one });
        schema.insert("anyOf".into(), json!([(setting.section)(), list]));
    } else if setting.kind == Kind::List {
        schema.insert("type".into(), "array".into());
        schema.insert("items".into(), one);
    } else if let Json::Object(one) = one {
        schema.extend(one);
        let default = setting.default.map(|text| value_of(setting, &[text.to_owned()]));
        schema.extend(default.map(|default| ("default".into(), default)));
    }
    schema.into()
}

/// What one value looks like.
fn one_value(setting: &Setting) -> Json {
    let mut schema = (setting.schema)();
    if let Some((least, most)) = setting.range {
        schema.insert("minimum".to_owned(), least.into());
        if most < u64::MAX {
            schema.insert("maximum".to_owned(), most.into());
        }
    }
    schema.to_value()
}

/// Values as JSON of the kind that the schema has.
pub(crate) fn value_of(setting: &Setting, texts: &[String]) -> Json {
    let schema = (setting.schema)();
    let kind = schema.get("type").and_then(Json::as_str);
    let is_text = !matches!(kind, Some("integer" | "number" | "boolean"));
    let one = |text: &String| {
        let value = if is_text { None } else { serde_json::from_str(text).ok() };
        value.unwrap_or_else(|| text.as_str().into())
    };
    match (setting.kind, texts) {
        (Kind::List, _) => texts.iter().map(one).collect(),
        (_, [text, ..]) => one(text),
        (_, []) => Json::Null,
    }
}
