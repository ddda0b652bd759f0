//! What opens a circuit breaker: a condition on what it has counted, in the part of the Common
//! Expression Language (CEL) that such conditions need: numbers, the five counts, `+ - * / %`,
//! comparisons, `&& || !` and parentheses. Counts and numbers are taken as fractions.

use std::str::FromStr;

use thiserror::Error;

/// Longest condition, in bytes.
const TRIP_BYTES: usize = 1024;
/// Most parentheses and signs within each other.
const TRIP_DEPTH: u32 = 32;

/// What a breaker counts since it was entered in its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    pub(super) requests: u64,
    pub(super) successes: u64,
    pub(super) failures: u64,
    pub(super) consecutive_successes: u64,
    pub(super) consecutive_failures: u64,
}

impl Counts {
    /// One call that has ended; it was counted among the requests when it began.
    pub(super) fn add(&mut self, is_failure: bool) {
        if is_failure {
            self.failures += 1;
            self.consecutive_failures += 1;
            self.consecutive_successes = 0;
        } else {
            self.successes += 1;
            self.consecutive_successes += 1;
            self.consecutive_failures = 0;
        }
    }
}

/// A condition.
#[derive(Clone, PartialEq, Debug)]
pub struct Trip(Logic);

/// Why a condition cannot be one.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TripError {
    #[error("the condition has {0} bytes; at most {TRIP_BYTES} are accepted")]
    TooLong(usize),
    #[error("the condition has more than {TRIP_DEPTH} parentheses within each other")]
    TooDeep,
    #[error(
        "`{0}` is none of requests, totalSuccesses, totalFailures, consecutiveSuccesses and consecutiveFailures"
    )]
    Name(String),
    #[error("the condition has `{found}` where {wanted} is expected")]
    Unexpected { found: String, wanted: &'static str },
}

#[derive(Clone, PartialEq, Debug)]
enum Logic {
    Is(bool),
    Compare(Number, Comparison, Number),
    Not(Box<Logic>),
    And(Box<Logic>, Box<Logic>),
    Or(Box<Logic>, Box<Logic>),
}

#[derive(Clone, PartialEq, Debug)]
enum Number {
    Is(f64),
    Count(Name),
    Of(Box<Number>, char, Box<Number>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Comparison {
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
    Equal,
    Unequal,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Name {
    Requests,
    TotalSuccesses,
    TotalFailures,
    ConsecutiveSuccesses,
    ConsecutiveFailures,
}

impl Trip {
    /// Dapr's own: more than five failures in a row.
    #[must_use]
    pub fn usual() -> Self {
        let failures = Number::Count(Name::ConsecutiveFailures);
        Self(Logic::Compare(failures, Comparison::More, Number::Is(5.0)))
    }

    pub(super) fn holds(&self, counts: &Counts) -> bool {
        self.0.holds(counts)
    }
}

impl Logic {
    fn holds(&self, counts: &Counts) -> bool {
        match self {
            Self::Is(is_so) => *is_so,
            Self::Compare(left, comparison, right) => {
                comparison.holds(left.value(counts), right.value(counts))
            }
            Self::Not(logic) => !logic.holds(counts),
            Self::And(left, right) => left.holds(counts) && right.holds(counts),
            Self::Or(left, right) => left.holds(counts) || right.holds(counts),
        }
    }
}

impl Number {
    /// What is divided by zero is above every number, or none: then no comparison holds.
    fn value(&self, counts: &Counts) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "nobody counts as far as that matters")]
        let count = |count: u64| count as f64;
        match self {
            Self::Is(number) => *number,
            Self::Count(Name::Requests) => count(counts.requests),
            Self::Count(Name::TotalSuccesses) => count(counts.successes),
            Self::Count(Name::TotalFailures) => count(counts.failures),
            Self::Count(Name::ConsecutiveSuccesses) => count(counts.consecutive_successes),
            Self::Count(Name::ConsecutiveFailures) => count(counts.consecutive_failures),
            Self::Of(left, sign, right) => {
                let (left, right) = (left.value(counts), right.value(counts));
                match sign {
                    '+' => left + right,
                    '-' => left - right,
                    '*' => left * right,
                    '/' => left / right,
                    _ => left % right,
                }
            }
        }
    }
}

impl Comparison {
    #[allow(clippy::float_cmp, reason = "counts are whole numbers, and equal if they are the same")]
    fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Self::Less => left < right,
            Self::LessOrEqual => left <= right,
            Self::More => left > right,
            Self::MoreOrEqual => left >= right,
            Self::Equal => left == right,
            Self::Unequal => left != right,
        }
    }
}

