//! How many files and sockets this process may have open.

use rustix::process::{Resource, getrlimit};

/// The present limit on descriptors; `None` if there is none.
#[must_use]
pub fn descriptor_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}
