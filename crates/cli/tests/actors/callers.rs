//! Callers that ask actors again and again, and what they waited for.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::invoke;

/// Callers of actors of one type, each of its own, whose turns take 20 ms.
pub(crate) struct Callers {
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<Waited>>,
}

/// How long the longest call took that had its turn, and of the others the longest; and what was
/// answered: nothing where all was well.
#[derive(Default)]
pub(crate) struct Waited {
    pub(crate) longest: Duration,
    pub(crate) longest_failed: Duration,
    pub(crate) answers: BTreeMap<String, usize>,
}

impl Callers {
    pub(crate) fn start(door: SocketAddr, of: &'static str, count: usize) -> Self {
        let (stop, stopped) = watch::channel(false);
        let tasks = (0..count).map(|nth| {
            let stopped = stopped.clone();
            tokio::spawn(async move {
                let mut waited = Waited::default();
                while !*stopped.borrow() {
                    let began = Instant::now();
                    let (status, text) = invoke(door, &format!("{of}/{nth}"), "slow", "20").await;
                    let is_good = status == 200;
                    let longest =
                        if is_good { &mut waited.longest } else { &mut waited.longest_failed };
                    *longest = began.elapsed().max(*longest);
                    let told = if is_good { String::new() } else { text };
                    *waited.answers.entry(told).or_insert(0) += 1;
                }
                waited
            })
        });
        Self { stop, tasks: tasks.collect() }
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
