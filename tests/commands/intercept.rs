//! `tollway run --intercept`: apps that know nothing of Tollway and of proxies call services by their
//! names, and all else as before.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};

use tollway_net::netns::NetNs;
use tollway_testkit::{Process, Start, need_right, need_tool, tool};
use tollway_tests::pki::Authority;
use tollway_tests::user::{PATIENCE, User};

/// An app that listens at a given address.
const ECHO: &str = "exec \"$TOLLWAY\" echo --http 127.0.0.1:$APP_PORT --name $APP_ID";
/// Prints what the sidecar has counted of intercepted connections and names.
const COUNTS: &str = r#"
import os, urllib.request
page = urllib.request.urlopen(f"http://127.0.0.1:{os.environ['DAPR_METRICS_PORT']}/metrics").read()
for line in page.decode().splitlines():
    if line.startswith("tollway_intercepted_"):
        print(line)
"#;

/// The ways in which the kernel can lead connections to a sidecar.
const WAYS: [&str; 2] = ["bpf", "nftables"];

/// Why connections cannot be intercepted here in one of these ways.
fn may_intercept(user: &User, ways: &[&str]) -> Result<(), String> {
    ways.iter().try_for_each(|way| may_intercept_by(user, way))
}

fn may_intercept_by(user: &User, way: &str) -> Result<(), String> {
    let way = format!("--intercept={way}");
    let probe = ["run", "--linger-ms", "2000", "--app-id", "probe", &way, "--", "true"];
    let ended = user.tollway(&probe);
    let reason = ended.stderr.lines().find(|line| line.contains("ERR_NOT_INTERCEPTABLE"));
    match reason {
        Some(reason) => Err(reason.to_owned()),
        None => {
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
            Ok(())
        }
    }
}

fn serve(user: &User, app: &str) -> Process {
    let process = user.run(&["--app-id", app, "--app-port", "0"], ECHO);
    user.until_called(&format!("{app}/healthz"));
    process
}

/// Runs a program whose connections are intercepted; what it and its sidecar print.
#[track_caller]
fn intercepted(user: &User, way: &str, options: &[&str], command: &[&str]) -> String {
    let way = format!("--intercept={way}");
    let options = [&["--app-id", "web", &way], options].concat();
    let mut run = user.run_command(&options, command);
    let status = run.wait(PATIENCE).unwrap();
    assert!(status.success(), "{status}: {}", run.log());
    run.log()
}

#[track_caller]
fn python(user: &User, way: &str, options: &[&str], script: &str) -> String {
    let python = tool("python3").unwrap();
    intercepted(user, way, options, &[python.to_str().unwrap(), "-c", script])
}

#[track_caller]
fn check_lines(log: &str, lines: &[&str]) {
    for line in lines {
        assert!(log.lines().any(|found| found == *line), "no line {line:?} in\n{log}");
    }
}

#[test]
fn curl_calls_services_by_their_names() {
    let curl = need_tool!("curl");
    let user = User::new();
    need_right!(may_intercept(&user, &WAYS));
    let _files = serve(&user, "files");
    WAYS.iter().for_each(|way| call_with_curl(&user, way, curl.to_str().unwrap()));
}

#[track_caller]
fn call_with_curl(user: &User, way: &str, curl: &str) {
    let urls = ["http://files.mesh/healthz", "http://FILES.default.local.mesh:8080/healthz"];
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let command = [&[curl, version, "-sS", "-i", "--max-time", "20"], &urls[..]].concat();
        let log = intercepted(user, way, &[], &command);
        assert_eq!(log.matches("x-echo-name: files").count(), 2, "{way}, {version}: {log}");
    }
    // A name of the app's own.
    let named = [curl, "-sS", "-i", "--max-time", "20", "http://depot/healthz"];
    let log = intercepted(user, way, &["--intercept-host", "depot=files"], &named);
    assert!(log.contains("x-echo-name: files"), "{log}");
    // What cannot be served is answered with the reason.
    let unknown = [curl, "-sS", "-i", "--max-time", "20", "http://nobody.mesh/healthz"];
    let log = intercepted(user, way, &[], &unknown);
    assert!(log.contains("ERR_UNKNOWN_SERVICE"), "{log}");
}

