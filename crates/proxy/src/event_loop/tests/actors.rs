//! Calls of actors: what the runtime of a sidecar asks of the data loop, and only it may.

use std::os::unix::net::UnixStream;

use tollway_model::{ObjectName, Policy, PolicyRule, PolicyTarget};

use super::app_unreachable::{Fleet, read_answer};
use super::*;
use crate::runtime_protocol::TurnLease;

/// No test waits for it: a replica that is away is reported at once.
const LONG: Duration = Duration::from_secs(120);

fn long() -> Timeouts {
    Timeouts { connect: LONG, request: LONG, ..patient() }
}

impl Running {
    /// A connection from within the process.
    fn inside(&self) -> Stream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        assert!(self.commands.send(Command::Adopt(theirs)));
        Stream::local(ours)
    }

    /// A request on a connection of its own, and the whole answer; `head` is the line and the fields,
    /// each with its end.
    fn call_inside(&self, head: &str) -> String {
        read_answer(self.begin_inside(head))
    }

    /// Asks on a connection of its own and does not wait for the answer.
    fn begin_inside(&self, head: &str) -> Stream {
        let mut stream = self.inside();
        let rest = "host: runtime\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi";
        stream.write_all(format!("{head}{rest}").as_bytes()).unwrap();
        stream
    }

    /// Has a foreign server answer what is for the runtime: with what it was asked, in fields, and
    /// with `status` and `x-tollway-unprocessed` where the path names one: `/v1.0/actors/status/421`.
    fn run_actors(&self) {
        self.run(ApiKind::Actors, as_runtime);
    }

    /// Has a foreign server answer so what is for the runtime, all of which is of that kind.
    pub(super) fn run<A>(
        &self,
        expected: ApiKind,
        answer: impl Fn(Request<Incoming>) -> A + Clone + Send + 'static,
    ) where
        A: Future<Output = Result<Response<Full<Bytes>>, hyper::Error>> + Send + 'static,
    {
        self.around.set_runtime(move |ApiStream { kind, stream }| {
            assert_eq!(kind, expected);
            let answer = service_fn(answer.clone());
            spawn(async move {
                let stream = tokio::net::UnixStream::from_std(stream).unwrap();
                // It ends with the loop.
                let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), answer)
                    .await;
            });
        });
    }
}

async fn as_runtime(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let seen = |name: &str| {
        request.headers().get(name).map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default()
    };
    let path = request.uri().path_and_query().unwrap().as_str().to_owned();
    let mut answer = Response::builder()
        .header("x-path", &path)
        .header("x-method", request.method().as_str())
        .header("x-caller", seen("x-tollway-caller"))
        .header("x-caller-app", seen("dapr-caller-app-id"))
        .header("x-token", seen("dapr-api-token"))
        .header("x-own", own_fields(&request).join(" "));
    if let Some(status) = path.strip_prefix("/v1.0/actors/status/") {
        answer = answer.status(status.parse::<u16>().unwrap()).header("x-tollway-unprocessed", "1");
    }
    let body = request.into_body().collect().await?.to_bytes();
    Ok(answer.body(Full::new([b"ran: ", &body[..]].concat().into())).unwrap())
}

/// Asks once the caller has, or gets when it asks, this state of the service.
fn with_state<T>(fleet: &Fleet, state: &ServiceState, ask: impl FnOnce() -> T) -> T {
    fleet.caller.send_state(&fleet.stock, state.clone());
    ask()
}

fn served(fleet: &Fleet) -> Vec<u64> {
    fleet.callees.iter().map(|callee| callee.metrics.inbound_requests.value()).collect()
}

#[track_caller]
fn check_failed(answer: &str, status: &str, code: &str, is_unprocessed: bool) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    assert!(answer.contains(&format!("x-tollway-error: {code}\r\n")), "{answer}");
    assert_eq!(answer.contains("x-tollway-unprocessed: 1\r\n"), is_unprocessed, "{answer}");
}

const TO_SECOND: &str = "dapr-app-id: stock\r\nx-tollway-instance: S-1\r\n";

