//! Clients that must authenticate: valid ones, and each kind of invalid one.

use std::io::Write as _;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{ExtendedKeyUsagePurpose, SanType};
use rustix::process::Signal;
use rustls::version;
use tollway_testkit::{Process, RawClient, TempDir, retry_until};

use crate::front::world::{
    Files, HOST, Https, PATIENCE, World, client_of, get, request, request_of, until_revision,
};
use tollway_tests::pki::{Authority, Pair, Wanted, write};
use tollway_tests::scripted_app::Script;

pub(crate) const FIELD: &str = "x-forwarded-client-cert";

/// A front that demands certificates of `people`.
pub(crate) fn demanding(people: &Authority, options: &[&str]) -> World {
    let (files, app) = (Files::new(), tollway_tests::scripted_app::App::start(Script::new()));
    let ca = write(files.folder(), "people.pem", &people.root).display().to_string();
    let options = [&["--client-ca", &ca], options].concat();
    let front = files.front(&format!("http://{}", app.address), &options);
    World { files, app, front }
}

#[test]
fn the_app_gets_the_certificate_of_the_client() {
    let people = Authority::new("people");
    let world = demanding(&people, &[]);
    let wanted = Wanted::client("robot; \"x\"").with(|params| {
        params.subject_alt_names = vec![
            SanType::URI("spiffe://people/robot".try_into().unwrap()),
            SanType::DnsName("robot.example".try_into().unwrap()),
        ];
    });
    let pair = people.sign(&wanted);
    for (path, versions) in [("/13", [&version::TLS13]), ("/12", [&version::TLS12])] {
        let root = &world.files.authority.root;
        let config = Arc::new(client_of(root, Some(pair.shown()), &versions));
        // The second of the two resumes the session of the first.
        for _ in 0..2 {
            let mut client = Https::connect(world.address(), HOST, Arc::clone(&config)).unwrap();
            let forged = format!("{FIELD}: Hash=evil\r\n");
            let answer = client.ask(&request("GET", path, &forged)).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
        let resumed = world.app.requests(path);
        let hash = hash_of(&pair);
        let subject = r#"Subject="CN=robot\\; \\\"x\\\"""#;
        let reported = format!("Hash={hash};{subject};URI=spiffe://people/robot;DNS=robot.example");
        assert_eq!(resumed.len(), 2);
        for seen in resumed {
            assert_eq!(seen.values(FIELD), [&reported]);
        }
    }
}

#[test]
fn the_access_log_names_the_client() {
    let people = Authority::new("people");
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("access.log");
    let world = demanding(&people, &["--access-log", log.to_str().unwrap()]);
    let pair = people.sign(&Wanted::client("robot"));
    let root = &world.files.authority.root;
    let config = client_of(root, Some(pair.shown()), &[&version::TLS13]);
    world.ask(config, &get("/logged")).unwrap();
    let line = retry_until(PATIENCE, "its line", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let line = text.lines().find(|line| line.contains("/logged") && line.ends_with('}'))?;
        Some(serde_json::from_str::<serde_json::Value>(line).unwrap())
    });
    let line = line.unwrap();
    assert_eq!(line["caller"], format!("Hash={};Subject=\"CN=robot\"", hash_of(&pair)), "{line}");
    let remote = line["remote"].as_str().unwrap_or_default();
    assert!(remote.starts_with("127.0.0.1:"), "{line}");
}

