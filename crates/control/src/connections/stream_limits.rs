//! The streams of each identity, the requests of which it waits for answers, and their bytes. A layer
//! before the services: none of them counts these.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use tokio_stream::Stream;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tollway_telemetry::Page;
use tollway_telemetry::metrics::names;
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use super::caller::{Caller, Peer, holder};
use super::shares::{Holder, Limits, Own, Share, ShareLimit, evicted_status};
use crate::pace::Paces;

/// Streams of one kind that an instance has: one, and for a moment those from before it reconnected.
const STREAMS_OF_A_KIND_LIMIT: u64 = 4;
/// Streams that one instance opens at once, and each second after them: each costs a look-up of what
/// it follows, or a write.
const STREAMS_OPENED_BURST: u32 = 100;
const STREAMS_OPENED_PER_SECOND: u32 = 10;
/// Lists of reminders that are sent to one instance at once: as many as one connection carries.
const LISTS_PER_INSTANCE_LIMIT: u64 = 64;
/// Requests about state, or about reminders, of one instance that are under way at once: those of
/// several connections.
const REQUESTS_PER_INSTANCE_LIMIT: u64 = 256;
/// Bytes of such requests that are held until each is answered: of one instance, which are six of the
/// largest, and of all.
const REQUEST_BYTES_PER_INSTANCE: u64 = 32 << 20;
const REQUEST_BYTES_LIMIT: u64 = 512 << 20;
/// Time for such a request to be read, carried out and answered.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The calls that count, by path: the word of their kind, the most of an instance, and which of
/// its own gives way.
const COUNTED: [(&str, &str, u64, Own); 10] = [
    ("/tollway.v1.Discovery/Watch", "watch", STREAMS_OF_A_KIND_LIMIT, Own::GivesWay),
    ("/tollway.v1.Registry/Register", "register", STREAMS_OF_A_KIND_LIMIT, Own::GivesWay),
    ("/tollway.v1.Placement/Host", "host", STREAMS_OF_A_KIND_LIMIT, Own::GivesWay),
    ("/tollway.v1.Placement/WatchOwners", "watch_owners", STREAMS_OF_A_KIND_LIMIT, Own::GivesWay),
    ("/tollway.v1.Peering/Follow", "follow", STREAMS_OF_A_KIND_LIMIT, Own::GivesWay),
    (
        "/tollway.v1.Neighbours/WatchNeighbours",
        "watch_neighbours",
        STREAMS_OF_A_KIND_LIMIT,
        Own::GivesWay,
    ),
    (LIST, "list_reminders", LISTS_PER_INSTANCE_LIMIT, Own::Stays),
    ("/tollway.v1.State/ReadState", "read_state", REQUESTS_PER_INSTANCE_LIMIT, Own::Stays),
    ("/tollway.v1.State/WriteState", "write_state", REQUESTS_PER_INSTANCE_LIMIT, Own::Stays),
    (
        "/tollway.v1.Reminders/WriteReminders",
        "write_reminders",
        REQUESTS_PER_INSTANCE_LIMIT,
        Own::Stays,
    ),
];
/// Of them, those with one request, whose bytes count until it is answered.
const REQUESTS: [&str; 4] = [
    LIST,
    "/tollway.v1.State/ReadState",
    "/tollway.v1.State/WriteState",
    "/tollway.v1.Reminders/WriteReminders",
];
const LIST: &str = "/tollway.v1.Reminders/ListReminders";

/// The limits of streams and requests of one control plane.
pub(crate) struct StreamLimits {
    calls: Vec<(&'static str, &'static str, Arc<ShareLimit>)>,
    request_bytes: Arc<ShareLimit>,
    opened: Paces<Holder>,
}

impl StreamLimits {
    /// Where `connections` may be open at once.
    pub(crate) fn new(connections: usize) -> Arc<Self> {
        let calls = COUNTED.map(|(path, kind, instance, own)| {
            let all = (connections as u64).max(instance);
            (path, kind, ShareLimit::new(kind, Limits::of(all, instance), own))
        });
        let bytes = Limits::of(REQUEST_BYTES_LIMIT, REQUEST_BYTES_PER_INSTANCE);
        let request_bytes = ShareLimit::new("bytes of requests", bytes, Own::Stays);
        Arc::new(Self { calls: calls.into(), request_bytes, opened: Paces::default() })
    }

    fn of_call(&self, path: &str) -> Option<&Arc<ShareLimit>> {
        self.calls.iter().find(|(of, _, _)| *of == path).map(|(_, _, limit)| limit)
    }