#[test]
fn an_app_sees_what_it_asked_for() {
    need_tool!("python3");
    let user = User::new();
    need_right!(may_intercept(&user, &WAYS));
    let _files = serve(&user, "files");
    let script = r#"
import ipaddress, socket, struct, urllib.request
address = socket.gethostbyname("files.mesh")
assert ipaddress.ip_address(address) in ipaddress.ip_network("240.0.0.0/4"), address
assert socket.gethostbyname("files.default.mesh") != address
plain = socket.create_connection((address, 8080))
print("peer", plain.getpeername() == (address, 8080))
mapped = socket.socket(socket.AF_INET6)
mapped.connect(("::ffff:" + address, 8081))
print("mapped", mapped.getpeername()[:2] == ("::ffff:" + address, 8081))
found = socket.getaddrinfo("files.mesh", 8082, socket.AF_INET6, socket.SOCK_STREAM)
print("of IPv6 alone", [one[4][0] for one in found] == ["::ffff:" + address])
alone = socket.socket(socket.AF_INET6)
alone.connect(found[0][4])
for connection in (plain, mapped, alone):
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: files.mesh\r\nConnection: close\r\n\r\n")
    print("status", connection.recv(1 << 16).split(b"\r\n")[0])
print("page", urllib.request.urlopen("http://files.mesh/healthz").status)
# As resolvers do that do not connect: to a server that does not exist.
question = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + b"\5files\4mesh\0" + struct.pack(">2H", 1, 1)
names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.settimeout(20)
for server in ("192.0.2.53", "127.0.0.1"):
    names.sendto(question, (server, 53))
    answer, source = names.recvfrom(512)
    print("answer", server, source == (server, 53), socket.inet_ntoa(answer[-4:]) == address)
over_tcp = socket.create_connection(("192.0.2.53", 53), 20)
over_tcp.sendall(struct.pack(">H", len(question)) + question)
answer = over_tcp.recv(512)
print("over TCP", over_tcp.getpeername(), socket.inet_ntoa(answer[-4:]) == address)
"#;
    for way in WAYS {
        let log = python(&user, way, &[], script);
        check_lines(
            &log,
            &[
                "peer True",
                "mapped True",
                "of IPv6 alone True",
                "page 200",
                "answer 192.0.2.53 True True",
                "answer 127.0.0.1 True True",
                "over TCP ('192.0.2.53', 53) True",
            ],
        );
        assert_eq!(log.matches("status b'HTTP/1.1 200 OK'").count(), 3, "{way}: {log}");
    }
}

/// Static programs that call the kernel without a C library, as callers and as what is called.
#[test]
fn programs_in_go_call_services_and_are_called() {
    let program = need_tool!("gonet");
    let user = User::new();
    need_right!(may_intercept(&user, &WAYS));
    let program = program.to_str().unwrap();
    let _files = serve(&user, "files");
    for way in WAYS {
        let serves = format!("go-{way}");
        let required = format!("--intercept={way}");
        let options = ["--app-id", &serves, "--app-port", "0", &required, "--intercept-inbound"];
        let _server = user.run_command(&options, &[program, "serve"]);
        user.until_called(&format!("{serves}/a"));
        let own = format!("http://{serves}.mesh/a");
        let urls = ["http://files.mesh/healthz", "http://files.default.mesh:8080/healthz", &own];
        let log = intercepted(&user, way, &[], &[&[program], &urls[..]].concat());
        for url in &urls[..2] {
            let line = log.lines().find(|line| line.starts_with(url)).unwrap_or_default();
            assert!(line.contains(" 200 peer true ") && line.ends_with(" files"), "{way}: {log}");
        }
        let body = "served GET /a".len();
        assert!(log.contains(&format!("{own} 200 peer true body {body}")), "{way}: {log}");
    }
}

