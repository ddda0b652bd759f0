//! Access control and health of the app, under Dapr's names.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::super::catalogue::names;
use super::super::page::Metric;
use super::http::Timed;
use super::number;
use super::table::{Bounds, Sheet, Table, entry};

/// A caller, and what access control has decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Judged<'a> {
    pub trust_domain: &'a str,
    pub namespace: &'a str,
    pub app: &'a str,
    /// The list has a policy for it.
    pub is_named: bool,
    pub is_allowed: bool,
}

/// Counts of access control and of health probes.
#[derive(Debug, Default)]
pub(super) struct AppCounts(Mutex<Counts>);

#[derive(Clone, Debug, Default)]
struct Counts {
    /// By the caller, in the order of [`ACCESS`].
    access: BTreeMap<Box<str>, [u64; 4]>,
    /// Without a name, by status.
    probes: Table<u16, Timed>,
}

/// Callers that are named first, of those that are let in first.
static ACCESS: [&Metric; 4] = [
    &names::DAPR_ACCESS_ALLOWED,
    &names::DAPR_ACCESS_BLOCKED,
    &names::DAPR_ACCESS_OTHERS_ALLOWED,
    &names::DAPR_ACCESS_OTHERS_BLOCKED,
];

impl AppCounts {
    pub(super) fn judged(&self, judged: Judged<'_>) {
        let Judged { trust_domain, namespace, app, is_named, is_allowed } = judged;
        let caller = format!("{trust_domain}/{namespace}/{app}");
        let at = 2 * usize::from(!is_named) + usize::from(!is_allowed);
        entry(&mut self.counts().access, &caller)[at] += 1;
    }

    pub(super) fn probed(&self, status: u16, took: Duration, bounds: &Bounds) {
        let mut counts = self.counts();
        let timed = counts.probes.at("", status, || Timed::new(bounds));
        timed.count += 1;
        timed.latency.note(took.as_secs_f64() * 1e3);
    }

    pub(super) fn add_to(&self, sheet: &mut Sheet<'_>, app_id: &str) {
        let counts = self.counts().clone();
        for (_, status, timed) in counts.probes.rows() {
            sheet.sample(&names::DAPR_HTTP_PROBES, &[app_id, &number(status)], timed.count);
        }
        for (_, status, timed) in counts.probes.rows() {
            let values = [app_id, &*number(status)];
            sheet.histogram(&names::DAPR_HTTP_PROBE_LATENCY, &values, &timed.latency);
        }
        for (at, metric) in ACCESS.into_iter().enumerate() {
            for (caller, of) in counts.access.iter().filter(|(_, of)| of[at] > 0) {
                let mut parts = caller.splitn(3, '/');
                let trust_domain = parts.next().unwrap_or_default();
                // What has no series of its own has one name for all.
                let [namespace, app] = [(); 2].map(|()| parts.next().unwrap_or(trust_domain));
                sheet.sample(metric, &[app, namespace, trust_domain], of[at]);
            }
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::usual;
    use super::*;
    use crate::metrics::Page;

    #[test]
    fn what_is_let_in_and_how_the_app_is_have_daprs_names() {
        let metrics = usual();
        let judged = |is_named, is_allowed| Judged {
            trust_domain: "east.tollway",
            namespace: "shop",
            app: "till",
            is_named,
            is_allowed,
        };
        for (is_named, is_allowed) in [(true, true), (true, true), (true, false), (false, false)] {
            metrics.judged(judged(is_named, is_allowed));
        }
        metrics.probed(204, Duration::from_micros(2_500));
        metrics.probed(500, Duration::from_millis(1));
        let mut page = Page::default();
        metrics.add_to(&mut page);
        let text = page.into_text();
        let caller = "app_id=\"till\",namespace=\"shop\",trustDomain=\"east.tollway\"";
        let acl = "dapr_runtime_acl";
        for line in [
            format!("{acl}_app_policy_action_allowed_total{{{caller}}} 2"),
            format!("{acl}_app_policy_action_blocked_total{{{caller}}} 1"),
            format!("{acl}_global_policy_action_blocked_total{{{caller}}} 1"),
            "dapr_http_healthprobes_completed_count{app_id=\"web\",status=\"204\"} 1".to_owned(),
            "dapr_http_healthprobes_completed_count{app_id=\"web\",status=\"500\"} 1".to_owned(),
            "dapr_http_healthprobes_roundtrip_latency_sum{app_id=\"web\",status=\"204\"} 2.5"
                .to_owned(),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("global_policy_action_allowed_total{"), "{text}");
    }
}