impl FromStr for Trip {
    type Err = TripError;

    fn from_str(text: &str) -> Result<Self, TripError> {
        if text.len() > TRIP_BYTES {
            return Err(TripError::TooLong(text.len()));
        }
        let mut reader = Reader { rest: text.trim(), depth: 0 };
        let logic = reader.any_of()?;
        match reader.rest {
            "" => Ok(Self(logic)),
            _ => Err(reader.unexpected("the end")),
        }
    }
}

/// Reads from the weakest sign to the strongest.
struct Reader<'a> {
    /// Begins with no space.
    rest: &'a str,
    depth: u32,
}

impl Reader<'_> {
    fn any_of(&mut self) -> Result<Logic, TripError> {
        let mut logic = self.all_of()?;
        while self.takes("||") {
            logic = Logic::Or(Box::new(logic), Box::new(self.all_of()?));
        }
        Ok(logic)
    }

    fn all_of(&mut self) -> Result<Logic, TripError> {
        let mut logic = self.one()?;
        while self.takes("&&") {
            logic = Logic::And(Box::new(logic), Box::new(self.one()?));
        }
        Ok(logic)
    }

    fn one(&mut self) -> Result<Logic, TripError> {
        if self.rest.starts_with('!') && !self.rest.starts_with("!=") {
            self.takes("!");
            return Ok(Logic::Not(Box::new(self.deeper(Self::one)?)));
        }
        for (word, is_so) in [("true", true), ("false", false)] {
            if self.word() == word {
                self.takes(word);
                return Ok(Logic::Is(is_so));
            }
        }
        // A parenthesis may begin a condition or a number: which one shows behind it.
        if self.rest.starts_with('(') {
            let (rest, depth) = (self.rest, self.depth);
            match self.deeper(Self::in_parentheses) {
                Ok(logic) if !self.goes_on_as_number() => return Ok(logic),
                Err(TripError::TooDeep) => return Err(TripError::TooDeep),
                Ok(_) | Err(_) => (self.rest, self.depth) = (rest, depth),
            }
        }
        self.comparison()
    }

    fn in_parentheses(&mut self) -> Result<Logic, TripError> {
        self.takes("(");
        let logic = self.any_of()?;
        if self.takes(")") { Ok(logic) } else { Err(self.unexpected("`)`")) }
    }

    fn goes_on_as_number(&self) -> bool {
        self.rest.starts_with(['+', '-', '*', '/', '%', '<', '>', '='])
            || self.rest.starts_with("!=")
    }

    fn comparison(&mut self) -> Result<Logic, TripError> {
        let left = self.sum()?;
        for (sign, comparison) in [
            ("<=", Comparison::LessOrEqual),
            (">=", Comparison::MoreOrEqual),
            ("==", Comparison::Equal),
            ("!=", Comparison::Unequal),
            ("<", Comparison::Less),
            (">", Comparison::More),
        ] {
            if self.takes(sign) {
                return Ok(Logic::Compare(left, comparison, self.sum()?));
            }
        }
        Err(self.unexpected("a comparison"))
    }

    fn sum(&mut self) -> Result<Number, TripError> {
        self.signed(&['+', '-'], Self::product)
    }

    fn product(&mut self) -> Result<Number, TripError> {
        self.signed(&['*', '/', '%'], Self::number)
    }

    fn signed(
        &mut self,
        signs: &[char],
        part: fn(&mut Self) -> Result<Number, TripError>,
    ) -> Result<Number, TripError> {
        let mut number = part(self)?;
        while let Some(sign) = self.rest.chars().next().filter(|sign| signs.contains(sign)) {
            self.skip(1);
            number = Number::Of(Box::new(number), sign, Box::new(part(self)?));
        }
        Ok(number)
    }

    fn number(&mut self) -> Result<Number, TripError> {
        if self.rest.starts_with('(') {
            return self.deeper(|reader| {
                reader.takes("(");
                let number = reader.sum()?;
                if reader.takes(")") { Ok(number) } else { Err(reader.unexpected("`)`")) }
            });
        }
        let word = self.word().to_owned();
        let count = match word.as_str() {
            "" => return Err(self.unexpected("a number or a count")),
            "requests" => Name::Requests,
            "totalSuccesses" => Name::TotalSuccesses,
            "totalFailures" => Name::TotalFailures,
            "consecutiveSuccesses" => Name::ConsecutiveSuccesses,
            "consecutiveFailures" => Name::ConsecutiveFailures,
            word if word.starts_with(|c: char| c.is_ascii_digit()) => {
                let number = word.parse().map_err(|_| self.unexpected("a number"))?;
                self.skip(word.len());
                return Ok(Number::Is(number));
            }
            word => return Err(TripError::Name(word.to_owned())),
        };
        self.skip(word.len());
        Ok(Number::Count(count))
    }

    fn deeper<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, TripError>,
    ) -> Result<T, TripError> {
        if self.depth >= TRIP_DEPTH {
            return Err(TripError::TooDeep);
        }
        self.depth += 1;
        let read = read(self);
        self.depth -= 1;
        read
    }

    /// Letters, digits and dots that come next.
    fn word(&self) -> &str {
        let is_in = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
        let end = self.rest.find(|c| !is_in(c)).unwrap_or(self.rest.len());
        &self.rest[..end]
    }

    fn takes(&mut self, sign: &str) -> bool {
        let is_next = self.rest.starts_with(sign);
        if is_next {
            self.skip(sign.len());
        }
        is_next
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest[bytes..].trim_start();
    }

    fn unexpected(&self, wanted: &'static str) -> TripError {
        let found = self.rest.chars().take(20).collect::<String>();
        let found = if found.is_empty() { "the end".to_owned() } else { found };
        TripError::Unexpected { found, wanted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(successes: u64, failures: u64) -> Counts {
        let mut counts = Counts { requests: successes + failures, ..Counts::default() };
        (0..successes).for_each(|_| counts.add(false));
        (0..failures).for_each(|_| counts.add(true));
        counts
    }

    #[track_caller]
    fn check(condition: &str, counts: &Counts, expected: bool) {
        let trip: Trip = condition.parse().unwrap_or_else(|error| panic!("{condition}: {error}"));
        assert_eq!(trip.holds(counts), expected, "{condition} of {counts:?}");
    }

    #[test]
    fn conditions_are_those_of_the_expression_language() {
        let six = counts(4, 6);
        for (condition, holds) in [
            ("consecutiveFailures > 5", true),
            ("consecutiveFailures>=7", false),
            ("requests == 10 && totalFailures != 4", true),
            ("totalSuccesses < 4 || totalSuccesses <= 4", true),
            ("totalFailures / requests >= 0.6", true),
            ("totalFailures * 100 / requests > 60", false),
            ("requests > 10 && true || consecutiveSuccesses == 0", true),
            ("requests > 10 && (true || consecutiveSuccesses == 0)", false),
            ("!(requests > 10) && !false", true),
            ("(totalFailures + 4) % 3 == 1", true),
            ("((requests) - 2) * 2 == 16", true),
            ("1 - 1 - 1 < 0", true),
        ] {
            check(condition, &six, holds);
        }
        check("totalFailures / requests > 0.5", &Counts::default(), false);
        assert!(Trip::usual().holds(&counts(0, 6)) && !Trip::usual().holds(&counts(0, 5)));
    }

    #[test]
    fn a_malformed_condition_is_refused_with_the_mistake() {
        let refused = |text: &str| text.parse::<Trip>().unwrap_err().to_string();
        for (text, told) in [
            ("", "has `the end` where a number or a count is expected"),
            ("failures > 5", "`failures` is none of requests, totalSuccesses"),
            ("requests", "has `the end` where a comparison is expected"),
            ("requests > ", "where a number or a count is expected"),
            ("requests > 5 5", "has `5` where the end is expected"),
            ("requests > 5x", "where a number is expected"),
            ("(requests > 5", "where"),
            ("requests = 5", "has `= 5` where a comparison is expected"),
            ("requests > \"5\"", "has `\"5\"`"),
        ] {
            assert!(refused(text).contains(told), "{text}: {}", refused(text));
        }
        assert_eq!(refused(&"(".repeat(100)), TripError::TooDeep.to_string());
        assert_eq!(refused(&"!".repeat(100)), TripError::TooDeep.to_string());
        assert_eq!(refused(&" ".repeat(2000)), TripError::TooLong(2000).to_string());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_condition_or_a_mistake(text in "[ -~]{0,60}") {
            if let Ok(trip) = text.parse::<Trip>() {
                trip.holds(&counts(3, 4));
            }
        }
    }
}