    pub(crate) fn add_to(&self, page: &mut Page, followed: &ShareLimit, certificates: u64) {
        let of_calls = self.calls.iter().map(|(_, kind, limit)| (*kind, &**limit));
        let of_bytes = [("followed_bytes", followed), ("request_bytes", &*self.request_bytes)];
        let all: Vec<_> = of_calls.chain(of_bytes).collect();
        let mut held = page.family(&names::CONTROL_SHARES);
        for (kind, limit) in &all {
            held.sample(&[("kind", *kind)], limit.held());
        }
        let mut refused = page.family(&names::CONTROL_SHARES_REFUSED);
        for (kind, limit) in &all {
            refused.sample(&[("kind", *kind), ("reason", "refused")], limit.refused());
            refused.sample(&[("kind", *kind), ("reason", "evicted")], limit.evicted());
        }
        refused.sample(&[("kind", "certificates"), ("reason", "refused")], certificates);
    }

    /// What a call counts for, if it does.
    fn enter(&self, path: &str, who: &Holder) -> Result<Option<Counted>, Status> {
        let Some(limit) = self.of_call(path) else { return Ok(None) };
        let is_request = REQUESTS.contains(&path);
        let (burst, per_second) = (STREAMS_OPENED_BURST, STREAMS_OPENED_PER_SECOND);
        if !is_request && !self.opened.allow(who, burst, per_second) {
            return Err(limit.refuse_pace(who, per_second).status());
        }
        let call = limit.acquire(who, 1).map_err(|refused| refused.status())?;
        let bytes = is_request.then(|| self.request_bytes.acquire(who, 0)).transpose();
        let bytes = bytes.map_err(|refused| refused.status())?;
        Ok(Some(Counted { call, bytes }))
    }
}

/// The shares of one call.
struct Counted {
    call: Share,
    bytes: Option<Share>,
}

/// The layer that holds calls to the limits.
#[derive(Clone)]
pub(crate) struct LimitStreams(pub(crate) Arc<StreamLimits>);

/// A service whose calls are held to the limits.
#[derive(Clone)]
pub(crate) struct Limited<S> {
    inner: S,
    limits: Arc<StreamLimits>,
}

impl<S> Layer<S> for LimitStreams {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, limits: self.0.clone() }
    }
}

impl<S> Service<http::Request<Body>> for Limited<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        // The services refuse those that have no identity.
        let who = match request.extensions().get::<Peer>().map(|peer| &peer.caller) {
            Some(Caller::Authenticated(identity) | Caller::Ended(identity)) => holder(identity),
            Some(Caller::Anonymous) | None => return Box::pin(self.inner.call(request)),
        };
        let counted = match self.limits.enter(request.uri().path(), &who) {
            Ok(Some(counted)) => Arc::new(counted),
            Ok(None) => return Box::pin(self.inner.call(request)),
            Err(status) => return Box::pin(async move { Ok(status.into_http()) }),
        };
        let request = request.map(|body| guarded(body, counted.clone()));
        let answering = self.inner.call(request);
        Box::pin(async move {
            let answer = if counted.bytes.is_some() {
                tokio::time::timeout(REQUEST_TIMEOUT, answering)
                    .await
                    .unwrap_or_else(|_| Ok(late_status().into_http()))
            } else {
                answering.await
            };
            Ok(answer?.map(|body| held(body, counted)))
        })
    }
}

fn late_status() -> Status {
    Status::deadline_exceeded("the request was not read and carried out in time; try again")
}

/// A request that counts its bytes, and ends with an error when a share of it is evicted.
fn guarded(body: Body, counted: Arc<Counted>) -> Body {
    let on_eviction = |share: &Share| Box::pin(share.evicted().clone().cancelled_owned());
    let mut evicted = vec![on_eviction(&counted.call)];
    evicted.extend(counted.bytes.as_ref().map(on_eviction));
    Body::new(StreamBody::new(Guarded { frames: BodyStream::new(body), evicted, counted }))
}

/// An answer that holds the shares of its call.
fn held(body: Body, counted: Arc<Counted>) -> Body {
    Body::new(body.map_frame(move |frame| {
        let _held = &counted;
        frame
    }))
}

struct Guarded {
    frames: BodyStream<Body>,
    evicted: Vec<Pin<Box<WaitForCancellationFutureOwned>>>,
    counted: Arc<Counted>,
}

