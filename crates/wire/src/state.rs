//! Writes of apps' state: what a request alone can violate.

use std::collections::HashSet;

use thiserror::Error;

use crate::limits::{STATE_CHANGES, STATE_KEY_BYTES, STATE_VALUE_BYTES};
use crate::v1::{StateChange, WriteStateRequest};

/// A write of state that is never carried out, whatever is stored.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StateWriteError {
    #[error("it has the key {0} twice")]
    KeyTwice(String),
    #[error("{what} is {found}; the limit is {limit}")]
    Excess { what: String, found: u64, limit: u64 },
}

/// Checks how many changes a request has, their keys, the key of its fence and their values.
///
/// # Errors
/// [`StateWriteError`] for the first thing that is wrong.
pub fn check_state_write(request: &WriteStateRequest) -> Result<(), StateWriteError> {
    let excess = |what: String, found: usize, limit: usize| {
        Err(StateWriteError::Excess { what, found: found as u64, limit: limit as u64 })
    };
    if request.changes.len() > STATE_CHANGES {
        return excess("the number of changes".to_owned(), request.changes.len(), STATE_CHANGES);
    }
    let mut keys = HashSet::new();
    let fence = request.fence.as_ref().map(|fence| &fence.key);
    for key in request.changes.iter().map(|change| &change.key).chain(fence) {
        if key.len() > STATE_KEY_BYTES {
            return excess("a key in bytes".to_owned(), key.len(), STATE_KEY_BYTES);
        }
        if !keys.insert(key) {
            return Err(StateWriteError::KeyTwice(key.clone()));
        }
    }
    for StateChange { key, value, .. } in &request.changes {
        let bytes = value.as_ref().map_or(0, Vec::len);
        if bytes > STATE_VALUE_BYTES {
            return excess(format!("the value of {key} in bytes"), bytes, STATE_VALUE_BYTES);
        }
    }
    Ok(())
}
