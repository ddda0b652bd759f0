//! What the data plane changes in heads: hop-by-hop fields out, forwarding fields in.
//!
//! Trace context (`traceparent`, `tracestate`, `baggage`) passes unchanged here; where requests are
//! traced, `observe` has put the sidecar's own span in.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use tollway_http::{Fields, RequestHead, ResponseHead, Scheme, grpc, h1};
use tollway_identity::SharedToken;
use tollway_model::{Called, ServiceName, SpiffeId};
use tollway_routing::FieldEdit;

use crate::exchange::Exchange;
use crate::front::Client;
use crate::request_error::RequestError;
use crate::runtime_protocol::{ActorLookup, RuntimeTask, UNPROCESSED_FIELD};

/// The proven identity of the caller, set by the callee's sidecar alone.
const CALLER_IDENTITY: &[u8] = b"x-tollway-caller";

/// Between sidecars: the callee's has passed nothing of the request on to its app, so another
/// replica may be asked. Apps neither set nor see it.
pub(crate) const UNPROCESSED: &[u8] = UNPROCESSED_FIELD.as_bytes();

/// The code of a failure of the mesh, in the response that reports it.
pub const ERROR_FIELD: &str = "x-tollway-error";
pub(crate) const ERROR: &[u8] = ERROR_FIELD.as_bytes();
/// The process that reports it.
pub(crate) const HOP: &[u8] = b"x-tollway-hop";
/// In the answer to a call over HTTP for an app of gRPC: the status that the app gave.
pub const GRPC_STATUS_FIELD: &str = "x-tollway-grpc-status";
/// Beside it, the message `google.rpc.Status` in base64, where the app gave details.
pub const GRPC_DETAILS_FIELD: &str = "x-tollway-grpc-details";
/// Fields of a response that only the mesh sets and that pass to the caller.
const FOR_CALLERS: [&[u8]; 4] =
    [ERROR, HOP, GRPC_STATUS_FIELD.as_bytes(), GRPC_DETAILS_FIELD.as_bytes()];
/// Asks for a call trace: the app asks its sidecar, and that asks the callee's.
const EXPLAIN: &[u8] = b"x-tollway-explain";
const YES: &[u8] = b"1";
/// The call trace, in the response to the app that asked for it.
pub(crate) const CALL_TRACE: &[u8] = b"x-tollway-call-trace";
/// Between sidecars: the callee's part of the call trace. Apps never see it.
pub(crate) const PART: &[u8] = b"x-tollway-part";

/// The certificate that a front's client has shown, in the form that Envoy gave it; set by the front
/// alone.
const CLIENT_CERTIFICATE: &[u8] = b"x-forwarded-client-cert";

/// The host that a request named where it came in.
const FORWARDED_HOST: &[u8] = b"x-forwarded-host";

/// How long the caller waits for the answer yet, in milliseconds. An app sets it, and sees what is left
/// of it; each hop takes off what it has used.
const TIME_LEFT: &[u8] = b"x-tollway-timeout-ms";

/// Fields that only the mesh writes begin so.
pub const OWN_FIELDS: &str = "x-tollway-";

/// The parts of the caller's name, as Dapr's apps read them; set by sidecars.
pub(crate) const CALLER_APP: &[u8] = b"dapr-caller-app-id";
const CALLER_NAMESPACE: &[u8] = b"dapr-caller-namespace";
const CALLEE_APP: &[u8] = b"dapr-callee-app-id";

/// What an app shows to its sidecar's API, and a sidecar to its app. It goes no further.
pub(crate) const API_TOKEN: &[u8] = b"dapr-api-token";

/// From which service to which.
pub(crate) struct Route<'a> {
    pub(crate) from: &'a ServiceName,
    pub(crate) to: &'a ServiceName,
    /// The `authorization` field named the app and is not meant for it.
    pub(crate) credentials_used: bool,
}

/// What was found in a request on its way out.
pub(crate) struct Outgoing {
    /// The caller asks for a call trace.
    pub(crate) wants_call_trace: bool,
    /// The addresses that it came from, this hop's included: what `x-forwarded-for` lists.
    pub(crate) hops: usize,
    /// How long the caller waits.
    pub(crate) time_left: TimeLeft,
}

