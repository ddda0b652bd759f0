//! `tollway run -f`: the apps of one of Dapr's run files, started together with a sidecar each.

use std::path::PathBuf;

use rustix::process::Signal;
use tollway_testkit::{Process, Start, binary, free_port, retry_until};
use tollway_tests::user::{PATIENCE, User, is_gone, pid_in};

/// An app that serves, and calls its peer until that answers.
const CALLS_ITS_PEER: &str = "echo pid $$; \"$TOLLWAY\" echo --http 127.0.0.1:$APP_PORT --name $APP_ID & until \
     \"$TOLLWAY\" call --sidecar http://127.0.0.1:$DAPR_HTTP_PORT -i $PEER/healthz; do sleep 0.1; \
     done; echo $GREETING from $APP_ID in ${PWD##*/}; wait";

fn write(user: &User, name: &str, text: &str) -> PathBuf {
    let path = user.path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path
}

/// `tollway run` with these words, in a home without anything.
fn start(user: &User, words: &[&str]) -> Process {
    let folder = user.directory().parent().unwrap().to_owned();
    // Where the tests run in the background of a script, Ctrl-C is ignored, and that is inherited.
    let start = Start::new("env").arg("--default-signal=INT").arg(binary("tollway").unwrap());
    let start = start.arg("run").args(words);
    let start = start.env("XDG_RUNTIME_DIR", &folder).env("HOME", folder.join("home"));
    start.env("TOLLWAY", binary("tollway").unwrap()).start().unwrap()
}

fn until_said(run: &Process, text: &str) {
    let said = retry_until(PATIENCE, text, || run.log().contains(text).then_some(()));
    said.map_err(|error| error.context(run.log())).unwrap();
}

/// The run file's list of a shell's script.
fn script(text: &str) -> String {
    serde_json::to_string(&["sh", "-c", text]).unwrap()
}

/// A run file of two apps that call each other.
fn two_apps(user: &User) -> PathBuf {
    let [one, other] = [(); 2].map(|()| free_port().unwrap());
    let command = script(CALLS_ITS_PEER);
    write(user, "web/readme", "");
    write(user, "stores/readme", "");
    write(
        user,
        "dapr.yaml",
        &format!(
            "version: 1\nname: shop\ncommon:\n  env: {{GREETING: hello, PEER: web}}\n  logLevel: warn\n\
             apps:\n- appDirPath: ./web\n  appPort: {one}\n  command: {command}\n  env: {{PEER: \
             back}}\n  appLogDestination: console\n- appID: back\n  appDirPath: stores\n  appPort: {other}\n  \
             command: {command}\n  daprdLogDestination: fileAndConsole\n"
        ),
    )
}

