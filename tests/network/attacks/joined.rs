//! A joined network that changes what it states as fast as it can, or is after requests for which it was
//! not named.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tollway_control::AdminClient;
use tollway_testkit::retry_until;
use tollway_tests::is_former;
use tollway_tests::line_service::LineService;
use tollway_tests::mesh::http::{get, runtime};
use tollway_tests::mesh::{AppProtocol, PATIENCE};
use tollway_tests::network::authority_of;

use super::evil_peer::{Evil, Script};
use super::gateway::send_lines;
use super::world::{Scene, World};
use super::{Attack, Extent, Found};

pub(crate) const ATTACKS: [Attack; 4] = [
    Attack::new("roots that flip", "joined network", |world, extent| {
        change(world, extent, Script::Roots)
    })
    .in_scene(Scene::Joined),
    Attack::new("services that flap", "joined network", |world, extent| {
        change(world, extent, Script::Services)
    })
    .in_scene(Scene::Joined),
    Attack::new("requests for any network", "joined network", unnamed).in_scene(Scene::Joined),
    Attack::new("a revoked identity", "thief of a key", revoked).in_scene(Scene::Joined),
];

/// How soon a revoked identity counts nowhere.
const REVOKED_WITHIN: Duration = Duration::from_secs(2);

/// Services that east serves, too, and what west's operator has named for each: its own network, which
/// has `stock` and has no `vault`, and none.
const IN_ANY: [&str; 3] = ["stock", "vault", "hoard"];

