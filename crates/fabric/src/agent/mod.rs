//! The agent: it keeps the kernel's table equal to what the control plane lists, through losses of
//! connection.
//!
//! It watches its group from the revision that it has, hands changes to the programming thread, and
//! reports what is in the table. Connecting, with an identity of the mesh, is the caller's part.

mod facts;
mod known;
mod run;
mod session;

use std::io;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tollway_model::Group;
use tollway_net::Backoff;
use tonic::transport::Channel;

use crate::journal::{Journal, JournalError};
use crate::layout::Address;
use crate::marks::Marks;
use crate::programmer::Programmer;
use crate::table::Table;

pub use known::Known;
pub use run::{Joined, RunError, RunOptions, run_agent};
use session::SessionError;

/// Before connecting again.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(5) };
/// A session that lived for this long, or has brought anything whole, was no failed attempt.
const GOOD_SESSION: Duration = Duration::from_secs(5);

/// An agent's settings.
#[derive(Debug)]
pub struct AgentOptions {
    pub group: Group,
    /// Of this program, for the control plane's list of agents.
    pub version: String,
    /// How many neighbours the table holds.
    pub capacity: u64,
    /// How often table and control plane are compared; never when `None`.
    pub audit_every: Option<Duration>,
    /// Receives a mark for each revision, with its times.
    pub marks: Option<Marks>,
}

/// Why an agent does not start, or ends.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("cannot read the kernel's table of neighbours")]
    Survey { source: io::Error },
    #[error("cannot start the thread that writes the table of neighbours")]
    Thread { source: io::Error },
    #[error(transparent)]
    Ended(#[from] crate::programmer::Ended),
}

/// An agent before its first connection.
#[derive(Debug)]
pub struct Agent {
    options: AgentOptions,
    journal: Option<Journal>,
    programmer: Programmer,
    known: Known,
    /// When the last listing of the whole group ended, or the agent started with the journal's
    /// state.
    listed: Instant,
    /// The last attempt to write the journal failed, and that was reported.
    journal_failed: bool,
    /// When the last neighbours since a mark were sent and received.
    last_sent: Option<(u64, u64)>,
    is_connected: watch::Sender<bool>,
}

impl Agent {
    /// Looks through `table` and at the journal, and starts the thread that writes. Without a
    /// journal the whole group is taken at every start.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn new(
        options: AgentOptions,
        journal: Option<Journal>,
        table: impl Table + 'static,
    ) -> Result<Self, AgentError> {
        let entry = journal.as_ref().map(Journal::read).transpose()?.flatten();
        let (known, found) = Known::survey(&table, entry.as_ref())
            .map_err(|source| AgentError::Survey { source })?;
        let programmer =
            Programmer::start(table, found).map_err(|source| AgentError::Thread { source })?;
        Ok(Self {
            options,
            journal,
            programmer,
            known,
            listed: Instant::now(),
            journal_failed: false,
            last_sent: None,
            is_connected: watch::Sender::new(false),
        })
    }

    #[must_use]
    pub fn programmer(&self) -> &Programmer {
        &self.programmer
    }

    /// Whether there is a connection to the control plane.
    #[must_use]
    pub fn is_connected(&self) -> watch::Receiver<bool> {
        self.is_connected.subscribe()
    }

    /// Runs until the process ends. It calls `connect` whenever there is no connection; `misses`
    /// has addresses that the programs did not find.
    ///
    /// # Errors
    /// [`AgentError::Ended`]; everything else is waited out.
    pub async fn run<E: std::fmt::Display>(
        mut self,
        mut connect: impl AsyncFnMut() -> Result<Channel, E>,
        mut misses: mpsc::Receiver<Address>,
    ) -> Result<(), AgentError> {
        let mut attempt = 0u32;
        let mut reason_told = String::new();
        loop {
            let (began, from) = (Instant::now(), self.known.from());
            let error = match connect().await {
                Ok(channel) => {
                    self.is_connected.send_replace(true);
                    self.serve(channel, &mut misses).await
                }
                Err(error) => SessionError::Connect(error.to_string()),
            };
            self.is_connected.send_replace(false);
            if let SessionError::Ended(ended) = error {
                return Err(ended.into());
            }
            if matches!(error, SessionError::Again) {
                attempt = 0;
                continue;
            }
            let was_good = began.elapsed() >= GOOD_SESSION || self.known.from() > from;
            attempt = if was_good { 0 } else { attempt.saturating_add(1) };
            let reason = tollway_model::chain(&error);
            // Once for each reason, not for each attempt.
            if reason != reason_told || attempt == 0 {
                tracing::warn!(reason, "no control plane; forwarding on with what is known");
                reason_told = reason;
            }
            tokio::time::sleep(BACKOFF.pause(attempt)).await;
        }
    }
}
