//! What goes into a state store and what comes out.

use std::num::NonZeroU32;
use std::time::SystemTime;

use bytes::Bytes;
use thiserror::Error;

/// Longest life of an entry, in seconds: what Dapr takes.
const LONGEST_TTL: i64 = i32::MAX as i64;

/// The value of an entry. Engines that store text distinguish the two kinds, as Dapr does: a value
/// over HTTP is a document, a value over gRPC is bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A JSON document, as text.
    Json(Bytes),
    /// Opaque bytes.
    Bytes(Bytes),
}

impl Value {
    /// What is read back.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        match self {
            Self::Json(bytes) | Self::Bytes(bytes) => bytes,
        }
    }
}

/// A stored entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub value: Bytes,
    /// Changes with every write; `None` for what others wrote without one.
    pub etag: Option<String>,
    /// When it will be gone; `None` if never.
    pub expires: Option<SystemTime>,
}

/// What a write without an etag means.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Concurrency {
    /// It wins over what is there.
    #[default]
    LastWrite,
    /// It is refused if something is there.
    FirstWrite,
}

/// When a write is done, and what a read may miss.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Consistency {
    /// As soon as the engine has it.
    #[default]
    Eventual,
    /// Once its replicas have it too, where there are any.
    Strong,
}

/// How long what is written lives.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Ttl {
    /// The time to live of the component; without one the entry does not expire.
    #[default]
    Unsaid,
    /// The entry does not expire, even if the component has a time to live.
    Forever,
    /// So many seconds.
    Seconds(NonZeroU32),
}

/// A text is no time to live.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("ttlInSeconds is {0:?}; give whole seconds up to 2147483647, or -1 for no end")]
pub struct IllegalTtl(pub String);

impl Ttl {
    /// Reads `ttlInSeconds` of a request: whole seconds. 0, -1 and an empty text mean no end.
    ///
    /// # Errors
    /// [`IllegalTtl`].
    pub fn parse(text: &str) -> Result<Self, IllegalTtl> {
        if text.is_empty() {
            return Ok(Self::Unsaid);
        }
        let seconds = text.parse::<i64>().ok().filter(|given| (-1..=LONGEST_TTL).contains(given));
        let seconds = seconds.ok_or_else(|| IllegalTtl(text.to_owned()))?;
        let seconds = u32::try_from(seconds).ok().and_then(NonZeroU32::new);
        Ok(seconds.map_or(Self::Forever, Self::Seconds))
    }

    /// Seconds to live. `unsaid` is the component's value, which applies if the request has none.
    pub(crate) fn seconds(self, unsaid: Option<NonZeroU32>) -> Option<u32> {
        match self {
            Self::Unsaid => unsaid.map(NonZeroU32::get),
            Self::Forever => None,
            Self::Seconds(seconds) => Some(seconds.get()),
        }
    }
}

/// Writes a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Set {
    pub key: String,
    pub value: Value,
    /// Only over the entry that has this etag. An empty one is none.
    pub etag: Option<String>,
    pub concurrency: Concurrency,
    pub consistency: Consistency,
    pub ttl: Ttl,
}

impl Set {
    /// A write that wins over what is there.
    pub fn new(key: impl Into<String>, value: Value) -> Self {
        Self {
            key: key.into(),
            value,
            etag: None,
            concurrency: Concurrency::default(),
            consistency: Consistency::default(),
            ttl: Ttl::default(),
        }
    }
}

/// Removes a key; to remove what is not there is no failure, unless an etag is given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delete {
    pub key: String,
    /// Only the entry that has this etag. An empty one is none.
    pub etag: Option<String>,
    pub concurrency: Concurrency,
    pub consistency: Consistency,
}

impl Delete {
    /// Removes whatever is there.
    pub fn new(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            etag: None,
            concurrency: Concurrency::default(),
            consistency: Consistency::default(),
        }
    }
}

/// One change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    Set(Set),
    Delete(Delete),
}

