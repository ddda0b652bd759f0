//! A host's conversation with the control plane: the host enters, renews its lease, carries out
//! orders, and leaves.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tollway_actors::placement::{Epoch, Shard};
use tollway_wire::v1;
use tollway_wire::v1::host_request::Request as Step;
use tollway_wire::v1::host_response::Response as Answer;
use tollway_wire::v1::placement_client::PlacementClient;
use tonic::{Status, Streaming};

use super::host::{GivenBack, Host};
use super::is_set;
use super::pause::Pause;
use crate::control_link::ControlLink;

/// Requests that wait for the connection.
const REQUESTS: usize = 16;
/// Most shards that are given back together.
const TOGETHER: usize = 1024;
/// How long a host that retires waits until all shards are given back, in addition to the drain
/// time of its turns.
const LEAVE: Duration = Duration::from_secs(5);

/// How long a host waits for its registration before it enters. A host that is not registered
/// cannot be called.
const REGISTERED_WITHIN: Duration = Duration::from_secs(1);

/// The part of a lease between two attempts to renew it.
const RENEWAL_SHARE: u32 = 6;
/// Unanswered renewals after which a connection is given up.
const UNANSWERED: usize = 3;

/// One host's conversation, over one connection after another.
pub(crate) struct Session {
    pub(crate) control: Arc<dyn ControlLink>,
    pub(crate) host: Arc<Host>,
    pub(crate) life: u64,
    /// The number of connections so far.
    pub(crate) attempt: u64,
    /// Whether other apps may host its types, too, as in Dapr.
    pub(crate) shares_types: bool,
    pub(crate) given_back: mpsc::UnboundedReceiver<GivenBack>,
    /// Set when the host retires.
    pub(crate) retire: watch::Receiver<bool>,
    /// Whether the conversation is open.
    pub(crate) connected: watch::Sender<bool>,
}

/// How a connection ended.
#[derive(PartialEq, Eq)]
enum End {
    /// The host holds nothing, and the control plane has confirmed it.
    Left,
    Broken(String),
}

/// The state of one connection.
struct Connection<'a> {
    host: &'a Arc<Host>,
    requests: mpsc::Sender<v1::HostRequest>,
    /// When each unanswered request that renews the lease was sent.
    asked: VecDeque<Duration>,
    /// When the last request that renews the lease was sent.
    last_asked: Duration,
    /// The duration of a lease.
    lease: Duration,
    entered: bool,
    retiring: bool,
    leaving: bool,
}

impl Session {
    /// Runs until the host has left, or until the time for that is over.
    pub(crate) async fn run(mut self) {
        let looking = tokio::spawn(Arc::clone(&self.host).run_timers());
        let mut retire = self.retire.clone();
        let patience = self.host.types().values().map(|options| options.drain).max();
        let late = async {
            is_set(&mut retire).await;
            tokio::time::sleep(patience.unwrap_or_default() + LEAVE).await;
        };
        tokio::select! {
            () = self.talk() => {}
            () = late => tracing::warn!("not every actor was given back in time"),
        }
        looking.abort();
    }

