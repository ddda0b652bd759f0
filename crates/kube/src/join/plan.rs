//! Whether two installs can be joined, which of them accepts, and what a failure means. Pure.

use serde::Deserialize;
use thiserror::Error;

/// An install, as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Install {
    pub(super) context: String,
    pub(super) network: String,
    pub(super) gateway: Gateway,
    pub(super) joined: Vec<Joined>,
}

/// How other networks reach an install.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gateway {
    Missing,
    NotReady,
    DialsOut,
    Listens,
}

/// A joined network, as `tollway join list --json` prints it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(super) struct Joined {
    pub(super) network: String,
    pub(super) reachable: bool,
    #[serde(default)]
    pub(super) gateways: Vec<String>,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plan {
    Nothing,
    /// The first one exports a bundle, and the second one accepts it.
    SecondAccepts,
    FirstAccepts,
}

/// Why two installs cannot be joined as they are.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Obstacle {
    #[error(
        "the networks of {first} and {second} are both called {network}; networks that join need different names: install one of them anew with another `network`"
    )]
    SameName { first: String, second: String, network: String },
    #[error("the install of {context} has no gateway; set gateway.enabled=true")]
    NoGateway { context: String },
    #[error(
        "the gateway of {context} is not ready; `tollway kube check` with this context shows why"
    )]
    GatewayNotReady { context: String },
    #[error(
        "the gateways of {first} and {second} both only dial out, so neither reaches the other; set gateway.dialOut=false for one of them, and gateway.advertise to its address"
    )]
    BothDialOut { first: String, second: String },
}

/// The accepting side dials the other one, so a network that only dials out accepts.
pub(super) fn decide(first: &Install, second: &Install) -> Result<Plan, Obstacle> {
    let [first_context, second_context] = [first, second].map(|install| install.context.clone());
    if first.network.eq_ignore_ascii_case(&second.network) {
        let network = first.network.clone();
        return Err(Obstacle::SameName { first: first_context, second: second_context, network });
    }
    // Of two that are joined one may not reach the other: its gateways may be new, and a new bundle has them.
    if first.unreached(second).is_none() && second.unreached(first).is_none() {
        return Ok(Plan::Nothing);
    }
    for install in [first, second] {
        let context = install.context.clone();
        match install.gateway {
            Gateway::Missing => return Err(Obstacle::NoGateway { context }),
            Gateway::NotReady => return Err(Obstacle::GatewayNotReady { context }),
            Gateway::DialsOut | Gateway::Listens => {}
        }
    }
    match (first.gateway, second.gateway) {
        (Gateway::DialsOut, Gateway::DialsOut) => {
            Err(Obstacle::BothDialOut { first: first_context, second: second_context })
        }
        (Gateway::DialsOut, _) => Ok(Plan::FirstAccepts),
        _ => Ok(Plan::SecondAccepts),
    }
}

impl Install {
    /// What it knows of a network that it has joined.
    fn link_to(&self, other: &Self) -> Option<&Joined> {
        let is_other = |joined: &&Joined| joined.network.eq_ignore_ascii_case(&other.network);
        self.joined.iter().find(is_other)
    }

    /// Why it does not reach a network that it has joined; `None` if it does.
    pub(super) fn unreached(&self, other: &Self) -> Option<String> {
        let why = match self.link_to(other) {
            Some(joined) if joined.reachable => return None,
            Some(joined) if joined.gateways.is_empty() => "no gateway of it is known".to_owned(),
            Some(joined) => format!("its gateways {} do not answer", joined.gateways.join(", ")),
            None => "it is not joined there".to_owned(),
        };
        let (own, network) = (&self.network, &other.network);
        Some(format!("{own} does not reach {network}: {why}"))
    }
}

