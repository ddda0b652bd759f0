//! A part of a document as JSON, as Go's readers of resources make it.

use serde_json::{Map, Number, Value};

use super::at::At;
use super::scalar::Resolved;
use super::tree::{Content, Node};
use crate::yaml::YamlError;

/// Most values of a document. Aliases count as often as they occur, so a small text cannot become a large
/// value.
const VALUES_LIMIT: usize = 2_000_000;

/// The value of a document's root, or of a part of it. `source` names the text in errors.
///
/// # Errors
/// [`YamlError`] for a number that JSON does not have, and for a value that is too large.
pub fn to_json(node: &Node, source: &str) -> Result<Value, YamlError> {
    let mut left = VALUES_LIMIT;
    convert(node, &mut left).map_err(|(at, what)| YamlError {
        source_name: source.to_owned(),
        line: at.line,
        column: at.column,
        what,
    })
}

fn convert(node: &Node, left: &mut usize) -> Result<Value, (At, String)> {
    *left = left.checked_sub(1).ok_or_else(|| {
        (node.at, format!("a document has more than {VALUES_LIMIT} values; split it"))
    })?;
    Ok(match &node.content {
        Content::Scalar { written, resolved } => match *resolved {
            Resolved::Null => Value::Null,
            Resolved::Bool(yes) => yes.into(),
            Resolved::Int(number) => number.into(),
            Resolved::Uint(number) => number.into(),
            Resolved::Float(number) => {
                Number::from_f64(number).map(Value::Number).ok_or_else(|| {
                    (node.at, format!("`{written}` is no number of JSON; write a finite one"))
                })?
            }
            Resolved::Text => written.as_str().into(),
        },
        Content::List(items) => {
            let items = items.iter().map(|item| convert(item, left));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        Content::Fields(fields) => {
            let fields =
                fields.iter().map(|(key, value)| Ok((key.name.clone(), convert(value, left)?)));
            Value::Object(fields.collect::<Result<Map<_, _>, _>>()?)
        }
    })
}
