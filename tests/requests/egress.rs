//! Hosts out of the mesh: which the outbound port passes on, through real processes, with curl as the app
//! and Python's servers as the hosts.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::Command;

use tollway_testkit::{Process, Start, need_tool, retry_until};
use tollway_tests::mesh::{Network, PATIENCE, Sidecar, counter, start_tollway};
use tollway_tests::pki::Authority;

/// Serves a page at a free port, over TLS if it gets a certificate.
const SERVER: &str = r#"
import http.server, json, os, socket, ssl, sys
class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = f"page for {self.headers['host']} at {self.path}".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET
server = Server((sys.argv[2], 0), Page)
if len(sys.argv) > 3:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[3])
    server.socket = context.wrap_socket(server.socket, server_side=True)
with open(sys.argv[1] + ".new", "w") as ports:
    shown = "[%s]" % sys.argv[2] if ":" in sys.argv[2] else sys.argv[2]
    json.dump({"page": "%s:%d" % (shown, server.server_port)}, ports)
os.rename(sys.argv[1] + ".new", sys.argv[1])
server.serve_forever()
"#;

struct Server {
    _process: Process,
    address: SocketAddr,
}

fn serve(python: &Path, network: &Network, name: &str, certificate: Option<&Path>) -> Server {
    serve_at(python, network, name, "127.0.0.1", certificate)
}

fn serve_at(
    python: &Path,
    network: &Network,
    name: &str,
    address: &str,
    certificate: Option<&Path>,
) -> Server {
    let ports = network.file(name);
    let mut start = Start::new(python).args(["-c", SERVER]).arg(&ports).arg(address);
    if let Some(certificate) = certificate {
        start = start.arg(certificate);
    }
    let process = start.start().unwrap();
    let read = || {
        let text = std::fs::read_to_string(&ports).ok()?;
        let ports: serde_json::Value = serde_json::from_str(&text).ok()?;
        ports["page"].as_str()?.parse().ok()
    };
    let address = retry_until(PATIENCE, "the server's port", read).unwrap();
    Server { _process: process, address }
}

/// What curl gets through the outbound port: the status of the answer or of the proxy, and all that was
/// printed.
fn curl(curl: &Path, sidecar: &Sidecar, options: &[&str], url: &str) -> (String, String) {
    let output = Command::new(curl)
        .args(["-sS", "-i", "--max-time", "30", "--noproxy", "", "-x"])
        .arg(format!("http://{}", sidecar.outbound()))
        .args(options)
        .arg(url)
        .output()
        .unwrap();
    let printed = [&output.stdout[..], &output.stderr[..]].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    let heads = printed.lines().filter(|line| line.starts_with("HTTP/"));
    let mut statuses = heads.map(|line| line.split_whitespace().nth(1).unwrap_or_default());
    (statuses.next_back().unwrap_or_default().to_owned(), printed.clone())
}

fn egress(hosts: &str) -> String {
    format!(
        "apiVersion: tollway.dev/v1\nkind: Egress\nmetadata: {{name: pages, namespace: default}}\n\
         spec:\n  from: [web]\n  hosts: [{hosts}]\n"
    )
}

fn counted(sidecar: &Sidecar, decision: &str) -> u64 {
    let name = format!("tollway_egress_total{{decision=\"{decision}\"}}");
    counter(&sidecar.process, &name)
}

/// A sidecar of an app of this name in the namespace `audit`.
fn of_audit(network: &Network) -> Sidecar {
    let token = network.file("audit.token").display().to_string();
    network.done(&["token", "create", "--namespace", "audit", "--output", &token], "");
    let process = start_tollway("sidecar")
        .args(["--app-id", "web", "--namespace", "audit", "--token-file", &token])
        .args(["--control", &network.control_address.to_string()])
        .args(["--http-listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"])
        .args(["--admin-listen", "127.0.0.1:0"])
        .args(["--outbound-listen", "127.0.0.1:0", "--inbound-listen", "127.0.1.2:0"]);
    Sidecar { process: process.start_listening().unwrap() }
}

#[track_caller]
fn check(got: &(String, String), status: &str, part: &str) {
    assert!(got.0 == status && got.1.contains(part), "{status} {part}: {got:?}");
}

