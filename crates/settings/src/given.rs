//! Settings in effect: the struct of a part, and where each value comes from.

use std::path::PathBuf;

use crate::part::Part;
use crate::setting::Setting;

/// Where the value of a setting comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    Flag,
    Environment,
    File {
        /// 0 where the source has no lines.
        line: u64,
    },
    Default,
    /// It has no value.
    Unset,
}

/// A setting with its values, as they are written.
#[derive(Clone, Debug)]
pub struct ValueInEffect {
    pub setting: Setting,
    /// One, unless it is a list; none if it is unset.
    pub values: Vec<String>,
    pub origin: Origin,
}

/// All settings of a part, in the order of its help.
#[derive(Clone, Debug)]
pub struct Listing {
    /// Its command.
    pub part: &'static str,
    pub file: Option<PathBuf>,
    pub list: Vec<ValueInEffect>,
}

/// The settings of a part, and where each comes from.
#[derive(Clone, Debug)]
pub struct Given<P> {
    pub settings: P,
    pub listing: Listing,
}

/// The keys of settings that differ from those that run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// What can be changed while the part runs.
    pub live: Vec<&'static str>,
    /// What takes a restart.
    pub restart: Vec<&'static str>,
}

impl Listing {
    /// A setting by its key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&ValueInEffect> {
        self.list.iter().find(|value| value.setting.key == key)
    }

    /// The values of a setting; none without it.
    #[must_use]
    pub fn values(&self, key: &str) -> &[String] {
        self.get(key).map(|value| value.values.as_slice()).unwrap_or_default()
    }

    /// The first value of a setting; empty without one.
    #[must_use]
    pub fn first(&self, key: &str) -> String {
        self.values(key).first().cloned().unwrap_or_default()
    }
}

impl<P: Part> Given<P> {
    /// What is to be done to get from these settings to `wanted`.
    #[must_use]
    pub fn changes(&self, wanted: &Self) -> Changes {
        let mut keys = Vec::new();
        self.settings.differing(&wanted.settings, &mut keys);
        let is_live = |key: &&str| self.listing.get(key).is_some_and(|value| value.setting.is_live);
        let (live, restart) = keys.into_iter().partition(is_live);
        Changes { live, restart }
    }

    /// Takes over the live changes; of the settings that are the same, it takes over where they
    /// come from.
    pub fn adopt(&mut self, wanted: &Self, changes: &Changes) {
        self.settings.adopt(&wanted.settings, &changes.live);
        for (running, new) in self.listing.list.iter_mut().zip(&wanted.listing.list) {
            if !changes.restart.contains(&new.setting.key) {
                running.clone_from(new);
            }
        }
    }
}