/// A runtime with a resolver of its own (c-ares) and one with the C library's.
#[test]
fn node_calls_services_by_their_names() {
    let node = need_tool!("node");
    let user = User::new();
    need_right!(may_intercept(&user, &WAYS));
    let _files = serve(&user, "files");
    let script = "
        const dns = require('dns'), http = require('http');
        dns.resolve4('files.mesh', (error, found) => {
            console.log('resolved', error ? error.code : found[0].startsWith('2'));
            http.get('http://files.mesh/healthz', answer => {
                console.log('name', answer.headers['x-echo-name']);
                answer.resume();
            });
        });";
    for way in WAYS {
        let log = intercepted(&user, way, &[], &[node.to_str().unwrap(), "-e", script]);
        check_lines(&log, &["resolved true", "name files"]);
    }
}

/// A server out of the mesh that speaks first, at an address that is not loopback.
fn greeter() -> TcpListener {
    let listener = TcpListener::bind((Ipv4Addr::new(192, 0, 2, 1), 0)).unwrap();
    let accepting = listener.try_clone().unwrap();
    std::thread::spawn(move || {
        for stream in accepting.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                stream.write_all(b"hello\n").unwrap();
                let mut rest = Vec::new();
                // Until the client ends its side.
                stream.read_to_end(&mut rest).unwrap();
                stream.write_all(&rest).unwrap();
            });
        }
    });
    listener
}

#[test]
fn other_connections_go_where_they_were_meant_to_go() {
    need_tool!("python3");
    let namespace = need_right!(NetNs::create("outside"));
    namespace.set_own_address(Ipv4Addr::new(192, 0, 2, 1)).unwrap();
    let body = || {
        let user = User::new();
        need_right!(may_intercept(&user, &WAYS));
        let server = greeter();
        let port = server.local_addr().unwrap().port();
        let script = format!(
            r#"
import socket
there = socket.create_connection(("192.0.2.1", {port}))
there.settimeout(20)
print("greeting", there.recv(100))
peer = there.getpeername()
there.sendall(b"x" * 300000)
there.shutdown(socket.SHUT_WR)
echoed = 0
while data := there.recv(1 << 16):
    echoed += len(data)
print("echoed", echoed, peer)
{COUNTS}"#
        );
        let met = format!("echoed 300000 ('192.0.2.1', {port})");
        let outside = |count: usize| {
            format!("tollway_intercepted_connections_total{{decision=\"outside\"}} {count}")
        };
        let (port, relayed, spared) = (port.to_string(), outside(1), outside(0));
        for (options, count) in [
            (&[][..], &relayed),
            (&["--intercept-exclude", "10.0.0.0/8"], &relayed),
            (&["--intercept-exclude", "192.0.2.0/24"], &spared),
            (&["--intercept-exclude", &port], &spared),
            (&["--intercept-mesh-only"], &spared),
        ] {
            for way in WAYS {
                let log = python(&user, way, options, &script);
                check_lines(&log, &["greeting b'hello\\n'", &met, count]);
            }
        }
    };
    namespace.run(body).unwrap();
}

#[test]
fn names_out_of_the_mesh_are_answered_by_another_server() {
    need_tool!("python3");
    let user = User::new();
    need_right!(may_intercept(&user, &WAYS));
    let address = name_server(Ipv4Addr::new(192, 0, 2, 77));
    let script = format!(
        "import socket\nprint('found', socket.gethostbyname('shop.example.'))\n\
         print('own', socket.gethostbyname('localhost'))\n{COUNTS}"
    );
    for way in WAYS {
        let log = python(&user, way, &["--intercept-resolver", &address], &script);
        check_lines(&log, &["found 192.0.2.77", "own 127.0.0.1"]);
        assert!(!log.contains("answer=\"forwarded\"} 0"), "{way}: {log}");
    }
}

