//! Kill anything: every process of two joined networks is struck under load, the control plane
//! is killed under writes, its store is damaged and its disk filled; and what that costs.
//!
//! `cargo xtask proof reliability` runs all of it and writes the record; the tests here run the
//! part that fits into seconds.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod caller;
mod strike;
mod world;

use strike::{Blow, Victim, strike};
use world::World;

/// Requests a second of each of the four kinds.
const RATE_RPS: u32 = 50;

#[test]
#[ignore = "minutes: `cargo xtask proof reliability` runs it"]
fn whole_matrix() {
    let mut world = World::start(&[]);
    let only = std::env::var("ONLY").unwrap_or_default();
    let mut failed = Vec::new();
    for victim in Victim::ALL {
        for blow in Blow::ALL {
            let name = format!("{victim:?}-{blow:?}");
            if !name.contains(&only) {
                continue;
            }
            let outcome = strike(&mut world, victim, blow, RATE_RPS);
            println!("{}", outcome.line());
            for (kind, count) in &outcome.failures {
                println!("         {count} x {kind}");
            }
            if !outcome.passed {
                println!("         {:?}", outcome.shown);
                failed.push(outcome);
            }
        }
    }
    assert!(failed.is_empty(), "{} cells failed", failed.len());
}
