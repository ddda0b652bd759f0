//! The protocols of a run. Each client holds its connections open and matches answers with calls;
//! the engine decides when calls start.

pub(crate) mod h1;
pub(crate) mod h2;
mod links;
pub(crate) mod ping;
mod request;
pub(crate) mod streams;
mod varied;
