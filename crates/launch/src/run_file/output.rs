//! Where the lines of apps and their sidecars go: to the terminal, with the name of the process in
//! front, and to files below the app's folder.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use time::OffsetDateTime;
use tollway_net::process::Lines;

use super::app_plan::Destination;

/// Longest wait for the last lines of processes that have ended; others may hold their streams.
pub(super) const LAST_LINES_WITHIN: Duration = Duration::from_secs(1);

/// Where the lines of a process go.
pub(super) struct Output {
    pub(super) lines: Lines,
    /// Its file.
    pub(super) path: Option<PathBuf>,
}

impl Output {
    /// Of the process `what` (`app` or `daprd`) of an app. Without `is_alone` its lines on the console
    /// have the app's name in front.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub(super) fn new(
        destination: Destination,
        what: &str,
        app_id: &str,
        folder: &Path,
        is_alone: bool,
    ) -> io::Result<Self> {
        let path = destination
            .is_file
            .then(|| folder.join(".dapr/logs").join(format!("{app_id}_{what}_{}.log", stamp())));
        let file = path.as_deref().map(|path| {
            std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
            OpenOptions::new().create(true).append(true).open(path)
        });
        let name = if what == "app" { "APP" } else { "DAPRD" };
        let prefix = destination.is_console.then(|| match (is_alone, what) {
            (false, _) => format!("== {name} - {app_id} == "),
            (true, "app") => format!("== {name} == "),
            (true, _) => String::new(),
        });
        Ok(Self { lines: Lines::new(prefix, file.transpose()?), path })
    }
}

/// Now, in UTC, as names of files have it.
fn stamp() -> String {
    let now = OffsetDateTime::now_utc();
    let (year, month, day) = (now.year(), u8::from(now.month()), now.day());
    let (hour, minute, second) = now.to_hms();
    format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_after_the_app_and_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let to_file = Destination { is_console: false, is_file: true };
        let output = Output::new(to_file, "daprd", "web", folder.path(), false).unwrap();
        let path = output.path.unwrap();
        assert_eq!(path.parent().unwrap(), folder.path().join(".dapr/logs"));
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("web_daprd_20") && name.ends_with(".log"), "{name}");
        assert!(path.exists());
    }

    #[test]
    fn without_a_file_there_is_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let to_console = Destination { is_console: true, is_file: false };
        let output = Output::new(to_console, "app", "web", folder.path(), false).unwrap();
        assert!(output.path.is_none() && !folder.path().join(".dapr").exists());
    }
}
