//! The `spec` of failover: the networks that may serve a service called in any network.

use serde::{Deserialize, Serialize};
use tollway_model::failover as model;
use tollway_model::{Failover, Label, ObjectName, chain};

use super::Problem;
use super::values::Text;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Spec {
    /// The name of an app, or `*` for every app of the namespace.
    service: String,
    networks: Vec<Network>,
    #[serde(default = "threshold")]
    threshold: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    spill_over: Option<SpillOver>,
}

fn threshold() -> u32 {
    model::FailoverRules::THRESHOLD
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Network {
    network: Text<Label>,
    #[serde(default)]
    priority: u32,
    #[serde(default = "one")]
    weight: u32,
}

fn one() -> u32 {
    1
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct SpillOver {
    requests_per_replica: u32,
}

impl Spec {
    pub(super) fn into_failover(self, name: ObjectName) -> Result<Failover, Problem> {
        let target = match self.service.as_str() {
            "*" => model::FailoverTarget::Namespace,
            app => model::FailoverTarget::App(Label::new(app).map_err(|error| Problem {
                at: None,
                what: format!("`service`: {}", chain(&error)),
            })?),
        };
        let network = |of: Network| model::FailoverNetwork {
            network: of.network.0,
            priority: of.priority,
            weight: of.weight,
        };
        let rules = model::FailoverRules {
            networks: self.networks.into_iter().map(network).collect(),
            threshold: self.threshold,
            spill_over: self.spill_over.map(|of| of.requests_per_replica),
        };
        rules.check().map_err(|error| Problem::of(&error))?;
        Ok(Failover { name, target, rules })
    }
}

impl From<&Failover> for Spec {
    fn from(failover: &Failover) -> Self {
        let network = |of: &model::FailoverNetwork| Network {
            network: Text(of.network.clone()),
            priority: of.priority,
            weight: of.weight,
        };
        let model::FailoverRules { networks, threshold, spill_over } = &failover.rules;
        Self {
            service: match &failover.target {
                model::FailoverTarget::App(app) => app.to_string(),
                model::FailoverTarget::Namespace => "*".to_owned(),
            },
            networks: networks.iter().map(network).collect(),
            threshold: *threshold,
            spill_over: spill_over.map(|requests_per_replica| SpillOver { requests_per_replica }),
        }
    }
}
