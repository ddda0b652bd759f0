//! The experiments that the proof is made of. Each is a scenario of its own, so that one that
//! fails takes none of the others with it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tollway_record::Record;

use crate::process;
use crate::proof::Extent;

/// Where the scenarios lie, from the root.
const FOLDER: &str = "xtask/src/proof/speed";

/// One experiment.
pub(super) struct Part {
    pub(super) name: &'static str,
    /// File name of its scenario.
    file: &'static str,
    /// What of the scenario's text is replaced, and by what.
    instead: Option<(&'static str, &'static str)>,
}

const fn part(name: &'static str, file: &'static str) -> Part {
    Part { name, file, instead: None }
}

const fn lossy(name: &'static str, loss: &'static str) -> Part {
    Part { name, file: "far.yaml", instead: Some(("loss_pct: 0", loss)) }
}

pub(super) const PARTS: &[Part] = &[
    part("near", "near.yaml"),
    part("fronts", "fronts.yaml"),
    part("duties", "duties.yaml"),
    part("gateway", "gateway.yaml"),
    part("bulk", "bulk.yaml"),
    part("memory", "memory.yaml"),
    part("limits", "limits.yaml"),
    part("far", "far.yaml"),
    lossy("far-0.1", "loss_pct: 0.1"),
    lossy("far-1", "loss_pct: 1"),
];

/// The records of all parts by name, or why there is none.
pub(super) struct Records(BTreeMap<&'static str, Result<Record>>);

impl Records {
    /// Runs all parts, one after the other.
    pub(super) fn run(root: &Path, target: &Path, extent: Extent) -> Self {
        let run = |part: &Part| {
            println!("\n=== {} ({})", part.name, part.file);
            let found = part.run(root, target, extent);
            if let Err(error) = &found {
                eprintln!("xtask: {}: {error:#}", part.name);
            }
            (part.name, found)
        };
        Self(PARTS.iter().map(run).collect())
    }

    /// The record of a part.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn of(&self, part: &str) -> Result<&Record, String> {
        match self.0.get(part) {
            Some(Ok(record)) => Ok(record),
            Some(Err(error)) => Err(format!("{error:#}")),
            None => Err(format!("there is no part `{part}`")),
        }
    }

    /// Those that there are.
    pub(super) fn measured(&self) -> impl Iterator<Item = (&'static str, &Record)> {
        self.0.iter().filter_map(|(name, record)| Some((*name, record.as_ref().ok()?)))
    }
}

impl Part {
    fn run(&self, root: &Path, target: &Path, extent: Extent) -> Result<Record> {
        let folder = target.join("speed");
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("could not make {}", folder.display()))?;
        let made = folder.join(format!("{}.json", self.name));
        // What an earlier run left must not pass for this one's.
        let _ = std::fs::remove_file(&made);
        let scenario = self.scenario(root, &folder)?;
        let mut lab = Command::new(target.join("release/tollway"));
        lab.current_dir(root).args(["lab", "run"]).arg(scenario);
        lab.args(["--no-repeats", "--json"]).arg(&made);
        if extent == Extent::Quick {
            lab.arg("--quick");
        }
        process::run(&mut lab)?;
        let text = std::fs::read_to_string(&made)
            .with_context(|| format!("could not read {}", made.display()))?;
        Ok(Record::from_json(&text)?)
    }

    /// Its scenario's file, which is written where the text is another one.
    fn scenario(&self, root: &Path, folder: &Path) -> Result<PathBuf> {
        let path = root.join(FOLDER).join(self.file);
        let Some((from, to)) = self.instead else { return Ok(path) };
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("could not read {}", path.display()))?;
        let changed = folder.join(format!("{}.yaml", self.name));
        std::fs::write(&changed, text.replace(from, to))
            .with_context(|| format!("could not write {}", changed.display()))?;
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn every_part_has_its_scenario() {
        let root = Workspace::load().unwrap().root;
        for part in PARTS {
            let text = std::fs::read_to_string(root.join(FOLDER).join(part.file)).unwrap();
            let (from, to) = part.instead.unwrap_or(("name:", "name:"));
            assert!(text.contains(from), "{}: {from}", part.name);
            assert_eq!(text.replace(from, to) == text, part.instead.is_none(), "{}", part.name);
        }
    }
}
