//! The measured proofs: programs that show on this machine that a promise holds.
//!
//! A proof differs from a test in that it measures and takes its time. Each is one line in
//! [`PROOFS`] and a function that prints its figures and fails where a promise is broken.

mod actors;
mod alone;
mod apps;
mod attacks;
pub(crate) mod dapr;
mod failover;
mod fuzz;
mod kubernetes;
mod load;
mod mutants;
mod neighbours;
mod reliability;
mod speed;
mod transport;
mod verdicts;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::process;
use crate::tools;
use crate::workspace::Workspace;

struct Proof {
    name: &'static str,
    about: &'static str,
    run: fn(&Workspace, &Wanted<'_>) -> Result<()>,
    /// Whether there is a short form.
    may_be_quick: bool,
}

/// How much of a proof is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Whole,
    /// Everything once or twice, to see that it works; concludes and writes nothing.
    Quick,
}

/// What of a proof is run.
pub(crate) struct Wanted<'a> {
    pub(crate) extent: Extent,
    /// A former program to measure as well, for the proofs `attacks` and `speed`.
    pub(crate) before: Option<&'a Path>,
}

impl Wanted<'_> {
    fn is_quick(&self) -> bool {
        self.extent == Extent::Quick
    }
}

/// The proofs that a former program can be measured in.
const ATTACKS: &str = "attacks";
const SPEED: &str = "speed";

const PROOFS: &[Proof] = &[
    Proof {
        name: "reliability",
        about: "strikes every process under load; writes docs/reliability.md (ten minutes)",
        run: |workspace, _| reliability::run(&workspace.root),
        may_be_quick: false,
    },
    Proof {
        name: "transport",
        about: "slow, silent and many peers, attacks; writes docs/transport.md (15 minutes)",
        run: |workspace, _| transport::run(&workspace.root),
        may_be_quick: false,
    },
    Proof {
        name: ATTACKS,
        about: "attacks by strangers, workloads, joined networks and guests beside honest calls; \
                writes docs/attacks.md (ten minutes)",
        run: attacks::run,
        may_be_quick: true,
    },
    Proof {
        name: "load",
        about: "tollway load beside wrk, k6, h2load, ghz, iperf3; writes docs/load.md (15 minutes)",
        run: |workspace, wanted| load::run(workspace, wanted.extent),
        may_be_quick: true,
    },
    Proof {
        name: "verdicts",
        about: "the same twice, and 3 % more: what the lab says; writes docs/verdicts.md (8 minutes)",
        run: |workspace, wanted| verdicts::run(workspace, wanted.extent),
        may_be_quick: true,
    },
    Proof {
        name: SPEED,
        about: "the data plane beside other proxies; writes docs/performance.md (80 minutes)",
        run: speed::run,
        may_be_quick: true,
    },
    Proof {
        name: "actors",
        about: "strikes hosts of actors under calls; writes docs/actors.md (half an hour)",
        run: |workspace, wanted| actors::run(workspace, wanted.extent),
        may_be_quick: true,
    },
    Proof {
        name: "failover",
        about: "networks that fall silent, over links that pause and lose; writes \
                docs/silent-networks.md (ten minutes)",
        run: |workspace, wanted| failover::run(workspace, wanted.extent),
        may_be_quick: true,
    },
    Proof {
        name: "neighbours",
        about: "kills master and agent while neighbours change; writes docs/neighbours-faults.md \
                (five minutes)",
        run: |workspace, wanted| neighbours::run(workspace, wanted.extent),
        may_be_quick: true,
    },
    Proof {
        name: "kubernetes",
        about: "kills parts of a mesh on two real clusters, and measures what it costs them; writes \
                docs/kubernetes-faults.md (two hours)",
        run: |workspace, wanted| kubernetes::run(workspace, wanted.extent),
        may_be_quick: true,
    },
    Proof {
        name: "dapr",
        about: "Dapr's own suite in daprd's place; writes docs/dapr-suite.md (half an hour)",
        run: |workspace, wanted| dapr::run(workspace, wanted.extent),
        may_be_quick: true,
    },
    Proof {
        name: "apps",
        about: "a Dapr SDK's own tests and Dapr's quickstarts as they are; writes docs/dapr-apps.md \
                (15 minutes)",
        run: |workspace, _| apps::run(workspace),
        may_be_quick: false,
    },
    Proof {
        name: "fuzz",
        about: "an hour of inputs for every parser; writes docs/fuzzing.md (six hours)",
        run: |workspace, wanted| fuzz::run(workspace, wanted.extent),
        may_be_quick: true,
    },
    Proof {
        name: "mutants",
        about: "every change to the code that decides who may do what; writes docs/mutants.md \
                (three hours)",
        run: |workspace, wanted| mutants::run(workspace, wanted.extent),
        may_be_quick: true,
    },
];

