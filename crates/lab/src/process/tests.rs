use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::*;

const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_process_is_ready_when_its_ports_file_is_there() {
    let mut lab = Lab::new();
    let path = lab.supervisor.ports_path("west/echo");
    let script = format!(
        r#"sleep 0.05; echo '{{"http": "127.0.0.1:80"}}' > {0}.new; mv {0}.new {0}; sleep 60"#,
        path.display()
    );
    lab.supervisor.start(&lab.shell("west/echo", &script)).unwrap();
    let ports = lab.supervisor.wait_ports("west/echo", SOON).unwrap();
    assert_eq!(ports, BTreeMap::from([("http".to_owned(), "127.0.0.1:80".parse().unwrap())]));
}

#[test]
fn a_process_started_anew_is_not_ready_by_the_ports_of_the_last_one() {
    let mut lab = Lab::new();
    let path = lab.supervisor.ports_path("west/echo");
    fs::write(&path, r#"{"http": "127.0.0.1:80"}"#).unwrap();
    lab.supervisor.start(&lab.shell("west/echo", "sleep 60")).unwrap();
    assert!(!path.exists());
}

#[test]
fn the_error_of_an_early_exit_contains_the_last_output() {
    let mut lab = Lab::new();
    let spec = lab.shell("bad", "echo all is well; echo no such token >&2; exit 3");
    lab.supervisor.start(&spec).unwrap();
    let error = lab.supervisor.wait_ports("bad", SOON).unwrap_err().to_string();
    assert!(error.contains("exit status: 3") && error.contains("| no such token"), "{error}");
    assert!(error.contains("bad.err"), "{error}");
}

#[test]
fn a_process_that_never_gets_ready_is_given_up() {
    let mut lab = Lab::new();
    lab.supervisor.start(&lab.shell("slow", "echo thinking; sleep 60")).unwrap();
    let error = lab.supervisor.wait_ports("slow", Duration::from_millis(200)).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, ProcessError::NotReady { .. }) && text.contains("| thinking"),
        "{text}"
    );
}

#[test]
fn processes_stop_in_reverse_order_and_stubborn_ones_are_killed() {
    let mut lab = Lab::new();
    let order = lab.dir.path().join("order");
    for name in ["first", "second"] {
        let said = format!("trap 'echo {name} >> {}; exit 0' TERM; ", order.display());
        lab.start_trapping(name, &said);
    }
    lab.start_trapping("stubborn", "trap '' TERM; ");
    let pids: Vec<u32> =
        ["first", "second", "stubborn"].map(|n| lab.supervisor.pid(n).unwrap()).to_vec();
    let complaints = lab.supervisor.stop();
    assert_eq!(fs::read_to_string(order).unwrap(), "second\nfirst\n");
    assert_eq!(complaints, ["stubborn did not stop within 5 s and was killed"]);
    assert!(pids.iter().all(|pid| !is_running(*pid)));
}

#[test]
fn dropping_the_supervisor_stops_everything() {
    let mut lab = Lab::new();
    let pid = lab.supervisor.start(&lab.shell("sleeper", "exec sleep 60")).unwrap();
    assert!(is_running(pid));
    drop(lab);
    assert!(!is_running(pid));
}

#[test]
fn a_command_s_output_is_returned_and_its_failure_reported() {
    let lab = Lab::new();
    let output = lab.supervisor.run(&lab.shell("token", "printf tollway1.x"), SOON).unwrap();
    assert_eq!(output, "tollway1.x");
    let failing = lab.shell("join", "echo unknown network >&2; exit 1");
    let error = lab.supervisor.run(&failing, SOON).unwrap_err().to_string();
    assert!(error.contains("| unknown network"), "{error}");
}

#[test]
fn a_command_that_takes_too_long_is_killed() {
    let lab = Lab::new();
    let spec = lab.shell("stuck", "exec sleep 60");
    let mut running = lab.supervisor.begin(&spec).unwrap();
    let pid = running.pid();
    let error = lab.supervisor.finish(&mut running, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, ProcessError::TooLong { .. }), "{error}");
    drop(running);
    assert!(!is_running(pid));
}

#[test]
fn a_process_that_ends_by_itself_is_noticed() {
    let mut lab = Lab::new();
    lab.supervisor.start(&lab.shell("steady", "exec sleep 60")).unwrap();
    lab.supervisor.start(&lab.shell("crashing", "echo out of luck >&2; kill -SEGV $$")).unwrap();
    let until = Instant::now() + SOON;
    let error = loop {
        match lab.supervisor.check_alive() {
            Ok(()) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            other => break other.unwrap_err().to_string(),
        }
    };
    assert!(error.contains("crashing") && error.contains("SIGSEGV"), "{error}");
}

#[test]
fn children_see_none_of_our_environment_but_the_path() {
    let lab = Lab::new();
    let env = lab.supervisor.run(&lab.shell("env", "env"), SOON).unwrap();
    let names: Vec<&str> = env.lines().filter_map(|line| line.split('=').next()).collect();
    assert!(names.contains(&"PATH") && !names.contains(&"CARGO_MANIFEST_DIR"), "{names:?}");
}

#[test]
fn cancelling_ends_a_wait_for_readiness() {
    let mut lab = Lab::new();
    lab.supervisor.start(&lab.shell("slow", "exec sleep 60")).unwrap();
    lab.cancel.cancel();
    let error = lab.supervisor.wait_ports("slow", SOON).unwrap_err();
    assert!(matches!(error, ProcessError::Cancelled(_)), "{error}");
}

struct Lab {
    supervisor: Supervisor,
    cancel: Cancel,
    dir: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cancel = Cancel::new().unwrap();
        Self { supervisor: Supervisor::new(dir.path(), &cancel), cancel, dir }
    }

    fn shell(&self, name: &str, script: &str) -> Spec {
        Spec::new(name, Path::new("/bin/sh")).args(["-c", script])
    }

    /// Starts a shell that has set its traps, and waits for that.
    fn start_trapping(&mut self, name: &str, traps: &str) {
        let path = self.supervisor.ports_path(name);
        let ready = format!("echo '{{}}' > {0}.new; mv {0}.new {0}", path.display());
        let script = format!("{traps} {ready}; while :; do sleep 0.02; done");
        self.supervisor.start(&self.shell(name, &script)).unwrap();
        self.supervisor.wait_ports(name, SOON).unwrap();
    }
}

fn is_running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
