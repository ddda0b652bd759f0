//! One app of a run file with its sidecar: started in order, looked after, ended in order.
//!
//! Both are processes. The sidecar starts first and writes its ports to a file; the app finds them in
//! its environment. It starts when the apps before it in the file take calls, so that it may call
//! them at once. At the end the app goes first. The kernel ends both if this process is killed, and a
//! guard what the app has started.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::task::JoinHandle;
use tollway_net::process::{Change, Ending, Process, Stream};
use tollway_net::spawn::Confinement;

use super::app_plan::AppPlan;
use super::calls::until_called;
use super::output::{LAST_LINES_WITHIN, Output};
use crate::console::{Console, ended};
use crate::error::{CannotStart, LaunchError};
use crate::one_app::environment::{STATE_VARIABLE, state_folder};
use crate::program::{guard_app, own_program, start_guard};

/// Time for an app that got a signal to end.
const APP_ENDS_WITHIN: Duration = Duration::from_secs(10);
/// Time for an app to take calls; the apps after it start then in any case, since it may wait for one
/// of them.
const TAKES_CALLS_WITHIN: Duration = Duration::from_secs(30);
/// Time for its sidecar then: it finishes what is under way in five seconds.
const SIDECAR_ENDS_WITHIN: Duration = Duration::from_secs(10);

/// How far a member is.
enum Stage {
    /// The sidecar was started.
    Starting,
    /// The sidecar is ready, and the app waits for those before it.
    Ready {
        ports: BTreeMap<String, SocketAddr>,
    },
    Running,
    /// The app got a signal to end.
    AppEnding {
        until: Instant,
    },
    /// The sidecar was.
    SidecarEnding {
        until: Instant,
    },
    Gone,
}

pub(super) struct Member {
    plan: AppPlan,
    console: Console,
    stage: Stage,
    sidecar: Process,
    sidecar_output: Output,
    ports_file: PathBuf,
    app: Option<Process>,
    app_output: Option<Output>,
    /// Ends when the app takes calls, or has had the time for it; there for an app with a port.
    takes_calls: Option<JoinHandle<()>>,
    /// It did not start, or ended by itself and not well.
    pub(super) failed: bool,
    /// It did not start: the others are to end too.
    pub(super) not_started: bool,
}

