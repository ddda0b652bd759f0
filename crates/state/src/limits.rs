//! The bounds of what this crate does and keeps by itself; told in docs/limits.md.

/// Most operations of a transaction.
pub const TRANSACTION_OPS: usize = 1000;
/// Most bytes of keys and values that `state.in-memory` keeps.
pub const MEMORY_BYTES: usize = 128 * 1024 * 1024;
