use std::convert::Infallible;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use super::*;

const SOON: Duration = Duration::from_secs(10);

fn shell(script: &str) -> Process {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
    Process::spawn(command, Confinement::default()).unwrap()
}

fn is_running(pid: Pid) -> bool {
    std::path::Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists()
}

/// Waits until the process has written a byte, which it does when its traps are set.
fn until_it_writes(process: &mut Process) {
    io::Read::read_exact(&mut process.take_stdout().unwrap(), &mut [0]).unwrap();
}

#[test]
fn an_end_is_noticed_without_polling_and_a_deadline_holds() {
    let mut process = shell("exec sleep 60");
    assert_eq!(
        process.wait_until(Instant::now() + Duration::from_millis(20), None),
        Waited::TimedOut
    );
    assert_eq!(process.status(), None);
    process.signal(Signal::TERM).unwrap();
    assert_eq!(process.wait_until(Instant::now() + SOON, None), Waited::Ended);
    assert_eq!(process.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
}

#[test]
fn a_readable_descriptor_interrupts_a_wait() {
    let process = shell("exec sleep 60");
    let (reader, writer) = io::pipe().unwrap();
    drop(writer);
    assert_eq!(
        process.wait_until(Instant::now() + SOON, Some(reader.as_fd())),
        Waited::Interrupted
    );
}

#[test]
fn readiness_ends_with_a_value_the_process_or_the_deadline() {
    let soon = || Instant::now() + SOON;
    let mut steady = shell("exec sleep 60");
    let mut asked = 0;
    let third = steady.wait_ready(soon(), None, || {
        asked += 1;
        Ok::<_, Infallible>((asked == 3).then_some("ready"))
    });
    assert!(matches!(third, Ok(Readiness::Ready("ready"))), "{third:?}");
    let never = || Ok::<Option<()>, Infallible>(None);
    let late = steady.wait_ready(Instant::now() + Duration::from_millis(30), None, never);
    assert!(matches!(late, Ok(Readiness::TimedOut)), "{late:?}");
    let ended = shell("exit 3").wait_ready(soon(), None, never);
    assert!(matches!(ended, Ok(Readiness::Ended(status)) if status.code() == Some(3)), "{ended:?}");
    assert_eq!(steady.wait_ready(soon(), None, || Err::<Option<()>, _>("no")).unwrap_err(), "no");
}

#[test]
fn the_last_started_stops_first_and_a_stubborn_one_is_killed() {
    let mut all = Vec::new();
    for (name, trap) in [("first", "exit 0"), ("failing", "exit 7"), ("stubborn", "")] {
        let script = format!("trap '{trap}' TERM; echo; while :; do sleep 0.02; done");
        let mut process = shell(&script);
        until_it_writes(&mut process);
        all.push((name, process));
    }
    let gone = shell("exit 0");
    assert_eq!(gone.wait_until(Instant::now() + SOON, None), Waited::Ended);
    all.push(("gone", gone));
    let pids: Vec<Pid> = all.iter().map(|(_, process)| process.pid()).collect();
    let limit = Duration::from_millis(400);
    let outcomes = stop_in_order(all, Duration::from_millis(300), limit);
    let names: Vec<_> = outcomes.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["gone", "failing", "first", "stubborn"]);
    assert_eq!(outcomes[0].1, Stopped::EndedBefore);
    assert!(matches!(outcomes[1].1, Stopped::Failed(status) if status.code() == Some(7)));
    assert_eq!((outcomes[2].1, outcomes[3].1), (Stopped::Clean, Stopped::Killed));
    assert!(pids.iter().all(|pid| !is_running(*pid)));
}

#[test]
fn a_group_is_signalled_and_outlives_its_leader() {
    let mut process = shell("sleep 60 & exit 0");
    let mut output = process.take_stdout().unwrap();
    assert_eq!(process.wait_until(Instant::now() + SOON, None), Waited::Ended);
    assert!(process.wait().unwrap().success());
    assert!(process.has_group());
    process.signal_group(Signal::KILL);
    // The rest of the group held the pipe open.
    assert_eq!(io::Read::read(&mut output, &mut [0]).unwrap(), 0);
}

#[test]
fn a_stop_and_an_end_are_changes() {
    let process = shell("kill -STOP $$; exit 5");
    let next = || {
        let deadline = Instant::now() + SOON;
        loop {
            match process.change() {
                None if Instant::now() < deadline => std::thread::yield_now(),
                change => return change,
            }
        }
    };
    assert_eq!(next(), Some(Change::Stopped(Signal::STOP.as_raw())));
    process.signal(Signal::CONT).unwrap();
    assert_eq!(next(), Some(Change::Ended(Ending::Code(5))));
}

#[test]
fn a_dropped_process_and_that_of_an_ended_thread_are_killed() {
    let process = shell("exec sleep 60");
    let pid = process.pid();
    assert!(is_running(pid));
    drop(process);
    assert!(!is_running(pid));
    let process = std::thread::spawn(|| shell("exec sleep 60")).join().unwrap();
    assert_eq!(process.wait_until(Instant::now() + SOON, None), Waited::Ended);
}

#[test]
fn a_detached_process_runs_on_once_it_is_released() {
    let (reader, mut writer) = io::pipe().unwrap();
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "read line; exit 0"]).stdin(reader).stdout(Stdio::null());
    let detached = std::thread::spawn(move || Process::spawn_detached(command).unwrap());
    // The end of the thread that started it does not concern it.
    let process = detached.join().unwrap();
    let pid = process.pid();
    process.release().unwrap();
    assert!(is_running(pid));
    io::Write::write_all(&mut writer, b"end\n").unwrap();
    let deadline = Instant::now() + SOON;
    // Its end is waited for, so it leaves the kernel's table.
    while is_running(pid) {
        assert!(Instant::now() < deadline, "it stays");
        std::thread::yield_now();
    }
}

#[test]
fn an_ending_has_the_code_of_a_shell() {
    assert_eq!((Ending::Code(5).code(), Ending::Signal(9).code()), (5, 137));
}

/// What the guard below is, when this test program is started for it.
#[test]
#[ignore = "is the guard of another test"]
fn is_the_guard() {
    run_guard();
}

/// A guard in the place of the program's own.
fn guard() -> Guard {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "process::tests::is_the_guard"]);
    Guard::start(command).unwrap()
}

#[test]
fn a_guard_kills_the_group_where_its_starter_ends_without_a_word() {
    let mut process = shell("sleep 60 & exit 0");
    let mut output = process.take_stdout().unwrap();
    let mut guard = guard();
    guard.watch(process.pid()).unwrap();
    assert!(process.wait().unwrap().success());
    // As a kill of this process does it: the pipe ends, and no line has come.
    guard.abandon();
    // The rest of the group held the pipe open.
    assert_eq!(io::Read::read(&mut output, &mut [0]).unwrap(), 0);
}

#[test]
fn a_guard_of_a_process_that_ends_in_order_kills_nothing() {
    let mut process = shell("sleep 60 & echo $!");
    let mut output = io::BufReader::new(process.take_stdout().unwrap());
    let mut line = String::new();
    io::BufRead::read_line(&mut output, &mut line).unwrap();
    process.set_guard(guard()).unwrap();
    drop(process);
    let rest = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
    assert!(is_running(rest));
    rustix::process::kill_process(rest, Signal::KILL).unwrap();
}
