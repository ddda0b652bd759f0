//! Settings that change while a data plane runs: checked as a whole, then put to work by commands
//! to the data threads. A change that cannot be carried out changes nothing.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot, watch};
use tollway_model::{RunningConfig, ServiceName};
use tollway_net::Listener;

use crate::bind::BoundListeners;
use crate::conn::ListenerKind;
use crate::dataplane::DataPlaneError;
use crate::event_loop::{Command, LoopConfig};
use crate::fanout::Fanout;
use crate::limits::{Limits, Timeouts};
use crate::observe::{Telemetry, TelemetryOptions};
use crate::plane::seed;

/// Changes that wait to be carried out.
const CHANGES_LIMIT: usize = 4;

/// What can be changed in a running data plane.
#[derive(Clone, Debug)]
pub struct LiveOptions {
    pub limits: Limits,
    pub timeouts: Timeouts,
    /// Spans and access-log lines of single requests. Not for gateways.
    pub telemetry: TelemetryOptions,
    /// `PORT=SERVICE`, as at the start. Not for gateways.
    pub upstreams: Vec<String>,
}

/// The data plane's end, which receives changes of its configuration.
#[derive(Clone, Debug)]
pub struct Live {
    /// Shown on the admin port.
    pub(crate) config: watch::Receiver<RunningConfig>,
    changes: Arc<tokio::sync::Mutex<mpsc::Receiver<Change>>>,
}

/// The other end: changes what runs.
#[derive(Clone, Debug)]
pub struct LiveHandle(mpsc::Sender<Change>);

#[derive(Debug)]
struct Change {
    options: LiveOptions,
    done: oneshot::Sender<Result<(), DataPlaneError>>,
}

/// Both ends; `config` says what runs.
#[must_use]
pub fn live(config: watch::Receiver<RunningConfig>) -> (LiveHandle, Live) {
    let (sender, changes) = mpsc::channel(CHANGES_LIMIT);
    (LiveHandle(sender), Live { config, changes: Arc::new(tokio::sync::Mutex::new(changes)) })
}

impl Default for Live {
    /// Never changes.
    fn default() -> Self {
        live(watch::channel(RunningConfig { revision: 1, ..Default::default() }).1).1
    }
}

impl Live {
    /// For a data plane whose settings never change.
    #[must_use]
    pub fn fixed() -> Self {
        let (_, config) = watch::channel(RunningConfig::default());
        live(config).1
    }
}

impl LiveHandle {
    /// Puts settings to work; returns when they were handed to every data thread.
    ///
    /// # Errors
    /// [`DataPlaneError`] when an upstream is malformed, its port cannot be bound, or the exporter
    /// of spans or the access log cannot be started: nothing has changed then.
    /// [`DataPlaneError::Ended`] when no data plane runs.
    pub async fn apply(&self, options: LiveOptions) -> Result<(), DataPlaneError> {
        let (done, answer) = oneshot::channel();
        let sent = self.0.send(Change { options, done }).await;
        sent.map_err(|_| DataPlaneError::Ended)?;
        answer.await.unwrap_or(Err(DataPlaneError::Ended))
    }
}

/// A TCP port of loopback that stands for a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UpstreamPort {
    /// As the user wrote it.
    pub(crate) text: String,
    /// As asked: 0 takes a free one.
    pub(crate) port: u16,
    pub(crate) service: ServiceName,
    /// One for each family of addresses.
    pub(crate) bound: Vec<SocketAddr>,
}

/// Carries changes out.
pub(crate) struct Reconfigurer {
    pub(crate) live: Live,
    pub(crate) base: Arc<LoopConfig>,
    pub(crate) fanout: Arc<Fanout>,
    pub(crate) threads: usize,
    pub(crate) upstreams: Vec<UpstreamPort>,
    pub(crate) telemetry: Arc<Mutex<Telemetry>>,
}

/// What becomes of the upstreams.
#[derive(Default, Debug)]
struct UpstreamPlan {
    stay: Vec<UpstreamPort>,
    redirect: Vec<UpstreamPort>,
    close: Vec<SocketAddr>,
    open: Vec<String>,
}

impl Reconfigurer {
    /// Serves until it is dropped.
    pub(crate) async fn run(mut self) {
        let changes = Arc::clone(&self.live.changes);
        let mut changes = changes.lock().await;
        while let Some(Change { options, done }) = changes.recv().await {
            // The caller may have stopped waiting for the answer.
            let _ = done.send(self.apply(options));
        }
        std::future::pending().await
    }

