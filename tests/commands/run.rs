//! `tollway run` and the local control plane: real processes, nothing configured.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use rustix::process::Signal;
use tollway_net::netns::NetNs;
use tollway_testkit::{Process, metric_in, metrics_at, retry_until};
use tollway_tests::mesh::load::Load;
use tollway_tests::user::{LINGER, PATIENCE, User, is_gone, pid_in};

/// A control plane that nothing uses has ended after this time; one that is in use has not. It looks
/// ten times while it lingers.
const LONGER_THAN_IT_LINGERS: Duration = Duration::from_secs(LINGER.as_secs() * 3 / 2);

/// An app that listens at a given address.
const ECHO: &str = "exec \"$TOLLWAY\" echo --http 127.0.0.1:$APP_PORT --name $APP_ID";

fn serve(user: &User, app: &str) -> Process {
    user.run(&["--app-id", app, "--app-port", "0"], ECHO)
}

#[test]
fn two_terminals_suffice() {
    let user = User::new();
    let mut run = serve(&user, "files");
    user.until_called("files/healthz");
    let called = user.call(&["files/echo", "-d", "hello"]);
    assert_eq!((called.code, called.stdout.as_str()), (Some(0), "hello"), "{}", called.stderr);
    let listed = user.tollway(&["get", "services"]);
    assert!(listed.stdout.contains("files.default.local "), "{}", listed.stdout);
    assert!(!listed.stdout.contains("call."), "a call is no service: {}", listed.stdout);
    let status = run.terminate(PATIENCE).unwrap();
    assert!(status.success(), "{status}: {}", run.log());
    let log = run.log();
    for line in ["files takes calls; try: tollway call files/", "files has ended"] {
        assert!(log.contains(&format!("tollway: {line}\n")), "{log}");
    }
}

#[test]
fn the_code_is_the_apps() {
    let user = User::new();
    let ends_with = |script: &str, code: i32| {
        let mut run = user.run(&["--app-id", "job"], script);
        assert_eq!(run.wait(PATIENCE).unwrap().code(), Some(code), "{script}: {}", run.log());
    };
    ends_with("exit 0", 0);
    ends_with("exit 7", 7);
    ends_with("kill -KILL $$", 128 + 9);
    let mut missing = user.run_command(&["--app-id", "job"], &["no-such-program"]);
    assert_eq!(missing.wait(PATIENCE).unwrap().code(), Some(127));
    assert!(
        missing
            .log()
            .contains("error: there is no program `no-such-program` [ERR_APP_NOT_STARTED]\n"),
        "{}",
        missing.log()
    );
    let mut not_a_program = user.run_command(&["--app-id", "job"], &["/etc/passwd"]);
    assert_eq!(not_a_program.wait(PATIENCE).unwrap().code(), Some(126));
}

#[test]
fn signals_reach_the_app_once() {
    let user = User::new();
    let script = "n=0; for s in HUP USR1 USR2 QUIT; do trap \"echo got $s\" $s; done; \
                  trap 'n=$((n+1)); echo got INT $n' INT; trap 'echo bye; exit 5' TERM; \
                  echo up; while :; do sleep 0.05; done";
    let mut run = user.run(&["--app-id", "worker"], script);
    let until = |run: &Process, text: &str| {
        let said = retry_until(PATIENCE, text, || run.log().contains(text).then_some(()));
        said.map_err(|error| error.context(run.log())).unwrap();
    };
    until(&run, "up\n");
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::QUIT, "QUIT"),
        (Signal::INT, "INT 1"),
    ] {
        // The tests may have been started so that they ignore it (nohup, a job of a script in
        // the background), and then so does the app.
        if is_ignored(signal) {
            println!("SIG{name} is left out: it is ignored here");
            continue;
        }
        run.signal(signal).unwrap();
        until(&run, &format!("got {name}\n"));
    }
    let status = run.terminate(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(5), "{}", run.log());
    assert!(!run.log().contains("INT 2"), "{}", run.log());
}

/// Whether this process, and so whatever it starts, ignores a signal.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    mask & (1 << (signal.as_raw() - 1)) != 0
}

#[test]
fn several_apps_share_a_machine_where_port_3500_is_taken() {
    // A port that is in use is taken as well.
    let _taken = TcpListener::bind("127.0.0.1:3500");
    let user = User::new();
    let _apps = ["one", "two", "three"].map(|app| serve(&user, app));
    for app in ["one", "two", "three"] {
        user.until_called(&format!("{app}/healthz"));
        let called = user.call(&["-i", &format!("{app}/healthz")]);
        assert!(called.stdout.contains(&format!("x-echo-name: {app}\r\n")), "{}", called.stdout);
    }
}

