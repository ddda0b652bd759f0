//! The flags of `tollway load` and `tollway echo`, each checked by what the other end or the result
//! saw. Their details are tested in the engine; here it is that they arrive.

mod seen;

use std::collections::BTreeSet;
use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use seen::Witness;
use tollway_record::record::Tls;
use tollway_testkit::TempDir;
use tollway_tests::load_command::{Echo, run, tollway};

/// One connection and no warm-up: exactly the requested number is counted.
const ONE: [&str; 4] = ["-c", "1", "--warm-up", "0s"];
/// Attempts at a measurement that a suspended machine would spoil.
const ATTEMPTS: usize = 10;

#[test]
fn flags_set_the_method_and_the_address_of_a_request() {
    let witness = Witness::start();
    let to = witness.address.to_string();
    let asked = ["--method", "DELETE", "--connect-to", &to, "-n", "3"];
    let result = run(&[&["http", "http://shop.test/cart?id=7"], &ONE[..], &asked].concat());
    assert_eq!((result.traffic.requests, result.traffic.errors), (3, 0), "{:?}", result.traffic);
    let seen = witness.take();
    let heads: Vec<_> = seen.iter().flatten().collect();
    assert_eq!(heads.len(), 3, "{seen:?}");
    for head in heads {
        assert!(head.starts_with("DELETE /cart?id=7 HTTP/1.1\n"), "{head}");
        assert!(head.lines().any(|line| line == "host: shop.test"), "{head}");
    }
}

