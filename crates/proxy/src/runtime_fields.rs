//! What the runtime of a sidecar says to the data loop beside it, and to that of another sidecar,
//! in fields of its requests: the calls of actors. Nobody else may say any of it.

use std::time::Duration;

use tollway_http::Fields;
use tollway_model::{Instance, Label};
use tollway_routing::TargetError;

use crate::request_error::RequestError;

/// In a request: the replica that it is for, and no other.
pub const INSTANCE_FIELD: &str = "x-tollway-instance";
/// In a request: whom in this process's reach it is for, in place of a service: [`TO_APP`].
pub const TO_FIELD: &str = "x-tollway-to";
/// The app beside this sidecar.
pub const TO_APP: &str = "app";
/// In a request for the own app: nothing of it is sent from then on, in nanoseconds of the clock of
/// leases ([`tollway_net::boot_time`]), unless the lease lasts longer by then.
pub const BEGIN_BY_FIELD: &str = "x-tollway-begin-by";
/// The same: the number of the lease, which [`LoopbackClient::renewed`](crate::LoopbackClient::renewed) tells again.
pub const LEASE_FIELD: &str = "x-tollway-lease";
/// In a request: it is for the runtime of the callee's sidecar, which runs its actors.
pub const ACTOR_FIELD: &str = "x-tollway-actor";
/// In a request to the own runtime: the service that it is to call, under rules about calls that fail.
pub const TARGET_FIELD: &str = "x-tollway-target";
/// The same: the name or the URL of what it is to call outside of the mesh.
pub const OUTSIDE_FIELD: &str = "x-tollway-outside";
/// In a request for a replica: a number, by which [`LoopbackClient::call_off`](crate::LoopbackClient::call_off) ends it.
pub const CALL_FIELD: &str = "x-tollway-call";
/// In an answer: nothing of the request was carried out.
pub const UNPROCESSED_FIELD: &str = "x-tollway-unprocessed";

const INSTANCE: &[u8] = INSTANCE_FIELD.as_bytes();
const TO: &[u8] = TO_FIELD.as_bytes();
const BEGIN_BY: &[u8] = BEGIN_BY_FIELD.as_bytes();
const LEASE: &[u8] = LEASE_FIELD.as_bytes();
const CALL: &[u8] = CALL_FIELD.as_bytes();
pub(crate) const ACTOR: &[u8] = ACTOR_FIELD.as_bytes();

/// Until when turns of actors may be sent to the app.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TurnLease {
    /// That of the lease, in this process: what was begun under one that has ended is not sent
    /// under the next.
    pub number: u64,
    /// By the clock of leases ([`tollway_net::boot_time`]).
    pub until: Duration,
}

/// What a request from within the process asks for beyond what an app may.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct RuntimeFields {
    pub(crate) to_app: bool,
    pub(crate) instance: Option<Instance>,
    /// The runtime of the callee's sidecar is to have it.
    pub(crate) to_runtime: bool,
    /// By which it may be called off.
    pub(crate) number: Option<u64>,
    /// It is a turn of an actor: until when it may be sent to the app.
    pub(crate) turn: Option<TurnLease>,
}

impl RuntimeFields {
    /// Whether the request may be made once at most, and its caller be told whether it was.
    pub(crate) fn is_of_actors(&self) -> bool {
        *self != Self::default()
    }

    /// Reads the fields of a request.
    ///
    /// # Errors
    /// [`RequestError::BadRequest`] or [`RequestError::Target`]: a value means nothing.
    pub(crate) fn of(fields: &Fields) -> Result<Self, RequestError> {
        let mut asked = Self::default();
        let (mut until, mut lease) = (None, 0);
        for field in fields.iter() {
            match field.name {
                INSTANCE => asked.instance = Some(instance(field.value)?),
                ACTOR => asked.to_runtime = true,
                BEGIN_BY => {
                    let nanos = number(field.value, BEGIN_BY_FIELD, "nanoseconds")?;
                    until = Some(Duration::from_nanos(nanos));
                }
                CALL => asked.number = Some(number(field.value, CALL_FIELD, "calls")?),
                LEASE => lease = number(field.value, LEASE_FIELD, "leases")?,
                TO if field.value == TO_APP.as_bytes() => asked.to_app = true,
                TO => {
                    let reason = format!("{TO_FIELD} takes `{TO_APP}` and nothing else");
                    return Err(RequestError::BadRequest { status: 400, reason });
                }
                _ => {}
            }
        }
        asked.turn = until.map(|until| TurnLease { number: lease, until });
        if asked.to_app && (asked.to_runtime || asked.instance.is_some()) {
            let reason = format!("{TO_FIELD} goes with neither {INSTANCE_FIELD} nor {ACTOR_FIELD}");
            return Err(RequestError::BadRequest { status: 400, reason });
        }
        Ok(asked)
    }
}

fn number(value: &[u8], field: &str, of: &str) -> Result<u64, RequestError> {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| {
        let reason = format!("{field} takes a number of {of}");
        RequestError::BadRequest { status: 400, reason }
    })
}

fn instance(value: &[u8]) -> Result<Instance, RequestError> {
    let text = std::str::from_utf8(value).map_err(|_| TargetError::Unreadable)?;
    Ok(Label::new(text).map_err(TargetError::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(fields: &[(&str, &str)]) -> Result<RuntimeFields, RequestError> {
        RuntimeFields::of(&fields.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())).collect())
    }

    #[test]
    fn what_is_asked_for_is_read_from_the_fields() {
        let replica =
            [("X-Tollway-Instance", "cart-1"), ("x-tollway-actor", "1"), ("x-tollway-call", "9")];
        let replica = asked(&replica).unwrap();
        assert_eq!(replica.instance, Some(Label::new("cart-1").unwrap()));
        assert_eq!(replica.number, Some(9));
        assert!(replica.to_runtime && !replica.to_app && replica.is_of_actors());
        let app = asked(&[("x-tollway-to", "app")]).unwrap();
        assert!(app.to_app && app.is_of_actors());
        let turn =
            [("x-tollway-to", "app"), ("x-tollway-begin-by", "1500"), ("x-tollway-lease", "7")];
        let turn = asked(&turn).unwrap();
        let lease = TurnLease { number: 7, until: Duration::from_nanos(1500) };
        assert_eq!(turn.turn, Some(lease));
        let none = asked(&[("x-tollway-explain", "1"), ("host", "a")]).unwrap();
        assert!(!none.is_of_actors());
    }

    #[test]
    fn a_value_that_means_nothing_is_refused() {
        let why = |name, value| {
            asked(&[("x-tollway-actor", "1"), (name, value)]).unwrap_err().to_string()
        };
        assert!(why("x-tollway-instance", "a.b").contains("the character '.'"));
        assert!(why("x-tollway-to", "runtime").contains("x-tollway-to takes `app`"));
        assert!(why("x-tollway-to", "app").contains("goes with neither"));
        assert!(why("x-tollway-begin-by", "soon").contains("a number of nanoseconds"));
        assert!(why("x-tollway-call", "x").contains("x-tollway-call takes a number of calls"));
        assert!(why("x-tollway-lease", "-1").contains("x-tollway-lease takes a number of leases"));
    }
}
