//! Placement of actors: the decisions of crate `actors`, carried out and stored. Each namespace has a
//! placement of its own.

mod host;
mod placements;
mod serve;

pub(crate) use self::host::Host;
#[cfg(test)]
pub(crate) use self::placements::ACTOR_TYPES_PER_NAMESPACE_LIMIT;
pub(crate) use self::placements::Placements;
pub(crate) use self::serve::PlacementService;
