//! Whether an object that decides is also enforced.

use std::fmt;

/// Whether what is decided is also enforced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    #[default]
    Enforce,
    /// It is decided, counted and logged, and changes nothing else.
    Shadow,
}

impl Mode {
    /// As manifests have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
