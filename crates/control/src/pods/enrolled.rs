//! Which pods have identities, and which of them have ended, by what a watch of the cluster reports. Pure.
//!
//! Only pods that have enrolled are kept, so memory does not grow with the other pods of a cluster. A pod
//! whose end the watch reports has ended. One that a new list of all pods lacks may have ended, or may have
//! enrolled while the list was made: the cluster is asked for it.

use std::collections::{HashMap, VecDeque};

use tollway_model::{Instance, ServiceName};

use super::{PodEvent, PodId};
use crate::issue::Claim;

/// Pods that are followed; the instances whose keys are remembered are no more.
const PODS_LIMIT: usize = 200_000;
/// Names under which one pod has enrolled: its app by its name and by its UID, and before its annotation changed.
const CLAIMS_LIMIT: usize = 8;
/// Pods of which the watch has reported the end lately: one of them may be in the middle of its enrolment.
const ENDED_LIMIT: usize = 4_096;

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Nothing,
    /// Calls [`EnrolledPods::load`] with what is stored, and notes the event again.
    Load,
    End(Ended),
    /// Has the registrations of a pod that is about to end not be ready any more.
    Leave(Ended),
    /// Asks the cluster for each, and calls [`EnrolledPods::end`] with those that do not run.
    Ask(Vec<PodId>),
}

/// A pod that has ended, and as what it had enrolled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ended {
    pub(super) pod: PodId,
    pub(super) claims: Vec<Claim>,
}

#[derive(Default, Debug)]
pub(super) struct EnrolledPods {
    /// By UID.
    pods: HashMap<String, Enrolled>,
    list: List,
    /// As what pods have enrolled that have begun to terminate, each with the UID of its pod.
    leaving: HashMap<(ServiceName, Instance), String>,
    /// UIDs, the oldest first.
    ended: VecDeque<String>,
}

#[derive(Debug)]
struct Enrolled {
    pod: PodId,
    claims: Vec<Claim>,
    /// The list under way has it.
    is_listed: bool,
    /// It has enrolled since what is stored was asked for.
    is_fresh: bool,
    /// It has begun to terminate.
    is_leaving: bool,
}

/// How far a list of all pods has come.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum List {
    /// None is under way, or nothing of it has come yet.
    #[default]
    Awaited,
    /// What is stored has been read for it.
    Loaded,
}

impl EnrolledPods {
    /// Takes note of a pod that enrols. Returns whether it may: it has not ended meanwhile.
    pub(super) fn enrol(&mut self, pod: PodId, claim: Claim) -> bool {
        if self.ended.contains(&pod.uid) {
            return false;
        }
        let uid = pod.uid.clone();
        let name = (claim.service.clone(), claim.instance.clone());
        if self.leaving.get(&name).is_some_and(|of| *of != uid) {
            self.leaving.remove(&name);
        }
        self.add(pod, claim);
        self.pods.get_mut(&uid).into_iter().for_each(|known| known.is_fresh = true);
        true
    }

    /// Keeps the pods that are stored, and those that have enrolled since [`Step::Load`]. At the limit others
    /// are not followed: their registrations end with their leases.
    pub(super) fn load(&mut self, stored: impl IntoIterator<Item = (PodId, Claim)>) {
        self.pods.retain(|_, known| known.is_fresh);
        self.list = List::Loaded;
        stored.into_iter().for_each(|(pod, claim)| self.add(pod, claim));
    }

    pub(super) fn note(&mut self, event: &PodEvent) -> Step {
        match event {
            PodEvent::ListBegins => {
                self.list = List::Awaited;
                Step::Nothing
            }
            PodEvent::Listed { .. } | PodEvent::ListEnds if self.list == List::Awaited => {
                for known in self.pods.values_mut() {
                    (known.is_listed, known.is_fresh) = (false, false);
                }
                Step::Load
            }
            PodEvent::Listed { uid } => {
                self.pods.get_mut(uid).into_iter().for_each(|known| known.is_listed = true);
                Step::Nothing
            }
            PodEvent::ListEnds => {
                self.list = List::Awaited;
                let missing = self.pods.values().filter(|known| !known.is_listed);
                let missing: Vec<PodId> = missing.map(|known| known.pod.clone()).collect();
                if missing.is_empty() { Step::Nothing } else { Step::Ask(missing) }
            }
            PodEvent::Leaving { uid } => {
                let known = self.pods.get_mut(uid).filter(|known| !known.is_leaving);
                let Some(known) = known else { return Step::Nothing };
                known.is_leaving = true;
                Step::Leave(Ended { pod: known.pod.clone(), claims: known.claims.clone() })
            }
            PodEvent::Ended { uid } => {
                if self.ended.len() >= ENDED_LIMIT {
                    self.ended.pop_front();
                }
                self.ended.push_back(uid.clone());
                self.end(uid).map_or(Step::Nothing, Step::End)
            }
        }
    }