#[test]
fn two_apps_of_a_file_call_each_other_and_end_together() {
    let user = User::new();
    let file = two_apps(&user);
    let mut run = start(&user, &["-f", file.parent().unwrap().to_str().unwrap()]);
    for (app, folder, peer) in [("web", "web", "back"), ("back", "stores", "web")] {
        until_said(&run, &format!("== APP - {app} == hello from {app} in {folder}\n"));
        until_said(&run, &format!("== APP - {app} == x-echo-name: {peer}"));
    }
    let log = run.log();
    let pids = ["web", "back"].map(|app| pid_in(&log, &format!("== APP - {app} == pid ")));
    run.signal(Signal::INT).unwrap();
    let status = run.wait(PATIENCE).unwrap();
    let log = run.log();
    assert_eq!(status.code(), Some(0), "{log}");
    for (app, pid) in [("web", pids[0]), ("back", pids[1])] {
        assert!(log.contains(&format!("tollway: {app} was ended by signal 15\n")), "{log}");
        assert!(is_gone(pid), "{app} lives on");
    }
    // A setting of a file is there, and only there unless it is for both.
    let logs = |folder: &str| {
        let files = std::fs::read_dir(user.path(folder).join(".dapr/logs")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        let name = |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().to_owned();
        let whose = |file: &PathBuf| name(file).rsplit_once('_').unwrap().0.to_owned();
        files
            .iter()
            .map(|file| (whose(file), std::fs::read_to_string(file).unwrap()))
            .collect::<Vec<_>>()
    };
    let [(web, _)] = &logs("web")[..] else { panic!("{:?}", logs("web")) };
    assert_eq!(web, "web_daprd");
    let [(app, said), (sidecar, _)] = &logs("stores")[..] else { panic!("{:?}", logs("stores")) };
    assert_eq!((app.as_str(), sidecar.as_str()), ("back_app", "back_daprd"));
    assert!(said.contains("\nhello from back in stores\n"), "{said}");
}

#[test]
fn an_app_that_ends_is_reported_and_the_others_go_on() {
    let user = User::new();
    write(&user, "a/readme", "");
    let port = free_port().unwrap();
    let serves = script("exec \"$TOLLWAY\" echo --http 127.0.0.1:$APP_PORT --name $APP_ID");
    let fails = script("echo oops >&2; exit 7");
    let text = format!(
        "version: 1\napps:\n- {{appID: brief, appDirPath: a, command: {fails}}}\n- {{appID: lasting, \
         appDirPath: a, appPort: {port}, command: {serves}}}\n"
    );
    let mut run = start(&user, &["-f", write(&user, "two.yaml", &text).to_str().unwrap()]);
    until_said(&run, "== APP - brief == oops\n");
    until_said(&run, "tollway: brief has ended with code 7\n");
    user.until_called("lasting/healthz");
    assert!(run.is_running(), "{}", run.log());
    let status = run.terminate(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(1), "one has failed: {}", run.log());
}

#[test]
fn an_app_that_cannot_start_ends_all() {
    let user = User::new();
    write(&user, "a/readme", "");
    let waits = script("exec sleep 1000");
    let good = format!("- {{appID: good, appDirPath: a, command: {waits}}}\n");
    let starts = |bad: &str| {
        let text = format!("version: 1\napps:\n{good}- {bad}\n");
        let mut run = start(&user, &["-f", write(&user, "bad.yaml", &text).to_str().unwrap()]);
        let status = run.wait(PATIENCE).unwrap();
        assert_eq!(status.code(), Some(1), "{}", run.log());
        assert!(
            run.log().contains("tollway: not all apps have started, so all end\n"),
            "{}",
            run.log()
        );
        run.log()
    };
    let reported = starts("{appID: bad, appDirPath: a, command: [no-such-program]}");
    assert!(reported.contains("there is no program `no-such-program`"), "{reported}");
    // The sidecar's lines in its log file are printed too.
    write(&user, "rules.yaml", "spec: {accessControl: {defaultAction: perhaps}}\n");
    let reported = starts("{appID: bad, appDirPath: a, configFilePath: ../rules.yaml}");
    assert!(reported.contains("the sidecar of bad has ended"), "{reported}");
    assert!(reported.contains("defaultAction has the action `perhaps`"), "{reported}");
}

#[test]
fn mistakes_are_reported_before_anything_starts() {
    let user = User::new();
    let reported = |text: &str| {
        let file = write(&user, "wrong.yaml", text);
        let ended = user.tollway(&["run", "--run-file", file.to_str().unwrap()]);
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        assert!(!user.directory().exists(), "a control plane was started");
        ended.stderr
    };
    write(&user, "a/readme", "");
    let several = reported("version: 1\napps:\n- {appDirPath: a, command: cat}\n- cat\n");
    assert!(several.contains("wrong.yaml:3:28: `command` takes a list"), "{several}");
    assert!(several.contains("wrong.yaml:4:3: a section takes lines"), "{several}");
    let several = reported("version: 1\napps:\n- {appDirPath: b}\n- {appID: c, command: [d]}\n");
    assert!(several.contains("wrong.yaml:3:16: `appDirPath` names"), "{several}");
    assert!(several.contains("wrong.yaml:4:3: the app has no `appDirPath`"), "{several}");
    assert!(several.contains("ERR_BAD_CONFIGURATION"), "{several}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let busy = format!("version: 1\napps: [{{appDirPath: a, appPort: {port}, command: [cat]}}]\n");
    assert!(reported(&busy).contains(&format!("127.0.0.1:{port}")));
    let missing = user.tollway(&["run", "-f", "nowhere.yaml"]);
    assert!(missing.stderr.contains("cannot read nowhere.yaml"), "{}", missing.stderr);
}

#[test]
fn keys_without_values_merge_keys_and_one_app_port_for_two_hinder_no_start() {
    let user = User::new();
    write(&user, "a/readme", "");
    let port = free_port().unwrap();
    let text = format!(
        "version: 1\ncommon:\n  env:\n  #  LOG: debug\napps:\n- &base\n  appID: web\n  appDirPath: \
         a\n  appPort: {port}\n  metricsPort:\n  appPrt: 1\n  command: {}\n- <<: *base\n  appID: stock\n",
        script("echo here is $APP_ID at $APP_PORT")
    );
    let mut run = start(&user, &["-f", write(&user, "dapr.yaml", &text).to_str().unwrap()]);
    assert_eq!(run.wait(PATIENCE).unwrap().code(), Some(0), "{}", run.log());
    let log = run.log();
    assert!(log.contains(&format!("here is web at {port}")), "{log}");
    assert!(log.contains(&format!("here is stock at {port}")), "{log}");
    assert_eq!(log.matches("unknown key `appPrt`").count(), 1, "{log}");
}

#[test]
fn what_is_for_one_app_stands_in_the_file() {
    let user = User::new();
    let file = two_apps(&user);
    let file = file.to_str().unwrap();
    for words in [&["--app-id", "web"][..], &["--http-listen", "127.0.0.1:0"], &["--", "cat"]] {
        let ended = user.tollway(&[&["run", "-f", file], words].concat());
        assert_eq!(ended.code, Some(2), "{words:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("file"), "{}", ended.stderr);
    }
    // Without a file the name and the command are needed as ever.
    for words in [&["run", "--", "cat"][..], &["run", "--app-id", "web"]] {
        let ended = user.tollway(words);
        assert_eq!(ended.code, Some(2), "{words:?}: {}", ended.stderr);
    }
}

#[test]
fn an_app_is_not_started_before_those_it_may_call_at_once() {
    let user = User::new();
    write(&user, "a/readme", "");
    let port = free_port().unwrap();
    let late = script("sleep 2; exec \"$TOLLWAY\" echo --http 127.0.0.1:$APP_PORT --name $APP_ID");
    let calls = script(
        "\"$TOLLWAY\" call --sidecar http://127.0.0.1:$DAPR_HTTP_PORT -i late/healthz && echo called",
    );
    let text = format!(
        "version: 1\napps:\n- {{appID: late, appDirPath: a, appPort: {port}, command: {late}}}\n- \
         {{appID: hasty, appDirPath: a, command: {calls}}}\n"
    );
    let mut run = start(&user, &["-f", write(&user, "two.yaml", &text).to_str().unwrap()]);
    until_said(&run, "tollway: late takes calls\n");
    until_said(&run, "== APP - hasty == called\n");
    until_said(&run, "tollway: hasty has ended\n");
    let status = run.terminate(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(0), "{}", run.log());
}

#[test]
fn an_app_that_takes_no_calls_delays_no_other_for_good() {
    let user = User::new();
    write(&user, "a/readme", "");
    let port = free_port().unwrap();
    let ends = script("exit 0");
    let other = script("echo here");
    let text = format!(
        "version: 1\napps:\n- {{appID: brief, appDirPath: a, appPort: {port}, command: {ends}}}\n- \
         {{appID: other, appDirPath: a, command: {other}}}\n"
    );
    let mut run = start(&user, &["-f", write(&user, "two.yaml", &text).to_str().unwrap()]);
    until_said(&run, "== APP - other == here\n");
    assert_eq!(run.wait(PATIENCE).unwrap().code(), Some(0), "{}", run.log());
}

#[test]
fn command_lines_of_dapr_run_are_taken() {
    let user = User::new();
    let [port, api] = [(); 2].map(|()| free_port().unwrap());
    let (port, api) = (port.to_string(), api.to_string());
    let serves = "echo port $APP_PORT api $DAPR_HTTP_PORT; exec \"$TOLLWAY\" echo --http 127.0.0.1:$APP_PORT";
    let words = ["--dapr", "--app-id", "web", "-p", &port, "--dapr-http-port", &api];
    let mut run = start(&user, &[&words[..], &["--", "sh", "-c", serves]].concat());
    until_said(&run, &format!("== APP == port {port} api {api}\n"));
    user.until_called("web/healthz");
    assert_eq!(run.terminate(PATIENCE).unwrap().code(), Some(0), "{}", run.log());
    // Beside a run file other options have no effect, and the run file's words are wanted.
    for (words, part) in [
        (&["--dapr", "--no-such-flag"][..], "unknown flag: --no-such-flag"),
        (&["--dapr", "-f", "/nowhere", "-p", "80"], "/nowhere"),
        (&["--dapr", "--app-port", "seven", "--", "sh"], "`--app-port`: `seven` is no port"),
        (&["--dapr", "--resources-path", "/no/where", "--", "sh"], "`--resources-path` names"),
    ] {
        let mut run = start(&user, words);
        let status = run.wait(PATIENCE).unwrap();
        assert!(!status.success() && run.log().contains(part), "{part}: {}", run.log());
    }
}
