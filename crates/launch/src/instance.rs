//! A name for an instance of a workload.

use std::hash::{BuildHasher, RandomState};

use tollway_model::{Instance, NameError};

/// A name that no other instance has: sixteen random hexadecimal digits.
///
/// # Errors
/// Never: the digits are a valid name.
pub fn random_instance() -> Result<Instance, NameError> {
    let number = RandomState::new().hash_one(std::process::id());
    Instance::new(&format!("i-{number:016x}"))
}