/// A client that waits for its server would wait for good if first bytes were waited for.
#[test]
fn a_silent_client_of_a_service_that_is_away_is_reset() {
    need_tool!("python3");
    let user = User::new();
    need_right!(may_intercept(&user, &WAYS));
    let script = format!(
        r#"
import os, select, socket
def outcome(there):
    there.settimeout(20)
    try:
        return there.recv(100)
    except ConnectionResetError:
        return "reset"
print("silent", outcome(socket.create_connection(("nobody.mesh", 3306))))
print("unknown", outcome(socket.create_connection(("240.1.2.3", 80))))
# All ports of the sidecar that are seen here, past the programs: loopback is left alone.
files = f"/proc/{{os.getppid()}}/fd/"
own = [os.readlink(files + file) for file in os.listdir(files)]
sockets = [line.split() for line in open("/proc/net/tcp").read().splitlines()[1:]]
ports = [int(s[1][-4:], 16) for s in sockets if s[3] == "0A" and f"socket:[{{s[9]}}]" in own]
direct = [socket.create_connection(("127.0.0.1", port)) for port in ports]
print("direct", len(direct) > 1, [outcome(there) for there in select.select(direct, [], [], 20)[0]])
{COUNTS}"#
    );
    for way in WAYS {
        let lines = user.path(&format!("{way}.log"));
        let log = python(&user, way, &["--access-log", lines.to_str().unwrap()], &script);
        check_lines(
            &log,
            &[
                "silent reset",
                "unknown reset",
                "direct True ['reset']",
                "tollway_intercepted_connections_total{decision=\"silent\"} 1",
                "tollway_intercepted_connections_total{decision=\"refused\"} 2",
            ],
        );
        let lines = std::fs::read_to_string(lines).unwrap();
        for code in ["ERR_UNKNOWN_SERVICE", "ERR_UNKNOWN_ADDRESS", "ERR_NOT_INTERCEPTED"] {
            assert!(lines.contains(&format!("\"error_code\":\"{code}\"")), "{code}: {lines}");
        }
    }
}

#[test]
fn the_port_of_an_app_can_be_closed_to_others() {
    let python = need_tool!("python3");
    let user = User::new();
    need_right!(may_intercept(&user, &WAYS[..1]));
    for (family, any) in [("AF_INET", "0.0.0.0"), ("AF_INET6", "::")] {
        let script = format!(
            r#"
import http.server, os, socket
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.{family}
server = Server(("{any}", int(os.environ["APP_PORT"])), http.server.SimpleHTTPRequestHandler)
print("bound", server.socket.getsockname()[0], flush=True)
server.serve_forever()
"#
        );
        let options =
            ["--app-id", "pages", "--app-port", "0", "--intercept=bpf", "--intercept-inbound"];
        let run = user.run_command(&options, &[python.to_str().unwrap(), "-c", &script]);
        user.until_called("pages/");
        let bound = if family == "AF_INET" { "127.0.0.1" } else { "::ffff:127.0.0.1" };
        check_lines(&run.log(), &[&format!("bound {bound}")]);
    }
}

#[test]
fn an_app_without_rights_runs_on_with_one_note() {
    let setpriv = need_tool!("setpriv");
    if !rustix::process::geteuid().is_root() {
        tollway_testkit::skip!("another user is needed, which only root can become");
    }
    let user = User::unprivileged(&setpriv);
    let mut run = user.run(&["--app-id", "web", "--intercept"], "echo app runs");
    assert!(run.wait(PATIENCE).unwrap().success(), "{}", run.log());
    let log = run.log();
    check_lines(&log, &["app runs"]);
    assert_eq!(log.matches("tollway: web is not intercepted: ").count(), 1, "{log}");
    assert!(log.contains("http_proxy=http://127.0.0.1:"), "{log}");
    // Where it is required the app does not start.
    for way in WAYS {
        let way = format!("--intercept={way}");
        let mut run = user.run(&["--app-id", "web", &way], "echo app runs");
        assert!(!run.wait(PATIENCE).unwrap().success());
        let log = run.log();
        assert!(log.contains("[ERR_NOT_INTERCEPTABLE]") && !log.contains("app runs"), "{log}");
    }
}

