//! The listener for the public part of the HTTP API: any client may send anything.

use super::*;

const CHUNKED: &str = "transfer-encoding: chunked\r\n";

fn get(fields: &str) -> String {
    format!("GET /v1.0/healthz HTTP/1.1\r\nhost: a\r\n{fields}\r\n")
}

/// The same with a body, and a request behind it for a parser that takes its end for another.
fn with_body(chunks: &str) -> String {
    get(CHUNKED) + chunks + "0\r\n\r\n" + &get("").replace("healthz", "metadata")
}

/// Refused by their heads.
fn heads() -> Vec<(&'static str, String, u16)> {
    let line = |from, to| get("").replace(from, to);
    vec![
        ("both lengths", get(&format!("content-length: 5\r\n{CHUNKED}")), 400),
        ("two lengths", get("content-length: 5\r\ncontent-length: 5\r\n"), 400),
        ("two lengths that differ", get("content-length: 5\r\ncontent-length: 6\r\n"), 400),
        ("chunked twice", get(&CHUNKED.repeat(2)), 400),
        ("chunked twice in one", get("transfer-encoding: chunked, chunked\r\n"), 400),
        ("identity last", get("transfer-encoding: chunked, identity\r\n"), 400),
        ("xchunked", get("transfer-encoding: xchunked\r\n"), 501),
        ("space before a colon", get("transfer-encoding : chunked\r\n"), 400),
        ("tab before a colon", get("transfer-encoding\t: chunked\r\n"), 400),
        ("vertical tab before a colon", get("transfer-encoding\x0b: chunked\r\n"), 400),
        ("line feed before a colon", get("transfer-encoding\n: chunked\r\n"), 400),
        ("chunked in 1.0", get(CHUNKED).replace("HTTP/1.1", "HTTP/1.0"), 400),
        ("+5", get("content-length: +5\r\n"), 400),
        ("-5", get("content-length: -5\r\n"), 400),
        ("5,5", get("content-length: 5,5\r\n"), 400),
        ("vertical tab before 5", get("content-length: \x0b5\r\n"), 400),
        ("20 digits", get("content-length: 99999999999999999999\r\n"), 400),
        ("only line feeds", get("").replace("\r\n", "\n"), 400),
        ("only carriage returns", get("").replace("\r\n", "\r") + "\r\n\r\n", 400),
        ("line feed in a line", get("x-a: b\nc: d\r\n"), 400),
        ("carriage return in a line", get("x-a: b\rc: d\r\n"), 400),
        ("fold", get("x-a: b\r\n c: d\r\n"), 400),
        ("fold by a tab", get("x-a: b\r\n\tc: d\r\n"), 400),
        ("null", get("x-a: b\0c\r\n"), 400),
        ("space in a name", get("x a: b\r\n"), 400),
        ("no colon", get("x-a\r\n"), 400),
        ("no host", line("host: a\r\n", ""), 400),
        ("two hosts", get("host: b\r\n"), 400),
        ("fragment", line("healthz", "healthz#x"), 400),
        ("null in the target", line("healthz", "health\0z"), 400),
        ("line feed in the target", line("healthz", "health\nz"), 400),
        ("many lines", get(&"x-a: b\r\n".repeat(10_000)), 431),
        ("a large line", get(&format!("x-a: {}\r\n", "b".repeat(1 << 20))), 431),
    ]
}

/// Refused by their bodies, whose end no reader can find.
fn bodies() -> Vec<(&'static str, String, u16)> {
    vec![
        ("chunk of too many digits", with_body("00000000000000005\r\nhello\r\n"), 400),
        ("chunk too large to count", with_body("10000000000000000\r\nhello"), 400),
        ("largest chunk", with_body("ffffffffffffffff\r\nhello"), 400),
        ("negative chunk", with_body("-5\r\nhello\r\n"), 400),
        ("chunk with a prefix", with_body("0x5\r\nhello\r\n"), 400),
        ("long extension", with_body(&format!("5;x={}\r\nhello\r\n", "a".repeat(1000))), 400),
        ("line feed in an extension", with_body("5;x=a\nb\r\nhello\r\n"), 400),
        ("chunk behind a line feed", with_body("5\nhello\r\n"), 400),
        ("chunk without its end", with_body("5\r\nhelloX\r\n"), 400),
        ("trailer without a colon", with_body("0\r\nno colon\r\n\r\n"), 400),
        ("large trailer", with_body(&format!("0\r\nx-a: {}\r\n\r\n", "b".repeat(100_000))), 431),
    ]
}

