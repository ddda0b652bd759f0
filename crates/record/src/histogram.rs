//! Latency histograms: recording, merging, percentiles and the HDR V2 text form.
//!
//! Values are nanoseconds up to one hour. Four significant digits, not the customary three: on a
//! path of 138 ms three digits are steps of 131 µs, wider than the added latency that is to be
//! shown. The sum, minimum and maximum are exact, in addition to the buckets.

use std::fmt;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::traffic::LatencyUs;

/// Longest latency that is resolved, in nanoseconds; longer ones count as this long.
pub const LONGEST_NS: u64 = 3_600_000_000_000;

/// Samples that must lie beyond a percentile before it is printed.
pub const SAMPLES_BEYOND: u64 = 100;

/// Longest text of an encoded histogram that is read, in bytes.
pub const ENCODED_LIMIT_BYTES: usize = 8 << 20;

/// Longest binary form an encoded histogram may unfold to, in bytes.
const UNFOLDED_LIMIT_BYTES: u64 = 32 << 20;

/// Smallest latency of interest in nanoseconds; gives steps of 64 ns below 2 ms.
const LOWEST_NS: u64 = 100;

const SIGNIFICANT_DIGITS: u8 = 4;

/// Bytes before the counts in the plain V2 form, and the offset of their length.
const V2_HEADER_BYTES: usize = 40;
const V2_LENGTH_AT: usize = 4;

/// Cookies of the V2 forms that carry deflated and plain counts.
const V2_DEFLATED: [u8; 4] = 0x1c84_9314_u32.to_be_bytes();
const V2_PLAIN: [u8; 4] = 0x1c84_9313_u32.to_be_bytes();

