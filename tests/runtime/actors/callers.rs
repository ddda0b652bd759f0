//! Callers that ask actors again and again, and what they waited for.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::invoke;
use tollway_tests::mesh::PATIENCE;

/// What a turn takes in the app.
const TURN: Duration = Duration::from_millis(20);

/// Callers of actors of one type, each of its own.
pub(crate) struct Callers {
    stop: watch::Sender<bool>,
    /// Calls that were answered, of all of them.
    answered: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<Waited>>,
}

/// How much longer than its turn the longest call took that had one, how long the longest of the
/// others; and what was answered: nothing where all was well.
#[derive(Default)]
pub(crate) struct Waited {
    pub(crate) longest: Duration,
    pub(crate) longest_failed: Duration,
    pub(crate) answers: BTreeMap<String, usize>,
}

impl Callers {
    pub(crate) fn start(listener: SocketAddr, of: &'static str, count: usize) -> Self {
        let (stop, stopped) = watch::channel(false);
        let answered = Arc::new(AtomicUsize::new(0));
        let tasks = (0..count).map(|nth| {
            let stopped = stopped.clone();
            let answered = Arc::clone(&answered);
            let turn_ms = TURN.as_millis().to_string();
            tokio::spawn(async move {
                let mut waited = Waited::default();
                while !*stopped.borrow() {
                    let began = Instant::now();
                    let actor = format!("{of}/{nth}");
                    let (status, text) = invoke(listener, &actor, "slow", &turn_ms).await;
                    let took = began.elapsed();
                    let reported = if status == 200 {
                        waited.longest = took.saturating_sub(TURN).max(waited.longest);
                        String::new()
                    } else {
                        waited.longest_failed = took.max(waited.longest_failed);
                        text
                    };
                    *waited.answers.entry(reported).or_insert(0) += 1;
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                waited
            })
        });
        let tasks = tasks.collect();
        Self { stop, answered, tasks }
    }

    /// Waits for so many further answers.
    pub(crate) async fn until_more_answered(&self, calls: usize) {
        let (began, before) = (Instant::now(), self.answered.load(Ordering::Relaxed));
        while self.answered.load(Ordering::Relaxed) < before + calls {
            assert!(began.elapsed() < PATIENCE, "fewer than {calls} calls are answered");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn end(self) -> Waited {
        self.stop.send_replace(true);
        let mut all = Waited::default();
        for task in self.tasks {
            let one = task.await.unwrap();
            all.longest = all.longest.max(one.longest);
            all.longest_failed = all.longest_failed.max(one.longest_failed);
            for (text, count) in one.answers {
                *all.answers.entry(text).or_insert(0) += count;
            }
        }
        all
    }
}
