//! The private protocol of a sidecar's data loop and its runtime, as HTTP fields, and that of two
//! sidecars about calls of actors. Both ends read and write it through the types of this module.
//!
//! | type | from | to | fields |
//! |---|---|---|---|
//! | [`RuntimeRequest`] | the runtime | the data loop beside it | `x-tollway-to`, `-instance`, `-actor`, `-call`, `-begin-by`, `-lease`, `-caller-of` |
//! | [`ActorLookup`] | the caller's sidecar | the callee's sidecar and its runtime | `x-tollway-actor` |
//! | [`ActorCaller`] | a sidecar | another of the same service; a callee's data loop, its runtime | `x-tollway-caller-of` |
//! | [`RuntimeTask`] | the data loop | the runtime beside it | `x-tollway-target`, `-external`, `-proxied` |
//! | [`UNPROCESSED_FIELD`] | the callee's sidecar, the data loop | the caller's sidecar, the runtime | `x-tollway-unprocessed` |
//!
//! None of it comes from outside. The data loop reads [`RuntimeRequest`] only from connections that
//! the process has opened to itself ([`LoopbackClient`](crate::LoopbackClient)), and removes all
//! fields that begin with `x-tollway-` from every other request and from every response of an app.
//! It believes a peer's [`ActorLookup`] only on a connection with a proven identity of the mesh, and a
//! peer's [`ActorCaller`] only if that identity is of its own service.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use tollway_http::Fields;
use tollway_model::{Instance, Label, NetworkName, ServiceName, SpiffeId};
use tollway_routing::TargetError;

use crate::request_error::RequestError;

const INSTANCE: &str = "x-tollway-instance";
const TO: &str = "x-tollway-to";
const TO_APP: &str = "app";
const TO_APP_FOR_CALL: &str = "app-for-call";
const BEGIN_BY: &str = "x-tollway-begin-by";
const LEASE: &str = "x-tollway-lease";
const ACTOR: &str = "x-tollway-actor";
const TARGET: &str = "x-tollway-target";
const EXTERNAL: &str = "x-tollway-external";
const PROXIED: &str = "x-tollway-proxied";
const CALLER_OF: &str = "x-tollway-caller-of";
const CALL: &str = "x-tollway-call";
/// In a response: nothing of the request was carried out.
pub const UNPROCESSED_FIELD: &str = "x-tollway-unprocessed";

/// Until when turns of actors may be sent to the app.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TurnLease {
    /// That of the lease, in this process: what was begun under one that has ended is not sent
    /// under the next.
    pub number: u64,
    /// By the clock of leases ([`tollway_net::boot_time`]).
    pub until: Duration,
}

/// Which sidecar carries out the call of an actor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ActorLookup {
    /// The one that gets the call: it hosts the actor, or it refuses the call.
    Done,
    /// The one that gets the call finds the actor's host and calls it there.
    ByCallee,
}

impl ActorLookup {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Done => "host",
            Self::ByCallee => "lookup",
        }
    }

    /// Reads the value of the field; what an unknown word asks for is not carried out elsewhere.
    fn of(value: &[u8]) -> Self {
        if value == Self::ByCallee.word().as_bytes() { Self::ByCallee } else { Self::Done }
    }

    /// What the caller's sidecar says in a request, if it is the call of an actor.
    pub(crate) fn read(name: &[u8], value: &[u8]) -> Option<Self> {
        (name == ACTOR.as_bytes()).then(|| Self::of(value))
    }

    /// Says it to the callee's sidecar, or, there, to the runtime.
    pub(crate) fn push(self, fields: &mut Fields) {
        fields.push(ACTOR.as_bytes(), self.word().as_bytes());
    }

    /// Takes it out of a request that the data loop has handed over for the actors of this process.
    pub fn take(fields: &mut HeaderMap) -> Self {
        fields.remove(ACTOR).map_or(Self::Done, |value| Self::of(value.as_bytes()))
    }
}

/// The app whose call of an actor it is: the peer of the first sidecar that got the call. A sidecar that
/// passes the call on to the actor's host names it, so that the host's policies and app see who calls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActorCaller {
    pub spiffe: SpiffeId,
    pub network: NetworkName,
}

impl ActorCaller {
    /// Network and SPIFFE ID, with a space between them.
    fn text(&self) -> String {
        format!("{} {}", self.network, self.spiffe)
    }

