//! A joined network that changes what it states as fast as it can.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tollway_control::AdminClient;
use tollway_tests::mesh::PATIENCE;
use tollway_tests::mesh::http::runtime;
use tollway_tests::network::authority_of;

use super::evil_peer::{Evil, Script};
use super::world::{Scene, World};
use super::{Attack, Extent, Found};

pub(crate) const ATTACKS: [Attack; 2] = [
    Attack::new("roots that flip", "joined network", |world, extent| {
        change(world, extent, Script::Roots)
    })
    .in_scene(Scene::Joined),
    Attack::new("services that flap", "joined network", |world, extent| {
        change(world, extent, Script::Services)
    })
    .in_scene(Scene::Joined),
];

fn change(world: &mut World, extent: &Extent, script: Script) -> Found {
    let (west, east) = (&world.west, world.east.as_mut().unwrap());
    east.control.kill().unwrap();
    let authorities = [(&*east, "east"), (west, "west")]
        .map(|(network, name)| authority_of(&network.store().join("tollway.store"), name));
    let runtime = runtime();
    let evil = Evil::start(east.control_address, &authorities[0], &authorities[1], script);
    let evil = runtime.block_on(evil);
    let begun = Instant::now();
    while evil.opened.load(Ordering::SeqCst) == 0 {
        assert!(begun.elapsed() < PATIENCE, "west does not follow");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (lines_before, changes_before) = (lines(world), runtime.block_on(revision(world)));
    let (began, sent_before) = (Instant::now(), evil.taken.load(Ordering::SeqCst));
    std::thread::sleep(extent.time);
    let seconds = began.elapsed().as_secs_f64();
    let sent = evil.taken.load(Ordering::SeqCst) - sent_before;
    let lines = lines(world) - lines_before;
    let changes = runtime.block_on(revision(world)) - changes_before;
    let what = match script {
        Script::Roots => "a second root comes and goes",
        Script::Services => "the replicas of 1,000 services change",
    };
    // Those of newcomers among them.
    let most = 25.0 * seconds;
    let got = format!(
        "{changes} changes of the store in {seconds:.0} s, {lines} lines in the logs of two sidecars"
    );
    let mut found = Found::new(format!("{what}, {sent} times, as fast as it is read"), got)
        .promise((changes as f64) < most, format!("{changes} changes of the store"))
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

/// Lines in the logs of the honest sidecars, at the usual levels.
fn lines(world: &World) -> usize {
    let logs = [world.web.process.log(), world.stock.process.log()];
    logs.iter().flat_map(|log| log.lines()).filter(|line| !line.contains(" DEBUG ")).count()
}
