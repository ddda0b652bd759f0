//! A small program with the command line of `tollway`, as far as the lab uses it: an HTTP/1.1 echo
//! app, an open-loop load generator, and a mesh of plain forwarders that find each other through
//! files. It has no encryption and no identities; its figures are its own.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use tollway_lab::ChildCommand;
use tollway_net::ports_file::{self as ports, Ports};
use tollway_record::record::{Arrival, Protocol, Tls};
use tollway_record::run::{Generator, RUN_SCHEMA, RunResult};
use tollway_record::traffic::{Bytes, Lateness, Traffic};
use tollway_record::{Histogram, LatencyUs};

/// Bodies of this length are answered with status 500 one time in ten.
pub(crate) const UNLUCKY_PAYLOAD_BYTES: u32 = 13;

#[derive(Debug, Parser)]
struct LabCommand {
    #[command(subcommand)]
    command: ChildCommand,
}

/// Runs a command of `tollway`; `None` when the arguments are not one.
pub(crate) fn run(args: &[String]) -> Option<ExitCode> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let options = options(args);
    let result = match words.first().copied()? {
        "lab" => {
            let child = LabCommand::try_parse_from(&words).unwrap().command.run();
            child.map_err(io::Error::other)
        }
        "echo" => echo(&options),
        "load" => load(words[2], &options),
        "control" => wait_with(&options, "control", "127.0.0.1:15010"),
        "gateway" => wait_with(&options, "gateway", &options["listen"]),
        "sidecar" => sidecar(&options),
        "forward" => forwarder(words[1], words[2]),
        "token" => print("a token\n"),
        "join" if words[1] == "export" => print("a bundle\n"),
        "join" => fs::read_to_string(words.last()?).map(|text| assert_eq!(text, "a bundle\n")),
        _ => return None,
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    })
}

type Options = BTreeMap<String, String>;

fn options(args: &[String]) -> Options {
    let pairs = args.windows(2).filter_map(|pair| Some((pair[0].strip_prefix("--")?, &pair[1])));
    pairs.map(|(name, value)| (name.to_owned(), value.clone())).collect()
}

fn print(text: &str) -> io::Result<()> {
    io::stdout().write_all(text.as_bytes())
}

fn write_ports(options: &Options, ports: &[(&str, SocketAddr)]) -> io::Result<()> {
    let ports: Ports = ports.iter().map(|&(name, address)| (name.to_owned(), address)).collect();
    ports::write(Path::new(&options["ports-file"]), &ports).map_err(io::Error::other)
}

fn wait_with(options: &Options, name: &str, address: &str) -> io::Result<()> {
    write_ports(options, &[(name, address.parse().unwrap())])?;
    loop {
        thread::park();
    }
}

fn echo(options: &Options) -> io::Result<()> {
    let listener = TcpListener::bind(&options["http"])?;
    let grpc = TcpListener::bind(&options["grpc"])?;
    write_ports(options, &[("http", listener.local_addr()?), ("grpc", grpc.local_addr()?)])?;
    serve(&listener, answer_requests)
}

fn serve(
    listener: &TcpListener,
    answer: impl Fn(TcpStream) -> io::Result<()> + Copy + Send + 'static,
) -> io::Result<()> {
    for stream in listener.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        thread::spawn(move || answer(stream));
    }
    Ok(())
}

fn answer_requests(mut stream: TcpStream) -> io::Result<()> {
    static UNLUCKY: AtomicU64 = AtomicU64::new(0);
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some((_, body)) = read_message(&mut reader)? {
        let unlucky = body.len() == UNLUCKY_PAYLOAD_BYTES as usize
            && UNLUCKY.fetch_add(1, Ordering::Relaxed) % 10 == 9;
        let status = if unlucky { "500 Bad Luck" } else { "200 OK" };
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), &body].concat())?;
    }
    Ok(())
}

