//! The callee's part of a call trace, as one header field between sidecars:
//! `v=1;sidecar_us=42;app_us=1234;admission=shop/allow-web;limit=?caller`.
//!
//! The reader trusts the sender with nothing but its own figures: the length is limited, and a
//! field of another form is ignored.

use std::fmt;

use super::{Admission, LimitWord, OverLimit};
use crate::object::ObjectName;

/// Longest field that is read, in bytes.
pub const CALLEE_PART_BYTES_LIMIT: usize = 512;

const UNPROTECTED: &str = "-";
const NOT_REFUSED: &str = "+";
/// In front of a policy or a limit that refuses.
const REFUSED_BY: char = '!';
/// In front of a policy or a limit in shadow mode that would.
const WOULD_BE_REFUSED_BY: char = '?';

/// What the callee's sidecar reports to the caller's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CalleePart {
    /// From the request's head to the response's head, without the app's time.
    pub sidecar_us: u64,
    /// From sending the request to the app to the head of its response; none without one.
    pub app_us: Option<u64>,
    pub admission: Admission,
    /// The limit of a traffic policy that the request is over.
    pub limit: Option<OverLimit>,
}

impl CalleePart {
    /// Reads a field; `None` if it has another form. Unknown keys are ignored.
    #[must_use]
    pub fn parse(field: &[u8]) -> Option<Self> {
        if field.len() > CALLEE_PART_BYTES_LIMIT {
            return None;
        }
        let text = std::str::from_utf8(field).ok()?;
        let (mut version, mut sidecar_us, mut app_us) = (None, None, None);
        let (mut admission, mut limit) = (None, None);
        for entry in text.split(';') {
            let (key, value) = entry.split_once('=')?;
            let is_new = match key {
                "v" => version.replace(value).is_none(),
                "sidecar_us" => sidecar_us.replace(number(value)?).is_none(),
                "app_us" => app_us.replace(number(value)?).is_none(),
                "admission" => admission.replace(admission_of(value)?).is_none(),
                "limit" => limit.replace(limit_of(value)?).is_none(),
                _ => true,
            };
            if !is_new {
                return None;
            }
        }
        let is_known = version == Some("1");
        is_known.then_some(())?;
        Some(Self { sidecar_us: sidecar_us?, app_us, admission: admission?, limit })
    }
}

impl fmt::Display for CalleePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v=1;sidecar_us={}", self.sidecar_us)?;
        if let Some(app_us) = self.app_us {
            write!(f, ";app_us={app_us}")?;
        }
        match &self.admission {
            Admission::Unprotected => write!(f, ";admission={UNPROTECTED}"),
            Admission::NotRefused => write!(f, ";admission={NOT_REFUSED}"),
            Admission::Allowed(policy) => write!(f, ";admission={policy}"),
            Admission::Refused(policy) => write!(f, ";admission={REFUSED_BY}{policy}"),
            Admission::WouldBeRefused(policy) => {
                write!(f, ";admission={WOULD_BE_REFUSED_BY}{policy}")
            }
        }?;
        match self.limit {
            Some(OverLimit { limit, is_shadow }) => {
                let mark = if is_shadow { WOULD_BE_REFUSED_BY } else { REFUSED_BY };
                write!(f, ";limit={mark}{}", limit.as_str())
            }
            None => Ok(()),
        }
    }
}

/// `namespace/name`.
pub(super) fn policy_of(text: &str) -> Option<ObjectName> {
    let (namespace, name) = text.split_once('/')?;
    ObjectName::new(namespace, name).ok()
}

fn admission_of(text: &str) -> Option<Admission> {
    match text {
        UNPROTECTED => Some(Admission::Unprotected),
        NOT_REFUSED => Some(Admission::NotRefused),
        _ => {
            let behind = |mark: char| text.strip_prefix(mark).map(policy_of);
            if let Some(policy) = behind(REFUSED_BY) {
                return policy.map(Admission::Refused);
            }
            if let Some(policy) = behind(WOULD_BE_REFUSED_BY) {
                return policy.map(Admission::WouldBeRefused);
            }
            policy_of(text).map(Admission::Allowed)
        }
    }
}

fn limit_of(text: &str) -> Option<OverLimit> {
    let of = |mark: char, is_shadow| {
        let word = text.strip_prefix(mark)?;
        let limit = LimitWord::ALL.into_iter().find(|limit| limit.as_str() == word)?;
        Some(OverLimit { limit, is_shadow })
    };
    of(WOULD_BE_REFUSED_BY, true).or_else(|| of(REFUSED_BY, false))
}

