//! Clients with HTTP/2: they authenticate as others do, and changed files affect their connections
//! as others'.

use std::io::Write as _;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::Request;
use rcgen::SanType;
use rustix::process::Signal;
use rustls::ClientConfig;
use rustls::version;
use tollway_testkit::{Process, TlsRelay, retry_until};

use crate::front::clients::{FIELD, demanding, hash_of, strangers};
use crate::front::world::{
    Files, HOST, Https, PATIENCE, World, client_over, request_of, until_revision,
};
use tollway_tests::h2_attacker::{Aim, Wire};
use tollway_tests::h2_frames::{
    DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, NO_ERROR, SETTINGS, block, frame, hello,
};
use tollway_tests::mesh::http::{Client, Version, empty, runtime};
use tollway_tests::pki::{Authority, Pair, Wanted, write};
use tollway_tests::scripted_app::{Script, chunked};

const H2: &[u8] = b"h2";

/// A client that trusts the authority of `files`, and presents `shown` on request.
fn config(files: &Files, shown: Option<&Pair>) -> Arc<ClientConfig> {
    let shown = shown.map(Pair::shown);
    Arc::new(client_over(H2, &files.authority.root, shown, &[&version::TLS13]))
}

/// A connection of which a test sends and receives every frame.
struct Frames {
    wire: Wire,
    came: Vec<u8>,
    is_closed: bool,
}

impl Frames {
    fn connect(front: &Process, config: &Arc<ClientConfig>) -> Self {
        let tls = Some((Arc::clone(config), HOST.to_owned()));
        let mut wire = Wire::open(&Aim { address: front.port("front").unwrap(), tls }).unwrap();
        // A refused client may learn it before.
        let is_closed = wire.send(&hello()).is_err();
        Self { wire, came: Vec::new(), is_closed }
    }

    /// A head; `flags` decide whether it is the whole request.
    fn ask(&mut self, stream: u32, flags: u8, method: &str, path: &str) {
        let lines =
            [(":method", method), (":scheme", "https"), (":path", path), (":authority", HOST)];
        // A connection that was ended is seen by what comes.
        let _ = self.wire.send(&frame(HEADERS, END_HEADERS | flags, stream, &block(&lines)));
    }

    fn heard(&mut self) -> Vec<Frame> {
        match self.wire.take() {
            Ok(bytes) => self.came.extend(bytes),
            Err(_) => self.is_closed = true,
        }
        Frame::all(&self.came)
    }

    #[track_caller]
    fn until(&mut self, what: &str, is_it: impl Fn(&Frame) -> bool) -> Frame {
        let found = || self.heard().into_iter().find(&is_it);
        retry_until(PATIENCE, what, found).unwrap()
    }

    #[track_caller]
    fn until_answered(&mut self, stream: u32) {
        self.until("the answer", |frame| frame.stream == stream && frame.ends_stream());
    }

    #[track_caller]
    fn until_closed(&mut self) -> Vec<Frame> {
        let is_closed = || {
            self.heard();
            self.is_closed.then_some(())
        };
        retry_until(PATIENCE, "the end of the connection", is_closed).unwrap();
        self.heard()
    }

    /// Whether the front talks to this client; else it has closed.
    fn is_let_in(&mut self) -> bool {
        let settled = || {
            let is_let_in = self.heard().iter().any(|frame| frame.kind == SETTINGS);
            (is_let_in || self.is_closed).then_some(is_let_in)
        };
        retry_until(PATIENCE, "a word or the end", settled).unwrap()
    }
}

