//! Why a peer could not be reached: a text, and a code where it says more than the attempt.

use std::io;

use tollway_model::ErrorCode;
use tollway_net::{ConnError, descriptor_limit};

use crate::tls::explain;

/// What the kernel's `EADDRNOTAVAIL` means of a connection: all have one port here and one there.
const NO_PORTS: &str = "no local port is left for another connection to it; \
                        net.ipv4.ip_local_port_range says how many there are";

/// A cause, as it is put into a fault.
#[derive(Clone, Debug)]
pub(crate) struct Cause {
    /// `None` where who failed to do what says enough.
    pub(crate) code: Option<ErrorCode>,
    pub(crate) reason: String,
}

impl Cause {
    pub(crate) fn coded(code: ErrorCode, reason: impl Into<String>) -> Self {
        Self { code: Some(code), reason: reason.into() }
    }

    /// No descriptor is left.
    pub(crate) fn out_of_descriptors() -> Self {
        let limit = descriptor_limit().map_or("unlimited".to_owned(), |limit| limit.to_string());
        let reason = format!("no file descriptors are left here; the limit is {limit}");
        Self::coded(ErrorCode::OutOfDescriptors, reason)
    }
}

impl From<&str> for Cause {
    fn from(reason: &str) -> Self {
        Self { code: None, reason: reason.to_owned() }
    }
}

impl From<&io::Error> for Cause {
    fn from(error: &io::Error) -> Self {
        if ErrorCode::of_io(error) == Some(ErrorCode::OutOfDescriptors) {
            return Self::out_of_descriptors();
        }
        Self { code: None, reason: error.to_string() }
    }
}

impl From<&ConnError> for Cause {
    fn from(error: &ConnError) -> Self {
        match error {
            ConnError::Tls(refusal) => {
                Self::coded(tollway_identity::code_of(refusal), explain(error))
            }
            ConnError::Connect(source) | ConnError::Socket(source)
                if ErrorCode::of_io(source) == Some(ErrorCode::OutOfDescriptors) =>
            {
                Self::out_of_descriptors()
            }
            ConnError::Connect(source) if source.kind() == io::ErrorKind::AddrNotAvailable => {
                Self::from(NO_PORTS)
            }
            ConnError::Connect(_) | ConnError::Socket(_) => {
                Self { code: None, reason: explain(error) }
            }
        }
    }
}
