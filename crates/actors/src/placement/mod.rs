//! Where actors live, and whose turn it is.
//!
//! The ids of an actor type fall into [`SHARDS`] shards ([`Shard::of`]). Each shard is *held* by at
//! most one host at a time, which runs the turns of its actors. [`plan()`] assigns shards to hosts:
//! as evenly as possible, with as few changes as that takes. [`Placement`] moves them without a
//! pause for other shards: a shard that changes hosts is first asked back, and granted to the next
//! when its holder has released it, has left, or has been silent for a whole lease. Other shards,
//! and other types, are not touched.
//!
//! What is granted is stored before the host learns of it ([`Settled::unsaved`]), so that after a
//! restart of the control plane a host holds what it was granted and nothing else. A type belongs to
//! one app, or to those that the operator names ([`TypeApps`]).
//!
//! A host knows its shards by [`Holdings`], and stops by its own clock before its lease ends.
//! [`Turns`] runs the actors there: one turn at a time for each.
//!
//! Each grant has an [`Epoch`] of its own, later ones have higher ones: what a former holder still
//! tries to write is known by its lower epoch. Time is an argument, counted from any fixed moment
//! by a clock that does not jump.

mod actor;
mod apps;
mod grants;
mod holdings;
mod leases;
mod plan;
mod shard;
mod table;
mod turns;

pub use actor::{Actor, TypeOptions};
pub use apps::{TYPE_RETENTION, TypeApps};
pub use grants::{Held, Order, Placement, Settled};
pub use holdings::{Holdings, Refusal};
pub use leases::Leases;
pub use plan::plan;
pub use shard::{SHARDS, Shard, ShardSet};
pub use table::{Epoch, Grants, Owners};
pub use turns::{Effect, NoTurn, Turns};

#[cfg(test)]
mod tests;
