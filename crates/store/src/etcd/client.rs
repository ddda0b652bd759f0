//! The calls of etcd's gRPC API, version 3, that are needed here, by its names and numbers.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message;
use thiserror::Error;
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tonic::client::Grpc;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tracing::warn;

use super::master::KEY as MASTER;
use super::{ANSWER_TIMEOUT, EtcdOptions, EtcdTls};

/// Longest answer that is taken.
const ANSWER_BYTES: usize = 64 << 20;
/// Pause between two attempts with other certificates.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(1);
const RANGE: &str = "/etcdserverpb.KV/Range";
/// Codes that a second attempt is answered with as well.
const LASTING: [Code; 4] =
    [Code::InvalidArgument, Code::PermissionDenied, Code::Unauthenticated, Code::Unimplemented];

/// Why there is no answer, or not the one that was hoped for.
#[derive(Debug, Error)]
pub(crate) enum ClientError {
    #[error("it did not answer within {ANSWER_TIMEOUT:?}")]
    Silent,
    #[error("it answered with {:?}: {}", .0.code(), .0.message())]
    Status(#[from] Status),
    #[error("the options of TLS cannot be used")]
    Tls(#[source] tonic::transport::Error),
    #[error("`{0}` is no address")]
    Address(String),
}

/// Errors that a retry does not mend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    NoRoom,
    Lasting,
}

impl ClientError {
    /// `None` for what may pass: no answer, no leader.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Silent => None,
            Self::Tls(_) | Self::Address(_) => Some(Refusal::Lasting),
            Self::Status(status) if LASTING.contains(&status.code()) => Some(Refusal::Lasting),
            Self::Status(status) => {
                let is_full =
                    status.code() == Code::ResourceExhausted && status.message().contains("space");
                is_full.then_some(Refusal::NoRoom)
            }
        }
    }
}

impl From<ClientError> for io::Error {
    fn from(error: ClientError) -> Self {
        Self::other(error)
    }
}

/// A connection to any member of etcd. It reconnects when it breaks.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    members: Arc<[String]>,
    /// What all keys begin with.
    prefix: Arc<str>,
    connected: Arc<Mutex<Connected>>,
}

#[derive(Debug)]
struct Connected {
    channel: Channel,
    tls: Option<watch::Receiver<EtcdTls>>,
    /// How often there were other certificates.
    changes: u64,
}

impl Client {
    pub(crate) fn new(options: &EtcdOptions) -> Result<Self, ClientError> {
        let mut tls = options.tls.clone();
        let first = tls.as_mut().map(|tls| tls.borrow_and_update().clone());
        let channel = channel(&options.members, first.as_ref())?;
        let connected = Connected { channel, tls, changes: 0 };
        Ok(Self {
            members: options.members.clone().into(),
            prefix: options.prefix.as_str().into(),
            connected: Arc::new(Mutex::new(connected)),
        })
    }

    /// The channel that is in use. Other certificates are tried out beside it.
    fn channel(&self) -> Channel {
        let mut connected = self.connected();
        let renewed = connected.tls.as_mut().and_then(|tls| {
            tls.has_changed().unwrap_or(false).then(|| tls.borrow_and_update().clone())
        });
        if let Some(tls) = renewed {
            connected.changes += 1;
            tokio::spawn(self.clone().try_out(tls, connected.changes));
        }
        connected.channel.clone()
    }