/// A request leaving the caller's sidecar for the mesh.
pub(crate) fn outbound_request(
    head: &mut RequestHead,
    client: Option<Caller<'_>>,
    route: &Route<'_>,
) -> Outgoing {
    let fields = &mut head.fields;
    let MeshFields { wants_call_trace, time_left, .. } = take_own(fields, is_callers);
    if route.credentials_used {
        fields.remove(b"authorization");
    }
    let hops = add_forwarded(fields, client, &head.authority);
    fields.push(CALLER_APP, route.from.app.as_str().as_bytes());
    fields.push(CALLER_NAMESPACE, route.from.namespace.as_str().as_bytes());
    fields.push(CALLEE_APP, route.to.app.as_str().as_bytes());
    name_callee(head, route.to);
    head.scheme = Scheme::Borrowed(b"https");
    Outgoing { wants_call_trace, hops, time_left }
}

/// A route sends the request to another service than the one that was called.
pub(crate) fn send_to(head: &mut RequestHead, to: &ServiceName) {
    head.fields.set(CALLEE_APP, to.app.as_str().as_bytes());
    name_callee(head, to);
}

/// The authority by which a service is called over the mesh. Who calls a Service of a cluster has named a
/// host that its app expects, and it stays.
fn name_callee(head: &mut RequestHead, to: &ServiceName) {
    match to.called() {
        Called::App => {
            head.authority.clear();
            to.write_dns_san(&mut head.authority);
        }
        Called::Port { .. } | Called::Address(_) if !head.authority.is_empty() => {}
        Called::Port { service, port } => {
            head.authority = format!("{service}.{}:{port}", to.namespace).into_bytes();
        }
        Called::Address(address) => head.authority = address.to_string().into_bytes(),
    }
}

/// A route gives the app another host to see as the one that was called.
pub(crate) fn name_called_host(head: &mut RequestHead, host: &[u8]) {
    head.fields.set(FORWARDED_HOST, host);
}

/// Makes the changes of a route's rule.
pub(crate) fn edit(fields: &mut Fields, edits: &[FieldEdit]) {
    for change in edits {
        match change {
            FieldEdit::Remove(name) => {
                fields.remove(name);
            }
            FieldEdit::Set(name, value) => fields.set(name, value),
            FieldEdit::Add(name, value) => fields.push(name, value),
        }
    }
}

/// Adds where a request came from. Returns how many addresses `x-forwarded-for` has then.
fn add_forwarded(fields: &mut Fields, client: Option<Caller<'_>>, authority: &[u8]) -> usize {
    let mut hops = 0;
    if let Some(client) = client {
        hops = append(fields, b"x-forwarded-for", |list| client.write(list));
        append(fields, b"forwarded", |list| client.write_element(list, authority, b"http"));
    }
    if !authority.is_empty() && !fields.contains(b"x-forwarded-host") {
        fields.push(b"x-forwarded-host", authority);
    }
    hops
}

/// A request on its way to the own runtime, which is to call the service under rules.
pub(crate) fn resiliency_request(
    head: &mut RequestHead,
    client: Option<Caller<'_>>,
    route: &Route<'_>,
) -> Outgoing {
    let fields = &mut head.fields;
    let MeshFields { wants_call_trace, time_left, .. } = take_own(fields, is_callers);
    if route.credentials_used {
        fields.remove(b"authorization");
    }
    RuntimeTask::UnderResiliencyRules(route.to.to_string()).push(fields);
    let hops = add_forwarded(fields, client, &head.authority);
    Outgoing { wants_call_trace, hops, time_left }
}

/// A request on its way to the own runtime, which is to send it out of the mesh, to `id`: fields
/// that only the mesh sets are removed.
pub(crate) fn external_request(head: &mut RequestHead, id: String, credentials_used: bool) {
    let fields = &mut head.fields;
    take_own(fields, is_callers);
    if credentials_used {
        fields.remove(b"authorization");
    }
    RuntimeTask::External(id).push(fields);
}

