//! What differs between the settings that run and those of a file that changed.

use super::setting::{Setting, Settings};

/// Settings that differ, each with its new value.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Changes {
    /// What can be changed while the part runs.
    pub(crate) live: Vec<Setting>,
    /// What takes a restart.
    pub(crate) restart: Vec<Setting>,
}

impl Settings {
    /// What is to be done to get from these settings to `wanted`; `live` names those that can be
    /// changed while the part runs.
    pub(crate) fn changes(&self, wanted: &Self, live: &[&str]) -> Changes {
        let differs = |setting: &&Setting| {
            self.get(&setting.key).is_none_or(|running| running.values != setting.values)
        };
        let (live, restart) = wanted
            .list
            .iter()
            .filter(differs)
            .cloned()
            .partition(|setting| live.contains(&setting.key.as_str()));
        Changes { live, restart }
    }

    /// These settings with the live ones of `wanted`, and its places for those that are the same.
    pub(crate) fn with(&self, wanted: &Self, changes: &Changes) -> Self {
        let stays = |key: &str| changes.restart.iter().any(|setting| setting.key == key);
        let list = wanted.list.iter().map(|new| match self.get(&new.key) {
            Some(running) if stays(&new.key) => running.clone(),
            _ => new.clone(),
        });
        Self { part: self.part.clone(), file: self.file.clone(), list: list.collect() }
    }
}

/// The keys of settings, for people.
pub(crate) fn keys(settings: &[Setting]) -> String {
    settings.iter().map(|setting| setting.key.as_str()).collect::<Vec<_>>().join(", ")
}
