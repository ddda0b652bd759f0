//! The experiments that the proof is made of. Each is a scenario of its own, so that one that
//! fails takes none of the others with it, and one that was disturbed can be run again alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tollway_record::Record;

use crate::process;
use crate::proof::{Extent, names_in};

/// Where the scenarios lie, from the root.
const FOLDER: &str = "xtask/src/proof/speed";
/// Names the parts that are run, with commas between them; none, to conclude again. The others'
/// records of this build remain.
const ONLY: &str = "TOLLWAY_SPEED_PARTS";

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

const fn lossy(name: &'static str, file: &'static str, loss: &'static str) -> Part {
    Part { name, file, instead: Some(("loss_pct: 0", loss)) }
}

pub(super) const PARTS: &[Part] = &[
    part("near", "near.yaml"),
    part("others", "others.yaml"),
    part("fronts", "fronts.yaml"),
    part("duties", "duties.yaml"),
    part("gateway", "gateway.yaml"),
    part("bulk", "bulk.yaml"),
    part("memory", "memory.yaml"),
    part("limits", "limits.yaml"),
    part("far", "far.yaml"),
    lossy("far-0.1", "far.yaml", "loss_pct: 0.1"),
    lossy("far-1", "far.yaml", "loss_pct: 1"),
    part("ways", "ways.yaml"),
    lossy("ways-0.1", "ways.yaml", "loss_pct: 0.1"),
    lossy("ways-1", "ways.yaml", "loss_pct: 1"),
];

/// The records of all parts by name, or why there is none.
pub(super) struct Records(BTreeMap<&'static str, Result<Record>>);

impl Records {
    /// Runs the parts that are wanted, one after the other.
    ///
    /// # Errors
    /// When parts are wanted that there are not.
    pub(super) fn run(root: &Path, target: &Path, extent: Extent) -> Result<Self> {
        let only = names_in(ONLY).map(|names| wanted(&names)).transpose()?;
        let run = |part: &Part| {
            println!("\n=== {} ({})", part.name, part.file);
            let is_wanted = only.as_ref().is_none_or(|only| only.contains(&part.name));
            let found =
                if is_wanted { part.run(root, target, extent) } else { part.earlier(target) };
            if let Err(error) = &found {
                eprintln!("xtask: {}: {error:#}", part.name);
            }
            (part.name, found)
        };
        Ok(Self(PARTS.iter().map(run).collect()))
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

    /// How many runs count that something else disturbed, and how many there are in all.
    pub(super) fn disturbed(&self) -> (usize, usize) {
        let blocks =
            || self.measured().flat_map(|(_, record)| &record.rows).flat_map(|row| &row.blocks);
        (blocks().filter(|block| !block.outside_gate.is_empty()).count(), blocks().count())
    }
}

/// The parts of these names.
fn wanted(names: &[String]) -> Result<Vec<&'static str>> {
    let find = |name: &String| {
        let part = PARTS.iter().find(|part| part.name == name);
        part.map(|part| part.name).with_context(|| {
            let names: Vec<_> = PARTS.iter().map(|part| part.name).collect();
            format!("{ONLY}: there is no part `{name}`; there are {}", names.join(", "))
        })
    };
    names.iter().map(find).collect()
}

impl Part {
    /// Its record.
    fn made(&self, target: &Path) -> PathBuf {
        target.join("speed").join(format!("{}.json", self.name))
    }

    fn run(&self, root: &Path, target: &Path, extent: Extent) -> Result<Record> {
        let folder = target.join("speed");
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("could not make {}", folder.display()))?;
        let made = self.made(target);
        // What an earlier run left must not pass for this one's.
        let _ = std::fs::remove_file(&made);
        let scenario = self.scenario(root, &folder)?;
        let mut lab = Command::new(program(target));
        lab.current_dir(root).args(["lab", "run"]).arg(scenario);
        lab.arg("--install-peers").arg("--json").arg(&made);
        if extent == Extent::Quick {
            lab.arg("--quick");
        }
        process::run(&mut lab)?;
        read(&made)
    }

    fn earlier(&self, target: &Path) -> Result<Record> {
        let made = self.made_before(target)?;
        println!("using {}", made.display());
        read(&made)
    }

    /// Where an earlier run has left a record, unless the program is newer.
    fn made_before(&self, target: &Path) -> Result<PathBuf> {
        let changed = |path: &Path| path.metadata().and_then(|data| data.modified());
        let made = self.made(target);
        let at = changed(&made).with_context(|| format!("there is no {}", made.display()))?;
        if at < changed(&program(target))? {
            bail!("{} is of an earlier build; run this part as well", made.display());
        }
        Ok(made)
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

pub(super) fn program(target: &Path) -> PathBuf {
    target.join("release/tollway")
}

pub(super) fn read(made: &Path) -> Result<Record> {
    let text = std::fs::read_to_string(made)
        .with_context(|| format!("could not read {}", made.display()))?;
    Ok(Record::from_json(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::names_of;
    use crate::workspace::Workspace;

    #[test]
    fn parts_are_wanted_by_name() {
        assert_eq!(wanted(&names_of("near, far-1")).unwrap(), ["near", "far-1"]);
        assert!(wanted(&names_of("")).unwrap().is_empty());
        let error = wanted(&names_of("near,nowhere")).unwrap_err().to_string();
        assert!(error.contains("no part `nowhere`; there are near, others,"), "{error}");
    }

    #[test]
    fn records_of_an_earlier_build_do_not_stand() {
        let target = tempfile::tempdir().unwrap();
        let target = target.path();
        for folder in ["release", "speed"] {
            std::fs::create_dir(target.join(folder)).unwrap();
        }
        let part = &PARTS[0];
        let at = |path: PathBuf, s: u64| {
            let file = std::fs::File::create(path).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(s)).unwrap();
        };
        let error = part.made_before(target).unwrap_err().to_string();
        assert!(error.starts_with("there is no "), "{error}");
        at(program(target), 1);
        at(part.made(target), 2);
        assert_eq!(part.made_before(target).unwrap(), part.made(target));
        at(program(target), 3);
        let error = part.made_before(target).unwrap_err().to_string();
        assert!(error.contains("is of an earlier build"), "{error}");
    }

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
