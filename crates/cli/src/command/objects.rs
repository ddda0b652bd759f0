//! Objects on the command line: their kinds and names, and the files that they are read from.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use tollway_config::{manifest, yaml};
use tollway_model::{Label, Object, ObjectKind, ObjectName};

/// Files of one directory that are read.
const FILES_LIMIT: usize = 1000;
/// Endings of files that are taken from a directory.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// A kind of objects, as a command names it.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Kind {
    #[value(alias = "policies")]
    Policy,
    #[value(alias = "routes")]
    Route,
    #[value(alias = "traffic-policies")]
    TrafficPolicy,
    #[value(alias = "failovers")]
    Failover,
    #[value(alias = "egresses")]
    Egress,
}

impl From<Kind> for ObjectKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Policy => Self::Policy,
            Kind::Route => Self::Route,
            Kind::TrafficPolicy => Self::TrafficPolicy,
            Kind::Failover => Self::Failover,
            Kind::Egress => Self::Egress,
        }
    }
}

/// Reads `NAME` or `NAMESPACE/NAME`.
pub(crate) fn parse_name(text: &str, namespace: &Label) -> Result<ObjectName> {
    let name = match text.split_once('/') {
        Some((namespace, name)) => ObjectName::new(namespace, name),
        None => ObjectName::new(namespace.as_str(), text),
    };
    name.with_context(|| format!("`{text}`"))
}

/// The objects of files and directories, in order; a mistake in any of them is an error.
pub(crate) fn read_files(paths: &[PathBuf]) -> Result<Vec<Object>> {
    let mut objects = Vec::new();
    for path in paths {
        let files = if path.is_dir() { directory(path)? } else { vec![path.clone()] };
        for file in files {
            let shown = file.display().to_string();
            let text = yaml::read_file(&file)?;
            let source = if shown == "-" { "standard input" } else { &shown };
            objects.extend(manifest::read(&text, source)?);
        }
    }
    if objects.is_empty() {
        bail!("there is no object in what was given");
    }
    Ok(objects)
}

fn directory(path: &Path) -> Result<Vec<PathBuf>> {
    let failed = || format!("cannot read the directory {}", path.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).with_context(failed)? {
        let file = entry.with_context(failed)?.path();
        let ending = file.extension().and_then(|ending| ending.to_str());
        if ending.is_some_and(|ending| ENDINGS.contains(&ending)) {
            files.push(file);
        }
        if files.len() > FILES_LIMIT {
            bail!("{} has more than {FILES_LIMIT} files", path.display());
        }
    }
    files.sort();
    Ok(files)
}
