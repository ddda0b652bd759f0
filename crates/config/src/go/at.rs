//! Positions in a text, and values that keep theirs.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde_saphyr::Location;

/// A position in a text, counted from 1; 0 for none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct At {
    pub line: u64,
    pub column: u64,
}

impl From<Location> for At {
    fn from(location: Location) -> Self {
        Self { line: location.line(), column: location.column() }
    }
}

/// A value and where it is written. Only [`super::decode()`] reads it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Placed<T> {
    pub at: At,
    pub value: T,
}

/// The name by which `decode` recognizes the type.
pub(super) const PLACED: &str = "tollway::Placed";

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Placed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parts<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Parts<T> {
            type Value = Placed<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value with its position")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Placed<T>, A::Error> {
                let missing = || A::Error::custom("a value without its position");
                let line = parts.next_element()?.ok_or_else(missing)?;
                let column = parts.next_element()?.ok_or_else(missing)?;
                let value = parts.next_element()?.ok_or_else(missing)?;
                Ok(Placed { at: At { line, column }, value })
            }
        }
        deserializer.deserialize_newtype_struct(PLACED, Parts(PhantomData))
    }
}
