//! A settings file that changes while its sidecar carries load: nothing fails, nothing is closed.

use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hyper::Request;
use rustix::process::Signal;
use tollway_testkit::{Process, TempDir, free_port, retry_until};
use tollway_tests::mesh::http::{Client, Version, empty, get, runtime};
use tollway_tests::mesh::tcp::{echo, until_echoed};
use tollway_tests::mesh::{App, AppProtocol, Mesh, Network, PATIENCE, Sidecar, counter};

const CHANGES: u64 = 50;
/// One change in this many is a file that must be refused.
const REFUSED_EVERY: u64 = 5;

#[test]
fn fifty_changes_under_load_cost_no_request_and_no_connection() {
    let mesh = Mesh::start();
    let _apps = apps(&mesh.east);
    let settings = File::new("upstreams: [0=db.default.east]\n");
    let caller = mesh.west.caller(&["--config", settings.path()]);
    caller.until_served("echo.default.east");
    let load = Load::start(&caller);
    let spare = free_port().unwrap();
    for change in 1..=CHANGES {
        let refused = change.is_multiple_of(REFUSED_EVERY);
        settings.replace(&if refused {
            "request_timeout_ms: soon\n".to_owned()
        } else {
            format!(
                "request_timeout_ms: {}\nidle_timeout_ms: {}\nmax_requests: {}\nlog_level: {}\n\
                 upstreams: [0=db.default.east{}]\n",
                10_000 + change,
                20_000 + change,
                1_000 + change,
                if change % 2 == 0 { "info" } else { "debug" },
                if change % 3 == 0 { format!(", {spare}=db.default.east") } else { String::new() },
            )
        });
        hang_up_until(&caller.process, change, refused);
    }
    let done = load.end();
    for (kind, count) in done {
        assert!(count >= CHANGES, "{kind}: only {count} exchanges while {CHANGES} files changed");
    }
    let refused = CHANGES / REFUSED_EVERY;
    assert_eq!(counter(&caller.process, "tollway_config_changes_refused_total"), refused);
    assert_eq!(counter(&caller.process, "tollway_config_revision"), 1 + CHANGES - refused);
}

#[test]
fn a_file_is_taken_however_it_is_replaced() {
    let mesh = Mesh::start();
    let settings = File::new("request_timeout_ms: 1\n");
    let mut caller = mesh.west.caller(&["--config", settings.path()]);
    let runs = |text: &str| {
        let page = || get(caller.process.port("admin").unwrap(), "/config");
        let seen = retry_until(PATIENCE, text, || page().contains(text).then_some(()));
        assert!(seen.is_ok(), "{text} is not in\n{}{}", page(), caller.process.log());
    };
    runs("request_timeout_ms: 1 ");
    std::fs::write(settings.path(), "request_timeout_ms: 2\n").unwrap();
    runs("request_timeout_ms: 2 ");
    settings.replace("request_timeout_ms: 3\n");
    runs("request_timeout_ms: 3 ");
    // As Kubernetes updates a volume: the path stays, a link in it is replaced.
    settings.relink("request_timeout_ms: 4\n");
    runs("request_timeout_ms: 4 ");
    settings.replace("request_timeout_ms: 5\nno_such_setting: 1\n");
    runs("# refused: ");
    runs("request_timeout_ms: 4 ");
    settings.replace("request_timeout_ms: 6\nthreads: 2\n");
    runs("# waits for a restart: threads");
    runs("request_timeout_ms: 6 ");
    runs("threads: 1");
    let log = caller.process.log();
    assert!(log.contains("settings.yaml:2:1: unknown setting `no_such_setting`"), "{log}");
    assert!(log.contains("restart to change: threads"), "{log}");
    assert!(caller.process.terminate(PATIENCE).unwrap().success());
}

