//! The parts as serde's and schemars' types. Both follow from the list of settings: a part is a
//! mapping of keys to values, lists and sections.

use serde::de::{self, Deserialize, Deserializer};
use serde::ser::{SerializeMap, Serializer};

use tollway_config::entries::Entries;

use crate::layers::Flags;
use crate::merge::survey_of;
use crate::part::Part;
use crate::schema;

/// Writes each setting that has a value.
pub(crate) fn serialize<P: Part, S: Serializer>(
    part: &P,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let list = P::settings();
    let mut written = Vec::new();
    part.visit(&mut |key, texts| written.push((key, texts)));
    let mut map = serializer.serialize_map(None)?;
    for (setting, (key, texts)) in list.iter().zip(written) {
        if !texts.is_empty() {
            map.serialize_entry(key, &schema::value_of(setting, &texts))?;
        }
    }
    map.end()
}

/// Reads settings without flags, environment and positions, as in a custom resource.
pub(crate) fn deserialize<'de, P: Part, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<P, D::Error> {
    let entries = Entries::deserialize(deserializer)?.resolved("");
    let survey = survey_of::<P>(&Flags::default(), &entries, P::NAME).map_err(de::Error::custom)?;
    Ok(survey.complete().map_err(de::Error::custom)?.settings)
}

/// Makes a struct of settings a part.
macro_rules! part {
    ($part:ident, $name:literal) => {
        impl crate::part::Part for $part {
            const NAME: &'static str = $name;
        }
        impl serde::Serialize for $part {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                crate::serial::serialize(self, serializer)
            }
        }
        impl<'de> serde::Deserialize<'de> for $part {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                crate::serial::deserialize(deserializer)
            }
        }
        impl schemars::JsonSchema for $part {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                concat!("tollway-", $name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                crate::schema::of::<Self>()
            }
        }
    };
}

pub(crate) use part;
