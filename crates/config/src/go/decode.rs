//! Types out of trees, by the rules of Go's decoders.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use serde::de::value::{StrDeserializer, U64Deserializer};
use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer,
    MapAccess, SeqAccess, Visitor,
};

use super::Reader;
use super::at::{At, PLACED};
use super::scalar::{Resolved, as_json, as_text, old_switch};
use super::tree::{Content, Key, Node};
use crate::yaml::YamlError;

/// Most parts that are read of a document, those of aliases each time.
const PARTS_LIMIT: usize = 200_000;
/// Most bytes of texts that are read of a document, those of aliases each time.
const TEXT_LIMIT_BYTES: usize = 16 * 1024 * 1024;
/// The type of Kubernetes' metadata, whose further fields mean nothing to a reader.
const OBJECT_META: &str = "ObjectMeta";
/// The name by which a text in Go's form is recognized.
const GO_TEXT: &str = "tollway::GoText";

/// A field that the type does not have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unknown {
    pub at: At,
    pub name: String,
}

/// What was read, and which fields have no effect.
#[derive(Debug)]
pub struct Decoded<T> {
    pub value: T,
    pub unknown: Vec<Unknown>,
}

/// A value of any kind as the text that Go makes of it: of a number its shortest form, of a list
/// or mapping JSON. `None` for null.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct GoText(pub Option<String>);

/// Reads a type from a part of a document.
///
/// # Errors
/// [`YamlError`] for a value of another kind than its field takes.
pub fn decode<T: DeserializeOwned>(
    node: &Rc<Node>,
    reader: Reader,
    source: &str,
) -> Result<Decoded<T>, YamlError> {
    let around =
        Around { reader, unknown: RefCell::default(), parts: Cell::new(0), bytes: Cell::new(0) };
    let value = T::deserialize(Part { node, around: &around }).map_err(|error| {
        let at = error.at.unwrap_or(node.at);
        let source_name = source.to_owned();
        YamlError { source_name, line: at.line, column: at.column, what: error.what }
    })?;
    Ok(Decoded { value, unknown: around.unknown.into_inner() })
}

struct Around {
    reader: Reader,
    unknown: RefCell<Vec<Unknown>>,
    parts: Cell<usize>,
    bytes: Cell<usize>,
}

/// Why a value does not fit.
#[derive(Debug)]
struct Misfit {
    at: Option<At>,
    what: String,
}

impl Misfit {
    fn at(self, at: At) -> Self {
        Self { at: self.at.or(Some(at)), ..self }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Misfit {}

impl serde::de::Error for Misfit {
    fn custom<T: fmt::Display>(what: T) -> Self {
        Self { at: None, what: what.to_string() }
    }
}

/// A part that is about to be read.
#[derive(Clone, Copy)]
struct Part<'a> {
    node: &'a Node,
    around: &'a Around,
}

impl<'a> Part<'a> {
    fn of(self, node: &'a Node) -> Self {
        Self { node, around: self.around }
    }

    fn count(self) -> Result<(), Misfit> {
        let Around { parts, bytes, .. } = self.around;
        parts.set(parts.get() + 1);
        bytes.set(bytes.get() + self.scalar().map_or(0, |(written, _)| written.len()));
        if parts.get() > PARTS_LIMIT {
            return Err(Misfit::custom(format!("more than {PARTS_LIMIT} parts")));
        }
        if bytes.get() > TEXT_LIMIT_BYTES {
            return Err(Misfit::custom(format!("more than {TEXT_LIMIT_BYTES} bytes of text")));
        }
        Ok(())
    }

    fn wrong(self, expected: &str) -> Misfit {
        let found = match &self.node.content {
            Content::List(_) => "a list".to_owned(),
            Content::Fields(_) => "a mapping".to_owned(),
            Content::Scalar { written, .. } => format!("`{}`", shortened(written)),
        };
        Misfit::custom(format!("expected {expected}, found {found}")).at(self.node.at)
    }

    fn scalar(self) -> Option<(&'a str, Resolved)> {
        match &self.node.content {
            Content::Scalar { written, resolved } => Some((written, *resolved)),
            Content::List(_) | Content::Fields(_) => None,
        }
    }

    /// What a field takes that is a text.
    fn text(self) -> Result<String, Misfit> {
        let (written, resolved) = self.scalar().ok_or_else(|| self.wrong("a text"))?;
        let number = match self.around.reader {
            Reader::Resource => as_text(resolved),
            Reader::RunFile | Reader::Configuration => None,
        };
        Ok(match resolved == Resolved::Null {
            true => String::new(),
            false => number.unwrap_or_else(|| written.to_owned()),
        })
    }

