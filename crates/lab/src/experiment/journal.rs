//! What an experiment has done so far, durably: a killed one goes on from here.
//!
//! One line of JSON for the header, then one for each finished run, each synced to disk before
//! the next run starts. A last line that was cut off by the kill is dropped.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tollway_record::neighbours::Stage;
use tollway_record::record::{Block, FabricBlock};

use super::gate::Gate;

use crate::scenario::LengthName;

/// The journal's file in the working directory.
pub(super) const FILE: &str = crate::work_dir::JOURNAL;
/// Longest journal that is read, bytes.
const LIMIT_BYTES: u64 = 1 << 30;

/// The request of an experiment, which a resumed one must match.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The text of the scenario's file.
    pub scenario: String,
    pub started_at: SystemTime,
    /// Of the program: another one would measure something else.
    pub version: String,
    pub length: LengthName,
    pub blocks: Option<u32>,
    pub window_s: Option<f64>,
    pub subjects: Option<Vec<String>>,
    /// Descriptions of subjects that are not built in.
    #[serde(default)]
    pub subject_files: Vec<SubjectText>,
    pub seed: u64,
    pub command_line: Vec<String>,
}

/// A file that describes a subject, as it was when the experiment began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubjectText {
    /// What the user called it, for errors.
    pub source: String,
    pub text: String,
}

/// One finished run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Entry {
    /// Of a load generator.
    Run {
        cell: String,
        block: Box<Block>,
        set_aside: bool,
        load_command: String,
        connections: u32,
    },
    /// Of rounds of neighbours.
    Rounds {
        cell: String,
        block: Box<FabricBlock>,
        set_aside: bool,
    },
    Idle(IdleEntry),
}

/// What a subject's processes used without load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct IdleEntry {
    pub(super) cell: String,
    pub(super) block: u32,
    pub(super) duration_s: f64,
    /// Seconds of CPU time and bytes of resident memory by role.
    pub(super) usage: BTreeMap<String, (f64, u64)>,
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot write the journal {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read the journal {path}; give the directory that the interrupted run named")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} has more than {LIMIT_BYTES} bytes, too many for a journal")]
    TooLong { path: PathBuf },
    #[error("line {line} of {path} is no journal's; begin the experiment anew")]
    Line { path: PathBuf, line: usize, source: serde_json::Error },
    #[error("the journal {path} is empty; begin the experiment anew")]
    Empty { path: PathBuf },
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    header: Header,
    entries: Vec<Entry>,
    /// Runs written by this process.
    written: usize,
}

impl Entry {
    /// Id of the cell it belongs to.
    pub(super) fn cell(&self) -> &str {
        match self {
            Self::Run { cell, .. } | Self::Rounds { cell, .. } => cell,
            Self::Idle(idle) => &idle.cell,
        }
    }

    /// Whether something else on the machine disturbed it, which is noted in the block of a load.
    pub(super) fn judge(&mut self, gate: Gate) -> bool {
        match self {
            Self::Run { block, .. } => {
                block.outside_gate = gate.judge(block);
                !block.outside_gate.is_empty()
            }
            Self::Rounds { block, .. } => {
                !gate.reasons(block.steal_fraction, block.foreign_cpu_cores).is_empty()
            }
            Self::Idle(_) => false,
        }
    }

    /// Notes whether it is repeated.
    pub(super) fn set_aside(&mut self, is_repeated: bool) {
        match self {
            Self::Run { set_aside, .. } | Self::Rounds { set_aside, .. } => {
                *set_aside = is_repeated
            }
            Self::Idle(_) => {}
        }
    }
}

impl Journal {
    /// A new one in a directory.
    pub fn create(dir: &Path, header: &Header) -> Result<Self, JournalError> {
        let path = dir.join(FILE);
        let file = File::options().create_new(true).append(true).open(&path);
        let file = file.map_err(|source| JournalError::Write { path: path.clone(), source })?;
        let header = header.clone();
        let mut journal = Self { path, file, header, entries: Vec::new(), written: 0 };
        let line = serde_json::to_string(&journal.header);
        journal.append(line)?;
        Ok(journal)
    }

    /// The one of an earlier process.
    pub fn open(dir: &Path) -> Result<Self, JournalError> {
        let path = dir.join(FILE);
        let read = |source| JournalError::Read { path: path.clone(), source };
        let length = fs::metadata(&path).map_err(read)?.len();
        if length > LIMIT_BYTES {
            return Err(JournalError::TooLong { path });
        }
        let text = fs::read_to_string(&path).map_err(read)?;
        let (header, entries) = parse(&text, &path)?;
        let write = |source| JournalError::Write { path: path.clone(), source };
        let file = File::options().append(true).open(&path).map_err(write)?;
        // A line that was cut off must not run into the next.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64).map_err(write)?;
        Ok(Self { path, file, header, entries, written: 0 })
    }

    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    #[must_use]
    pub fn started_at(&self) -> SystemTime {
        self.header.started_at
    }

