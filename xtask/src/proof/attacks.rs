//! `cargo xtask proof attacks`: strangers, workloads, joined networks and guests attack a network of
//! a release build, beside honest calls. Stores the record and writes the page that shows it. The
//! prose of the page is `attacks.md` beside this file.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{Wanted, facts, facts_text, publish, word};
use crate::process;
use crate::workspace::Workspace;

const PAGE: &str = "docs/attacks.md";
const RECORD: &str = "docs/records/attacks.json";
const TEMPLATE: &str = include_str!("attacks.md");
/// The program of tests and the test in it.
const PROGRAM: &str = "network";
const TEST: &str = "attacks::everything";

/// What each attack did to commit eaf69ab2 (release build, two shared processors), as the review of
/// that commit measured it.
const BEFORE: [(&str, &str); 26] = [
    (
        "connections of one identity",
        "1,009 connections in 3.9 s, all that a control plane with 1,024 descriptors takes: no workload joins and the operator's commands fail for as long as they stay",
    ),
    (
        "names that are followed",
        "60 streams of one connection: memory from 142 to 444 MB, not given back",
    ),
    (
        "empty steps of placement",
        "80,000 to 100,000 a second: one whole processor, certificates after up to 0.56 s",
    ),
    ("a token used again", "good for any number of enrolments until it expired"),
    ("a copied key", "renewed for ever, beside its owner"),
    ("a revoked identity", "an identity could not be revoked"),
    (
        "another workload's name and address",
        "any address was taken, with the gateway as the way to it; another app's name was refused",
    ),
    (
        "state of a namespace",
        "252 MiB in 7 s: no app of any namespace stored a new key until somebody deleted some",
    ),
    (
        "connections of another network's workload",
        "all stayed: 50 of 50, in the places of the network's own workloads",
    ),
    (
        "through the gateway to a stated gateway",
        "lines of a stranger without a certificate were executed and answered",
    ),
    ("through the gateway to a stated workload", "the same, with the least token"),
    ("lines in the logs", "1,000 for each 1,000: 17,000 a second, 4 to 5 MB/s, at each port"),
    ("reverse connections of others", "there were none"),
    (
        "another app's actors through a deputy",
        "200, under the deputy's identity; reminders were read, forged and deleted",
    ),
    (
        "host of another app's type",
        "512 of 1,024 shards, 17 of 40 reminders with their data, and the calls from then on",
    ),
    (
        "many lives of one instance",
        "688 of 1,100 were granted shards; 8 of 8 calls of the type failed",
    ),
    (
        "a claim after a restart",
        "all 1,024 shards, without any grant: all reminders were read, two hosts at a time",
    ),
    (
        "bodies that do not end",
        "17 bodies: the app's own state API answered 503 for the 40 s that were looked at",
    ),
    ("idle connections at the admin port", "64 connections: no probe was answered for 25 to 30 s"),
    ("a page of another site", "state was written (204) and read, services were called (200)"),
    (
        "roots that flip",
        "12,113 changes in 8 s, each stored; 138 trust bundles a second at every sidecar, 15 % of a processor each",
    ),
    ("services that flap", "0.55 processors of the control plane, for as long as it lasted"),
    ("requests for any network", "there was no such name"),
    (
        "a clock that jumps by 25 hours",
        "503 ERR_CERTIFICATE_EXPIRED within 10 s and from then on, until a restart by hand",
    ),
    ("packets in another guest's name", "not tried; by reading: all arrive"),
    (
        "a scan of addresses that do not exist",
        "not tried; by reading: one guest filled the one queue of misses",
    ),
];

