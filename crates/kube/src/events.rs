//! Events of Kubernetes: what is odd about an object, for who looks at it.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use serde::Serialize;

/// Notes that wait to become events; further ones are left out.
const WAITING: usize = 64;
/// Notes that are remembered, so that the pods of one controller make one event.
const REMEMBERED: usize = 1024;
/// Events in a minute, of all pods: who reaches the port of the webhook can make notes, too.
const EVENTS_PER_MINUTE: u32 = 60;
/// Longest text of an event, in characters, by the API.
const TEXT_CHARACTERS: usize = 1000;

/// What is odd about an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Notes {
    pub(crate) about: About,
    pub(crate) texts: Vec<String>,
}

/// The object that an event is about; of a pod that something makes, that which makes it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct About {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// Who makes events, and which.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) component: &'static str,
    pub(crate) reason: &'static str,
}

/// Where notes are left to become events. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    waiting: mpsc::Sender<Notes>,
}

impl Events {
    /// And the task that writes them.
    pub(crate) fn new(client: Client, source: Source) -> (Self, impl Future<Output = ()>) {
        let (waiting, arriving) = mpsc::channel(WAITING);
        (Self { waiting }, write(client, source, arriving))
    }

    #[cfg(test)]
    pub(crate) fn into(waiting: mpsc::Sender<Notes>) -> Self {
        Self { waiting }
    }

    /// Never waits.
    pub(crate) fn add(&self, notes: Notes) {
        if let Err(error) = self.waiting.try_send(notes) {
            debug!(%error, "a note is left out");
        }
    }
}

async fn write(client: Client, source: Source, mut arriving: mpsc::Receiver<Notes>) {
    let mut known = Known::default();
    let mut pace = Pace::new(Instant::now());
    while let Some(Notes { about, texts }) = arriving.recv().await {
        let events: Api<Event> = Api::namespaced(client.clone(), &about.namespace);
        for text in texts {
            let text: String = text.chars().take(TEXT_CHARACTERS).collect();
            if !known.is_new(&about, &text) {
                continue;
            }
            if !pace.allows(Instant::now()) {
                debug!(namespace = %about.namespace, note = %text, "too many events: one is left out");
                continue;
            }
            let event = event(source, &about, &text);
            if let Err(error) = events.create(&PostParams::default(), &event).await {
                let hint = "the service account needs the right to create events";
                warn!(%error, hint, namespace = %about.namespace, note = %text, "no event is made");
            }
        }
    }
}

/// What has become an event lately.
#[derive(Default)]
struct Known {
    notes: HashSet<(About, String)>,
    oldest: VecDeque<(About, String)>,
}

impl Known {
    fn is_new(&mut self, about: &About, text: &str) -> bool {
        let note = (about.clone(), text.to_owned());
        if !self.notes.insert(note.clone()) {
            return false;
        }
        self.oldest.push_back(note);
        if self.oldest.len() > REMEMBERED
            && let Some(oldest) = self.oldest.pop_front()
        {
            self.notes.remove(&oldest);
        }
        true
    }
}

/// How many events may be made now.
struct Pace {
    minute: Instant,
    made: u32,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self { minute: now, made: 0 }
    }

    fn allows(&mut self, now: Instant) -> bool {
        if now.duration_since(self.minute) >= Duration::from_secs(60) {
            *self = Self::new(now);
        }
        self.made += 1;
        self.made <= EVENTS_PER_MINUTE
    }
}

fn event(source: Source, about: &About, text: &str) -> Event {
    let now = Some(Time(Timestamp::now()));
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Event {
        metadata: ObjectMeta {
            generate_name: Some("tollway-".to_owned()),
            namespace: some(&about.namespace),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: some(&about.api_version),
            kind: some(&about.kind),
            name: some(&about.name),
            namespace: some(&about.namespace),
            uid: some(&about.uid),
            ..ObjectReference::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some(source.reason.to_owned()),
        message: Some(text.to_owned()),
        source: Some(EventSource { component: Some(source.component.to_owned()), host: None }),
        first_timestamp: now.clone(),
        last_timestamp: now,
        count: Some(1),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_so_many_in_a_minute() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        let allowed = |pace: &mut Pace, at| (0..200).filter(|_| pace.allows(at)).count();
        assert_eq!(allowed(&mut pace, begin), 60);
        assert_eq!(allowed(&mut pace, begin + Duration::from_secs(59)), 0);
        assert_eq!(allowed(&mut pace, begin + Duration::from_secs(60)), 60);
    }

    #[test]
    fn a_note_is_an_event_once_and_again_when_it_is_forgotten() {
        let about = |name: &str| About { name: name.to_owned(), ..About::default() };
        let mut known = Known::default();
        assert!(known.is_new(&about("a"), "odd"));
        assert!(!known.is_new(&about("a"), "odd"));
        assert!(known.is_new(&about("a"), "other") && known.is_new(&about("b"), "odd"));
        for number in 0..REMEMBERED {
            assert!(known.is_new(&about("c"), &number.to_string()));
        }
        assert_eq!((known.notes.len(), known.oldest.len()), (REMEMBERED, REMEMBERED));
        assert!(known.is_new(&about("a"), "odd"));
    }
}
