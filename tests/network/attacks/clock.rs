//! Clocks that jump over the end of all certificates: no attacker, but what a suspended machine, a
//! restored snapshot or a forged NTP answer does.

use std::time::{Duration, Instant, UNIX_EPOCH};

use tollway_testkit::{Process, TempDir, cpu_time, resident_bytes, tool};
use tollway_tests::mesh::http::get;
use tollway_tests::mesh::load::Load;
use tollway_tests::mesh::{Sidecar, start_newest, start_tollway};

use super::world::{Calls, Newcomers};
use super::{Extent, Row};
use crate::restarts::{ANY, Clock, listening, token};

pub(crate) const NAME: &str = "a clock that jumps by 25 hours";
const AHEAD_S: u64 = 90_000;
/// For how long calls may fail.
const OUTAGE: Duration = Duration::from_secs(5);

pub(crate) fn jump(extent: &Extent) -> Result<Row, String> {
    let faketime = tool("faketime").ok_or("faketime is not installed")?;
    let files = TempDir::new().unwrap();
    let clock = Clock::beside(&faketime, &files).ok_or("the library of faketime is not there")?;
    let control = clock
        .on(start_tollway("control"))
        .args(["--network", "east", "--listen", ANY, "--admin-listen", ANY, "--store"])
        .arg(files.path().join("store"))
        .start_listening()
        .unwrap();
    let (address, token) = (control.port("control").unwrap(), token(&files));
    let echo = start_newest("echo").args(["--http", ANY]).start_listening().unwrap();
    let port = echo.port("http").unwrap().port().to_string();
    let sidecar = |app: &str, options: &[&str]| {
        let start = listening(clock.on(start_tollway("sidecar")), app, address);
        let start = start.arg("--token-file").arg(&token).args(options);
        Sidecar { process: start.start_listening().unwrap() }
    };
    let callee = sidecar("echo", &["--app-port", &port]);
    let caller = sidecar("caller", &[]);
    caller.until_served("echo.default.east");
    let ours = [&control, &callee.process, &caller.process];
    let load = |time| {
        let url = format!("http://{}/v1.0/invoke/echo.default.east/method/echo", caller.http());
        Load::http(&url, extent.rate, time)
    };
    let began = (Instant::now(), cpu(&ours));
    let calm = Calls::of(load(extent.time));
    let calm_cores = cores(&ours, began);
    let before_bytes = resident(&ours);
    // Connections go on for a while, and their certificates are looked at now and then.
    let time = extent.time * 3;
    let (began, under) = ((Instant::now(), cpu(&ours)), load(time));
    clock.set(&format!("+{AHEAD_S}"));
    let (jumped, mut failures) = (Instant::now(), None);
    while jumped.elapsed() < time {
        let answer = get(caller.http(), "/v1.0/invoke/echo.default.east/method/healthz");
        if !answer.starts_with("HTTP/1.1 200") {
            let at = jumped.elapsed();
            let (first, _) = failures.unwrap_or((at, at));
            failures = Some((first, at));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let renewed = [&callee, &caller].into_iter().filter(|sidecar| is_renewed(&sidecar.process));
    let renewed = renewed.count();
    let beside = Calls::of(under);
    let cores = cores(&ours, began);
    let after = Calls::of(load(extent.time / 2));
    let mut wrong = Vec::new();
    if failures.is_some_and(|(first, last)| last - first > OUTAGE) {
        wrong.push(format!("calls fail from {:.1?} on, for longer than {OUTAGE:?}", failures));
    }
    if renewed < 2 {
        wrong.push(format!("{} certificates have ended", 2 - renewed));
    }
    if after.lost > 0 {
        wrong.push(format!("{} honest calls were lost after it", after.lost));
    }
    let outage = failures.map_or_else(
        || "no call fails".to_owned(),
        |(first, last)| format!("calls fail for {:.1} s", (last - first).as_secs_f64()),
    );
    let got = format!("{outage}; {renewed} of 2 certificates are renewed");
    Ok(Row {
        attack: NAME,
        attacker: "who sets the clock",
        sent: "the clock of all processes is set 25 hours ahead".to_owned(),
        got,
        attacker_cores: 0.0,
        calm_cores,
        cores,
        before_bytes,
        most_bytes: resident(&ours).max(before_bytes),
        calm,
        beside,
        after,
        newcomers: Newcomers::default(),
        wrong,
    })
}

/// Whether its certificate is valid by its own clock.
fn is_renewed(process: &Process) -> bool {
    let ahead = Duration::from_secs(AHEAD_S) + UNIX_EPOCH.elapsed().unwrap();
    let ends = process.metric("tollway_certificate_expiry_timestamp_seconds");
    ends.is_ok_and(|end| end > ahead.as_secs())
}

pub(crate) fn cpu(processes: &[&Process]) -> Duration {
    processes.iter().map(|process| cpu_time(process.pid()).unwrap()).sum()
}

/// Processors in use since then.
pub(crate) fn cores(processes: &[&Process], (began, before): (Instant, Duration)) -> f64 {
    cpu(processes).saturating_sub(before).as_secs_f64() / began.elapsed().as_secs_f64()
}

pub(crate) fn resident(processes: &[&Process]) -> u64 {
    processes.iter().map(|process| resident_bytes(process.pid()).unwrap()).sum()
}
