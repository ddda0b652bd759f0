//! The metadata of the sidecar, and the entries that clients have stored there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollway_proxy::Facts;

/// Largest value of one entry of the extended metadata, in bytes.
pub(crate) const METADATA_VALUE_BYTES: usize = 64 * 1024;
/// Most entries of the extended metadata.
pub(crate) const METADATA_ENTRIES: usize = 128;

/// Facts of the sidecar, and the extended metadata.
pub(crate) struct Metadata {
    facts: Arc<Facts>,
    extended: Mutex<BTreeMap<String, String>>,
}

/// Why an entry is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MetadataError {
    /// The key or the value is not valid.
    Malformed,
    /// There are too many entries.
    Full,
}

impl MetadataError {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Malformed => "send a key in the path and a text of at most 64 KiB as the body",
            Self::Full => "the metadata has 128 entries already",
        }
    }
}

impl Metadata {
    pub(crate) fn new(facts: Arc<Facts>) -> Self {
        Self { facts, extended: Mutex::default() }
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The entries by key.
    fn extended(&self) -> BTreeMap<String, String> {
        self.entries().clone()
    }

    /// The extended metadata as clients see them: with the version, which Dapr's have there, too.
    pub(crate) fn shown(&self) -> BTreeMap<String, String> {
        let mut shown = self.extended();
        shown.insert("daprRuntimeVersion".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        shown
    }

    /// Stores an entry. It replaces one of the same key.
    ///
    /// # Errors
    /// [`MetadataError`].
    pub(crate) fn set(&self, key: String, value: String) -> Result<(), MetadataError> {
        if key.is_empty() || value.len() > METADATA_VALUE_BYTES {
            return Err(MetadataError::Malformed);
        }
        let mut entries = self.entries();
        if entries.len() >= METADATA_ENTRIES && !entries.contains_key(&key) {
            return Err(MetadataError::Full);
        }
        entries.insert(key, value);
        Ok(())
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.extended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