#[test]
fn a_handshake_that_does_not_end_is_logged_and_counted() {
    let files = Files::new();
    let log = files.path("access.log");
    let app = tollway_tests::scripted_app::App::start(Script::new());
    let to = format!("http://{}", app.address);
    let front = files.front(&to, &["--limit", "handshake_ms=300", "--access-log", &log]);
    let mut silent = RawClient::connect(front.port("front").unwrap()).unwrap();
    silent.send([22, 3, 1, 0, 200]).unwrap();
    silent.read_to_end(PATIENCE).unwrap();
    let line = retry_until(PATIENCE, "its line", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().find(|line| line.ends_with('}')).map(str::to_owned)
    });
    let line = line.unwrap();
    assert!(line.contains(r#""kind":"connection""#), "{line}");
    assert!(line.contains(r#""error_code":"ERR_HANDSHAKE_TIMED_OUT""#), "{line}");
    assert_eq!(front.metric("tollway_tls_handshake_failures_total").unwrap(), 1);
    assert!(front.log().contains("did not end within 300 ms"), "{}", front.log());
}

/// When the authorities for clients change, an open connection's client authenticates again; its
/// connection ends after the pending answer, which announces it.
#[test]
fn the_last_answer_before_clients_prove_anew_announces_the_end() {
    let people = Authority::new("people");
    let (files, listener) = (Files::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let ca = write(files.folder(), "people.pem", &people.root).display().to_string();
    let to = format!("http://{}", listener.local_addr().unwrap());
    let front = files.front(&to, &["--client-ca", &ca]);
    let shown = people.sign(&Wanted::client("robot")).shown();
    let config = client_of(&files.authority.root, Some(shown), &[&version::TLS13]);
    let address = front.port("front").unwrap();
    let mut client = Https::connect(address, HOST, Arc::new(config)).unwrap();
    let asking = std::thread::spawn(move || client.ask(&get("/slow")).unwrap());
    let mut app = request_of(&listener);
    write(files.folder(), "people.pem", &Authority::new("others").root);
    front.signal(Signal::HUP).unwrap();
    until_revision(&front, 2);
    app.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
    let answer = asking.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
}

pub(crate) fn hash_of(pair: &Pair) -> String {
    use std::fmt::Write;
    let digest = sha256(&pair.der());
    digest.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// By the provider of TLS, which has one.
fn sha256(bytes: &[u8]) -> Vec<u8> {
    let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let hash = suite.tls13().unwrap().common.hash_provider.hash(bytes);
    hash.as_ref().to_vec()
}

/// A client that is refused, and why.
pub(crate) struct Stranger {
    pub(crate) name: &'static str,
    pub(crate) shown: Option<Pair>,
    pub(crate) code: &'static str,
    pub(crate) reason: &'static str,
}

impl Stranger {
    /// Waits until a front's log has the reason of a refusal.
    #[track_caller]
    pub(crate) fn until_logged(&self, front: &Process) {
        let Self { name, code, reason, .. } = self;
        let is_told = || {
            let line = |line: &str| line.contains(code) && line.contains(reason);
            front.log().lines().any(line).then_some(())
        };
        let reported = retry_until(PATIENCE, "the reason", is_told);
        assert!(reported.is_ok(), "{name}: no {code} `{reason}` in\n{}", front.log());
    }
}

pub(crate) fn strangers(people: &Authority) -> Vec<Stranger> {
    let stranger = |name, wanted: &Wanted, by: &Authority, code, reason| Stranger {
        name,
        shown: Some(by.sign(wanted)),
        code,
        reason,
    };
    let honest = || Wanted::client("robot");
    let twin = Authority::new("people");
    let other = Authority::new("others");
    let tomorrow = honest().with(|params| {
        params.not_before = (SystemTime::now() + Duration::from_secs(3000)).into();
    });
    let server = honest()
        .with(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]);
    let names = honest().with(|params| {
        let name = |n| SanType::DnsName(format!("n{n}.example").try_into().unwrap());
        params.subject_alt_names = (0..65).map(name).collect();
    });
    let unprintable = honest().with(|params| {
        params.subject_alt_names = vec![SanType::URI("a:b\r\nx-admin: 1".try_into().unwrap())];
    });
    let foreign = "ERR_FOREIGN_AUTHORITY";
    let refused = "ERR_CLIENT_CERTIFICATE_REFUSED";
    vec![
        Stranger {
            name: "nobody",
            shown: None,
            code: "ERR_NO_CLIENT_CERTIFICATE",
            reason: "showed no certificate",
        },
        stranger("a stranger", &honest(), &other, foreign, "--client-ca does not hold"),
        stranger("a twin's", &honest(), &twin, foreign, "not signed by the authority"),
        stranger("expired", &honest().expired(), people, "ERR_CERTIFICATE_EXPIRED", "expired"),
        stranger("early", &tomorrow, people, "ERR_CERTIFICATE_NOT_YET_VALID", "not valid for"),
        stranger("a server", &server, people, refused, "not meant for clients"),
        stranger("a crowd", &names, people, refused, "65 names"),
        stranger("a line end", &unprintable, people, refused, "not printable"),
    ]
}

/// Each is ended before the app sees it, and the log, the access log and the count have the reason.
#[test]
fn a_client_without_a_valid_certificate_is_refused_with_the_reason() {
    let people = Authority::new("people");
    let access = TempDir::new().unwrap();
    let log = access.path().join("access.log");
    let world =
        demanding(&people, &["--access-log", log.to_str().unwrap(), "--log-level", "debug"]);
    let root = world.files.authority.root.clone();
    let strangers = strangers(&people);
    for stranger in &strangers {
        let shown = stranger.shown.as_ref().map(Pair::shown);
        let config = client_of(&root, shown, &[&version::TLS13]);
        let answer = world.ask(config, &get("/secret"));
        assert!(answer.is_err(), "{} was let in: {answer:?}", stranger.name);
        stranger.until_logged(&world.front);
        let has_line = || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let code = format!("\"error_code\":\"{}\"", stranger.code);
            text.lines().any(|line| line.contains(&code)).then_some(())
        };
        retry_until(PATIENCE, "the line", has_line).unwrap();
    }
    assert_eq!(world.metric("tollway_tls_handshake_failures_total"), strangers.len() as u64);
    assert!(world.app.requests("/secret").is_empty());
    let honest = people.sign(&Wanted::client("robot")).shown();
    let config = client_of(&root, Some(honest), &[&version::TLS13]);
    assert!(world.ask(config, &get("/honest")).unwrap().starts_with("HTTP/1.1 200 "));
}

/// A session does not outlive the certificate that it began with.
#[test]
fn a_session_ends_with_its_certificate() {
    let people = Authority::new("people");
    let world = demanding(&people, &["--log-level", "debug"]);
    let soon = Wanted::client("robot").with(|params| {
        params.not_after = (SystemTime::now() + Duration::from_secs(3)).into();
    });
    let shown = people.sign(&soon).shown();
    let root = &world.files.authority.root;
    for versions in [[&version::TLS13], [&version::TLS12]] {
        let config = Arc::new(client_of(root, Some(Arc::clone(&shown)), &versions));
        let connect = || Https::connect(world.address(), HOST, Arc::clone(&config));
        let first = connect().and_then(|mut client| client.ask(&get("/")));
        assert!(first.is_ok() || versions == [&version::TLS12], "{first:?}");
        let is_over = || connect().and_then(|mut client| client.ask(&get("/"))).err();
        retry_until(PATIENCE, "the end of the certificate", is_over).unwrap();
    }
}

/// A client admitted by an authority that is no longer trusted authenticates again.
#[test]
fn another_authority_is_asked_of_everybody() {
    let (people, others) = (Authority::new("people"), Authority::new("others"));
    let world = demanding(&people, &[]);
    let root = &world.files.authority.root;
    let config = |authority: &Authority| {
        let shown = authority.sign(&Wanted::client("robot")).shown();
        Arc::new(client_of(root, Some(shown), &[&version::TLS13]))
    };
    let (before, after) = (config(&people), config(&others));
    let connect = |config: &Arc<_>| Https::connect(world.address(), HOST, Arc::clone(config));
    let mut standing = connect(&before).unwrap();
    standing.ask(&get("/before")).unwrap();
    write(world.files.folder(), "people.pem", &others.root);
    until_revision(&world.front, 2);
    let ended = || standing.ask(&get("/after")).err();
    retry_until(PATIENCE, "the end of the old connection", ended).unwrap();
    // Nor does the ticket of the old session help.
    assert!(connect(&before).and_then(|mut client| client.ask(&get("/again"))).is_err());
    assert!(connect(&after).unwrap().ask(&get("/new")).is_ok());
    assert!(world.app.requests("/again").is_empty());
}