/// A request of the outbound proxy on its way to the own runtime, which is to send it to the host of `url`.
pub(crate) fn proxied_request(head: &mut RequestHead, url: String) {
    let fields = &mut head.fields;
    take_own(fields, is_callers);
    RuntimeTask::Proxied(url).push(fields);
}

/// A request arriving at the callee's sidecar: the caller is what was proven. Gives what the caller's
/// sidecar said of the request.
pub(crate) fn inbound_request(
    head: &mut RequestHead,
    caller: &SpiffeId,
    home: &ServiceName,
) -> MeshFields {
    let fields = &mut head.fields;
    let own = take_own(fields, |name| names_caller(name) || names_ends(name));
    fields.push_with(CALLER_IDENTITY, |value| {
        caller.parts().iter().for_each(|part| value.extend_from_slice(part.as_bytes()));
    });
    fields.push(CALLER_APP, caller.app.as_str().as_bytes());
    fields.push(CALLER_NAMESPACE, caller.namespace.as_str().as_bytes());
    fields.push(CALLEE_APP, home.app.as_str().as_bytes());
    head.scheme = Scheme::Borrowed(b"http");
    own
}

/// A request of this sidecar's runtime for the app beside it, which says by itself who calls. It names
/// the app's own address as its host: many frameworks refuse hosts that they do not know.
pub(crate) fn own_app_request(head: &mut RequestHead, host: &[u8]) {
    head.authority.clear();
    head.authority.extend_from_slice(host);
    head.fields.retain(|name, _| !is_own(name) || name == CALLER_IDENTITY);
    head.fields.remove(API_TOKEN);
    head.scheme = Scheme::Borrowed(b"http");
}

/// Names another host than the one that the request came with; that one stays in a field, where it is
/// the only one.
pub(crate) fn name_host(head: &mut RequestHead, host: &[u8]) {
    if !head.authority.is_empty() && !head.fields.contains(FORWARDED_HOST) {
        head.fields.push(FORWARDED_HOST, &head.authority);
    }
    head.authority.clear();
    head.authority.extend_from_slice(host);
}

/// An app sees by the token that a request comes from its sidecar.
pub(crate) fn show_token(head: &mut RequestHead, token: Option<&SharedToken>) {
    if let Some(token) = token {
        head.fields.push_sensitive(API_TOKEN, token.reveal().as_bytes());
    }
}

/// A request that the sidecar answers itself: fields that only the mesh sets are removed.
pub(crate) fn api_request(head: &mut RequestHead) {
    take_own(&mut head.fields, names_caller);
}

/// A request that came to a front, for the app behind it: who the client is, what it has asked for
/// and that it did so over TLS. What it has said of these itself is taken out, but for the two
/// lists, where each hop adds what it saw.
pub(crate) fn front_request(head: &mut RequestHead, client: &Client) {
    let fields = &mut head.fields;
    let (mut is_listed, mut is_forwarded) = (false, false);
    fields.retain(|name, _| {
        is_listed |= name == b"x-forwarded-for";
        is_forwarded |= name == b"forwarded";
        !(is_fronts(name) || is_own(name))
    });
    if let Some(address) = &client.address {
        let caller = address.caller();
        add(fields, b"x-forwarded-for", is_listed, |list| caller.write(list));
        add(fields, b"forwarded", is_forwarded, |list| {
            caller.write_element(list, &head.authority, b"https");
        });
    }
    fields.push(b"x-forwarded-proto", b"https");
    if !head.authority.is_empty() {
        fields.push(b"x-forwarded-host", &head.authority);
    }
    if let Some(certificate) = &client.certificate {
        fields.push(CLIENT_CERTIFICATE, certificate.field());
    }
    head.scheme = Scheme::Borrowed(b"http");
}

/// Whether only the mesh may set a field.
fn is_own(name: &[u8]) -> bool {
    begins_as(name, OWN_FIELDS.as_bytes())
}