/// First line and body of a message with a content-length.
fn read_message(reader: &mut impl BufRead) -> io::Result<Option<(String, Vec<u8>)>> {
    let (mut first, mut length) = (String::new(), 0);
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some((first, body)))
}

/// Listens for its app's calls, and forwards requests for its app. Files beside the token have the
/// addresses.
fn sidecar(options: &Options) -> io::Result<()> {
    let api = TcpListener::bind(&options["http-listen"])?;
    let grpc = TcpListener::bind(&options["grpc-listen"])?;
    let inbound = TcpListener::bind(&options["inbound-listen"])?;
    let registry = PathBuf::from(&options["token-file"]).parent().unwrap().join("registry");
    fs::create_dir_all(&registry)?;
    if let Some(port) = options.get("app-port") {
        let file = Path::new(&options["ports-file"]).file_name().unwrap().to_str().unwrap();
        let network = file.split('-').next().unwrap();
        let service = format!("{}.default.{network}", options["app-id"]);
        fs::write(registry.join(service), inbound.local_addr()?.to_string())?;
        let app: SocketAddr = format!("127.0.0.1:{port}").parse().unwrap();
        thread::spawn(move || serve(&inbound, move |from| forward(from, app, &[])));
    }
    write_ports(options, &[("http", api.local_addr()?), ("grpc", grpc.local_addr()?)])?;
    let registry: &'static Path = Box::leak(registry.into_boxed_path());
    serve(&api, move |from| call_out(from, registry))
}

/// The first request's path names the connection's target.
fn call_out(mut from: TcpStream, registry: &Path) -> io::Result<()> {
    let mut start = [0; 256];
    let length = from.read(&mut start)?;
    let text = String::from_utf8_lossy(&start[..length]).into_owned();
    let service = text.split('/').nth(3).unwrap_or_default();
    let address = fs::read_to_string(registry.join(service))?;
    forward(from, address.parse().map_err(io::Error::other)?, &start[..length])
}

/// Forwards from one address to another.
fn forwarder(listen: &str, to: &str) -> io::Result<()> {
    let to: SocketAddr = to.parse().map_err(io::Error::other)?;
    serve(&TcpListener::bind(listen)?, move |from| forward(from, to, &[]))
}

fn forward(from: TcpStream, to: SocketAddr, start: &[u8]) -> io::Result<()> {
    let mut to = TcpStream::connect(to)?;
    to.set_nodelay(true)?;
    to.write_all(start)?;
    let (mut back_from, mut back_to) = (to.try_clone()?, from.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut back_from, &mut back_to);
        let _ = back_to.shutdown(std::net::Shutdown::Both);
    });
    io::copy(&mut (&from), &mut to)?;
    to.shutdown(std::net::Shutdown::Write)
}

/// What one connection saw.
#[derive(Default)]
struct Seen {
    latencies: Histogram,
    services: Histogram,
    errors: BTreeMap<String, u64>,
    late_ns: Vec<u64>,
}