#[test]
fn the_app_gets_the_certificate_of_a_client_over_http2() {
    let people = Authority::new("people");
    let world = demanding(&people, &[]);
    let wanted = Wanted::client("robot").with(|params| {
        params.subject_alt_names = vec![SanType::URI("spiffe://people/robot".try_into().unwrap())];
    });
    let pair = people.sign(&wanted);
    for (path, versions) in [("/13", [&version::TLS13]), ("/12", [&version::TLS12])] {
        let root = &world.files.authority.root;
        let config = Arc::new(client_over(H2, root, Some(pair.shown()), &versions));
        let relay = TlsRelay::start(world.address(), HOST, config).unwrap();
        // The second of the two resumes the session of the first.
        for _ in 0..2 {
            let request = Request::get(format!("http://{HOST}{path}"))
                .header(FIELD, "Hash=evil")
                .header(FIELD, "Hash=worse")
                .header(FIELD.replace('-', "_"), "Hash=worst");
            let request = request.body(empty()).unwrap();
            let answer = runtime().block_on(async {
                Client::connect(Version::Http2, relay.address()).await.exchange(request).await
            });
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let reported =
            format!("Hash={};Subject=\"CN=robot\";URI=spiffe://people/robot", hash_of(&pair));
        let requests = world.app.requests(path);
        assert_eq!(requests.len(), 2);
        for seen in requests {
            assert_eq!(seen.values(FIELD), [&reported], "{}", seen.head);
            assert!(!seen.head.contains("Hash=wors"), "{}", seen.head);
        }
    }
}

#[test]
fn a_client_over_http2_without_a_valid_certificate_is_refused() {
    let people = Authority::new("people");
    let world = demanding(&people, &["--log-level", "debug"]);
    let strangers = strangers(&people);
    for stranger in &strangers {
        let shown = stranger.shown.as_ref();
        let mut client = Frames::connect(&world.front, &config(&world.files, shown));
        client.ask(1, END_STREAM, "GET", "/secret");
        let heard = client.until_closed();
        assert!(heard.is_empty(), "{} was let in: {heard:?}", stranger.name);
        stranger.until_logged(&world.front);
    }
    assert_eq!(world.metric("tollway_tls_handshake_failures_total"), strangers.len() as u64);
    assert!(world.app.requests("/secret").is_empty());
    let honest = people.sign(&Wanted::client("robot"));
    let mut client = Frames::connect(&world.front, &config(&world.files, Some(&honest)));
    client.ask(1, END_STREAM, "GET", "/honest");
    client.until_answered(1);
}

/// Also in the middle of a request.
#[test]
fn certificates_change_under_a_connection_of_http2_that_goes_on() {
    let world = World::start(Script::new(), &[]);
    let config = config(&world.files, None);
    let mut standing = Frames::connect(&world.front, &config);
    standing.ask(1, END_STREAM, "GET", "/before");
    standing.until_answered(1);
    standing.ask(3, 0, "POST", "/during");
    let pair = world.files.authority.server(&[HOST]);
    pair.write(world.files.folder(), "a");
    until_revision(&world.front, 2);
    standing.wire.send(&frame(DATA, END_STREAM, 3, b"of a body")).unwrap();
    standing.until_answered(3);
    standing.ask(5, END_STREAM, "GET", "/after");
    standing.until_answered(5);
    assert!(!standing.heard().iter().any(|frame| frame.kind == GOAWAY), "asked to leave");
    let body = chunked(&world.app.requests("/during")[0].body).unwrap().0;
    assert_eq!(body, b"of a body");
    let newcomer = Https::connect(world.address(), HOST, config).unwrap();
    assert_eq!(newcomer.shown(), pair.der());
    assert_eq!(world.metric("tollway_connections"), 2 + 1, "two clients and the app");
}

/// A client admitted by an authority that is no longer trusted has to reconnect, and then
/// authenticates; requests under way are answered first.
#[test]
fn another_authority_is_asked_of_clients_over_http2() {
    let (people, others) = (Authority::new("people"), Authority::new("others"));
    let (files, listener) = (Files::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let ca = write(files.folder(), "people.pem", &people.root).display().to_string();
    let to = format!("http://{}", listener.local_addr().unwrap());
    let front = files.front(&to, &["--client-ca", &ca]);
    let of =
        |authority: &Authority| config(&files, Some(&authority.sign(&Wanted::client("robot"))));
    let (before, after) = (of(&people), of(&others));
    let mut standing = Frames::connect(&front, &before);
    standing.ask(1, END_STREAM, "GET", "/slow");
    let mut app = request_of(&listener);
    write(files.folder(), "people.pem", &others.root);
    front.signal(Signal::HUP).unwrap();
    until_revision(&front, 2);
    let goaway = standing.until("the request to leave", |frame| frame.kind == GOAWAY);
    assert_eq!(goaway.goaway_code(), Some(NO_ERROR));
    app.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
    standing.until_answered(1);
    let heard = standing.until_closed();
    let is_reset = |frame: &Frame| frame.code().is_some();
    assert!(!heard.iter().any(is_reset), "{heard:?}");
    // Nor does the ticket of the old session help.
    assert!(!Frames::connect(&front, &before).is_let_in());
    assert!(Frames::connect(&front, &after).is_let_in());
}

#[test]
fn a_connection_of_http2_ends_with_the_certificate_of_its_client() {
    let people = Authority::new("people");
    let world = demanding(&people, &[]);
    let soon = Wanted::client("robot").with(|params| {
        params.not_after = (SystemTime::now() + Duration::from_secs(10)).into();
    });
    let config = config(&world.files, Some(&people.sign(&soon)));
    let mut client = Frames::connect(&world.front, &config);
    client.ask(1, END_STREAM, "GET", "/while-it-is-good");
    client.until_answered(1);
    let goaway = client.until("the request to leave", |frame| frame.kind == GOAWAY);
    assert_eq!(goaway.goaway_code(), Some(NO_ERROR));
    client.until_closed();
    let is_refused = || (!Frames::connect(&world.front, &config).is_let_in()).then_some(());
    retry_until(PATIENCE, "the end of the certificate", is_refused).unwrap();
}
