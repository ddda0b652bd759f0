//! `tollway get localities`: in which zones and regions services run, and which level serves callers there.
//!
//! It goes by what is registered. A sidecar goes by more than that: it leaves out replicas that it cannot
//! reach or has ejected.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};
use tollway_model::traffic_policy::LocalityRules;
use tollway_model::{AreaName, Level, Locality};
use tollway_routing::{LevelHealth, Levels};
use tollway_wire::v1;

use super::full_name;

/// One service in one zone or region.
pub(super) struct Served {
    service: String,
    locality: Locality,
    ready: u32,
    workloads: u32,
    /// What each level takes of the requests of callers there; `None` where none is preferred.
    percents: Option<[u32; Level::ALL.len()]>,
}

/// Services whose workloads state where they are.
///
/// # Errors
/// A zone, a region or a level cannot be read.
pub(super) fn of(services: &[v1::ServiceStatus]) -> Result<Vec<Served>> {
    let mut served = Vec::new();
    for service in services {
        let rules =
            service.locality_rules.as_ref().map(tollway_wire::locality_rules).transpose()?;
        let places = service.localities.iter().map(|of| {
            let locality = of.locality.as_ref().map(tollway_wire::locality).transpose()?;
            Ok((locality.unwrap_or_default(), of.ready, of.workloads))
        });
        let places: Vec<_> = places.collect::<Result<_>>()?;
        served.extend(places.iter().map(|(locality, ready, workloads)| Served {
            service: full_name(service),
            locality: locality.clone(),
            ready: *ready,
            workloads: *workloads,
            percents: percents(rules, locality, &places),
        }));
    }
    Ok(served)
}

/// What each level takes of the requests of callers at `own`.
fn percents(
    rules: Option<LocalityRules>,
    own: &Locality,
    places: &[(Locality, u32, u32)],
) -> Option<[u32; Level::ALL.len()]> {
    let rules = rules.filter(|rules| rules.prefer != Level::Network && own.is_stated())?;
    let mut health = [LevelHealth::default(); Level::ALL.len()];
    for (other, ready, workloads) in places {
        let of = &mut health[own.level_of(other).max(rules.prefer).index()];
        of.healthy = of.healthy.saturating_add(*ready);
        of.registered = of.registered.saturating_add(*workloads);
    }
    let levels = Levels::new(&rules, health);
    Some(Level::ALL.map(|level| levels.percent(level)))
}

fn text(name: Option<&AreaName>) -> String {
    name.map_or_else(|| "-".to_owned(), ToString::to_string)
}

/// Ready and registered workloads, and in percent what callers there have served by their zone, their
/// region and the rest of the network.
pub(super) fn table(served: &[Served]) -> String {
    let mut page = format!(
        "{:<32} {:<14} {:<14} {:>7} {:>5} {:>7} {:>8}\n",
        "SERVICE", "REGION", "ZONE", "READY", "ZONE%", "REGION%", "NETWORK%"
    );
    for of in served {
        let ready = format!("{}/{}", of.ready, of.workloads);
        let shown = |level: Level| {
            of.percents.map_or("-".to_owned(), |percents| percents[level.index()].to_string())
        };
        let [zone, region, network] = Level::ALL.map(shown);
        let (in_region, in_zone) =
            (text(of.locality.region.as_ref()), text(of.locality.zone.as_ref()));
        // Writing to a string does not fail.
        let _ = writeln!(
            page,
            "{:<32} {in_region:<14} {in_zone:<14} {ready:>7} {zone:>5} {region:>7} {network:>8}",
            of.service
        );
    }
    page
}

pub(super) fn json(served: &[Served]) -> Value {
    let one = |of: &Served| {
        let percents = of.percents.map(|percents| {
            let shown = Level::ALL.map(|level| (level.to_string(), percents[level.index()].into()));
            Value::Object(shown.into_iter().collect())
        });
        json!({
            "service": of.service,
            "region": of.locality.region.as_ref().map(AreaName::as_str),
            "zone": of.locality.zone.as_ref().map(AreaName::as_str),
            "ready": of.ready,
            "workloads": of.workloads,
            "percent_by_level": percents,
        })
    };
    json!({ "localities": served.iter().map(one).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(region: &str, zone: &str, ready: u32, workloads: u32) -> v1::LocalityStatus {
        let locality = v1::Locality { region: region.to_owned(), zone: zone.to_owned() };
        v1::LocalityStatus { locality: Some(locality), ready, workloads }
    }

    fn service(rules: Option<LocalityRules>) -> v1::ServiceStatus {
        let name = |text: &str| text.to_owned();
        v1::ServiceStatus {
            service: Some(v1::ServiceName {
                app: name("stock"),
                namespace: name("shop"),
                network: name("east"),
            }),
            localities: vec![
                place("eu", "eu-a", 1, 2),
                place("eu", "eu-b", 3, 3),
                v1::LocalityStatus { locality: None, ready: 1, workloads: 1 },
            ],
            locality_rules: rules.map(Into::into),
            ..v1::ServiceStatus::default()
        }
    }

    fn rows(rules: Option<LocalityRules>) -> Vec<String> {
        let table = table(&of(&[service(rules)]).unwrap());
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        table.lines().skip(1).map(words).collect()
    }

    #[test]
    fn each_place_is_shown_with_the_levels_that_serve_it() {
        assert_eq!(
            rows(Some(LocalityRules::DEFAULT)),
            [
                "stock.shop.east eu eu-a 1/2 71 29 0",
                "stock.shop.east eu eu-b 3/3 100 0 0",
                "stock.shop.east - - 1/1 - - -",
            ]
        );
        let region = LocalityRules { prefer: Level::Region, ..LocalityRules::DEFAULT };
        assert_eq!(rows(Some(region))[0], "stock.shop.east eu eu-a 1/2 0 100 0");
        assert_eq!(rows(None)[0], "stock.shop.east eu eu-a 1/2 - - -");
        let known = of(&[service(Some(LocalityRules::DEFAULT))]).unwrap();
        let shown = json(&known);
        assert_eq!(shown["localities"][0]["percent_by_level"]["zone"], 71);
        assert_eq!(shown["localities"][2]["zone"], Value::Null);
        assert_eq!(shown["localities"][2]["percent_by_level"], Value::Null);
    }
}
