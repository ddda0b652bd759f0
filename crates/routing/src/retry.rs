//! Whether a failed attempt is made again: what was provably not processed, and what may be repeated.

/// Most attempts of one request, the first included.
const ATTEMPTS: u32 = 3;

/// How an attempt failed, before any byte of a response came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// No byte of the request left: the connection could not be made.
    NotConnected,
    /// The peer did not process the request (`REFUSED_STREAM`, GOAWAY).
    Refused,
    /// A connection that had served others closed or was reset: the usual race with a peer's
    /// idle timeout. The request may have been seen.
    ReusedConnectionClosed,
    /// The connection broke under the request.
    Broken,
    /// The peer answered something that is not valid.
    Malformed,
    /// No answer in time.
    TimedOut,
    /// The connection gives no sign of life, while others may. The request may still arrive.
    Silent,
    /// A response came, with a status at which a route retries.
    Answered,
}

/// What is known of the request.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// Attempts made, this one included.
    pub made: u32,
    /// Sending it twice has the effect of sending it once.
    pub idempotent: bool,
    /// Every body byte sent so far is still held.
    pub body_held: bool,
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    Again,
    GiveUp,
}

/// Decides on one more attempt.
#[must_use]
pub fn decide_retry(failure: Failure, attempt: Attempt) -> Retry {
    let harmless = match failure {
        Failure::NotConnected | Failure::Refused => true,
        Failure::ReusedConnectionClosed | Failure::Silent => attempt.idempotent,
        Failure::Broken | Failure::Malformed | Failure::TimedOut | Failure::Answered => false,
    };
    if harmless && attempt.body_held && attempt.made < ATTEMPTS {
        Retry::Again
    } else {
        Retry::GiveUp
    }
}

/// Decides whether a route that allows `most` retries may repeat a request after this failure; `made`
/// are those it has had, and `attempt.idempotent` counts what the route states of its requests.
#[must_use]
pub fn decide_routed_retry(failure: Failure, attempt: Attempt, made: u32, most: u32) -> Retry {
    let is_harmless = match failure {
        Failure::NotConnected | Failure::Refused => true,
        // The app may have carried it out.
        Failure::ReusedConnectionClosed
        | Failure::Silent
        | Failure::Broken
        | Failure::TimedOut
        | Failure::Answered => attempt.idempotent,
        Failure::Malformed => false,
    };
    if is_harmless && attempt.body_held && made < most { Retry::Again } else { Retry::GiveUp }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(failure: Failure, idempotent: bool) -> Retry {
        decide_retry(failure, Attempt { made: 1, idempotent, body_held: true })
    }

    #[test]
    fn what_was_not_processed_is_sent_again() {
        assert_eq!(decide(Failure::NotConnected, false), Retry::Again);
        assert_eq!(decide(Failure::Refused, false), Retry::Again);
    }

    #[test]
    fn a_doubtful_request_is_sent_again_only_if_harmless() {
        assert_eq!(decide(Failure::ReusedConnectionClosed, true), Retry::Again);
        assert_eq!(decide(Failure::ReusedConnectionClosed, false), Retry::GiveUp);
        assert_eq!(decide(Failure::Silent, true), Retry::Again);
        assert_eq!(decide(Failure::Silent, false), Retry::GiveUp);
        assert_eq!(decide(Failure::Broken, true), Retry::GiveUp);
        assert_eq!(decide(Failure::TimedOut, true), Retry::GiveUp);
    }

    #[test]
    fn attempts_are_bounded_and_need_the_whole_body() {
        let last = Attempt { made: ATTEMPTS, idempotent: true, body_held: true };
        assert_eq!(decide_retry(Failure::Refused, last), Retry::GiveUp);
        let lost = Attempt { made: 1, idempotent: true, body_held: false };
        assert_eq!(decide_retry(Failure::NotConnected, lost), Retry::GiveUp);
    }
}
