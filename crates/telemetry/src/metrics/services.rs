//! Metrics of one data thread for each service that its app calls.
//!
//! Each service has a series. The data thread looks the series up by name once and then counts by
//! its number, which costs no lock, hash or allocation. A series is never removed: counters only
//! grow.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use super::catalogue::names;
use super::count::Counter;
use super::durations::Durations;
use super::page::Page;

/// Most services that a thread counts by name; the rest share one series.
pub const NAMED_SERVICES_LIMIT: usize = 200;
/// The label of the shared series, which also counts names that no service has.
const OTHER: &str = "other";

/// The number of a service's series.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeriesId(u16);

impl SeriesId {
    /// The series of all services that have none of their own.
    pub const OTHER: Self = Self(u16::MAX);
}

/// How a call of a service ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallEnd {
    /// The service answered with this HTTP status.
    Answered(u16),
    /// The service answered a gRPC call with another status than OK.
    GrpcError,
    /// A data plane refused it, or it failed.
    Failed,
    /// The caller cancelled it.
    Cancelled,
}

/// The values of the label `outcome`.
const OUTCOMES: [&str; 9] =
    ["none", "1xx", "2xx", "3xx", "4xx", "5xx", "grpc_error", "failed", "cancelled"];

impl CallEnd {
    fn index(self) -> usize {
        match self {
            Self::Answered(status) => usize::from(status / 100).min(5),
            Self::GrpcError => 6,
            Self::Failed => 7,
            Self::Cancelled => 8,
        }
    }

    fn is_answer(self) -> bool {
        matches!(self, Self::Answered(_) | Self::GrpcError)
    }
}

/// The series of one data thread.
#[derive(Debug)]
pub struct Services {
    named: Box<[OnceLock<Box<Named>>]>,
    other: Calls,
}

#[derive(Debug)]
struct Named {
    name: String,
    calls: Calls,
}

#[derive(Default, Debug)]
struct Calls {
    ends: [Counter; OUTCOMES.len()],
    durations: Durations,
}

impl Default for Services {
    fn default() -> Self {
        let named = (0..NAMED_SERVICES_LIMIT).map(|_| OnceLock::new()).collect();
        Self { named, other: Calls::default() }
    }
}

impl Services {
    /// Returns the series of a service. Creates it if there is none and the limit allows one more.
    /// The name becomes a label, so it must be one that the control plane knows.
    pub fn series(&self, name: &str) -> SeriesId {
        let new = || Box::new(Named { name: name.to_owned(), calls: Calls::default() });
        let found = self.named.iter().position(|series| series.get_or_init(new).name == name);
        let number = found.and_then(|at| u16::try_from(at).ok());
        number.map_or(SeriesId::OTHER, SeriesId)
    }

    /// Counts a call that ended `took` after its head.
    pub fn record(&self, series: SeriesId, end: CallEnd, took: Duration) {
        let named = self.named.get(usize::from(series.0)).and_then(OnceLock::get);
        let calls = named.map_or(&self.other, |named| &named.calls);
        calls.ends[end.index()].add(1);
        if end.is_answer() {
            calls.durations.record(took);
        }
    }

    /// Adds the sum over several threads to the page.
    pub(super) fn add_to(page: &mut Page, threads: &[&Self]) {
        let mut by_name: BTreeMap<&str, Vec<&Calls>> = BTreeMap::new();
        by_name.insert(OTHER, threads.iter().map(|thread| &thread.other).collect());
        for named in threads.iter().flat_map(|thread| thread.named.iter().map_while(OnceLock::get))
        {
            by_name.entry(&named.name).or_default().push(&named.calls);
        }
        let mut requests = page.family(&names::SERVICE_REQUESTS);
        for (name, threads) in &by_name {
            for (at, outcome) in OUTCOMES.iter().enumerate() {
                let value: u64 = threads.iter().map(|calls| calls.ends[at].value()).sum();
                // Most outcomes never occur for most services.
                if value > 0 || *outcome == "2xx" {
                    requests.sample(&[("service", name), ("outcome", outcome)], value);
                }
            }
        }
        for (name, threads) in &by_name {
            let several: Vec<_> = threads.iter().map(|calls| &calls.durations).collect();
            page.durations(&names::SERVICE_DURATION, &[("service", name)], &several);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(threads: &[&Services]) -> String {
        let mut page = Page::default();
        Services::add_to(&mut page, threads);
        page.into_text()
    }

    #[track_caller]
    fn check(text: &str, line: &str) {
        assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
    }

    #[test]
    fn calls_are_counted_by_service_and_end_over_all_threads() {
        let (a, b) = (Services::default(), Services::default());
        let took = Duration::from_micros(80);
        let stock = a.series("stock.shop.east");
        assert_eq!(a.series("stock.shop.east"), stock);
        assert_ne!(a.series("web.shop.east"), stock);
        a.record(stock, CallEnd::Answered(204), took);
        a.record(stock, CallEnd::GrpcError, took);
        a.record(stock, CallEnd::Failed, Duration::from_secs(60));
        a.record(stock, CallEnd::Cancelled, Duration::from_secs(60));
        b.series("first.here.east");
        b.record(b.series("stock.shop.east"), CallEnd::Answered(200), Duration::from_millis(3));
        b.record(SeriesId::OTHER, CallEnd::Failed, took);
        let text = text(&[&a, &b]);
        for (service, outcome, value) in [
            ("stock.shop.east", "2xx", 2),
            ("stock.shop.east", "grpc_error", 1),
            ("stock.shop.east", "failed", 1),
            ("stock.shop.east", "cancelled", 1),
            ("web.shop.east", "2xx", 0),
            ("other", "failed", 1),
        ] {
            let labels = format!("service=\"{service}\",outcome=\"{outcome}\"");
            check(&text, &format!("tollway_service_requests_total{{{labels}}} {value}"));
        }
        let name = "tollway_service_request_duration_seconds";
        check(&text, &format!("{name}_bucket{{service=\"stock.shop.east\",le=\"0.0001\"}} 2"));
        check(&text, &format!("{name}_count{{service=\"stock.shop.east\"}} 3"));
    }

    #[test]
    fn however_many_services_are_called_the_page_is_bounded_and_counts_them_all() {
        const CALLED: usize = 300;
        let services = Services::default();
        for round in 1..=2 {
            for number in 0..CALLED {
                let series = services.series(&format!("app-{number}.shop.east"));
                assert_eq!(series == SeriesId::OTHER, number >= NAMED_SERVICES_LIMIT);
                services.record(series, CallEnd::Answered(200), Duration::from_micros(80));
            }
            let text = text(&[&services]);
            let samples: Vec<_> = text
                .lines()
                .filter_map(|line| line.strip_prefix("tollway_service_requests_total{"))
                .collect();
            assert_eq!(samples.len(), NAMED_SERVICES_LIMIT + 1);
            let total: usize = samples
                .iter()
                .map(|l| l.split(' ').nth(1).unwrap().parse::<usize>().unwrap())
                .sum();
            assert_eq!(total, round * CALLED);
            let beyond = round * (CALLED - NAMED_SERVICES_LIMIT);
            let labels = "service=\"other\",outcome=\"2xx\"";
            check(&text, &format!("tollway_service_requests_total{{{labels}}} {beyond}"));
        }
    }
}
