//! Follows objects of a cluster by watches.

use std::fmt::Debug;
use std::pin::Pin;

use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt as _};
use tracing::{debug, info, warn};

/// What is followed, for the log, and what it means that it cannot be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Followed<'a> {
    pub(crate) what: &'a str,
    pub(crate) meanwhile: &'a str,
    pub(crate) hint: &'a str,
}

/// A watch. One that ends begins again, after pauses that grow; the log has one line when it cannot be had, and
/// one when it is back.
pub(crate) struct Watch<'a, K> {
    events: Pin<Box<dyn Stream<Item = Result<Event<K>, watcher::Error>> + Send>>,
    followed: Followed<'a>,
    is_away: bool,
}

impl<'a, K> Watch<'a, K>
where
    K: Resource<DynamicType: Clone> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    pub(crate) fn new(api: Api<K>, config: Config, followed: Followed<'a>) -> Self {
        let events = Box::pin(watcher(api, config).default_backoff());
        Self { events, followed, is_away: false }
    }

    /// The next event; it is there as soon as the API server answers.
    pub(crate) async fn next(&mut self) -> Option<Event<K>> {
        let Followed { what, meanwhile, hint } = self.followed;
        loop {
            match self.events.next().await? {
                Ok(event) => {
                    if self.is_away && !matches!(event, Event::Init) {
                        self.is_away = false;
                        info!(what, "it is followed again");
                    }
                    return Some(event);
                }
                Err(error) if self.is_away => {
                    debug!(what, error = tollway_model::chain(&error), "it cannot be followed yet");
                }
                Err(error) => {
                    self.is_away = true;
                    let error = tollway_model::chain(&error);
                    warn!(
                        what,
                        error, meanwhile, hint, "it cannot be followed now; it is tried again"
                    );
                }
            }
        }
    }
}

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
    /// Whether the API server has answered.
    pub(crate) fn is_known(&self) -> bool {
        !matches!(self, Self::Unknown)
    }

    pub(crate) fn there(&self) -> Option<&K> {
        match self {
            Self::There(object) => Some(object),
            Self::Unknown | Self::Absent => None,
        }
    }
}

/// Keeps `seen` current until it is dropped.
pub(crate) async fn follow<K>(api: Api<K>, name: &str, seen: &watch::Sender<Seen<K>>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let what = format!("{} {name}", K::kind(&()));
    let followed = Followed {
        what: &what,
        meanwhile: "its changes have no effect",
        hint: "it needs the rights to list and watch it",
    };
    let only = Config::default().fields(&format!("metadata.name={name}"));
    let (mut events, mut listed) = (Watch::new(api, only, followed), Seen::Absent);
    while let Some(event) = events.next().await {
        match event {
            Event::Init => listed = Seen::Absent,
            Event::InitApply(object) => listed = Seen::There(object),
            Event::InitDone => drop(seen.send_replace(std::mem::take(&mut listed))),
            Event::Apply(object) => drop(seen.send_replace(Seen::There(object))),
            Event::Delete(_) => drop(seen.send_replace(Seen::Absent)),
        }
    }
}