impl Op {
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Set(set) => &set.key,
            Self::Delete(delete) => &delete.key,
        }
    }

    /// The requested etag; an empty one is none.
    #[must_use]
    pub fn etag(&self) -> Option<&str> {
        let etag = match self {
            Self::Set(set) => set.etag.as_deref(),
            Self::Delete(delete) => delete.etag.as_deref(),
        };
        etag.filter(|etag| !etag.is_empty())
    }

    pub(crate) fn concurrency(&self) -> Concurrency {
        match self {
            Self::Set(set) => set.concurrency,
            Self::Delete(delete) => delete.concurrency,
        }
    }

    pub(crate) fn consistency(&self) -> Consistency {
        match self {
            Self::Set(set) => set.consistency,
            Self::Delete(delete) => delete.consistency,
        }
    }

    /// What it requires of the entry that is there.
    pub(crate) fn condition(&self) -> Condition<'_> {
        match (self.etag(), self, self.concurrency()) {
            (Some(etag), _, _) => Condition::Etag(etag),
            (None, Self::Set(_), Concurrency::FirstWrite) => Condition::Absent,
            (None, _, _) => Condition::None,
        }
    }
}

/// What a change requires of the entry that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition<'a> {
    None,
    /// There is none.
    Absent,
    /// It has this etag.
    Etag(&'a str),
}

/// A number under a key of its own that only grows. A write with a larger number excludes all
/// writers with a smaller one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fence {
    pub key: String,
    pub number: u64,
}

/// Changes that happen together or not at all. Their etags are those before the transaction; of
/// two changes of one key the last wins.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Transaction {
    pub ops: Vec<Op>,
    /// The transaction is made only if the stored number is at most this one, which is then stored.
    pub fence: Option<Fence>,
}

/// What an engine can do, by the words of Dapr's metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capability {
    Etag,
    Transactional,
    Ttl,
    /// No API reaches it, in Dapr neither.
    DeleteWithPrefix,
    /// As the one before.
    KeysLike,
    ActorStateStore,
}

impl Capability {
    /// What Dapr names for most of the stores that are served here.
    pub(crate) const USUAL: &[Self] =
        &[Self::Etag, Self::Transactional, Self::Ttl, Self::KeysLike, Self::ActorStateStore];

    /// The word in `GetMetadata`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Etag => "ETAG",
            Self::Transactional => "TRANSACTIONAL",
            Self::Ttl => "TTL",
            Self::DeleteWithPrefix => "DELETE_WITH_PREFIX",
            Self::KeysLike => "KEYS_LIKE",
            Self::ActorStateStore => "ACTOR",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_live_is_whole_seconds_or_none() {
        let seconds = |n| Ok(Ttl::Seconds(NonZeroU32::new(n).unwrap()));
        assert_eq!(Ttl::parse(""), Ok(Ttl::Unsaid));
        assert_eq!(Ttl::parse("-1"), Ok(Ttl::Forever));
        assert_eq!(Ttl::parse("0"), Ok(Ttl::Forever));
        assert_eq!(Ttl::parse("1"), seconds(1));
        assert_eq!(Ttl::parse("2147483647"), seconds(2_147_483_647));
        for wrong in ["-2", "2147483648", "1.5", "1s", " 1", "ever"] {
            assert_eq!(Ttl::parse(wrong), Err(IllegalTtl(wrong.to_owned())));
        }
    }

    #[test]
    fn an_empty_etag_is_none() {
        let mut set = Set::new("k", Value::Bytes(Bytes::new()));
        set.etag = Some(String::new());
        assert_eq!(Op::Set(set.clone()).condition(), Condition::None);
        set.concurrency = Concurrency::FirstWrite;
        assert_eq!(Op::Set(set.clone()).condition(), Condition::Absent);
        set.etag = Some("7".to_owned());
        assert_eq!(Op::Set(set).condition(), Condition::Etag("7"));
        let mut delete = Delete::new("k");
        delete.concurrency = Concurrency::FirstWrite;
        assert_eq!(Op::Delete(delete).condition(), Condition::None);
    }
}