#[test]
fn apps_find_their_sidecar_in_their_environment() {
    let user = User::new();
    let _callee = serve(&user, "callee");
    user.until_called("callee/healthz");
    let script = "env | grep -E '^(DAPR|APP)_' | sort; \
                  exec \"$TOLLWAY\" call --sidecar $DAPR_HTTP_ENDPOINT -i callee/healthz";
    let mut caller = user.run(&["--app-id", "caller", "--app-port", "1", "--quiet"], script);
    let status = caller.wait(PATIENCE).unwrap();
    let log = caller.log();
    assert!(status.success(), "{log}");
    for line in ["APP_ID=caller\n", "APP_PORT=1\n", "APP_PROTOCOL=http\n", "DAPR_GRPC_PORT="] {
        assert!(log.contains(line), "no {line:?} in {log}");
    }
    assert!(log.contains("x-echo-name: callee\r\n"), "{log}");
    assert!(!log.contains("tollway: "), "{log}");
}

#[test]
fn an_app_that_dies_ends_its_sidecar() {
    let user = User::new();
    let mut run =
        user.run(&["--app-id", "frail", "--app-port", "0"], &format!("echo pid $$; {ECHO}"));
    user.until_called("frail/healthz");
    let app = pid_in(&run.log(), "pid ");
    tollway_tests::user::kill(app, Signal::KILL);
    assert_eq!(run.wait(PATIENCE).unwrap().code(), Some(128 + 9), "{}", run.log());
    let called = user.call(&["frail/healthz"]);
    assert_eq!(called.code, Some(1), "{}", called.stdout);
    assert!(called.stderr.contains("frail.default.local"), "{}", called.stderr);
}

#[test]
fn nothing_is_left_of_a_run_that_is_killed() {
    let user = User::new();
    let script = "sleep 1000 & echo child $!; echo app $$; wait";
    let mut run = user.run(&["--app-id", "parent"], script);
    retry_until(PATIENCE, "the app", || run.log().contains("app ").then_some(())).unwrap();
    let (app, child) = (pid_in(&run.log(), "app "), pid_in(&run.log(), "child "));
    assert!(!is_gone(app) && !is_gone(child));
    run.kill().unwrap();
    for pid in [app, child] {
        retry_until(PATIENCE, "the end of all", || is_gone(pid).then_some(())).unwrap();
    }
}

#[test]
fn what_an_app_leaves_behind_ends_with_it() {
    let user = User::new();
    let script = "sleep 1000 & echo child $!; exit 3";
    let mut run = user.run(&["--app-id", "parent"], script);
    assert_eq!(run.wait(PATIENCE).unwrap().code(), Some(3), "{}", run.log());
    let child = pid_in(&run.log(), "child ");
    retry_until(PATIENCE, "the child's end", || is_gone(child).then_some(())).unwrap();
}

#[test]
fn the_control_plane_ends_after_its_last_workload() {
    let user = User::new();
    let mut run = serve(&user, "short");
    user.until_called("short/healthz");
    let control = user.control_pid();
    std::thread::sleep(LONGER_THAN_IT_LINGERS);
    assert!(!is_gone(control));
    run.terminate(PATIENCE).unwrap();
    retry_until(PATIENCE, "the control plane's end", || is_gone(control).then_some(())).unwrap();
    let called = user.call(&["short/"]);
    assert_eq!(called.code, Some(1));
    assert!(called.stderr.contains("no local control plane runs"), "{}", called.stderr);
}

#[test]
fn those_who_start_at_the_same_instant_share_a_control_plane() {
    let user = User::new();
    let names = ["a", "b", "c", "d"];
    let mut runs = names.map(|app| serve(&user, app));
    names.iter().for_each(|app| user.until_called(&format!("{app}/healthz")));
    let started = runs.iter().filter(|run| run.log().contains("control plane started"));
    assert_eq!(started.count(), 1);
    runs.iter_mut().for_each(|run| run.kill().unwrap());
}

#[test]
fn a_control_plane_that_crashed_is_replaced_and_its_workloads_come_back() {
    let user = User::new();
    let _app = serve(&user, "files");
    user.until_called("files/healthz");
    let crashed = user.control_pid();
    tollway_tests::user::kill(crashed, Signal::KILL);
    retry_until(PATIENCE, "the end of it", || is_gone(crashed).then_some(())).unwrap();
    // The next command starts it again, with its former state.
    let called = user.call(&["files/healthz"]);
    assert_eq!(called.code, Some(0), "{}", called.stderr);
    let second = user.control_pid();
    assert_ne!(second, crashed);
    // Without a call, the app does.
    tollway_tests::user::kill(second, Signal::KILL);
    let third = retry_until(PATIENCE, "a third one", || {
        let third = user.control_pid();
        (third != second).then_some(third)
    });
    assert!(!is_gone(third.unwrap()));
}