    fn apply(&mut self, options: LiveOptions) -> Result<(), DataPlaneError> {
        let wanted = options
            .upstreams
            .iter()
            .map(|text| {
                let (port, service) = parse_upstream(text, &self.base.home)?;
                Ok((text.clone(), port, service))
            })
            .collect::<Result<Vec<_>, DataPlaneError>>()?;
        let plan = plan_upstreams(&self.upstreams, wanted);
        let mut listeners = BoundListeners::for_threads(self.threads);
        for text in &plan.open {
            listeners.bind_upstream(text, &self.base.home)?;
        }
        let mut upstreams = plan.stay;
        upstreams.append(&mut listeners.upstreams);
        let opened = listeners.for_each_thread(self.threads)?;
        // The last that can fail: what is open already closes by itself if it does.
        self.observe(options.telemetry)?;
        let config = Arc::new(LoopConfig {
            limits: options.limits,
            timeouts: options.timeouts,
            ..(*self.base).clone()
        });
        self.fanout.configure(&config, opened);
        for upstream in plan.redirect {
            for address in &upstream.bound {
                let via = ListenerKind::Tcp(upstream.service.clone());
                self.fanout.send_to_all(|| Command::RedirectListener(*address, via.clone()));
            }
            upstreams.push(upstream);
        }
        for address in plan.close {
            self.fanout.send_to_all(|| Command::CloseListener(address));
        }
        self.upstreams = upstreams;
        Ok(())
    }

    /// Has the data threads record what `wanted` names.
    fn observe(&self, wanted: TelemetryOptions) -> Result<(), DataPlaneError> {
        let mut telemetry = self.telemetry.lock().unwrap_or_else(PoisonError::into_inner);
        if telemetry.change(wanted)? {
            self.fanout.send_to_each(|number| {
                Command::Observe(telemetry.observer([seed(number), seed(number)]))
            });
        }
        Ok(())
    }
}

/// Ports that are asked for again stay open, whatever service they now stand for.
fn plan_upstreams(open: &[UpstreamPort], wanted: Vec<(String, u16, ServiceName)>) -> UpstreamPlan {
    let mut plan = UpstreamPlan::default();
    let mut left = open.to_vec();
    for (text, port, service) in wanted {
        let same = |upstream: &UpstreamPort| {
            upstream.port == port && (port != 0 || upstream.service == service)
        };
        match left.iter().position(same) {
            Some(at) => {
                let upstream = left.swap_remove(at);
                if upstream.service == service {
                    plan.stay.push(UpstreamPort { text, ..upstream });
                } else {
                    plan.redirect.push(UpstreamPort { text, service, ..upstream });
                }
            }
            None => plan.open.push(text),
        }
    }
    plan.close = left.into_iter().flat_map(|upstream| upstream.bound).collect();
    plan
}

/// Reads `PORT=SERVICE`; `home` completes a short name.
pub(crate) fn parse_upstream(
    text: &str,
    home: &ServiceName,
) -> Result<(u16, ServiceName), DataPlaneError> {
    let malformed = || DataPlaneError::Upstream { text: text.to_owned() };
    let (port, name) = text.split_once('=').ok_or_else(malformed)?;
    let port: u16 = port.parse().map_err(|_| malformed())?;
    let service = ServiceName::parse(name, home)
        .map_err(|source| DataPlaneError::UpstreamName { text: text.to_owned(), source })?;
    Ok((port, service))
}

/// New listeners, one list a thread.
pub(crate) type ByThread = Vec<Vec<(Listener, ListenerKind)>>;

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> ServiceName {
        let label = |text| tollway_model::Label::new(text).unwrap();
        ServiceName { app: label("web"), namespace: label("default"), network: label("west") }
    }

    fn open(port: u16, service: &str, bound: u16) -> UpstreamPort {
        UpstreamPort {
            text: format!("{port}={service}"),
            port,
            service: ServiceName::parse(service, &home()).unwrap(),
            bound: vec![SocketAddr::from(([127, 0, 0, 1], bound))],
        }
    }

    fn plan(open: &[UpstreamPort], wanted: &[&str]) -> (usize, Vec<u16>, Vec<u16>, Vec<u16>) {
        let wanted = wanted.iter().map(|text| {
            let (port, service) = parse_upstream(text, &home()).unwrap();
            ((*text).to_owned(), port, service)
        });
        let plan = plan_upstreams(open, wanted.collect());
        let ports = |list: &[SocketAddr]| list.iter().map(SocketAddr::port).collect();
        let redirect: Vec<_> =
            plan.redirect.iter().flat_map(|upstream| upstream.bound.clone()).collect();
        let opened =
            plan.open.iter().map(|text| parse_upstream(text, &home()).unwrap().0).collect();
        (plan.stay.len(), ports(&redirect), ports(&plan.close), opened)
    }

    #[test]
    fn an_upstream_that_stays_is_not_touched() {
        let now = [open(5432, "db", 5432), open(0, "db", 40_000), open(0, "mail", 40_001)];
        assert_eq!(plan(&now, &["5432=db", "0=mail", "0=db"]), (3, vec![], vec![], vec![]));
        assert_eq!(plan(&now, &["0=mail"]), (1, vec![], vec![5432, 40_000], vec![]));
    }

    #[test]
    fn a_port_that_changes_its_service_stays_open() {
        let now = [open(5432, "db", 5432)];
        assert_eq!(plan(&now, &["5432=db.shop.east"]), (0, vec![5432], vec![], vec![]));
        assert_eq!(plan(&now, &["5433=db"]), (0, vec![], vec![5432], vec![5433]));
        assert_eq!(plan(&now, &[]), (0, vec![], vec![5432], vec![]));
    }

    #[test]
    fn a_malformed_upstream_is_refused_with_its_text() {
        for text in ["db", "x=db", "70000=db", "5432=a.b.c.d", "5432="] {
            let error = parse_upstream(text, &home()).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