impl Member {
    /// Starts the sidecar; its ports file comes into `folder` under the name `name`.
    pub(super) fn start(
        plan: AppPlan,
        console: Console,
        folder: &Path,
        name: &str,
    ) -> Result<Self, LaunchError> {
        let ports_file = folder.join(name);
        let mut command = Command::new(own_program());
        command.args(["sidecar", "--dapr"]).args(&plan.flags);
        command.arg("--ports-file").arg(&ports_file).current_dir(&plan.folder);
        if let Some(all) = state_folder() {
            command.env(STATE_VARIABLE, all.join(&plan.app_id));
        }
        let app_id = plan.app_id.clone();
        let what = format!("cannot start the sidecar of {app_id}");
        let (id, folder_of_app) = (&plan.app_id, &plan.folder);
        let output = Output::new(plan.sidecar_output, "daprd", id, folder_of_app, plan.is_alone);
        let sidecar_output = output.map_err(LaunchError::system(format!(
            "cannot write the log of the sidecar of {app_id} below {}/.dapr",
            plan.folder.display()
        )))?;
        let sidecar = spawn(command, &sidecar_output).map_err(LaunchError::system(what))?;
        for note in &plan.notes {
            console.error(note);
        }
        Ok(Self {
            plan,
            console,
            stage: Stage::Starting,
            sidecar,
            sidecar_output,
            ports_file,
            app: None,
            app_output: None,
            takes_calls: None,
            failed: false,
            not_started: false,
        })
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self.stage, Stage::Gone)
    }

    /// Whether the apps after it may start.
    pub(super) fn is_settled(&self) -> bool {
        match self.stage {
            Stage::Starting | Stage::Ready { .. } => false,
            Stage::Running => self.takes_calls.as_ref().is_none_or(JoinHandle::is_finished),
            Stage::AppEnding { .. } | Stage::SidecarEnding { .. } | Stage::Gone => true,
        }
    }

    /// Reads the changes of its processes, and does what follows; `may_start` is whether all before it
    /// are settled. Call it from a thread that lives as long as the process does.
    pub(super) fn advance(&mut self, may_start: bool) {
        match self.stage {
            Stage::Starting => self.read_ports(),
            Stage::Ready { ref mut ports } if may_start => {
                let ports = std::mem::take(ports);
                self.run_app(&ports);
            }
            Stage::Ready { .. } => self.find_no_sidecar(),
            Stage::Running => self.watch(),
            Stage::AppEnding { until } => {
                if let Some(ending) = self.app_has_ended() {
                    self.console.note(&ended(ending, &self.plan.app_id));
                    self.end_sidecar();
                } else if Instant::now() >= until {
                    self.kill_app();
                }
            }
            Stage::SidecarEnding { until } => {
                if self.sidecar_has_ended().is_some() {
                    self.kill_app();
                    self.stage = Stage::Gone;
                } else if Instant::now() >= until {
                    // Fails if it has ended, which the next call finds.
                    let _ = self.sidecar.kill();
                }
            }
            Stage::Gone => {}
        }
    }

    /// Ends it in order, the app first.
    pub(super) fn end(&mut self) {
        match self.stage {
            Stage::Starting | Stage::Ready { .. } => self.end_sidecar(),
            Stage::Running => {
                if let Some(app) = &self.app {
                    // Fails if it has ended, which the next call of `advance` finds.
                    let _ = app.signal(Signal::TERM);
                    self.stage = Stage::AppEnding { until: Instant::now() + APP_ENDS_WITHIN };
                } else {
                    self.end_sidecar();
                }
            }
            Stage::AppEnding { .. } | Stage::SidecarEnding { .. } | Stage::Gone => {}
        }
    }

    /// Ends it at once.
    pub(super) fn kill(&mut self) {
        self.kill_app();
        let _ = self.sidecar.kill();
    }

    fn read_ports(&mut self) {
        self.find_no_sidecar();
        if self.is_gone() {
            return;
        }
        let Ok(text) = std::fs::read_to_string(&self.ports_file) else { return };
        let Ok(ports) = serde_json::from_str::<BTreeMap<String, SocketAddr>>(&text) else { return };
        let app_id = &self.plan.app_id;
        let port = |listener| ports.get(listener).map_or(0, SocketAddr::port);
        let (http, grpc) = (port("http"), port("grpc"));
        self.console.note(&format!("sidecar of {app_id} ready: HTTP {http}, gRPC {grpc}"));
        if self.plan.command.is_empty() {
            self.console.note(&format!("{app_id} has no command: start the app by other means"));
            self.stage = Stage::Running;
        } else {
            self.stage = Stage::Ready { ports };
        }
    }

    /// A sidecar that has ended before its app was started ends the member.
    fn find_no_sidecar(&mut self) {
        if let Some(status) = self.sidecar_has_ended() {
            self.report_sidecar_failure(status);
            self.not_started = true;
            self.stage = Stage::Gone;
        }
    }

    fn run_app(&mut self, ports: &BTreeMap<String, SocketAddr>) {
        self.stage = Stage::Running;
        if let Err(error) = self.start_app(ports) {
            self.console.failure(&error);
            (self.failed, self.not_started) = (true, true);
            self.end_sidecar();
            return;
        }
        let Some(api) = ports.get("http").filter(|_| self.plan.app_port.is_some()) else { return };
        let (api, console, app_id) = (*api, self.console, self.plan.app_id.clone());
        self.takes_calls = Some(tokio::spawn(async move {
            if tokio::time::timeout(TAKES_CALLS_WITHIN, until_called(api)).await.is_ok() {
                console.note(&format!("{app_id} takes calls"));
            } else {
                let seconds = TAKES_CALLS_WITHIN.as_secs();
                console.error(&format!(
                    "{app_id} takes no calls after {seconds} s, and the apps after it start\nhint: give the \
                     port that it listens on as `appPort`"
                ));
            }
        }));
    }

    fn start_app(&mut self, ports: &BTreeMap<String, SocketAddr>) -> Result<(), LaunchError> {
        let plan = &self.plan;
        let mut words = plan.command.iter();
        let program = words.next().cloned().unwrap_or_default();
        let mut command = Command::new(in_folder(&program, &plan.folder));
        command.args(words).current_dir(&plan.folder);
        // Only the sidecar has the right to join.
        for name in ["TOLLWAY_TOKEN", STATE_VARIABLE, "APP_PORT", "DAPR_METRICS_PORT"] {
            command.env_remove(name);
        }
        command.envs(environment(plan, ports)).envs(plan.env.iter().cloned());
        let (id, folder) = (&plan.app_id, &plan.folder);
        let output = Output::new(plan.app_output, "app", id, folder, plan.is_alone);
        let output = output.map_err(LaunchError::system(format!(
            "cannot write the log of {} below {}/.dapr",
            plan.app_id,
            plan.folder.display()
        )))?;
        let guard = start_guard()?;
        let mut app = spawn(command, &output).map_err(|source| CannotStart::of(program, source))?;
        guard_app(&mut app, guard);
        let paths = [("", &output.path), ("the sidecar of ", &self.sidecar_output.path)];
        for (what, path) in paths {
            if let Some(path) = path {
                self.console.note(&format!("log of {what}{}: {}", plan.app_id, path.display()));
            }
        }
        self.app = Some(app);
        self.app_output = Some(output);
        Ok(())
    }

    /// The app and its sidecar run: neither is of use without the other.
    fn watch(&mut self) {
        if let Some(ending) = self.app_has_ended() {
            self.console.note(&ended(ending, &self.plan.app_id));
            self.failed |= ending != Ending::Code(0);
            self.end_sidecar();
        } else if let Some(status) = self.sidecar_has_ended() {
            self.report_sidecar_failure(status);
            self.end();
        }
    }

    /// Waits for what its processes, which have ended, wrote last.
    pub(super) fn wait_for_lines(&self, deadline: Instant) {
        self.sidecar_output.lines.wait(deadline);
        if let Some(output) = &self.app_output {
            output.lines.wait(deadline);
        }
    }

    fn report_sidecar_failure(&mut self, status: ExitStatus) {
        self.sidecar_output.lines.wait(Instant::now() + LAST_LINES_WITHIN);
        let app_id = &self.plan.app_id;
        self.console
            .error(&format!("the sidecar of {app_id} has ended ({status}), so the app ends too"));
        for line in self.sidecar_output.lines.unseen() {
            self.console.error(&format!("  {line}"));
        }
        self.failed = true;
    }

    fn end_sidecar(&mut self) {
        if let Some(takes_calls) = &self.takes_calls {
            takes_calls.abort();
        }
        if let Some(app) = &self.app {
            // What the app leaves behind could not be called any more: it ends too.
            app.signal_group(Signal::TERM);
        }
        // Fails if it has ended, which the next call of `advance` finds.
        let _ = self.sidecar.signal(Signal::TERM);
        self.stage = Stage::SidecarEnding { until: Instant::now() + SIDECAR_ENDS_WITHIN };
    }

    fn kill_app(&mut self) {
        if let Some(app) = &self.app {
            app.signal_group(Signal::KILL);
        }
    }

    /// How the app has ended, if it has and this was not returned before.
    fn app_has_ended(&self) -> Option<Ending> {
        match self.app.as_ref()?.change()? {
            Change::Ended(ending) => Some(ending),
            Change::Stopped(_) => None,
        }
    }

    fn sidecar_has_ended(&mut self) -> Option<ExitStatus> {
        self.sidecar.status()
    }
}

