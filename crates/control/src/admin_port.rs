//! The port for metrics and health. Over etcd it is served from the start: a control plane that stands by is
//! alive, and ready to take over.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tollway_model::RunningConfig;
use tollway_telemetry::metrics::{Part, add_build, add_process, names};
use tollway_telemetry::{AdminFacts, Page, serve_admin};

use crate::metrics::ControlFacts;

/// What the port shows.
pub(crate) struct AdminPort {
    /// Of the control plane, while it serves.
    serving: RwLock<Option<ControlFacts>>,
    other_master: watch::Sender<Option<String>>,
    config: watch::Receiver<RunningConfig>,
}

impl AdminPort {
    pub(crate) fn new(config: watch::Receiver<RunningConfig>) -> Arc<Self> {
        let other_master = watch::Sender::default();
        Arc::new(Self { serving: RwLock::default(), other_master, config })
    }

    /// Gets the name of the control plane that serves while this one stands by.
    pub(crate) fn other_master(&self) -> watch::Sender<Option<String>> {
        self.other_master.clone()
    }

    /// Ends when the handle is dropped.
    pub(crate) fn serve(self: &Arc<Self>, listener: TcpListener) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(tokio::spawn(serve_admin(Arc::<Self>::clone(self), listener)))
    }

    /// What is shown from now on; with `None` nothing holds the store any more.
    pub(crate) fn show(&self, facts: Option<ControlFacts>) {
        *self.serving.write().unwrap_or_else(PoisonError::into_inner) = facts;
    }

    fn serving(&self) -> RwLockReadGuard<'_, Option<ControlFacts>> {
        self.serving.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdminFacts for AdminPort {
    fn add_metrics(&self, page: &mut Page) {
        let serving = self.serving();
        page.single(&names::CONTROL_SERVES, u8::from(serving.is_some()));
        if let Some(facts) = &*serving {
            facts.add_to(page);
        }
        add_build(page, Part::Control);
        add_process(page);
    }

    fn config(&self) -> RunningConfig {
        self.config.borrow().clone()
    }

    /// Who stands by is ready: its work is to take over.
    fn ready(&self) -> Result<(), String> {
        if self.serving().is_some() || self.other_master.borrow().is_some() {
            return Ok(());
        }
        Err("it does not serve yet: its store is not open".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stands_by_is_ready_once_another_one_is_known_to_serve() {
        let port = AdminPort::new(watch::channel(RunningConfig::default()).1);
        let refused = port.ready().unwrap_err();
        assert!(refused.contains("store"), "{refused}");
        port.other_master().send_replace(Some("another machine".to_owned()));
        assert_eq!(port.ready(), Ok(()));
        let mut page = Page::default();
        port.add_metrics(&mut page);
        let text = page.into_text();
        assert!(text.contains("\ntollway_control_serves 0\n"), "{text}");
    }
}
