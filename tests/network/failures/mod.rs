//! Every failure has its code, its hop and its remedy: the catalogue of docs/errors.md, provoked on
//! the shipped binary.

mod access;
mod peers;
mod requests;
mod start;
mod store;
pub(crate) mod terminal;