    /// Measured time of earlier processes, about.
    #[must_use]
    pub fn spent_before(&self) -> Duration {
        let seconds = self.entries.iter().map(|entry| match entry {
            Entry::Run { block, .. } => block.traffic.duration_s,
            Entry::Rounds { block, .. } => {
                let total_us = block.stages_us.get(&Stage::Total).copied().unwrap_or_default();
                block.rounds as f64 * total_us / 1e6
            }
            Entry::Idle(idle) => idle.duration_s,
        });
        Duration::try_from_secs_f64(seconds.sum()).unwrap_or_default()
    }

    /// Runs it holds.
    #[must_use]
    pub fn finished(&self) -> usize {
        self.entries.len() + self.written
    }

    /// What earlier processes wrote.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns when it is on disk.
    pub(super) fn write(&mut self, entry: &Entry) -> Result<(), JournalError> {
        self.append(serde_json::to_string(entry))?;
        self.written += 1;
        Ok(())
    }

    fn append(&mut self, line: Result<String, serde_json::Error>) -> Result<(), JournalError> {
        let written = line.map_err(io::Error::from).and_then(|mut line| {
            line.push('\n');
            self.file.write_all(line.as_bytes())?;
            self.file.sync_data()
        });
        written.map_err(|source| JournalError::Write { path: self.path.clone(), source })
    }
}

fn parse(text: &str, path: &Path) -> Result<(Header, Vec<Entry>), JournalError> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let failed = |line, source| JournalError::Line { path: path.into(), line, source };
    let mut lines = whole.lines().enumerate();
    let (_, first) = lines.next().ok_or_else(|| JournalError::Empty { path: path.into() })?;
    let header = serde_json::from_str(first).map_err(|source| failed(1, source))?;
    let entries = lines.map(|(index, line)| {
        serde_json::from_str(line).map_err(|source| failed(index + 1, source))
    });
    Ok((header, entries.collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            scenario: "name: x\n".to_owned(),
            started_at: SystemTime::UNIX_EPOCH,
            version: "0".to_owned(),
            length: LengthName::Quick,
            blocks: Some(2),
            window_s: None,
            subjects: Some(vec!["tollway:policy".to_owned()]),
            subject_files: vec![SubjectText { source: "x.yaml".into(), text: "name: x\n".into() }],
            seed: 1,
            command_line: vec!["tollway".to_owned()],
        }
    }

    fn idle(block: u32) -> Entry {
        let usage = BTreeMap::from([("gateway".to_owned(), (0.1, 5))]);
        Entry::Idle(IdleEntry { cell: "a".to_owned(), block, duration_s: 2.0, usage })
    }

    #[test]
    fn what_was_written_is_read_again_and_added_to() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::create(dir.path(), &header()).unwrap();
        journal.write(&idle(0)).unwrap();
        let mut again = Journal::open(dir.path()).unwrap();
        assert_eq!((again.header(), again.entries()), (&header(), &[idle(0)][..]));
        again.write(&idle(1)).unwrap();
        let last = Journal::open(dir.path()).unwrap();
        assert_eq!((last.finished(), last.spent_before()), (2, Duration::from_secs(4)));
    }

    #[test]
    fn a_line_that_was_cut_off_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::create(dir.path(), &header()).unwrap();
        journal.write(&idle(0)).unwrap();
        journal.file.write_all(b"{\"idle\":{\"cell\":\"a\",\"blo").unwrap();
        let mut again = Journal::open(dir.path()).unwrap();
        assert_eq!(again.finished(), 1);
        again.write(&idle(1)).unwrap();
        assert_eq!(Journal::open(dir.path()).unwrap().entries(), [idle(0), idle(1)]);
    }

    #[test]
    fn what_is_no_journal_is_refused_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let error = |dir: &Path| Journal::open(dir).unwrap_err().to_string();
        assert!(error(dir.path()).contains("cannot read the journal"), "{}", error(dir.path()));
        fs::write(dir.path().join(FILE), "").unwrap();
        assert!(error(dir.path()).contains("is empty"), "{}", error(dir.path()));
        fs::write(dir.path().join(FILE), "{}\n").unwrap();
        assert!(error(dir.path()).starts_with("line 1 of"), "{}", error(dir.path()));
    }
}
