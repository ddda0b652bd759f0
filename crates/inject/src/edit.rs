//! An object under change: each addition is made and recorded as an operation of a JSON patch
//! (RFC 6902), so that the patch and the object cannot differ.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::Problem;

/// An operation of a JSON patch: `value` is added at `path`. In a list it moves what is there back.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Operation {
    op: &'static str,
    pub path: String,
    pub value: Value,
}

pub(crate) struct Edit {
    object: Value,
    operations: Vec<Operation>,
}

impl Edit {
    pub(crate) fn new(object: Value) -> Self {
        Self { object, operations: Vec::new() }
    }

    pub(crate) fn object(&self) -> &Value {
        &self.object
    }

    pub(crate) fn end(self) -> (Value, Vec<Operation>) {
        (self.object, self.operations)
    }

    /// Gives the field `key` of the mapping at `pointer` a value. The mapping is made if it is absent or
    /// null.
    pub(crate) fn set(&mut self, pointer: &str, key: &str, value: Value) -> Result<(), Problem> {
        self.make(pointer, Value::Object(Map::new()))?;
        let operation = add(format!("{pointer}/{}", escape(key)), value);
        let Some(Value::Object(fields)) = self.object.pointer_mut(pointer) else {
            return Err(Problem::wrong_form(pointer, "a mapping"));
        };
        fields.insert(key.to_owned(), operation.value.clone());
        self.operations.push(operation);
        Ok(())
    }

    /// Inserts values into the list at `pointer`, before what has `index` there. The list is made if it
    /// is absent or null.
    pub(crate) fn insert(
        &mut self,
        pointer: &str,
        index: usize,
        values: Vec<Value>,
    ) -> Result<(), Problem> {
        self.make(pointer, Value::Array(Vec::new()))?;
        let Some(Value::Array(items)) = self.object.pointer_mut(pointer) else {
            return Err(Problem::wrong_form(pointer, "a list"));
        };
        for (value, index) in values.into_iter().zip(index.min(items.len())..) {
            items.insert(index, value.clone());
            self.operations.push(add(format!("{pointer}/{index}"), value));
        }
        Ok(())
    }

    /// Appends values to the list at `pointer`, as [`Self::insert`].
    pub(crate) fn append(&mut self, pointer: &str, values: Vec<Value>) -> Result<(), Problem> {
        self.insert(pointer, usize::MAX, values)
    }

    /// Puts `empty` at `pointer`, and what is missing above it, where there is nothing.
    fn make(&mut self, pointer: &str, empty: Value) -> Result<(), Problem> {
        if self.object.pointer(pointer).is_some_and(|value| !value.is_null()) {
            return Ok(());
        }
        let Some((above, key)) = pointer.rsplit_once('/') else { return Ok(()) };
        self.set(above, &unescape(key), empty)
    }
}

fn add(path: String, value: Value) -> Operation {
    Operation { op: "add", path, value }
}

/// A key as a part of a JSON pointer (RFC 6901).
pub(crate) fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn unescape(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}