/// The tests that hold each attack in every run of the tests.
const HELD: &[(&str, &[&str])] = &[
    (
        "connections of one identity",
        &[
            "connections_of_one_identity_lock_out_no_network",
            "connections_of_one_certificate_leave_descriptors_to_others_and_to_the_operator",
        ],
    ),
    (
        "names that are followed",
        &[
            "names_that_one_identity_follows_fill_no_memory",
            "names_that_many_instances_of_an_app_follow_are_bounded",
        ],
    ),
    (
        "empty steps of placement",
        &["empty_steps_of_a_host_wake_no_watcher_and_delay_no_certificate"],
    ),
    ("a token used again", &["a_stolen_token_enrols_nothing_once_it_is_spent"]),
    (
        "a copied key",
        &["a_copied_key_that_renews_after_its_owner_is_refused_and_bars_the_instance"],
    ),
    (
        "a revoked identity",
        &[
            "a_revoked_identity_calls_nothing_and_is_called_by_nothing_within_seconds",
            "a_stolen_key_serves_no_caller_once_its_identity_is_revoked",
        ],
    ),
    (
        "another workload's name and address",
        &[
            "a_workload_registers_only_its_own_name",
            "a_workload_cannot_lead_the_gateway_to_an_address_inside",
        ],
    ),
    (
        "state of a namespace",
        &["a_namespace_that_fills_its_state_takes_it_from_no_other_and_the_operator_frees_it"],
    ),
    (
        "connections of another network's workload",
        &["workloads_of_joined_networks_have_no_connection"],
    ),
    (
        "through the gateway to a stated gateway",
        &[
            "a_stranger_gets_through_no_gateway_into_a_joined_network",
            "a_service_without_tls_is_sent_no_line_of_a_caller",
        ],
    ),
    (
        "through the gateway to a stated workload",
        &["a_workload_at_a_service_of_lines_hands_it_no_line_of_a_stranger"],
    ),
    (
        "lines in the logs",
        &["strangers_do_not_fill_the_log", "a_server_name_writes_no_line_into_the_log"],
    ),
    (
        "reverse connections of others",
        &[
            "only_gateways_of_a_joined_network_that_only_dials_out_are_a_way_to_it",
            "who_breaks_the_protocol_of_reverse_connections_loses_them",
        ],
    ),
    (
        "another app's actors through a deputy",
        &[
            "a_call_that_a_replica_passes_on_is_judged_and_shown_as_its_callers",
            "no_other_service_is_believed_whose_call_it_passes_on",
            "only_hosts_of_a_type_are_answered_about_its_reminders",
        ],
    ),
    (
        "host of another app's type",
        &[
            "an_intruder_of_the_namespace_becomes_host_of_no_type_of_another_app",
            "an_intruder_gets_no_reminders_even_first_after_a_restart",
        ],
    ),
    ("many lives of one instance", &["many_lives_of_one_instance_have_one_share"]),
    (
        "a claim after a restart",
        &["a_claim_after_a_restart_takes_nothing_from_the_host_that_was_granted_it"],
    ),
    ("bodies that do not end", &["unfinished_bodies_of_a_caller_keep_no_other_from_an_app"]),
    ("idle connections at the admin port", &["connections_that_do_nothing_do_not_hold_the_port"]),
    (
        "a page of another site",
        &[
            "a_page_of_another_site_uses_no_port_of_the_app",
            "a_page_with_a_name_of_its_own_uses_no_port_of_the_app",
        ],
    ),
    ("roots that flip", &["a_joined_network_that_flips_its_roots_changes_trust_rarely"]),
    (
        "services that flap",
        &["a_joined_network_whose_services_flap_is_stored_a_few_times_a_second"],
    ),
    ("requests for any network", &["a_network_cannot_be_called_any"]),
    (
        "a clock that jumps by 25 hours",
        &["a_clock_that_jumps_over_the_end_of_all_certificates_stops_calls_for_seconds_only"],
    ),
    ("packets in another guest's name", &["a_host_cannot_send_in_the_name_of_anothers_guest"]),
    (
        "a scan of addresses that do not exist",
        &["a_guest_that_scans_a_network_does_not_take_the_reports_of_others"],
    ),
];

