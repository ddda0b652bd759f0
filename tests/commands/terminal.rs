//! `tollway run` at a terminal: who is typed to, who is interrupted, who is stopped.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use tollway_testkit::{need_tool, retry_until};
use tollway_tests::user::{PATIENCE, User};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// A terminal, and a command that has it as its own.
struct Terminal {
    keys: File,
    shown: Arc<Mutex<String>>,
    seen: usize,
    command: Child,
}

impl Terminal {
    /// Starts `words` as `user`, in a session of its own at a new terminal.
    fn new(user: &User, setsid: &Path, words: &[impl AsRef<OsStr>]) -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let name = ptsname(&keys, Vec::new()).unwrap();
        let tty = File::from(rustix::fs::open(name, flags, Mode::empty()).unwrap());
        let command = user
            .plain_command(setsid)
            .arg("--ctty")
            // Keys that send signals must do so, also if the test's parent ignores those.
            .args(["env", "--default-signal=INT,QUIT,TSTP"])
            .args(words)
            .stdin(tty.try_clone().unwrap())
            .stdout(tty.try_clone().unwrap())
            .stderr(tty)
            .spawn()
            .unwrap();
        let keys = File::from(keys);
        let shown = Arc::new(Mutex::new(String::new()));
        let (mut screen, text) = (keys.try_clone().unwrap(), Arc::clone(&shown));
        // Ends with the last process that has the terminal.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                text.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Self { keys, shown, seen: 0, command }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for `text` after what was waited for last.
    fn until(&mut self, text: &str) {
        let found = retry_until(PATIENCE, text, || {
            let shown = self.shown.lock().unwrap();
            shown[self.seen..].find(text).map(|at| self.seen + at + text.len())
        });
        let shown = || self.shown.lock().unwrap().clone();
        self.seen = found.map_err(|error| error.context(shown())).unwrap();
    }

    fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    fn code(&mut self) -> Option<i32> {
        let ended =
            retry_until(PATIENCE, "the end of the command", || self.command.try_wait().unwrap());
        ended.map_err(|error| error.context(self.shown())).unwrap().code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.command.kill();
        let _ = self.command.wait();
    }
}

#[test]
fn ctrl_c_interrupts_the_app_once() {
    let setsid = need_tool!("setsid");
    let user = User::new();
    let script = "trap 'n=$((n+1)); echo got INT $n' INT; trap 'exit 9' TERM; echo up; \
                  while :; do sleep 0.05; done";
    let words = user.run_words(&["--app-id", "app"], &["sh", "-c", script]);
    let mut terminal = Terminal::new(&user, &setsid, &words);
    terminal.until("up\r\n");
    terminal.press(CTRL_C);
    terminal.until("got INT 1\r\n");
    terminal.press(CTRL_C);
    terminal.until("got INT 2\r\n");
    tollway_tests::user::kill(terminal.command.id(), rustix::process::Signal::TERM);
    assert_eq!(terminal.code(), Some(9), "{}", terminal.shown());
}

#[test]
fn the_app_reads_what_is_typed() {
    let setsid = need_tool!("setsid");
    let user = User::new();
    let script = "echo up; read line; echo \"said $line\"";
    let words = user.run_words(&["--app-id", "app"], &["sh", "-c", script]);
    let mut terminal = Terminal::new(&user, &setsid, &words);
    terminal.until("up\r\n");
    terminal.press("hello\n");
    terminal.until("said hello\r\n");
    assert_eq!(terminal.code(), Some(0), "{}", terminal.shown());
}

#[test]
fn ctrl_z_gives_the_shell_its_turn_and_fg_the_app() {
    let setsid = need_tool!("setsid");
    let bash = need_tool!("bash");
    let user = User::new();
    let shell = [bash.to_str().unwrap(), "--norc", "--noprofile", "--noediting", "-i"];
    let mut terminal = Terminal::new(&user, &setsid, &shell);
    let run = user.run_words(&["--app-id", "app"], &["cat"]).join(" ");
    terminal.press(&format!("{run}\n"));
    terminal.until("sidecar of app ready");
    terminal.press("before\n");
    terminal.until("before\r\nbefore\r\n");
    terminal.press(CTRL_Z);
    terminal.until("Stopped");
    terminal.press("echo shell $((20 + 3))\n");
    terminal.until("shell 23\r\n");
    terminal.press("fg\n");
    terminal.until("-- cat\r\n");
    terminal.press("after\n");
    terminal.until("after\r\nafter\r\n");
    terminal.press(CTRL_C);
    terminal.until("app was ended by signal 2");
    terminal.press("echo code $?\n");
    terminal.until("code 130\r\n");
    // From the background it may not read, and stops; then `fg` continues it.
    terminal.press(&format!("{run} &\n"));
    terminal.until("sidecar of app ready");
    terminal.press("\n");
    let stopped = retry_until(PATIENCE, "the stop of the background job", || {
        let from = terminal.seen;
        terminal.press("jobs; echo listed $((40 + 2))\n");
        terminal.until("listed 42\r\n");
        terminal.shown()[from..terminal.seen].contains("Stopped").then_some(())
    });
    stopped.unwrap();
    terminal.press("fg\n");
    terminal.until("-- cat\r\n");
    terminal.press("third\n");
    terminal.until("third\r\nthird\r\n");
    terminal.press("\x04");
    terminal.until("app has ended");
    terminal.press("exit 4\n");
    assert_eq!(terminal.code(), Some(4), "{}", terminal.shown());
}
