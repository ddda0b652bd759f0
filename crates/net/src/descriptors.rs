//! How many files and sockets this process may have open.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The present limit on descriptors; `None` if there is none.
#[must_use]
pub fn descriptor_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// The limit with which this process was started, if it was raised since.
static STARTED_WITH: OnceLock<Option<u64>> = OnceLock::new();

/// Raises the limit to the most that the system allows this process. A refusal changes nothing.
/// Programs that it starts have the limit that it was started with: some use only low numbers.
pub fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    STARTED_WITH.get_or_init(|| current);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Gives this process the limit back with which the one that started it was started. Makes system calls
/// only.
pub(crate) fn lower_descriptor_limit() {
    if let Some(current) = STARTED_WITH.get() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: *current, maximum });
    }
}

/// Whether a descriptor that was just given is one of the last `count`, or of the last eighth where
/// that is less: the kernel gives the lowest number that is free, so all below it are taken.
#[must_use]
pub fn is_among_last_descriptors(given: &impl AsFd, count: u64) -> bool {
    is_among_last(given.as_fd().as_raw_fd().unsigned_abs().into(), descriptor_limit(), count)
}

fn is_among_last(number: u64, limit: Option<u64>, count: u64) -> bool {
    limit.is_some_and(|limit| number >= limit - count.min(limit / 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_descriptors_are_recognised_by_their_numbers() {
        assert!(!is_among_last(1_000_000, None, 64));
        assert!(!is_among_last(1024 - 64 - 1, Some(1024), 64));
        assert!(is_among_last(1024 - 64, Some(1024), 64));
        assert!(!is_among_last(27, Some(32), 64), "an eighth of them are four");
        assert!(is_among_last(28, Some(32), 64));
        // The limit may be lowered below what is open.
        assert!(is_among_last(100, Some(32), 64));
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(!is_among_last_descriptors(&file, 0));
    }
}
