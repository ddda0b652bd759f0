//! Which requests go wrong on purpose.

use std::time::Duration;

use tollway_model::route::WHOLE_SHARE;
use tollway_model::traffic_policy::{AbortFault, Fault};
use tollway_model::{Caller, Label, NetworkName};

/// What goes wrong with one request: it is delayed, then it is answered with an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mishap {
    pub delay: Option<Duration>,
    pub abort: Option<AbortFault>,
}

/// The first of several faults that is for a caller, by a policy of `namespace` in `network`.
#[must_use]
pub fn fault_of<'a>(
    faults: &'a [Fault],
    caller: Caller<'_>,
    namespace: &Label,
    network: &NetworkName,
) -> Option<&'a Fault> {
    faults.iter().find(|fault| {
        let is_meant =
            |from: &tollway_model::CallerPattern| from.matches(caller, namespace, network);
        fault.from.is_empty() || fault.from.iter().any(is_meant)
    })
}

/// What goes wrong with a request. `random` gives a uniform number for each part of the fault: whether
/// a request is aborted does not depend on whether it is delayed.
#[must_use]
pub fn mishap(fault: &Fault, mut random: impl FnMut() -> u64) -> Mishap {
    let mut is_drawn = |share: u32| {
        let drawn = (u128::from(random()) * u128::from(WHOLE_SHARE)) >> 64;
        drawn < u128::from(share)
    };
    let delay = fault.delay.filter(|delay| is_drawn(delay.share)).map(|delay| delay.time);
    let abort = fault.abort.filter(|abort| is_drawn(abort.share));
    Mishap { delay, abort }
}

#[cfg(test)]
mod tests {
    use tollway_model::traffic_policy::DelayFault;
    use tollway_model::{SpiffeId, TrustDomain};

    use super::*;

    fn fault(from: &[&str], delayed: u32, aborted: u32) -> Fault {
        let from = from.iter().map(|caller| caller.parse().unwrap()).collect();
        let delay = Some(DelayFault { time: Duration::from_secs(1), share: delayed });
        let abort = Some(AbortFault { status: 503, grpc_status: 14, share: aborted });
        Fault { from, delay, abort }
    }

    /// Of 100,000 requests, those that are delayed, aborted, and both.
    fn count(fault: &Fault) -> [u32; 3] {
        let mut random = 0_u64;
        let mut counts = [0; 3];
        for _ in 0..100_000 {
            let Mishap { delay, abort } = mishap(fault, || {
                random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                mixed ^ (mixed >> 27)
            });
            counts[0] += u32::from(delay.is_some());
            counts[1] += u32::from(abort.is_some());
            counts[2] += u32::from(delay.is_some() && abort.is_some());
        }
        counts
    }

    #[test]
    fn shares_are_kept_and_do_not_depend_on_each_other() {
        let [delayed, aborted, both] = count(&fault(&[], WHOLE_SHARE / 10, WHOLE_SHARE / 2));
        assert!(delayed.abs_diff(10_000) < 500, "{delayed}");
        assert!(aborted.abs_diff(50_000) < 1_000, "{aborted}");
        assert!(both.abs_diff(5_000) < 500, "{both}");
        assert_eq!(count(&fault(&[], 0, WHOLE_SHARE)), [0, 100_000, 0]);
        assert_eq!(count(&Fault { abort: None, ..fault(&[], WHOLE_SHARE, 1) }), [100_000, 0, 0]);
    }

    #[test]
    fn the_first_fault_that_is_for_a_caller_holds() {
        let label = |text: &str| Label::new(text).unwrap();
        let faults = [fault(&["web", "*.b"], 1, 1), fault(&["web"], 2, 2), fault(&["job"], 3, 3)];
        let of = |app: &str, namespace: &str, faults: &[Fault]| {
            let spiffe = SpiffeId {
                trust_domain: TrustDomain::default_for(&label("west")),
                namespace: label(namespace),
                app: label(app),
            };
            let caller = Caller { spiffe: &spiffe, network: &label("west") };
            let found = fault_of(faults, caller, &label("shop"), &label("west"));
            found.and_then(|fault| fault.delay).map(|delay| delay.share)
        };
        assert_eq!(of("web", "shop", &faults), Some(1));
        assert_eq!(of("any", "b", &faults), Some(1));
        assert_eq!(of("job", "shop", &faults), Some(3));
        assert_eq!(of("job", "other", &faults), None);
        assert_eq!(of("job", "other", &[fault(&[], 9, 9)]), Some(9));
    }
}
