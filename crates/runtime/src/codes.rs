//! HTTP and gRPC statuses, mapped as in Dapr.

use hyper::StatusCode;
use tonic::Code;

/// The HTTP status for the code of an app over gRPC.
pub(crate) fn http_of(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::Cancelled => StatusCode::REQUEST_TIMEOUT,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The gRPC code for the HTTP status of an app.
pub(crate) fn grpc_of(status: StatusCode) -> Code {
    match status.as_u16() {
        200..=299 => Code::Ok,
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        408 => Code::Cancelled,
        409 => Code::AlreadyExists,
        429 => Code::ResourceExhausted,
        501 => Code::Unimplemented,
        503 => Code::Unavailable,
        504 => Code::DeadlineExceeded,
        _ => Code::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_codes_map_to_http_as_in_dapr() {
        let expected = [
            (Code::Ok, 200),
            (Code::Cancelled, 408),
            (Code::Unknown, 500),
            (Code::InvalidArgument, 400),
            (Code::DeadlineExceeded, 504),
            (Code::NotFound, 404),
            (Code::AlreadyExists, 409),
            (Code::PermissionDenied, 403),
            (Code::Unauthenticated, 401),
            (Code::ResourceExhausted, 429),
            (Code::FailedPrecondition, 400),
            (Code::Aborted, 409),
            (Code::OutOfRange, 400),
            (Code::Unimplemented, 501),
            (Code::Internal, 500),
            (Code::Unavailable, 503),
            (Code::DataLoss, 500),
        ];
        for (code, status) in expected {
            assert_eq!(http_of(code).as_u16(), status, "{code:?}");
        }
    }

    #[test]
    fn http_statuses_map_to_grpc_as_in_dapr() {
        let expected = [
            (200, Code::Ok),
            (201, Code::Ok),
            (202, Code::Ok),
            (204, Code::Ok),
            (206, Code::Ok),
            (299, Code::Ok),
            (301, Code::Unknown),
            (302, Code::Unknown),
            (400, Code::Internal),
            (401, Code::Unauthenticated),
            (403, Code::PermissionDenied),
            (404, Code::NotFound),
            (408, Code::Cancelled),
            (409, Code::AlreadyExists),
            (418, Code::Unknown),
            (429, Code::ResourceExhausted),
            (500, Code::Unknown),
            (501, Code::Unimplemented),
            (502, Code::Unknown),
            (503, Code::Unavailable),
            (504, Code::DeadlineExceeded),
            (599, Code::Unknown),
        ];
        for (status, code) in expected {
            assert_eq!(grpc_of(StatusCode::from_u16(status).unwrap()), code, "{status}");
        }
    }
}