/// Why the text form of a histogram was refused.
#[derive(Debug, Error)]
pub enum HistogramError {
    #[error("the histogram's text is {length} bytes long; at most {ENCODED_LIMIT_BYTES} are read")]
    TooLong { length: usize },
    #[error("the histogram's text is not base64")]
    Base64(#[source] base64::DecodeError),
    #[error("the histogram does not start with the cookie of HDR V2 (plain or deflated)")]
    Cookie,
    #[error("the histogram cannot be inflated; it was cut or damaged")]
    Inflate(#[source] std::io::Error),
    #[error("the histogram's header promises {promised} bytes of counts, {present} are there")]
    Length { promised: u64, present: usize },
    #[error("the histogram is not valid HDR V2")]
    Decode(#[source] hdrhistogram::serialization::DeserializeError),
}

/// Latencies in nanoseconds, about 3 MB of memory whatever the number of samples.
#[derive(Clone)]
pub struct Histogram {
    counts: hdrhistogram::Histogram<u64>,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

/// A histogram as text: HDR V2, deflated, base64; readable by every HdrHistogram library.
/// Empty text is the histogram without samples.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EncodedHistogram(String);

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty histogram.
    ///
    /// # Panics
    /// Never: the bounds are constants that the library accepts.
    #[must_use]
    pub fn new() -> Self {
        let counts =
            hdrhistogram::Histogram::new_with_bounds(LOWEST_NS, LONGEST_NS, SIGNIFICANT_DIGITS)
                .expect("constant bounds: 1 <= low, 2 * low <= high, at most five digits");
        Self { counts, sum_ns: 0, min_ns: u64::MAX, max_ns: 0 }
    }

    /// Adds one latency; more than [`LONGEST_NS`] counts as that.
    #[inline]
    pub fn record(&mut self, latency_ns: u64) {
        self.record_n(latency_ns, 1);
    }

    /// Adds the same latency `count` times.
    #[inline]
    pub fn record_n(&mut self, latency_ns: u64, count: u64) {
        if count == 0 {
            return;
        }
        let latency_ns = latency_ns.min(LONGEST_NS);
        self.counts.saturating_record_n(latency_ns, count);
        self.sum_ns += u128::from(latency_ns) * u128::from(count);
        self.min_ns = self.min_ns.min(latency_ns);
        self.max_ns = self.max_ns.max(latency_ns);
    }

    /// Adds every sample of `other`.
    ///
    /// # Panics
    /// Never: all histograms of this type have the same bounds.
    pub fn merge(&mut self, other: &Self) {
        if other.n() == 0 {
            return;
        }
        self.counts.add(&other.counts).expect("same bounds in every histogram of this type");
        self.sum_ns += other.sum_ns;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Forgets every sample and keeps the memory.
    pub fn clear(&mut self) {
        self.counts.reset();
        (self.sum_ns, self.min_ns, self.max_ns) = (0, u64::MAX, 0);
    }

    /// Number of samples.
    #[must_use]
    pub fn n(&self) -> u64 {
        self.counts.len()
    }

    /// Mean from the exact sum, in nanoseconds; `None` without samples.
    #[must_use]
    pub fn mean_ns(&self) -> Option<f64> {
        (self.n() > 0).then(|| self.sum_ns as f64 / self.n() as f64)
    }

    /// Smallest sample in nanoseconds.
    #[must_use]
    pub fn min_ns(&self) -> Option<u64> {
        (self.n() > 0).then_some(self.min_ns)
    }

    /// Largest sample in nanoseconds.
    #[must_use]
    pub fn max_ns(&self) -> Option<u64> {
        (self.n() > 0).then_some(self.max_ns)
    }

    /// The latency at or below which the fraction `quantile` of the samples is, in nanoseconds;
    /// `None` if fewer than [`SAMPLES_BEYOND`] samples are beyond it.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        (samples_beyond(self.n(), quantile) >= SAMPLES_BEYOND)
            .then(|| self.raw_quantile_ns(quantile))
    }

    /// As [`Self::quantile_ns`], however few samples lie beyond: for statistics over blocks and
    /// for curves, never to be printed as a percentile. 0 without samples.
    #[must_use]
    pub fn raw_quantile_ns(&self, quantile: f64) -> u64 {
        if self.n() == 0 {
            return 0;
        }
        self.counts.value_at_quantile(quantile).clamp(self.min_ns, self.max_ns)
    }

    /// Mean, percentiles and maximum as a record shows them.
    #[must_use]
    pub fn summary(&self) -> LatencyUs {
        let quantile_us = |quantile| self.quantile_ns(quantile).map(us);
        LatencyUs {
            mean: self.mean_ns().map(|mean| mean / 1e3),
            p50: quantile_us(0.50),
            p75: quantile_us(0.75),
            p90: quantile_us(0.90),
            p99: quantile_us(0.99),
            p999: quantile_us(0.999),
            max: self.max_ns().map(us),
            n: self.n(),
        }
    }

    /// Every step that holds samples, upwards: (middle of the step in nanoseconds, samples).
    pub fn steps(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts.iter_recorded().map(|step| {
            let middle = self.counts.median_equivalent(step.value_iterated_to());
            (middle.clamp(self.min_ns, self.max_ns), step.count_since_last_iteration())
        })
    }

    /// Every step that holds samples, upwards: (its lower border, its upper border, samples), in
    /// nanoseconds, cut to the smallest and the largest sample.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.counts.iter_recorded().map(|step| {
            let value = step.value_iterated_to();
            let low = self.counts.lowest_equivalent(value).clamp(self.min_ns, self.max_ns);
            let high = self.counts.next_non_equivalent(value).clamp(self.min_ns, self.max_ns);
            (low, high, step.count_since_last_iteration())
        })
    }

    /// The counts themselves, for writers of other formats.
    pub(crate) fn counts(&self) -> &hdrhistogram::Histogram<u64> {
        &self.counts
    }

    /// Restores what the steps do not hold, all in nanoseconds. Without samples nothing is done;
    /// what contradicts itself is put in order.
    pub(crate) fn set_exact(&mut self, min_ns: f64, mean_ns: f64, max_ns: f64) {
        if self.n() == 0 {
            return;
        }
        // Casts from floats saturate.
        self.min_ns = (min_ns.round() as u64).min(LONGEST_NS);
        self.max_ns = (max_ns.round() as u64).clamp(self.min_ns, LONGEST_NS);
        let mean_ns = mean_ns.clamp(self.min_ns as f64, self.max_ns as f64);
        self.sum_ns = (mean_ns * self.n() as f64).round() as u128;
    }

    /// The text form.
    ///
    /// # Panics
    /// Never: the counts are written to memory and their array has a fixed size.
    #[must_use]
    pub fn encode(&self) -> EncodedHistogram {
        if self.n() == 0 { EncodedHistogram::default() } else { self.encode_always() }
    }

