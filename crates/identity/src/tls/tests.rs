//! Real handshakes in memory: who is let in, who is refused, and for which reason.

mod doors;
mod forged;
mod resumption;
mod world;
