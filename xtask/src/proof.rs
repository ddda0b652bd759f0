//! The measured proofs: programs that show on this machine that a promise holds.
//!
//! A proof differs from a test in that it measures and takes its time. Each is one line in
//! [`PROOFS`] and a function that prints its figures and fails where a promise is broken.

mod reliability;

use anyhow::{Context, Result};

struct Proof {
    name: &'static str,
    about: &'static str,
    run: fn() -> Result<()>,
}

const PROOFS: &[Proof] = &[Proof {
    name: "reliability",
    about: "strikes every process under load; writes docs/reliability.md (ten minutes)",
    run: reliability::run,
}];

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_proof_is_refused_by_name() {
        let error = run(Some("no-such-proof")).unwrap_err().to_string();
        assert!(error.contains("`no-such-proof`"), "{error}");
    }
}