    /// Uses other certificates as soon as etcd answers with them, unless there are others again. What is under
    /// way goes on over the former channel.
    async fn try_out(self, tls: EtcdTls, change: u64) {
        let candidate = match channel(&self.members, Some(&tls)) {
            Ok(candidate) => candidate,
            Err(error) => {
                let error = tollway_model::chain(&error);
                return warn!(error, "other certificates for etcd cannot be used");
            }
        };
        let key =
            RangeRequest { key: format!("{}{MASTER}", self.prefix), ..RangeRequest::default() };
        let mut is_reported = false;
        while self.connected().changes == change {
            let asked = call::<_, RangeResponse>(candidate.clone(), RANGE, key.clone()).await;
            // A refusal is an answer.
            if asked.as_ref().err().is_none_or(|error| error.refusal().is_some()) {
                let mut connected = self.connected();
                if connected.changes == change {
                    connected.channel = candidate;
                }
                return;
            }
            if let Some(error) = asked.err().filter(|_| !is_reported) {
                is_reported = true;
                let error = tollway_model::chain(&error);
                warn!(
                    error,
                    "etcd does not answer with other certificates yet; the former ones are used"
                );
            }
            tokio::time::sleep(TRIED_AGAIN_AFTER).await;
        }
    }

    fn connected(&self) -> MutexGuard<'_, Connected> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, ClientError> {
        self.call(RANGE, request).await
    }

    pub(crate) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, ClientError> {
        self.call("/etcdserverpb.KV/Txn", request).await
    }

    /// A lease, and how long it lives without a sign of life.
    pub(crate) async fn grant(&self, ttl: Duration) -> Result<(i64, Duration), ClientError> {
        let ttl = i64::try_from(ttl.as_secs().max(1)).unwrap_or(i64::MAX);
        let request = LeaseGrantRequest { ttl, id: 0 };
        let granted: LeaseGrantResponse =
            self.call("/etcdserverpb.Lease/LeaseGrant", request).await?;
        Ok((granted.id, Duration::from_secs(granted.ttl.unsigned_abs())))
    }

    pub(crate) async fn revoke(&self, id: i64) -> Result<(), ClientError> {
        let request = LeaseRequest { id };
        self.call::<_, Empty>("/etcdserverpb.Lease/LeaseRevoke", request).await.map(drop)
    }

    /// Gives a sign of life; whether the lease lives.
    pub(crate) async fn keep_alive(&self, id: i64) -> Result<bool, ClientError> {
        let once = tokio_stream::once(LeaseRequest { id });
        let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
        let answer = async {
            let mut grpc = ready(self.channel()).await?;
            let codec = ProstCodec::<LeaseRequest, LeaseKeepAliveResponse>::default();
            let answers = grpc.streaming(Request::new(once), path, codec).await?;
            let answer = answers.into_inner().next().await;
            answer.unwrap_or_else(|| Err(Status::unavailable("it ended the stream")))
        };
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, answer).await;
        Ok(answer.map_err(|_| ClientError::Silent)??.ttl > 0)
    }

    async fn call<M, R>(&self, path: &'static str, message: M) -> Result<R, ClientError>
    where
        M: Message + 'static,
        R: Message + Default + 'static,
    {
        call(self.channel(), path, message).await
    }
}

async fn call<M, R>(channel: Channel, path: &'static str, message: M) -> Result<R, ClientError>
where
    M: Message + 'static,
    R: Message + Default + 'static,
{
    let answer = async {
        let mut grpc = ready(channel).await?;
        let path = PathAndQuery::from_static(path);
        grpc.unary(Request::new(message), path, ProstCodec::<M, R>::default()).await
    };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, answer).await;
    Ok(answer.map_err(|_| ClientError::Silent)??.into_inner())
}

async fn ready(channel: Channel) -> Result<Grpc<Channel>, Status> {
    let mut grpc = Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES);
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    Ok(grpc)
}

fn channel(members: &[String], tls: Option<&EtcdTls>) -> Result<Channel, ClientError> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut endpoints = Vec::new();
    for member in members {
        let endpoint = Endpoint::from_shared(format!("{scheme}://{member}"))
            .map_err(|_| ClientError::Address(member.clone()))?
            .connect_timeout(ANSWER_TIMEOUT)
            .http2_keep_alive_interval(ANSWER_TIMEOUT)
            .keep_alive_timeout(ANSWER_TIMEOUT)
            .keep_alive_while_idle(true);
        endpoints.push(match tls {
            None => endpoint,
            Some(tls) => {
                let mut wanted =
                    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
                if let Some((certificate, key)) = &tls.identity {
                    wanted = wanted.identity(Identity::from_pem(certificate, key));
                }
                endpoint.tls_config(wanted).map_err(ClientError::Tls)?
            }
        });
    }
    // Of one member the error is returned.
    Ok(match &endpoints[..] {
        [one] => one.connect_lazy(),
        _ => Channel::balance_list(endpoints.into_iter()),
    })
}

