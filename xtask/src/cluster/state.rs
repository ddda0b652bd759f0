//! The rig's folder: what it was brought up with, keys, logs, and files by which tests find their way.
//!
//! | file | what it is |
//! |---|---|
//! | `a.kubeconfig`, `b.kubeconfig` | the administrator's access |
//! | `kubectl-a`, `kubectl-b` | programs: `kubectl` with that access, from anywhere on the machine |
//! | `enter-a`, `enter-b` | programs that run another one in the network of that cluster |
//! | `machines/a2/pid` | the first process of a machine, as `PID START BOOT`: it ends with that |
//! | `machines/a2/start` | made by a test: the machine is started again |
//! | `machines/a2/var/log` | logs of what runs on a machine |

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::plan::{self, Machine};
use super::programs::Programs;
use super::running::Running;
use crate::cache::{self, remove_folder};

/// Lines at the end of the supervisor's log, and of each service's, that an error shows.
const SHOWN_LINES: usize = 15;
const SHOWN_LINES_OF_SERVICES: usize = 2;

/// What the rig was brought up with.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) programs: Programs,
    pub(super) link: Link,
    /// How long a machine may be silent before it is not ready.
    pub(super) grace: Duration,
}

/// What the link between the networks does to packets.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Link {
    pub(super) delay: Duration,
    /// Of a hundred packets, in each direction.
    pub(super) loss_percent: f64,
}

/// The folder of the rig; a user has one rig.
pub(super) struct State {
    root: PathBuf,
}

impl State {
    pub(super) fn of_user() -> Result<Self> {
        let root = std::path::absolute(cache::root().join("cluster"))
            .context("the folder of the cache has no absolute path")?;
        // The rig's own files are mounted over this one.
        ensure!(
            !root.starts_with("/run"),
            "{} is below /run, where the rig cannot be; set {} to another folder",
            root.display(),
            cache::VARIABLE,
        );
        Ok(Self { root })
    }

    pub(super) fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Waits until no other command brings the rig up or down; the kernel ends the lock with its holder.
    pub(super) fn lock(&self) -> Result<File> {
        let path = self.root.with_extension("lock");
        let failed = || format!("could not lock {}", path.display());
        std::fs::create_dir_all(self.root.parent().with_context(failed)?).with_context(failed)?;
        let file = File::create(&path).with_context(failed)?;
        file.lock().with_context(failed)?;
        Ok(file)
    }

    /// The process that everything else ends with, if the rig is up.
    pub(super) fn supervisor(&self) -> Option<Running> {
        Running::read(&self.supervisor_file())
    }

    pub(super) fn supervisor_file(&self) -> PathBuf {
        self.root.join("supervisor")
    }

    /// The log of the supervisor, and of what starts machines.
    pub(super) fn log(&self) -> PathBuf {
        self.root.join("log")
    }

    /// Our own program as it was when the rig was brought up: a build may replace it.
    pub(super) fn program(&self) -> PathBuf {
        self.root.join("xtask")
    }

    /// The program of the link, where packets are delayed or lost.
    pub(super) fn link_program(&self) -> PathBuf {
        self.root.join("tollway")
    }

    pub(super) fn kubeconfig(&self, cluster: &str) -> PathBuf {
        self.root.join(format!("{cluster}.kubeconfig"))
    }

    pub(super) fn kubectl(&self, cluster: &str) -> PathBuf {
        self.root.join(format!("kubectl-{cluster}"))
    }

    pub(super) fn enter(&self, cluster: &str) -> PathBuf {
        self.root.join(format!("enter-{cluster}"))
    }

    pub(super) fn keys(&self, cluster: &str) -> PathBuf {
        self.root.join("keys").join(cluster)
    }

    pub(super) fn machine(&self, machine: &Machine) -> PathBuf {
        self.root.join("machines").join(machine.name)
    }

    /// Makes the folder, which only this user can read: it has keys.
    pub(super) fn create(&self) -> Result<()> {
        let failed = || format!("could not make {}", self.root.display());
        std::fs::create_dir(&self.root).with_context(failed)?;
        std::fs::set_permissions(&self.root, Permissions::from_mode(0o700)).with_context(failed)
    }

    pub(super) fn remove(&self) -> Result<()> {
        remove_folder(&self.root)
    }

    pub(super) fn settings_file(&self) -> PathBuf {
        self.root.join("settings.json")
    }

    pub(super) fn write_settings(&self, settings: &Settings) -> Result<()> {
        write(&self.settings_file(), &serde_json::to_string(settings)?)
    }

    pub(super) fn settings(&self) -> Result<Settings> {
        let file = self.settings_file();
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("could not read {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} has a mistake", file.display()))
    }

    /// The end of each log, and where they are: for an error.
    pub(super) fn what_was_logged(&self) -> String {
        let mut shown = end_of(&self.log(), SHOWN_LINES);
        for (_, machine) in plan::machines() {
            let logs = self.machine(machine).join("var/log");
            let files = logs.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
            for log in files.filter(|log| log.is_file()) {
                let name = log.file_name().unwrap_or_default().to_string_lossy();
                let end = end_of(&log, SHOWN_LINES_OF_SERVICES);
                shown.push_str(&format!("{} {name}:\n{end}", machine.name));
            }
        }
        format!(
            "{shown}logs are {} and {}/machines/*/var/log; `cargo xtask cluster down` removes them",
            self.log().display(),
            self.root.display()
        )
    }
}

fn end_of(log: &Path, lines: usize) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].iter().flat_map(|line| [*line, "\n"]).collect()
}

pub(super) fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("could not write {}", file.display()))
}

/// Writes a program of one line for the shell.
pub(super) fn write_script(file: &Path, line: &str) -> Result<()> {
    write(file, &format!("#!/bin/sh\n{line}\n"))?;
    std::fs::set_permissions(file, Permissions::from_mode(0o755))
        .with_context(|| format!("could not make {} executable", file.display()))
}