#[test]
fn upstreams_come_and_go_and_open_connections_stay() {
    let mesh = Mesh::start();
    let _apps = apps(&mesh.east);
    let port = free_port().unwrap();
    let settings = File::new("");
    let caller = mesh.west.caller(&["--config", settings.path()]);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    assert!(TcpStream::connect(address).is_err());
    settings.replace(&format!("upstreams: ['{port}=db.default.east']\n"));
    hang_up_until(&caller.process, 1, false);
    let mut open = until_echoed(address);
    // A machine without IPv6 has the one address.
    let beside = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    let has_both = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
    if has_both {
        drop(until_echoed(beside));
    }
    // A port that another process holds refuses the whole change.
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = held.local_addr().unwrap().port();
    settings.replace(&format!("max_requests: 7\nupstreams: ['{taken}=db.default.east']\n"));
    hang_up_until(&caller.process, 2, true);
    let page = get(caller.process.port("admin").unwrap(), "/config");
    assert!(page.contains(&format!("cannot listen on 127.0.0.1:{taken}")), "{page}");
    assert!(page.contains("max_requests: 50000"), "{page}");
    drop(until_echoed(address));
    settings.replace("upstreams: []\n");
    hang_up_until(&caller.process, 3, false);
    let closed = retry_until(PATIENCE, "a closed port", || {
        let is_closed = |address| TcpStream::connect(address).is_err();
        (is_closed(address) && is_closed(beside)).then_some(())
    });
    closed.unwrap();
    echo(&mut open, b"the connection outlives its listener").unwrap();
}

/// An HTTP and a TCP app.
fn apps(network: &Network) -> [App; 2] {
    [network.app("echo", "a", AppProtocol::Http), network.app("db", "b", AppProtocol::Tcp)]
}

/// Signals until the file of the `change`-th change was read.
fn hang_up_until(process: &Process, change: u64, refused: bool) {
    process.signal(Signal::HUP).unwrap();
    let name =
        if refused { "tollway_config_changes_refused_total" } else { "tollway_config_revision" };
    let looked_at = || {
        let refused = counter(process, "tollway_config_changes_refused_total");
        let accepted = counter(process, "tollway_config_revision") - 1;
        (accepted + refused >= change).then_some(())
    };
    let waited = retry_until(PATIENCE, name, looked_at);
    assert!(waited.is_ok(), "change {change}: {}", process.log());
}

/// Exchanges without a pause on three connections that were opened once.
struct Load {
    stop: Arc<AtomicBool>,
    counts: [Arc<AtomicU64>; 3],
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(caller: &Sidecar) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let counts: [Arc<AtomicU64>; 3] = Default::default();
        let (http, tcp) = (caller.http(), caller.upstream("db.default.east"));
        let mut threads = Vec::new();
        for (version, count) in [Version::Http1, Version::Http2].into_iter().zip(&counts) {
            let (stop, count) = (Arc::clone(&stop), Arc::clone(count));
            threads.push(std::thread::spawn(move || http_load(version, http, &stop, &count)));
        }
        let mut stream = until_echoed(tcp);
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&counts[2]));
        threads.push(std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                echo(&mut stream, b"a line over plain TCP").unwrap();
                count.fetch_add(1, Ordering::Relaxed);
            }
        }));
        Self { stop, counts, threads }
    }

    /// Ends it; any failure is a panic.
    fn end(self) -> [(&'static str, u64); 3] {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        let [h1, h2, tcp] = self.counts.map(|count| count.load(Ordering::Relaxed));
        [("HTTP/1.1", h1), ("HTTP/2", h2), ("TCP", tcp)]
    }
}

fn http_load(version: Version, listener: SocketAddr, stop: &AtomicBool, count: &AtomicU64) {
    runtime().block_on(async {
        let mut client = Client::connect(version, listener).await;
        let uri = "http://sidecar/v1.0/invoke/echo.default.east/method/echo";
        while !stop.load(Ordering::Relaxed) {
            let answer = client.exchange(Request::get(uri).body(empty()).unwrap()).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
}

/// A settings file, behind a link to the directory that it is in.
struct File {
    directory: TempDir,
    path: PathBuf,
}

impl File {
    fn new(text: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("now").join("settings.yaml");
        let file = Self { directory, path };
        file.relink(text);
        file
    }

    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// As most editors save.
    fn replace(&self, text: &str) {
        let new = self.directory.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, &self.path).unwrap();
    }

    fn relink(&self, text: &str) {
        let root = self.directory.path();
        let number = std::fs::read_dir(root).unwrap().count();
        let data = root.join(format!("data-{number}"));
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("settings.yaml"), text).unwrap();
        turn(&root.join("link"), &data, &root.join("now"));
    }
}

fn turn(link: &Path, to: &Path, at: &Path) {
    std::os::unix::fs::symlink(to, link).unwrap();
    std::fs::rename(link, at).unwrap();
}
