//! Every failure is told with its code, who says it, and what to do: the catalogue of
//! docs/errors.md, provoked on the shipped binary.

mod access;
mod peers;
mod requests;
mod start;
mod store;
mod terminal;
