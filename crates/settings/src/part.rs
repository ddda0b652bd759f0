//! What a struct of settings is to this crate, and the parts that have one.

use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::layers::Layers;
use crate::parts::{Control, Front, Gateway, Run, Sidecar};
use crate::schema;
use crate::setting::Setting;

/// A struct of settings; `#[derive(Settings)]` writes it.
pub trait Settings: Sized {
    /// Adds its settings to the list, in the order of its fields.
    fn list(list: &mut Vec<Setting>);

    /// Takes each field from what is given; `None` where one is missing or wrong.
    fn read(layers: &mut Layers<'_>) -> Option<Self>;

    /// Calls `visit` with each key and its values, as they are written.
    fn visit(&self, visit: &mut dyn FnMut(&'static str, Vec<String>));

    /// Adds the keys of fields that are not as those of `other`.
    fn differing(&self, other: &Self, keys: &mut Vec<&'static str>);

    /// Takes over the fields of `new` with these keys.
    fn adopt(&mut self, new: &Self, keys: &[&'static str]);
}

/// The settings of a whole part.
pub trait Part: Settings + Clone + Serialize + DeserializeOwned + JsonSchema {
    /// Its command.
    const NAME: &'static str;

    /// All settings.
    #[must_use]
    fn settings() -> Vec<Setting> {
        let mut list = Vec::new();
        Self::list(&mut list);
        list
    }
}

/// A part, for what is done with each of them.
pub struct PartEntry {
    /// Its command.
    pub name: &'static str,
    pub settings: fn() -> Vec<Setting>,
    pub schema: fn() -> Schema,
}

impl PartEntry {
    const fn of<P: Part>() -> Self {
        Self { name: P::NAME, settings: P::settings, schema: schema::of::<P> }
    }
}

/// Every part, in the order of the program's help.
pub const PARTS: &[PartEntry] = &[
    PartEntry::of::<Run>(),
    PartEntry::of::<Control>(),
    PartEntry::of::<Sidecar>(),
    PartEntry::of::<Gateway>(),
    PartEntry::of::<Front>(),
];
