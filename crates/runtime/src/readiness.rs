//! What is missing until calls can be made of other apps, and of this one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollway_proxy::Facts;

use crate::actors::Actors;

/// How often it is looked at whether anything is missing still.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const CONTROL: &str = "control plane";
const APP: &str = "app";
const REGISTRATION: &str = "registration";

/// Whether a sidecar and its app are ready.
pub(crate) struct Readiness {
    facts: Arc<Facts>,
    actors: Arc<Actors>,
    /// In daprd's place: an app that falls ill later is no fault of the sidecar, which must not be ended
    /// for it.
    begins_only: bool,
    was_reached: AtomicBool,
}

impl Readiness {
    pub(crate) fn new(facts: Arc<Facts>, actors: Arc<Actors>, begins_only: bool) -> Self {
        Self { facts, actors, begins_only, was_reached: AtomicBool::new(false) }
    }

    /// What is missing, in words; empty if nothing is.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        if !self.facts.is_connected() {
            missing.push(CONTROL);
        }
        if !(self.begins_only && self.was_reached.load(Ordering::Relaxed)) {
            if !self.facts.is_app_ready() {
                missing.push(APP);
            } else if !self.facts.is_registered() {
                missing.push(REGISTRATION);
            }
        }
        if missing.is_empty() {
            missing.extend(self.actors.missing());
        }
        if missing.is_empty() {
            self.was_reached.store(true, Ordering::Relaxed);
        }
        missing
    }

    /// Completes once nothing is missing.
    pub(crate) async fn reached(&self) {
        while !self.missing().is_empty() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
