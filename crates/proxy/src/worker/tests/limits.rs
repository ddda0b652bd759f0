//! What a sidecar spends on its callers ends somewhere, and says so.

use super::*;

const OUTBOUND: usize = 1;

fn sidecar(limits: Limits) -> Running {
    let (network, web) = (Network::new("west"), service("web"));
    let any = "127.0.0.1:0".parse().unwrap();
    let credentials = network.credentials(&web, "w-1", &[]);
    let doors = [Door::HttpApi, Door::Outbound];
    Running::start_at(any, (limits, patient()), web, credentials, &doors, None, None)
}

fn call(sidecar: &Running, app: &str) -> String {
    let request = format!("GET /v1.0/invoke/{app}/method/x HTTP/1.1\r\nhost: a\r\n\r\n");
    talk(&mut connect(sidecar.addresses[0]), request.as_bytes(), b"}")
}

#[test]
fn one_service_too_many_is_not_called_unknown() {
    let sidecar = sidecar(Limits { services: 1, ..Limits::default() });
    let answer = call(&sidecar, "first");
    assert!(answer.contains("ERR_DISCOVERY_TIMED_OUT"), "{answer}");
    let answer = call(&sidecar, "second");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("the list of services in use is full (1)"), "{answer}");
    let connect_to = "CONNECT third.mesh:80 HTTP/1.1\r\nhost: third.mesh:80\r\n\r\n";
    let answer = talk(&mut connect(sidecar.addresses[OUTBOUND]), connect_to.as_bytes(), b"}");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
}

#[test]
fn a_connect_to_a_service_that_stays_unknown_is_answered() {
    let sidecar = sidecar(Limits::default());
    let connect_to = "CONNECT nobody.mesh:80 HTTP/1.1\r\nhost: nobody.mesh:80\r\n\r\n";
    let answer = talk(&mut connect(sidecar.addresses[OUTBOUND]), connect_to.as_bytes(), b"}");
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(answer.contains("ERR_DISCOVERY_TIMED_OUT"), "{answer}");
}

#[test]
fn requests_that_were_called_off_take_no_place_in_the_line() {
    let sidecar = sidecar(Limits { waiting_per_service: 4, ..Limits::default() });
    for _ in 0..4 {
        let unfinished = "POST /v1.0/invoke/nobody/method/x HTTP/1.1\r\nhost: a\r\n\
                          content-length: 5\r\n\r\n";
        connect(sidecar.addresses[0]).write_all(unfinished.as_bytes()).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while sidecar.metrics.cancelled.value() < 4 {
        assert!(Instant::now() < deadline, "{} cancelled", sidecar.metrics.cancelled.value());
        std::thread::sleep(Duration::from_millis(5));
    }
    let answer = call(&sidecar, "nobody");
    assert!(answer.contains("ERR_DISCOVERY_TIMED_OUT"), "it waited in line: {answer}");
}
