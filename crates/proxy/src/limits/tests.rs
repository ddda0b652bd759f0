//! `docs/limits.md` has every limit with its default. A new field does not compile before it is
//! named here, and does not pass before it is written there.

use tollway_testkit::{check_limit, grouped};

use super::*;

const PAGE: &str = include_str!("../../../../docs/limits.md");

#[track_caller]
fn check(name: &str, default: &str) {
    check_limit(PAGE, name, default);
}

fn count(name: &str, default: usize) {
    check(name, &grouped(default as u64));
}

fn rate(name: &str, rate: h2::Rate) {
    let (burst, more) = (grouped(rate.burst.into()), grouped(rate.per_second.into()));
    check(name, &format!("{burst}, then {more} a second"));
}

/// A time of whole seconds stands there as such, any other in milliseconds.
fn check_time(name: &str, time: Duration) {
    let text = match time.subsec_millis() {
        0 => format!("{} s", time.as_secs()),
        _ => format!("{} ms", time.as_millis()),
    };
    check(name, &text);
}

#[test]
fn limits_of_a_thread_are_documented() {
    let Limits {
        h1: _,
        h2: _,
        connections,
        exchanges,
        waiting_per_service,
        services,
        app_connections,
        app_http2_connections,
        app_resets,
        runtime_resets,
        out_bytes,
        unread_bytes,
        bulk_bytes,
        bulk_connections,
        mesh_connections,
        pipe_bytes,
        replay_bytes,
        buffered_bytes,
        hops,
        informational,
        client_hello_bytes,
    } = Limits::default();
    for (name, default) in [
        ("connections", connections),
        ("exchanges", exchanges),
        ("waiting_per_service", waiting_per_service),
        ("services", services),
        ("app_connections", app_connections),
        ("app_http2_connections", app_http2_connections),
        ("app_resets", app_resets),
        ("runtime_resets", runtime_resets),
        ("out_bytes", out_bytes),
        ("unread_bytes", unread_bytes),
        ("bulk_bytes", bulk_bytes),
        ("bulk_connections", bulk_connections),
        ("mesh_connections", mesh_connections),
        ("pipe_bytes", pipe_bytes),
        ("replay_bytes", replay_bytes),
        ("buffered_bytes", buffered_bytes),
        ("hops", hops),
        ("informational", informational.into()),
        ("client_hello_bytes", client_hello_bytes),
    ] {
        count(name, default);
    }
}

#[test]
fn limits_of_a_message_are_documented() {
    let h1::Limits {
        head_bytes,
        fields,
        target_bytes,
        chunk_line_bytes,
        chunk_extension_total_bytes,
        trailer_bytes,
        trailer_fields,
    } = Limits::default().h1;
    for (name, default) in [
        ("head_bytes", head_bytes),
        ("fields", fields),
        ("target_bytes", target_bytes),
        ("chunk_line_bytes", chunk_line_bytes),
        ("chunk_extension_total_bytes", chunk_extension_total_bytes),
        ("trailer_bytes", trailer_bytes),
        ("trailer_fields", trailer_fields),
    ] {
        count(name, default);
    }
}

#[test]
fn limits_of_an_http2_connection_are_documented() {
    let h2::Config {
        initial_stream_window,
        connection_window,
        max_frame,
        max_concurrent_streams,
        streams_before_settings: _,
        header_list_bytes,
        header_fields,
        header_table_bytes,
        enable_connect_protocol: _,
        limits,
    } = Limits::default().h2;
    for (name, default) in [
        ("initial_stream_window", initial_stream_window),
        ("connection_window", connection_window),
        ("max_frame", max_frame),
        ("max_concurrent_streams", max_concurrent_streams),
        ("header_list_bytes", header_list_bytes),
        ("header_table_bytes", header_table_bytes),
    ] {
        count(name, default as usize);
    }
    count("header_fields", header_fields);
    let h2::Limits {
        resets,
        control_frames,
        window_updates,
        empty_data,
        continuation_frames,
        live_head_bytes,
        queued_replies,
        unfinished_timeout,
        settings_timeout,
    } = limits;
    rate("resets", resets);
    rate("control_frames", control_frames);
    rate("window_updates", window_updates);
    rate("empty_data", empty_data);
    count("continuation_frames", continuation_frames as usize);
    count("live_head_bytes", live_head_bytes);
    count("queued_replies", queued_replies as usize);
    check_time("unfinished_timeout", unfinished_timeout);
    check_time("settings_timeout", settings_timeout);
}

#[test]
fn times_that_a_peer_meets_are_documented() {
    let Timeouts {
        connect,
        handshake,
        head,
        request,
        stream_idle,
        downstream_idle,
        app_idle,
        mesh_idle,
        ping_after,
        ping_answer,
        silence,
        bulk_pause,
        linger,
        linger_longest,
        drain,
        withdraw,
        discovery,
        service_idle,
        dial_backoff,
        far,
    } = Timeouts::default();
    for (name, time) in [
        ("connect", connect),
        ("handshake", handshake),
        ("head", head),
        ("request", request),
        ("stream_idle", stream_idle),
        ("downstream_idle", downstream_idle),
        ("app_idle", app_idle),
        ("mesh_idle", mesh_idle),
        ("ping_after", ping_after),
        ("ping_answer", ping_answer),
        ("silence", silence),
        ("bulk_pause", bulk_pause),
        ("linger", linger),
        ("linger_longest", linger_longest),
        ("drain", drain),
        ("withdraw", withdraw),
        ("discovery", discovery),
        ("service_idle", service_idle),
        ("dial_backoff", dial_backoff),
        ("far", far),
    ] {
        check_time(name, time);
    }
}

#[test]
fn limits_that_can_be_set_are_documented_with_their_range() {
    let rows: Vec<String> = NAMED_LIMITS
        .iter()
        .map(|NamedLimit { name, range: (least, most), .. }| {
            format!("| `{name}` | {} | {} |", grouped(*least), grouped(*most))
        })
        .collect();
    let (_, table) = PAGE.split_once("| name | least | most |\n|---|---|---|\n").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    assert_eq!(table, rows.join("\n"));
}