#[test]
fn a_control_plane_whose_port_was_taken_while_it_was_away_is_found_again() {
    let user = User::new();
    let app = serve(&user, "files");
    user.until_called("files/healthz");
    let before = user.control_address();
    let crashed = user.control_pid();
    tollway_tests::user::kill(crashed, Signal::KILL);
    // The process on the port sends nothing: it is no control plane.
    let taken = retry_until(PATIENCE, "its port", || TcpListener::bind(before).ok()).unwrap();
    let after = retry_until(PATIENCE, "another address", || {
        Some(user.control_address()).filter(|after| *after != before)
    });
    let control = after.unwrap();
    retry_until(PATIENCE, "the app's return", || {
        let got = user.tollway(&["get", "services", "--json"]);
        got.stdout.contains("\"files").then_some(())
    })
    .unwrap();
    // It stays, so the app is connected to it.
    let pid = user.control_pid();
    std::thread::sleep(LONGER_THAN_IT_LINGERS);
    assert!(!is_gone(pid));
    let called = user.call(&["files/healthz"]);
    assert_eq!(called.code, Some(0), "{}", called.stderr);
    assert_eq!(user.control_address(), control);
    assert!(!app.log().contains("hint: "), "{}", app.log());
    drop(taken);
}

#[test]
fn a_port_of_another_process_is_not_taken_for_the_apps() {
    let user = User::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let mut run = user.run(&["--app-id", "late", "--app-port", &port], "echo started");
    assert_eq!(run.wait(PATIENCE).unwrap().code(), Some(1));
    let log = run.log();
    let holder = format!("(pid {}) listens there [ERR_PORT_TAKEN]\n", std::process::id());
    assert!(log.contains(&holder) && log.contains("with --app-port"), "{log}");
    assert!(!log.contains("started"), "{log}");
}

#[test]
fn what_is_printed_fits_a_narrow_terminal() {
    let user = User::new();
    let mut run = serve(&user, "files");
    user.until_called("files/healthz");
    run.terminate(PATIENCE).unwrap();
    let log = run.log();
    for line in log.lines().filter(|line| line.starts_with("tollway: ")) {
        assert!(line.chars().count() <= 60, "{} columns: {line}", line.chars().count());
    }
}

#[test]
fn another_user_without_a_runtime_directory_has_a_control_plane_too() {
    if !rustix::process::geteuid().is_root() {
        tollway_testkit::skip!("only root can act as somebody else");
    }
    let setpriv = tollway_testkit::need_tool!("setpriv");
    let user = User::unprivileged(&setpriv);
    let _app = serve(&user, "files");
    user.until_called("files/healthz");
    let foreign = user.fallback();
    drop(user);
    // That path, left there by another user.
    let user = User::unprivileged(&setpriv);
    std::fs::create_dir(user.fallback()).unwrap();
    let mut run = serve(&user, "files");
    assert_eq!(run.wait(PATIENCE).unwrap().code(), Some(1));
    let log = run.log();
    assert!(log.contains("belongs to uid 0 and not to you"), "{log}");
    assert!(log.contains("[ERR_UNSAFE_DIRECTORY]\nhint: remove it, or set"), "{log}");
    std::fs::remove_dir(user.fallback()).unwrap();
    assert_ne!(foreign, user.fallback());
}

#[test]
fn a_replica_that_is_terminated_costs_no_request() {
    let user = User::new();
    let leaving = format!("echo metrics $DAPR_METRICS_PORT; {ECHO}");
    let mut leaving = user.run(&["--app-id", "pair", "--app-port", "0"], &leaving);
    let staying = serve(&user, "pair");
    for replica in [&leaving, &staying] {
        let log = || replica.log().contains("pair takes calls").then_some(());
        retry_until(PATIENCE, "a replica that takes calls", log).unwrap();
    }
    let caller = user.run(&["--app-id", "caller"], "exec sleep 1000");
    let ready = "tollway: sidecar of caller ready: HTTP ";
    let log = || caller.log().lines().find_map(|line| Some(line.strip_prefix(ready)?.to_owned()));
    let line = retry_until(PATIENCE, "the caller's sidecar", log).unwrap();
    let port = line.split(',').next().unwrap();
    user.until_called("pair/healthz");
    let url = format!("http://127.0.0.1:{port}/v1.0/invoke/pair/method/echo");
    let load = Load::http(&url, 200, Duration::from_secs(3));
    let admin = pid_in(&leaving.log(), "metrics ");
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, u16::try_from(admin).unwrap()));
    retry_until(PATIENCE, "load on the replica that leaves", || {
        let page = metrics_at(admin).unwrap();
        let served: u64 = metric_in(&page, "tollway_inbound_requests_total").unwrap();
        (served >= 50).then_some(())
    })
    .unwrap();
    let status = leaving.terminate(PATIENCE).unwrap();
    assert!(status.success(), "{status}: {}", leaving.log());
    load.assert_no_errors();
}