/// Harms of the same review that are not measured, likewise.
const HELD_BY_TESTS_ALONE: &[(&str, &[&str])] = &[
    (
        "types and methods that an app does not offer",
        &[
            "a_call_of_a_type_that_is_not_hosted_is_refused_before_its_body_is_read",
            "a_sidecar_looks_up_no_actors_but_those_of_its_own_app",
        ],
    ),
    (
        "keys of state that look like a fence",
        &["no_actor_names_a_fence", "no_two_entries_have_one_key"],
    ),
    (
        "names of fields that only the mesh writes",
        &[
            "what_an_app_could_take_for_the_meshs_word_does_not_pass",
            "private_fields_in_a_request_of_an_app_have_no_effect",
        ],
    ),
    ("paths of actors as methods", &["paths_of_actors_are_no_methods_that_a_peer_can_invoke"]),
    (
        "paths in odd spellings, against policies and rules of the API",
        &["several_slashes_and_queries_and_methods_of_actors_do_not_get_round_a_rule"],
    ),
    (
        "names of policies and instances in refusals",
        &["a_refused_caller_learns_the_hop_and_the_code_alone"],
    ),
    (
        "a relay that outlives its certificate",
        &["a_relayed_connection_ends_with_the_certificate_of_its_peer"],
    ),
    ("a gateway that calls an app", &["a_part_of_the_mesh_calls_no_app"]),
    ("bytes to an app of HTTP", &["an_app_of_http_is_reached_by_no_other_protocol"]),
    (
        "every method of the control plane, by every kind of caller",
        &["no_method_answers_a_caller_that_the_table_does_not_name"],
    ),
    (
        "schedules at the ends of numbers",
        &["schedules_at_the_ends_of_numbers_are_refused_or_read_by_the_next_host"],
    ),
    ("random requests to the API", &["no_request_of_odd_parts_breaks_a_process"]),
    (
        "control planes that were away for longer than certificates last",
        &["control_planes_that_were_away_for_longer_than_certificates_last_are_joined_again"],
    ),
    (
        "an answer to a renewal that is lost at any byte",
        &["a_renewal_whose_answer_is_lost_at_any_byte_locks_no_instance_out"],
    ),
];

pub(super) fn run(workspace: &Workspace, wanted: &Wanted<'_>) -> Result<()> {
    let root = &workspace.root;
    if wanted.is_quick() {
        return measure(root, &[], None, true).and_then(|(_, ran)| ran);
    }
    let (measured, ran) = measure(root, &["--release"], None, false)?;
    let mut record = json!({ "run": facts(root, "release")?, "measured": measured });
    match wanted.before {
        // A former program breaks promises, which are in its record.
        Some(program) => record["before"] = measure(root, &["--release"], Some(program), false)?.0,
        // What was measured of it stays as it was.
        None => record["before"] = recorded(root)?["before"].take(),
    }
    publish(root, (RECORD, &record), (PAGE, &page(&record)?))?;
    ran
}

/// What an earlier run has measured.
fn recorded(root: &Path) -> Result<Value> {
    let text =
        std::fs::read_to_string(root.join(RECORD)).with_context(|| format!("no {RECORD}"))?;
    serde_json::from_str(&text).with_context(|| format!("{RECORD} is not JSON"))
}

/// The record, and whether every promise holds: a broken one fails the run and is in the record all
/// the same.
fn measure(
    root: &Path,
    options: &[&str],
    former: Option<&Path>,
    is_quick: bool,
) -> Result<(Value, Result<()>)> {
    let raw = root.join("target/attacked.json");
    // What an earlier run left must not be taken for this one's.
    let _ = std::fs::remove_file(&raw);
    super::build_process_tests(PROGRAM, options)?;
    let mut test = super::process_tests(PROGRAM, options);
    test.args(["--ignored", "--exact", TEST, "--nocapture"]).env("TOLLWAY_ATTACKED_RECORD", &raw);
    if is_quick {
        test.env("TOLLWAY_ATTACKED_QUICK", "1");
    }
    if let Some(program) = former {
        let program = program.canonicalize();
        test.env("TOLLWAY_FORMER_PROGRAM", program.context("there is no such former program")?);
    }
    let ran = process::run(&mut test);
    let Ok(text) = std::fs::read_to_string(&raw) else {
        return ran.and_then(|()| bail!("{TEST} left no record"));
    };
    Ok((serde_json::from_str(&text).context("the record is not JSON")?, ran))
}

fn page(record: &Value) -> Result<String> {
    let (measured, former) = (&record["measured"], rows_of(&record["before"]));
    let pairs = rows_of(measured)
        .iter()
        .map(|row| (row, former.iter().find(|former| former["attack"] == row["attack"])));
    let pairs: Vec<_> = pairs.collect();
    Ok(TEMPLATE
        .replace("{{summary}}", &summary(measured))
        .replace("{{rate}}", &measured["calls_per_second"].to_string())
        .replace("{{facts}}", &facts_text(&record["run"]))
        .replace("{{outcomes}}", &outcomes(&pairs)?)
        .replace("{{costs}}", &costs(&pairs))
        .replace("{{held}}", &held()))
}

/// Which tests hold what.
fn held() -> String {
    let mut table = String::from("| harm | tests |\n|---|---|\n");
    for (harm, tests) in HELD.iter().chain(HELD_BY_TESTS_ALONE) {
        let tests: Vec<_> = tests.iter().map(|test| format!("`{test}`")).collect();
        let _ = writeln!(table, "| {harm} | {} |", tests.join(", "));
    }
    table.trim_end().to_owned()
}

