//! Which key may renew an instance's certificate, and which one may register, by what is remembered of the
//! instance. Pure.

use thiserror::Error;
use tollway_model::ErrorCode;
use tonic::Status;

use crate::stored::{EnrolledPod, InstanceKeys as Keys};

/// Keys of one instance that renewals have issued and that were not used: the answers were lost.
const UNUSED_KEYS_LIMIT: usize = 8;
/// To within this many seconds a certificate shows when it was issued.
const ISSUED_TO_S: u64 = 1;

/// What a renewal shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shown<'a> {
    pub(super) key: &'a [u8; 32],
    pub(super) issued_at_unix_s: u64,
    pub(super) has_ended: bool,
    pub(super) now_unix_s: u64,
}

/// Why a key renews nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub(super) enum KeyRefusal {
    #[error(
        "this instance's keys are not remembered, and its certificate has ended; enrol it anew with a token of `tollway token create`"
    )]
    Forgotten,
    #[error(
        "the instance was enrolled anew elsewhere, which took the place of this key; give each process an instance name of its own"
    )]
    Replaced,
    #[error(
        "another renewal took the place of this key a moment ago, so another process may have it; end that one, or enrol the instance anew with a token of `tollway token create`"
    )]
    Late,
    #[error(
        "the key is not the last one that was issued to this instance, so two processes have its key; if only one should, it was stolen: enrol the instance anew with a token of `tollway token create`"
    )]
    Reused,
    #[error(
        "two processes have used keys of this instance, so it renews no more; find out which is the rightful one, and enrol it anew with a token of `tollway token create`"
    )]
    Barred,
    #[error(
        "the pod that enrolled this instance is deleted or has ended, so its certificate registers and renews no more; a pod that takes over enrols by its own token"
    )]
    PodEnded,
}

impl KeyRefusal {
    pub(super) const ALL: [Self; 6] =
        [Self::Forgotten, Self::Replaced, Self::Late, Self::Reused, Self::Barred, Self::PodEnded];

    /// Its value of the label `reason`.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Forgotten => "forgotten",
            Self::Replaced => "replaced",
            Self::Late => "late",
            Self::Reused => "reused",
            Self::Barred => "barred",
            Self::PodEnded => "pod-ended",
        }
    }
}

impl From<KeyRefusal> for Status {
    fn from(refusal: KeyRefusal) -> Self {
        tollway_wire::with_code(Self::permission_denied(refusal.to_string()), ErrorCode::KeyRefused)
    }
}

/// Whether the holder of a key may renew, by what is remembered of the instance. `late_s` is how long
/// a request may have been under way.
pub(super) fn decide_renewal(
    keys: Option<&Keys>,
    shown: Shown<'_>,
    late_s: u64,
) -> Result<(), KeyRefusal> {
    let Some(keys) = keys else {
        // The store was put back to an earlier state, or the record gave way to others.
        return if shown.has_ended { Err(KeyRefusal::Forgotten) } else { Ok(()) };
    };
    if keys.has_pod_ended() {
        Err(KeyRefusal::PodEnded)
    } else if keys.is_barred {
        Err(KeyRefusal::Barred)
    } else if keys.has(shown.key) {
        Ok(())
    } else if keys.enrolled != shown.key && keys.may_precede_enrolment(shown.issued_at_unix_s) {
        Err(KeyRefusal::Replaced)
    } else if shown.now_unix_s < keys.used_at_unix_s.saturating_add(late_s) {
        Err(KeyRefusal::Late)
    } else {
        Err(KeyRefusal::Reused)
    }
}

/// Whether the holder of a key may announce the instance. Of one that a pod enrolled, neither a pod that has
/// ended may nor the one that had its name before.
pub(super) fn decide_registration(
    keys: Option<&Keys>,
    key: &[u8; 32],
    issued_at_unix_s: u64,
) -> Result<(), KeyRefusal> {
    let Some(keys) = keys.filter(|keys| keys.pod.is_some()) else { return Ok(()) };
    if keys.has_pod_ended() {
        Err(KeyRefusal::PodEnded)
    } else if !keys.has(key) && keys.enrolled != key && keys.may_precede_enrolment(issued_at_unix_s)
    {
        Err(KeyRefusal::Replaced)
    } else {
        Ok(())
    }
}

impl Keys {
    pub(super) fn enrolled(key: &[u8; 32], now_unix_s: u64, ends_at_unix_s: u64) -> Self {
        Self {
            used: key.to_vec(),
            issued: Vec::new(),
            enrolled: key.to_vec(),
            enrolled_at_unix_s: now_unix_s,
            ends_at_unix_s,
            used_at_unix_s: now_unix_s,
            is_barred: false,
            pod: None,
        }
    }

    /// The same, of a pod.
    pub(super) fn of_pod(self, pod: Option<EnrolledPod>) -> Self {
        Self { pod, ..self }
    }

    fn has_pod_ended(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.has_ended)
    }

    /// Takes note that the pod `uid` has ended. Returns whether it was the one that enrolled the instance,
    /// and this is news.
    pub(super) fn end_pod(&mut self, uid: &str) -> bool {
        let pod = self.pod.as_mut().filter(|pod| pod.uid == uid && !pod.has_ended);
        let is_new = pod.is_some();
        pod.into_iter().for_each(|pod| pod.has_ended = true);
        is_new
    }

    /// What is remembered once the holder of `shown` was issued `issued`.
    pub(super) fn renewed(
        keys: Option<Self>,
        shown: &[u8; 32],
        issued: &[u8; 32],
        now_unix_s: u64,
        ends: u64,
    ) -> Self {
        let mut keys = keys.unwrap_or_else(|| Self::enrolled(shown, 0, ends));
        keys.use_once(shown, now_unix_s);
        if keys.issued.len() >= UNUSED_KEYS_LIMIT {
            keys.issued.remove(0);
        }
        keys.issued.push(issued.to_vec());
        keys.ends_at_unix_s = keys.ends_at_unix_s.max(ends);
        keys
    }

    fn may_precede_enrolment(&self, issued_at_unix_s: u64) -> bool {
        issued_at_unix_s <= self.enrolled_at_unix_s.saturating_add(ISSUED_TO_S)
    }

    pub(super) fn has(&self, key: &[u8; 32]) -> bool {
        self.used == key || self.issued.iter().any(|issued| issued == key)
    }

    /// Takes note that `key` is in use. Returns whether it is for the first time; all others are no
    /// longer good then.
    pub(super) fn use_once(&mut self, key: &[u8; 32], now_unix_s: u64) -> bool {
        let is_new = self.used != key && self.has(key);
        if is_new {
            self.used = key.to_vec();
            self.used_at_unix_s = now_unix_s;
            self.issued.clear();
        }
        is_new
    }
}

#[cfg(test)]
pub(super) mod tests;
