//! A throughput run in the shape of `iperf3 --json`, for what reads that.
//!
//! Bytes here, bits per second there: each `bits_per_second` is eight times `bytes` over
//! `seconds` of the same object.

use serde_json::{Map, Value, json};

use crate::run::RunResult;
use crate::throughput::{Direction, Flow, Interval, StreamSample, StreamTotal, Throughput};

/// The JSON text; `None` when the result is not of a throughput run. `started_unix_s` is
/// `started_at` in seconds of the Unix clock.
#[must_use]
pub fn write(run: &RunResult, started_unix_s: u64) -> Option<String> {
    let throughput = run.throughput.as_ref()?;
    let document = json!({
        "start": start(run, throughput, started_unix_s),
        "intervals": throughput.intervals.iter().map(|i| interval(i, throughput)).collect::<Vec<_>>(),
        "end": end(run, throughput),
    });
    Some(serde_json::to_string_pretty(&document).expect("plain fields with string keys"))
}

fn start(run: &RunResult, throughput: &Throughput, started_unix_s: u64) -> Value {
    let (host, port) = host_and_port(&run.target);
    let connected = throughput.streams.iter().map(|stream| {
        let (local_host, local_port) = host_and_port(&stream.local);
        let (remote_host, remote_port) = host_and_port(&stream.remote);
        json!({
            "socket": stream.stream,
            "local_host": local_host,
            "local_port": local_port,
            "remote_host": remote_host,
            "remote_port": remote_port,
        })
    });
    json!({
        "connected": connected.collect::<Vec<_>>(),
        "version": format!("tollway {}", env!("CARGO_PKG_VERSION")),
        "system_info": "",
        "timestamp": { "time": run.started_at, "timesecs": started_unix_s },
        "connecting_to": { "host": host, "port": port },
        "cookie": "",
        "target_bitrate": 0,
        "test_start": {
            "protocol": "TCP",
            "num_streams": throughput.streams.len(),
            "blksize": throughput.write_bytes,
            "omit": run.warm_up_s.round() as u64,
            "duration": run.traffic.duration_s.round() as u64,
            "bytes": 0,
            "blocks": 0,
            "reverse": u8::from(throughput.direction == Direction::Receive),
            "tos": 0,
            "target_bitrate": 0,
            "bidir": u8::from(throughput.direction == Direction::Both),
        },
    })
}

fn interval(interval: &Interval, throughput: &Throughput) -> Value {
    let mut object = Map::new();
    let streams = interval.streams.iter().map(|sample| stream_of_interval(sample, interval));
    object.insert("streams".to_owned(), streams.collect());
    for (name, sends) in sums(throughput.direction) {
        let mut sum = flow(interval.start_s, interval.sum(sends), sends);
        if sends {
            sum.insert("retransmits".to_owned(), interval.retransmits().into());
        }
        sum.insert("omitted".to_owned(), interval.omitted.into());
        object.insert(name.to_owned(), sum.into());
    }
    object.into()
}

/// The name of each sum, and whether it is of what was sent from here.
fn sums(direction: Direction) -> Vec<(&'static str, bool)> {
    match direction {
        Direction::Send => vec![("sum", true)],
        Direction::Receive => vec![("sum", false)],
        Direction::Both => vec![("sum", true), ("sum_bidir_reverse", false)],
    }
}

fn stream_of_interval(sample: &StreamSample, interval: &Interval) -> Value {
    let mut object = flow(interval.start_s, sample.flow, sample.sends);
    object.insert("socket".to_owned(), sample.stream.into());
    if sample.sends {
        object.insert("retransmits".to_owned(), sample.retransmits.into());
        object.insert("snd_cwnd".to_owned(), sample.cwnd_bytes.into());
        object.insert("rtt".to_owned(), sample.rtt_us.into());
        object.insert("rttvar".to_owned(), sample.rttvar_us.into());
        object.insert("pmtu".to_owned(), sample.pmtu_bytes.into());
    }
    object.insert("omitted".to_owned(), interval.omitted.into());
    object.into()
}