fn change(world: &mut World, extent: &Extent, script: Script) -> Found {
    let (west, east) = (&world.west, world.east.as_mut().unwrap());
    east.control.kill().unwrap();
    let authorities = [(&*east, "east"), (west, "west")]
        .map(|(network, name)| authority_of(&network.store().join("tollway.store"), name));
    let (runtime, east_control) = (runtime(), east.control_address);
    // Newcomers change the store, too, about as often each second as before the attack.
    let (calm_from, calm_since) = (runtime.block_on(revision(world)), Instant::now());
    std::thread::sleep(extent.time / 2);
    let calm = runtime.block_on(revision(world)) - calm_from;
    let calm = calm as f64 / calm_since.elapsed().as_secs_f64();
    let evil = Evil::start(east_control, &authorities[0], &authorities[1], script);
    let evil = runtime.block_on(evil);
    let begun = Instant::now();
    while evil.opened.load(Ordering::SeqCst) == 0 {
        assert!(begun.elapsed() < PATIENCE, "west does not follow");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (lines_before, changes_before) = (lines(world), runtime.block_on(revision(world)));
    let (began, sent_before) = (Instant::now(), evil.taken.load(Ordering::SeqCst));
    let applied = runtime.block_on(applied(world, extent.time));
    let seconds = began.elapsed().as_secs_f64();
    let sent = evil.taken.load(Ordering::SeqCst) - sent_before;
    let lines = lines(world) - lines_before;
    let changes = runtime.block_on(revision(world)) - changes_before;
    let what = match script {
        Script::Roots => "a second root comes and goes",
        Script::Services => "the replicas of 1,000 services change",
    };
    let changes = match script {
        Script::Roots => (changes as f64 - calm * seconds).max(0.0),
        // Each of them leaves its mark.
        Script::Services => applied as f64,
    };
    // They are gathered for 200 ms.
    let most = 10.0 * seconds;
    let got = format!(
        "{changes:.0} changes of the store in {seconds:.0} s, {lines} lines in the logs of two sidecars"
    );
    let mut found = Found::new(format!("{what}, {sent} times, as fast as it is read"), got)
        .promise(changes < most, format!("{changes:.0} changes of the store"))
        .promise(lines <= 12, format!("{lines} lines in logs"))
        .holding((runtime, evil));
    found.cores = Some(0.3);
    found
}

/// How often what the control plane stores has changed.
async fn revision(world: &World) -> u64 {
    let mut admin = AdminClient::connect(&world.west.store()).await.unwrap();
    admin.services().await.unwrap().revision
}

/// How often something of the joined network is stored within this time, with another revision of it.
async fn applied(world: &World, within: Duration) -> usize {
    let mut admin = AdminClient::connect(&world.west.store()).await.unwrap();
    let (began, mut seen) = (Instant::now(), BTreeSet::new());
    while began.elapsed() < within {
        seen.extend(admin.joins().await.unwrap().iter().map(|join| join.revision));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    seen.len()
}

/// Lines in the logs of the honest sidecars, at the usual levels.
fn lines(world: &World) -> usize {
    let logs = [world.web.process.log(), world.stock.process.log()];
    logs.iter().flat_map(|log| log.lines()).filter(|line| !line.contains(" DEBUG ")).count()
}

fn failover(service: &str, network: &str) -> String {
    format!(
        "apiVersion: tollway.dev/v1\nkind: Failover\nmetadata: {{name: {service}}}\n\
         spec: {{service: {service}, networks: [{{network: {network}}}]}}\n"
    )
}

/// East registers what west calls in any network, names itself for it, and has a gateway of west among
/// its own; west's operator has named west alone. All replicas of east are one trap, which counts what
/// comes.
fn unnamed(world: &mut World, extent: &Extent) -> Found {
    if is_former() {
        return Found::new("nothing", "no service has a name in several networks");
    }
    let (west, east) = (&world.west, world.east.as_ref().unwrap());
    let trap = LineService::start();
    let app = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, at) = (app.local_addr().unwrap().port().to_string(), trap.address.to_string());
    let replicas = IN_ANY.map(|app| east.sidecar(app, &["--app-port", &port, "--advertise", &at]));
    let stated = east.another_gateway(&["--advertise", &world.gateway().to_string()]);
    for service in ["stock", "vault"] {
        west.apply(&failover(service, "west"));
    }
    for service in IN_ANY {
        east.apply(&failover(service, "east"));
    }
    // West has all of it, and a caller that names east gets there.
    let caller = west.caller(&[]);
    for service in IN_ANY {
        let before = trap.taken();
        let path = format!("/v1.0/invoke/{service}.default.east/method/echo");
        let is_there = || {
            get(caller.http(), &path);
            (trap.taken() > before).then_some(())
        };
        retry_until(PATIENCE, "the trap", is_there).unwrap();
    }
    drop(caller);

    let call = |service: &str| {
        get(world.web.http(), &format!("/v1.0/invoke/{service}.default.any/method/echo"))
    };
    let before = trap.taken();
    let (began, mut answers) = (Instant::now(), BTreeMap::<_, usize>::new());
    let names = ["stock.default.any.mesh", "any.mesh", "gateway.any.mesh"];
    let (hellos, answered) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| send_lines(world.gateway(), &names, extent.time));
        while began.elapsed() < extent.time {
            for service in IN_ANY {
                *answers.entry((service, word_of(&call(service)))).or_default() += 1;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        sending.join().unwrap()
    });
    let taken = trap.taken() - before;
    let calls: usize = answers.values().sum();
    let shown: Vec<String> = answers
        .iter()
        .map(|((service, word), count)| format!("{count} {service} {word}"))
        .collect();
    let expected = [("stock", "200"), ("vault", "ERR_NO_NETWORK"), ("hoard", "ERR_NO_FAILOVER")];
    let is_as_named = answers.keys().all(|(service, word)| expected.contains(&(*service, word)));
    // The same calls reach the trap as soon as the operator names east.
    west.apply(&failover("vault", "east"));
    let is_caught = || {
        call("vault");
        (trap.taken() > before + taken).then_some(())
    };
    let is_caught = retry_until(PATIENCE, "the trap, named", is_caught).is_ok();
    let sent = format!("{calls} calls in any network beside {hellos} ClientHellos in its name");
    Found::new(sent, format!("{}; {taken} connections reach it", shown.join(", ")))
        .promise(taken == 0, format!("{taken} connections reach a network that is not named"))
        .promise(answered == 0, "a stranger is answered under a name in any network")
        .promise(is_as_named, format!("answers that the operator did not name: {answers:?}"))
        .promise(is_caught, "a network that is named gets nothing, so this shows nothing")
        .holding((replicas, stated, app))
}

