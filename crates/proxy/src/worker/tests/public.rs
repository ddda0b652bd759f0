//! The door that has of the HTTP API what everybody may know: whoever comes may send anything.

use super::*;

#[test]
fn the_public_door_refuses_malformed_requests() {
    let (network, web) = (Network::new("west"), service("web"));
    let credentials = network.credentials(&web, "w-1", &[]);
    let public = Running::start(web, credentials, &[Door::Public], None, None);
    let get = |fields: &str| format!("GET /v1.0/healthz HTTP/1.1\r\nhost: a\r\n{fields}\r\n");
    const CHUNKED: &str = "transfer-encoding: chunked\r\n";
    let cases = [
        ("both lengths", get(&format!("content-length: 5\r\n{CHUNKED}")), "400"),
        ("two lengths", get("content-length: 5\r\ncontent-length: 5\r\n"), "400"),
        ("chunked twice", get(&CHUNKED.repeat(2)), "400"),
        ("xchunked", get("transfer-encoding: xchunked\r\n"), "501"),
        ("space before a colon", get("transfer-encoding : chunked\r\n"), "400"),
        ("chunked in 1.0", get(CHUNKED).replace("HTTP/1.1", "HTTP/1.0"), "400"),
        ("+5", get("content-length: +5\r\n"), "400"),
        ("20 digits", get("content-length: 99999999999999999999\r\n"), "400"),
        ("only line feeds", get("").replace("\r\n", "\n"), "400"),
        ("fold", get("x-a: b\r\n c: d\r\n"), "400"),
        ("null", get("x-a: b\0c\r\n"), "400"),
        ("no host", get("").replace("host: a\r\n", ""), "400"),
        ("two hosts", get("host: b\r\n"), "400"),
        ("fragment", get("").replace("/v1.0/healthz", "/v1.0/healthz#x"), "400"),
        ("backslash", get("").replace("/v1.0/healthz", "/v1.0\\healthz"), "400"),
        ("many lines", get(&"x-a: b\r\n".repeat(10_000)), "431"),
        ("a large line", get(&format!("x-a: {}\r\n", "b".repeat(1 << 20))), "431"),
    ];
    for (nth, (name, request, status)) in cases.iter().enumerate() {
        let mut stream = connect(public.addresses[0]);
        // What is over a limit is not read to its end.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{name}: {answer}");
        assert_eq!(answer.matches("content-length: ").count(), 1, "{name}: {answer}");
        assert_eq!(public.metrics.requests_refused.value(), nth as u64 + 1, "{name}");
    }
    // What is well-formed and not for everybody is refused, too, and not for its form.
    let other = get("").replace("healthz", "invoke/stock/method/x");
    let answer = talk(&mut connect(public.addresses[0]), other.as_bytes(), b"}");
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    assert_eq!(public.metrics.requests_refused.value(), cases.len() as u64);
}