    fn switch(self) -> Result<bool, Misfit> {
        let is_new = self.around.reader == Reader::Configuration;
        match self.scalar() {
            Some((_, Resolved::Bool(yes))) => Ok(yes),
            Some((_, Resolved::Null)) => Ok(false),
            Some((written, Resolved::Text)) if is_new && old_switch(written).is_some() => {
                Ok(old_switch(written).unwrap_or_default())
            }
            _ => Err(self.wrong("true or false")),
        }
    }

    fn whole(self) -> Result<i128, Misfit> {
        match self.scalar() {
            Some((_, Resolved::Int(number))) => Ok(number.into()),
            Some((_, Resolved::Uint(number))) => Ok(number.into()),
            Some((_, Resolved::Null)) => Ok(0),
            #[expect(clippy::cast_possible_truncation, reason = "it is whole and small")]
            Some((_, Resolved::Float(number))) if number.fract() == 0.0 && number.abs() < 1e15 => {
                Ok(number as i128)
            }
            _ => Err(self.wrong("a whole number")),
        }
    }

    fn number(self) -> Result<f64, Misfit> {
        #[expect(clippy::cast_precision_loss, reason = "so Go reads them")]
        match self.scalar() {
            Some((_, Resolved::Float(number))) if number.is_finite() => Ok(number),
            Some((_, Resolved::Int(number))) => Ok(number as f64),
            Some((_, Resolved::Uint(number))) => Ok(number as f64),
            Some((_, Resolved::Null)) => Ok(0.0),
            _ => Err(self.wrong("a number")),
        }
    }

    fn items(self) -> Result<&'a [Rc<Node>], Misfit> {
        match &self.node.content {
            Content::List(items) => Ok(items),
            _ if self.node.is_null() => Ok(&[]),
            Content::Fields(_) | Content::Scalar { .. } => Err(self.wrong("a list")),
        }
    }

    fn fields(self) -> Result<&'a [(Key, Rc<Node>)], Misfit> {
        match &self.node.content {
            Content::Fields(fields) => Ok(fields),
            _ if self.node.is_null() => Ok(&[]),
            Content::List(_) | Content::Scalar { .. } => Err(self.wrong("a mapping")),
        }
    }

    /// The field that Go would fill from a key.
    fn field(self, key: &str, fields: &[&'static str]) -> Option<&'static str> {
        let exact = fields.iter().find(|field| **field == key);
        let in_any_case = || fields.iter().find(|field| field.eq_ignore_ascii_case(key));
        match self.around.reader {
            Reader::Resource => exact.or_else(in_any_case),
            Reader::RunFile | Reader::Configuration => exact,
        }
        .copied()
    }

    /// As JSON, for values of any kind.
    fn json(self) -> Result<serde_json::Value, Misfit> {
        use serde_json::Value;
        self.count()?;
        Ok(match &self.node.content {
            Content::List(items) => {
                items.iter().map(|item| self.of(item).json()).collect::<Result<_, _>>()?
            }
            Content::Fields(fields) => {
                let field =
                    |(key, node): &(Key, Rc<Node>)| Ok((key.name.clone(), self.of(node).json()?));
                Value::Object(fields.iter().map(field).collect::<Result<_, Misfit>>()?)
            }
            Content::Scalar { written, resolved } => match resolved {
                Resolved::Null => Value::Null,
                Resolved::Bool(yes) => Value::Bool(*yes),
                Resolved::Int(number) => Value::from(*number),
                Resolved::Uint(number) => Value::from(*number),
                Resolved::Float(number) => Value::from(*number),
                Resolved::Text => Value::String(written.clone()),
            },
        })
    }

    fn go_text(self) -> Result<Option<String>, Misfit> {
        Ok(match self.scalar() {
            Some((_, Resolved::Null)) => None,
            Some((written, resolved)) => {
                Some(as_json(resolved).unwrap_or_else(|| written.to_owned()))
            }
            None => Some(self.json()?.to_string()),
        })
    }
}

/// The start of a value, for messages.
fn shortened(text: &str) -> String {
    let mut start: String = text.chars().take(40).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    start
}

impl<'de> Deserialize<'de> for GoText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = GoText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E: serde::de::Error>(self) -> Result<GoText, E> {
                Ok(GoText(None))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<GoText, E> {
                Ok(GoText(Some(text.to_owned())))
            }
        }
        deserializer.deserialize_newtype_struct(GO_TEXT, Text)
    }
}