impl Stream for Guarded {
    type Item = <BodyStream<Body> as Stream>::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.evicted.iter_mut().any(|evicted| evicted.as_mut().poll(context).is_ready()) {
            return Poll::Ready(Some(Err(evicted_status())));
        }
        let next = Pin::new(&mut self.frames).poll_next(context);
        if let Poll::Ready(Some(Ok(frame))) = &next
            && let (Some(data), Some(bytes)) = (frame.data_ref(), &self.counted.bytes)
            && let Err(refused) = bytes.grow(data.len() as u64)
        {
            return Poll::Ready(Some(Err(refused.status())));
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::{SystemTime, UNIX_EPOCH};

    use bytes::Bytes;
    use http_body_util::Full;
    use tollway_identity::PeerIdentity;
    use tollway_model::{Label, ServiceName, TrustDomain};

    use super::super::send_backlog::SendBacklog;
    use super::*;
    use crate::addresses::Origin;

    fn who(instance: &str, service: &str) -> Holder {
        Holder::new("shop", service, instance)
    }

    const WRITE: &str = "/tollway.v1.State/WriteState";

    /// Reads a request of so many bytes; how much of it was read, and the code that ended it.
    async fn read(counted: &Arc<Counted>, bytes: usize) -> (usize, Option<&'static str>) {
        let mut length = 0;
        while length < bytes {
            let body = Body::new(Full::new(Bytes::from(vec![0; 1 << 20])));
            match guarded(body, counted.clone()).frame().await.unwrap() {
                Ok(frame) => length += frame.data_ref().unwrap().len(),
                Err(status) => return (length, tollway_wire::code_of(&status).map(|c| c.word())),
            }
        }
        (length, None)
    }

    #[tokio::test]
    async fn requests_of_one_identity_hold_a_bounded_number_of_bytes() {
        const MOST: usize = REQUEST_BYTES_PER_INSTANCE as usize;
        let limits = StreamLimits::new(100);
        let enter = |who: &Holder| Arc::new(limits.enter(WRITE, who).ok().unwrap().unwrap());
        let evil = who("a", "evil");
        let calls: Vec<_> = (0..REQUESTS_PER_INSTANCE_LIMIT).map(|_| enter(&evil)).collect();
        assert!(limits.enter(WRITE, &evil).is_err(), "it has as many requests as it may");
        assert_eq!(read(&calls[0], MOST / 2).await, (MOST / 2, None));
        let (length, code) = read(&calls[1], MOST).await;
        assert_eq!((length, code), (MOST / 2, Some("ERR_SHARE_EXCEEDED")));
        // Others have theirs, and what is answered is free again.
        assert_eq!(read(&enter(&who("b", "web")), MOST).await, (MOST, None));
        drop(calls);
        assert_eq!(read(&enter(&evil), MOST).await, (MOST, None));
        assert_eq!(limits.request_bytes.held(), 0);
    }

    /// The harm: one sidecar that asks for lists without reading them holds one of each in memory.
    #[test]
    fn lists_of_reminders_of_one_identity_are_bounded() {
        let limits = StreamLimits::new(1_000);
        let evil = who("a", "evil");
        let enter = |who: &Holder| limits.enter(LIST, who);
        let mut lists: Vec<_> =
            (0..LISTS_PER_INSTANCE_LIMIT).map(|_| enter(&evil).ok().unwrap().unwrap()).collect();
        let refused = enter(&evil).err().expect("it has as many lists as it may");
        assert_eq!(tollway_wire::code_of(&refused).unwrap().word(), "ERR_SHARE_EXCEEDED");
        assert!(enter(&who("b", "web")).is_ok(), "another one has its own");
        assert!(!lists[0].call.evicted().is_cancelled(), "those that are sent go on");
        lists.pop();
        assert!(enter(&evil).is_ok(), "one has ended");
    }

    /// The harm: many identities fill the memory together, each within its share.
    #[tokio::test]
    async fn requests_of_all_identities_hold_a_bounded_number_of_bytes() {
        let limits = StreamLimits::new(1_000);
        let take = |namespace: &str, service: &str, instance: usize| {
            let who = Holder::new(namespace, service, &instance.to_string());
            let counted = limits.enter(WRITE, &who).ok().unwrap().unwrap();
            let taken = counted.bytes.as_ref().unwrap().grow(REQUEST_BYTES_PER_INSTANCE);
            taken.is_ok().then(|| Arc::new(counted))
        };
        let mut held = Vec::new();
        for namespace in ["evil", "lowly"] {
            for service in ["one", "two", "three"] {
                held.extend((0..10).filter_map(|instance| take(namespace, service, instance)));
                assert!(limits.request_bytes.held() <= REQUEST_BYTES_LIMIT);
            }
        }
        // Of the namespace with most one gives way, and its request ends with the reason.
        let honest: Vec<_> = (0..3).map(|instance| take("shop", "web", instance)).collect();
        assert!(honest.iter().all(Option::is_some));
        assert_eq!(limits.request_bytes.held(), REQUEST_BYTES_LIMIT);
        let is_evicted = |counted: &&Arc<Counted>| {
            counted.bytes.as_ref().is_some_and(|bytes| bytes.evicted().is_cancelled())
        };
        let evicted = held.iter().rfind(is_evicted).expect("one gives way");
        let Some(Err(status)) = guarded(Body::empty(), evicted.clone()).frame().await else {
            panic!("its request goes on");
        };
        assert_eq!(tollway_wire::code_of(&status).unwrap().word(), "ERR_SHARE_EXCEEDED");
        drop((held, honest));
        assert_eq!(limits.request_bytes.held(), 0);
    }

    /// A request of the workload `a` of the app evil.
    fn request(path: &str) -> http::Request<Body> {
        let [app, namespace, network] =
            ["evil", "shop", "west"].map(|text| Label::new(text).unwrap());
        let service = ServiceName { app, namespace, network };
        let identity = PeerIdentity {
            spiffe: service.spiffe_id(&TrustDomain::default_for(&service.network)),
            dns_names: vec![service.dns_san()],
            service,
            instance: Some(Label::new("a").unwrap()),
            not_before: UNIX_EPOCH,
            not_after: SystemTime::now() + Duration::from_secs(3_600),
            key_hash: [7; 32],
            serial: vec![1],
        };
        let from = IpAddr::from([10, 0, 0, 7]);
        let peer = Peer {
            caller: Caller::Authenticated(Arc::new(identity)),
            origin: Origin::Direct(from),
            from,
            backlog: SendBacklog::new(Arc::default()),
        };
        http::Request::builder().uri(path).extension(peer).body(Body::empty()).unwrap()
    }

    /// The harm: requests whose bodies do not end hold their shares for good.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_not_carried_out_in_time_ends_and_gives_back_its_share() {
        let limits = StreamLimits::new(100);
        let never = tower::service_fn(|request: http::Request<Body>| async move {
            // Until its body ends, which it does not.
            let _held = request;
            std::future::pending::<Result<http::Response<Body>, Status>>().await
        });
        let mut service = LimitStreams(limits.clone()).layer(never);
        let began = tokio::time::Instant::now();
        let answer = tokio::time::timeout(2 * REQUEST_TIMEOUT, service.call(request(WRITE))).await;
        let answer = answer.expect("it ends").unwrap();
        assert_eq!(began.elapsed(), REQUEST_TIMEOUT);
        let status = Status::from_header_map(answer.headers()).unwrap();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
        drop(answer);
        assert_eq!(limits.of_call(WRITE).unwrap().held(), 0);
        // A stream has no such end.
        let watching = service.call(request("/tollway.v1.Discovery/Watch"));
        assert!(tokio::time::timeout(2 * REQUEST_TIMEOUT, watching).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn streams_that_are_opened_without_end_are_refused_until_their_instance_rests() {
        const REGISTER: &str = "/tollway.v1.Registry/Register";
        let limits = StreamLimits::new(100);
        let opened =
            |who: &Holder| (0..500).filter(|_| limits.enter(REGISTER, who).is_ok()).count();
        assert_eq!(opened(&who("a", "evil")), STREAMS_OPENED_BURST as usize);
        assert_eq!(opened(&who("a", "web")), STREAMS_OPENED_BURST as usize);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(opened(&who("a", "evil")), STREAMS_OPENED_PER_SECOND as usize);
        assert_eq!(limits.of_call(REGISTER).unwrap().held(), 0);
        assert!(limits.of_call(REGISTER).unwrap().refused() > 0);
    }

    #[tokio::test]
    async fn a_stream_ends_when_a_newer_one_of_its_instance_takes_its_share() {
        let limits = StreamLimits::new(100);
        const HOST: &str = "/tollway.v1.Placement/Host";
        let open = || {
            let counted = limits.enter(HOST, &who("a", "evil")).ok().unwrap().unwrap();
            guarded(Body::empty(), Arc::new(counted))
        };
        let mut oldest = open();
        let _newer: Vec<_> = (0..STREAMS_OF_A_KIND_LIMIT).map(|_| open()).collect();
        let Some(Err(status)) = oldest.frame().await else { panic!("it goes on") };
        let code = tollway_wire::code_of(&status).unwrap();
        assert_eq!(code.word(), "ERR_SHARE_EXCEEDED");
        assert_eq!(limits.of_call(HOST).unwrap().held(), STREAMS_OF_A_KIND_LIMIT);
        assert!(limits.of_call("/tollway.v1.Identity/Issue").is_none());
    }
}
