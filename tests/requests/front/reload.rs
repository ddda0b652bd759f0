//! Files that change while clients come and go: only the new certificate shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::Signal;
use tollway_testkit::retry_until;

use crate::front::world::{HOST, Https, PATIENCE, REVISION, World, get, until_revision};
use tollway_tests::pki::write;
use tollway_tests::scripted_app::Script;

const CHANGES: u64 = 6;

#[test]
fn certificates_change_under_load_without_a_failed_request() {
    let world = World::start(Script::new(), &[]);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Two that keep their connection, two that make one for each request.
        for keeps in [true, true, false, false] {
            let (world, stop, done) = (&world, &stop, &done);
            scope.spawn(move || {
                let config = Arc::new(world.files.client());
                let connect =
                    || Https::connect(world.address(), HOST, Arc::clone(&config)).unwrap();
                let mut client = connect();
                while !stop.load(Ordering::Relaxed) {
                    let answer = client.ask(&get("/load")).unwrap();
                    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
                    done.fetch_add(1, Ordering::Relaxed);
                    if !keeps {
                        client = connect();
                    }
                }
            });
        }
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for change in 1..=CHANGES {
                check_change(&world, change);
            }
        }));
        stop.store(true, Ordering::Relaxed);
        changed.unwrap();
    });
    assert!(done.into_inner() > 10 * CHANGES);
    assert_eq!(world.metric("tollway_front_certificate_changes_refused_total"), 0);
}

/// A new certificate is written, found by polling or SIGHUP, and presented.
fn check_change(world: &World, change: u64) {
    let pair = world.files.authority.server(&[HOST]);
    // In between, for a moment: a key and a certificate of different pairs.
    pair.write(world.files.folder(), "a");
    if change.is_multiple_of(2) {
        world.front.signal(Signal::HUP).unwrap();
    }
    let config = Arc::new(world.files.client());
    let shows_it = || {
        let client = Https::connect(world.address(), HOST, Arc::clone(&config)).unwrap();
        (client.shown() == pair.der()).then_some(())
    };
    retry_until(PATIENCE, "the new certificate", shows_it).unwrap();
}

#[test]
fn files_that_cannot_be_served_change_nothing() {
    let world = World::start(Script::new(), &[]);
    let refused = || world.metric("tollway_front_certificate_changes_refused_total");
    let until = |count| {
        let is_refused = || (refused() == count).then_some(());
        retry_until(PATIENCE, "the refusal", is_refused).unwrap();
    };
    write(world.files.folder(), "a.key", "nonsense");
    until(1);
    // Each signal gets an answer in the log.
    world.front.signal(Signal::HUP).unwrap();
    until(2);
    let log = world.front.log();
    assert!(log.contains("certificates refused, the old ones stay: cannot serve"), "{log}");
    assert!(log.contains("ERR_CERTIFICATE_UNUSABLE") && log.contains("no private key"), "{log}");
    let client = world.files.connect(&world.front);
    assert_eq!(client.shown(), world.files.pair.der());
    assert_eq!(world.metric(REVISION), 1);
    // Put right, it is served without a word.
    world.files.authority.server(&[HOST]).write(world.files.folder(), "a");
    until_revision(&world.front, 2);
}