/// Everything that begins with `prefix`.
pub(crate) fn prefixed(prefix: String) -> (String, String) {
    // Prefixes here end in `/`, behind which `0` follows.
    let end = format!("{}0", prefix.trim_end_matches('/'));
    (prefix, end)
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseHeader {
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeRequest {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    /// Behind the last key; empty for one key.
    #[prost(string, tag = "2")]
    pub(crate) range_end: String,
    /// 0 for none.
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutRequest {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
    /// 0 for none.
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRangeRequest {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    /// Behind the last key; empty for one key.
    #[prost(string, tag = "2")]
    pub(crate) range_end: String,
}

/// A step of a transaction.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestOp {
    #[prost(oneof = "Step", tags = "2, 3")]
    step: Option<Step>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Step {
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
}

impl RequestOp {
    pub(crate) fn put(key: String, value: impl Into<Bytes>) -> Self {
        Self::put_leased(key, value, 0)
    }

    pub(crate) fn put_leased(key: String, value: impl Into<Bytes>, lease: i64) -> Self {
        let put = PutRequest { key, value: value.into(), lease };
        Self { step: Some(Step::Put(put)) }
    }

    pub(crate) fn delete((key, range_end): (String, String)) -> Self {
        Self { step: Some(Step::DeleteRange(DeleteRangeRequest { key, range_end })) }
    }
}

/// That a key was made at a revision; 0: that it is not there.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    /// 0: equal.
    #[prost(int32, tag = "1")]
    result: i32,
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(string, tag = "3")]
    key: String,
    #[prost(oneof = "Compared", tags = "5")]
    compared: Option<Compared>,
}

#[derive(Clone, Copy, PartialEq, prost::Oneof)]
enum Compared {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
}

impl Compare {
    pub(crate) fn made_at(key: String, revision: i64) -> Self {
        /// The revision of the key's creation.
        const CREATE: i32 = 1;
        let compared = Some(Compared::CreateRevision(revision));
        Self { result: 0, target: CREATE, key, compared }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGrantRequest {
    /// In seconds.
    #[prost(int64, tag = "1")]
    ttl: i64,
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    id: i64,
    #[prost(int64, tag = "3")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseRequest {
    #[prost(int64, tag = "1")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseKeepAliveResponse {
    #[prost(int64, tag = "3")]
    ttl: i64,
}

/// An answer of which nothing is read.
#[derive(Clone, PartialEq, Message)]
struct Empty {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_its_successor() {
        let (start, end) = prefixed("/a/log/".to_owned());
        assert!(start.as_str() <= "/a/log/" && "/a/log/ffff" < end.as_str());
        assert!("/a/log0" >= end.as_str() && "/a/logs" > end.as_str());
    }

    #[test]
    fn lasting_refusals_are_distinguished_from_passing_ones() {
        let of = |code, text: &str| ClientError::from(Status::new(code, text)).refusal();
        let full = "etcdserver: mvcc: database space exceeded";
        assert_eq!(of(Code::ResourceExhausted, full), Some(Refusal::NoRoom));
        assert_eq!(of(Code::ResourceExhausted, "etcdserver: too many requests"), None);
        assert_eq!(of(Code::Unavailable, "etcdserver: leader changed"), None);
        assert_eq!(of(Code::PermissionDenied, ""), Some(Refusal::Lasting));
        assert_eq!(ClientError::Silent.refusal(), None);
    }
}