    fn of(value: &[u8]) -> Option<Self> {
        let (network, spiffe) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        Some(Self { spiffe: SpiffeId::parse(spiffe).ok()?, network: Label::new(network).ok()? })
    }

    /// The service of the app.
    #[must_use]
    pub fn service(&self) -> ServiceName {
        ServiceName {
            app: self.spiffe.app.clone(),
            namespace: self.spiffe.namespace.clone(),
            network: self.network.clone(),
        }
    }

    /// What a peer says in a request.
    ///
    /// # Errors
    /// [`RequestError::BadRequest`]: it says so in another form.
    pub(crate) fn read(fields: &Fields) -> Result<Option<Self>, RequestError> {
        let Some(value) = fields.value(CALLER_OF.as_bytes()) else { return Ok(None) };
        let caller = Self::of(value);
        let wrong = || malformed(format!("{CALLER_OF} takes a network and a SPIFFE ID"));
        caller.map(Some).ok_or_else(wrong)
    }

    /// Says it to another sidecar of the same service, or to the runtime.
    pub(crate) fn push(&self, fields: &mut Fields) {
        fields.push(CALLER_OF.as_bytes(), self.text().as_bytes());
    }

    /// Takes it out of a request that the data loop has handed over for the actors of this process.
    pub fn take(fields: &mut HeaderMap) -> Option<Self> {
        Self::of(fields.remove(CALLER_OF)?.as_bytes())
    }
}

/// The target of a request of the runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RuntimeTarget {
    /// The app of the service that the request names.
    #[default]
    Service,
    /// The runtime of the service that the request names, which runs its actors. The policies of the
    /// service admit the request by its caller, method and path first.
    Actors(ActorLookup),
    /// The app beside this sidecar. Path and method are as given; the app's limit of requests and its
    /// token apply. The fields that name the caller pass as they are.
    App,
    /// The same for a call that the data loop has handed over to be translated. The call has its permit
    /// at the app and its record already.
    AppForCall,
}

/// What the own runtime asks the data loop for, beyond what an app may.
///
/// A request that asks for any of it is made once at most: its method does not make it repeatable,
/// and no other replica is asked. Where provably nothing of it was carried out, the response carries
/// [`UNPROCESSED_FIELD`], beside [`ERROR_FIELD`](crate::ERROR_FIELD) if the data loop of either side
/// says so (it was refused, or could not be sent), without it if the callee's runtime does. Where it
/// is missing, the call may have been carried out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RuntimeRequest {
    pub to: RuntimeTarget,
    /// The replica that it is for, and no other. The service has to be of the own network. Without
    /// such a replica the response is a 503 at once.
    pub instance: Option<Instance>,
    /// By which [`LoopbackClient::call_off`](crate::LoopbackClient::call_off) ends it.
    pub number: Option<u64>,
    /// It is a turn of an actor: until when something of it may be sent to the app, unless
    /// [`LoopbackClient::renewed`](crate::LoopbackClient::renewed) extends the lease.
    pub turn: Option<TurnLease>,
    /// It is the call of another app, passed on to another replica of the own service.
    pub caller: Option<ActorCaller>,
}

impl RuntimeRequest {
    /// Whether a request from within the process is [`RuntimeTarget::AppForCall`].
    pub(crate) fn is_for_call(fields: &Fields) -> bool {
        fields.value(TO.as_bytes()) == Some(TO_APP_FOR_CALL.as_bytes())
    }

    /// Whether it is of actors: made once at most, with a response that shows if it was not.
    pub(crate) fn is_of_actors(&self) -> bool {
        *self != Self::default()
    }

