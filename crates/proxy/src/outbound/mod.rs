//! The stages of a request, in order: [`route`] decides which service it is for, [`steer`]
//! applies the routes of that service, [`failover`] chooses the network of one that is called in any, [`dispatch`] finds a connection or has it wait for one, [`send`]
//! writes it, [`retry`] decides what follows a failed attempt;
//! [`mirror`] makes copies. [`tunnel`] does the same for connections that carry bytes, [`external`] for
//! those that leave the mesh.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "most places ask for the one or two roles of a connection that concern them"
)]

pub(crate) mod dispatch;
pub(crate) mod external;
pub(crate) mod failover;
pub(crate) mod intercepted;
pub(crate) mod mirror;
mod requests;
pub(crate) mod retry;
pub(crate) mod route;
pub(crate) mod send;
mod steer;
pub(crate) mod tunnel;

pub(crate) use external::{ExternalCall, ExternalQueue};