#[test]
fn parts_of_a_path_vary_from_request_to_request() {
    let witness = Witness::start();
    let url = format!("http://{}/actors/{{uuid}}/{{08..10}}", witness.address);
    run(&[&["http", &url, "-n", "5"], &ONE[..]].concat());
    let seen = witness.take();
    let paths: Vec<&str> =
        seen.iter().flatten().filter_map(|head| head.split(' ').nth(1)).collect();
    let numbers: Vec<&str> = paths.iter().filter_map(|path| path.rsplit('/').next()).collect();
    assert_eq!(numbers, ["08", "09", "10", "08", "09"], "{paths:?}");
    let uuids: BTreeSet<&str> = paths.iter().filter_map(|path| path.split('/').nth(2)).collect();
    assert_eq!(uuids.len(), 5, "{paths:?}");
    let echo = Echo::start(&[]);
    for protocol in [&[][..], &["--http2"]] {
        let url = echo.url("/status/{500..503}");
        let result = run(&[&["http", &url, "-n", "8"], &ONE[..], protocol].concat());
        let kinds: Vec<u64> = result.traffic.errors_by_kind.values().copied().collect();
        assert_eq!(kinds, [2; 4], "{:?}", result.traffic.errors_by_kind);
    }
    let output = tollway(&["load", "http", "http://127.0.0.1:9/{id}"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("write {uuid} or {1..1000}"), "{error}");
}

#[test]
fn connections_end_when_they_have_carried_what_they_may() {
    let witness = Witness::start();
    let url = format!("http://{}/", witness.address);
    let carried = |flags: &[&str]| {
        let result =
            run(&[&["http", &url, "-c", "2", "-n", "12", "--warm-up", "0s"], flags].concat());
        assert_eq!((result.traffic.requests, result.traffic.errors), (12, 0), "{flags:?}");
        let mut carried: Vec<_> = witness.take().iter().map(Vec::len).collect();
        carried.sort_unstable();
        assert_eq!(carried.iter().sum::<usize>(), 12, "{flags:?}: {carried:?}");
        (carried, result.requests_per_connection)
    };
    let (kept, per_connection) = carried(&[]);
    assert!(kept.len() <= 2 && per_connection.is_none(), "{kept:?}");
    let (limited, per_connection) = carried(&["--requests-per-connection", "3"]);
    assert_eq!((limited.last(), per_connection), (Some(&3), Some(3)), "{limited:?}");
    let (single, per_connection) = carried(&["--disable-keepalive"]);
    assert_eq!((single.len(), per_connection), (12, Some(1)), "{single:?}");
}

#[test]
fn a_connection_that_was_idle_for_too_long_is_left() {
    let witness = Witness::start();
    let url = format!("http://{}/", witness.address);
    let used = |flags: &[&str]| {
        run(&[&["http", &url, "-n", "5"], &ONE[..], flags].concat());
        witness.take().len()
    };
    let paced = ["--rate", "5"];
    assert_eq!(used(&paced), 1);
    // A generator that was suspended makes up for it without a pause.
    let left = (0..ATTEMPTS).any(|_| used(&[&paced[..], &["--max-idle", "1ms"]].concat()) == 5);
    assert!(left, "requests 200 ms apart shared a connection");
    // Waiting for an answer is not idleness.
    let echo = Echo::start(&[]);
    let slow = echo.url("/delay?ms=60");
    let kept = (0..ATTEMPTS).any(|_| {
        let flags = ["-n", "3", "--max-idle", "50ms"];
        let result = run(&[&["http", &slow], &ONE[..], &flags].concat());
        result.traffic.phases_us.get("connecting").is_none_or(|connecting| connecting.n == 0)
    });
    assert!(kept, "a connection was left between an answer and the request right behind it");
}

#[test]
fn what_raw_tcp_does_not_have_is_refused() {
    for flag in
        [&["--disable-keepalive"][..], &["--requests-per-connection", "2"], &["--max-idle", "1s"]]
    {
        for kind in [&["--ping-pong"][..], &[]] {
            let output = tollway(&[&["load", "tcp", "127.0.0.1:9"], kind, flag].concat());
            let error = String::from_utf8(output.stderr).unwrap();
            let says = format!("{} ends connections, and raw TCP keeps its own", flag[0]);
            assert!(!output.status.success() && error.contains(&says), "{error}");
        }
    }
}

#[test]
fn the_seed_decides_the_arrivals() {
    let echo = Echo::start(&[]);
    let url = echo.url("/");
    let scheduled = |seed: &str| {
        let times = ["--rate", "200", "--spacing", "poisson", "-z", "400ms", "--seed", seed];
        let result = run(&[&["http", &url, "-c", "4", "--warm-up", "0s"], &times[..]].concat());
        assert_eq!(result.seed.to_string(), seed);
        result.traffic.scheduled()
    };
    let counts = ["1", "2", "3"].map(scheduled);
    assert_eq!(counts, ["1", "2", "3"].map(scheduled), "the same again");
    assert!(counts.iter().any(|count| *count != counts[0]), "{counts:?}");
}

#[test]
fn a_burst_is_sent_at_once() {
    let echo = Echo::start(&[]);
    // Evenly spaced, 15 would start in that time.
    let times = ["--rate", "100", "--spacing", "bursts:20", "-z", "150ms", "--warm-up", "0s"];
    let result = run(&[&["http", &echo.url("/"), "-c", "20"], &times[..]].concat());
    assert_eq!(result.traffic.scheduled(), 20);
    assert_eq!(result.arrival.as_str(), "open-bursts");
}

#[test]
fn a_search_holds_its_rates_to_what_was_asked() {
    let echo = Echo::start(&[]);
    // What no rate can hold is begun low: then there are few trials.
    let search = |path: &str, rate: &str, flags: &[&str]| {
        let trials = ["--max-rate", "--rate", rate, "--step-time", "500ms", "--precision", "50%"];
        let result = run(&[&["http", &echo.url(path), "-c", "4"], &trials[..], flags].concat());
        result.search.unwrap()
    };
    let why = |search: &tollway_record::search::SearchResult| -> Vec<String> {
        search.trials.iter().filter_map(|trial| trial.why.clone()).collect()
    };
    // Every answer takes at least 20 ms.
    let slow = search("/delay?ms=20", "2", &["--slo", "p50<10ms", "--slo", "max<1000s"]);
    assert_eq!(slow.slo[2..], ["p50<10ms", "max<1000s"]);
    assert!(slow.held_rps.is_none_or(|held| held < 20.0), "{slow:?}");
    assert!(why(&slow)[0].starts_with("p50<10ms: "), "{slow:?}");
    let strict = search("/status/503", "2", &[]);
    assert_eq!(why(&strict)[0], "100.00 % of the requests failed", "{strict:?}");
    // At most 200/s by four connections; half of the answers are errors.
    let half = "/delay?ms=20&status=503:50";
    let lenient = search(half, "40", &["--slo-errors", "90%"]);
    assert_eq!(lenient.slo[1], "error_rate<=90%");
    // A trial in which the generator was suspended is made again.
    assert!(lenient.trials.iter().any(|trial| trial.held), "{lenient:?}");
    assert!(
        why(&lenient).iter().all(|why| why.ends_with("of the rate was achieved")),
        "{lenient:?}"
    );
}

#[test]
fn streams_have_their_window_and_their_deadline() {
    let echo = Echo::start(&["--delay", "3600s"]);
    let target = echo.http().to_string();
    let push = ["--stream", "push", "--messages", "1", "--window", "70000"];
    let result = run(&[&["grpc", &target, "--deadline", "50ms"], &push[..]].concat());
    let streaming = result.streaming.as_ref().unwrap();
    assert_eq!((streaming.deadline_s, streaming.window_bytes), (Some(0.05), Some(70_000)));
    assert_eq!((streaming.completed, result.traffic.requests), (0, 0), "{streaming:?}");
    assert!(streaming.failed > 0, "{streaming:?}");
    let kinds: Vec<_> = result.traffic.errors_by_kind.keys().collect();
    assert_eq!(kinds, ["grpc-4"], "deadline exceeded");
    assert_eq!(window_of_first_settings(&push), 70_000);
}

/// The window of streams in the client's first bytes.
fn window_of_first_settings(push: &[&str]) -> u32 {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const INITIAL_WINDOW_SIZE: u16 = 4;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut preface = vec![0; PREFACE.len() + 9];
        stream.read_exact(&mut preface).unwrap();
        assert_eq!(&preface[..PREFACE.len()], PREFACE);
        let frame = &preface[PREFACE.len()..];
        assert_eq!(frame[3], 4, "SETTINGS");
        let mut settings = vec![0; usize::from(u16::from_be_bytes([frame[1], frame[2]]))];
        stream.read_exact(&mut settings).unwrap();
        let setting = |entry: &[u8]| -> (u16, u32) {
            let (id, value) = entry.split_at(2);
            (
                u16::from_be_bytes(id.try_into().unwrap()),
                u32::from_be_bytes(value.try_into().unwrap()),
            )
        };
        let settings: Vec<_> = settings.chunks_exact(6).map(setting).collect();
        let window = settings.iter().find(|(id, _)| *id == INITIAL_WINDOW_SIZE);
        window.unwrap_or_else(|| panic!("no window in {settings:?}")).1
    });
    // Its server is gone after the first bytes.
    tollway(&[&["load", "grpc", &target, "--quiet"], push].concat());
    reader.join().unwrap()
}

