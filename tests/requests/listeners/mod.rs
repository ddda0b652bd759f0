//! What strangers do at every door of a data plane: malformed and abusive HTTP, and peers that
//! are not who they should be. The shipped binary runs as processes; the callers are raw.

mod aborted;
mod circles;
mod door;
mod early;
mod fields;
mod forged;
mod framing;
mod h1;
mod h2;
mod h2spec;
mod handshakes;
mod identity;
mod interim;
mod malformed;
mod relay;
mod responses;
mod share;
mod tls_door;
mod tunnel;
mod upgrades;
mod way;
