//! Processes by number and time of start, in files: another one that has got the number is never taken
//! for the one that was noted.

use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long the kernel may take to end a process with all that is in its namespaces.
const END_LIMIT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);

/// A process of this machine, as `PID START BOOT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Running {
    pid: i32,
    /// Ticks from the start of the machine to that of the process.
    start: u64,
    /// The kernel's name for the time since this machine was started.
    boot: String,
}

impl Running {
    /// This process, by its number on the machine, whatever namespace it is in: `/proc` has to be still
    /// that of the machine.
    pub(super) fn this() -> Result<Self> {
        let link = std::fs::read_link("/proc/self").context("could not read /proc/self")?;
        let pid = link.to_str().and_then(|pid| pid.parse().ok());
        let pid = pid.context("/proc/self does not lead to a process")?;
        let seen = of_kernel(pid).context("could not read /proc/self/stat")?;
        Ok(Self { pid, start: seen.start, boot: boot()? })
    }

    /// The process that a file names, if it still runs.
    pub(super) fn read(file: &Path) -> Option<Self> {
        let found: Self = std::fs::read_to_string(file).ok()?.parse().ok()?;
        found.is_alive().then_some(found)
    }

    pub(super) fn write(&self, file: &Path) -> Result<()> {
        let Self { pid, start, boot } = self;
        // A reader sees all of it, or nothing.
        let new = file.with_added_extension("new");
        std::fs::write(&new, format!("{pid} {start} {boot}\n"))
            .and_then(|()| std::fs::rename(&new, file))
            .with_context(|| format!("could not write {}", file.display()))
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it is there, be it about to end.
    pub(super) fn is_alive(&self) -> bool {
        self.seen().is_some()
    }

    /// Whether it was killed and its namespaces are being emptied, which takes a while.
    pub(super) fn is_ending(&self) -> bool {
        self.seen().is_some_and(|seen| seen.is_ending)
    }

    fn seen(&self) -> Option<Seen> {
        let seen = of_kernel(self.pid).filter(|seen| seen.start == self.start && !seen.is_dead)?;
        boot().is_ok_and(|boot| boot == self.boot).then_some(seen)
    }

    /// Kills it and waits for its end.
    pub(super) fn kill(&self) -> Result<()> {
        let failed = || format!("could not end process {}", self.pid);
        let pid = Pid::from_raw(self.pid).with_context(failed)?;
        // From here on the number is that of this process, or of none.
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(Errno::SRCH) => return Ok(()),
            Err(error) => return Err(error).with_context(failed),
        };
        if !self.is_alive() {
            return Ok(());
        }
        match pidfd_send_signal(&process, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(error).with_context(failed),
        }
        let deadline = Instant::now() + END_LIMIT;
        while self.is_alive() {
            if Instant::now() > deadline {
                bail!("process {} did not end within {END_LIMIT:?}", self.pid);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

impl FromStr for Running {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match *text.split_whitespace().collect::<Vec<_>>() {
            [pid, start, boot] => {
                Ok(Self { pid: pid.parse()?, start: start.parse()?, boot: boot.to_owned() })
            }
            _ => bail!("`{text}` is not PID START BOOT"),
        }
    }
}

fn boot() -> Result<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    Ok(boot.context("could not read the kernel's boot_id")?.trim().to_owned())
}

/// What the kernel shows of a process.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    start: u64,
    is_ending: bool,
    /// Nothing is left but its status, for its parent.
    is_dead: bool,
}

fn of_kernel(pid: i32) -> Option<Seen> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&stat)
}

/// The name of a process may have spaces and parentheses; what follows has none.
fn parse_stat(stat: &str) -> Option<Seen> {
    const EXITING: u32 = 0x4;
    let words: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let flags: u32 = words.get(6)?.parse().ok()?;
    Some(Seen {
        start: words.get(19)?.parse().ok()?,
        is_ending: flags & EXITING != 0,
        is_dead: words[0] == "Z",
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn start_and_state_are_found_after_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 9 9";
        let seen = parse_stat(stat).unwrap();
        assert_eq!(seen, Seen { start: 12345, is_ending: false, is_dead: false });
        let zombie = parse_stat(&stat.replace(" S ", " Z ").replace("4194560", "4194564"));
        assert!(zombie.is_some_and(|seen| seen.is_ending && seen.is_dead));
        assert_eq!(parse_stat("7 (a) S 1"), None);
    }

    #[test]
    fn a_process_that_has_got_the_number_of_another_is_not_that_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let this = Running::this().unwrap();
        this.write(&file).unwrap();
        assert_eq!(Running::read(&file), Some(this.clone()));
        for other in [
            Running { start: this.start + 1, ..this.clone() },
            Running { boot: "b".into(), ..this },
        ] {
            assert!(!other.is_alive());
            // This would be the end of the test.
            other.kill().unwrap();
            other.write(&file).unwrap();
            assert_eq!(Running::read(&file), None);
        }
        assert_eq!(Running::read(&folder.path().join("none")), None);
    }

    #[test]
    fn a_noted_process_is_killed() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let start = of_kernel(pid).unwrap().start;
        let noted = Running { pid, start, boot: boot().unwrap() };
        noted.kill().unwrap();
        assert!(!noted.is_alive());
        assert!(!child.wait().unwrap().success());
        noted.kill().unwrap();
    }
}