#[test]
fn an_echo_server_opens_the_listeners_of_its_flags() {
    let pki = Pki::make();
    let [server, key] = ["server.pem", "server.key"].map(|name| pki.path(name));
    let [ca, client] = ["ca.pem", "client.pem"].map(|name| pki.path(name));
    let any = "127.0.0.1:0";
    let secured = ["--https", any, "--cert", &server, "--key", &key, "--client-ca", &ca];
    let echo = Echo::start(&[&["--grpc", any], &secured[..]].concat());
    let [http, grpc, https] =
        ["http", "grpc", "https"].map(|name| echo.process.port(name).unwrap());
    assert!(http != grpc && grpc != https);
    let call =
        run(&[&["grpc", &grpc.to_string(), "-n", "20", "--streams", "1"], &ONE[..]].concat());
    assert_eq!((call.traffic.requests, call.tls), (20, Tls::Plain), "{:?}", call.traffic);

    // The name in the certificate is the URL's host, wherever the connection goes.
    let to = https.to_string();
    let checked =
        ["http", "https://shop.test/echo", "--connect-to", &to, "--cacert", &ca, "-n", "20"];
    let shown = run(&[&checked[..], &ONE, &["--cert", &client]].concat());
    assert_eq!((shown.traffic.requests, shown.tls), (20, Tls::Mtls), "{:?}", shown.traffic);
    let facts = shown.tls_facts.unwrap();
    assert!(facts.client_certificate && facts.handshakes_full == 1, "{facts:?}");
    let unknown = run(&[&checked[..], &ONE].concat()).traffic;
    assert_eq!((unknown.requests, unknown.errors), (0, 20), "without a certificate: {unknown:?}");
    let elsewhere = ["http", "https://bank.test/", "--connect-to", &to, "--cacert", &ca, "-n", "1"];
    let wrong = tollway(&[&["load"], &elsewhere[..], &ONE, &["--cert", &client]].concat());
    let error = String::from_utf8_lossy(&wrong.stderr);
    assert!(!wrong.status.success() && error.contains("bank.test"), "{error}");
}