    /// Forgets a pod that has ended. `None` if it has not enrolled.
    pub(super) fn end(&mut self, uid: &str) -> Option<Ended> {
        let Enrolled { pod, claims, .. } = self.pods.remove(uid)?;
        for Claim { service, instance } in &claims {
            let name = (service.clone(), instance.clone());
            if self.leaving.get(&name).is_some_and(|of| of == uid) {
                self.leaving.remove(&name);
            }
        }
        Some(Ended { pod, claims })
    }

    /// The last to enrol as `claim` is this pod, which has begun to terminate.
    pub(super) fn withhold(&mut self, claim: &Claim, uid: &str) {
        if self.pods.contains_key(uid) {
            let Claim { service, instance } = claim.clone();
            self.leaving.insert((service, instance), uid.to_owned());
        }
    }

    /// Whether this instance of a service is in a pod that has begun to terminate.
    pub(super) fn is_leaving(&self, service: &ServiceName, instance: &Instance) -> bool {
        self.leaving.contains_key(&(service.clone(), instance.clone()))
    }

    fn add(&mut self, pod: PodId, claim: Claim) {
        if self.pods.len() >= PODS_LIMIT && !self.pods.contains_key(&pod.uid) {
            return;
        }
        let known = self.pods.entry(pod.uid.clone());
        let known = known.or_insert(Enrolled {
            pod,
            claims: Vec::new(),
            is_listed: false,
            is_fresh: false,
            is_leaving: false,
        });
        if known.claims.len() < CLAIMS_LIMIT && !known.claims.contains(&claim) {
            known.claims.push(claim);
        }
    }
}

#[cfg(test)]
mod tests {
    use tollway_model::Label;

    use super::*;

    fn claim(instance: &str) -> Claim {
        let [app, namespace, network, instance] =
            ["stock", "shop", "west", instance].map(|text| Label::new(text).unwrap());
        Claim { service: ServiceName { app, namespace, network }, instance }
    }

    fn pod(number: usize) -> PodId {
        PodId {
            namespace: "shop".to_owned(),
            name: format!("stock-{number}"),
            uid: format!("u-{number}"),
        }
    }

    fn enrolled(numbers: &[usize]) -> EnrolledPods {
        let mut pods = EnrolledPods::default();
        numbers.iter().for_each(|number| assert!(pods.enrol(pod(*number), claim("a"))));
        pods
    }

    fn ended(number: usize) -> PodEvent {
        PodEvent::Ended { uid: format!("u-{number}") }
    }

    fn leaving(number: usize) -> PodEvent {
        PodEvent::Leaving { uid: format!("u-{number}") }
    }

    fn listed(number: usize) -> PodEvent {
        PodEvent::Listed { uid: format!("u-{number}") }
    }

    #[test]
    fn a_pod_that_ends_ends_once_with_everything_as_which_it_enrolled() {
        let mut pods = enrolled(&[1, 2]);
        assert!(pods.enrol(pod(1), claim("b")));
        assert!(pods.enrol(pod(1), claim("A")), "the same in another case");
        let expected = Ended { pod: pod(1), claims: vec![claim("a"), claim("b")] };
        assert_eq!(pods.note(&ended(1)), Step::End(expected));
        assert_eq!(pods.note(&ended(1)), Step::Nothing);
        assert_eq!(pods.note(&ended(7)), Step::Nothing, "it has never enrolled");
        assert!(matches!(pods.note(&ended(2)), Step::End(_)));
    }

