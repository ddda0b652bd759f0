//! Statuses that several services return.

use std::error::Error;

use tollway_store::TransactError;
use tonic::Status;

/// The status of a call that the store could not serve.
pub(crate) fn store_status(error: &(dyn Error + 'static)) -> Status {
    let reason = tollway_model::chain(error);
    tracing::error!(%reason, "the store refused");
    let status = Status::unavailable(format!("the control plane's store refused: {reason}"));
    match error.downcast_ref().and_then(TransactError::code) {
        Some(code) => tollway_wire::with_code(status, code),
        None => status,
    }
}

/// The status of calls and streams that the end of the control plane breaks off.
pub(crate) fn stopping() -> Status {
    Status::unavailable("the control plane is stopping; connect again")
}