#[test]
fn a_replica_is_called_by_its_name_and_no_other() {
    let fleet = Fleet::with(long(), AppProtocol::Http, &[start_app(), start_app(), start_app()]);
    // Pooled connections of HTTP/1.1 are for services.
    fleet.caller.configure(MeshProtocol::Http1, (Limits::default(), long()));
    let all = fleet.local(&fleet.addresses());
    for _ in 0..10 {
        let request = format!("POST /v1.0/actors/T/a%20b/method/m?x=1 HTTP/1.1\r\n{TO_SECOND}");
        let answer = with_state(&fleet, &all, || fleet.caller.call_inside(&request));
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hi"), "{answer}");
        assert!(answer.contains("x-path: /v1.0/actors/T/a%20b/method/m?x=1\r\n"), "{answer}");
        assert!(answer.contains("x-own: \r\n"), "{answer}");
    }
    assert_eq!(served(&fleet), [0, 10, 0]);
    let connections = fleet.callees[1].metrics.tls_handshakes.value();
    assert_eq!(connections, 1, "they share one, however those to services are carried");
}

#[test]
fn a_missing_replica_is_reported_at_once_and_found_when_it_is_back() {
    let fleet = Fleet::with(long(), AppProtocol::Http, &[start_app(), start_app()]);
    let request = format!("POST /x HTTP/1.1\r\n{TO_SECOND}");
    let ask = |addresses: &[SocketAddr]| {
        with_state(&fleet, &fleet.local(addresses), || fleet.caller.call_inside(&request))
    };
    let both = fleet.addresses();
    let check_gone = |answer: &str| {
        check_failed(answer, "503", "ERR_NO_READY_ENDPOINT", true);
        assert!(answer.contains("stock.default.west has no ready workload S-1"), "{answer}");
    };
    check_gone(&ask(&both[..1]));
    assert!(ask(&both).starts_with("HTTP/1.1 200 "));
    check_gone(&ask(&both[..1]));
    assert!(ask(&both).starts_with("HTTP/1.1 200 "));
    // Its address without a listener: no other replica is named, and there is no wait for it.
    check_failed(&ask(&[both[0], unused_address()]), "503", "ERR_UNREACHABLE", true);
    check_failed(&ask(&[both[0], unused_address()]), "503", "ERR_UNREACHABLE", true);
    // Another workload at its address is not it.
    let answer = ask(&[both[1], both[0]]);
    check_failed(&answer, "503", "ERR_WRONG_IDENTITY", true);
    assert!(ask(&both).starts_with("HTTP/1.1 200 "));
    assert_eq!(served(&fleet), [0, 3]);
    let remote = with_state(&fleet, &fleet.remote(both[0]), || fleet.caller.call_inside(&request));
    check_gone(&remote);
}

#[test]
fn a_workload_without_calls_is_forgotten_and_then_its_service() {
    let fleet = Fleet::with(long(), AppProtocol::Http, &[start_app(), start_app()]);
    let request = format!("POST /x HTTP/1.1\r\n{TO_SECOND}");
    let all = fleet.local(&fleet.addresses());
    let ask = || with_state(&fleet, &all, || fleet.caller.call_inside(&request));
    for round in 1..3 {
        assert!(ask().starts_with("HTTP/1.1 200 "));
        let let_go = || fleet.caller.around.unsubscribed.load(Ordering::SeqCst) == round;
        until("the service is let go", let_go);
    }
}

#[test]
fn a_call_arrives_at_the_runtime_with_the_proven_caller() {
    for protocol in AppProtocol::ALL {
        let fleet = Fleet::with(long(), protocol, &[unused_address(), unused_address()]);
        fleet.callees[1].run_actors();
        let all = fleet.local(&fleet.addresses());
        let request = format!(
            "POST /v1.0/actors/T/1/method/m HTTP/1.1\r\n{TO_SECOND}x-tollway-actor: host\r\n\
             x-tollway-caller: spiffe://forged/ns/a/b\r\ndapr-caller-app-id: forged\r\n"
        );
        let answer = with_state(&fleet, &all, || fleet.caller.call_inside(&request));
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ran: hi"), "{answer}");
        for part in [
            "x-path: /v1.0/actors/T/1/method/m\r\n",
            "x-method: POST\r\n",
            "x-caller: spiffe://west.tollway/ns/default/web\r\n",
            "x-caller-app: web\r\n",
            "x-token: \r\n",
            "x-own: x-tollway-actor x-tollway-caller-of\r\n",
        ] {
            assert!(answer.contains(part), "{part} {answer}");
        }
    }
}