fn end(run: &RunResult, throughput: &Throughput) -> Value {
    let mut object = Map::new();
    object.insert(
        "streams".to_owned(),
        throughput.streams.iter().map(stream_at_end).collect::<Value>(),
    );
    for (suffix, sends) in
        sums(throughput.direction).iter().map(|(name, sends)| (name.replacen("sum", "", 1), sends))
    {
        let own = if *sends { throughput.sent } else { throughput.received }.unwrap_or_default();
        let of_peer = peers(throughput, *sends);
        let (sent, received) =
            if *sends { (own, of_peer.unwrap_or(own)) } else { (of_peer.unwrap_or(own), own) };
        let mut sent = flow(0.0, sent, *sends);
        if *sends {
            let retransmits: u64 = throughput.streams.iter().map(|s| s.retransmits).sum();
            sent.insert("retransmits".to_owned(), retransmits.into());
        }
        object.insert(format!("sum_sent{suffix}"), sent.into());
        object.insert(format!("sum_received{suffix}"), flow(0.0, received, *sends).into());
    }
    let busy = |cpu_us: f64, duration_s: f64| {
        if duration_s > 0.0 { cpu_us / duration_s / 1e4 } else { 0.0 }
    };
    let peers = throughput.streams.iter().filter_map(|stream| stream.peer);
    let remote: f64 = peers.map(|peer| busy(peer.cpu_us, peer.flow.duration_s)).sum();
    // Readers look all of these up; the user's and the kernel's share are not distinguished.
    object.insert(
        "cpu_utilization_percent".to_owned(),
        json!({
            "host_total": busy(run.generator.cpu_us, run.traffic.duration_s),
            "host_user": null,
            "host_system": null,
            "remote_total": remote,
            "remote_user": null,
            "remote_system": null,
        }),
    );
    let congestion = throughput.streams.first().map_or("", |s| s.congestion_control.as_str());
    object.insert("sender_tcp_congestion".to_owned(), congestion.into());
    object.insert("receiver_tcp_congestion".to_owned(), congestion.into());
    object.into()
}

/// What the other ends counted of one direction; `None` unless all of them did.
fn peers(throughput: &Throughput, sends: bool) -> Option<Flow> {
    let (mut bytes, mut duration_s) = (0_u64, 0.0_f64);
    for stream in throughput.streams.iter().filter(|stream| stream.sends == sends) {
        let peer = stream.peer?;
        bytes = bytes.saturating_add(peer.flow.bytes);
        duration_s = duration_s.max(peer.flow.duration_s);
    }
    Some(Flow::new(bytes, duration_s))
}

fn stream_at_end(stream: &StreamTotal) -> Value {
    let own = flow(0.0, stream.flow, stream.sends);
    let peer = flow(0.0, stream.peer.map_or(stream.flow, |peer| peer.flow), stream.sends);
    let (mut sender, receiver) = if stream.sends { (own, peer) } else { (peer, own) };
    sender.insert("socket".to_owned(), stream.stream.into());
    if stream.sends {
        sender.insert("retransmits".to_owned(), stream.retransmits.into());
        sender.insert("max_snd_cwnd".to_owned(), stream.max_cwnd_bytes.into());
        sender.insert("max_rtt".to_owned(), stream.rtt_us.max.into());
        sender.insert("min_rtt".to_owned(), stream.rtt_us.min.into());
        sender.insert("mean_rtt".to_owned(), (stream.rtt_us.mean.round() as u64).into());
    }
    let mut receiver = receiver;
    receiver.insert("socket".to_owned(), stream.stream.into());
    json!({ "sender": sender, "receiver": receiver })
}