#[test]
fn nothing_is_left_of_an_app() {
    let user = User::new();
    need_right!(may_intercept(&user, &WAYS[..1]));
    let script = "echo cgroup $(sed -n 's/^0:://p' /proc/self/cgroup)";
    let log = intercepted(&user, "bpf", &[], &["sh", "-c", script]);
    let path = log.lines().find_map(|line| line.strip_prefix("cgroup ")).unwrap();
    let name = path.rsplit('/').next().unwrap();
    assert!(name.starts_with("tollway-run-"), "{log}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let Some(mount) = mount.and_then(|line| line.split(' ').nth(4)) else {
        tollway_testkit::skip!("cgroups of version 2 are mounted nowhere");
    };
    assert!(!std::path::Path::new(&format!("{mount}{path}")).exists(), "{mount}{path}");
}

/// Root of a user namespace has no right to the kernel's programs.
#[test]
fn an_app_that_programs_cannot_be_loaded_for_gets_a_network_namespace() {
    let (unshare, curl) = (need_tool!("unshare"), need_tool!("curl"));
    let user = User::new();
    need_right!(may_intercept(&user, &WAYS[1..]));
    let _files = serve(&user, "files");
    let mut start = Start::new(&unshare).args(["--map-root-user", "--"]).args(user.run_words(
        &["--app-id", "web", "--intercept"],
        &[curl.to_str().unwrap(), "-sS", "-i", "--max-time", "20", "http://files.mesh/healthz"],
    ));
    for (name, value) in user.variables() {
        start = start.env(name, value);
    }
    let mut run = start.start().unwrap();
    assert!(run.wait(PATIENCE).unwrap().success(), "{}", run.log());
    let log = run.log();
    assert!(log.contains("x-echo-name: files"), "{log}");
    assert!(log.contains("web is intercepted in a network namespace of its own"), "{log}");
}

/// What stays as it is in a network namespace of the app's own, and what does not.
#[test]
fn an_app_in_a_namespace_has_its_own_loopback_and_reaches_its_sidecar() {
    need_tool!("python3");
    let user = User::new();
    need_right!(may_intercept(&user, &WAYS[1..]));
    let _files = serve(&user, "files");
    let elsewhere = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let elsewhere = elsewhere.local_addr().unwrap().port();
    let script = format!(
        r#"
import os, socket, urllib.request
own = socket.create_server(("127.0.0.1", 0))
there = socket.create_connection(own.getsockname())
here, _ = own.accept()
here.sendall(b"own loopback")
print(there.recv(100))
for host in ("127.0.0.1", "localhost"):
    url = f"http://{{host}}:{{os.environ['DAPR_HTTP_PORT']}}/v1.0/invoke/files/method/healthz"
    print(host, urllib.request.urlopen(url).status)
def refused(kind, address):
    try:
        with socket.socket(socket.AF_INET, kind) as there:
            there.settimeout(20)
            there.connect(address)
            there.send(b"x")
            return there.recv(100)
    except ConnectionRefusedError:
        return "refused"
print("of the machine", refused(socket.SOCK_STREAM, ("127.0.0.1", {elsewhere})))
print("datagram", refused(socket.SOCK_DGRAM, ("192.0.2.1", 443)))
"#
    );
    let log = python(&user, "nftables", &[], &script);
    let lines = [
        "b'own loopback'",
        "127.0.0.1 200",
        "localhost 200",
        "of the machine refused",
        "datagram refused",
    ];
    check_lines(&log, &lines);
}