    /// Writes it into a request.
    pub fn write(&self, fields: &mut HeaderMap) {
        let mut put = |name: &'static str, value: HeaderValue| {
            fields.insert(HeaderName::from_static(name), value);
        };
        match self.to {
            RuntimeTarget::Service => {}
            RuntimeTarget::Actors(lookup) => {
                put(ACTOR, HeaderValue::from_static(lookup.word()));
            }
            RuntimeTarget::App => put(TO, HeaderValue::from_static(TO_APP)),
            RuntimeTarget::AppForCall => put(TO, HeaderValue::from_static(TO_APP_FOR_CALL)),
        }
        if let Some(instance) = &self.instance {
            // A label has letters, digits and hyphens alone.
            put(INSTANCE, HeaderValue::try_from(instance.as_str()).expect("a label is a value"));
        }
        if let Some(number) = self.number {
            put(CALL, number.into());
        }
        if let Some(turn) = self.turn {
            let nanos = u64::try_from(turn.until.as_nanos()).unwrap_or(u64::MAX);
            put(BEGIN_BY, nanos.into());
            put(LEASE, turn.number.into());
        }
        if let Some(caller) = &self.caller {
            let text = caller.text();
            put(CALLER_OF, HeaderValue::try_from(text).expect("names have no control characters"));
        }
    }

    /// Reads it from a request that came from within the process.
    ///
    /// # Errors
    /// [`RequestError::BadRequest`] or [`RequestError::Target`]: a value means nothing.
    pub(crate) fn read(fields: &Fields) -> Result<Self, RequestError> {
        let mut asked = Self::default();
        let (mut until, mut lease, mut app) = (None, 0, None);
        for field in fields.iter() {
            match std::str::from_utf8(field.name) {
                Ok(INSTANCE) => asked.instance = Some(instance(field.value)?),
                Ok(ACTOR) => asked.to = RuntimeTarget::Actors(ActorLookup::of(field.value)),
                Ok(BEGIN_BY) => {
                    until = Some(Duration::from_nanos(number(field.value, BEGIN_BY)?));
                }
                Ok(CALLER_OF) => asked.caller = ActorCaller::of(field.value),
                Ok(CALL) => asked.number = Some(number(field.value, CALL)?),
                Ok(LEASE) => lease = number(field.value, LEASE)?,
                Ok(TO) if field.value == TO_APP.as_bytes() => app = Some(RuntimeTarget::App),
                Ok(TO) if field.value == TO_APP_FOR_CALL.as_bytes() => {
                    app = Some(RuntimeTarget::AppForCall);
                }
                Ok(TO) => {
                    let text = format!("{TO} takes `{TO_APP}` or `{TO_APP_FOR_CALL}`");
                    return Err(malformed(text));
                }
                _ => {}
            }
        }
        if let Some(app) = app {
            if asked.to != RuntimeTarget::Service || asked.instance.is_some() {
                return Err(malformed(format!("{TO} goes with neither {INSTANCE} nor {ACTOR}")));
            }
            asked.to = app;
        }
        asked.turn = until.map(|until| TurnLease { number: lease, until });
        Ok(asked)
    }
}

fn malformed(reason: String) -> RequestError {
    RequestError::BadRequest { status: 400, reason }
}

fn number(value: &[u8], field: &str) -> Result<u64, RequestError> {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| malformed(format!("{field} takes a number of 64 bits")))
}

fn instance(value: &[u8]) -> Result<Instance, RequestError> {
    let text = std::str::from_utf8(value).map_err(|_| TargetError::Unreadable)?;
    Ok(Label::new(text).map_err(TargetError::from)?)
}

/// A request of the app that the data loop hands to the runtime, which is to make the call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RuntimeTask {
    /// A call of a service under rules about calls that fail: the service's full name.
    UnderResiliencyRules(String),
    /// A call of something outside of the mesh: the name of an HTTP endpoint, or a URL.
    External(String),
    /// A call through the outbound proxy: the URL of the host.
    Proxied(String),
}

impl RuntimeTask {
    /// Says it in a request for the runtime.
    pub(crate) fn push(&self, fields: &mut Fields) {
        let (name, value) = match self {
            Self::UnderResiliencyRules(service) => (TARGET, service),
            Self::External(id) => (EXTERNAL, id),
            Self::Proxied(url) => (PROXIED, url),
        };
        fields.push(name.as_bytes(), value.as_bytes());
    }

    /// Takes it out of a request that the data loop has handed over; `None` if it is none.
    pub fn take(fields: &mut HeaderMap) -> Option<Self> {
        let mut take = |name: &str| {
            let value = fields.remove(name)?;
            Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        take(EXTERNAL)
            .map(Self::External)
            .or_else(|| take(PROXIED).map(Self::Proxied))
            .or_else(|| take(TARGET).map(Self::UnderResiliencyRules))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What arrives of a request of the runtime that carries these fields.
    fn received(fields: &HeaderMap) -> Fields {
        fields.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes())).collect()
    }