/// Whether a field says to an app who calls it, or that its own sidecar does.
fn names_caller(name: &[u8]) -> bool {
    name.starts_with(b"dapr")
        && (reads_as(name, CALLER_APP)
            || reads_as(name, CALLER_NAMESPACE)
            || reads_as(name, API_TOKEN))
}

/// Whether a field says which app is called, or which client a front has let in. A peer could say
/// anything.
fn names_ends(name: &[u8]) -> bool {
    reads_as(name, CALLEE_APP) || reads_as(name, CLIENT_CERTIFICATE)
}

/// Whether the caller's sidecar takes a field from its app: what it sets itself, the name of the
/// app that is called, and what is between the two alone.
fn is_callers(name: &[u8]) -> bool {
    name.starts_with(b"dapr-")
        && (name == CALLER_APP
            || name == CALLER_NAMESPACE
            || name == CALLEE_APP
            || name == b"dapr-app-id"
            || name == API_TOKEN)
}

/// Whether only a front may set a field.
fn is_fronts(name: &[u8]) -> bool {
    let is = |own| reads_as(name, own);
    name.starts_with(b"x")
        && (is(CLIENT_CERTIFICATE) || is(b"x-forwarded-proto") || is(b"x-forwarded-host"))
}

/// Whether an app may take `name` for `own`: those that have their fields from an environment
/// (CGI, WSGI) see no difference between `-` and `_`, so neither may make one here.
fn reads_as(name: &[u8], own: &[u8]) -> bool {
    name.len() == own.len() && begins_as(name, own)
}

fn begins_as(name: &[u8], own: &[u8]) -> bool {
    let mut both = name.iter().zip(own);
    name.len() >= own.len() && both.all(|(byte, own)| byte == own || (*byte, *own) == (b'_', b'-'))
}

/// The services that gave and got a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ResponseOrigin {
    App,
    /// To an app, or to another sidecar for one.
    Mesh,
    /// To a runtime that called an actor.
    MeshOfActors,
}

impl ResponseOrigin {
    pub(crate) fn of(exchange: &Exchange) -> Self {
        if exchange.destination.is_app() {
            Self::App
        } else if exchange.is_of_actors {
            Self::MeshOfActors
        } else {
            Self::Mesh
        }
    }
}

/// A response on its way back. Fields of the mesh are removed from an app's response. Of those that
/// the mesh has set, the caller gets what failed and where, and a runtime also whether its call of
/// an actor was carried out; the others, which are for sidecars, are removed.
pub(crate) fn response(head: &mut ResponseHead, origin: ResponseOrigin) {
    h1::strip_hop_by_hop_of_response(&mut head.fields, |name| {
        let is_for_caller = FOR_CALLERS.contains(&name) && origin != ResponseOrigin::App;
        let is_for_runtime = name == UNPROCESSED && origin == ResponseOrigin::MeshOfActors;
        is_own(name) && !is_for_caller && !is_for_runtime
    });
}

/// Trailers in either direction: fields that only the mesh sets are removed.
pub(crate) fn trailers(mut fields: Fields) -> Fields {
    fields.retain(|name, _| !is_own(name) && !reads_as(name, CLIENT_CERTIFICATE));
    fields
}

/// Whether a request that is answered here asks for a call trace.
pub(crate) fn asks_for_call_trace(fields: &Fields) -> bool {
    fields.value(EXPLAIN) == Some(YES)
}

/// Asks the callee's sidecar for its part of the call trace.
pub(crate) fn ask_for_call_trace(head: &mut RequestHead) {
    head.fields.push(EXPLAIN, YES);
}

/// What the caller's sidecar has set in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct MeshFields {
    /// The caller asks for a call trace.
    pub(crate) wants_call_trace: bool,
    /// It is the call of an actor, for the runtime of the callee's sidecar.
    pub(crate) actor: Option<ActorLookup>,
    /// How long the caller waits.
    pub(crate) time_left: TimeLeft,
}

/// How long the caller of a request waits, as a field of it has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum TimeLeft {
    #[default]
    Unstated,
    Stated(Duration),
    /// What is stated is no number of milliseconds.
    Unreadable,
}