/// A number of digits only, without a sign.
fn number(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<CalleePart> {
        CalleePart::parse(text.as_bytes())
    }

    #[test]
    fn a_part_is_read_as_it_was_written() {
        let policy = ObjectName::new("shop", "allow-web").unwrap();
        for admission in [
            Admission::Unprotected,
            Admission::NotRefused,
            Admission::Allowed(policy.clone()),
            Admission::WouldBeRefused(policy.clone()),
            Admission::Refused(policy),
        ] {
            let limits = LimitWord::ALL.into_iter().flat_map(|limit| {
                [true, false].map(|is_shadow| Some(OverLimit { limit, is_shadow }))
            });
            for limit in limits.chain([None]) {
                for app_us in [None, Some(0), Some(u64::MAX)] {
                    let admission = admission.clone();
                    let part = CalleePart { sidecar_us: 42, app_us, admission, limit };
                    let field = part.to_string();
                    assert!(field.len() <= CALLEE_PART_BYTES_LIMIT);
                    assert_eq!(parse(&field), Some(part), "{field}");
                }
            }
        }
        let longest = "n".repeat(63);
        let policy = ObjectName::new(&longest, &longest).unwrap();
        let admission = Admission::Refused(policy);
        let limit = Some(OverLimit { limit: LimitWord::Concurrency, is_shadow: true });
        let part = CalleePart { sidecar_us: u64::MAX, app_us: Some(u64::MAX), admission, limit };
        assert_eq!(parse(&part.to_string()), Some(part));
    }

    #[test]
    fn keys_of_a_later_version_are_ignored() {
        let part = parse("v=1;sidecar_us=1;queue_us=7;admission=-;tomorrow=").unwrap();
        assert_eq!((part.sidecar_us, part.app_us), (1, None));
    }

    #[test]
    fn what_is_not_a_part_is_refused() {
        const GOOD: &str = "v=1;sidecar_us=1;admission=-";
        assert!(parse(GOOD).is_some());
        for bad in [
            "",
            "v=1",
            "v=2;sidecar_us=1;admission=-",
            "sidecar_us=1;admission=-",
            "v=1;sidecar_us=1",
            "v=1;sidecar_us=;admission=-",
            "v=1;sidecar_us=+1;admission=-",
            "v=1;sidecar_us=-1;admission=-",
            "v=1;sidecar_us=1 ;admission=-",
            "v=1;sidecar_us=18446744073709551616;admission=-",
            "v=1;sidecar_us=1;admission=",
            "v=1;sidecar_us=1;admission=a",
            "v=1;sidecar_us=1;admission=a/b/c",
            "v=1;sidecar_us=1;admission=!",
            "v=1;sidecar_us=1;admission=!!a/b",
            "v=1;sidecar_us=1;admission=?",
            "v=1;sidecar_us=1;admission=?!a/b",
            "v=1;sidecar_us=1;admission=a/\u{1b}[2J",
            "v=1;sidecar_us=1;admission=-;",
            "v=1;sidecar_us=1;admission=-;limit=",
            "v=1;sidecar_us=1;admission=-;limit=caller",
            "v=1;sidecar_us=1;admission=-;limit=?rate",
            "v=1;sidecar_us=1;admission=-;limit=?caller;limit=?caller",
            "v=1;sidecar_us=1;sidecar_us=1;admission=-",
            "v=1;sidecar_us=1;admission=-;app_us=1;app_us=2",
            &format!("{GOOD};a={}", "b".repeat(CALLEE_PART_BYTES_LIMIT)),
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(CalleePart::parse(b"v=1;sidecar_us=1;admission=-;\xff=1"), None);
    }

    proptest::proptest! {
        #[test]
        fn any_field_is_a_part_or_refused(
            field in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..600),
            likely in "(v=1;|sidecar_us=[0-9]{0,22};|app_us=[0-9]{0,22};|admission=[a-z/+-]{0,5};?){0,8}",
        ) {
            for field in [field.as_slice(), likely.as_bytes()] {
                if let Some(part) = CalleePart::parse(field) {
                    proptest::prop_assert!(field.len() <= CALLEE_PART_BYTES_LIMIT);
                    let written = part.to_string();
                    proptest::prop_assert_eq!(CalleePart::parse(written.as_bytes()), Some(part));
                }
            }
        }
    }
}