#[test]
fn an_app_in_a_namespace_is_called_through_its_sidecar_alone() {
    let python = need_tool!("python3");
    let user = User::new();
    need_right!(may_intercept(&user, &WAYS[1..]));
    for (family, any) in [("AF_INET", "0.0.0.0"), ("AF_INET", "127.0.0.1"), ("AF_INET6", "::")] {
        let script = format!(
            r#"
import http.server, os, socket
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.{family}
server = Server(("{any}", int(os.environ["APP_PORT"])), http.server.SimpleHTTPRequestHandler)
print("bound", server.socket.getsockname()[1], flush=True)
server.serve_forever()
"#
        );
        let options = ["--app-id", "pages", "--app-port", "0", "--intercept=nftables"];
        let run = user.run_command(&options, &[python.to_str().unwrap(), "-c", &script]);
        user.until_called("pages/");
        let log = run.log();
        let port = log.lines().find_map(|line| line.strip_prefix("bound ")).unwrap();
        let port = port.parse::<u16>().unwrap();
        assert!(std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err(), "{port}");
    }
}

#[test]
fn nothing_is_left_of_an_app_in_a_namespace_whose_sidecar_is_killed() {
    let user = User::new();
    need_right!(may_intercept(&user, &WAYS[1..]));
    let script = "sleep 1000 & echo namespace $(readlink /proc/self/ns/net); wait";
    let mut run = user.run(&["--app-id", "web", "--intercept=nftables"], script);
    let namespace = tollway_testkit::retry_until(PATIENCE, "the namespace", || {
        let log = run.log();
        let line = log.lines().find_map(|line| line.strip_prefix("namespace "))?;
        Some(line.to_owned())
    });
    let namespace = namespace.unwrap();
    assert!(processes_in(&namespace) >= 2);
    let sidecar = rustix::process::Pid::from_raw(run.pid().cast_signed()).unwrap();
    rustix::process::kill_process(sidecar, rustix::process::Signal::KILL).unwrap();
    run.wait(PATIENCE).unwrap();
    let gone = || (processes_in(&namespace) == 0).then_some(());
    tollway_testkit::retry_until(PATIENCE, "the end of the namespace", gone).unwrap();
}

/// Processes of this machine in a network namespace, which ends with the last one: no device, mount or
/// table elsewhere holds it.
fn processes_in(namespace: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let of = |process: std::fs::DirEntry| std::fs::read_link(process.path().join("ns/net")).ok();
    processes.filter_map(of).filter(|of| of.to_str() == Some(namespace)).count()
}

/// Answers every question with one address.
fn name_server(answer_with: Ipv4Addr) -> String {
    let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, from)) = server.recv_from(&mut question) {
            let mut answer = question[..length.min(12)].to_vec();
            (answer[2], answer[3], answer[7], answer[11]) = (0x81, 0x80, 1, 0);
            let end = 12 + question[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
            answer.extend_from_slice(&question[12..end]);
            answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4]);
            answer.extend_from_slice(&answer_with.octets());
            let _ = server.send_to(&answer, from);
        }
    });
    address
}

/// A TLS server of Python, for two names, that sends a line back.
const TLS_SERVER: &str = r#"
import os, socket, ssl, sys, threading
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2])
listener = socket.create_server(("192.0.2.1", 0))
with open(sys.argv[1] + ".new", "w") as ports:
    ports.write(str(listener.getsockname()[1]))
os.rename(sys.argv[1] + ".new", sys.argv[1])
def serve(plain):
    try:
        with context.wrap_socket(plain, server_side=True) as there:
            there.sendall(b"got " + there.recv(4096))
    except OSError:
        pass
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"#;