impl TimeLeft {
    fn read(value: &[u8]) -> Self {
        let text = std::str::from_utf8(value).ok().filter(|text| !text.starts_with('+'));
        let ms = text.and_then(|text| text.parse().ok());
        ms.map_or(Self::Unreadable, |ms| Self::Stated(Duration::from_millis(ms)))
    }

    /// When the time is over; `None` if it has no end.
    ///
    /// # Errors
    /// [`RequestError::BadRequest`].
    pub(crate) fn deadline(self, now: Instant) -> Result<Option<Instant>, RequestError> {
        match self {
            Self::Unstated => Ok(None),
            Self::Stated(time) => Ok(now.checked_add(time)),
            Self::Unreadable => Err(RequestError::BadRequest {
                status: 400,
                reason: "x-tollway-timeout-ms is no number of milliseconds".to_owned(),
            }),
        }
    }
}

/// Removes the fields that only sidecars set, and those that `also` names, in one pass. Returns what
/// they said.
fn take_own(fields: &mut Fields, also: impl Fn(&[u8]) -> bool) -> MeshFields {
    let mut own = MeshFields::default();
    fields.retain(|name, value| {
        let is_own = is_own(name);
        if is_own {
            own.wants_call_trace |= name == EXPLAIN && value == YES;
            own.actor = own.actor.or_else(|| ActorLookup::read(name, value));
            if name == TIME_LEFT {
                own.time_left = TimeLeft::read(value);
            }
        }
        !is_own && !also(name)
    });
    own
}

/// Whether a request of another sidecar is the call of an actor.
pub(crate) fn is_of_actors(fields: &Fields) -> bool {
    fields.iter().any(|field| ActorLookup::read(field.name, field.value).is_some())
}

/// Whether a peer's sidecar answered in place of its app, which has seen nothing of the request.
pub(crate) fn is_unprocessed(head: &ResponseHead) -> bool {
    may_be_unprocessed(head) && head.fields.contains(UNPROCESSED)
}

/// Only these carry the mark, so that others need not be searched for it: 503, and 200 with the
/// status of gRPC in the head.
fn may_be_unprocessed(head: &ResponseHead) -> bool {
    head.status == 503 || (head.status == 200 && head.fields.contains(b"grpc-status"))
}

/// Where a request came from, as an address and as text.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) ip: IpAddr,
    pub(crate) text: &'a str,
}

impl Caller<'_> {
    fn write(self, list: &mut Vec<u8>) {
        list.extend_from_slice(self.text.as_bytes());
    }

    /// One element of RFC 7239.
    fn write_element(self, list: &mut Vec<u8>, host: &[u8], scheme: &[u8]) {
        let (begin, end): (&[u8], &[u8]) =
            if self.ip.is_ipv4() { (b"for=", b"") } else { (b"for=\"[", b"]\"") };
        list.extend_from_slice(begin);
        self.write(list);
        list.extend_from_slice(end);
        if !host.is_empty() && !host.iter().any(|b| matches!(b, b'"' | b'\\')) {
            list.extend_from_slice(b";host=\"");
            list.extend_from_slice(host);
            list.push(b'"');
        }
        list.extend_from_slice(b";proto=");
        list.extend_from_slice(scheme);
    }
}

/// What a caller of gRPC says of how long it waits.
const TIMEOUT: &[u8] = b"grpc-timeout";

/// When a call's time is over; `None` if it has no end, or one that gRPC does not know: that is for
/// the app to judge.
pub(crate) fn deadline(fields: &Fields, now: Instant) -> Option<Instant> {
    now.checked_add(grpc::parse_timeout(fields.value(TIMEOUT)?)?)
}

/// Says how much is left of a call's time.
pub(crate) fn set_time_left(fields: &mut Fields, is_grpc: bool, left: Duration) {
    if is_grpc {
        fields.remove(TIMEOUT);
        fields.push_with(TIMEOUT, |value| grpc::write_timeout(left, value));
    } else {
        // Less than a millisecond is not nothing.
        let ms = left.as_millis().max(1);
        fields.set(TIME_LEFT, ms.to_string().as_bytes());
    }
}

