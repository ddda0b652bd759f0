//! A scenario of either kind of measurement.

use tollway_config::Mistake;

use super::{FABRIC_SCENARIO_SCHEMA, FabricScenario, Scenario};
use crate::subject::Catalogue;

/// The kinds of measurement; each has a format of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScenarioKind {
    Requests,
    Fabric,
}

/// A scenario of either kind.
#[derive(Debug, Clone)]
pub enum AnyScenario {
    Requests(Box<Scenario>),
    Fabric(Box<FabricScenario>),
}

impl ScenarioKind {
    /// The kind of a file by its field `schema`, whatever the version; requests if it is unknown.
    #[must_use]
    pub fn of_schema(schema: &str) -> Self {
        let format = |schema: &str| schema.split('/').next().map(str::to_owned);
        match format(schema) == format(FABRIC_SCENARIO_SCHEMA) {
            true => Self::Fabric,
            false => Self::Requests,
        }
    }
}

impl AnyScenario {
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Requests(scenario) => &scenario.name.value,
            Self::Fabric(scenario) => &scenario.name.value,
        }
    }

    /// One line: which question it answers.
    #[must_use]
    pub fn purpose(&self) -> &str {
        match self {
            Self::Requests(scenario) => &scenario.purpose,
            Self::Fabric(scenario) => &scenario.purpose,
        }
    }

    pub(crate) fn notes(&self) -> &[String] {
        match self {
            Self::Requests(scenario) => &scenario.notes,
            Self::Fabric(scenario) => &scenario.notes,
        }
    }

    /// The subjects that it names; one of the fabric names none.
    pub fn subjects(&self) -> impl Iterator<Item = &str> {
        let named: &[_] = match self {
            Self::Requests(scenario) => &scenario.subjects,
            Self::Fabric(_) => &[],
        };
        named.iter().map(|name| name.value.as_str())
    }

    /// All errors of meaning, in the order of the file's parts.
    #[must_use]
    pub fn check(&self, catalogue: &Catalogue) -> Vec<Mistake> {
        match self {
            Self::Requests(scenario) => scenario.check(catalogue),
            Self::Fabric(scenario) => scenario.check(),
        }
    }
}

impl From<Scenario> for AnyScenario {
    fn from(scenario: Scenario) -> Self {
        Self::Requests(Box::new(scenario))
    }
}

impl From<FabricScenario> for AnyScenario {
    fn from(scenario: FabricScenario) -> Self {
        Self::Fabric(Box::new(scenario))
    }
}
