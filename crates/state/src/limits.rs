//! The limits of this crate. `docs/limits.md` lists them.

/// Most operations of a transaction.
pub const TRANSACTION_OPS: usize = 1000;
/// Most bytes of keys and values in `state.in-memory`.
pub const MEMORY_BYTES: usize = 128 * 1024 * 1024;
