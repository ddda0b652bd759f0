//! The protocols a run can speak. Each client keeps its connections open and knows which answer
//! belongs to which call; the engine decides when calls start.

pub(crate) mod h1;
pub(crate) mod h2;
mod links;
pub(crate) mod ping;
mod request;
pub(crate) mod streams;
mod varied;
