//! Every refusal and failure of Tollway, each with a code that never changes.
//!
//! An [`ErrorCode`] appears in the answer to a refused request, in gRPC metadata and at the end of
//! an error on the terminal. This table holds its meaning, its status and its remedy; the data
//! plane, the terminal and `docs/errors.md` read it. The caller that reports a failure adds the
//! details, such as service and address.

mod catalogue;

use std::{fmt, io};

pub use catalogue::ErrorCode;

/// Too many open files in this process, and in the system: numbers of Linux.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// The catalogue's entry of one code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The stable word, `ERR_…`.
    pub word: &'static str,
    pub group: Group,
    /// The status of the answer to a request; `None` for what only a terminal or a log shows.
    pub answer: Option<Answer>,
    /// The hops that report it.
    pub hops: &'static [Hop],
    /// What has happened, as whole sentences.
    pub meaning: &'static str,
    /// The remedy, as whole sentences.
    pub remedy: &'static str,
}

/// The statuses that carry a failure to the caller of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    pub http: u16,
    pub grpc: GrpcStatus,
}

/// The statuses of gRPC that Tollway uses, with their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrpcStatus {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl GrpcStatus {
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The name gRPC gives it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

/// A hop of a request, or the terminal of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hop {
    CallersSidecar,
    CalleesSidecar,
    Gateway,
    /// `tollway front`.
    Front,
    ControlPlane,
    /// A command at its start, before there is any request.
    Terminal,
}

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CallersSidecar => "the caller's sidecar",
            Self::CalleesSidecar => "the callee's sidecar",
            Self::Gateway => "a gateway",
            Self::Front => "a front",
            Self::ControlPlane => "the control plane",
            Self::Terminal => "the command itself",
        })
    }
}

/// What codes have in common, in the order in which a request or a start meets them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    Request,
    Name,
    Connectivity,
    Trust,
    App,
    Limit,
    Health,
    State,
    Actors,
    Start,
    Access,
    Store,
}

impl Group {
    pub const ALL: &'static [Self] = &[
        Self::Request,
        Self::Name,
        Self::Connectivity,
        Self::Trust,
        Self::App,
        Self::Limit,
        Self::Health,
        Self::State,
        Self::Actors,
        Self::Start,
        Self::Access,
        Self::Store,
    ];

    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Request => "The request itself",
            Self::Name => "Names and services",
            Self::Connectivity => "Connections to the service",
            Self::Trust => "Certificates, identity, policy",
            Self::App => "The app and its answer",
            Self::Limit => "Limits",
            Self::Health => "Health",
            Self::State => "State stores",
            Self::Actors => "Actors",
            Self::Start => "Starting",
            Self::Access => "Joining the mesh",
            Self::Store => "The store of a control plane",
        }
    }
}

impl ErrorCode {
    /// The stable word, `ERR_…`.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.entry().word
    }

    /// The code of a word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.word() == word)
    }

    /// The code of an operating system's error for a socket or a file; `None` if only the context
    /// gives one.
    #[must_use]
    pub fn of_io(error: &io::Error) -> Option<Self> {
        #[expect(clippy::wildcard_enum_match_arm, reason = "the rest has no code of its own")]
        match error.kind() {
            io::ErrorKind::AddrInUse => Some(Self::PortTaken),
            io::ErrorKind::AddrNotAvailable => Some(Self::AddressNotHere),
            io::ErrorKind::PermissionDenied => Some(Self::MissingPrivilege),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(Self::DiskFull),
            _ => matches!(error.raw_os_error(), Some(EMFILE | ENFILE))
                .then_some(Self::OutOfDescriptors),
        }
    }

    /// The code of a file or directory that is not to be had; `otherwise` unless the disk or the
    /// descriptors ran out.
    #[must_use]
    pub fn of_file(error: &io::Error, otherwise: Self) -> Self {
        match Self::of_io(error) {
            Some(code @ (Self::DiskFull | Self::OutOfDescriptors)) => code,
            Some(_) | None => otherwise,
        }
    }

    /// The category under which Dapr counts it.
    #[must_use]
    pub fn dapr_category(self) -> &'static str {
        if self == Self::DirectInvoke {
            return "service-invocation";
        }
        match self.entry().group {
            Group::State => "state",
            // Dapr has one code for requests that are none, whatever they are about.
            Group::Actors if self != Self::ActorBadName => "actor",
            Group::Health => "health",
            Group::Request
            | Group::Name
            | Group::Connectivity
            | Group::Trust
            | Group::App
            | Group::Limit
            | Group::Actors
            | Group::Start
            | Group::Access
            | Group::Store => "common",
        }
    }

    /// The HTTP status that carries it: 500 for what should never reach a request.
    #[must_use]
    pub fn http_status(self) -> u16 {
        self.entry().answer.map_or(500, |answer| answer.http)
    }

    /// The gRPC status that carries it: INTERNAL for what should never reach a request.
    #[must_use]
    pub fn grpc_status(self) -> GrpcStatus {
        self.entry().answer.map_or(GrpcStatus::Internal, |answer| answer.grpc)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_distinct_and_found_again() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_word(code.word()), Some(*code));
            let rest = code.word().strip_prefix("ERR_").unwrap();
            assert!(rest.chars().all(|c| c.is_ascii_uppercase() || c == '_'), "{code}");
        }
        assert_eq!(ErrorCode::from_word("ERR_NOTHING"), None);
    }

    #[test]
    fn an_entry_has_hops_a_meaning_and_a_remedy() {
        for code in ErrorCode::ALL {
            let entry = code.entry();
            assert!(!entry.hops.is_empty(), "{code}");
            for text in [entry.meaning, entry.remedy] {
                assert!(text.ends_with('.'), "{code}: {text}");
                assert!(text.starts_with(|c: char| c.is_uppercase() || c == '`'), "{code}: {text}");
            }
        }
    }

    #[test]
    fn a_denied_call_is_forbidden_and_no_outage() {
        let denied = ErrorCode::from_word("ERR_POLICY_DENIED").unwrap();
        assert_eq!(denied.http_status(), 403);
        assert_eq!(denied.grpc_status(), GrpcStatus::PermissionDenied);
        assert_eq!(ErrorCode::StoreCorrupt.http_status(), 500);
    }

    #[test]
    fn errors_of_the_system_have_codes() {
        let code = |number| ErrorCode::of_io(&io::Error::from_raw_os_error(number));
        assert_eq!(code(98), Some(ErrorCode::PortTaken));
        assert_eq!(code(99), Some(ErrorCode::AddressNotHere));
        assert_eq!(code(13), Some(ErrorCode::MissingPrivilege));
        assert_eq!(code(28), Some(ErrorCode::DiskFull));
        assert_eq!(code(24), Some(ErrorCode::OutOfDescriptors));
        assert_eq!(code(111), None);
        let denied = io::Error::from_raw_os_error(13);
        assert_eq!(
            ErrorCode::of_file(&denied, ErrorCode::FileUnusable).word(),
            "ERR_FILE_UNUSABLE"
        );
    }

    #[test]
    fn statuses_are_those_of_errors() {
        for answer in ErrorCode::ALL.iter().filter_map(|code| code.entry().answer) {
            assert!((400..600).contains(&answer.http), "{answer:?}");
        }
        assert_eq!(GrpcStatus::Unavailable.number(), 14);
        assert_eq!(GrpcStatus::PermissionDenied.number(), 7);
    }
}
