use proptest::prelude::*;

use super::*;

/// The number of seconds since 1970 at which the instance enrolled.
pub(in crate::instance_keys) const ENROLLED: u64 = 1_000;
pub(in crate::instance_keys) const ENDS: u64 = 2_000;
/// When all keys are used, and shown.
pub(in crate::instance_keys) const NOW: u64 = 1_500;
/// How long a request may have been under way.
pub(in crate::instance_keys) const LATE: u64 = 60;

pub(in crate::instance_keys) fn key(number: u8) -> [u8; 32] {
    [number; 32]
}

/// A key of a certificate that was renewed long after the instance enrolled.
pub(in crate::instance_keys) fn shown(key: &[u8; 32]) -> Shown<'_> {
    Shown { key, issued_at_unix_s: ENROLLED + 100, has_ended: false, now_unix_s: NOW }
}

pub(in crate::instance_keys) fn enrolled() -> Keys {
    Keys::enrolled(&key(0), ENROLLED, ENDS)
}

pub(in crate::instance_keys) fn renewed(keys: Keys, from: u8, to: u8) -> Keys {
    Keys::renewed(Some(keys), &key(from), &key(to), NOW - LATE, ENDS)
}

#[test]
fn a_key_renews_until_its_successor_is_used_once() {
    let mut keys = renewed(enrolled(), 0, 1);
    assert_eq!(decide_renewal(Some(&keys), shown(&key(0)), LATE), Ok(()), "the answer was lost");
    assert_eq!(decide_renewal(Some(&keys), shown(&key(1)), LATE), Ok(()));
    assert!(keys.use_once(&key(1), NOW - LATE));
    assert!(!keys.use_once(&key(1), NOW - LATE), "only the first use is news");
    assert_eq!(decide_renewal(Some(&keys), shown(&key(1)), LATE), Ok(()));
    assert_eq!(decide_renewal(Some(&keys), shown(&key(0)), LATE), Err(KeyRefusal::Reused));
}

#[test]
fn a_renewal_is_a_use_of_its_key() {
    let keys = renewed(renewed(enrolled(), 0, 1), 1, 2);
    assert_eq!(decide_renewal(Some(&keys), shown(&key(0)), LATE), Err(KeyRefusal::Reused));
    assert_eq!(decide_renewal(Some(&keys), shown(&key(1)), LATE), Ok(()));
}

/// The harm: the request of an attempt that was given up arrives when the next one has succeeded, and
/// looks like a thief's.
#[test]
fn a_request_that_was_under_way_shows_no_second_holder() {
    let mut keys = renewed(enrolled(), 0, 1);
    keys.use_once(&key(1), NOW);
    for (since, refusal) in [(LATE - 1, KeyRefusal::Late), (LATE, KeyRefusal::Reused)] {
        let shown = Shown { now_unix_s: NOW + since, ..shown(&[0; 32]) };
        assert_eq!(decide_renewal(Some(&keys), shown, LATE), Err(refusal));
    }
}

#[test]
fn a_barred_instance_renews_with_no_key_until_it_enrols() {
    let barred = Keys { is_barred: true, ..renewed(enrolled(), 0, 1) };
    for number in [0, 1, 2] {
        assert_eq!(
            decide_renewal(Some(&barred), shown(&key(number)), LATE),
            Err(KeyRefusal::Barred)
        );
    }
    assert_eq!(decide_renewal(Some(&enrolled()), shown(&key(0)), LATE), Ok(()));
}

fn of_pod(keys: Keys, uid: &str) -> Keys {
    let pod = EnrolledPod { uid: uid.to_owned(), ..EnrolledPod::default() };
    keys.of_pod(Some(pod))
}

#[test]
fn no_key_of_a_pod_that_has_ended_renews_or_registers() {
    let mut keys = renewed(of_pod(enrolled(), "u-1"), 0, 1);
    assert!(!keys.end_pod("u-2"), "another one has ended");
    assert_eq!(decide_registration(Some(&keys), &key(0), ENROLLED), Ok(()));
    assert!(keys.end_pod("u-1"));
    assert!(!keys.end_pod("u-1"), "only the first time is news");
    for number in [0, 1, 9] {
        let key = key(number);
        assert_eq!(decide_renewal(Some(&keys), shown(&key), LATE), Err(KeyRefusal::PodEnded));
        let refused = decide_registration(Some(&keys), &key, ENROLLED + 100);
        assert_eq!(refused, Err(KeyRefusal::PodEnded));
    }
    let keys = of_pod(Keys::enrolled(&key(2), NOW, ENDS), "u-2");
    assert_eq!(decide_registration(Some(&keys), &key(2), NOW), Ok(()), "another pod enrols");
}