/// An attack on the present program, and on the former one where that was measured.
type Pair<'a> = (&'a Value, Option<&'a Value>);

fn rows_of(measured: &Value) -> &[Value] {
    measured["rows"].as_array().map_or(&[][..], Vec::as_slice)
}

fn is_borne(row: &Value) -> bool {
    row["wrong"].as_array().is_some_and(Vec::is_empty)
}

/// What a reader of no table reads.
fn summary(measured: &Value) -> String {
    let rows = rows_of(measured);
    let borne = rows.iter().filter(|row| is_borne(row)).count();
    let sum = |name: &str| rows.iter().map(|row| calls(row, name)).sum::<u64>();
    let mut text = format!(
        "{borne} of {} attacks do no harm. Of {} honest calls beside them and after them {} were lost.",
        rows.len(),
        sum("sent"),
        sum("lost"),
    );
    for left_out in measured["left_out"].as_array().into_iter().flatten() {
        let _ =
            write!(text, " Not measured here: {} ({}).", word(&left_out[0]), word(&left_out[1]));
    }
    text
}

fn outcomes(pairs: &[Pair<'_>]) -> Result<String> {
    let mut table = String::from(
        "| attack | by | what is sent | before | now | verdict |\n|---|---|---|---|---|---|\n",
    );
    for (row, former) in pairs {
        let attack = word(&row["attack"]);
        let (_, review) = BEFORE
            .iter()
            .find(|(name, _)| *name == attack)
            .with_context(|| format!("`{attack}` has no line about the time before"))?;
        let before = former
            .map_or_else(|| format!("*{review}*"), |former| coded(word(&former["got"]), false));
        let (by, sent, now) =
            (word(&row["attacker"]), word(&row["sent"]), coded(word(&row["got"]), true));
        let _ =
            writeln!(table, "| {attack} | {by} | {sent} | {before} | {now} | {} |", verdict(row));
    }
    Ok(table.trim_end().to_owned())
}

/// Codes as such, or as links to what they mean: a former program has some that are no more.
fn coded(text: &str, is_linked: bool) -> String {
    let mut out = String::new();
    let is_of_code = |c: char| c.is_ascii_uppercase() || c == '_';
    let mut rest = text;
    while let Some(at) = rest.find("ERR_") {
        let code: &str = &rest[at..];
        let code = &code[..code.find(|c| !is_of_code(c)).unwrap_or(code.len())];
        out += &rest[..at];
        let _ = if is_linked {
            write!(out, "[`{code}`](errors.md#{})", code.to_ascii_lowercase())
        } else {
            write!(out, "`{code}`")
        };
        rest = &rest[at + code.len()..];
    }
    out + rest
}

fn verdict(row: &Value) -> String {
    if is_borne(row) {
        return "held".to_owned();
    }
    let wrong = row["wrong"].as_array().into_iter().flatten().map(word);
    format!("**broken**: {}", wrong.collect::<Vec<_>>().join("; "))
}

fn costs(pairs: &[Pair<'_>]) -> String {
    let mut table = String::from(
        "| attack | attacker | ours | memory | honest calls | lost | p99 without | p99 beside | joins and commands | failed | slowest |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for (row, former) in pairs {
        let both = |of: &dyn Fn(&Value) -> String| {
            let before = former.map_or_else(|| "—".to_owned(), of);
            format!("{before} → {}", of(row))
        };
        let number = |row: &Value, name: &str| row[name].as_f64().unwrap_or_default();
        let grown = |row: &Value| {
            let bytes = number(row, "most_bytes") - number(row, "before_bytes");
            format!("{:.0}", bytes.max(0.0) / f64::from(1 << 20))
        };
        let newcomers = |row: &Value, of: &dyn Fn(&Value) -> String| {
            let newcomers = &row["newcomers"];
            if newcomers["made"] == 0 { "—".to_owned() } else { of(newcomers) }
        };
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} MiB | {} | {} | {} | {} | {} | {} | {} |",
            word(&row["attack"]),
            both(&|row| format!("{:.2}", number(row, "attacker_cores"))),
            both(&|row| format!("{:.2}", number(row, "cores"))),
            both(&grown),
            calls(row, "sent"),
            both(&|row| calls(row, "lost").to_string()),
            millis(&row["calm"]["p99_ms"]),
            both(&|row| millis(&row["beside"]["p99_ms"])),
            newcomers(row, &|of| of["made"].to_string()),
            both(&|row| newcomers(row, &|of| of["failed"].to_string())),
            both(&|row| newcomers(row, &|of| millis(&of["longest_ms"]))),
        );
    }
    table.trim_end().to_owned()
}

