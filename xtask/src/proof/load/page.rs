//! The page of the record; the prose is `load.md` beside this folder.

use std::fmt::Write as _;

use serde_json::Value;

use super::figures::{figure, interval, median};
use crate::proof::{facts_text, word};

const TEMPLATE: &str = include_str!("../load.md");

pub(super) fn page(record: &Value) -> String {
    let run = facts_text(&record["run"]);
    let facts = format!("{run}; {} rounds of {} s", record["rounds"], record["seconds"]);
    let (pacing, memory) = (&record["pacing"], &record["memory"]);
    let mb = |name: &str| format!("{:.1}", figure(memory, name) / 1e6);
    TEMPLATE
        .replace("{{facts}}", &facts)
        .replace("{{costs}}", &costs(&record["costs"]))
        .replace("{{agreement}}", &agreement(&record["agreement"]))
        .replace("{{agrees}}", &conclusion(&record["agreement"]))
        .replace("{{rss_10s_mb}}", &mb("rss_bytes_10s"))
        .replace("{{rss_60s_mb}}", &mb("rss_bytes_60s"))
        .replace("{{late_p50_us}}", &format!("{:.0}", figure(pacing, "p50_us")))
        .replace("{{late_p99_us}}", &format!("{:.0}", figure(pacing, "p99_us")))
}

fn costs(cases: &Value) -> String {
    let mut table = String::from(
        "| load | beside | CPU | of theirs (lowest to highest round) | rate, of theirs |\n\
         |---|---|---|---|---|\n",
    );
    for case in list(cases) {
        let _ = writeln!(
            table,
            "| {} | {} | {:.1} µs a {} | {} | {} |",
            word(&case["case"]),
            word(&case["other"]),
            median(list(&case["rounds"]), "cpu_us"),
            word(&case["unit"]),
            interval(&case["cpu_ratio"]),
            interval(&case["rate_ratio"]),
        );
    }
    table.trim_end().to_owned()
}

fn agreement(cases: &Value) -> String {
    let mut table = String::from(
        "| load | beside | figure | `tollway load` | of theirs (lowest to highest round) | theirs \
         against itself | agrees |\n|---|---|---|---|---|---|---|\n",
    );
    for case in list(cases) {
        let name = word(&case["figure"]);
        let _ = writeln!(
            table,
            "| {} | {} | {name} | {:.0} {} | {} | {} | {} |",
            word(&case["case"]),
            word(&case["other"]),
            median(list(&case["rounds"]), name),
            word(&case["unit"]),
            interval(&case["ratio"]),
            interval(&case["noise"]),
            if case["agrees"] == true { "yes" } else { "**no**" },
        );
    }
    table.trim_end().to_owned()
}

fn conclusion(cases: &Value) -> String {
    let all = list(cases).len();
    let agreeing = list(cases).iter().filter(|case| case["agrees"] == true).count();
    format!("{agreeing} of {all} figures agree")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::load::agreement::compared;
    use crate::proof::load::figures::ratios;
    use serde_json::json;

    #[test]
    fn the_page_shows_every_case_and_leaves_no_blank() {
        let round = json!({ "cpu_us": 9.0, "other_cpu_us": 10.0, "rate": 90.0, "other_rate": 100.0,
                            "p50": 2_100.0, "other_p50": 2_100.0 });
        let rounds = vec![round];
        let record = json!({
            "run": { "date": "2026-11-21", "commit": "abc", "build": "release", "kernel": "Linux",
                     "cores": 2, "cpu": "any" },
            "rounds": 1, "seconds": 3,
            "costs": [{ "case": "HTTP/1.1", "other": "wrk", "unit": "request", "rounds": rounds,
                        "cpu_ratio": ratios(&rounds, "cpu_us", "other_cpu_us"),
                        "rate_ratio": ratios(&rounds, "rate", "other_rate") }],
            "agreement": [compared("HTTP/2", "h2load", "p50", "µs", &rounds),
                          compared("TCP", "iperf3", "rate", "MB/s", &rounds)],
            "pacing": { "p50_us": 4.4, "p99_us": 60.0 },
            "memory": { "rss_bytes_10s": 5_000_000, "rss_bytes_60s": 5_100_000 },
        });
        let page = page(&record);
        for line in [
            "| HTTP/1.1 | wrk | 9.0 µs a request | 0.90 (0.90 to 0.90) | 0.90 (0.90 to 0.90) |",
            "| HTTP/2 | h2load | p50 | 2100 µs | 1.00 (1.00 to 1.00) | 1.00 (1.00 to 1.00) | yes |",
            "| TCP | iperf3 | rate | 90 MB/s | 0.90 (0.90 to 0.90) | 1.00 (1.00 to 1.00) | **no** |",
            "1 of 2 figures agree",
            "Measured on 2026-11-21, commit abc, release build, Linux, 2 cores (any); 1 rounds of",
        ] {
            assert!(page.contains(line), "{page}");
        }
        assert!(!page.contains("{{"), "{page}");
    }
}