#[test]
fn an_unprocessed_answer_of_a_runtime_is_forwarded_and_not_retried() {
    let fleet = Fleet::with(long(), AppProtocol::Http, &[start_app(), start_app()]);
    fleet.callees.iter().for_each(Running::run_actors);
    let all = fleet.local(&fleet.addresses());
    for status in ["421", "503", "200"] {
        let request = format!(
            "PUT /v1.0/actors/status/{status} HTTP/1.1\r\n{TO_SECOND}x-tollway-actor: host\r\n"
        );
        let answer = with_state(&fleet, &all, || fleet.caller.call_inside(&request));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains("x-tollway-unprocessed: 1\r\n"), "{answer}");
        assert!(answer.ends_with("ran: hi"), "{answer}");
    }
    assert_eq!(served(&fleet), [0, 3]);
    assert_eq!(fleet.caller.metrics.retries.value(), 0);
}

#[test]
fn a_sidecar_runs_actors_without_an_app_but_not_without_a_runtime() {
    let fleet = Fleet::with(long(), AppProtocol::Http, &[start_app()]);
    let credentials = fleet.network.credentials(&fleet.stock, "s-1", &[]);
    let appless =
        Running::start(fleet.stock.clone(), credentials, &[ListenerKind::Inbound], None, None);
    let both = fleet.local(&[fleet.addresses()[0], appless.addresses[0]]);
    let ask = |to: &str| {
        let request = format!(
            "POST /x HTTP/1.1\r\ndapr-app-id: stock\r\nx-tollway-actor: host\r\n\
             x-tollway-instance: {to}\r\n"
        );
        with_state(&fleet, &both, || fleet.caller.call_inside(&request))
    };
    check_failed(&ask("s-0"), "404", "ERR_NOT_SERVED", true);
    check_failed(&ask("s-1"), "404", "ERR_NOT_SERVED", true);
    appless.run_actors();
    assert!(ask("s-1").ends_with("ran: hi"));
}

#[test]
fn a_call_that_a_policy_denies_reaches_no_runtime() {
    let fleet = Fleet::with(long(), AppProtocol::Http, &[start_app(), start_app()]);
    fleet.callees[1].run_actors();
    let policy = Policy {
        name: ObjectName::new("default", "carts").unwrap(),
        target: PolicyTarget::App(label("stock")),
        mode: tollway_model::Mode::Enforce,
        allow: None,
        deny: vec![PolicyRule {
            from: Vec::new(),
            methods: Vec::new(),
            paths: vec!["/v1.0/actors/Cart/**".parse().unwrap()],
        }],
    };
    let set = tollway_routing::PolicySet::new(fleet.stock.clone(), [Arc::new(policy)]);
    fleet.callees[1].commands.send(Command::Policies(PolicyUpdate::unobserved(set)));
    let all = fleet.local(&fleet.addresses());
    let ask = |path: &str| {
        let request = format!("POST {path} HTTP/1.1\r\n{TO_SECOND}x-tollway-actor: host\r\n");
        with_state(&fleet, &all, || fleet.caller.call_inside(&request))
    };
    let denied = ask("/v1.0/actors/Cart/1/method/m");
    check_failed(&denied, "403", "ERR_POLICY_DENIED", true);
    let denied = ask("/v1.0/actors/Till/../Cart/1/method/m");
    check_failed(&denied, "403", "ERR_POLICY_DENIED", true);
    assert!(ask("/v1.0/actors/Till/1/method/m").ends_with("ran: hi"));
}

