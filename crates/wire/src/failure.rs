//! The error code of a refused call, in addition to its status: statuses are too few to distinguish
//! refusals, and texts are for people.

use tollway_model::ErrorCode;
use tonic::Status;
use tonic::metadata::MetadataValue;

/// Metadata that holds the word of the code.
const CODE: &str = "tollway-error";

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
}
