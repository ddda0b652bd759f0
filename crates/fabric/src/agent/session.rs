//! One connection's worth of an agent's work: watch, write, answer misses, report.

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;
use tollway_model::neighbour::packed::PackedError;
use tollway_net::monotonic_ns;
use tollway_wire::v1;
use tollway_wire::v1::neighbours_client::NeighboursClient;
use tollway_wire::v1::watch_neighbours_request::Request;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::{Agent, AgentOptions};
use crate::layout::Address;
use crate::marks::Mark;
use crate::programmer::{Ended, Order, Progress};

/// Reports that may be under way; a newer one replaces an older one.
const REPORTS: usize = 2;
/// How often the journal is written and a report sent, at least while there is news.
const TICK: Duration = Duration::from_secs(1);
/// Addresses in one question.
const ASKED_AT_ONCE: usize = 256;

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error("cannot connect to the control plane: {0}")]
    Connect(String),
    #[error("the control plane has ended the watch: {}", .0.message())]
    Watch(Status),
    #[error("the control plane does not serve neighbours to this agent: {}", .0.message())]
    Refused(Status),
    #[error("the control plane has sent what is no neighbour")]
    Packed(#[from] PackedError),
    #[error("more addresses changed at once than are remembered; the group is asked for again")]
    Ahead,
    /// The whole group is wanted again: at once, and not for want of a connection.
    #[error("the whole group is asked for again")]
    Again,
    #[error(transparent)]
    Ended(#[from] Ended),
}

impl Agent {
    /// Works on one connection until it breaks, or the whole group is wanted again.
    pub(super) async fn serve(
        &mut self,
        channel: Channel,
        misses: &mut mpsc::Receiver<Address>,
    ) -> SessionError {
        let mut client = NeighboursClient::new(channel);
        let watching = match self.begin(&mut client).await {
            Ok(watching) => watching,
            Err(error) => return error,
        };
        match self.work(client, watching, misses).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    /// Starts the watch and takes its first message, which has the store's revision.
    async fn begin(
        &mut self,
        client: &mut NeighboursClient<Channel>,
    ) -> Result<Watching, SessionError> {
        let asked_ns = monotonic_ns();
        let group = self.options.group.to_lower();
        let (reports, outgoing) = mpsc::channel(REPORTS);
        let start = v1::WatchNeighboursStart {
            group,
            from_revision: self.known.from(),
            version: self.options.version.clone(),
            table: self.known.table(),
        };
        let start = v1::WatchNeighboursRequest { request: Some(Request::Start(start)) };
        // The channel is new and has room.
        let _ = reports.try_send(start);
        let changes = client.watch_neighbours(ReceiverStream::new(outgoing)).await;
        let changes = changes.map_err(SessionError::Refused)?.into_inner();
        let mut watching = Watching { table: 0, asked_ns, changes, reports, begun: None };
        let first = watching.next().await?;
        watching.table = first.table;
        let from = self.known.from();
        tracing::info!(group = %self.options.group, from, "watching");
        if from == 0 {
            let is_audit = self.programmer.progress().borrow().listings > 0;
            self.begin_listing(&mut watching, first.base_revision, false, is_audit);
        } else {
            self.known.resume();
        }
        self.take(&mut watching, first).await?;
        Ok(watching)
    }

    async fn work(
        &mut self,
        client: NeighboursClient<Channel>,
        mut watching: Watching,
        misses: &mut mpsc::Receiver<Address>,
    ) -> Result<std::convert::Infallible, SessionError> {
        let mut progress = self.programmer.progress();
        // Connections may not last until a tick.
        self.keep_journal(&progress);
        self.audit(&progress)?;
        // The initial state is reported with the first mark.
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + TICK, TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut question = Question::default();
        let (mut asked, mut said) = (Vec::new(), None);
        loop {
            let may_ask = !question.is_open() && !misses.is_closed();
            tokio::select! {
                message = watching.next() => self.take(&mut watching, message?).await?,
                changed = progress.changed() => {
                    changed.map_err(|_| Ended)?;
                    // The number of entries is reported at ticks, not for each batch.
                    let news = Some(News::of(&progress.borrow_and_update()));
                    if news != said {
                        self.report(&watching.reports, &progress);
                        said = news;
                    }
                }
                _ = tick.tick() => {
                    self.report(&watching.reports, &progress);
                    self.keep_journal(&progress);
                    self.programmer.count();
                    self.audit(&progress)?;
                }
                found = misses.recv_many(&mut asked, ASKED_AT_ONCE), if may_ask => {
                    if found > 0 {
                        question.ask(client.clone(), &self.options, std::mem::take(&mut asked));
                    }
                }
                answer = question.answer() => self.take_answer(&mut watching, answer).await?,
            }
        }
    }

    /// Carries out a message of the watch.
    async fn take(
        &mut self,
        watching: &mut Watching,
        message: v1::WatchNeighboursResponse,
    ) -> Result<(), SessionError> {
        let received_ns = monotonic_ns();
        if let Some(compacted) = &message.compacted {
            tracing::info!(
                oldest = compacted.oldest_revision,
                "the control plane does not remember what was deleted; the whole group follows"
            );
            let (base, is_unknown) = (message.base_revision, compacted.unknown_revision);
            self.begin_listing(watching, base, is_unknown, false);
        }
        // A mark without neighbours of its own is of those that came before it.
        if !message.packed.is_empty() {
            self.last_sent = Some((message.sent_ns, received_ns));
        }
        let changes = self.known.take(&message.packed, message.revision)?;
        if !changes.is_empty() {
            self.order(watching, Order::Write(changes)).await?;
        }
        if message.revision != 0 {
            let is_listing = self.known.advance(message.revision);
            let last_sent = self.last_sent.take();
            let (sent_ns, received_ns) = last_sent.unwrap_or((message.sent_ns, received_ns));
            if let Some(marks) = &self.options.marks {
                let mark = Mark {
                    revision: message.revision,
                    is_listing,
                    asked_ns: watching.asked_ns,
                    sent_ns,
                    received_ns,
                    ..Mark::default()
                };
                self.order(watching, Order::Mark(mark, marks.clone())).await?;
            }
            let order = if is_listing {
                self.listed = Instant::now();
                Order::EndListing(message.revision)
            } else {
                Order::Through(message.revision)
            };
            self.order(watching, order).await?;
        }
        if self.known.is_full() { Err(SessionError::Ahead) } else { Ok(()) }
    }

    async fn take_answer(
        &mut self,
        watching: &mut Watching,
        answer: Result<v1::GetNeighboursResponse, Status>,
    ) -> Result<(), SessionError> {
        match answer {
            Ok(answer) => {
                let changes = self.known.take_answer(&answer.packed, answer.revision)?;
                if !changes.is_empty() {
                    self.order(watching, Order::Write(changes)).await?;
                }
                Ok(())
            }
            Err(status) => {
                // An address that is still needed is reported as missed again.
                tracing::debug!(reason = status.message(), "misses were not looked up");
                Ok(())
            }
        }
    }

    /// The programming thread gets this with its first write, so that it is woken once.
    fn begin_listing(
        &mut self,
        watching: &mut Watching,
        base: u64,
        is_unknown: bool,
        compare: bool,
    ) {
        self.known.begin_listing(base, watching.table, is_unknown);
        watching.begun = Some(Order::BeginListing { compare, epoch: self.known.epoch() });
    }

    async fn order(&self, watching: &mut Watching, order: Order) -> Result<(), Ended> {
        if let Some(begun) = watching.begun.take() {
            self.programmer.order(begun).await?;
        }
        self.programmer.order(order).await
    }

    /// Reports the table's state. If the last report is still under way, the next tick does.
    fn report(
        &self,
        reports: &mpsc::Sender<v1::WatchNeighboursRequest>,
        progress: &watch::Receiver<Progress>,
    ) {
        let report = report_of(&progress.borrow(), &self.options);
        let _ =
            reports.try_send(v1::WatchNeighboursRequest { request: Some(Request::Report(report)) });
    }

    /// Ends the session when a comparison is due, or when there is room for neighbours that were
    /// left out.
    fn audit(&mut self, progress: &watch::Receiver<Progress>) -> Result<(), SessionError> {
        let is_due = self.options.audit_every.is_some_and(|every| self.listed.elapsed() >= every);
        let has_room = {
            let progress = progress.borrow();
            progress.has_left_out && progress.waiting == 0
        };
        if (is_due || has_room) && self.known.from() != 0 {
            self.known.doubt();
            return Err(SessionError::Again);
        }
        Ok(())
    }

    /// A journal that cannot be written costs time after a restart and nothing else.
    fn keep_journal(&mut self, progress: &watch::Receiver<Progress>) {
        let Some(journal) = &self.journal else { return };
        let progress = progress.borrow().clone();
        let failed = self.known.keep(journal, &progress).err();
        if let Some(error) = &failed
            && !self.journal_failed
        {
            tracing::warn!(reason = tollway_model::chain(error), "the journal is not kept");
        }
        self.journal_failed = failed.is_some();
    }
}

/// An open watch.
struct Watching {
    /// The control plane's table, of which revisions are.
    table: u64,
    /// When it was requested, on the machine's clock.
    asked_ns: u64,
    changes: tonic::Streaming<v1::WatchNeighboursResponse>,
    reports: mpsc::Sender<v1::WatchNeighboursRequest>,
    /// The beginning of a listing of which nothing was ordered yet.
    begun: Option<Order>,
}

impl Watching {
    async fn next(&mut self) -> Result<v1::WatchNeighboursResponse, SessionError> {
        let message = self.changes.message().await.map_err(SessionError::Watch)?;
        message.ok_or_else(|| SessionError::Watch(Status::unavailable("it is going away")))
    }
}

/// The part of an agent's progress that is reported at once.
#[derive(Clone, Copy, PartialEq, Eq)]
struct News {
    through: u64,
    waiting: u64,
    has_left_out: bool,
    is_in_trouble: bool,
}

impl News {
    fn of(progress: &Progress) -> Self {
        let Progress { through, waiting, has_left_out, .. } = *progress;
        Self { through, waiting, has_left_out, is_in_trouble: progress.trouble.is_some() }
    }
}

/// Asks for addresses that were missed, once at a time.
#[derive(Default)]
struct Question(Option<tokio::task::JoinHandle<Result<v1::GetNeighboursResponse, Status>>>);

impl Question {
    fn is_open(&self) -> bool {
        self.0.is_some()
    }

    fn ask(
        &mut self,
        mut client: NeighboursClient<Channel>,
        options: &AgentOptions,
        asked: Vec<Address>,
    ) {
        let keys = asked.iter().map(key_of).collect();
        let request = v1::GetNeighboursRequest { group: options.group.to_lower(), keys };
        self.0 = Some(tokio::spawn(async move {
            client.get_neighbours(request).await.map(Response::into_inner)
        }));
    }

    /// Never, while there is no question.
    async fn answer(&mut self) -> Result<v1::GetNeighboursResponse, Status> {
        let Some(task) = &mut self.0 else { return std::future::pending().await };
        let answer = task.await;
        self.0 = None;
        answer.unwrap_or_else(|_| Err(Status::internal("the question was given up")))
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

fn key_of(address: &Address) -> v1::NeighbourKey {
    let ip = match address.ip() {
        std::net::IpAddr::V4(ip) => ip.octets().to_vec(),
        std::net::IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    v1::NeighbourKey { vni: address.vni(), ip }
}

fn report_of(progress: &Progress, options: &AgentOptions) -> v1::FabricAgentReport {
    let mut troubles = Vec::new();
    if let Some(lasting) = &progress.trouble {
        troubles.push(v1::FabricAgentTrouble {
            code: String::new(),
            text: lasting.trouble.text(),
            count: lasting.attempts.into(),
            since_unix_ms: unix_ms_of(lasting.since),
        });
    }
    if progress.waiting > 0 || progress.has_left_out {
        troubles.push(v1::FabricAgentTrouble {
            code: String::new(),
            text: format!(
                "the table of {} neighbours is full, and at least {} found no room; detach the \
                 forwarder and start its agent with a greater --capacity",
                options.capacity, progress.waiting
            ),
            count: progress.waiting,
            since_unix_ms: 0,
        });
    }
    v1::FabricAgentReport {
        revision: progress.through,
        entries: progress.entries,
        capacity: options.capacity,
        pending: progress.waiting,
        troubles,
    }
}

fn unix_ms_of(since: Instant) -> u64 {
    let now = std::time::SystemTime::now();
    let then = now.checked_sub(since.elapsed()).unwrap_or(now);
    let since = then.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
