//! Points in time.

use std::fmt;
use std::time::Duration;

use time::format_description::well_known::Rfc3339;
use time::{Date, Month, OffsetDateTime};

const MICROS_PER_SECOND: i64 = 1_000_000;

/// A point in time by the clock on the wall, in microseconds since 1970 (UTC), in the years 0 to
/// 9999: those that RFC 3339 can write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(i64);

impl Moment {
    /// The year 0 begins.
    pub const MIN: Self = Self(-62_167_219_200 * MICROS_PER_SECOND);
    /// The year 9999 ends.
    pub const MAX: Self = Self(253_402_300_800 * MICROS_PER_SECOND - 1);

    /// `None` outside of [`Self::MIN`] to [`Self::MAX`].
    #[must_use]
    pub fn from_unix_micros(micros: i64) -> Option<Self> {
        (Self::MIN.0..=Self::MAX.0).contains(&micros).then_some(Self(micros))
    }

    /// So long after 1970; [`Self::MAX`] where that is later.
    #[must_use]
    pub fn since_unix_epoch(elapsed: Duration) -> Self {
        i64::try_from(elapsed.as_micros()).map_or(Self::MAX, |micros| Self(micros).min(Self::MAX))
    }

    #[must_use]
    pub fn unix_micros(self) -> i64 {
        self.0
    }

    /// How long it is from `now` to this moment; zero if it has passed.
    #[must_use]
    pub fn after(self, now: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0 - now.0).unwrap_or(0))
    }

    /// Parts of a microsecond count as a whole one. `None` where that is after the year 9999.
    #[must_use]
    pub fn checked_add(self, wait: Duration) -> Option<Self> {
        let micros = i64::try_from(wait.as_nanos().div_ceil(1_000)).ok()?;
        Self::from_unix_micros(self.0.checked_add(micros)?)
    }

    /// The same day and time so many months later. A day that the month does not have is counted
    /// on into the next one: a month after January 31 is March 3, or 2 in a leap year.
    /// `None` where that is after the year 9999.
    #[must_use]
    pub(crate) fn add_months(self, months: u32) -> Option<Self> {
        let at = OffsetDateTime::from_unix_timestamp(self.0.div_euclid(MICROS_PER_SECOND)).ok()?;
        let (year, month, day) = at.to_calendar_date();
        let month = i64::from(year) * 12 + i64::from(u8::from(month)) - 1 + i64::from(months);
        let year = i32::try_from(month.div_euclid(12)).ok()?;
        let month = Month::try_from(month.rem_euclid(12) as u8 + 1).ok()?;
        let begins = Date::from_calendar_date(year, month, 1).ok()?;
        let days = i64::from(begins.to_julian_day()) - i64::from(at.date().to_julian_day())
            + i64::from(day)
            - 1;
        Self::from_unix_micros(self.0.checked_add(days * 86_400 * MICROS_PER_SECOND)?)
    }

    /// Reads a moment of RFC 3339. Parts of a microsecond count as a whole one. One that UTC has
    /// in another year than 0 to 9999 counts as the nearest of those.
    #[must_use]
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let nanos = OffsetDateTime::parse(text, &Rfc3339).ok()?.unix_timestamp_nanos();
        let micros = nanos.div_euclid(1_000) + i128::from(nanos.rem_euclid(1_000) != 0);
        let (least, most) = (i128::from(Self::MIN.0), i128::from(Self::MAX.0));
        i64::try_from(micros.clamp(least, most)).ok().map(Self)
    }
}

/// As RFC 3339 writes it.
impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000);
        match at.map(|at| at.format(&Rfc3339)) {
            Ok(Ok(text)) => f.write_str(&text),
            Ok(Err(_)) | Err(_) => write!(f, "{} us since 1970", self.0),
        }
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