fn flow(start_s: f64, flow: Flow, sender: bool) -> Map<String, Value> {
    let fields = [
        ("start", start_s.into()),
        ("end", (start_s + flow.duration_s).into()),
        ("seconds", flow.duration_s.into()),
        ("bytes", flow.bytes.into()),
        ("bits_per_second", flow.bits_per_s.into()),
        ("sender", sender.into()),
    ];
    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// `tcp://host:port` or `host:port` taken apart.
fn host_and_port(address: &str) -> (String, u16) {
    let address = address.rsplit_once("://").map_or(address, |(_, rest)| rest);
    let address = address.split('/').next().unwrap_or(address);
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (host.to_owned(), port.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Histogram;
    use crate::run::tests::run_of;
    use crate::throughput::{PeerTotal, RttRange};

    #[test]
    fn every_rate_is_eight_times_bytes_over_seconds() {
        for direction in [Direction::Send, Direction::Receive, Direction::Both] {
            let document = written(direction);
            let mut rates = 0;
            each_object(&document, &mut |object| {
                let Some(rate) = object.get("bits_per_second").and_then(Value::as_f64) else {
                    return;
                };
                let number = |key: &str| object[key].as_f64().unwrap();
                let bits_per_s = 8.0 * number("bytes") / number("seconds");
                // Reading from JSON may round the last bit otherwise.
                assert!((rate / bits_per_s - 1.0).abs() < 1e-12, "{object:?}");
                assert!((number("end") - number("start") - number("seconds")).abs() < 1e-9);
                rates += 1;
            });
            assert!(rates >= 6, "{direction:?}: {rates}");
        }
    }

    #[test]
    fn the_keys_are_those_that_readers_look_for() {
        let document = written(Direction::Send);
        for pointer in [
            "/start/connected/0/remote_port",
            "/start/version",
            "/start/timestamp/timesecs",
            "/start/connecting_to/host",
            "/start/test_start/num_streams",
            "/intervals/0/sum/bits_per_second",
            "/intervals/1/streams/0/snd_cwnd",
            "/intervals/1/streams/0/rtt",
            "/end/streams/0/sender/retransmits",
            "/end/streams/0/receiver/bytes",
            "/end/sum_sent/retransmits",
            "/end/sum_received/bits_per_second",
            "/end/cpu_utilization_percent/host_total",
            "/end/sender_tcp_congestion",
        ] {
            assert!(document.pointer(pointer).is_some_and(|value| !value.is_null()), "{pointer}");
        }
        assert_eq!(document["start"]["connecting_to"], json!({"host": "127.0.0.1", "port": 5201}));
        assert_eq!(document["intervals"][0]["sum"]["omitted"], true);
        let both = written(Direction::Both);
        assert!(both["end"]["sum_sent_bidir_reverse"]["bytes"].is_u64());
    }

    #[test]
    fn a_run_of_requests_has_no_such_shape() {
        assert_eq!(write(&run_of(&Histogram::new()), 0), None);
    }

    fn written(direction: Direction) -> Value {
        let mut run = run_of(&Histogram::new());
        run.target = "tcp://127.0.0.1:5201".into();
        run.throughput = Some(throughput(direction));
        serde_json::from_str(&write(&run, 1_700_000_000).unwrap()).unwrap()
    }

    fn throughput(direction: Direction) -> Throughput {
        let sides: &[bool] = match direction {
            Direction::Send => &[true],
            Direction::Receive => &[false],
            Direction::Both => &[true, false],
        };
        let flow = Flow::new(1_000_003, 1.37);
        let sample = |sends| StreamSample { stream: 1, sends, flow, ..StreamSample::default() };
        let interval = |start_s, omitted| Interval {
            start_s,
            end_s: start_s + 1.37,
            omitted,
            streams: sides.iter().map(|sends| sample(*sends)).collect(),
        };
        let of = |wanted| sides.contains(&wanted).then_some(flow);
        Throughput {
            direction,
            write_bytes: 131_072,
            sent: of(true),
            received: of(false),
            streams: sides.iter().map(|sends| total(*sends, flow)).collect(),
            intervals: vec![interval(0.0, true), interval(1.37, false)],
        }
    }

    fn total(sends: bool, flow: Flow) -> StreamTotal {
        StreamTotal {
            stream: 1,
            sends,
            local: "127.0.0.1:40000".into(),
            remote: "127.0.0.1:5201".into(),
            congestion_control: "cubic".into(),
            flow,
            retransmits: 2,
            max_cwnd_bytes: 100_000,
            rtt_us: RttRange { min: 10, mean: 20.4, max: 30 },
            peer: Some(PeerTotal { flow, cpu_us: 1e5 }),
        }
    }

    fn each_object(value: &Value, see: &mut impl FnMut(&Map<String, Value>)) {
        match value {
            Value::Object(object) => {
                see(object);
                object.values().for_each(|value| each_object(value, see));
            }
            Value::Array(values) => values.iter().for_each(|value| each_object(value, see)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}
