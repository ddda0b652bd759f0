//! Metrics of one data thread for each rule of the routes that its requests go by.
//!
//! Each rule has a series. The data thread looks the series up by name when routes come and then counts
//! by its number, which costs no lock, hash or allocation. A series is never removed: counters only grow.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::catalogue::names;
use super::count::Counter;
use super::page::{Metric, Page};

/// Most rules that a thread counts by name; the rest share one series.
pub const NAMED_RULES_LIMIT: usize = 200;
/// The labels of the shared series.
const OTHER: &str = "other";

/// The number of a rule's series.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RuleSeries(u16);

impl RuleSeries {
    /// The series of all rules that have none of their own.
    pub const OTHER: Self = Self(u16::MAX);
}

/// What is counted of one rule.
#[derive(Default, Debug)]
pub struct RuleCounts {
    /// Requests for which the rule was chosen.
    pub requests: Counter,
    /// Those of them that were answered with a redirect.
    pub redirects: Counter,
    /// Further attempts that the rule had made.
    pub retries: Counter,
    /// Further attempts that the budget did not have.
    pub retries_over_budget: Counter,
    /// Requests of a key that went to the replica of the key.
    pub affinity_kept: Counter,
    /// Those that went to another one, since that could not be used.
    pub affinity_moved: Counter,
}

/// The series of one data thread.
#[derive(Debug)]
pub struct Rules {
    named: Box<[OnceLock<Box<Named>>]>,
    other: RuleCounts,
}

#[derive(Debug)]
struct Named {
    route: String,
    rule: String,
    counts: RuleCounts,
}

impl Default for Rules {
    fn default() -> Self {
        let named = (0..NAMED_RULES_LIMIT).map(|_| OnceLock::new()).collect();
        Self { named, other: RuleCounts::default() }
    }
}

type CountOf = fn(&RuleCounts) -> &Counter;

/// A metric with a value of its third label, if it has one.
type Column = (&'static Metric, Option<(&'static str, &'static str)>, CountOf);

static COUNTS: [Column; 6] = [
    (&names::ROUTE_REQUESTS, None, |of| &of.requests),
    (&names::ROUTE_REDIRECTS, None, |of| &of.redirects),
    (&names::ROUTE_RETRIES, Some(("result", "made")), |of| &of.retries),
    (&names::ROUTE_RETRIES, Some(("result", "over_budget")), |of| &of.retries_over_budget),
    (&names::ROUTE_AFFINITY, Some(("result", "kept")), |of| &of.affinity_kept),
    (&names::ROUTE_AFFINITY, Some(("result", "moved")), |of| &of.affinity_moved),
];

impl Rules {
    /// Returns the series of a rule. Creates it if there is none and the limit allows one more.
    pub fn series(&self, route: &str, rule: &str) -> RuleSeries {
        let new = || {
            let (route, rule) = (route.to_owned(), rule.to_owned());
            Box::new(Named { route, rule, counts: RuleCounts::default() })
        };
        let found = self.named.iter().position(|series| {
            let of = series.get_or_init(new);
            of.route == route && of.rule == rule
        });
        let number = found.and_then(|at| u16::try_from(at).ok());
        number.map_or(RuleSeries::OTHER, RuleSeries)
    }

    /// What is counted of a rule.
    #[must_use]
    pub fn of(&self, series: RuleSeries) -> &RuleCounts {
        let named = self.named.get(usize::from(series.0)).and_then(OnceLock::get);
        named.map_or(&self.other, |named| &named.counts)
    }

    /// Adds the sum over several threads to the page.
    pub(super) fn add_to(page: &mut Page, threads: &[&Self]) {
        let mut by_name: BTreeMap<(&str, &str), Vec<&RuleCounts>> = BTreeMap::new();
        by_name.insert((OTHER, OTHER), threads.iter().map(|thread| &thread.other).collect());
        for named in threads.iter().flat_map(|thread| thread.named.iter().map_while(OnceLock::get))
        {
            by_name.entry((&named.route, &named.rule)).or_default().push(&named.counts);
        }
        for (metric, third, of) in &COUNTS {
            let mut family = page.family(metric);
            for ((route, rule), threads) in &by_name {
                let value: u64 = threads.iter().map(|counts| of(counts).value()).sum();
                let mut labels = vec![("route", *route), ("rule", *rule)];
                labels.extend(third);
                // Most rules neither redirect nor retry, and have no keys.
                let is_always_shown = metric.name == names::ROUTE_REQUESTS.name;
                if value > 0 || *route == OTHER || is_always_shown {
                    family.sample(&labels, value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(threads: &[&Rules]) -> String {
        let mut page = Page::default();
        Rules::add_to(&mut page, threads);
        page.into_text()
    }

    #[track_caller]
    fn check(text: &str, line: &str) {
        assert!(text.lines().any(|of| of == line), "{line} is missing in\n{text}");
    }

    #[test]
    fn requests_are_counted_by_rule_over_all_threads() {
        let (a, b) = (Rules::default(), Rules::default());
        let series = a.series("shop/stock", "canary");
        assert_eq!(a.series("shop/stock", "canary"), series);
        assert_ne!(a.series("shop/stock", "0"), series);
        a.of(series).requests.add(2);
        // Another thread numbers them in its own order.
        b.series("shop/other", "0");
        b.of(b.series("shop/stock", "canary")).requests.add(3);
        b.of(b.series("shop/stock", "canary")).retries_over_budget.add(7);
        let text = text(&[&a, &b]);
        check(&text, r#"tollway_route_requests_total{route="shop/stock",rule="canary"} 5"#);
        check(&text, r#"tollway_route_requests_total{route="shop/other",rule="0"} 0"#);
        check(&text, r#"tollway_route_redirects_total{route="other",rule="other"} 0"#);
        let retries = r#"tollway_route_retries_total{route="shop/stock",rule="canary",result="#;
        check(&text, &format!("{retries}\"over_budget\"}} 7"));
        assert!(!text.contains(&format!("{retries}\"made\"")), "{text}");
        assert_eq!(text.matches("# TYPE").count(), 4, "each metric is introduced once");
    }

    #[test]
    fn rules_beyond_the_limit_share_a_series() {
        let rules = Rules::default();
        for at in 0..NAMED_RULES_LIMIT {
            assert_ne!(rules.series("shop/stock", &at.to_string()), RuleSeries::OTHER);
        }
        let more = rules.series("shop/stock", "more");
        assert_eq!(more, RuleSeries::OTHER);
        rules.of(more).requests.add(4);
        let text = text(&[&rules]);
        check(&text, r#"tollway_route_requests_total{route="other",rule="other"} 4"#);
        assert!(!text.contains(r#"rule="more""#));
    }
}
