//! A control plane's table in a test's memory, served over gRPC as in `neighbours.proto`: it stores
//! every change, and can shuffle, repeat, break off and forget.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tollway_model::neighbour::packed::pack;
use tollway_model::{HostLocation, Mac, NeighbourKey, NeighbourRecord, Vni};
use tollway_wire::v1::neighbours_server::{Neighbours, NeighboursServer};
use tollway_wire::v1::watch_neighbours_request::Request as Sent;
use tollway_wire::{neighbour_key, v1};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

#[derive(Default)]
struct State {
    table: u64,
    revision: u64,
    /// The newest word about each key, tombstones too.
    words: BTreeMap<NeighbourKey, NeighbourRecord>,
    /// Deletions up to here are no longer known.
    compacted: u64,
    /// Ends every watch that sees another number.
    breaks: u64,
    /// Where watches began, and the agents' last reports.
    starts: Vec<v1::WatchNeighboursStart>,
    report: v1::FabricAgentReport,
    questions: usize,
}

/// The store and its server.
#[derive(Clone)]
pub(crate) struct Store {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<()>,
    /// Sends each batch twice, and in no order.
    shuffles: bool,
}

impl Store {
    pub(crate) fn new(table: u64, shuffles: bool) -> Self {
        let state = State { table, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), changed: watch::Sender::new(()), shuffles }
    }

    /// Serves on a free port.
    pub(crate) async fn serve(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = NeighboursServer::new(self.clone());
        let incoming = TcpListenerStream::new(listener);
        tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
        address
    }

    /// One transaction: each number is put behind `host`, or deleted where that is `None`.
    pub(crate) fn change(&self, numbers: impl IntoIterator<Item = u32>, host: Option<u8>) {
        self.with(|state| {
            state.revision += 1;
            for number in numbers {
                let record = NeighbourRecord {
                    key: key(number),
                    revision: state.revision,
                    location: host.map(location),
                };
                state.words.insert(record.key, record);
            }
        });
        self.changed.send_replace(());
    }

    /// Ends every watch.
    pub(crate) fn break_off(&self) {
        self.with(|state| state.breaks += 1);
        self.changed.send_replace(());
    }

    /// Forgets what was deleted up to now.
    pub(crate) fn compact(&self) {
        self.with(|state| {
            state.compacted = state.revision;
            state.words.retain(|_, word| word.location.is_some());
        });
    }

    pub(crate) fn revision(&self) -> u64 {
        self.with(|state| state.revision)
    }

    /// Neighbours by number, with the last octet of their host.
    pub(crate) fn present(&self) -> BTreeMap<NeighbourKey, HostLocation> {
        self.with(|state| {
            state.words.iter().filter_map(|(key, word)| Some((*key, word.location?))).collect()
        })
    }

    pub(crate) fn starts(&self) -> Vec<(u64, u64)> {
        self.with(|state| {
            state.starts.iter().map(|start| (start.from_revision, start.table)).collect()
        })
    }

    pub(crate) fn report(&self) -> v1::FabricAgentReport {
        self.with(|state| state.report.clone())
    }

    pub(crate) fn questions(&self) -> usize {
        self.with(|state| state.questions)
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap())
    }

    /// Everything newer than `from`, in batches, with the mark at the end.
    fn messages_since(
        &self,
        from: u64,
        with_tombstones: bool,
    ) -> (Vec<v1::WatchNeighboursResponse>, u64) {
        let (mut words, revision) = self.with(|state| {
            let words: Vec<_> = state
                .words
                .values()
                .filter(|word| word.revision > from && (with_tombstones || word.location.is_some()))
                .copied()
                .collect();
            (words, state.revision)
        });
        if self.shuffles {
            words.extend(words.clone());
            words.sort_by_key(|word| u64::from(word.key.vni().number()) ^ hash(&word.key));
        }
        let mut reported: Vec<_> = words
            .chunks(1000)
            .map(|words| {
                let mut packed = Vec::new();
                words.iter().for_each(|word| pack(word, &mut packed));
                v1::WatchNeighboursResponse { packed: packed.into(), ..Default::default() }
            })
            .collect();
        reported.push(v1::WatchNeighboursResponse { revision, ..Default::default() });
        (reported, revision)
    }

    async fn send_watch(
        self,
        start: v1::WatchNeighboursStart,
        to: mpsc::Sender<Result<v1::WatchNeighboursResponse, Status>>,
    ) {
        let mut changed = self.changed.subscribe();
        let (table, compacted, revision, breaks) =
            self.with(|state| (state.table, state.compacted, state.revision, state.breaks));
        let is_unknown =
            start.from_revision > 0 && (start.table != table || start.from_revision > revision);
        let mut from = start.from_revision;
        let mut is_list = from == 0;
        let mut first = v1::WatchNeighboursResponse {
            table,
            base_revision: revision,
            ..v1::WatchNeighboursResponse::default()
        };
        if is_unknown || (from > 0 && from < compacted) {
            first.compacted = Some(v1::NeighboursCompacted {
                oldest_revision: compacted,
                unknown_revision: is_unknown,
            });
            (from, is_list) = (0, true);
        }
        if to.send(Ok(first)).await.is_err() {
            return;
        }
        loop {
            let (reported, reached) = self.messages_since(from, !is_list);
            if is_list || reached > from {
                for message in reported {
                    if self.with(|state| state.breaks) != breaks
                        || to.send(Ok(message)).await.is_err()
                    {
                        return;
                    }
                }
            }
            (from, is_list) = (reached, false);
            tokio::select! {
                _ = changed.changed() => {}
                () = to.closed() => return,
            }
            if self.with(|state| state.breaks) != breaks {
                return;
            }
        }
    }
}

