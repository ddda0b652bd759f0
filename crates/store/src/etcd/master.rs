//! Election of the one process that may write: its key exists as long as its lease is renewed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::client::{Client, ClientError, Compare, RangeRequest, RequestOp, TxnRequest};
use super::{EtcdOptions, PAUSE};

/// The key, behind the prefix.
pub(super) const KEY: &str = "master";
/// Interval at which a waiting process checks whether the key is free.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Signs of life within the time of a lease.
const SIGNS: u32 = 5;

/// That this process is the master, and until when that is sure.
#[derive(Debug)]
pub(super) struct Master {
    lease: i64,
    /// At which etcd has made the key.
    revision: i64,
    /// How long the lease lives without a sign of life.
    ttl: Duration,
    state: Mutex<State>,
    lost: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    /// No other process can be the master before.
    until: Instant,
    why_lost: Option<String>,
}

impl Master {
    /// Waits until the key is free, and takes it. `other` gets the name of the process that has it.
    pub(super) async fn become_one(
        client: Client,
        options: &EtcdOptions,
        other: &watch::Sender<Option<String>>,
    ) -> Result<Arc<Self>, ClientError> {
        let mut is_missed = false;
        loop {
            match take(&client, options).await {
                Ok(Attempt::Master(master)) => return Ok(master),
                Ok(Attempt::StandBy(holder)) => {
                    let is_another = other.send_if_modified(|known| {
                        let is_another = known.as_ref() != Some(&holder);
                        *known = Some(holder.clone());
                        is_another
                    });
                    if is_another {
                        tracing::info!(
                            master = holder,
                            "another control plane serves; standing by"
                        );
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                // Once something was answered, etcd is there, and what fails then is waited out.
                Err(error) if error.refusal().is_none() && other.borrow().is_some() => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) if error.refusal().is_none() && options.is_awaited => {
                    if !std::mem::replace(&mut is_missed, true) {
                        let error = tollway_model::chain(&error);
                        tracing::info!(error, "etcd does not answer yet; it is waited for");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn lease(&self) -> i64 {
        self.lease
    }

    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    pub(super) fn lost(&self) -> watch::Receiver<bool> {
        self.lost.subscribe()
    }

    /// Why this process must not write any more; `None` while it may.
    pub(super) fn why_lost(&self) -> Option<String> {
        let mut state = self.state();
        if state.why_lost.is_none() && Instant::now() >= state.until {
            state.why_lost = Some(format!(
                "etcd gave no answer for {:?}, and another may be the master",
                self.ttl
            ));
            self.lost.send_replace(true);
        }
        state.why_lost.clone()
    }

    /// Ends the mastership, as far as this process knows.
    pub(super) fn give_up(&self, why: &str) {
        self.state().why_lost.get_or_insert_with(|| why.to_owned());
        self.lost.send_replace(true);
    }

    /// Keeps the lease alive until that fails for as long as it lives.
    pub(super) async fn stay(self: Arc<Self>, client: Client) {
        let every = self.ttl / SIGNS;
        while self.why_lost().is_none() {
            let began = Instant::now();
            match tokio::time::timeout(every, client.keep_alive(self.lease)).await {
                Ok(Ok(true)) => self.state().until = began + self.ttl,
                Ok(Ok(false)) => self.give_up("its lease in etcd has ended"),
                Ok(Err(error)) => tracing::debug!(%error, "a sign of life was not answered"),
                Err(_) => tracing::debug!("a sign of life was not answered in time"),
            }
            tokio::time::sleep_until(began + every).await;
        }
        let why = self.why_lost();
        tracing::debug!(why, "no master any more");
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Attempt {
    Master(Arc<Master>),
    /// Another process of this name is.
    StandBy(String),
}

/// The present master, as it names itself; `None` without one.
pub(super) async fn holder(client: &Client, prefix: &str) -> Result<Option<String>, ClientError> {
    let key = RangeRequest { key: format!("{prefix}{KEY}"), ..RangeRequest::default() };
    let found = client.range(key).await?;
    Ok(found.kvs.first().map(|holder| String::from_utf8_lossy(&holder.value).into_owned()))
}

async fn take(client: &Client, options: &EtcdOptions) -> Result<Attempt, ClientError> {
    if let Some(holder) = holder(client, &options.prefix).await? {
        return Ok(Attempt::StandBy(holder));
    }
    let key = format!("{}{KEY}", options.prefix);
    let began = Instant::now();
    let (lease, ttl) = client.grant(options.lease).await?;
    let txn = TxnRequest {
        compare: vec![Compare::made_at(key.clone(), 0)],
        success: vec![RequestOp::put_leased(key, options.holder.clone(), lease)],
    };
    let answer = client.txn(txn).await?;
    if !answer.succeeded {
        let _ = client.revoke(lease).await;
        return Ok(Attempt::StandBy("another one".to_owned()));
    }
    let revision = answer.header.map_or(0, |header| header.revision);
    Ok(Attempt::Master(Arc::new(Master {
        lease,
        revision,
        ttl,
        state: Mutex::new(State { until: began + ttl, why_lost: None }),
        lost: watch::channel(false).0,
    })))
}
