//! Fortio's result files, written and read: what its report server, and others, show.
//!
//! [`write()`] writes what such a file can hold of a run, in seconds, with at most [`MAX_BUCKETS`]
//! buckets; the whole result is added under [`OWN_KEY`], which other readers ignore. [`read()`]
//! uses that if it is there, else the buckets. Nighthawk's output in this format is read as well: it
//! has numbers as texts and names no kind of run. Fortio's own clock starts at the send, so a file of
//! its making has service times; see [`Imported::from_send`].

mod buckets;
mod read;
mod write;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use read::{Imported, read};
pub use write::write;

/// Most buckets that are written.
pub const MAX_BUCKETS: usize = 300;

/// Most buckets that are read of one histogram.
pub const MAX_BUCKETS_READ: usize = 100_000;

/// Longest file that is read, in bytes.
pub const FILE_LIMIT_BYTES: usize = 64 << 20;

/// The key of the whole result in a file that was written here.
pub const OWN_KEY: &str = "TollwayRun";

/// A histogram as Fortio writes it; times in seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct HistogramData {
    #[serde(deserialize_with = "whole")]
    count: i64,
    min: f64,
    max: f64,
    sum: f64,
    avg: f64,
    std_dev: f64,
    /// Upwards; absent where no sample is.
    #[serde(deserialize_with = "null_as_empty")]
    data: Vec<Bucket>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_empty")]
    percentiles: Vec<Percentile>,
}

/// Samples above `start` up to `end`; the first holds its start as well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Bucket {
    start: f64,
    end: f64,
    /// Of all samples, those up to `end`.
    percent: f64,
    #[serde(deserialize_with = "whole")]
    count: i64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Percentile {
    percentile: f64,
    value: f64,
}

/// Why a text is not a result of Fortio that can be shown.
#[derive(Debug, Error)]
pub enum FortioError {
    #[error("the file is {length} bytes long; at most {FILE_LIMIT_BYTES} are read")]
    TooLong { length: usize },
    #[error("the file is not a result of Fortio")]
    Json(#[source] serde_json::Error),
    #[error("the file is no result of Fortio: it has no {0}")]
    Missing(&'static str),
    #[error("a run of the kind {0:?} has no place in a record: HTTP, GRPC and TCP have")]
    Kind(String),
    #[error("a histogram has {0} buckets; at most {MAX_BUCKETS_READ} are read")]
    TooManyBuckets(usize),
    #[error(
        "bucket {index} of a histogram is not one: it must end where it starts or later, both \
         from 0 on, and hold at least no sample"
    )]
    Bucket { index: usize },
    #[error("the file says {0:?} of its own run, which cannot be read")]
    Own(&'static str, #[source] serde_json::Error),
}

/// Go writes an empty list as `null`.
fn null_as_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<Vec<T>>::deserialize(deserializer)?.unwrap_or_default())
}

/// A whole number, or a text of one: so JSON made of protobuf has those of 64 bits.
#[derive(Clone, Copy, Default)]
struct Whole(i64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Whole(i64),
            Fraction(f64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Whole(number) => Ok(Self(number)),
            // Nighthawk's times are floating-point numbers.
            Written::Fraction(number) => Ok(Self(number as i64)),
            Written::Text(text) => text.parse().map(Self).map_err(serde::de::Error::custom),
        }
    }
}

fn whole<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    Whole::deserialize(deserializer).map(|Whole(number)| number)
}

#[cfg(test)]
mod tests;
