//! Real handshakes in memory: who is let in, who is refused, and for which reason.

mod forged;
mod grace;
mod key_exchange;
mod listeners;
mod resumption;
mod revoked;
mod world;