fn load(url: &str, options: &Options) -> io::Result<()> {
    let number = |name: &str| options[name].trim_end_matches("ms").parse::<u64>().unwrap();
    let (rate, connections) = (number("rate"), number("connections"));
    let (warm_up, duration) = (number("warm-up"), number("duration"));
    let payload = vec![b'x'; number("payload-size") as usize];
    let (authority, path) = url.trim_start_matches("http://").split_once('/').unwrap();
    let head =
        format!("POST /{path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", payload.len());
    let request = [head.as_bytes(), &payload].concat();
    let streams = connect_all(authority, connections)?;
    let start = Instant::now();
    let at = |n: u64| Duration::from_nanos(n * 1_000_000_000 / rate);
    let (first, end) = (warm_up * rate / 1_000, (warm_up + duration) * rate / 1_000);
    let one = |(k, stream): (usize, &TcpStream)| -> io::Result<Seen> {
        stream.set_nodelay(true)?;
        let (mut writer, mut reader) = (stream.try_clone()?, BufReader::new(stream.try_clone()?));
        let mut seen = Seen::default();
        for n in (k as u64..end).step_by(connections as usize) {
            thread::sleep(at(n).saturating_sub(start.elapsed()));
            let sent = start.elapsed();
            writer.write_all(&request)?;
            let (status, body) = read_message(&mut reader)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            let done = start.elapsed();
            if n < first {
                continue;
            }
            assert_eq!(body, payload);
            if status.contains(" 200 ") {
                seen.latencies.record((done - at(n)).as_nanos() as u64);
                seen.services.record((done - sent).as_nanos() as u64);
            } else {
                let code = status.split(' ').nth(1).unwrap_or("none");
                *seen.errors.entry(format!("status-{code}")).or_default() += 1;
            }
            seen.late_ns.push((sent - at(n)).as_nanos() as u64);
        }
        Ok(seen)
    };
    let seen = thread::scope(|scope| {
        let running: Vec<_> =
            streams.iter().enumerate().map(|each| scope.spawn(move || one(each))).collect();
        running.into_iter().map(|t| t.join().unwrap()).collect::<io::Result<Vec<Seen>>>()
    })?;
    let result = result(url, &seen, rate as f64, duration as f64 / 1e3, payload.len() as u64);
    fs::write(&options["json"], result.to_json())
}

/// All at once: one after the other would take a round trip each.
fn connect_all(authority: &str, connections: u64) -> io::Result<Vec<TcpStream>> {
    thread::scope(|scope| {
        let connecting: Vec<_> =
            (0..connections).map(|_| scope.spawn(|| TcpStream::connect(authority))).collect();
        connecting.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn result(url: &str, seen: &[Seen], rate: f64, duration_s: f64, payload_bytes: u64) -> RunResult {
    let (mut latencies, mut services) = (Histogram::new(), Histogram::new());
    let mut traffic = Traffic { requested_rps: Some(rate), duration_s, ..Traffic::default() };
    let mut late: Vec<u64> = Vec::new();
    for seen in seen {
        latencies.merge(&seen.latencies);
        services.merge(&seen.services);
        for (kind, count) in &seen.errors {
            *traffic.errors_by_kind.entry(kind.clone()).or_default() += count;
        }
        late.extend(&seen.late_ns);
    }
    late.sort_unstable();
    let us = |quantile: f64| {
        late.get((late.len() as f64 * quantile) as usize).map_or(0.0, |&ns| ns as f64 / 1e3)
    };
    let threshold = tollway_record::client_limit::late_threshold_ns(rate);
    let late_sends = late.iter().filter(|&&ns| ns > threshold).count() as u64;
    traffic.lateness = Some(Lateness {
        p50_us: us(0.5),
        p99_us: us(0.99),
        max_us: late.last().map_or(0.0, |&ns| ns as f64 / 1e3),
        late_sends,
        late_fraction: late_sends as f64 / late.len().max(1) as f64,
    });
    traffic.requests = latencies.n();
    traffic.errors = traffic.errors_by_kind.values().sum();
    traffic.achieved_rps = traffic.requests as f64 / duration_s;
    let bytes = payload_bytes * traffic.requests;
    traffic.bytes = Bytes { sent: bytes, received: bytes };
    traffic.set_latencies(&latencies);
    traffic.set_services(&services);
    traffic.error_latency_us = None::<LatencyUs>;
    RunResult {
        schema: RUN_SCHEMA.into(),
        started_at: "2026-01-01T00:00:00Z".into(),
        target: url.into(),
        protocol: Protocol::Http1,
        tls: Tls::Plain,
        tls_facts: None,
        requests_per_connection: None,
        streams: 1,
        arrival: Arrival::OpenUniform,
        connections: seen.len() as u32,
        in_flight_limit: None,
        payload_bytes,
        warm_up_s: 0.0,
        seed: 1,
        command_line: Vec::new(),
        traffic,
        generator: Generator::default(),
        ..RunResult::default()
    }
}
