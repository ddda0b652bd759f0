//! Topologies, links, limits, subjects and scenarios that measure shipped binaries.
