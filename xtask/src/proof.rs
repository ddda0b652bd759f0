//! The measured proofs: programs that show on this machine that a promise holds.
//!
//! A proof differs from a test in that it measures and takes its time. Each is one line in
//! [`PROOFS`] and a function that prints its figures and fails where a promise is broken.

mod load;
mod reliability;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::process;

struct Proof {
    name: &'static str,
    about: &'static str,
    run: fn() -> Result<()>,
}

const PROOFS: &[Proof] = &[
    Proof {
        name: "reliability",
        about: "strikes every process under load; writes docs/reliability.md (ten minutes)",
        run: reliability::run,
    },
    Proof {
        name: "load",
        about: "tollway load beside wrk and h2load; writes docs/load.md (six minutes)",
        run: load::run,
    },
];

/// Runs the proof called `name`; without a name, lists all of them.
pub(crate) fn run(name: Option<&str>) -> Result<()> {
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
    (proof.run)()
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

fn write(path: &PathBuf, text: &str) -> Result<()> {
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
        let error = run(Some("no-such-proof")).unwrap_err().to_string();
        assert!(error.contains("`no-such-proof`"), "{error}");
    }
}