#[test]
fn a_closed_network_passes_on_what_an_egress_allows_and_nothing_else() {
    let (python, program) = (need_tool!("python3"), need_tool!("curl"));
    let network = Network::start("east", "127.0.1.2", &["--egress", "closed"]);
    let lines = network.file("access.log");
    let web = network.sidecar("web", &["--access-log", lines.to_str().unwrap()]);
    let (job, foreign) = (network.sidecar("job", &[]), of_audit(&network));
    let page = serve(&python, &network, "page", None);
    let port = page.address.port();
    let url = format!("http://127.0.0.1:{port}/a?b");
    let get = |sidecar: &Sidecar, url: &str| curl(&program, sidecar, &[], url);
    let tunnel = |sidecar: &Sidecar, url: &str| curl(&program, sidecar, &["-p"], url);

    check(&get(&web, &url), "403", "ERR_EGRESS_REFUSED");
    check(&tunnel(&web, &url), "403", "ERR_EGRESS_REFUSED");
    assert_eq!((counted(&web, "refused"), counted(&web, "allowed")), (2, 0));
    let of_refusals = || {
        let text = std::fs::read_to_string(&lines).ok()?;
        (text.matches("\"error_code\":\"ERR_EGRESS_REFUSED\"").count() == 2).then_some(())
    };
    retry_until(PATIENCE, "two lines of the access log", of_refusals).unwrap();
    assert_eq!(web.process.log().matches("no egress allows a call").count(), 1, "once for a host");

    let applied = network.apply(&egress(&format!("{{host: 127.0.0.1, port: {port}}}")));
    assert!(applied.contains("egress default/pages created"), "{applied}");
    let shown = format!("page for 127.0.0.1:{port} at /a?b");
    check(&get(&web, &url), "200", &shown);
    check(&tunnel(&web, &url), "200", &shown);
    let of_an_answer = || {
        let text = std::fs::read_to_string(&lines).ok()?;
        let parts = ["\"kind\":\"request\"", "\"path\":\"/a\"", "\"status\":200"];
        text.lines().find(|line| parts.iter().all(|part| line.contains(part))).map(|_| ())
    };
    retry_until(PATIENCE, "the line of an answer", of_an_answer).unwrap();
    check(&get(&web, "http://127.0.0.1:1/"), "403", "ERR_EGRESS_REFUSED");
    // Another app, and an app of that name in another namespace.
    check(&get(&job, &url), "403", "ERR_EGRESS_REFUSED");
    check(&get(&foreign, &url), "403", "ERR_EGRESS_REFUSED");
    check(&tunnel(&foreign, &url), "403", "ERR_EGRESS_REFUSED");
    assert_eq!((counted(&web, "allowed"), counted(&foreign, "refused")), (2, 2));

    // A name that leads to this machine, which no egress has named.
    let by_name = format!("http://localhost:{port}/");
    network.apply(&egress(&format!("{{host: localhost, port: {port}}}")));
    let (status, text) = get(&web, &by_name);
    assert!(status.starts_with('5') && text.contains("of this machine"), "{status} {text}");
    check(&tunnel(&web, &by_name), "503", "ERR_UNREACHABLE");
    let both = format!("{{host: localhost, port: {port}}}, {{host: 127.0.0.1, port: {port}}}");
    network.apply(&egress(&both));
    check(&get(&web, &by_name), "200", "page for localhost");
    check(&tunnel(&web, &by_name), "200", "page for localhost");

    let deleted = network.done(&["delete", "egress", "default/pages", "--wait"], "");
    assert!(deleted.contains("deleted"), "{deleted}");
    check(&get(&web, &url), "403", "ERR_EGRESS_REFUSED");
    // Services of the mesh are not a matter of egress.
    let _app = network.app("echo", "east-1", tollway_tests::mesh::AppProtocol::Http);
    web.until_served("echo.default.east");
    check(&get(&web, "http://echo.default.east.mesh/healthz"), "200", "x-echo-name");
}