/// Starts a process whose lines go to `output`.
fn spawn(mut command: Command, output: &Output) -> std::io::Result<Process> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Process::spawn(command, Confinement::default())?;
    if let Some(stdout) = process.take_stdout() {
        output.lines.pass(stdout, Stream::Out)?;
    }
    if let Some(stderr) = process.take_stderr() {
        output.lines.pass(stderr, Stream::Error)?;
    }
    Ok(process)
}

/// A program that is given with a path is relative to the app's folder.
fn in_folder(program: &str, folder: &Path) -> OsString {
    match program.contains('/') {
        true => folder.join(program).into(),
        false => program.into(),
    }
}

/// The addresses of the sidecar, under the names that SDKs of Dapr read.
fn environment(
    plan: &AppPlan,
    ports: &BTreeMap<String, SocketAddr>,
) -> Vec<(&'static str, String)> {
    let port =
        |listener| ports.get(listener).map(|address: &SocketAddr| address.port().to_string());
    let all = [
        ("APP_ID", Some(plan.app_id.clone())),
        ("APP_PORT", plan.app_port.map(|port| port.to_string())),
        ("APP_PROTOCOL", Some(plan.protocol.clone())),
        ("APP_CHANNEL_ADDRESS", Some(plan.app_host.clone())),
        ("DAPR_HTTP_PORT", port("http")),
        ("DAPR_GRPC_PORT", port("grpc")),
        ("DAPR_METRICS_PORT", port("admin")),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
