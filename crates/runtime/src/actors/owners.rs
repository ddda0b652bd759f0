//! The hosts of the actor types that are called from here, as the control plane names them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tollway_actors::placement::Owners;
use tollway_wire::v1::WatchOwnersRequest;
use tollway_wire::v1::placement_client::PlacementClient;
use tollway_wire::{ACTOR_TYPES_PER_STREAM_LIMIT, ActorHost};

use super::pause::Pause;
use crate::control_link::ControlLink;

/// Requests that wait for the connection.
const REQUESTS: usize = 4;
/// A control plane that has just started may not know every host yet. If it reports that no host
/// offers a type that was offered before, this takes effect after so long.
const DOUBT: Duration = Duration::from_secs(4);
/// A type that was not called for so long is no longer followed.
const UNUSED: Duration = Duration::from_secs(600);
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// What is known of the hosts of a type.
#[derive(Clone, Debug)]
pub(crate) enum KnownOwners {
    /// The control plane has not responded.
    Unknown,
    /// No host offers it.
    NotOffered,
    Owners(Arc<Owners<ActorHost>>),
}

/// The types that are followed, and what is known of their hosts.
pub(crate) struct Directory {
    types: Mutex<HashMap<Arc<str>, Followed>>,
    /// Notified when a type is to be looked up.
    wanted: Notify,
}

struct Followed {
    known: watch::Sender<KnownOwners>,
    used: Instant,
    /// Since when the control plane reports no host for a type that was offered before.
    doubted: Option<Instant>,
    is_asked: bool,
}

impl Directory {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { types: Mutex::default(), wanted: Notify::new() })
    }

    /// Follows a type. `None` if too many types are followed.
    pub(crate) fn follow(&self, actor_type: &Arc<str>) -> Option<watch::Receiver<KnownOwners>> {
        let mut types = self.types();
        if let Some(followed) = types.get_mut(actor_type) {
            followed.used = Instant::now();
            return Some(followed.known.subscribe());
        }
        if types.len() >= ACTOR_TYPES_PER_STREAM_LIMIT {
            return None;
        }
        let (known, changes) = watch::channel(KnownOwners::Unknown);
        let (used, doubted) = (Instant::now(), None);
        types.insert(Arc::clone(actor_type), Followed { known, used, doubted, is_asked: false });
        self.wanted.notify_one();
        Some(changes)
    }

    /// Sets the owners of a type, as if the control plane had sent them.
    #[cfg(test)]
    pub(super) fn set(&self, actor_type: &str, known: KnownOwners) {
        self.follow(&Arc::from(actor_type));
        self.types().get(actor_type).unwrap().known.send_replace(known);
    }

    /// How many types are followed.
    #[cfg(test)]
    pub(super) fn followed(&self) -> usize {
        self.types().len()
    }

    /// Follows the types until the future is dropped.
    pub(crate) async fn run(self: Arc<Self>, control: Arc<dyn ControlLink>) {
        let mut pause = Pause::default();
        loop {
            // No connection is opened before the first call of an actor.
            while self.types().is_empty() {
                self.wanted.notified().await;
            }
            let began = Instant::now();
            let why = self.connected(&*control).await;
            let wait = pause.next(began.elapsed());
            tracing::info!(reason = why, ?wait, "the watch of actor hosts is interrupted");
            tokio::time::sleep(wait).await;
        }
    }

    /// Runs one connection. Returns why it ended.
    async fn connected(&self, control: &dyn ControlLink) -> String {
        let (requests, outgoing) = mpsc::channel(REQUESTS);
        self.types().values_mut().for_each(|followed| followed.is_asked = false);
        let opening = async {
            // The stream opens with its first request.
            self.ask(&requests).await;
            let channel = control.connect().await?;
            let mut client = PlacementClient::new(channel);
            let opened = client.watch_owners(ReceiverStream::new(outgoing)).await;
            opened.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
        };
        let mut owners = match opening.await {
            Ok(owners) => owners,
            Err(why) => return why,
        };
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        let mut doubt = tokio::time::interval(DOUBT / 8);
        loop {
            tokio::select! {
                message = owners.message() => match message {
                    Ok(Some(message)) => {
                        if let Err(error) = self.receive(&message) {
                            return error.to_string();
                        }
                    }
                    Ok(None) => return "it ended the conversation".to_owned(),
                    Err(status) => return status.message().to_owned(),
                },
                () = self.wanted.notified() => self.ask(&requests).await,
                _ = sweep.tick() => self.sweep(&requests).await,
                _ = doubt.tick() => self.believe(),
            }
        }
    }

    /// Looks up the types that were not looked up yet.
    async fn ask(&self, requests: &mpsc::Sender<WatchOwnersRequest>) {
        let mut add = Vec::new();
        for (name, followed) in &mut *self.types() {
            if !std::mem::replace(&mut followed.is_asked, true) {
                add.push(name.to_string());
            }
        }
        if !add.is_empty() {
            // The reader notices when the connection has ended.
            let _ = requests.send(WatchOwnersRequest { add, remove: Vec::new() }).await;
        }
    }

    fn receive(
        &self,
        message: &tollway_wire::v1::Owners,
    ) -> Result<(), tollway_wire::ConvertError> {
        let owners = tollway_wire::read_owners(message)?;
        let mut types = self.types();
        let Some(followed) = types.get_mut(message.actor_type.as_str()) else { return Ok(()) };
        match owners {
            Some(owners) => {
                followed.doubted = None;
                followed.known.send_replace(KnownOwners::Owners(Arc::new(owners)));
            }
            None if matches!(*followed.known.borrow(), KnownOwners::Owners(_)) => {
                followed.doubted.get_or_insert_with(Instant::now);
            }
            None => drop(followed.known.send_replace(KnownOwners::NotOffered)),
        }
        Ok(())
    }

    /// Removes the hosts of types that no host has offered for long enough.
    fn believe(&self) {
        for followed in self.types().values_mut() {
            if followed.doubted.is_some_and(|since| since.elapsed() >= DOUBT) {
                followed.doubted = None;
                followed.known.send_replace(KnownOwners::NotOffered);
            }
        }
    }

    /// Stops following types that were not called for a long time.
    async fn sweep(&self, requests: &mpsc::Sender<WatchOwnersRequest>) {
        let mut remove = Vec::new();
        self.types().retain(|name, followed| {
            let is_used = followed.used.elapsed() < UNUSED || followed.known.receiver_count() > 0;
            if !is_used {
                remove.push(name.to_string());
            }
            is_used
        });
        if !remove.is_empty() {
            let _ = requests.send(WatchOwnersRequest { add: Vec::new(), remove }).await;
        }
    }

    fn types(&self) -> MutexGuard<'_, HashMap<Arc<str>, Followed>> {
        self.types.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