    fn evil() -> ActorCaller {
        let spiffe = SpiffeId::parse("spiffe://west.tollway/ns/lowly/evil").unwrap();
        ActorCaller { spiffe, network: Label::new("west").unwrap() }
    }

    fn read(fields: &[(&str, &str)]) -> Result<RuntimeRequest, RequestError> {
        RuntimeRequest::read(&fields.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())).collect())
    }

    #[test]
    fn what_the_runtime_writes_the_data_loop_reads() {
        let instances = [None, Some(Label::new("cart-1").unwrap())];
        let lease = TurnLease { number: 7, until: Duration::from_nanos(1500) };
        let targets = [
            RuntimeTarget::Service,
            RuntimeTarget::App,
            RuntimeTarget::AppForCall,
            RuntimeTarget::Actors(ActorLookup::Done),
            RuntimeTarget::Actors(ActorLookup::ByCallee),
        ];
        let is_app = |to| matches!(to, RuntimeTarget::App | RuntimeTarget::AppForCall);
        let mut seen = 0;
        for to in targets {
            for instance in instances.iter().filter(|i| i.is_none() || !is_app(to)) {
                for (number, turn) in [(None, None), (Some(0), None), (Some(9), Some(lease))] {
                    let caller = number.map(|_| evil());
                    let instance = instance.clone();
                    let asked = RuntimeRequest { to, instance, number, turn, caller };
                    let mut fields = HeaderMap::new();
                    fields.insert("x-mine", HeaderValue::from_static("1"));
                    asked.write(&mut fields);
                    assert_eq!(RuntimeRequest::read(&received(&fields)).unwrap(), asked);
                    assert_eq!(asked.is_of_actors(), fields.len() > 1);
                    seen += 1;
                }
            }
        }
        assert_eq!(seen, 24);
        assert!(!read(&[("x-tollway-explain", "1"), ("host", "a")]).unwrap().is_of_actors());
    }

    #[test]
    fn what_the_data_loop_hands_over_the_runtime_takes_out() {
        for task in [
            RuntimeTask::UnderResiliencyRules("stock.default.west".into()),
            RuntimeTask::External("https://a.example/b".into()),
        ] {
            let mut fields = Fields::default();
            task.push(&mut fields);
            let mut fields: HeaderMap = fields
                .iter()
                .map(|field| {
                    let name = HeaderName::from_bytes(field.name).unwrap();
                    (name, HeaderValue::from_bytes(field.value).unwrap())
                })
                .collect();
            assert_eq!(RuntimeTask::take(&mut fields), Some(task));
            assert!(fields.is_empty());
        }
        assert_eq!(RuntimeTask::take(&mut HeaderMap::new()), None);
    }

    #[test]
    fn a_caller_is_read_in_its_own_form_and_no_other() {
        let of = |value: &str| {
            ActorCaller::read(&[(CALLER_OF.as_bytes(), value.as_bytes())].into_iter().collect())
        };
        let mut fields = Fields::default();
        evil().push(&mut fields);
        assert_eq!(ActorCaller::read(&fields).unwrap(), Some(evil()));
        assert_eq!(ActorCaller::read(&Fields::default()).unwrap(), None);
        assert_eq!(evil().service().to_string(), "evil.lowly.west");
        for odd in ["", "west", "spiffe://west.tollway/ns/lowly/evil", "a b c", "west spiffe://x"] {
            assert!(of(odd).unwrap_err().to_string().contains("takes a network"), "{odd}");
        }
    }

    #[test]
    fn a_value_that_means_nothing_is_refused() {
        let why = |name, value| {
            read(&[("x-tollway-actor", "host"), (name, value)]).unwrap_err().to_string()
        };
        assert!(why("x-tollway-instance", "a.b").contains("the character '.'"));
        assert!(why("x-tollway-to", "runtime").contains("x-tollway-to takes `app`"));
        assert!(why("x-tollway-to", "app").contains("goes with neither"));
        assert!(why("x-tollway-begin-by", "soon").contains("x-tollway-begin-by takes a number"));
        assert!(why("x-tollway-call", "x").contains("x-tollway-call takes a number"));
        assert!(why("x-tollway-lease", "-1").contains("x-tollway-lease takes a number"));
    }
}
