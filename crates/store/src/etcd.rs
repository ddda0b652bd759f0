//! Stores in etcd, for control planes that survive the loss of a process.
//!
//! Of several processes with the same prefix one is the *master*: it holds a key under a lease, and
//! each of its writes succeeds only while that key is its own. The others wait. Their stores are
//! the same logs as those in files, in parts ([`parts`]).

mod client;
mod master;
pub(crate) mod parts;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;

use client::{Client, ClientError, Compare, Refusal, RequestOp, TxnRequest};
use master::Master;

/// Longest time for one answer of etcd.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause before another attempt.
const PAUSE: Duration = Duration::from_millis(100);

/// Where etcd is, and what of it is ours.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// Members of the cluster, each as `host:port`.
    pub members: Vec<String>,
    /// What all keys begin with.
    pub prefix: String,
    /// The present master, for processes that wait.
    pub holder: String,
    /// Over TLS; plain where `None`. What is sent is used for connections from then on.
    pub tls: Option<watch::Receiver<EtcdTls>>,
    /// Whether an etcd that does not answer at the start is waited for. Otherwise it is an error.
    pub is_awaited: bool,
    /// Without a sign of life for so long another one becomes master.
    pub lease: Duration,
}

/// Certificates and a key, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdTls {
    /// The certificates that issue those of etcd's members.
    pub ca: Vec<u8>,
    /// Certificate and key that are shown to them.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// A key is no text for logs.
impl std::fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdTls").field("has_identity", &self.identity.is_some()).finish()
    }
}

/// Why etcd cannot be used.
#[derive(Debug, Error)]
pub enum EtcdError {
    #[error("cannot start the thread that speaks with etcd")]
    Thread(#[source] io::Error),
    #[error(
        "etcd at {members} cannot be used; check that it runs there, and --etcd-ca, --etcd-cert and --etcd-key where it wants TLS"
    )]
    Connect { members: String, source: Box<dyn std::error::Error + Send + Sync> },
}

/// A location in etcd of which this process is the master, until [`Etcd::lost`].
#[derive(Debug)]
pub struct Etcd {
    background: Background,
    client: Client,
    prefix: String,
    members: String,
    master: Arc<Master>,
}

/// Why a write was not made.
#[derive(Debug)]
pub(crate) enum WriteFault {
    /// etcd is full; nothing was changed.
    NoRoom(io::Error),
    /// It may have been made or not, and no other can follow.
    Broken(io::Error),
}

impl WriteFault {
    pub(crate) fn into_error(self) -> io::Error {
        match self {
            Self::NoRoom(error) | Self::Broken(error) => error,
        }
    }
}

impl Etcd {
    /// Connects, and waits until this process is the master. `other_master` gets the name of another
    /// one, as often as it changes.
    ///
    /// # Errors
    /// [`EtcdError`]: that etcd cannot be reached, or refuses. That another one is the master is
    /// waited out.
    pub async fn connect(
        options: EtcdOptions,
        other_master: watch::Sender<Option<String>>,
    ) -> Result<Arc<Self>, EtcdError> {
        let background = Background::start().map_err(EtcdError::Thread)?;
        let opening = {
            let options = options.clone();
            async move {
                let client = Client::new(&options)?;
                let master = Master::become_one(client.clone(), &options, &other_master).await?;
                Ok::<_, ClientError>((client, master))
            }
        };
        let (client, master) = match background.handle.spawn(opening).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => return Err(cannot_connect(&options, error)),
            Err(failed) => std::panic::resume_unwind(failed.into_panic()),
        };
        background.handle.spawn(Arc::clone(&master).stay(client.clone()));
        let members = options.members.join(",");
        Ok(Arc::new(Self { background, client, prefix: options.prefix, members, master }))
    }

    /// The present master of a location, as it names itself; `None` without one. Changes nothing.
    ///
    /// # Errors
    /// [`EtcdError::Connect`].
    pub async fn master_at(options: &EtcdOptions) -> Result<Option<String>, EtcdError> {
        let asked = async { master::holder(&Client::new(options)?, &options.prefix).await };
        asked.await.map_err(|error| cannot_connect(options, error))
    }

    /// Completes when this process is no longer the master: what it has read may be old from then
    /// on.
    pub async fn lost(&self) {
        let mut lost: watch::Receiver<bool> = self.master.lost();
        // The sender lives as long as `self`.
        let _ = lost.wait_for(|lost| *lost).await;
    }

    /// Gives up the mastership at once. No store of this prefix may be open.
    pub async fn release(&self) {
        let (client, lease) = (self.client.clone(), self.master.lease());
        self.master.give_up("it was released");
        // What is not revoked ends by itself.
        let _ = self.background.handle.spawn(async move { client.revoke(lease).await }).await;
    }

    /// How a store of this name is called in messages.
    pub(crate) fn url(&self, store: &str) -> String {
        format!("etcd://{}{}{store}", self.members, self.prefix)
    }

    pub(crate) fn key(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Blocks until `work` is done. Must not run on a thread of a runtime.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.background.handle.block_on(work)
    }

    /// Executes `ops` in one transaction, as the master. It retries until etcd answers or this
    /// process is no longer the master: the ops may be executed twice.
    pub(crate) async fn write(&self, ops: Vec<RequestOp>) -> Result<(), WriteFault> {
        let guard = Compare::made_at(self.key(master::KEY), self.master.revision());
        let txn = TxnRequest { compare: vec![guard], success: ops };
        loop {
            if let Some(why) = self.master.why_lost() {
                return Err(WriteFault::Broken(io::Error::other(why)));
            }
            match self.client.txn(txn.clone()).await {
                Ok(answer) if answer.succeeded => return Ok(()),
                Ok(_) => self.master.give_up("another process has become the master"),
                Err(error) => match error.refusal() {
                    Some(Refusal::NoRoom) => return Err(WriteFault::NoRoom(error.into())),
                    Some(Refusal::Lasting) => return Err(WriteFault::Broken(error.into())),
                    None => tokio::time::sleep(PAUSE).await,
                },
            }
        }
    }
}

fn cannot_connect(options: &EtcdOptions, error: ClientError) -> EtcdError {
    EtcdError::Connect { members: options.members.join(","), source: Box::new(error) }
}

/// A runtime for the etcd client alone, so that it never waits for a task that waits for it. It may
/// be dropped on a thread of another runtime, where no task may block on its end.
#[derive(Debug)]
struct Background {
    handle: Handle,
    /// Gone while dropping.
    runtime: Option<Runtime>,
}

impl Background {
    fn start() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("etcd")
            .enable_all()
            .build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
