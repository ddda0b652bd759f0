//! Refusals of the hops after the caller's sidecar: gateways, the callee's sidecar, an impostor in
//! its place, and an app that takes a request and drops it.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tollway_testkit::{need_tool, retry_until};

use crate::failures::requests::{CALLEE, CALLER, call, check, nowhere};
use tollway_tests::mesh::{AppProtocol, Mesh, PATIENCE, Sidecar, tollway};

/// The answer to a call of `service` as soon as it has the code.
#[track_caller]
fn until_code(caller: &Sidecar, service: &str, code: &str) -> String {
    let mut last = String::new();
    let reported = retry_until(PATIENCE, code, || {
        last = call(caller, service, "/");
        last.contains(&format!("\"{code}\"")).then(|| last.clone())
    });
    reported.unwrap_or_else(|_| panic!("never {code}; the last answer was:\n{last}"))
}

#[test]
fn a_gateway_that_cannot_reach_the_endpoint_is_named() {
    let mesh = Mesh::start();
    let caller = mesh.west.caller(&["--connect-timeout-ms", "2000"]);
    let gateway = mesh.east.gateway.port("gateway").unwrap().to_string();
    let app = mesh.east.app("echo", "a", AppProtocol::Http);
    let port = app.echo.port("http").unwrap().port().to_string();
    let nowhere = nowhere("127.0.2.1");
    let gone = nowhere.address().to_string();
    let elsewhere = ["--app-port", &port, "--advertise", &gone];
    let _lost = mesh.east.sidecar("lost", &elsewhere);
    let answer = until_code(&caller, "lost.default.east", "ERR_GATEWAY_UPSTREAM");
    let parts = ["the gateway of network east", &gateway, "cannot connect", "gateway's log"];
    check(&answer, 503, "ERR_GATEWAY_UPSTREAM", CALLER, &parts);
}

/// West has east's former state: its control plane is gone, and so is the app in east.
#[test]
fn a_gateway_that_serves_no_such_workload_any_more_refuses_its_name() {
    let mut mesh = Mesh::start();
    let caller = mesh.west.caller(&[]);
    let gateway = mesh.east.gateway.port("gateway").unwrap().to_string();
    let mut app = mesh.east.app("echo", "a", AppProtocol::Http);
    caller.until_served("echo.default.east");
    mesh.west.control.kill().unwrap();
    assert!(app.sidecar.process.terminate(PATIENCE).unwrap().success());
    let answer = until_code(&caller, "echo.default.east", "ERR_GATEWAY_REFUSED");
    let parts = ["the gateway of network east", &gateway, "no workload of the service is ready"];
    check(&answer, 503, "ERR_GATEWAY_REFUSED", CALLER, &parts);
}

/// East has left west, which does not know it yet.
#[test]
fn a_callee_that_trusts_the_callers_network_no_more_refuses_its_certificate() {
    let mut mesh = Mesh::start();
    let caller = mesh.west.caller(&[]);
    let _app = mesh.east.app("echo", "a", AppProtocol::Http);
    caller.until_served("echo.default.east");
    mesh.west.control.kill().unwrap();
    let store = mesh.east.store();
    tollway(["join", "remove", "--store", store.to_str().unwrap(), "west"]);
    let answer = until_code(&caller, "echo.default.east", "ERR_CERTIFICATE_REFUSED");
    let parts = ["service echo.default.east through the gateway of network east", "joined"];
    check(&answer, 503, "ERR_CERTIFICATE_REFUSED", CALLER, &parts);
}

#[test]
fn a_peer_without_tls_is_distinguished_from_one_that_is_away() {
    let mesh = Mesh::start();
    let caller = mesh.west.caller(&[]);
    let app = mesh.west.app("echo", "a", AppProtocol::Http);
    let plain = app.echo.port("http").unwrap();
    let banner = serve_banners();
    let (app_port, plain, banner) =
        (plain.port().to_string(), plain.to_string(), banner.to_string());
    let at =
        |name, address| mesh.west.sidecar(name, &["--app-port", &app_port, "--advertise", address]);
    let _sidecars = [at("mistaken", &plain), at("chatty", &banner)];
    for (name, address, reason) in [
        ("mistaken", &plain, "closed in the TLS handshake"),
        ("chatty", &banner, "what answers there does not speak TLS"),
    ] {
        let answer = until_code(&caller, name, "ERR_TLS_FAILED");
        let service = format!("service {name}.default.west at {address}");
        check(&answer, 503, "ERR_TLS_FAILED", CALLER, &[&service, reason, "inbound listener"]);
    }
}

#[test]
fn an_app_that_resets_a_request_is_named_with_its_reason() {
    let mesh = Mesh::start();
    let caller = mesh.west.caller(&[]);
    let port = serve_resets();
    let _sidecar = mesh.east.sidecar_of("echo", port, AppProtocol::H2c);
    let answer = until_code(&caller, "echo.default.east", "ERR_RESET");
    let parts = ["the app reset the request (INTERNAL_ERROR)", "look at the app's log"];
    check(&answer, 502, "ERR_RESET", CALLEE, &parts);
    // The same failure over gRPC, by a foreign client.
    let curl = need_tool!("curl");
    let url = format!("http://{}/shop.Stock/Get", caller.grpc());
    let output = std::process::Command::new(curl)
        .args(["-si", "--http2-prior-knowledge", "-H", "content-type: application/grpc"])
        .args(["-H", "te: trailers", "-H", "dapr-app-id: echo.default.east"])
        .args(["--data-binary", "", &url])
        .output()
        .unwrap();
    let answer = String::from_utf8(output.stdout).unwrap();
    assert!(answer.contains("grpc-status: 13"), "{answer}");
    assert!(answer.contains("x-tollway-error: ERR_RESET"), "{answer}");
    assert!(answer.contains(&format!("x-tollway-hop: {CALLEE}")), "{answer}");
}

/// An HTTP/2 app (hyper's) that resets every request. It lives as long as the test program.
fn serve_resets() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let fail = |_: Request<_>| async {
                    Err::<Response<Full<Bytes>>, _>(std::io::Error::other("no"))
                };
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let connection = server.serve_connection(TokioIo::new(stream), service_fn(fail));
                // How it ends is the caller's to see.
                tokio::spawn(async { Ok::<_, Infallible>(connection.await.is_ok()) });
            }
        });
    });
    port
}

/// A server that greets in plain text, as SSH and SMTP do.
fn serve_banners() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n");
            // Reads its input, so that the greeting is not lost to a reset.
            let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
            let _ = stream.read(&mut [0; 4096]);
        }
    });
    address
}