#[test]
fn the_sidecar_begins_tls_and_verifies_the_host() {
    let (python, program) = (need_tool!("python3"), need_tool!("curl"));
    let network = Network::start("east", "127.0.1.2", &[]);
    let web = network.sidecar("web", &[]);
    let authority = Authority::new("an authority of its own");
    let file = |name: &str, text: String| {
        let path = network.file(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let pair = authority.server(&["localhost"]);
    let certificate = file("server.pem", pair.certificate + &pair.key);
    let root = file("root.pem", authority.root.clone());
    let server = serve(&python, &network, "tls", Some(&certificate));
    let port = server.address.port();
    let plain = "http://localhost:8099/x";

    // Open by default, and the outbound port passes on what an egress names alone.
    check(&curl(&program, &web, &[], plain), "400", "ERR_BAD_NAME");
    let begin = |pem: &str| {
        let pem = serde_json::to_string(pem).unwrap();
        egress(&format!(
            "{{host: 127.0.0.1}}, {{host: localhost, port: {port}, tls: begin, plainPort: 8099, \
             authorities: {pem}}}"
        ))
    };
    network.apply(&begin(&authority.root));
    check(&curl(&program, &web, &[], plain), "200", &format!("page for localhost:{port} at /x"));
    check(&curl(&program, &web, &["-p"], plain), "200", "page for localhost:8099 at /x");
    // The app's own TLS goes to the port itself.
    let own = format!("https://localhost:{port}/y");
    let root = root.to_str().unwrap();
    check(&curl(&program, &web, &["--cacert", root], &own), "200", "at /y");

    // Another authority has not signed the certificate.
    network.apply(&begin(&Authority::new("another").root));
    let (status, text) = curl(&program, &web, &[], plain);
    assert!(status.starts_with('5') && text.contains("ERR_"), "{status} {text}");
    let (_, text) = curl(&program, &web, &["-p"], plain);
    assert!(!text.contains("page for"), "{text}");
    // Authorities that are none are refused before they reach a sidecar.
    let output = network.command(&["apply", "-f", "-"], &begin("-----BEGIN CERTIFICATE-----\n"));
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && reported.contains("authorities for `localhost`"),
        "{reported}"
    );
}

#[test]
fn egress_in_shadow_mode_refuses_nothing_and_shows_what_it_would() {
    let (python, program) = (need_tool!("python3"), need_tool!("curl"));
    let network = Network::start("east", "127.0.1.2", &["--egress", "shadow"]);
    let web = network.sidecar("web", &[]);
    let page = serve(&python, &network, "page", None);
    let port = page.address.port();
    let url = format!("http://127.0.0.1:{port}/");
    // The outbound port passes on what an egress names, in whatever mode the network is.
    check(&curl(&program, &web, &[], &url), "400", "ERR_BAD_NAME");
    network.apply(&egress(&format!("{{host: 127.0.0.1, port: {port}}}")));
    check(&curl(&program, &web, &[], &url), "200", "page for");
    let table = network.done(&["get", "egress"], "");
    let row = table.lines().nth(1).unwrap_or_default();
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(cells, ["default/pages", "web", "1", "enforce"], "{table}");
    let yaml = network.done(&["get", "egress", "pages", "-o", "yaml"], "");
    assert!(yaml.contains("kind: Egress") && yaml.contains("127.0.0.1/32"), "{yaml}");
}

/// A host of IPv6 by its address, and by a name that leads to both families, of which one is allowed.
#[test]
fn hosts_of_ipv6_are_called_by_address_and_by_name() {
    let (python, program) = (need_tool!("python3"), need_tool!("curl"));
    let network = Network::start("east", "127.0.1.2", &["--egress", "closed"]);
    let web = network.sidecar("web", &[]);
    let page = serve_at(&python, &network, "page", "::1", None);
    let port = page.address.port();
    assert!(page.address.is_ipv6(), "{}", page.address);
    let by_address = format!("http://[::1]:{port}/six");
    for options in [&[][..], &["-p"]] {
        check(&curl(&program, &web, options, &by_address), "403", "ERR_EGRESS_REFUSED");
    }
    // Loopback has to be named by its address, too.
    let found = ("localhost", port).to_socket_addrs().unwrap();
    let has_ipv6 = found.into_iter().any(|address| address.is_ipv6());
    network.apply(&egress(&format!(
        "{{host: \"::1\", port: {port}}}, {{host: localhost, port: {port}}}"
    )));
    for options in [&[][..], &["-p"]] {
        let got = curl(&program, &web, options, &by_address);
        check(&got, "200", &format!("page for [::1]:{port} at /six"));
        if has_ipv6 {
            let got = curl(&program, &web, options, &format!("http://localhost:{port}/six"));
            check(&got, "200", &format!("page for localhost:{port} at /six"));
        }
    }
    // Another address of the same family.
    let other = format!("http://[::2]:{port}/");
    check(&curl(&program, &web, &["-p"], &other), "403", "ERR_EGRESS_REFUSED");
    if !has_ipv6 {
        tollway_testkit::skip!("`localhost` has no address of IPv6 here");
    }
}