/// The error code of an answer, or its status.
fn word_of(answer: &str) -> String {
    let is_of_code = |c: char| c.is_ascii_uppercase() || c == '_';
    let code = answer.find("ERR_").map(|at| &answer[at..]);
    let code = code.map(|code| &code[..code.find(|c| !is_of_code(c)).unwrap_or(code.len())]);
    code.or_else(|| answer.split_whitespace().nth(1)).unwrap_or_default().to_owned()
}

/// A thief of the key of `web` calls in its own network and in a joined one without a pause, by a sidecar
/// for each, and over a line that stands. The operator revokes the identity again and again.
fn revoked(world: &mut World, extent: &Extent) -> Found {
    if is_former() {
        return Found::new("nothing", "an identity could not be revoked");
    }
    let (west, east) = (&world.west, world.east.as_ref().unwrap());
    let _far = east.app("far", "f", AppProtocol::Http);
    let _lines = west.app("lines", "l", AppProtocol::Tcp);
    let thief = west.sidecar("thief", &["--upstream", "0=lines.default"]);
    let services = ["stock.default", "far.default.east"];
    let is_answered = |service: &str| {
        let answer = get(thief.http(), &format!("/v1.0/invoke/{service}/method/echo"));
        answer.starts_with("HTTP/1.1 200")
    };
    let (began, mut rounds, mut calls) = (Instant::now(), 0, 0_u64);
    let mut longest = [Duration::ZERO; 3];
    let mut is_ended = true;
    while rounds == 0 || began.elapsed() < extent.time {
        services.iter().for_each(|service| thief.until_served(service));
        let mut line = TcpStream::connect(thief.upstream("lines.default")).unwrap();
        line.set_read_timeout(Some(PATIENCE)).unwrap();
        line.write_all(b"x").unwrap();
        assert_eq!(line.read(&mut [0; 1]).unwrap(), 1, "the line stands");
        let revoked = Instant::now();
        west.done(&["identity", "revoke", "thief"], "");
        let (ended, took) = std::thread::scope(|scope| {
            let reading = scope.spawn(|| (line.read(&mut [0; 1]), revoked.elapsed()));
            let mut last = [Duration::ZERO; 2];
            // Each is called until it has refused for as long as is promised.
            while last.iter().any(|last| revoked.elapsed() < *last + REVOKED_WITHIN) {
                for (service, last) in services.iter().zip(&mut last) {
                    calls += 1;
                    if is_answered(service) {
                        *last = revoked.elapsed();
                    }
                }
                if revoked.elapsed() > PATIENCE {
                    break;
                }
            }
            let (read, at) = reading.join().unwrap();
            is_ended &= matches!(read, Ok(0) | Err(_)) && at < PATIENCE;
            (at, last)
        });
        for (longest, took) in longest.iter_mut().zip(took.into_iter().chain([ended])) {
            *longest = took.max(*longest);
        }
        west.done(&["identity", "restore", "thief"], "");
        rounds += 1;
    }
    let [own, joined, line] = longest.map(|of| of.as_millis());
    let got = format!(
        "at the latest {own} ms after the command it calls nothing in its network, {joined} ms in the \
         joined one; after {line} ms its line has ended"
    );
    let slowest = longest.into_iter().max().unwrap_or_default();
    Found::new(format!("{calls} calls of two networks and a line, revoked {rounds} times"), got)
        .promise(is_ended, "its line stands")
        .promise(slowest <= REVOKED_WITHIN, format!("it counts for {} ms", slowest.as_millis()))
}