#[tonic::async_trait]
impl Neighbours for Store {
    type WriteNeighboursInBulkStream =
        Pin<Box<dyn Stream<Item = Result<v1::WriteNeighboursResponse, Status>> + Send>>;
    type ListNeighboursStream =
        Pin<Box<dyn Stream<Item = Result<v1::ListNeighboursResponse, Status>> + Send>>;
    type WatchNeighboursStream = ReceiverStream<Result<v1::WatchNeighboursResponse, Status>>;

    async fn get_neighbours(
        &self,
        request: Request<v1::GetNeighboursRequest>,
    ) -> Result<Response<v1::GetNeighboursResponse>, Status> {
        let keys = request.into_inner().keys;
        self.with(|state| {
            state.questions += usize::from(!keys.is_empty());
            let mut packed = Vec::new();
            for asked in &keys {
                let key = neighbour_key(asked).unwrap();
                let word = state.words.get(&key).filter(|word| word.location.is_some());
                word.iter().for_each(|word| pack(word, &mut packed));
            }
            let (packed, revision) = (packed.into(), state.revision);
            let answer = v1::GetNeighboursResponse { packed, revision, table: state.table };
            Ok(Response::new(answer))
        })
    }

    async fn watch_neighbours(
        &self,
        request: Request<Streaming<v1::WatchNeighboursRequest>>,
    ) -> Result<Response<Self::WatchNeighboursStream>, Status> {
        let mut requests = request.into_inner();
        let Some(Sent::Start(start)) = requests.message().await?.and_then(|sent| sent.request)
        else {
            return Err(Status::invalid_argument("a watch begins with its start"));
        };
        self.with(|state| state.starts.push(start.clone()));
        let (to, responses) = mpsc::channel(4);
        tokio::spawn(self.clone().send_watch(start, to));
        let store = self.clone();
        tokio::spawn(async move {
            while let Ok(Some(sent)) = requests.message().await {
                if let Some(Sent::Report(report)) = sent.request {
                    store.with(|state| state.report = report);
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(responses)))
    }

    async fn write_neighbours(
        &self,
        _: Request<v1::WriteNeighboursRequest>,
    ) -> Result<Response<v1::WriteNeighboursResponse>, Status> {
        Err(Status::permission_denied("agents read"))
    }

    async fn write_neighbours_in_bulk(
        &self,
        _: Request<Streaming<v1::WriteNeighboursRequest>>,
    ) -> Result<Response<Self::WriteNeighboursInBulkStream>, Status> {
        Err(Status::permission_denied("agents read"))
    }

    async fn list_neighbours(
        &self,
        _: Request<v1::ListNeighboursRequest>,
    ) -> Result<Response<Self::ListNeighboursStream>, Status> {
        Err(Status::permission_denied("agents watch"))
    }

    async fn get_fabric_status(
        &self,
        _: Request<v1::GetFabricStatusRequest>,
    ) -> Result<Response<v1::GetFabricStatusResponse>, Status> {
        Err(Status::permission_denied("agents watch"))
    }
}

pub(crate) async fn channel_to(address: SocketAddr) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_shared(format!("http://{address}"))?.connect().await
}

/// One in three has an IPv6 address.
pub(crate) fn key(number: u32) -> NeighbourKey {
    let vni = Vni::new(1 + number % 7).unwrap();
    let ip = if number.is_multiple_of(3) {
        std::net::Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(number)).into()
    } else {
        std::net::Ipv4Addr::from(0x0a00_0000 + number).into()
    };
    NeighbourKey::new(vni, ip).unwrap()
}

fn location(host: u8) -> HostLocation {
    let mac = |octet| Mac::new([2, 0, 0, 0, octet, host]).unwrap();
    HostLocation::new(mac(1), std::net::Ipv4Addr::new(192, 0, 2, host).into(), mac(2)).unwrap()
}

/// Any spread will do.
fn hash(key: &NeighbourKey) -> u64 {
    let octets = match key.ip() {
        std::net::IpAddr::V4(ip) => u64::from(ip.to_bits()),
        std::net::IpAddr::V6(ip) => ip.to_bits() as u64,
    };
    octets.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(21)
}