    #[test]
    fn a_pod_that_terminates_leaves_once_and_ends_later() {
        let mut pods = enrolled(&[1]);
        let expected = Ended { pod: pod(1), claims: vec![claim("a")] };
        assert_eq!(pods.note(&leaving(1)), Step::Leave(expected.clone()));
        assert_eq!(pods.note(&leaving(1)), Step::Nothing);
        assert_eq!(pods.note(&leaving(7)), Step::Nothing, "it has never enrolled");
        let Claim { service, instance } = claim("a");
        assert!(!pods.is_leaving(&service, &instance), "it may be another pod's by now");
        pods.withhold(&claim("a"), "u-1");
        pods.withhold(&claim("a"), "u-7");
        assert!(pods.is_leaving(&service, &instance));
        assert!(!pods.is_leaving(&service, &claim("b").instance));
        assert_eq!(pods.note(&ended(1)), Step::End(expected));
        assert!(pods.leaving.is_empty());
        // Another pod has taken its name.
        assert!(pods.enrol(pod(2), claim("a")));
        pods.note(&leaving(2));
        pods.withhold(&claim("a"), "u-2");
        assert!(pods.enrol(pod(3), claim("a")));
        assert!(!pods.is_leaving(&service, &instance));
    }

    /// The harm: the end is reported between the proof and its note, and nothing ends the registration.
    #[test]
    fn a_pod_that_ends_while_it_enrols_does_not_enrol() {
        let mut pods = enrolled(&[]);
        pods.note(&ended(1));
        assert!(!pods.enrol(pod(1), claim("a")));
        assert!(pods.enrol(pod(2), claim("a")));
        (10..10 + ENDED_LIMIT).for_each(|number| drop(pods.note(&ended(number))));
        assert_eq!(pods.ended.len(), ENDED_LIMIT);
        assert!(!pods.enrol(pod(9 + ENDED_LIMIT), claim("a")));
    }

    #[test]
    fn a_list_is_compared_with_what_is_stored_and_the_cluster_is_asked_for_what_it_lacks() {
        let mut pods = enrolled(&[]);
        for again in [false, true] {
            assert_eq!(pods.note(&PodEvent::ListBegins), Step::Nothing);
            assert_eq!(pods.note(&listed(1)), Step::Load, "{again}");
            pods.load([1, 2].map(|number| (pod(number), claim("a"))));
            for event in [listed(1), listed(8)] {
                assert_eq!(pods.note(&event), Step::Nothing);
            }
            assert!(pods.enrol(pod(3), claim("a")), "while the list is read");
            let Step::Ask(mut asked) = pods.note(&PodEvent::ListEnds) else { panic!("{again}") };
            asked.sort_by(|one, other| one.uid.cmp(&other.uid));
            assert_eq!(asked, [pod(2), pod(3)]);
            assert_eq!(pods.end("u-2").map(|ended| ended.pod), Some(pod(2)));
        }
    }

    /// The harm: with the API server away the watch begins to list again and again.
    #[test]
    fn a_list_of_which_nothing_comes_changes_nothing() {
        let mut pods = enrolled(&[1]);
        (0..3).for_each(|_| assert_eq!(pods.note(&PodEvent::ListBegins), Step::Nothing));
        assert!(matches!(pods.note(&ended(1)), Step::End(_)));
        // A cluster without pods.
        assert_eq!(pods.note(&PodEvent::ListEnds), Step::Load);
        pods.load([]);
        assert_eq!(pods.note(&PodEvent::ListEnds), Step::Nothing);
    }

    /// The harm: a pod that enrols while what is stored is read would be lost, and forgotten ones stay for ever.
    #[test]
    fn what_enrols_while_what_is_stored_is_read_is_kept_and_what_is_forgotten_goes() {
        let mut pods = enrolled(&[1, 2]);
        assert_eq!(pods.note(&listed(1)), Step::Load);
        assert!(pods.enrol(pod(3), claim("a")));
        pods.load([(pod(2), claim("a"))]);
        assert_eq!(
            [1, 2, 3].map(|number| pods.end(&format!("u-{number}")).is_some()),
            [false, true, true]
        );
    }

    #[test]
    fn so_many_pods_are_followed_and_so_many_names_of_one() {
        let mut pods = enrolled(&[]);
        pods.load((0..=PODS_LIMIT).map(|number| (pod(number), claim("a"))));
        assert_eq!(pods.pods.len(), PODS_LIMIT);
        for number in 0..2 * CLAIMS_LIMIT {
            assert!(pods.enrol(pod(0), claim(&number.to_string())));
        }
        assert_eq!(pods.end("u-0").unwrap().claims.len(), CLAIMS_LIMIT);
    }
}
