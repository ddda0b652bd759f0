//! Where a data plane runs: the zone and the region that its operator states, and how near that is to
//! another one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest name of a zone or a region, in bytes.
pub const AREA_NAME_BYTES: usize = 63;

/// Why the name of a zone or a region was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AreaNameError {
    #[error("the name of a zone or a region is empty; leave it out where there is none")]
    Empty,
    #[error(
        "`{name}` is {length} characters long; the name of a zone or a region has at most {AREA_NAME_BYTES}"
    )]
    TooLong { name: String, length: usize },
    #[error(
        "`{name}` holds the character {character:?}; the name of a zone or a region has letters, digits, `-`, `_` and `.`"
    )]
    Character { name: String, character: char },
}

/// The name of a zone or a region: 1 to [`AREA_NAME_BYTES`] letters, digits, `-`, `_` and `.`. Names are
/// the same if they are spelt the same.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AreaName(Arc<str>);

impl AreaName {
    /// Checks length and characters.
    ///
    /// # Errors
    /// [`AreaNameError`] for the first rule that is broken.
    pub fn new(text: &str) -> Result<Self, AreaNameError> {
        if text.is_empty() {
            return Err(AreaNameError::Empty);
        }
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if let Some(character) = text.chars().find(|c| !is_allowed(*c)) {
            let shown: String = text.chars().take(AREA_NAME_BYTES).collect();
            return Err(AreaNameError::Character { name: shown, character });
        }
        let length = text.len();
        if length > AREA_NAME_BYTES {
            let shown: String = text.chars().take(AREA_NAME_BYTES).collect();
            return Err(AreaNameError::TooLong { name: format!("{shown}…"), length });
        }
        Ok(Self(text.into()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for AreaName {
    type Err = AreaNameError;
    fn from_str(text: &str) -> Result<Self, AreaNameError> {
        Self::new(text)
    }
}

impl fmt::Display for AreaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AreaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Where a data plane runs, as far as its operator states it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Locality {
    pub region: Option<AreaName>,
    pub zone: Option<AreaName>,
}

impl Locality {
    #[must_use]
    pub fn is_stated(&self) -> bool {
        self.region.is_some() || self.zone.is_some()
    }

    /// How near another data plane of the same network is. Zones of the same name in two regions are two
    /// zones; where one side states no region, the name of the zone decides.
    #[must_use]
    pub fn level_of(&self, other: &Self) -> Level {
        let is_same = |one: &Option<AreaName>, other: &Option<AreaName>| {
            one.as_ref().zip(other.as_ref()).map(|(one, other)| one == other)
        };
        let region = is_same(&self.region, &other.region);
        match (region, is_same(&self.zone, &other.zone)) {
            (Some(false), _) => Level::Network,
            (_, Some(true)) => Level::Zone,
            (Some(true), _) => Level::Region,
            (None, _) => Level::Network,
        }
    }
}

/// How near a replica is to its caller, the nearest first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// It is in the caller's zone.
    Zone,
    /// It is in the caller's region, and not in its zone.
    Region,
    /// It is in the caller's network, and no nearer as far as is known.
    Network,
}

impl Level {
    /// The nearest first.
    pub const ALL: [Self; 3] = [Self::Zone, Self::Region, Self::Network];

    /// Its place in [`Level::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Zone => 0,
            Self::Region => 1,
            Self::Network => 2,
        }
    }

    /// `zone`, `region` or `network`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Zone => "zone",
            Self::Region => "region",
            Self::Network => "network",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(region: &str, zone: &str) -> Locality {
        let name = |text: &str| (!text.is_empty()).then(|| AreaName::new(text).unwrap());
        Locality { region: name(region), zone: name(zone) }
    }

    #[test]
    fn the_nearest_level_that_both_sides_state_counts() {
        for (one, other, level) in [
            (at("eu", "eu-a"), at("eu", "eu-a"), Level::Zone),
            (at("eu", "eu-a"), at("eu", "eu-b"), Level::Region),
            (at("eu", "a"), at("us", "a"), Level::Network),
            (at("", "a"), at("", "a"), Level::Zone),
            (at("eu", "a"), at("", "a"), Level::Zone),
            (at("", "a"), at("", "b"), Level::Network),
            (at("eu", ""), at("eu", "a"), Level::Region),
            (at("eu", ""), at("eu", ""), Level::Region),
            (at("eu", "a"), at("", ""), Level::Network),
            (at("", ""), at("", ""), Level::Network),
            (at("eu", "A"), at("eu", "a"), Level::Region),
        ] {
            assert_eq!(one.level_of(&other), level, "{one:?} {other:?}");
            assert_eq!(other.level_of(&one), level, "{other:?} {one:?}");
        }
        assert!(!at("", "").is_stated() && at("eu", "").is_stated() && at("", "a").is_stated());
        assert!(
            Level::ALL.is_sorted()
                && Level::ALL.iter().enumerate().all(|(at, of)| of.index() == at)
        );
    }

    #[test]
    fn a_name_that_cannot_be_one_is_refused_with_what_is_wrong() {
        let refused = |text: &str| AreaName::new(text).unwrap_err().to_string();
        assert!(refused("").contains("is empty"));
        assert!(refused("eu west").contains("holds the character ' '"));
        assert!(refused("zürich").contains("holds the character 'ü'"));
        assert!(refused("a\n").contains("holds the character '\\n'"));
        let long = "z".repeat(AREA_NAME_BYTES + 1);
        assert!(refused(&long).contains("is 64 characters long"), "{}", refused(&long));
        for good in ["a", "eu-west-1a", "rack_7.row-2", &long[1..]] {
            assert_eq!(AreaName::new(good).unwrap().as_str(), good);
        }
    }
}
