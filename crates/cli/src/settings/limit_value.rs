//! `--limit NAME=VALUE`: one limit of a data plane by its name in `docs/limits.md`.

use tollway_proxy::{Limits, NAMED_LIMITS, NamedLimit, Timeouts};

use tollway_config::suggest::nearest;

/// A limit and the value it is to have, which is within its range.
#[derive(Clone)]
pub(crate) struct LimitSetting {
    limit: &'static NamedLimit,
    value: u64,
}

impl LimitSetting {
    pub(crate) fn apply(&self, limits: &mut Limits, timeouts: &mut Timeouts) {
        self.limit.set(limits, timeouts, self.value);
    }
}

/// Reads `NAME=VALUE`.
///
/// # Errors
/// What is wrong with it, and which names there are.
pub(crate) fn limit(text: &str) -> Result<LimitSetting, String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE, such as `head_ms=5000`")?;
    let limit = NamedLimit::find(name).ok_or_else(|| unknown(name))?;
    let (least, most) = limit.range;
    let value = value.parse().ok().filter(|value| (least..=most).contains(value));
    let value = value.ok_or_else(|| format!("`{name}` is a number from {least} to {most}"))?;
    Ok(LimitSetting { limit, value })
}

fn unknown(name: &str) -> String {
    let names: Vec<&str> = NAMED_LIMITS.iter().map(|limit| limit.name).collect();
    match nearest(name, &names) {
        Some(meant) => format!("no limit is called `{name}`; did you mean `{meant}`?"),
        None => format!("no limit is called `{name}`; use one of {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_set_by_its_name_and_within_its_range() {
        let (mut limits, mut timeouts) = (Limits::default(), Timeouts::default());
        for text in ["app_connections=7", "head_ms=1500"] {
            limit(text)
                .map_err(|error| panic!("{error}"))
                .unwrap()
                .apply(&mut limits, &mut timeouts);
        }
        assert_eq!((limits.app_connections, timeouts.head.as_millis()), (7, 1500));
    }

    #[test]
    fn what_is_no_limit_is_refused_with_what_is() {
        let check = |text: &str, words: &str| {
            let Err(error) = limit(text) else { panic!("{text} is taken") };
            assert!(error.contains(words), "{text}: {error}");
        };
        check("head_ms", "NAME=VALUE");
        check("hed_ms=1", "did you mean `head_ms`?");
        check("colour=1", "use one of waiting_per_service, services");
        check("head_ms=0", "a number from 1 to 86400000");
        check("head_ms=5s", "a number from");
        check("fields=-1", "a number from 16");
    }
}
