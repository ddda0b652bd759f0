//! Helpers for tests: processes, certificates, foreign peers.
