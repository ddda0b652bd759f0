//! Revisioned keys: get, transact, list and watch, leases; the embedded engine.
