//! The types of fields: a value that is needed or has a default, one that may be missing, a list.

use crate::setting::Kind;
use crate::value::Value;

/// A field of a struct of settings.
pub trait Field: Clone + PartialEq {
    /// What its values are.
    type Of: Value;
    const KIND: Kind;

    /// Makes it of its values; `None` where it lacks one.
    fn of(values: Vec<Self::Of>) -> Option<Self>;

    fn values(&self) -> &[Self::Of];
}

impl<T: Value> Field for T {
    type Of = T;
    const KIND: Kind = if T::IS_SWITCH { Kind::Switch } else { Kind::One };

    fn of(values: Vec<T>) -> Option<Self> {
        values.into_iter().next()
    }

    fn values(&self) -> &[T] {
        std::slice::from_ref(self)
    }
}

impl<T: Value> Field for Option<T> {
    type Of = T;
    const KIND: Kind = Kind::Optional;

    fn of(values: Vec<T>) -> Option<Self> {
        Some(values.into_iter().next())
    }

    fn values(&self) -> &[T] {
        self.as_slice()
    }
}

impl<T: Value> Field for Vec<T> {
    type Of = T;
    const KIND: Kind = Kind::List;

    fn of(values: Vec<T>) -> Option<Self> {
        Some(values)
    }

    fn values(&self) -> &[T] {
        self
    }
}

/// The values of a field, as they are written.
pub fn texts<F: Field>(field: &F) -> Vec<String> {
    field.values().iter().map(Value::text).collect()
}
