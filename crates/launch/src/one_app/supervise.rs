//! From the start of the app to the end of its sidecar.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::oneshot;
use tollway_net::process::{Change, Ending, Process};
use tollway_proxy::DataPlaneError;
use tollway_proxy::mesh::MeshClient;
use tollway_runtime::{Ended, Sidecar};

use super::plan::Plan;
use super::readiness;
use super::terminal::Terminal;
use crate::console::{Console, ended};
use crate::error::LaunchError;
use crate::signals::Signals;

/// Time for an app that got a signal to end because its sidecar failed, and for what it leaves.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_EVERY: Duration = Duration::from_millis(20);
/// Time within which a stopped job is continued, if it was stopped at all.
const STOP_SETTLES: Duration = Duration::from_millis(200);

pub(super) struct Supervision {
    pub(super) plan: Arc<Plan>,
    pub(super) app: Process,
    pub(super) signals: Signals,
    pub(super) console: Console,
    /// For a local control plane that has to be started again.
    pub(super) linger: Duration,
}

type Leaving = Pin<Box<dyn Future<Output = ()>>>;

impl Supervision {
    /// Supervises app and sidecar until both have ended; returns the exit code of the app.
    pub(super) async fn run(mut self, sidecar: Sidecar) -> Result<i32, LaunchError> {
        let terminal = Terminal::of_this_process();
        if let Some(terminal) = &terminal {
            terminal.give(self.app.pid());
        }
        let mesh = sidecar.mesh();
        let readiness =
            readiness::print_readiness(self.plan.clone(), self.console, sidecar.app_ready());
        let control = readiness::watch_control(
            self.plan.clone(),
            self.console,
            Arc::clone(&mesh),
            self.linger,
        );
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = sidecar.serve(async { drop(stopped.await) });
        tokio::pin!(readiness, control, serving);
        let mut leaving: Option<(Leaving, Signal)> = None;
        let ending = loop {
            tokio::select! {
                event = self.signals.next_or_child() => match event {
                    Some(signal) => leaving = self.on_signal(signal, leaving, &mesh, terminal.as_ref()),
                    None => if let Some(ending) = self.on_child(terminal.as_ref()).await {
                        break ending;
                    },
                },
                () = async { match &mut leaving {
                    Some((left, _)) => left.await,
                    None => std::future::pending().await,
                } } => if let Some((_, signal)) = leaving.take() {
                    self.pass_on(signal);
                },
                failed = &mut serving => {
                    self.end_app().await;
                    return Err(sidecar_failed(failed));
                }
                never = &mut readiness => match never {},
                never = &mut control => match never {},
            }
        };
        if let Some(terminal) = &terminal {
            terminal.take_back(self.app.pid());
        }
        self.console.note(&ended(ending, self.plan.app_id.as_str()));
        drop(stop);
        tokio::select! {
            (drained, ()) = async { tokio::join!(serving, end_rest(&self.app)) } => drop(drained.map_err(LaunchError::Drain)?),
            // A second request to end does not wait.
            _ = self.signals.next_request_to_end() => self.app.signal_group(Signal::KILL),
        }
        Ok(ending.code())
    }

    /// A request to end first takes the app off the mesh, so that no caller is left when it closes.
    /// A second request is passed on at once, and so is any other signal.
    fn on_signal(
        &self,
        signal: Signal,
        leaving: Option<(Leaving, Signal)>,
        mesh: &Arc<MeshClient>,
        terminal: Option<&Terminal>,
    ) -> Option<(Leaving, Signal)> {
        if signal == Signal::CONT {
            if let Some(terminal) = terminal {
                terminal.give(self.app.pid());
            }
            self.app.signal_group(Signal::CONT);
            return leaving;
        }
        let ends = signal == Signal::TERM || signal == Signal::INT;
        if ends && leaving.is_none() && mesh.status().borrow().registered.is_some() {
            let withdraw = self.plan.sidecar.common.plane.timeouts.withdraw;
            let mesh = Arc::clone(mesh);
            let left = async move {
                mesh.deregister().await;
                tokio::time::sleep(withdraw).await;
            };
            return Some((Box::pin(left), signal));
        }
        self.pass_on(signal);
        if ends { None } else { leaving }
    }

    fn pass_on(&self, signal: Signal) {
        // Fails if it has ended, which the next change shows.
        let _ = self.app.signal(signal);
    }

    /// Reads the changes of the app; returns its end.
    async fn on_child(&mut self, terminal: Option<&Terminal>) -> Option<Ending> {
        loop {
            match self.app.change()? {
                Change::Ended(ending) => return Some(ending),
                Change::Stopped(signal) => {
                    if let Some(terminal) = terminal {
                        self.on_stop(signal, terminal).await;
                    }
                }
            }
        }
    }

    /// A stop from the terminal stops the whole job, and the shell takes over. A stop by other means
    /// stops the app alone.
    async fn on_stop(&mut self, signal: i32, terminal: &Terminal) {
        let wants_terminal = signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw();
        if wants_terminal && terminal.give(self.app.pid()) {
            self.app.signal_group(Signal::CONT);
        } else if wants_terminal || signal == Signal::TSTP.as_raw() {
            terminal.take_back(self.app.pid());
            terminal.stop_own_job();
            let continued = async { while self.signals.next().await != Signal::CONT {} };
            let _ = tokio::time::timeout(STOP_SETTLES, continued).await;
            terminal.give(self.app.pid());
            self.app.signal_group(Signal::CONT);
        }
    }

    /// Without its sidecar the app is of no use.
    async fn end_app(&mut self) {
        self.pass_on(Signal::TERM);
        let ended = async {
            while !matches!(self.app.change(), Some(Change::Ended(_))) {
                tokio::time::sleep(POLL_EVERY).await;
            }
        };
        if tokio::time::timeout(END_TIMEOUT, ended).await.is_err() {
            self.app.signal_group(Signal::KILL);
        }
    }
}

/// What the app leaves behind in its group, such as the server below a script that got a signal
/// to end, could not be called any more: it ends too.
async fn end_rest(app: &Process) {
    if !app.has_group() {
        return;
    }
    app.signal_group(Signal::TERM);
    let ended = async {
        while app.has_group() {
            tokio::time::sleep(POLL_EVERY).await;
        }
    };
    if tokio::time::timeout(END_TIMEOUT, ended).await.is_err() {
        app.signal_group(Signal::KILL);
    }
}

fn sidecar_failed(result: Result<Ended, DataPlaneError>) -> LaunchError {
    match result {
        Ok(_) => LaunchError::SidecarEnded,
        Err(error) => LaunchError::SidecarFailed(error),
    }
}
