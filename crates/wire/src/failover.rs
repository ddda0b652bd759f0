//! Failover: the networks that may serve a service called in any network.

use std::sync::Arc;

use prost::Message as _;
use tollway_model::failover::{
    FAILOVER_NETWORKS_LIMIT, FailoverNetwork, FailoverRules, FailoverTarget,
};
use tollway_model::{Failover, ObjectId, ObjectKind, ServiceState};

use crate::object::{check_size, read_name};
use crate::{ConvertError, label, v1};

impl From<&Failover> for v1::Failover {
    fn from(failover: &Failover) -> Self {
        let target = match &failover.target {
            FailoverTarget::App(app) => v1::failover::Target::App(app.to_string()),
            FailoverTarget::Namespace => v1::failover::Target::AllApps(true),
        };
        Self {
            namespace: failover.name.namespace.to_string(),
            name: failover.name.name.to_string(),
            target: Some(target),
            rules: Some((&failover.rules).into()),
        }
    }
}

impl From<&FailoverRules> for v1::FailoverRules {
    fn from(rules: &FailoverRules) -> Self {
        let network = |of: &FailoverNetwork| v1::FailoverNetwork {
            network: of.network.to_string(),
            priority: of.priority,
            weight: of.weight,
        };
        Self {
            networks: rules.networks.iter().map(network).collect(),
            threshold: rules.threshold,
            spill_over: rules.spill_over,
        }
    }
}

/// Reads an object of this kind and checks it as a whole.
///
/// # Errors
/// [`ConvertError`] for the first thing that is wrong.
pub fn failover(of: &v1::Failover) -> Result<Failover, ConvertError> {
    let name = read_name(&of.namespace, &of.name)?;
    let id = ObjectId { kind: ObjectKind::Failover, name: name.clone() };
    check_size(&id, of.encoded_len())?;
    let in_object =
        |source| ConvertError::InObject { object: id.clone(), source: Box::new(source) };
    let target = target(of.target.as_ref()).map_err(in_object)?;
    let rules = read_rules(of.rules.as_ref()).map_err(in_object)?;
    rules.check().map_err(|source| ConvertError::Failover { object: id, source })?;
    Ok(Failover { name, target, rules })
}

fn target(of: Option<&v1::failover::Target>) -> Result<FailoverTarget, ConvertError> {
    match of {
        Some(v1::failover::Target::App(app)) => Ok(FailoverTarget::App(label(app, "target.app")?)),
        Some(v1::failover::Target::AllApps(_)) => Ok(FailoverTarget::Namespace),
        None => Err(ConvertError::Missing { field: "target" }),
    }
}

fn read_rules(of: Option<&v1::FailoverRules>) -> Result<FailoverRules, ConvertError> {
    let of = of.ok_or(ConvertError::Missing { field: "rules" })?;
    let (field, count, limit) = ("networks", of.networks.len(), FAILOVER_NETWORKS_LIMIT);
    if count > limit {
        return Err(ConvertError::TooMany { field, count, limit });
    }
    let network = |of: &v1::FailoverNetwork| {
        Ok(FailoverNetwork {
            network: label(&of.network, "network")?,
            priority: of.priority,
            weight: of.weight,
        })
    };
    Ok(FailoverRules {
        networks: of.networks.iter().map(network).collect::<Result<_, ConvertError>>()?,
        threshold: of.threshold,
        spill_over: of.spill_over,
    })
}

/// The state of a service that is called in any network.
pub(crate) fn any_network(rules: &FailoverRules, registered: &[u32]) -> v1::AnyNetwork {
    v1::AnyNetwork { rules: Some(rules.into()), registered: registered.to_vec() }
}

/// Reads the state of a service that is called in any network.
///
/// # Errors
/// [`ConvertError`] for the first thing that is wrong.
pub(crate) fn read_any_network(of: &v1::AnyNetwork) -> Result<ServiceState, ConvertError> {
    let rules = read_rules(of.rules.as_ref())?;
    rules.check().map_err(|source| ConvertError::FailoverRules { source })?;
    let (field, count, limit) = ("registered", of.registered.len(), rules.networks.len());
    if count > limit {
        return Err(ConvertError::TooMany { field, count, limit });
    }
    if count < limit {
        return Err(ConvertError::Missing { field });
    }
    Ok(ServiceState::Failover {
        rules: Arc::new(rules),
        registered: of.registered.as_slice().into(),
    })
}

#[cfg(test)]
mod tests {
    use tollway_model::{Label, ObjectName};

    use super::*;

    fn sent() -> Failover {
        let network = |name: &str, priority, weight| FailoverNetwork {
            network: Label::new(name).unwrap(),
            priority,
            weight,
        };
        Failover {
            name: ObjectName::new("shop", "stock").unwrap(),
            target: FailoverTarget::App(Label::new("stock").unwrap()),
            rules: FailoverRules {
                networks: vec![network("west", 0, 1), network("east", 1, 3)],
                threshold: 60,
                spill_over: Some(50),
            },
        }
    }

    #[test]
    fn every_field_survives_the_wire() {
        let app = sent();
        let all = Failover { target: FailoverTarget::Namespace, ..app.clone() };
        let mut unlimited = app.clone();
        unlimited.rules.spill_over = None;
        for of in [app, all, unlimited] {
            assert_eq!(failover(&v1::Failover::from(&of)), Ok(of));
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_refused() {
        let refusal = |break_it: fn(&mut v1::Failover)| {
            let mut broken = v1::Failover::from(&sent());
            break_it(&mut broken);
            tollway_model::chain(&failover(&broken).unwrap_err())
        };
        for (text, expected) in [
            (refusal(|of| of.target = None), "`target` is missing"),
            (refusal(|of| of.rules = None), "`rules` is missing"),
            (refusal(|of| of.name.clear()), "shop/"),
            (refusal(|of| of.rules.as_mut().unwrap().threshold = 0), "`threshold` is 0"),
            (
                refusal(|of| {
                    let one = v1::FailoverNetwork { network: "n".into(), priority: 0, weight: 1 };
                    of.rules.as_mut().unwrap().networks = vec![one; FAILOVER_NETWORKS_LIMIT + 1];
                }),
                "17",
            ),
            (
                refusal(|of| of.rules.as_mut().unwrap().networks[0].network = "any".into()),
                "`any` stands for",
            ),
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn a_state_has_a_number_for_each_network() {
        let rules = sent().rules;
        let state = any_network(&rules, &[3, 0]);
        let read = read_any_network(&state).unwrap();
        assert_eq!(
            read,
            ServiceState::Failover { rules: Arc::new(rules), registered: [3, 0].into() }
        );
        for registered in [vec![3], vec![3, 0, 0]] {
            let broken = v1::AnyNetwork { registered, ..state.clone() };
            let text = read_any_network(&broken).unwrap_err().to_string();
            assert!(text.contains("`registered`"), "{text}");
        }
    }
}