    /// As [`Self::encode`], with a text also for the histogram without samples.
    pub(crate) fn encode_always(&self) -> EncodedHistogram {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(&self.counts, &mut bytes)
            .expect("a fixed-size array of counts written to memory");
        EncodedHistogram(STANDARD.encode(bytes))
    }
}

impl PartialEq for Histogram {
    fn eq(&self, other: &Self) -> bool {
        self.counts == other.counts
            && self.sum_ns == other.sum_ns
            && self.min_ns == other.min_ns
            && self.max_ns == other.max_ns
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("n", &self.n())
            .field("mean_ns", &self.mean_ns())
            .field("min_ns", &self.min_ns())
            .field("max_ns", &self.max_ns())
            .finish()
    }
}

impl EncodedHistogram {
    /// Text that claims to be a histogram; checked by [`Self::decode`].
    #[must_use]
    pub fn from_text(text: String) -> Self {
        Self(text)
    }

    /// The base64 text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the histogram without samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the text, also of other writers: other bounds are fitted into this type's.
    /// The text does not hold the exact sum, minimum and maximum; they come from the steps'
    /// middles (within 0.004 %). [`Self::decode_with`] restores them from a summary.
    ///
    /// # Errors
    /// [`HistogramError`] when the text is too long, damaged or not HDR V2.
    pub fn decode(&self) -> Result<Histogram, HistogramError> {
        let mut histogram = Histogram::new();
        if self.0.is_empty() {
            return Ok(histogram);
        }
        let plain = unfold(&self.0)?;
        let foreign: hdrhistogram::Histogram<u64> = Deserializer::new()
            .deserialize(&mut plain.as_slice())
            .map_err(HistogramError::Decode)?;
        for step in foreign.iter_recorded() {
            let middle = foreign.median_equivalent(step.value_iterated_to());
            histogram.record_n(middle, step.count_since_last_iteration());
        }
        Ok(histogram)
    }

    /// Like [`Self::decode`], with the exact mean and maximum of the summary beside it.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn decode_with(&self, summary: &LatencyUs) -> Result<Histogram, HistogramError> {
        let mut histogram = self.decode()?;
        if summary.n == histogram.n() && summary.n > 0 {
            if let Some(mean_us) = summary.mean.filter(|mean| mean.is_finite() && *mean >= 0.0) {
                histogram.sum_ns = (mean_us * 1e3 * summary.n as f64).round() as u128;
            }
            if let Some(max_us) = summary.max.filter(|max| max.is_finite() && *max >= 0.0) {
                // The smallest sample is known to a step only, and never above the largest.
                histogram.max_ns = (max_us * 1e3).round() as u64;
                histogram.min_ns = histogram.min_ns.min(histogram.max_ns);
            }
        }
        Ok(histogram)
    }
}

/// Samples that lie beyond the fraction `quantile` of `n`.
#[must_use]
pub fn samples_beyond(n: u64, quantile: f64) -> u64 {
    // The small addition keeps 10,000 · (1 − 0.99) from becoming 99.999…
    (n as f64 * (1.0 - quantile.clamp(0.0, 1.0)) + 1e-6).floor() as u64
}

/// Base64 to the plain V2 form, with every length checked before memory is taken for it.
fn unfold(text: &str) -> Result<Vec<u8>, HistogramError> {
    if text.len() > ENCODED_LIMIT_BYTES {
        return Err(HistogramError::TooLong { length: text.len() });
    }
    let bytes = STANDARD.decode(text).map_err(HistogramError::Base64)?;
    let plain = if bytes.starts_with(&V2_DEFLATED) {
        let mut plain = Vec::new();
        let deflated = bytes.get(8..).unwrap_or_default();
        ZlibDecoder::new(deflated)
            .take(UNFOLDED_LIMIT_BYTES)
            .read_to_end(&mut plain)
            .map_err(HistogramError::Inflate)?;
        plain
    } else {
        bytes
    };
    if !plain.starts_with(&V2_PLAIN) {
        return Err(HistogramError::Cookie);
    }
    let promised = plain
        .get(V2_LENGTH_AT..V2_LENGTH_AT + 4)
        .and_then(|field| field.try_into().ok())
        .map_or(u64::MAX, |field| u64::from(u32::from_be_bytes(field)));
    let present = plain.len().saturating_sub(V2_HEADER_BYTES);
    if promised > present as u64 {
        return Err(HistogramError::Length { promised, present });
    }
    Ok(plain)
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests;
