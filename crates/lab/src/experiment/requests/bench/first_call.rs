//! The first call of each service, which waits until it is there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Bench;
use crate::actors::ActorsSpec;
use crate::cancel::Cancel;
use crate::commands::{Load, LoadArrival};
use crate::error::LabError;
use crate::scenario::Spacing;
use crate::subject::Leg;

/// How long the first call of a service may take to succeed, from everything having started.
const FIRST_CALL_LIMIT: Duration = Duration::from_secs(30);
/// Pause between attempts of a first call.
const FIRST_CALL_PAUSE: Duration = Duration::from_millis(200);

impl Bench<'_> {
    /// Calls every service until it answers: a mesh needs a moment to learn of itself, and pools
    /// and caches are warm afterwards.
    pub(super) fn first_calls(&mut self, cancel: &Cancel) -> Result<(), LabError> {
        for (subject, leg) in self.services() {
            self.first_call(subject, leg, None, cancel)?;
        }
        for (subject, leg, actors) in self.actors.clone() {
            self.first_call(subject, leg, Some(actors), cancel)?;
        }
        Ok(())
    }

    fn first_call(
        &mut self,
        subject: usize,
        leg: Leg,
        actors: Option<ActorsSpec>,
        cancel: &Cancel,
    ) -> Result<(), LabError> {
        let label = self.subjects[subject].label.clone();
        let network = self.ground.network(leg.network).name.clone();
        let called = if actors.is_some() { "actors" } else { leg.protocol.as_str() };
        let service = format!("{called} in {network} through {label}");
        let Some(route) = self.started[subject].routes.get(&leg).cloned() else {
            return Err(LabError::NoRoute { subject: label, row: service });
        };
        let until = Instant::now() + FIRST_CALL_LIMIT;
        for attempt in 0.. {
            let (protocol, tls) = (leg.protocol, leg.tls);
            let name = format!("first-{called}-{network}-{protocol}-{tls}-{label}-{attempt}");
            let name = name.replace(':', "-");
            let load = Load {
                arrival: LoadArrival::Open(50.0, Spacing::Uniform),
                duration: Duration::from_millis(100),
                ..self.load(&name, &leg, &route)
            };
            let load = match actors {
                Some(actors) => self.to_actors(load, actors, subject, &leg)?,
                None => load,
            };
            let spec = self.ground.commands.load(self.ground.home(), &name, &load);
            let spec = spec.in_cgroup(route.cgroup.as_deref());
            let result = self.run_load(&spec, &load, &service)?;
            let traffic = &result.traffic;
            if traffic.requests > 0 && traffic.errors == 0 {
                return Ok(());
            }
            self.ground.supervisor.check_alive()?;
            if Instant::now() > until {
                return Err(LabError::Unreachable {
                    service,
                    limit: FIRST_CALL_LIMIT,
                    requests: traffic.requests,
                    errors: traffic.errors,
                    kinds: kinds(&traffic.errors_by_kind),
                });
            }
            cancel.sleep(FIRST_CALL_PAUSE)?;
        }
        Ok(())
    }
}

fn kinds(errors: &BTreeMap<String, u64>) -> String {
    let kinds: Vec<String> = errors.iter().map(|(kind, n)| format!("{n} × {kind}")).collect();
    if kinds.is_empty() { "no errors".into() } else { kinds.join(", ") }
}
