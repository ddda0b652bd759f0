//! Placement of actors: the decisions of crate `actors`, carried out and stored. Each namespace has a
//! placement of its own.

mod followers;
mod host;
mod lapse;
mod placements;
mod realm;
mod record;
mod serve;

pub(crate) use self::host::Host;
pub(crate) use self::lapse::release_lapsed;
pub(crate) use self::placements::Placements;
pub(crate) use self::realm::TypeStatus;
#[cfg(test)]
pub(crate) use self::realm::{ACTOR_TYPES_PER_APP_LIMIT, ACTOR_TYPES_PER_NAMESPACE_LIMIT};
pub(crate) use self::serve::PlacementService;