#[test]
fn the_own_app_is_called_with_path_method_and_token() {
    let network = Network::new("west");
    let (stock, app) = (service("stock"), start_app());
    let start = |app: Option<AppTarget>| {
        let credentials = network.credentials(&stock, "s-0", &[]);
        Running::start(stock.clone(), credentials, &[ListenerKind::HttpApi], app, None)
    };
    let target = AppTarget::at(app, AppProtocol::Http);
    let sidecar = start(Some(target.clone()));
    let mut config = web_config(MeshProtocol::Http2, (Limits::default(), long()));
    config.app = Some(target);
    config.tokens.app = Some(tollway_identity::SharedToken::new("ours").unwrap());
    sidecar.commands.send(Command::Configure(Arc::new(config)));
    let request = "PUT /actors/T/1/method/m?x HTTP/1.1\r\nx-tollway-to: app\r\n\
                   x-tollway-caller: spiffe://west.tollway/ns/default/web\r\n\
                   x-tollway-error: forged\r\ndapr-api-token: forged\r\n";
    let answer = sidecar.call_inside(request);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hi"), "{answer}");
    for part in [
        "x-path: /actors/T/1/method/m?x\r\n",
        "x-caller: spiffe://west.tollway/ns/default/web\r\n",
        "x-token: ours\r\n",
        "x-own: \r\n",
    ] {
        assert!(answer.contains(part), "{part} {answer}");
    }
    let counts = &sidecar.metrics;
    assert_eq!((counts.inbound_requests.value(), counts.outbound_requests.value()), (0, 0));
    let appless = start(None);
    check_failed(&appless.call_inside(request), "503", "ERR_NO_READY_ENDPOINT", true);
    let away = start(Some(AppTarget::at(unused_address(), AppProtocol::Http)));
    check_failed(&away.call_inside(request), "503", "ERR_APP_UNREACHABLE", true);
    let both = "PUT /x HTTP/1.1\r\nx-tollway-to: app\r\nx-tollway-actor: host\r\n";
    check_failed(&sidecar.call_inside(both), "400", "ERR_MALFORMED_REQUEST", true);
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A reused connection that closes under a request of HTTP may be repeated if its method is; a turn
/// of an actor not.
#[test]
fn a_turn_that_an_app_may_have_begun_is_not_begun_again() {
    let app = listen();
    let network = Network::new("west");
    let credentials = network.credentials(&service("stock"), "s-0", &[]);
    let target = AppTarget::at(app.address, AppProtocol::Http);
    let sidecar = Running::start(service("stock"), credentials, &[], Some(target), None);
    let request = "PUT /actors/T/1/method/m HTTP/1.1\r\nx-tollway-to: app\r\n";
    let first = sidecar.begin_inside(request);
    let mut asked = app.accept();
    talk(&mut asked, b"", b"hi");
    asked.write_all(ANSWER).unwrap();
    assert!(read_answer(first).ends_with("ok"));
    let second = sidecar.begin_inside(request);
    talk(&mut asked, b"", b"hi");
    drop(asked);
    check_failed(&read_answer(second), "502", "ERR_CLOSED_EARLY", false);
    assert_eq!(app.waiting(), 0, "it is asked no more");
}

/// A sidecar beside an app that speaks `protocol`, and how many requests that app got whole.
fn beside_counting_app(protocol: AppProtocol) -> (Running, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let address = serve(move |request| {
        let counted = Arc::clone(&counted);
        async move {
            // A request that breaks off is none.
            let body = request.into_body().collect().await?.to_bytes();
            assert!(body.ends_with(b"hi"));
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(Response::new(Full::new(Bytes::from_static(b"ok")).map_err(|e| match e {}).boxed()))
        }
    });
    let network = Network::new("west");
    let credentials = network.credentials(&service("stock"), "s-0", &[]);
    let target = AppTarget::at(address, protocol);
    (Running::start(service("stock"), credentials, &[], Some(target), None), asked)
}

/// How apps speak that are called over HTTP.
const SPOKEN: [AppProtocol; 2] = [AppProtocol::Http, AppProtocol::H2c];

/// The head of a turn that must not begin from `by` on.
fn turn_by(by: Duration) -> String {
    let by = by.as_nanos();
    format!(
        "PUT /actors/T/1/method/m HTTP/1.1\r\nx-tollway-to: app\r\nx-tollway-begin-by: {by}\r\n"
    )
}

/// The app gets what came in time whole or not at all, also where its rest came later.
#[test]
fn a_turn_whose_body_is_too_late_is_not_sent() {
    for protocol in SPOKEN {
        let (sidecar, asked) = beside_counting_app(protocol);
        let call = |body: &str, patience: Duration| {
            let mut stream = sidecar.inside();
            let by = sim::boot() + Duration::from_secs(2);
            let rest =
                format!("host: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(format!("{}{rest}", turn_by(by)).as_bytes()).unwrap();
            let (first, last) = body.split_at(body.len() - 2);
            stream.write_all(first.as_bytes()).unwrap();
            advance(patience);
            // It may have been answered already.
            let _ = stream.write_all(last.as_bytes());
            read_answer(stream)
        };
        let (late, in_time) = (Duration::from_secs(3), Duration::from_secs(1));
        let large = format!("{}hi", "-".repeat(40_000));
        assert!(call("hi", in_time).ends_with("ok") && call(&large, in_time).ends_with("ok"));
        // Nothing of the one has gone out, and much of the other.
        check_failed(&call("hi", late), "503", "ERR_OVERLOADED", true);
        check_failed(&call(&large, late), "502", "ERR_CLOSED_EARLY", false);
        assert!(call("hi", in_time).ends_with("ok"));
        assert_eq!(asked.load(Ordering::SeqCst), 3, "{protocol:?}");
    }
}

/// An app may take its time to read a turn: what is left of it is sent as long as its lease stands,
/// and under no other.
#[test]
fn a_turn_that_an_app_reads_slowly_goes_on_while_its_lease_is_renewed() {
    const BYTES: usize = 4 << 20;
    const LEASE: Duration = Duration::from_secs(2);
    for (protocol, renewed) in SPOKEN.into_iter().flat_map(|spoken| [(spoken, 7), (spoken, 8)]) {
        let (reads, may_read) = tokio::sync::watch::channel(false);
        let app = serve(move |request| {
            let mut may_read = may_read.clone();
            async move {
                may_read.wait_for(|may_read| *may_read).await.unwrap();
                let body = request.into_body().collect().await?.to_bytes();
                let length = Bytes::from(body.len().to_string());
                Ok(Response::new(Full::new(length).map_err(|e| match e {}).boxed()))
            }
        });
        let network = Network::new("west");
        let credentials = network.credentials(&service("stock"), "s-0", &[]);
        let target = AppTarget::at(app, protocol);
        let sidecar = Running::start(service("stock"), credentials, &[], Some(target), None);
        let head = format!(
            "{}x-tollway-lease: 7\r\nhost: a\r\nconnection: close\r\ncontent-length: {BYTES}\r\n\r\n",
            turn_by(sim::boot() + LEASE)
        );
        let stream = sidecar.inside();
        stream.send_meanwhile([head.as_bytes(), &vec![b'-'; BYTES]].concat());
        for _ in 0..10 {
            let lease = TurnLease { number: renewed, until: sim::boot() + LEASE };
            assert!(sidecar.commands.send(Command::LeaseRenewed(lease)));
            advance(LEASE / 2);
        }
        reads.send(true).unwrap();
        let answer = read_answer(stream);
        match renewed {
            7 => assert!(answer.ends_with(&BYTES.to_string()), "{protocol:?}: {answer}"),
            _ => check_failed(&answer, "502", "ERR_CLOSED_EARLY", false),
        }
    }
}

/// Whenever the moment comes from which on a turn must not begin, the app has it whole, or its
/// caller gets an error by which nothing of it was sent.
#[test]
fn a_turn_that_is_too_late_is_not_sent() {
    for protocol in SPOKEN {
        let (sidecar, asked) = beside_counting_app(protocol);
        let call = |by: Duration| sidecar.call_inside(&turn_by(by));
        let (mut sent, mut refused) = (0, 0);
        for nth in 0..100 {
            let by = sim::boot() + Duration::from_micros(nth);
            let answer = call(by);
            if answer.ends_with("ok") {
                sent += 1;
            } else {
                check_failed(&answer, "503", "ERR_OVERLOADED", true);
                refused += 1;
            }
        }
        assert!(refused > 0 && sent > 0, "{refused} refused, {sent} sent");
        assert!(call(sim::boot() + LONG).ends_with("ok"));
        assert_eq!(asked.load(Ordering::SeqCst), sent + 1, "{refused} were refused");
    }
}

/// A turn that is too late takes the connection with it on which it waited; another whose time is
/// not over, and that had not been sent either, fails as unprocessed: each turn has its answer.
#[test]
fn unsent_turns_beside_a_late_one_are_reported_as_unprocessed() {
    let (sidecar, asked) = beside_counting_app(AppProtocol::H2c);
    let far = sim::boot() + LONG;
    assert!(sidecar.call_inside(&turn_by(far)).ends_with("ok"));
    let (mut ran, mut unprocessed) = (1, 0);
    for nth in 0..100 {
        let by = sim::boot() + Duration::from_micros(nth);
        let asked = [turn_by(by), turn_by(far)].map(|head| sidecar.begin_inside(&head));
        for answer in asked.map(read_answer) {
            if answer.ends_with("ok") {
                ran += 1;
            } else {
                assert!(answer.starts_with("HTTP/1.1 50"), "{answer}");
                unprocessed += usize::from(answer.contains("x-tollway-unprocessed: 1\r\n"));
            }
        }
    }
    let asked = asked.load(Ordering::SeqCst);
    let all = asked + unprocessed;
    assert!(ran <= asked && unprocessed > 0 && all <= 201, "{ran} {asked} {unprocessed}");
}

/// Calls the first replica, which is called off after `meanwhile`.
fn called_off(fleet: &Fleet, meanwhile: impl FnOnce()) -> String {
    const NUMBER: u64 = 7;
    let asked = fleet.caller.begin_inside(&format!(
        "POST /x HTTP/1.1\r\ndapr-app-id: stock\r\nx-tollway-instance: S-0\r\n\
         x-tollway-call: {NUMBER}\r\n"
    ));
    fleet.caller.commands.send(Command::CallOff(NUMBER + 1));
    meanwhile();
    assert!(!asked.has_arrived(), "{}", read_answer(asked));
    fleet.caller.commands.send(Command::CallOff(NUMBER));
    assert!(asked.has_arrived(), "it waits on");
    read_answer(asked)
}

#[test]
fn a_call_that_is_called_off_reports_whether_any_of_it_was_sent() {
    // It takes connections, and says nothing.
    let mute = listen();
    let fleet = Fleet::with(long(), AppProtocol::Http, &[mute.address]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&[mute.address]));
    let waits = called_off(&fleet, || advance(Duration::from_secs(30)));
    check_failed(&waits, "504", "ERR_SILENT", true);
    let fleet = Fleet::with(long(), AppProtocol::Http, &[mute.address]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    let sent = called_off(&fleet, || until("it is sent", || served(&fleet) == [1]));
    check_failed(&sent, "504", "ERR_SILENT", false);
}

#[test]
fn private_fields_in_a_request_of_an_app_have_no_effect() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
    fleet.callees[0].run_actors();
    fleet.caller.run_actors();
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    let mut stream = connect(fleet.caller.addresses[0]);
    for said in [
        "x-tollway-instance: s-9",
        "x-tollway-to: app",
        "x-tollway-actor: host",
        "x-tollway-actor: lookup",
        "x-tollway-external: http://127.0.0.1:1",
        "x-tollway-target: other.default.west",
        "x-tollway-call: 7",
    ] {
        let request =
            format!("GET /v1.0/invoke/stock/method/x HTTP/1.1\r\nhost: a\r\n{said}\r\n\r\n");
        let answer = talk(&mut stream, request.as_bytes(), b"\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains("x-own: \r\n") && answer.contains("x-path: /x\r\n"), "{answer}");
    }
    assert_eq!(served(&fleet), [7]);
}

const FROM_EVIL: &str = "x-tollway-caller-of: west spiffe://west.tollway/ns/lowly/evil\r\n";

/// A replica of `stock` that asks another one, and one of `web` that does the same.
struct Passing {
    fleet: Fleet,
    replica: Running,
}

impl Passing {
    fn new() -> Self {
        let fleet = Fleet::with(long(), AppProtocol::Http, &[start_app(), start_app()]);
        fleet.callees[1].run_actors();
        let credentials = fleet.network.credentials(&fleet.stock, "s-9", &[]);
        let replica = Running::start(fleet.stock.clone(), credentials, &[], None, None);
        for asks in [&replica, &fleet.caller] {
            asks.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
        }
        Self { fleet, replica }
    }

    /// The call of an actor at the second replica, which `from` passes on as one of `evil`.
    fn ask(&self, from: &Running, fields: &str) -> String {
        from.call_inside(&format!(
            "POST /v1.0/actors/Cart/1/method/Add HTTP/1.1\r\n{TO_SECOND}x-tollway-actor: host\r\n{fields}"
        ))
    }

    /// Closes the second replica to everybody but these.
    fn allow(&self, from: &str) {
        let policy = Policy {
            name: ObjectName::new("default", "closed").unwrap(),
            target: PolicyTarget::App(label("stock")),
            mode: tollway_model::Mode::Enforce,
            allow: Some(vec![PolicyRule {
                from: vec![from.parse().unwrap()],
                methods: Vec::new(),
                paths: Vec::new(),
            }]),
            deny: Vec::new(),
        };
        let set = tollway_routing::PolicySet::new(self.fleet.stock.clone(), [Arc::new(policy)]);
        let update = PolicyUpdate::unobserved(set);
        self.fleet.callees[1].commands.send(Command::Policies(update));
    }
}

/// The harm: a call that passes through a sidecar arrives under that sidecar's identity.
#[test]
fn a_call_that_a_replica_passes_on_is_judged_and_shown_as_its_callers() {
    let passing = Passing::new();
    let answer = passing.ask(&passing.replica, FROM_EVIL);
    assert!(answer.ends_with("ran: hi"), "{answer}");
    assert!(answer.contains("x-caller: spiffe://west.tollway/ns/lowly/evil\r\n"), "{answer}");
    assert!(answer.contains("x-caller-app: evil\r\n"), "{answer}");
    passing.allow("stock");
    check_failed(&passing.ask(&passing.replica, FROM_EVIL), "403", "ERR_POLICY_DENIED", true);
    assert!(passing.ask(&passing.replica, "").ends_with("ran: hi"), "a call of its own");
    passing.allow("evil.lowly");
    assert!(passing.ask(&passing.replica, FROM_EVIL).ends_with("ran: hi"));
}

/// The harm: an app says that its call is another's.
#[test]
fn no_other_service_is_believed_whose_call_it_passes_on() {
    let passing = Passing::new();
    let answer = passing.ask(&passing.fleet.caller, FROM_EVIL);
    assert!(answer.contains("x-caller: spiffe://west.tollway/ns/default/web\r\n"), "{answer}");
    passing.allow("evil.lowly");
    check_failed(&passing.ask(&passing.fleet.caller, FROM_EVIL), "403", "ERR_POLICY_DENIED", true);
}

/// The harm: an app's own list (Dapr's access control) is got round by calls of its actors.
#[test]
fn the_list_of_an_app_is_asked_about_its_actors_too() {
    use tollway_routing::{AccessList, Action, CallerAccess, Operation};
    let may_add = CallerAccess {
        caller: "web".parse().unwrap(),
        default: Action::Deny,
        operations: vec![Operation {
            path: "/actors/Cart/*/method/Add".parse().unwrap(),
            methods: Vec::new(),
            action: Action::Allow,
        }],
    };
    let list = AccessList {
        name: ObjectName::new("default", "list").unwrap(),
        default: Action::Deny,
        callers: vec![may_add],
    };
    let fleet = Fleet::with(long(), AppProtocol::Http, &[start_app()]);
    let config =
        LoopConfig { access: Some(Arc::new(list)), ..LoopConfig::of_test(fleet.stock.clone()) };
    let (config, around) = (Arc::new(config), Around::default());
    let credentials = fleet.network.credentials(&fleet.stock, "s-1", &[]);
    let sidecar = Http::sidecar(&config, credentials, Box::new(around.clone()));
    let callee = Running::of(None, config, &[ListenerKind::Inbound], around, sidecar);
    callee.send_no_policies(fleet.stock.clone());
    callee.run_actors();
    let state = fleet.local(&[fleet.addresses()[0], callee.addresses[0]]);
    fleet.caller.send_state(&fleet.stock, state.clone());
    let ask = |from: &Running, path: &str, fields: &str| {
        from.call_inside(&format!(
            "PUT {path} HTTP/1.1\r\n{TO_SECOND}x-tollway-actor: host\r\n{fields}"
        ))
    };
    let path = "/v1.0/actors/Cart/1/method/Add";
    assert!(ask(&fleet.caller, path, "").ends_with("ran: hi"));
    let others = ["/v1.0/actors/Cart/1/method/Steal", "/v1.0/actors/Cart/1/reminders/x"];
    for other in others.into_iter().chain(["/v1.0/actors/Till/../Cart/1/method/Steal"]) {
        check_failed(&ask(&fleet.caller, other, ""), "403", "ERR_POLICY_DENIED", true);
    }
    // Replicas of the app call each other's actors, and pass on what the list lets in.
    let credentials = fleet.network.credentials(&fleet.stock, "s-9", &[]);
    let replica = Running::start(fleet.stock.clone(), credentials, &[], None, None);
    replica.send_state(&fleet.stock, state);
    assert!(ask(&replica, others[0], "").ends_with("ran: hi"));
    check_failed(&ask(&replica, path, FROM_EVIL), "403", "ERR_POLICY_DENIED", true);
}