macro_rules! whole_numbers {
    ($($name:ident $visit:ident $number:ty),* $(,)?) => {
        $(fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
            let number = self.whole()?;
            let number = <$number>::try_from(number);
            visitor.$visit(number.map_err(|_| self.wrong("a smaller number"))?)
        })*
    };
}

impl<'de> Deserializer<'de> for Part<'_> {
    type Error = Misfit;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match &self.node.content {
            Content::List(_) => self.deserialize_seq(visitor),
            Content::Fields(_) => self.deserialize_map(visitor),
            Content::Scalar { written, resolved } => match resolved {
                Resolved::Null => visitor.visit_unit(),
                Resolved::Bool(yes) => visitor.visit_bool(*yes),
                Resolved::Int(number) => visitor.visit_i64(*number),
                Resolved::Uint(number) => visitor.visit_u64(*number),
                Resolved::Float(_) => visitor.visit_f64(self.number()?),
                Resolved::Text => visitor.visit_str(written),
            },
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_bool(self.switch()?)
    }

    whole_numbers! {
        deserialize_i8 visit_i8 i8,
        deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64,
        deserialize_u8 visit_u8 u8,
        deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_f64(self.number()?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_string(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_string(self.text()?)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        if self.node.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        match name {
            PLACED => visitor.visit_seq(PlacedParts { part: self, next: 0 }),
            GO_TEXT => match self.go_text()? {
                Some(text) => visitor.visit_str(&text),
                None => visitor.visit_unit(),
            },
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_seq(Items { part: self, left: self.items()? })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        let fields = self.fields()?.iter();
        let fields = fields.map(|(key, node)| (key.name.as_str(), &**node)).collect();
        visitor.visit_map(Fields::new(self, fields))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        let mut found: Vec<(&str, &str, &Node)> = Vec::new();
        for (key, node) in self.fields()? {
            match self.field(&key.name, fields) {
                // Null leaves a field as it is.
                Some(_) if node.is_null() => {}
                Some(field) => match found.iter_mut().find(|(known, ..)| *known == field) {
                    // Go reads the keys in the order of their bytes, and the last counts.
                    Some(known) if known.1 < key.name.as_str() => *known = (field, &key.name, node),
                    Some(_) => {}
                    None => found.push((field, &key.name, node)),
                },
                None if name == OBJECT_META => {}
                None => {
                    let unknown = Unknown { at: key.at, name: key.name.clone() };
                    let mut all = self.around.unknown.borrow_mut();
                    // A part that aliases share is read several times.
                    if !all.contains(&unknown) {
                        all.push(unknown);
                    }
                }
            }
        }
        let found = found.into_iter().map(|(field, _, node)| (field, node)).collect();
        visitor.visit_map(Fields::new(self, found))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_unit()
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        visitor.visit_enum(self.text()?.into_deserializer())
    }

    serde::forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct identifier
    }
}

struct Items<'a> {
    part: Part<'a>,
    left: &'a [Rc<Node>],
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Misfit;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Misfit> {
        let Some((node, left)) = self.left.split_first() else { return Ok(None) };
        self.left = left;
        let part = self.part.of(node);
        part.count()?;
        seed.deserialize(part).map(Some).map_err(|error| error.at(node.at))
    }
}

struct Fields<'a> {
    part: Part<'a>,
    left: std::vec::IntoIter<(&'a str, &'a Node)>,
    value: Option<&'a Node>,
}

impl<'a> Fields<'a> {
    fn new(part: Part<'a>, fields: Vec<(&'a str, &'a Node)>) -> Self {
        Self { part, left: fields.into_iter(), value: None }
    }
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Misfit;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Misfit> {
        let Some((name, node)) = self.left.next() else { return Ok(None) };
        self.value = Some(node);
        self.part.count()?;
        seed.deserialize(StrDeserializer::<Misfit>::new(name)).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Misfit> {
        let node = self.value.take().ok_or_else(|| Misfit::custom("a value without a key"))?;
        seed.deserialize(self.part.of(node)).map_err(|error| error.at(node.at))
    }
}

/// Line, column and value.
struct PlacedParts<'a> {
    part: Part<'a>,
    next: u8,
}

impl<'de> SeqAccess<'de> for PlacedParts<'_> {
    type Error = Misfit;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Misfit> {
        let At { line, column } = self.part.node.at;
        self.next += 1;
        match self.next {
            1 => seed.deserialize(U64Deserializer::<Misfit>::new(line)).map(Some),
            2 => seed.deserialize(U64Deserializer::<Misfit>::new(column)).map(Some),
            3 => seed.deserialize(self.part).map(Some),
            _ => Ok(None),
        }
    }
}