/// Adds a value to a comma-separated list field, of which there is one already if `is_there`.
fn add(fields: &mut Fields, name: &[u8], is_there: bool, write: impl FnOnce(&mut Vec<u8>)) {
    if is_there {
        append(fields, name, write);
    } else {
        fields.push_with(name, write);
    }
}

/// Adds a value to a comma-separated list field; how many it has then.
fn append(fields: &mut Fields, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) -> usize {
    let (mut list, mut count) = (Vec::new(), 1);
    for earlier in fields.values(name) {
        count += 1 + earlier.iter().filter(|byte| **byte == b',').count();
        list.extend_from_slice(earlier);
        list.extend_from_slice(b", ");
    }
    if count > 1 {
        fields.remove(name);
    }
    fields.push_with(name, |value| {
        value.extend_from_slice(&list);
        write(value);
    });
    count
}

#[cfg(test)]
mod tests {
    use tollway_model::{Label, SpiffeId};

    use super::*;

    fn service(name: &str) -> ServiceName {
        let label = |text| Label::new(text).unwrap();
        ServiceName::parse_in(name, &label("default"), &label("west")).unwrap()
    }

    #[test]
    fn an_outbound_request_carries_who_called_from_where() {
        let mut head = RequestHead { authority: b"localhost:3500".to_vec(), ..Default::default() };
        head.fields.push(b"dapr-app-id", b"stock");
        head.fields.push(b"x-forwarded-for", b"10.0.0.1");
        head.fields.push(b"x-tollway-caller", b"spiffe://forged/ns/a/b");
        head.fields.push(b"traceparent", b"00-abc");
        head.fields.push(b"dapr-api-token", b"the sidecar's own");
        let (from, to) = (service("web"), service("stock.shop.east"));
        let route = Route { from: &from, to: &to, credentials_used: false };
        let client = Caller { ip: "127.0.0.1".parse().unwrap(), text: "127.0.0.1" };
        let out = outbound_request(&mut head, Some(client), &route);
        assert_eq!((out.wants_call_trace, out.hops), (false, 2));
        let value =
            |name: &[u8]| head.fields.value(name).map(|v| String::from_utf8_lossy(v).into_owned());
        assert_eq!(head.authority, b"stock.shop.east.mesh");
        assert_eq!(value(b"dapr-app-id"), None);
        assert_eq!(value(b"dapr-api-token"), None);
        assert_eq!(value(b"x-tollway-caller"), None);
        assert_eq!(value(b"x-forwarded-for").unwrap(), "10.0.0.1, 127.0.0.1");
        assert_eq!(value(b"x-forwarded-host").unwrap(), "localhost:3500");
        assert_eq!(
            value(b"forwarded").unwrap(),
            "for=127.0.0.1;host=\"localhost:3500\";proto=http"
        );
        assert_eq!(value(b"dapr-caller-app-id").unwrap(), "web");
        assert_eq!(value(b"traceparent").unwrap(), "00-abc");
    }

    #[test]
    fn what_an_app_could_take_for_the_meshs_word_does_not_pass() {
        let forged: [&[u8]; 12] = [
            b"x-tollway-caller",
            b"x_tollway_caller",
            b"X-Tollway_Caller",
            b"dapr-api-token",
            b"dapr_api_token",
            b"dapr_caller_app_id",
            b"dapr-caller_namespace",
            b"dapr-caller-app-id",
            b"dapr-callee-app-id",
            b"dapr_callee-app-id",
            b"x-forwarded-client-cert",
            b"x_forwarded_client_cert",
        ];
        let caller = SpiffeId::parse("spiffe://west.tollway/ns/default/web").unwrap();
        let mut head = RequestHead::default();
        forged.iter().for_each(|name| head.fields.push(name, b"forged"));
        head.fields.push(b"x_tollwaycaller", b"the app's own");
        assert_eq!(inbound_request(&mut head, &caller, &service("stock")), MeshFields::default());
        show_token(&mut head, Some(&SharedToken::new("ours").unwrap()));
        let fields: Vec<_> = head.fields.iter().map(|f| (f.name, f.value)).collect();
        assert_eq!(
            fields,
            [
                (&b"x_tollwaycaller"[..], &b"the app's own"[..]),
                (CALLER_IDENTITY, b"spiffe://west.tollway/ns/default/web"),
                (CALLER_APP, b"web"),
                (CALLER_NAMESPACE, b"default"),
                (CALLEE_APP, b"stock"),
                (API_TOKEN, b"ours"),
            ]
        );
        let trailing = trailers(forged[..3].iter().map(|name| (*name, &b"1"[..])).collect());
        assert!(trailing.is_empty(), "{:?}", names(&trailing));
        let mut head = ResponseHead::new(200);
        forged[..3].iter().for_each(|name| head.fields.push(name, b"1"));
        response(&mut head, ResponseOrigin::App);
        assert!(head.fields.is_empty(), "{:?}", names(&head.fields));
    }

