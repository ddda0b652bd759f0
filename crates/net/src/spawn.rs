//! Starts processes: tied to this one, so that the kernel kills them with it, or detached from it.
//!
//! Both forms need calls between fork and exec, which is why they are in this crate. Supervision is
//! in [`crate::process`].

#![allow(unsafe_code, reason = "pre_exec and close_range have no safe form")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::io::FdFlags;
use rustix::process::{Pid, Signal};
use rustix::thread::LinkNameSpaceType;

use crate::netns::NetNs;

use crate::descriptors::lower_descriptor_limit;

/// The first descriptor that is not standard input, output or error.
const FIRST_OTHER_FD: libc::c_uint = 3;

/// What a process writes into `cgroup.procs` to enter the cgroup itself.
const OWN_PROCESS: &[u8] = b"0";

/// Where a process is started and what ties it to this one.
#[derive(Debug, Default, Clone, Copy)]
pub struct Confinement<'a> {
    /// Start it inside this namespace; `None` keeps the current one.
    pub namespace: Option<&'a NetNs>,
    /// Descriptors that stay open in it, under the same numbers.
    pub inherit: &'a [BorrowedFd<'a>],
    /// The file `cgroup.procs`, open for writing, of the cgroup that it is started in; `None` keeps the
    /// current one.
    pub cgroup: Option<BorrowedFd<'a>>,
}

/// Starts `command` in a process group of its own (a terminal's Ctrl-C reaches only us, who stop
/// it in order) and has the kernel kill it when the *thread* that called this ends, however it
/// ends. Call it from a thread that lives as long as the process should.
pub fn spawn_confined(mut command: Command, confinement: Confinement<'_>) -> io::Result<Child> {
    let namespace = confinement.namespace.map(|ns| ns.as_fd().as_raw_fd());
    let inherit: Vec<RawFd> = confinement.inherit.iter().map(AsRawFd::as_raw_fd).collect();
    let cgroup = confinement.cgroup.map(|cgroup| cgroup.as_raw_fd());
    let parent = rustix::process::getpid();
    command.process_group(0);
    let prepare = move || prepare_confined(parent, namespace, &inherit, cgroup);
    // SAFETY: `prepare` runs between fork and exec and makes system calls only: it takes no
    // lock and does not allocate. The descriptors it names are borrowed until after the spawn.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// Starts `command` in a session of its own, without any descriptor of this process but those
/// that `command` gives it: nothing that happens to this process, its terminal or the pipes
/// that it was started with concerns it. As long as this process lives, it has to wait for it.
pub fn spawn_detached(mut command: Command) -> io::Result<Child> {
    // SAFETY: `prepare_detached` runs between fork and exec and makes system calls only.
    unsafe { command.pre_exec(prepare_detached) };
    command.spawn()
}

fn prepare_confined(
    parent: Pid,
    namespace: Option<RawFd>,
    inherit: &[RawFd],
    cgroup: Option<RawFd>,
) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() != Some(parent) {
        // The parent died before the signal was set: no process would ever stop this one.
        return Err(rustix::io::Errno::SRCH.into());
    }
    lower_descriptor_limit();
    for &fd in inherit {
        // SAFETY: the caller of `spawn_confined` borrows the descriptor until the spawn ends.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
    }
    if let Some(fd) = cgroup {
        // SAFETY: as above.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        rustix::io::write(fd, OWN_PROCESS)?;
    }
    if let Some(fd) = namespace {
        // SAFETY: as above.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        rustix::thread::move_into_link_name_space(fd, Some(LinkNameSpaceType::Network))?;
    }
    Ok(())
}

fn prepare_detached() -> io::Result<()> {
    rustix::process::setsid()?;
    let flags = libc::CLOSE_RANGE_CLOEXEC.cast_signed();
    // SAFETY: marks descriptors to be closed by exec, which follows; it touches no memory.
    let marked = unsafe { libc::close_range(FIRST_OTHER_FD, libc::c_uint::MAX, flags) };
    if marked < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_detached_process_has_a_session_and_no_descriptor_of_ours() {
        // Inherited by everything that is started without care.
        let (_reader, writer) = io::pipe().unwrap();
        rustix::io::fcntl_setfd(&writer, FdFlags::empty()).unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "cut -d' ' -f1,6 /proc/$$/stat; ls /proc/$$/fd"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = spawn_detached(command).unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let mut descriptors = String::new();
        output.read_to_string(&mut descriptors).unwrap();
        child.wait().unwrap();
        let (pid, session) = line.trim().split_once(' ').unwrap();
        assert_eq!(pid, session);
        let open: Vec<_> = descriptors.lines().collect();
        assert!(!open.contains(&writer.as_raw_fd().to_string().as_str()), "{open:?}");
    }

    #[test]
    fn a_confined_process_leads_a_group_of_its_own() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "cut -d' ' -f1,5 /proc/$$/stat"]).stdout(Stdio::piped());
        let child = spawn_confined(command, Confinement::default()).unwrap();
        let output = child.wait_with_output().unwrap();
        let line = String::from_utf8(output.stdout).unwrap();
        let (pid, group) = line.trim().split_once(' ').unwrap();
        assert_eq!(pid, group);
    }
}