fn public() -> Running {
    let (network, web) = (Network::new("west"), service("web"));
    let credentials = network.credentials(&web, "w-1", &[]);
    Running::start(web, credentials, &[ListenerKind::Public], None, None)
}

/// All that comes back until the connection closes.
fn exchange(public: &Running, request: &str) -> String {
    let mut stream = connect(public.addresses[0]);
    // What is over a limit is not read to its end.
    stream.send_meanwhile(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn the_public_listener_refuses_malformed_requests() {
    let public = public();
    public.run(ApiKind::Own, echo_request);
    let cases = [heads(), bodies()].concat();
    for (nth, (name, request, status)) in cases.iter().enumerate() {
        let answer = exchange(&public, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{name}: {answer}");
        assert_eq!(answer.matches("content-length: ").count(), 1, "{name}: {answer}");
        assert_eq!(public.metrics.requests_refused.value(), nth as u64 + 1, "{name}");
    }
    // What is well-formed and not for everybody is refused, too, and not for its form.
    for other in ["/invoke/stock/method/x", "\\healthz"] {
        let other = get("").replace("/healthz", other);
        let answer = talk(&mut connect(public.addresses[0]), other.as_bytes(), b"}");
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    }
    assert_eq!(public.metrics.requests_refused.value(), cases.len() as u64);
}

/// A runtime that answers with all that it was sent.
async fn echo_request(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let mut text = format!("{} {}\n", request.method(), request.uri().path());
    for (name, value) in request.headers() {
        text += &format!("{name}: {}\n", value.to_str().unwrap());
    }
    let body = request.into_body().collect().await?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    text += &format!("body: {}\n", String::from_utf8_lossy(&body.to_bytes()));
    for (name, value) in &trailers {
        text += &format!("trailer {name}: {}\n", value.to_str().unwrap());
    }
    Ok(Response::new(Full::from(text)))
}

const CLOSE: &str = "connection: close\r\n";

#[test]
fn bytes_behind_an_upgrade_at_the_public_listener_are_a_request() {
    let public = public();
    public.run(ApiKind::Own, echo_request);
    let next = get(CLOSE).replace("healthz", "metadata");
    const UPGRADE: &str = "connection: upgrade\r\nupgrade: raw\r\n";
    for (fields, body) in [("", ""), ("content-length: 5\r\n", "hello")] {
        let upgrade = get(&format!("{UPGRADE}{fields}")) + body;
        let answer = exchange(&public, &(upgrade + &next));
        assert_eq!(answer.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 2, "{answer}");
        let (first, second) = answer.split_at(answer.rfind("HTTP/1.1 ").unwrap());
        assert!(first.contains("GET /v1.0/healthz\n"), "{answer}");
        assert!(first.contains(&format!("body: {body}\n")), "{answer}");
        assert!(second.contains("GET /v1.0/metadata\n"), "{answer}");
    }
}

#[test]
fn trailers_and_connection_change_nothing_at_the_public_listener() {
    let public = public();
    public.run(ApiKind::Own, echo_request);
    let fields = format!(
        "{CLOSE}{CHUNKED}connection: x-forwarded-identity, x-tollway-caller, host\r\n\
         x-forwarded-identity: me\r\nx-tollway-caller: evil\r\ndapr-caller-app-id: evil\r\n\
         keep-alive: timeout=5\r\nx-kept: yes\r\n"
    );
    let chunks = "5\r\nhello\r\n0\r\ncontent-length: 99\r\nhost: evil\r\nauthorization: evil\r\n\
                  x-tollway-caller: evil\r\nx-sum: 7\r\n\r\n";
    let answer = exchange(&public, &(get(&fields) + chunks));
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let (_, text) = answer.split_once("\r\n\r\n").unwrap();
    for part in ["x-kept: yes\n", "body: hello\n", "trailer x-sum: 7\n"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    for part in ["evil", "x-forwarded-identity", "keep-alive", "connection", "trailer content"] {
        assert!(!text.contains(part), "{part} is in {text}");
    }
}

#[test]
fn the_public_listener_waits_a_limited_time_for_an_announced_body() {
    let public = public();
    public.run(ApiKind::Own, echo_request);
    let answer = exchange(&public, &get("expect: 100-continue\r\ncontent-length: 5\r\n"));
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("ERR_BODY_TIMED_OUT"), "{answer}");
}
