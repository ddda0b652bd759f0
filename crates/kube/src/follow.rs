//! Follows one object of a cluster by a watch.

use std::fmt::Debug;
use std::pin::pin;

use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tracing::warn;

/// An object as it is now.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) enum Seen<K> {
    /// The API server has not answered yet.
    #[default]
    Unknown,
    Absent,
    There(K),
}

impl<K> Seen<K> {
    pub(crate) fn there(&self) -> Option<&K> {
        match self {
            Self::There(object) => Some(object),
            Self::Unknown | Self::Absent => None,
        }
    }
}

/// Keeps `seen` current until it is dropped. Watches that end begin again, after pauses that grow.
pub(crate) async fn follow<K>(api: Api<K>, name: &str, seen: &watch::Sender<Seen<K>>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let kind = K::kind(&());
    let only = Config::default().fields(&format!("metadata.name={name}"));
    let mut events = pin!(watcher(api, only).default_backoff());
    let mut listed = Seen::Absent;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = Seen::Absent,
            Ok(Event::InitApply(object)) => listed = Seen::There(object),
            Ok(Event::InitDone) => drop(seen.send_replace(std::mem::take(&mut listed))),
            Ok(Event::Apply(object)) => drop(seen.send_replace(Seen::There(object))),
            Ok(Event::Delete(_)) => drop(seen.send_replace(Seen::Absent)),
            Err(error) => {
                let error = tollway_model::chain(&error);
                let hint = format!("it needs the rights to list and watch this {kind}");
                warn!(%error, hint, name, "a {kind} cannot be followed; it tries again");
            }
        }
    }
}