/// Runs the proof called `name`; without a name, lists all of them.
pub(crate) fn run(workspace: &Workspace, name: Option<&str>, wanted: &Wanted<'_>) -> Result<()> {
    let Some(name) = name else {
        for proof in PROOFS {
            println!("{:<16} {}", proof.name, proof.about);
        }
        println!("{} proofs", PROOFS.len());
        return Ok(());
    };
    let proof = PROOFS.iter().find(|proof| proof.name == name).with_context(|| {
        format!("there is no proof called `{name}`: `cargo xtask proof` lists them")
    })?;
    if wanted.is_quick() && !proof.may_be_quick {
        bail!("`{}` has no quick form; leave --quick out", proof.name);
    }
    let takes_former = name == SPEED || (name == ATTACKS && !wanted.is_quick());
    if wanted.before.is_some() && !takes_former {
        bail!(
            "only `{SPEED}` and a whole `{ATTACKS}` measure a former program; leave --before out"
        );
    }
    tools::install_packages_for_proofs(workspace);
    (proof.run)(workspace, wanted)
}

/// The names that a variable of the environment lists, if it is set.
fn names_in(variable: &str) -> Option<Vec<String>> {
    std::env::var(variable).ok().map(|list| names_of(&list))
}

/// Names with commas between them.
fn names_of(list: &str) -> Vec<String> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// Where, when and of what the figures are; `build` is the profile.
fn facts(root: &Path, build: &str) -> Result<Value> {
    let print = |program: &str, arguments: &[&str]| {
        process::output(Command::new(program).args(arguments).current_dir(root))
            .map(|text| text.trim().to_owned())
    };
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    Ok(json!({
        "date": print("date", &["-u", "+%Y-%m-%d"])?,
        "commit": print("git", &["rev-parse", "--short", "HEAD"])?,
        "kernel": print("uname", &["-sr"])?,
        "cpu": model.map_or("unknown", |(_, name)| name),
        "cores": cpu.lines().filter(|line| line.starts_with("processor")).count(),
        "build": build,
    }))
}

/// `2026-11-21, commit 1234567, release build, Linux 6.1, 2 cores (…)`: what [`facts`] found.
fn facts_text(run: &Value) -> String {
    let word = |name: &str| word(&run[name]);
    format!(
        "{}, commit {}, {} build, {}, {} cores ({})",
        word("date"),
        word("commit"),
        word("build"),
        word("kernel"),
        run["cores"],
        word("cpu"),
    )
}

/// Keeps what was measured, and writes the page that shows it.
fn publish(
    root: &Path,
    (record_at, record): (&str, &Value),
    (page_at, page): (&str, &str),
) -> Result<()> {
    write(&root.join(record_at), &format!("{}\n", serde_json::to_string_pretty(record)?))?;
    write(&root.join(page_at), page)?;
    println!("\nwrote {record_at} and {page_at}");
    Ok(())
}

/// The packages that tests of whole processes need built together, so that cargo compiles their
/// dependencies once.
const PROCESS_TESTS: [&str; 4] = ["-p", "tollway", "-p", "tollway-tests"];

/// Builds our program and the program of tests called `test`; `options` are more for cargo.
fn build_process_tests(test: &str, options: &[&str]) -> Result<()> {
    let mut build = process::cargo();
    build.arg("build").args(options).args(PROCESS_TESTS).args(["--bins", "--test", test]);
    process::run(&mut build)
}

/// Runs tests of that program; what is added to the command is for the test harness.
fn process_tests(test: &str, options: &[&str]) -> Command {
    let mut tests = process::cargo();
    tests.arg("test").args(options).args(PROCESS_TESTS).args(["--test", test, "--"]);
    tests
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn write(path: &Path, text: &str) -> Result<()> {
    let dir = path.parent().context("a file lies in a directory")?;
    std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::write(path, text))
        .with_context(|| format!("could not write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_proof_is_refused_by_name() {
        let workspace = Workspace::load().unwrap();
        let wanted = Wanted { extent: Extent::Whole, before: None };
        let error = run(&workspace, Some("no-such-proof"), &wanted).unwrap_err().to_string();
        assert!(error.contains("`no-such-proof`"), "{error}");
    }
}