#[test]
fn an_echo_server_fails_by_its_flags() {
    let with = |flags: &[&str], path: &str| {
        let echo = Echo::start(flags);
        run(&[&["http", &echo.url(path), "-n", "40"], &ONE[..]].concat()).traffic
    };
    let delayed = with(&["--delay", "5ms"], "/echo");
    assert!(delayed.requests == 40 && delayed.latency_us.mean.unwrap() >= 5_000.0, "{delayed:?}");
    let failed = with(&["--status", "503"], "/echo");
    assert_eq!((failed.requests, failed.errors_by_kind["status-503"]), (0, 40), "{failed:?}");
    let sized = with(&["--size", "5000"], "/echo");
    assert!(sized.requests == 40 && sized.bytes.received >= 40 * 5_000, "{:?}", sized.bytes);
    let closed = with(&["--close", "100"], "/echo");
    assert_eq!((closed.requests, closed.scheduled()), (0, 40), "{closed:?}");
    assert!(closed.errors_by_kind["closed"] > 0, "{closed:?}");

    let chances = |seed: &str| with(&["--status", "503:50", "--seed", seed], "/echo").errors;
    let counts = ["1", "2", "3", "4"].map(chances);
    assert_eq!(counts, ["1", "2", "3", "4"].map(chances), "the same seed, the same fates");
    assert!(counts.iter().any(|count| *count != counts[0]), "{counts:?}");
    assert!(counts.iter().all(|count| (1..40).contains(count)), "{counts:?}");
}

#[test]
fn an_echo_server_stalls_as_long_and_as_often_as_set() {
    let echo = Echo::start(&["--stall", "300ms@500ms"]);
    let pace = ["--rate", "50", "-z", "1s", "-c", "1", "--warm-up", "0s"];
    let traffic = run(&[&["http", &echo.url("/")], &pace[..]].concat()).traffic;
    assert_eq!((traffic.requests, traffic.errors), (50, 0), "{traffic:?}");
    // One is sent within 20 ms of any moment, and nothing is answered before the stall is over.
    assert!(traffic.latency_us.max.unwrap() > 200_000.0, "{traffic:?}");
}

#[test]
fn throughput_has_as_many_connections_as_asked_for() {
    let echo = Echo::start(&[]);
    let flags = ["--parallel", "3", "-z", "1s", "--warm-up", "0s"];
    let throughput = run(&[&["tcp", &echo.tcp()], &flags[..]].concat()).throughput.unwrap();
    let mut numbers: Vec<_> = throughput.streams.iter().map(|stream| stream.stream).collect();
    numbers.dedup();
    assert_eq!(numbers.len(), 3);
    assert!(throughput.streams.iter().all(|stream| stream.flow.bytes > 0), "{throughput:?}");
}

/// An authority's certificate, a server's for `shop.test`, and a client's with its key.
struct Pki {
    folder: TempDir,
}

impl Pki {
    fn make() -> Self {
        let folder = TempDir::new().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let leaf = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
        };
        let (certificate, key) = leaf("shop.test");
        let (client, client_key) = leaf("client.test");
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("ca.pem", &issuer.pem());
        write("server.pem", &certificate);
        write("server.key", &key);
        write("client.pem", &format!("{client}{client_key}"));
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        let path: PathBuf = self.folder.path().join(name);
        path.to_str().unwrap().to_owned()
    }
}