/// Of calls beside the attack and after it.
fn calls(row: &Value, name: &str) -> u64 {
    ["beside", "after"].iter().filter_map(|at| row[at][name].as_u64()).sum()
}

fn millis(value: &Value) -> String {
    match value.as_f64() {
        Some(ms) if ms < 10.0 => format!("{ms:.1} ms"),
        Some(ms) => format!("{ms:.0} ms"),
        None => "—".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(attack: &str, wrong: &[&str]) -> Value {
        let row = json!({
            "attack": attack,
            "attacker": "stranger",
            "sent": "7001 packets",
            "got": "ERR_POLICY_DENIED, 7002 times",
            "attacker_cores": 0.11,
            "calm_cores": 0.12,
            "cores": 0.13,
            "before_bytes": 104 << 20,
            "most_bytes": 105 << 20,
            "calm": { "sent": 10, "lost": 0, "p99_ms": 1.6 },
            "beside": { "sent": 107, "lost": 8, "p99_ms": 1.9 },
            "after": { "sent": 0, "lost": 0, "p99_ms": null },
            "newcomers": { "made": 110, "failed": 11, "longest_ms": 112.0 },
            "wrong": wrong,
        });
        let measured = json!({ "calls_per_second": 7003, "rows": [row], "left_out": [["a scan", "no namespaces"]] });
        json!({ "run": {}, "measured": measured, "before": measured })
    }

    #[test]
    fn the_page_shows_all_of_the_record() {
        let mut record = record("lines in the logs", &["eight calls were lost"]);
        record["before"]["rows"][0]["beside"]["lost"] = 1000.into();
        record["before"]["rows"][0]["got"] = "ERR_BEFORE".into();
        let page = page(&record).unwrap();
        let costs = "| 0.11 → 0.11 | 0.13 → 0.13 | 1 → 1 MiB | 107 | 1000 → 8 | 1.6 ms | 1.9 ms → \
                     1.9 ms | 110 | 11 → 11 | 112 ms → 112 ms |";
        for shown in [
            "7001 packets",
            "called 7003 times a second",
            "[`ERR_POLICY_DENIED`](errors.md#err_policy_denied), 7002 times",
            "| `ERR_BEFORE` |",
            costs,
            "**broken**: eight calls were lost",
            "0 of 1 attacks do no harm",
            "Not measured here: a scan (no namespaces)",
        ] {
            assert!(page.contains(shown), "{shown} in {page}");
        }
        assert!(!page.contains("{{"), "{page}");
    }

    /// A test that is renamed or removed holds nothing.
    #[test]
    fn every_attack_is_held_by_tests_that_exist() {
        let held: Vec<_> = HELD.iter().map(|(attack, _)| *attack).collect();
        let measured: Vec<_> = BEFORE.iter().map(|(attack, _)| *attack).collect();
        assert_eq!(held, measured);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let paths = crate::sources::paths(root).unwrap();
        let is_rust = |path: &&std::path::PathBuf| path.extension().is_some_and(|of| of == "rs");
        let code = paths.iter().filter(is_rust).map(|path| std::fs::read_to_string(path).unwrap());
        let code: Vec<String> = code.collect();
        for test in HELD.iter().chain(HELD_BY_TESTS_ALONE).flat_map(|(_, tests)| *tests) {
            let named = format!("fn {test}(");
            assert!(code.iter().any(|text| text.contains(&named)), "{test} is no test");
        }
    }

    #[test]
    fn without_a_former_program_the_page_shows_what_its_review_found() {
        let mut record = record("lines in the logs", &[]);
        record["before"] = Value::Null;
        let page = page(&record).unwrap();
        assert!(page.contains("*1,000 for each 1,000: 17,000 a second") && page.contains("— → 8"));
    }

    #[test]
    fn an_attack_without_a_line_about_the_time_before_writes_no_page() {
        let error = page(&record("a new attack", &[])).unwrap_err().to_string();
        assert!(error.contains("a new attack"), "{error}");
    }
}
