//! JSON bodies of Dapr's API, read as Go's decoder reads them: fields in any case, of a field that
//! is there twice the last, null as absent but for the text of a value, unknown fields passed over,
//! and nothing is read behind the document.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Deserialize, Deserializer, IntoDeserializer, MapAccess, Unexpected, Visitor};
use serde_json::value::RawValue;
use serde_json::{Deserializer as Json, Error};

/// How the name of a type begins that takes the text of a value.
const RAW: &str = "$serde_json";

/// Reads a document.
///
/// # Errors
/// For what is no JSON, and values of another kind than their fields take.
pub(crate) fn from_slice<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, Error> {
    let document: &RawValue = Deserialize::deserialize(&mut Json::from_slice(body))?;
    T::deserialize(Value(document))
}

/// A value that is not read yet.
#[derive(Clone, Copy)]
struct Value<'de>(&'de RawValue);

/// The keys and values of an object, in their order.
struct Pairs<'de>(Vec<(Cow<'de, str>, &'de RawValue)>);

impl<'de> Value<'de> {
    fn json(self) -> Json<serde_json::de::StrRead<'de>> {
        Json::from_str(self.0.get())
    }

    fn is_null(self) -> bool {
        self.0.get() == "null"
    }

    fn pairs(self) -> Result<Vec<(Cow<'de, str>, &'de RawValue)>, Error> {
        Pairs::deserialize(&mut self.json()).map(|pairs| pairs.0)
    }
}

impl<'de> IntoDeserializer<'de, Error> for Value<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

macro_rules! forward {
    ($($name:ident)*) => {
        $(fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.json().$name(visitor)
        })*
    };
}

/// The same, with a null read as the value that a field has without it.
macro_rules! forward_or {
    ($($visit:ident($nothing:expr): $($name:ident)*;)*) => {
        $($(fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            if self.is_null() { visitor.$visit($nothing) } else { self.json().$name(visitor) }
        })*)*
    };
}

impl<'de> Deserializer<'de> for Value<'de> {
    type Error = Error;

    forward! {
        deserialize_any deserialize_char deserialize_unit deserialize_identifier
        deserialize_ignored_any
    }

    forward_or! {
        visit_bool(false): deserialize_bool;
        visit_u64(0):
            deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
            deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128;
        visit_f64(0.0): deserialize_f32 deserialize_f64;
        visit_borrowed_str(""): deserialize_str deserialize_string;
        visit_borrowed_bytes(b""): deserialize_bytes deserialize_byte_buf;
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.json().deserialize_unit_struct(name, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match name.starts_with(RAW) {
            true => self.json().deserialize_newtype_struct(name, visitor),
            false => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let items: Option<Vec<&'de RawValue>> = Deserialize::deserialize(&mut self.json())?;
        let items = items.unwrap_or_default().into_iter().map(Value);
        visitor.visit_seq(SeqDeserializer::new(items))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let pairs = if self.is_null() { Vec::new() } else { self.pairs()? };
        let pairs = pairs.into_iter().map(|(key, value)| (key, Value(value)));
        visitor.visit_map(MapDeserializer::new(pairs))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let mut found: Vec<(&'static str, Self)> = Vec::with_capacity(fields.len());
        for (key, value) in self.pairs()? {
            let exact = fields.iter().find(|field| **field == key);
            let field =
                exact.or_else(|| fields.iter().find(|field| field.eq_ignore_ascii_case(&key)));
            let Some(field) = field else { continue };
            match found.iter_mut().find(|(known, _)| known == field) {
                // Null leaves a field as it is. Without an earlier value its type says what null means: to
                // the text of a value it is one.
                Some(_) if Value(value).is_null() => {}
                Some(known) => known.1 = Self(value),
                None => found.push((field, Self(value))),
            }
        }
        visitor.visit_map(MapDeserializer::new(found.into_iter()))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.json().deserialize_enum(name, variants, visitor)
    }
}

impl<'de> Deserialize<'de> for Pairs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(Key(key)) = map.next_key()? {
                    pairs.push((key, map.next_value()?));
                }
                Ok(Pairs(pairs))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Pairs<'de>, E> {
                Err(E::invalid_type(Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// A key, borrowed where it has no escapes.
struct Key<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(serde::Deserialize, Default, Debug)]
    #[serde(default, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
    struct Thing<'a> {
        due_time: String,
        count: Option<u32>,
        #[serde(borrow)]
        data: Option<&'a RawValue>,
        inner: Vec<Thing<'a>>,
        metadata: BTreeMap<String, String>,
        #[serde(alias = "max_retries")]
        max_retries: u32,
    }

    fn read(text: &str) -> Thing<'_> {
        from_slice(text.as_bytes()).unwrap()
    }

    #[test]
    fn names_are_taken_in_any_case_at_every_depth() {
        let thing = read(
            r#" {"DueTime":"1h","INNER":[{"duetime":"2h","Data": { "Key" : 1 }}],"Max_Retries":3}"#,
        );
        assert_eq!((thing.due_time.as_str(), thing.max_retries), ("1h", 3));
        assert_eq!(thing.inner[0].due_time, "2h");
        assert_eq!(thing.inner[0].data.unwrap().get(), r#"{ "Key" : 1 }"#);
        assert_eq!(read(r#"{"due\u0054ime":"1h"}"#).due_time, "1h");
    }

    #[test]
    fn keys_of_maps_stay_as_they_are() {
        let thing = read(r#"{"metadata":{"ttlInSeconds":"1","TtlInSeconds":"2"}}"#);
        let metadata: Vec<_> = thing.metadata.into_iter().collect();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(metadata, [pair("TtlInSeconds", "2"), pair("ttlInSeconds", "1")]);
    }

    #[test]
    fn null_is_as_absent_and_of_a_name_twice_the_last_counts() {
        let thing =
            read(r#"{"dueTime":null,"inner":null,"metadata":null,"count":null,"max_retries":1}"#);
        assert!(thing.due_time.is_empty() && thing.inner.is_empty() && thing.count.is_none());
        assert_eq!(read(r#"{"count":1,"Count":2,"count":null}"#).count, Some(2));
        let thing = read(r#"{"max_retries":null,"metadata":{"a":null}}"#);
        assert_eq!((thing.max_retries, thing.metadata["a"].as_str()), (0, ""));
        assert_eq!(from_slice::<&RawValue>(b"null").unwrap().get(), "null");
    }

    #[test]
    fn unknown_fields_and_what_follows_are_passed_over() {
        assert_eq!(read(r#"{"colour":{"a":[1]},"count":1} {"count":2}"#).count, Some(1));
        let list: Vec<Thing<'_>> = from_slice(b"null").unwrap();
        assert!(list.is_empty());
    }

    /// Go puts U+FFFD in place of each such byte, so that Dapr stores another value than was sent.
    #[test]
    fn what_is_no_utf_8_is_refused_and_not_stored_as_something_else() {
        for text in [&b"{\"dueTime\":\"\xFCh\"}"[..], b"{\"data\":\"Zo\xEB\"}", b"{\"\xFF\":1}"] {
            assert!(from_slice::<Thing<'_>>(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn values_of_another_kind_are_refused() {
        for text in [
            r#"{"dueTime":1}"#,
            r#"{"count":"1"}"#,
            r#"{"inner":{}}"#,
            r#"["1h"]"#,
            "null",
            "7",
            "{",
            "",
            r#"{"dueTime":"1h""#,
            r#"{"metadata":{"a":1}}"#,
        ] {
            assert!(from_slice::<Thing<'_>>(text.as_bytes()).is_err(), "{text}");
        }
    }
}