    async fn talk(&mut self) {
        let mut retire = self.retire.clone();
        // Later connections do not wait for it, so that no shard is lost.
        tokio::select! {
            _ = tokio::time::timeout(REGISTERED_WITHIN, self.control.registered()) => {}
            _ = is_set(&mut retire) => {}
        }
        let mut pause = Pause::default();
        loop {
            let began = tokio::time::Instant::now();
            match self.connected().await {
                End::Left => return,
                End::Broken(why) => {
                    self.connected.send_replace(false);
                    if *self.retire.borrow() && self.host.holds_nothing() {
                        return;
                    }
                    let wait = pause.next(began.elapsed());
                    tracing::warn!(
                        reason = why,
                        ?wait,
                        "the host of actors has lost the control plane"
                    );
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// Runs one connection. Returns how it ended.
    async fn connected(&mut self) -> End {
        let (requests, outgoing) = mpsc::channel(REQUESTS);
        let asked = self.host.clock().now();
        let types = self.host.to_enter().iter().map(held_type).collect();
        let mut talk = Connection {
            host: &self.host,
            requests,
            asked: VecDeque::from([asked]),
            last_asked: asked,
            lease: Duration::ZERO,
            entered: false,
            retiring: false,
            leaving: false,
        };
        self.attempt += 1;
        let (life, attempt, shares_types) = (self.life, self.attempt, self.shares_types);
        let enter = v1::Enter { life, types, attempt, shares_types };
        if !talk.send(Step::Enter(enter)).await {
            return End::Broken("the connection has ended".to_owned());
        }
        let opening = async {
            let channel = self.control.connect().await?;
            let mut client = PlacementClient::new(channel);
            let opened = client.host(ReceiverStream::new(outgoing)).await;
            opened.map(tonic::Response::into_inner).map_err(|status| reason(&status))
        };
        let responses = match opening.await {
            Ok(responses) => responses,
            Err(why) => return End::Broken(why),
        };
        talk.go_on(responses, &mut self.given_back, &mut self.retire, &self.connected).await
    }
}

impl Connection<'_> {
    async fn send(&self, step: Step) -> bool {
        self.requests.send(v1::HostRequest { request: Some(step) }).await.is_ok()
    }

    async fn go_on(
        &mut self,
        mut responses: Streaming<v1::HostResponse>,
        given_back: &mut mpsc::UnboundedReceiver<GivenBack>,
        retire: &mut watch::Receiver<bool>,
        connected: &watch::Sender<bool>,
    ) -> End {
        let mut back = Vec::with_capacity(TOGETHER);
        loop {
            let renewal = self.next_renewal();
            let renewal = async {
                match renewal {
                    Some(at) => {
                        tokio::time::sleep(at.saturating_sub(self.host.clock().now())).await
                    }
                    None => std::future::pending().await,
                }
            };
            let going = self.entered && !self.retiring;
            let said = tokio::select! {
                response = responses.message() => match response {
                    Ok(Some(response)) => match self.heard(&response, connected) {
                        Ok(false) => true,
                        Ok(true) => return End::Left,
                        Err(why) => return End::Broken(why),
                    },
                    Ok(None) => return End::Broken("it ended the conversation".to_owned()),
                    Err(status) => return End::Broken(reason(&status)),
                },
                () = renewal => self.renew().await,
                count = given_back.recv_many(&mut back, TOGETHER), if self.entered => {
                    count > 0 && self.give_back(&mut back).await
                }
                _ = is_set(retire), if going => {
                    self.retiring = true;
                    self.send(Step::Retire(v1::Retire {})).await && self.leave_if_done().await
                }
            };
            if !said {
                return End::Broken("the connection has ended".to_owned());
            }
        }
    }

    /// When the lease is to be renewed: well before its end, and again if there was no answer.
    fn next_renewal(&self) -> Option<Duration> {
        let due = self.host.renew_at().filter(|_| self.entered)?;
        Some(due.max(self.last_asked + self.lease / RENEWAL_SHARE))
    }

    async fn renew(&mut self) -> bool {
        if self.asked.len() >= UNANSWERED {
            // Another connection may work while the lease is valid.
            return false;
        }
        self.last_asked = self.host.clock().now();
        self.asked.push_back(self.last_asked);
        self.send(Step::KeepLease(v1::KeepLease {})).await
    }

    /// Carries out a response. Returns true when the host has left.
    fn heard(
        &mut self,
        response: &v1::HostResponse,
        connected: &watch::Sender<bool>,
    ) -> Result<bool, String> {
        match &response.response {
            Some(Answer::Entered(entered)) => {
                self.lease = Duration::from_millis(entered.lease_ms.into());
                self.host.set_refused(&entered.refused);
                if let Some(asked) = self.asked.pop_front() {
                    self.host.entered(asked, self.lease);
                }
                self.entered = true;
                connected.send_replace(true);
            }
            Some(Answer::LeaseKept(_)) => {
                if let Some(asked) = self.asked.pop_front() {
                    self.host.lease_renewed(asked);
                }
            }
            Some(Answer::Left(_)) => return Ok(true),
            Some(Answer::Granted(_) | Answer::GiveBack(_)) | None => {
                let order = tollway_wire::order(response).map_err(|error| error.to_string())?;
                if let Some(order) = order {
                    self.host.obey(&order);
                }
            }
        }
        Ok(false)
    }

    async fn give_back(&mut self, back: &mut Vec<GivenBack>) -> bool {
        let mut by_type: BTreeMap<Arc<str>, Vec<GivenBack>> = BTreeMap::new();
        for given in back.drain(..) {
            by_type.entry(Arc::clone(&given.actor_type)).or_default().push(given);
        }
        for (actor_type, given) in by_type {
            let held = given.into_iter().map(|given| (given.shard, given.epoch)).collect();
            let step = v1::GivenBack {
                actor_type: actor_type.to_string(),
                grants: tollway_wire::grants(&held),
            };
            if !self.send(Step::GivenBack(step)).await {
                return false;
            }
        }
        self.leave_if_done().await
    }

    /// Leaves when the host retires and holds nothing.
    async fn leave_if_done(&mut self) -> bool {
        if !self.retiring || self.leaving || !self.host.holds_nothing() {
            return true;
        }
        self.leaving = true;
        self.send(Step::Leave(v1::Leave {})).await
    }
}

/// The message, with its code if it has one.
fn reason(status: &Status) -> String {
    let text = status.message();
    match tollway_wire::code_of(status) {
        Some(code) => format!("{text} ({})", code.word()),
        None => text.to_owned(),
    }
}

fn held_type((actor_type, held): (&String, &BTreeMap<Shard, Epoch>)) -> v1::HeldType {
    v1::HeldType { actor_type: actor_type.clone(), grants: tollway_wire::grants(held) }
}

#[cfg(test)]
mod tests;
