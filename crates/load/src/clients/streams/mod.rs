//! gRPC streams of messages: all four kinds of call as `tollway echo` serves them.
//!
//! Where each message is answered (`push`: acknowledged, `bidi`: sent back), a call of the
//! engine is a message, and its latency is from the message to its answer. Where it is not
//! (`client`, `server`), a call is a whole stream.

mod session;
mod stream;
mod tally;

pub(crate) use self::session::{Setting, StreamSession};
pub(crate) use self::stream::Shape;
pub(crate) use self::tally::Tally;

/// The direction of a stream's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// To the target, which acknowledges each.
    Push,
    /// To the target, which sends each back.
    Bidi,
    /// To the target, which answers once.
    Client,
    /// From the target, for one message to it.
    Server,
}

impl StreamKind {
    pub const ALL: [Self; 4] = [Self::Push, Self::Bidi, Self::Client, Self::Server];

    /// As it is written on the command line and in results.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Bidi => "bidi",
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    /// The echo service's method.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Push => "/tollway.lab.v1.Echo/Push",
            Self::Bidi => "/tollway.lab.v1.Echo/BidiStream",
            Self::Client => "/tollway.lab.v1.Echo/ClientStream",
            Self::Server => "/tollway.lab.v1.Echo/ServerStream",
        }
    }

    /// Whether each message has an answer of its own.
    pub(crate) fn is_by_message(self) -> bool {
        match self {
            Self::Push | Self::Bidi => true,
            Self::Client | Self::Server => false,
        }
    }
}