/// What a command of the program that failed wrote to its standard error, as `WHAT; WHAT TO DO`, in terms of
/// the chart where that is known.
pub(super) fn explain(written: &str, exporting: &str, accepting: &str) -> String {
    let line = |start: &str| written.lines().find_map(|line| line.strip_prefix(start));
    let what = line("error: ").unwrap_or(written).trim();
    let what = if what.is_empty() { "the command failed" } else { what };
    let hint = line("hint: ").map(str::trim);
    let range = hint.and_then(|hint| hint.split_once("--peer-addresses ")).map(|(_, rest)| rest);
    if let Some(range) = range.and_then(|rest| rest.split_whitespace().next()) {
        return format!(
            "{what}; if that is where the gateway of {accepting} is, add {range} to control.peerAddresses of the install in {exporting}, otherwise set gateway.advertise of {accepting}"
        );
    }
    if what.contains("cannot reach the control plane") {
        return format!(
            "{what}; set gateway.advertise of the install in {exporting} to an address that {accepting} reaches, such as that of its LoadBalancer"
        );
    }
    match hint {
        Some(hint) => format!("{what}; {hint}"),
        None => what.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(network: &str, reachable: bool, gateways: &[&str]) -> Joined {
        Joined {
            network: network.to_owned(),
            reachable,
            gateways: gateways.iter().map(|gateway| (*gateway).to_owned()).collect(),
        }
    }

    fn install(network: &str) -> Install {
        Install {
            context: format!("{network}-context"),
            network: network.to_owned(),
            gateway: Gateway::Listens,
            joined: Vec::new(),
        }
    }

    #[test]
    fn the_side_that_only_dials_out_accepts() {
        let (mut west, mut east) = (install("west"), install("east"));
        assert_eq!(decide(&west, &east), Ok(Plan::SecondAccepts));
        west.gateway = Gateway::DialsOut;
        assert_eq!(decide(&west, &east), Ok(Plan::FirstAccepts));
        assert_eq!(decide(&east, &west), Ok(Plan::SecondAccepts));
        east.gateway = Gateway::DialsOut;
        assert!(matches!(decide(&west, &east), Err(Obstacle::BothDialOut { .. })));
    }

    #[test]
    fn two_that_reach_each_other_are_joined_and_others_join_again() {
        let (mut west, mut east) = (install("west"), install("East"));
        west.joined = vec![joined("north", true, &[]), joined("east", true, &[])];
        assert_eq!(decide(&west, &east), Ok(Plan::SecondAccepts));
        east.joined = vec![joined("West", false, &[])];
        assert_eq!(decide(&west, &east), Ok(Plan::SecondAccepts));
        east.joined = vec![joined("West", true, &[])];
        assert_eq!(decide(&west, &east), Ok(Plan::Nothing));
        // Whatever its gateways do meanwhile.
        east.gateway = Gateway::NotReady;
        assert_eq!(decide(&west, &east), Ok(Plan::Nothing));
    }

    #[test]
    fn what_is_missing_is_named_with_its_context_and_what_to_do() {
        let west = install("west");
        let refused = |change: fn(&mut Install)| {
            let mut east = install("east");
            change(&mut east);
            let text = decide(&west, &east).unwrap_err().to_string();
            assert!(text.contains("east-context") && text.contains("; "), "{text}");
            text
        };
        assert!(refused(|it| it.gateway = Gateway::Missing).contains("gateway.enabled=true"));
        assert!(refused(|it| it.gateway = Gateway::NotReady).contains("is not ready"));
        assert!(refused(|it| it.network = "WEST".to_owned()).contains("both called west"));
    }

    #[test]
    fn a_network_that_is_not_reached_is_named_with_where_it_was_sought() {
        let (mut west, east) = (install("west"), install("east"));
        assert_eq!(
            west.unreached(&east).as_deref(),
            Some("west does not reach east: it is not joined there")
        );
        west.joined = vec![joined("east", false, &[])];
        assert!(west.unreached(&east).unwrap().contains("no gateway of it is known"));
        west.joined = vec![joined("east", false, &["10.0.0.1:15443"])];
        assert!(west.unreached(&east).unwrap().contains("10.0.0.1:15443 do not answer"));
        west.joined = vec![joined("east", true, &["10.0.0.1:15443"])];
        assert_eq!(west.unreached(&east), None);
    }

    #[test]
    fn a_failure_is_explained_in_terms_of_the_chart() {
        let address = "error: east refused: a gateway of the network west is refused: 10.7.0.1:443 is a private address [ERR_JOIN_REFUSED]\n\
                       hint: if that is meant, start the control plane that refuses it with --peer-addresses 10.7.0.1/32\n";
        let text = explain(address, "e", "w");
        assert!(text.starts_with("east refused: a gateway of the network west"), "{text}");
        assert!(text.contains("; if that is where the gateway of w is, add 10.7.0.1/32 to control.peerAddresses of the install in e"), "{text}");
        let away = "error: cannot reach the control plane of east: timed out [ERR_JOIN_REFUSED]\nhint: x\n";
        let text = explain(away, "e", "w");
        assert!(text.contains("; set gateway.advertise of the install in e"), "{text}");
        let other = "error: a thing is wrong [ERR_X]\nhint: mend it\n";
        assert_eq!(explain(other, "e", "w"), "a thing is wrong [ERR_X]; mend it");
        assert_eq!(explain("panicked\n", "e", "w"), "panicked");
        assert_eq!(explain("", "e", "w"), "the command failed");
    }
}
