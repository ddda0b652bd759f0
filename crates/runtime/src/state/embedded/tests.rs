//! The network's store against a control plane that runs in the test.

use std::collections::VecDeque;
use std::sync::Mutex as StdMutex;

use tollway_state::{Delete, Fence, Op, Set, Value};
use tollway_wire::v1::state_server::{State, StateServer};
use tollway_wire::v1::{ReadStateResponse, StateExcess, StateMismatch, WriteStateResponse};
use tonic::Request;
use tonic::service::Routes;

use super::*;
use crate::testing::channel_to;

type Read = Result<ReadStateResponse, Status>;
type Write = Result<WriteStateResponse, Status>;

/// Responses in their order, and the requests that came.
#[derive(Default)]
struct Script {
    reads: StdMutex<VecDeque<Read>>,
    writes: StdMutex<VecDeque<Write>>,
    read: StdMutex<Vec<ReadStateRequest>>,
    written: StdMutex<Vec<WriteStateRequest>>,
    connections: StdMutex<u32>,
}

struct Service(Arc<Script>);

#[tonic::async_trait]
impl State for Service {
    async fn read_state(
        &self,
        request: Request<ReadStateRequest>,
    ) -> Result<Response<ReadStateResponse>, Status> {
        self.0.read.lock().unwrap().push(request.into_inner());
        let next = self.0.reads.lock().unwrap().pop_front();
        match next {
            Some(response) => response.map(Response::new),
            None => std::future::pending().await,
        }
    }

    async fn write_state(
        &self,
        request: Request<WriteStateRequest>,
    ) -> Result<Response<WriteStateResponse>, Status> {
        self.0.written.lock().unwrap().push(request.into_inner());
        let next = self.0.writes.lock().unwrap().pop_front();
        match next {
            Some(response) => response.map(Response::new),
            None => std::future::pending().await,
        }
    }
}

struct Control(Arc<Script>);

#[tonic::async_trait]
impl ControlLink for Control {
    async fn connect(&self) -> Result<Channel, String> {
        *self.0.connections.lock().unwrap() += 1;
        let service = StateServer::new(Service(Arc::clone(&self.0)));
        channel_to(Routes::new(service)).await
    }

    async fn registered(&self) {}
}

fn store(reads: Vec<Read>, writes: Vec<Write>) -> (EmbeddedStore, Arc<Script>) {
    let script = Arc::new(Script {
        reads: StdMutex::new(reads.into()),
        writes: StdMutex::new(writes.into()),
        ..Script::default()
    });
    (EmbeddedStore::new(Arc::new(Control(Arc::clone(&script)))), script)
}

fn found(values: &[(&str, u64)]) -> Read {
    let entry = |(value, revision): &(&str, u64)| StateEntry {
        value: value.as_bytes().to_vec(),
        revision: *revision,
        expires_unix_ms: 0,
    };
    Ok(ReadStateResponse { entries: values.iter().map(entry).collect() })
}

fn done() -> Write {
    Ok(WriteStateResponse { refusal: None })
}

fn refused_by(refusal: Refusal) -> Write {
    Ok(WriteStateResponse { refusal: Some(refusal) })
}

fn set(key: &str, etag: Option<&str>) -> Op {
    let value = Value::Json("1".into());
    Op::Set(Set { etag: etag.map(str::to_owned), ..Set::new(key, value) })
}

fn one(op: Op) -> Transaction {
    Transaction { ops: vec![op], fence: None }
}

