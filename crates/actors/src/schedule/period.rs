//! How far apart two firings are.

use std::fmt;
use std::time::Duration;

use crate::schedule::Moment;

/// Months by the calendar of UTC, and then a time; one of them at least.
///
/// A day has 24 hours and a week seven days, so only months (and years, as twelve of them) are of
/// different lengths.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Period {
    months: u32,
    micros: u64,
}

impl Period {
    /// Parts of a microsecond count as a whole one. `None` where it is zero, or so long that no
    /// two moments are so far apart.
    #[must_use]
    pub fn new(months: u32, time: Duration) -> Option<Self> {
        let micros = u64::try_from(time.as_nanos().div_ceil(1_000)).ok()?;
        let period = Self { months, micros };
        ((months, micros) != (0, 0) && period.after(Moment::MIN).is_some()).then_some(period)
    }

    #[must_use]
    pub fn months(self) -> u32 {
        self.months
    }

    #[must_use]
    pub fn time(self) -> Duration {
        Duration::from_micros(self.micros)
    }

    /// `None` where that is after the year 9999.
    #[must_use]
    pub fn after(self, from: Moment) -> Option<Moment> {
        let from = if self.months == 0 { from } else { from.add_months(self.months)? };
        from.checked_add(self.time())
    }

    /// The first moment after `passed` that is any number of periods, one at least, after `from`.
    /// `None` where that is after the year 9999.
    #[must_use]
    pub fn next(self, from: Moment, passed: Moment) -> Option<Moment> {
        if self.months == 0 {
            let gone = passed.after(from).as_micros() / u128::from(self.micros);
            let until = (gone + 1) * u128::from(self.micros);
            return from.checked_add(Duration::from_micros(u64::try_from(until).ok()?));
        }
        // At most twelve steps for each of ten thousand years.
        let mut next = self.after(from)?;
        while next <= passed {
            next = self.after(next)?;
        }
        Some(next)
    }
}

/// As ISO 8601 writes it, in months and seconds: `P1MT90S`. [`Terms::read`](crate::schedule::Terms::read)
/// reads it back.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("P")?;
        if self.months > 0 {
            write!(f, "{}M", self.months)?;
        }
        if self.micros > 0 {
            write!(f, "T{}", self.micros / 1_000_000)?;
            if !self.micros.is_multiple_of(1_000_000) {
                write!(f, ".{:06}", self.micros % 1_000_000)?;
            }
            f.write_str("S")?;
        }
        Ok(())
    }
}