#[test]
fn another_version_of_the_control_plane_is_reported() {
    let user = User::new();
    let _first = serve(&user, "first");
    user.until_called("first/healthz");
    let state = user.directory().join("control.json");
    let text = std::fs::read_to_string(&state).unwrap();
    let own = concat!("\"version\":\"", env!("CARGO_PKG_VERSION"), "\"");
    assert!(text.contains(own), "{text}");
    std::fs::write(&state, text.replace(own, "\"version\":\"0.0.9\"")).unwrap();
    let said = "the local control plane has version 0.0.9, this is ";
    let called = user.call(&["first/healthz"]);
    assert_eq!(called.code, Some(0));
    assert!(called.stderr.contains(said), "{}", called.stderr);
    let mut second = user.run(&["--app-id", "second"], "exit 0");
    assert!(second.wait(PATIENCE).unwrap().success());
    assert!(second.log().contains(&format!("tollway: {said}")), "{}", second.log());
}

#[test]
fn nothing_needs_ipv6() {
    let Ok(namespace) = NetNs::create("no-ipv6") else {
        tollway_testkit::skip!("network namespaces are not permitted here");
    };
    let body = || {
        // Its loopback device has the address until it is taken away.
        std::fs::write("/proc/sys/net/ipv6/conf/lo/disable_ipv6", "1").unwrap();
        assert!(TcpListener::bind("[::1]:0").is_err(), "there is IPv6 here");
        let user = User::new();
        let _app = serve(&user, "files");
        user.until_called("files/healthz");
    };
    namespace.run(body).unwrap();
}

#[test]
fn another_control_plane_is_used_where_it_is_named() {
    let user = User::new();
    let (control, store) = user.control_plane();
    let address = control.port("control").unwrap().to_string();
    let store = store.to_str().unwrap();
    let token = user.path("token");
    let created = user.tollway(&["token", "create", "--uses", "any", "--store", store]);
    tollway_net::secret_file::write(&token, created.stdout.as_ref()).unwrap();
    let access = ["--control", &address, "--token-file", token.to_str().unwrap()];
    let app = ["--app-id", "files", "--app-port", "0"];
    let _app = user.run(&[&app[..], &access].concat(), ECHO);
    let called = retry_until(PATIENCE, "a call", || {
        let called = user.call(&[&["files/echo", "-d", "x"][..], &access].concat());
        (called.code == Some(0)).then_some(called.stdout)
    });
    assert_eq!(called.unwrap(), "x");
    assert!(!user.directory().exists(), "a local control plane was started");
}

#[test]
fn a_control_plane_that_cannot_start_is_reported_with_the_reason() {
    let user = User::new();
    let mut run = user.run(&["--app-id", "job"], "exit 0");
    assert!(run.wait(PATIENCE).unwrap().success());
    tollway_tests::user::kill(user.control_pid(), Signal::KILL);
    let store = user.directory().join("control/tollway.store");
    std::fs::write(&store, "no store").unwrap();
    let mut run = user.run(&["--app-id", "job"], "exit 0");
    assert_eq!(run.wait(PATIENCE).unwrap().code(), Some(1));
    let log = run.log();
    assert!(log.contains("error: the local control plane did not start: "), "{log}");
    assert!(log.contains("[ERR_STORE_") && log.contains("\nhint: "), "{log}");
}

#[test]
fn a_control_plane_that_is_stopped_keeps_no_command_waiting() {
    tollway_testkit::slow!();
    let user = User::new();
    let _app = serve(&user, "files");
    user.until_called("files/healthz");
    let control = user.control_pid();
    tollway_tests::user::kill(control, Signal::STOP);
    for command in [&["get", "services"][..], &["call", "files/"]] {
        let ended = user.tollway(command);
        assert_eq!(ended.code, Some(1));
        let reported = ended.stderr.contains("[ERR_NO_CONTROL_PLANE]\nhint: ");
        assert!(reported, "{command:?}: {}", ended.stderr);
    }
    tollway_tests::user::kill(control, Signal::CONT);
    user.until_called("files/healthz");
}

#[test]
fn an_app_that_does_not_listen_gets_a_hint() {
    tollway_testkit::slow!();
    let user = User::new();
    let mut run = user.run(&["--app-id", "deaf", "--app-port", "1"], "exec sleep 1000");
    let hint = "tollway: hint: give the port that it listens on with --app-port\n";
    let said = retry_until(PATIENCE, "the hint", || run.log().contains(hint).then_some(()));
    said.unwrap();
    run.terminate(PATIENCE).unwrap();
    assert!(!run.log().contains("takes calls"), "{}", run.log());
}