/// An app that knows nothing of it reaches allowed hosts alone, and speaks TLS with one for which its
/// sidecar begins it.
#[test]
fn a_closed_network_holds_an_app_to_its_egress() {
    let python_program = need_tool!("python3");
    let namespace = need_right!(NetNs::create("closed"));
    namespace.set_own_address(Ipv4Addr::new(192, 0, 2, 1)).unwrap();
    let body = || {
        let user = User::new();
        need_right!(may_intercept(&user, &WAYS));
        let store = user.path("store");
        let control = Start::new(tollway_testkit::binary("tollway").unwrap())
            .args(["control", "--egress", "closed", "--listen", "127.0.0.1:0", "--store"])
            .arg(&store)
            .start_listening()
            .unwrap();
        let address = control.port("control").unwrap().to_string();
        let store = store.to_str().unwrap();
        let created = user.tollway(&["token", "create", "--uses", "any", "--store", store]);
        let token = user.path("token");
        tollway_net::secret_file::write(&token, created.stdout.as_ref()).unwrap();

        let authority = Authority::new("an authority");
        let pair = authority.server(&["api.example", "web.example"]);
        let (certificate, root) = (user.path("server.pem"), user.path("root.pem"));
        std::fs::write(&certificate, pair.certificate + &pair.key).unwrap();
        std::fs::write(&root, &authority.root).unwrap();
        let ports = user.path("tls-port");
        let _server = Start::new(&python_program)
            .args(["-c", TLS_SERVER])
            .arg(&ports)
            .arg(&certificate)
            .start()
            .unwrap();
        let read = || std::fs::read_to_string(&ports).ok()?.parse::<u16>().ok();
        let port = tollway_testkit::retry_until(PATIENCE, "the server's port", read).unwrap();
        let pem = serde_json::to_string(&authority.root).unwrap();
        let egress = format!(
            "apiVersion: tollway.dev/v1\nkind: Egress\nmetadata: {{name: e}}\nspec:\n  hosts:\n    \
             - {{host: api.example, port: {port}}}\n    \
             - {{host: web.example, port: {port}, tls: begin, plainPort: 8099, authorities: {pem}}}\n"
        );
        let file = user.path("egress.yaml");
        std::fs::write(&file, egress).unwrap();
        let applied = user.tollway(&["apply", "-f", file.to_str().unwrap(), "--store", store]);
        assert_eq!(applied.code, Some(0), "{}", applied.stderr);

        let script = format!(
            r#"
import os, socket, ssl, urllib.request
context = ssl.create_default_context(cafile="{root}")
def over_tls(host, shown):
    try:
        plain = socket.create_connection((host, {port}), 20)
        with context.wrap_socket(plain, server_hostname=shown) as there:
            there.sendall(b"hello")
            return there.recv(100)
    except (ConnectionError, ssl.SSLError) as error:
        return "refused"
def plain(host, port, sent):
    try:
        with socket.create_connection((host, port), 20) as there:
            there.sendall(sent)
            return there.recv(4096)
    except ConnectionError:
        return "refused"
print("allowed", over_tls("api.example", "api.example"))
print("not allowed", over_tls("evil.example", "evil.example"))
print("by address", over_tls("192.0.2.1", "api.example"))
print("other port", plain("api.example", 8098, b"x"))
print("begun", plain("web.example", 8099, b"GET / HTTP/1.1\r\nHost: web.example\r\n\r\n")[:20])
print("other host", plain("web.example", 8099, b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"))
page = urllib.request.urlopen(f"http://127.0.0.1:{{os.environ['DAPR_METRICS_PORT']}}/metrics")
for line in page.read().decode().splitlines():
    if line.startswith("tollway_egress_total"):
        print(line)
"#,
            root = root.display(),
        );
        let resolver = name_server(Ipv4Addr::new(192, 0, 2, 1));
        let token = token.to_str().unwrap();
        let options =
            ["--control", &address, "--token-file", token, "--intercept-resolver", &resolver];
        for way in WAYS {
            let log = python(&user, way, &options, &script);
            check_lines(
                &log,
                &[
                    "allowed b'got hello'",
                    "not allowed refused",
                    // The address is the allowed host's, and so is the name that is shown.
                    "by address b'got hello'",
                    "other port refused",
                    "begun b'got GET / HTTP/1.1\\r\\n'",
                    "other host refused",
                    "tollway_egress_total{decision=\"allowed\"} 3",
                    "tollway_egress_total{decision=\"refused\"} 3",
                ],
            );
        }
    };
    namespace.run(body).unwrap();
}
