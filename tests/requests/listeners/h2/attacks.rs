//! The attacks on HTTP/2 that were ever named, and what a listener owes each of them.

use std::net::SocketAddr;

use super::Honest;
use tollway_tests::h2_attacker::Attack;
use tollway_tests::h2_frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADER_TABLE_SIZE, HEADERS, INITIAL_WINDOW,
    MAX_FRAME_SIZE, NEWEST, PADDED, PING, PRIORITY, SETTINGS, block, frame, indexed_literal, reset,
    setting, window_update,
};
use tollway_tests::network::until_status;

/// A window that one more byte makes too large.
const LARGEST_WINDOW: u32 = 0x7fff_ffff;

/// The least that a peer may allow for a frame, the most, and between them.
const FRAME_SIZES: [u32; 3] = [16_384, 16_777_215, 65_536];

/// A named attack, made for one listener.
pub(crate) struct Named {
    pub(crate) name: &'static str,
    /// What is counted of it, and how many frames each of these has.
    pub(crate) unit: (&'static str, u64),
    /// Whether the listener must end the connection: otherwise there would be work without end.
    pub(crate) is_refused: bool,
    /// What a process may grow by meanwhile, in bytes.
    pub(crate) most_growth: u64,
    pub(crate) attack: Attack,
}

/// Frames without content, or refused before they are held: memory that a process takes for good
/// when it first works hard. One block of a bomb, expanded, is 62 MB.
pub(super) const OF_FRAMES: u64 = 24 << 20;
/// Requests on a connection: what waits of their bodies (`connection_window`, 4 MiB) and heads
/// (`live_head_bytes`, 4 MiB) on both sides of a process, and what it takes for good when it first
/// works hard.
pub(super) const OF_REQUESTS: u64 = 32 << 20;
/// Heads that expand, of requests that are refused: what [`OF_REQUESTS`] has, and less than one block of a
/// bomb.
const OF_HEADS: u64 = 48 << 20;
/// A thousand answers, of each what waits before its source is held back (`pipe_bytes`, 64 KiB) and
/// what one read may add to it.
pub(super) const OF_ANSWERS: u64 = 160 << 20;

impl Named {
    fn grows(self, most_growth: u64) -> Self {
        Self { most_growth, ..self }
    }
}

/// How requests through one listener that are meant for a service begin.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) authority: &'static str,
    /// The prefix of the app's paths.
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

    pub(super) fn get(&self, stream: u32, path: &str) -> Vec<u8> {
        frame(HEADERS, END_HEADERS | END_STREAM, stream, &self.head("GET", path))
    }

    pub(super) fn post(&self, stream: u32, path: &str) -> Vec<u8> {
        frame(HEADERS, END_HEADERS, stream, &self.head("POST", path))
    }
}

pub(crate) fn attacks(to: &Target) -> Vec<Named> {
    [resets(to), heads(to), bodies(to), windows(to), control(to)].into_iter().flatten().collect()
}

