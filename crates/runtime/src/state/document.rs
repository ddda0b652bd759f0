//! The documents of the state API over HTTP. Unknown fields are ignored, as in Dapr.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tollway_state::{Concurrency, Consistency, Delete, Entry, Op, Set, Ttl, Value};

/// The metadata entry with the time to live.
const TTL: &str = "ttlInSeconds";
/// The metadata entry with the time at which an entry expires.
pub(crate) const TTL_END: &str = "ttlExpireTime";

/// One entry to write or to delete.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct Item<'a> {
    #[serde(default)]
    pub(crate) key: String,
    #[serde(default, borrow)]
    value: Option<&'a RawValue>,
    #[serde(default)]
    etag: Option<String>,
    #[serde(default)]
    metadata: Option<HashMap<String, String>>,
    #[serde(default)]
    options: Option<Options>,
}

#[derive(Default, Deserialize)]
pub(crate) struct Options {
    #[serde(default)]
    concurrency: String,
    #[serde(default)]
    consistency: String,
}

/// The body of a transaction.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct Steps<'a> {
    #[serde(default, borrow)]
    pub(super) operations: Vec<Step<'a>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct Step<'a> {
    #[serde(default)]
    pub(crate) operation: String,
    #[serde(borrow)]
    pub(crate) request: Item<'a>,
}

/// The body of a bulk get.
#[derive(Deserialize)]
pub(super) struct Keys {
    #[serde(default)]
    pub(super) keys: Vec<String>,
}

/// One entry of the answer to a bulk get.
#[derive(Serialize)]
pub(super) struct Found<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<HashMap<&'static str, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Item<'_> {
    /// The write that it describes. Metadata of the request's query override its own.
    ///
    /// # Errors
    /// The mistake, as text.
    pub(crate) fn into_set(self, query: &HashMap<String, String>) -> Result<Op, String> {
        let own = self.metadata.as_ref().and_then(|metadata| metadata.get(TTL));
        let ttl = query.get(TTL).or(own).map_or("", String::as_str);
        let ttl = Ttl::parse(ttl).map_err(|error| error.to_string())?;
        let (concurrency, consistency) = self.options.unwrap_or_default().read()?;
        let document = self.value.map_or("null", RawValue::get);
        Ok(Op::Set(Set {
            key: self.key,
            value: Value::Json(document.to_owned().into()),
            etag: self.etag,
            concurrency,
            consistency,
            ttl,
        }))
    }

    /// The removal that it describes.
    ///
    /// # Errors
    /// The mistake, as text.
    pub(crate) fn into_delete(self) -> Result<Op, String> {
        let (concurrency, consistency) = self.options.unwrap_or_default().read()?;
        Ok(Op::Delete(Delete { key: self.key, etag: self.etag, concurrency, consistency }))
    }
}

impl Options {
    pub(super) fn new(concurrency: String, consistency: String) -> Self {
        Self { concurrency, consistency }
    }

    /// # Errors
    /// A word that Dapr does not have, as text.
    pub(super) fn read(&self) -> Result<(Concurrency, Consistency), String> {
        let concurrency = match self.concurrency.as_str() {
            "" | "last-write" => Concurrency::LastWrite,
            "first-write" => Concurrency::FirstWrite,
            other => return Err(format!("unrecognized concurrency model '{other}'")),
        };
        let consistency = match self.consistency.as_str() {
            "" | "eventual" => Consistency::Eventual,
            "strong" => Consistency::Strong,
            other => return Err(format!("unrecognized consistency model '{other}'")),
        };
        Ok((concurrency, consistency))
    }
}

impl<'a> Found<'a> {
    /// A value that is not JSON becomes an error of its entry.
    pub(super) fn new(key: &'a str, entry: Option<&'a Entry>) -> Self {
        let document = entry.map(|entry| serde_json::from_slice::<&RawValue>(&entry.value));
        let (data, error) = match document {
            None => (None, None),
            Some(Ok(data)) => (Some(data), None),
            Some(Err(error)) => (None, Some(format!("the value is no JSON: {error}"))),
        };
        let end = entry.and_then(expiry).map(|end| HashMap::from([(TTL_END, end)]));
        let etag = entry.and_then(|entry| entry.etag.as_deref());
        Self { key, data, etag, metadata: end, error }
    }
}

/// The time at which an entry expires, in the format of RFC 3339.
pub(crate) fn expiry(entry: &Entry) -> Option<String> {
    entry.expires.map(|end| humantime::format_rfc3339_seconds(end).to_string())
}

/// The time to live in the metadata of a request.
///
/// # Errors
/// The mistake, as text.
pub(crate) fn ttl_of(metadata: &HashMap<String, String>) -> Result<Ttl, String> {
    let ttl = metadata.get(TTL).map_or("", String::as_str);
    Ttl::parse(ttl).map_err(|error| error.to_string())
}
