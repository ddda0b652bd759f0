//! What a refused call has in addition to its status: an error code, since statuses are too few to
//! distinguish refusals and texts are for people; and where it helps, the time.

use tollway_model::ErrorCode;
use tonic::Status;
use tonic::metadata::MetadataValue;

/// Metadata that holds the word of the code.
const CODE: &str = "tollway-error";

/// Metadata that holds the clock of who refused, in milliseconds since 1970.
const CLOCK: &str = "tollway-clock-unix-ms";

/// A status that carries `code`.
#[must_use]
pub fn with_code(mut status: Status, code: ErrorCode) -> Status {
    status.metadata_mut().insert(CODE, MetadataValue::from_static(code.word()));
    status
}

/// The code in a status, if it has one that this version knows.
#[must_use]
pub fn code_of(status: &Status) -> Option<ErrorCode> {
    ErrorCode::from_word(status.metadata().get(CODE)?.to_str().ok()?)
}

/// A function that adds the time, in milliseconds since 1970, to a status.
pub fn with_clock(unix_ms: u64) -> impl FnOnce(Status) -> Status {
    move |mut status| {
        status.metadata_mut().insert(CLOCK, unix_ms.into());
        status
    }
}

/// The time in a status, in milliseconds since 1970, if it has one.
#[must_use]
pub fn clock_unix_ms_of(status: &Status) -> Option<u64> {
    status.metadata().get(CLOCK)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_survives_and_an_unknown_one_is_none() {
        let status = with_code(Status::permission_denied("no"), ErrorCode::TokenExpired);
        assert_eq!(code_of(&status), Some(ErrorCode::TokenExpired));
        assert_eq!(status.message(), "no");
        assert_eq!(code_of(&Status::unavailable("later")), None);
        let mut newer = Status::internal("what");
        newer.metadata_mut().insert(CODE, MetadataValue::from_static("ERR_OF_TOMORROW"));
        assert_eq!(code_of(&newer), None);
    }

    #[test]
    fn a_time_survives_and_what_is_no_time_is_none() {
        let status = with_clock(u64::MAX)(Status::permission_denied("no"));
        assert_eq!(clock_unix_ms_of(&status), Some(u64::MAX));
        assert_eq!(clock_unix_ms_of(&Status::unavailable("later")), None);
        let mut odd = Status::internal("what");
        odd.metadata_mut().insert(CLOCK, MetadataValue::from_static("-1"));
        assert_eq!(clock_unix_ms_of(&odd), None);
    }
}