#[test]
fn a_pod_registers_with_every_key_of_its_own_and_none_of_an_earlier_pod() {
    let mut keys = renewed(of_pod(enrolled(), "u-2"), 0, 1);
    let register = |keys: &Keys, number, issued| {
        decide_registration(Some(keys), &key(number), ENROLLED + issued)
    };
    assert_eq!(register(&keys, 0, 0), Ok(()));
    assert_eq!(register(&keys, 1, 100), Ok(()));
    keys.use_once(&key(1), NOW);
    // A stream that stands since before the renewal.
    assert_eq!(register(&keys, 0, 0), Ok(()));
    assert_eq!(register(&keys, 5, 100), Ok(()));
    assert_eq!(register(&keys, 9, 0), Err(KeyRefusal::Replaced));
    // Instances of join tokens are not pods.
    assert_eq!(decide_registration(Some(&enrolled()), &key(9), 0), Ok(()));
    assert_eq!(decide_registration(None, &key(9), 0), Ok(()));
}

#[test]
fn a_key_from_before_an_enrolment_is_refused_and_shows_no_theft() {
    let keys = renewed(renewed(enrolled(), 0, 1), 1, 2);
    let first = Shown { issued_at_unix_s: ENROLLED, ..shown(&[0; 32]) };
    assert_eq!(decide_renewal(Some(&keys), first, LATE), Err(KeyRefusal::Reused));
    let before = Shown { issued_at_unix_s: ENROLLED, ..shown(&[9; 32]) };
    assert_eq!(decide_renewal(Some(&enrolled()), before, LATE), Err(KeyRefusal::Replaced));
}

/// The harm: a certificate shows its issue to the second, so an enrolment a moment later would make
/// its former key look stolen, or hide a theft.
#[test]
fn a_certificate_of_the_second_of_the_enrolment_may_precede_it() {
    for (issued, refusal) in [(1, KeyRefusal::Replaced), (2, KeyRefusal::Reused)] {
        let other = Shown { issued_at_unix_s: ENROLLED + issued, ..shown(&[9; 32]) };
        assert_eq!(decide_renewal(Some(&enrolled()), other, LATE), Err(refusal));
    }
}

#[test]
fn each_refusal_is_counted_under_a_word_of_its_own_and_has_a_code() {
    let words = KeyRefusal::ALL.map(KeyRefusal::word);
    assert_eq!(words, ["forgotten", "replaced", "late", "reused", "barred", "pod-ended"]);
    for (at, refusal) in KeyRefusal::ALL.into_iter().enumerate() {
        assert_eq!(refusal as usize, at, "the place of its count");
        let code = tollway_wire::code_of(&Status::from(refusal));
        assert_eq!(code, Some(ErrorCode::KeyRefused));
    }
}

#[test]
fn without_a_record_a_certificate_renews_while_it_is_valid() {
    let valid = shown(&[7; 32]);
    assert_eq!(decide_renewal(None, valid, LATE), Ok(()));
    let ended = Shown { has_ended: true, ..valid };
    assert_eq!(decide_renewal(None, ended, LATE), Err(KeyRefusal::Forgotten));
    let keys = Keys::renewed(None, &key(7), &key(8), NOW - LATE, ENDS);
    assert!(keys.has(&key(7)) && keys.has(&key(8)));
}

#[test]
fn a_record_lasts_as_long_as_the_longest_certificate() {
    let keys = Keys::renewed(Some(enrolled()), &key(0), &key(1), NOW - LATE, ENDS - 500);
    assert_eq!(keys.ends_at_unix_s, ENDS);
    let keys = Keys::renewed(Some(keys), &key(0), &key(2), NOW - LATE, ENDS + 500);
    assert_eq!(keys.ends_at_unix_s, ENDS + 500);
}

#[test]
fn unused_keys_are_bounded_and_the_one_in_use_stays() {
    let keys = (1..=100).fold(enrolled(), |keys, number| renewed(keys, 0, number));
    assert_eq!(keys.issued.len(), UNUSED_KEYS_LIMIT);
    assert!(keys.has(&key(0)) && keys.has(&key(100)) && !keys.has(&key(1)));
}

proptest! {
    /// The harm: an answer that is lost or late locks an instance out. A process tries up to as many
    /// renewals as are remembered; any of their answers may come, in any order.
    #[test]
    fn a_process_that_uses_what_it_received_last_is_never_locked_out(
        rounds in prop::collection::vec((1_usize..=UNUSED_KEYS_LIMIT, any::<prop::sample::Index>()), 1..20),
    ) {
        let (mut keys, mut held, mut next) = (enrolled(), 0, 1);
        for (attempts, received) in rounds {
            let issued: Vec<u8> = (0..attempts).map(|_| { next += 1; next }).collect();
            for number in &issued {
                prop_assert_eq!(decide_renewal(Some(&keys), shown(&key(held)), LATE), Ok(()));
                keys = renewed(keys, held, *number);
            }
            let former = held;
            held = issued[received.index(issued.len())];
            keys.use_once(&key(held), NOW - LATE);
            prop_assert_eq!(decide_renewal(Some(&keys), shown(&key(held)), LATE), Ok(()));
            prop_assert_eq!(decide_renewal(Some(&keys), shown(&key(former)), LATE), Err(KeyRefusal::Reused));
        }
    }
}
