//! What is known of every file of the folder, for the list and for trends. A file is read again
//! only when it has changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tollway_record::LatencyUs;

use super::folder::{Folder, FolderError, Found};
use crate::contents::{self, clipped};
use crate::document::{Document, Kind, RunFile, unix_s};
use crate::figures;

/// Bytes of new files that are read for one page; the next page reads on.
const READ_AT_ONCE_BYTES: u64 = 512 << 20;

/// Rows of one file that trends know.
const ROWS_LIMIT: usize = 200;

/// Longest finding in a list, in characters.
const FINDING_LIMIT: usize = 220;

/// The files of a folder.
pub(crate) struct Shelf {
    pub(crate) folder: Folder,
    known: Mutex<HashMap<String, Arc<Entry>>>,
}

/// One file.
pub(crate) struct Entry {
    pub(crate) found: Found,
    /// Or why there is none.
    pub(crate) summary: Result<Summary, String>,
}

/// What a list and a trend need of a file.
pub(crate) struct Summary {
    pub(crate) kind: Kind,
    pub(crate) label: String,
    pub(crate) started_at: String,
    /// Absent when `started_at` is no time.
    pub(crate) unix_s: Option<f64>,
    /// What was measured, such as `direct, tollway`.
    pub(crate) subjects: String,
    /// The first sentence of it.
    pub(crate) finding: String,
    pub(crate) rows: Vec<RowFigures>,
    /// Everything that a filter searches, in small letters.
    searched: String,
}

/// The figures of one row over time.
pub(crate) struct RowFigures {
    pub(crate) id: String,
    pub(crate) latency_us: LatencyUs,
    pub(crate) achieved_rps: f64,
    pub(crate) errors: u64,
}

/// The folder's files, newest run first.
pub(crate) struct Listing {
    pub(crate) entries: Vec<Arc<Entry>>,
    /// Older files that are not listed.
    pub(crate) older: usize,
}

impl Shelf {
    pub(crate) fn new(folder: Folder) -> Self {
        Self { folder, known: Mutex::default() }
    }

    /// Looks at the folder, and reads what is new.
    ///
    /// # Errors
    /// [`FolderError`] when the folder cannot be read.
    pub(crate) fn listing(&self) -> Result<Listing, FolderError> {
        let (files, older) = self.folder.list()?;
        // Held all along, so that two pages never read the same files at once. A thread that
        // panicked while it had the lock left whole entries.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *known);
        let mut left_bytes = READ_AT_ONCE_BYTES;
        let mut entries = Vec::with_capacity(files.len());
        for found in files {
            let unchanged = before.remove(&found.name).filter(|entry| entry.found == found);
            let entry = match unchanged {
                Some(entry) => entry,
                None if found.stamp.length > left_bytes => {
                    let summary = Err("not read yet: load this page again".to_owned());
                    entries.push(Arc::new(Entry { found, summary }));
                    continue;
                }
                None => {
                    left_bytes -= found.stamp.length;
                    Arc::new(self.read(found))
                }
            };
            known.insert(entry.found.name.clone(), Arc::clone(&entry));
            entries.push(entry);
        }
        // By the time of the run where it is known: a copy of a file is not a new run. What
        // cannot be read comes last.
        let broken = |entry: &Arc<Entry>| entry.summary.is_err();
        entries.sort_by(|a, b| {
            broken(a).cmp(&broken(b)).then_with(|| b.at_unix_s().total_cmp(&a.at_unix_s()))
        });
        Ok(Listing { entries, older })
    }

    fn read(&self, found: Found) -> Entry {
        let document = self.folder.document(&found.name);
        let summary = document
            .map(|document| Summary::of(&document, &found.name))
            .map_err(|error| tollway_model::chain(&error));
        Entry { found, summary }
    }
}

impl Entry {
    /// When the run began; for files without that time, when they were written.
    fn at_unix_s(&self) -> f64 {
        let recorded = self.summary.as_ref().ok().and_then(|summary| summary.unix_s);
        recorded.unwrap_or_else(|| {
            let since = self.found.stamp.modified.duration_since(std::time::UNIX_EPOCH);
            since.unwrap_or_default().as_secs_f64()
        })
    }

    /// The text that a filter searches, in small letters; of a broken file its name.
    pub(crate) fn words(&self) -> String {
        let words = self.summary.as_ref().map(|summary| summary.searched.clone());
        words.unwrap_or_else(|_| self.found.name.to_lowercase())
    }

    /// Whether the entry has every word of the filter.
    pub(crate) fn matches(&self, filter: &str) -> bool {
        let words = self.words();
        filter.to_lowercase().split_whitespace().all(|word| words.contains(word))
    }
}

impl Summary {
    fn of(document: &Document, file: &str) -> Self {
        let (subjects, finding) = match document {
            Document::Experiment(record) => {
                let mut names: Vec<String> = Vec::new();
                for label in record.rows.iter().map(|row| row.conditions.label()) {
                    if !names.contains(&label) {
                        names.push(label);
                    }
                }
                (names.join(", "), contents::headline(record).into_iter().next())
            }
            Document::Run(file) => (file.run.target.clone(), Some(run_finding(file))),
        };
        let (label, subjects) = (clipped(document.label()), clipped(&subjects));
        let finding = shortened(&finding.unwrap_or_default());
        let rows: Vec<RowFigures> = document
            .groups()
            .into_iter()
            .flatten()
            .take(ROWS_LIMIT)
            .map(|part| RowFigures {
                id: part.id.chars().take(FINDING_LIMIT).collect(),
                latency_us: part.traffic.latency_us,
                achieved_rps: part.traffic.achieved_rps,
                errors: part.traffic.errors,
            })
            .collect();
        let kind = document.kind();
        let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        let words =
            [file, &label, &subjects, kind.word(), &clipped(document.started_at()), &ids.join(" ")];
        Self {
            searched: words.join(" ").to_lowercase(),
            unix_s: unix_s(document.started_at()),
            started_at: clipped(document.started_at()),
            kind,
            label,
            subjects,
            finding,
            rows,
        }
    }
}

fn run_finding(file: &RunFile) -> String {
    contents::run_headline(file).into_iter().next().unwrap_or_default()
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(FINDING_LIMIT) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// A row's figures as one line of a table, in microseconds.
pub(crate) fn figures_of(latency: &LatencyUs) -> [String; 7] {
    let LatencyUs { mean, p50, p75, p90, p99, p999, max, n: _ } = *latency;
    [mean, p50, p75, p90, p99, p999, max]
        .map(|us| us.map_or_else(|| figures::NONE.to_owned(), figures::time))
}