    #[test]
    fn a_calls_time_is_read_and_what_is_left_of_it_is_written() {
        let now = Instant::now();
        let read = |value: &[u8]| {
            let mut fields = Fields::new();
            fields.push(b"grpc-timeout", value);
            deadline(&fields, now).map(|deadline| deadline - now)
        };
        assert_eq!(read(b"1500m"), Some(Duration::from_millis(1500)));
        assert_eq!(read(b"soon"), None);
        assert_eq!(deadline(&Fields::new(), now), None);
        let mut fields = Fields::new();
        fields.push(b"grpc-timeout", b"2S");
        set_time_left(&mut fields, true, Duration::from_millis(1250));
        assert_eq!(fields.values(b"grpc-timeout").collect::<Vec<_>>(), [b"1250000u"]);
        set_time_left(&mut fields, true, Duration::ZERO);
        assert_eq!(fields.value(b"grpc-timeout"), Some(&b"0n"[..]));
    }

    fn names(fields: &Fields) -> Vec<String> {
        fields.iter().map(|field| String::from_utf8_lossy(field.name).into_owned()).collect()
    }

    #[test]
    fn a_call_trace_is_asked_for_by_one_word_that_goes_no_further() {
        let wants_call_trace = |name: &[u8], value: &[u8]| {
            let mut head = RequestHead::default();
            head.fields.push(name, value);
            let asked = asks_for_call_trace(&head.fields);
            let (from, to) = (service("web"), service("stock"));
            let route = Route { from: &from, to: &to, credentials_used: false };
            assert_eq!(outbound_request(&mut head, None, &route).wants_call_trace, asked);
            let own: Vec<_> = names(&head.fields);
            assert!(!own.iter().any(|name| name.starts_with("x-tollway-")), "{own:?}");
            asked
        };
        assert!(wants_call_trace(b"X-Tollway-Explain", b"1"));
        assert!(!wants_call_trace(b"x-tollway-explain", b"0"));
        assert!(!wants_call_trace(b"x-tollway-explain", b""));
        assert!(!wants_call_trace(b"x-tollway-explained", b"1"));
        assert!(!wants_call_trace(b"x-tollway-call-trace", b"1"));
    }

    #[test]
    fn fields_of_the_mesh_pass_only_in_answers_of_the_mesh() {
        let all: [&[u8]; 7] =
            [b"x-a", ERROR, HOP, UNPROCESSED, CALL_TRACE, PART, b"x-tollway-caller"];
        let left = |origin| {
            let mut head = ResponseHead::new(200);
            all.iter().for_each(|name| head.fields.push(name, b"1"));
            response(&mut head, origin);
            names(&head.fields)
        };
        let failure = ["x-a", "x-tollway-error", "x-tollway-hop"];
        assert_eq!(left(ResponseOrigin::App), ["x-a"]);
        assert_eq!(left(ResponseOrigin::Mesh), failure);
        assert_eq!(
            left(ResponseOrigin::MeshOfActors),
            [&failure[..], &["x-tollway-unprocessed"]].concat()
        );
        let trailing = trailers(all.iter().map(|name| (*name, &b"1"[..])).collect());
        assert_eq!(names(&trailing), ["x-a"]);
    }
}