fn keys(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn entries_have_their_revision_as_etag_and_none_without_one() {
    let (store, _) = store(vec![found(&[("1", 7), ("", 0)])], vec![]);
    let entries = store.bulk_get(&keys(&["a", "b"])).await.unwrap();
    let first = entries[0].as_ref().unwrap();
    assert_eq!((&first.value[..], first.etag.as_deref()), (&b"1"[..], Some("7")));
    assert_eq!((first.expires, entries[1].is_none()), (None, true));
}

#[tokio::test(start_paused = true)]
async fn keys_that_one_answer_does_not_have_are_asked_for_again() {
    let reads = vec![found(&[("1", 1)]), found(&[("2", 2), ("3", 3)])];
    let (store, script) = store(reads, vec![]);
    let entries = store.bulk_get(&keys(&["a", "b", "c"])).await.unwrap();
    let values: Vec<_> = entries.iter().map(|entry| entry.as_ref().unwrap().value[0]).collect();
    assert_eq!(values, b"123");
    assert_eq!(script.read.lock().unwrap()[1].keys, ["b", "c"]);
    let (empty, _) = self::store(vec![found(&[])], vec![]);
    let error = empty.get("a", Consistency::Strong).await.unwrap_err();
    assert!(matches!(error, StateError::Refused { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_read_is_asked_once_more_over_another_connection() {
    let away = || Err(Status::unavailable("away"));
    let (store, script) = store(vec![away(), found(&[("1", 1)])], vec![]);
    assert!(store.get("a", Consistency::Strong).await.unwrap().is_some());
    assert_eq!(*script.connections.lock().unwrap(), 2);
    let (twice, script) = self::store(vec![away(), away(), found(&[("1", 1)])], vec![]);
    let error = twice.get("a", Consistency::Strong).await.unwrap_err();
    assert!(matches!(error, StateError::Unreachable { .. }), "{error}");
    assert_eq!(script.read.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_write_is_repeated_only_where_that_changes_nothing() {
    let away = || Err(Status::unavailable("away"));
    let (store, script) = store(vec![], vec![away(), done()]);
    store.transact(one(set("a", None))).await.unwrap();
    assert_eq!(script.written.lock().unwrap().len(), 2);
    let (conditional, script) = self::store(vec![], vec![away(), done()]);
    let error = conditional.transact(one(set("a", Some("7")))).await.unwrap_err();
    assert!(matches!(error, StateError::Unreachable { .. }), "{error}");
    assert_eq!(script.written.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_control_plane_is_not_asked_again() {
    let denied = vec![Err(Status::permission_denied("no"))];
    let (store, script) = store(denied, vec![]);
    let error = store.get("a", Consistency::Strong).await.unwrap_err();
    assert!(matches!(error, StateError::Refused { .. }), "{error}");
    assert_eq!(*script.connections.lock().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_come_is_a_timeout_and_ends_the_connection() {
    let (store, script) = store(vec![], vec![]);
    let began = tokio::time::Instant::now();
    let error = store.get("a", Consistency::Strong).await.unwrap_err();
    assert!(matches!(error, StateError::TimedOut { after: TIMEOUT, .. }), "{error}");
    assert_eq!(began.elapsed(), TIMEOUT);
    script.reads.lock().unwrap().push_back(found(&[("1", 1)]));
    assert!(store.get("a", Consistency::Strong).await.unwrap().is_some());
    assert_eq!(*script.connections.lock().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn changes_carry_their_conditions_and_time_to_live() {
    let (store, script) = store(vec![], vec![done()]);
    let absent = Set {
        concurrency: tollway_state::Concurrency::FirstWrite,
        ttl: Ttl::parse("60").unwrap(),
        ..Set::new("b", Value::Bytes("x".into()))
    };
    let ops = vec![set("a", Some("7")), Op::Set(absent), Op::Delete(Delete::new("c"))];
    let fence = Some(Fence { key: "f".to_owned(), number: 3 });
    store.transact(Transaction { ops, fence }).await.unwrap();
    let written = script.written.lock().unwrap().pop().unwrap();
    let [a, b, c] = &written.changes[..] else { panic!("three changes") };
    assert_eq!(a.condition, Some(state_change::Condition::Revision(7)));
    assert_eq!(b.condition, Some(state_change::Condition::Absent(true)));
    assert_eq!((b.ttl_seconds, c.condition, &c.value), (60, None, &None));
    assert_eq!(written.fence, Some(StateFence { key: "f".to_owned(), number: 3 }));
}

#[tokio::test(start_paused = true)]
async fn an_etag_that_is_no_revision_is_refused_before_it_is_sent() {
    let (store, script) = store(vec![], vec![]);
    let error = store.transact(one(set("a", Some("never")))).await.unwrap_err();
    assert!(matches!(error, StateError::EtagInvalid { .. }), "{error}");
    assert!(script.written.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn refusals_of_a_write_are_the_errors_of_a_store() {
    let write = |refusal, fence| async move {
        let (store, _) = store(vec![], vec![refused_by(refusal)]);
        store.transact(Transaction { ops: vec![set("a", None)], fence }).await.unwrap_err()
    };
    let mismatch = |revision| Refusal::Mismatch(StateMismatch { key: "a".to_owned(), revision });
    for (revision, expected) in [(0, None), (9, Some("9"))] {
        let StateError::EtagMismatch { found, .. } = write(mismatch(revision), None).await else {
            panic!("a mismatch")
        };
        assert_eq!(found.as_deref(), expected);
    }
    let fence = Fence { key: "f".to_owned(), number: 3 };
    let fenced = write(Refusal::Fenced(true), Some(fence)).await;
    assert!(matches!(fenced, StateError::Fenced { number: 3, .. }), "{fenced}");
    let unasked = write(Refusal::Fenced(true), None).await;
    assert!(matches!(unasked, StateError::Refused { .. }), "{unasked}");
    let excess = StateExcess { what: "the value".to_owned(), found: 9, limit: 8 };
    let large = write(Refusal::Excess(excess), None).await;
    assert!(matches!(large, StateError::TooLarge { found: 9, limit: 8, .. }), "{large}");
}