/// Streams that are opened only to be given up, by either side.
fn resets(to: &Target) -> Vec<Named> {
    let each = |name, stream: fn(&Target, u32) -> Vec<u8>| {
        let attack = Attack::numbered(Vec::new(), |nth| stream(to, 2 * nth + 1));
        Named { unit: ("resets", 2), ..refused(name, attack) }
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

/// Header blocks that are large, endless, or small with large content.
fn heads(to: &Target) -> Vec<Named> {
    let endless = frame(HEADERS, 0, 1, &to.head("GET", "/size?bytes=1"));
    // The table is filled once; then a block of a few kilobytes expands to megabytes.
    let entry = frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        1,
        &[indexed_literal("x-bomb", &"b".repeat(3900)), to.head("GET", "/size?bytes=1")].concat(),
    );
    let end = END_HEADERS | END_STREAM;
    let bomb = [to.head("GET", "/size?bytes=1"), vec![NEWEST; 16_000]].concat();
    let bombs = Attack::numbered(entry.clone(), |nth| frame(HEADERS, end, 2 * nth + 3, &bomb));
    let crumbs = block(&[("cookie", "a")].repeat(1200));
    let crumbs = [to.head("GET", "/size?bytes=1"), crumbs].concat();
    let crumbs = Attack::numbered(Vec::new(), |nth| frame(HEADERS, end, 2 * nth + 1, &crumbs));
    // Fifteen references each, so that no head alone is too large.
    let small = [to.head("GET", "/size?bytes=100000"), vec![NEWEST; 15]].concat();
    let opening = [entry, frame(SETTINGS, 0, 0, &setting(INITIAL_WINDOW, 0))].concat();
    let small_bombs = Attack::numbered(opening, |nth| frame(HEADERS, end, 2 * nth + 3, &small));
    let without_content = Attack::again(endless.clone(), &frame(CONTINUATION, 0, 1, &[]));
    let without_end = Attack::again(endless, &frame(CONTINUATION, 0, 1, &[0; 16_000]));
    vec![
        refused("CONTINUATION without content", without_content).grows(OF_FRAMES),
        refused("CONTINUATION without end", without_end).grows(OF_FRAMES),
        held("HPACK bomb", bombs).grows(OF_HEADS),
        held("cookie crumbs", crumbs).grows(OF_HEADS),
        held("small HPACK bombs on streams that are held", small_bombs),
    ]
}

/// Bodies of which much is frame and little or nothing is body.
fn bodies(to: &Target) -> Vec<Named> {
    let open = to.post(1, "/echo");
    let padded = [&[250, b'x'][..], &[0; 250]].concat();
    let of = |data: &[u8]| Attack::again(open.clone(), data);
    vec![
        refused("empty DATA", of(&frame(DATA, 0, 1, &[]))),
        refused("one byte of DATA in padding", of(&frame(DATA, PADDED, 1, &padded))),
        held("one byte of DATA in each frame", of(&frame(DATA, 0, 1, b"x"))),
    ]
}

/// Answers that are requested and not read.
fn windows(to: &Target) -> Vec<Named> {
    let shut = frame(SETTINGS, 0, 0, &setting(INITIAL_WINDOW, 0));
    let thousand = |path| (0..1000).flat_map(|nth| to.get(2 * nth + 1, path)).collect::<Vec<_>>();
    let held_shut = [shut.clone(), thousand("/size?bytes=1000000")].concat();
    let opened = [shut, thousand("/size?bytes=100000")].concat();
    let sips: Vec<u8> = (0..1000).flat_map(|nth| window_update(2 * nth + 1, 1)).collect();
    let sips_of_all = Attack::again(Vec::new(), &window_update(0, 1));
    vec![
        held("window 0 on 1,000 streams", Attack::once(held_shut)).grows(OF_ANSWERS),
        // The streams may send all they want, the connection's window is not opened again.
        held("1,000 answers not read", Attack::once(thousand("/size?bytes=1000000")))
            .grows(OF_ANSWERS),
        refused("windows opened by single bytes", Attack::again(opened, &sips)).grows(OF_ANSWERS),
        refused("the connection's window by single bytes", sips_of_all),
    ]
}

/// Frames that do nothing.
fn control(to: &Target) -> Vec<Named> {
    let flood = |name, frame: Vec<u8>| refused(name, Attack::again(Vec::new(), &frame));
    let streams = (0..100).flat_map(|nth| to.post(2 * nth + 1, "/echo")).collect();
    let sizes: Vec<u8> = (0..500)
        .flat_map(|nth| {
            let table = setting(HEADER_TABLE_SIZE, nth % 2 * 4096);
            [table, setting(MAX_FRAME_SIZE, FRAME_SIZES[nth as usize % FRAME_SIZES.len()])].concat()
        })
        .collect();
    let shifts: Vec<u8> = (0..1000).flat_map(|nth| setting(INITIAL_WINDOW, nth % 2)).collect();
    let shifts = Attack::again(streams, &frame(SETTINGS, 0, 0, &shifts));
    vec![
        flood("PING", frame(PING, 0, 0, &[0; 8])).grows(OF_FRAMES),
        flood("SETTINGS", frame(SETTINGS, 0, 0, &[])).grows(OF_FRAMES),
        flood("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 0])).grows(OF_FRAMES),
        flood("unknown frames", frame(0xbe, 0, 0, b"x")).grows(OF_FRAMES),
        flood("table and frame sizes", frame(SETTINGS, 0, 0, &sizes)).grows(OF_FRAMES),
        refused("window sizes of 100 streams", shifts),
    ]
}

fn refused(name: &'static str, attack: Attack) -> Named {
    let (unit, most_growth) = (("frames", 1), OF_REQUESTS);
    Named { name, unit, is_refused: true, most_growth, attack }
}

/// What no rule forbids, and what must be borne within limits.
fn held(name: &'static str, attack: Attack) -> Named {
    Named { is_refused: false, ..refused(name, attack) }
}
