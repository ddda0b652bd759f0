//! Reminders over real connections: hosts that write and read them while shards change hands.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use support::host::{Answer, Host, Step, enter};
use support::{Member, Network, timing};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tollway_actors::placement::{Epoch, SHARDS, Shard, ShardSet};
use tollway_actors::schedule::{FailurePolicy, Moment, Schedule, Terms};
use tollway_wire::v1::reminders_client::RemindersClient;
use tollway_wire::v1::remove_actor_reminders_request::What;
use tollway_wire::{
    REMINDER_ACTOR_ID_BYTES, REMINDER_CHANGES_LIMIT, REMINDER_DATA_BYTES, REMINDER_NAME_BYTES,
    REMINDERS_REQUEST_BYTES, Registration, Reminder, ReminderChange, ReminderKey, ReminderResult,
    v1,
};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Nothing here lasts so long.
const LONG: Duration = Duration::from_secs(1000);

async fn network() -> Network {
    Network::start_with("west", |options| options.timing.actor_lease = LONG).await
}

/// A host of `cart` and its connection for reminders.
struct Writer {
    host: Host,
    client: RemindersClient<Channel>,
}

impl Writer {
    /// Enters and is granted every shard that no other host holds.
    async fn enter(member: &Member, life: u64) -> Self {
        let mut writer = Self::enter_in_line(member, life).await;
        writer.host.granted().await;
        writer
    }

    /// Enters and waits for its part.
    async fn enter_in_line(member: &Member, life: u64) -> Self {
        Self::enter_with(member, life, BTreeMap::new()).await
    }

    async fn enter_with(member: &Member, life: u64, held: BTreeMap<Shard, Epoch>) -> Self {
        let mut first = enter(life);
        first.types[0].grants = tollway_wire::grants(&held);
        let mut host = Host::open(member, Step::Enter(first)).await;
        (host.life, host.held) = (life, held);
        assert!(matches!(host.answer().await.unwrap(), Answer::Entered(_)));
        Self { host, client: RemindersClient::new(member.channel().await) }
    }

    fn epoch(&self, actor_id: &str) -> Epoch {
        self.host.held.get(&Shard::of(actor_id)).copied().unwrap_or(Epoch(1))
    }

    fn put(&self, actor_id: &str, name: &str) -> ReminderChange {
        let (key, epoch) = (key(actor_id, name), self.epoch(actor_id));
        ReminderChange::Put { key, epoch, registration: registration(), if_absent: false }
    }

    fn delete(&self, actor_id: &str, name: &str) -> ReminderChange {
        let (key, epoch) = (key(actor_id, name), self.epoch(actor_id));
        ReminderChange::Delete { key, epoch, version: None }
    }

    async fn try_write(&self, changes: Vec<ReminderChange>) -> Result<Vec<ReminderResult>, Status> {
        write(&mut self.client.clone(), self.host.life, changes).await
    }

    async fn write(&self, changes: Vec<ReminderChange>) -> Vec<ReminderResult> {
        self.try_write(changes).await.unwrap()
    }

    /// Writes changes that must succeed, and returns the versions.
    async fn done(&self, changes: Vec<ReminderChange>) -> Vec<u64> {
        let version = |result| match result {
            ReminderResult::Done { version, .. } => version,
            other @ (ReminderResult::NotFound
            | ReminderResult::Exists
            | ReminderResult::Fenced
            | ReminderResult::Excess { .. }) => panic!("{other:?}"),
        };
        self.write(changes).await.into_iter().map(version).collect()
    }

    /// All of what it holds.
    async fn list(&self) -> Vec<Reminder> {
        let held = self.host.held.clone();
        let Listed { reminders, fenced, .. } = self.list_of(&held).await.unwrap();
        assert!(fenced.is_empty(), "{fenced:?}");
        reminders
    }

    async fn list_of(&self, shards: &BTreeMap<Shard, Epoch>) -> Result<Listed, Status> {
        let request = v1::ListRemindersRequest {
            life: self.host.life,
            actor_type: "cart".into(),
            grants: tollway_wire::grants(shards),
        };
        let mut stream = self.client.clone().list_reminders(request).await?.into_inner();
        let mut listed = Listed::default();
        while let Some(response) = stream.message().await? {
            if listed.pages == 0 && !response.fenced.is_empty() {
                listed.fenced = tollway_wire::shard_set(&response.fenced).unwrap();
            }
            listed.pages += 1;
            let read = response.reminders.into_iter().map(tollway_wire::reminder);
            listed.reminders.extend(read.map(Result::unwrap));
        }
        Ok(listed)
    }

    async fn names(&self) -> Vec<String> {
        let name = |reminder: Reminder| format!("{}/{}", reminder.actor_id, reminder.name);
        let mut names: Vec<_> = self.list().await.into_iter().map(name).collect();
        names.sort();
        names
    }
}

#[derive(Default)]
struct Listed {
    reminders: Vec<Reminder>,
    fenced: ShardSet,
    pages: usize,
}

async fn write(
    client: &mut RemindersClient<Channel>,
    life: u64,
    changes: Vec<ReminderChange>,
) -> Result<Vec<ReminderResult>, Status> {
    let changes = changes.into_iter().map(Into::into).collect();
    let response = client.write_reminders(v1::WriteRemindersRequest { life, changes }).await?;
    let results = response.into_inner().results;
    Ok(results.into_iter().map(|result| tollway_wire::reminder_result(result).unwrap()).collect())
}

fn key(actor_id: &str, name: &str) -> ReminderKey {
    ReminderKey { actor_type: "cart".into(), actor_id: actor_id.into(), name: name.into() }
}

fn now() -> Moment {
    let elapsed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Moment::since_unix_epoch(elapsed.unwrap())
}

fn registered(due_time: &str, period: &str, ttl: &str) -> Registration {
    let terms = Terms::new(due_time, period, ttl);
    let schedule = terms.read(now()).unwrap();
    let policy = FailurePolicy::Constant { interval: LONG, max_retries: Some(7) };
    Registration { terms, schedule, data: b"{\"a\": [1]}".to_vec(), policy }
}

fn registration() -> Registration {
    registered("1h", "R5/PT10M", "P1D")
}

fn excess(result: &ReminderResult) -> (&str, u64, u64) {
    match result {
        ReminderResult::Excess { what, found, limit } => (what, *found, *limit),
        other @ (ReminderResult::Done { .. }
        | ReminderResult::NotFound
        | ReminderResult::Exists
        | ReminderResult::Fenced) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_reminder_is_listed_as_it_was_registered_and_with_its_rest() {
    let mut west = network().await;
    let one = Writer::enter(&west.member("shop", "one").await, 1).await;
    let stated = registration();
    let put = |registration: &Registration| ReminderChange::Put {
        key: key("a", "x"),
        epoch: one.epoch("a"),
        registration: registration.clone(),
        if_absent: false,
    };
    let first = put(&stated);
    let versions = one.done(vec![first.clone()]).await;
    let listed = one.list().await;
    let expected = Reminder {
        actor_id: "a".into(),
        name: "x".into(),
        version: versions[0],
        registration: stated.clone(),
    };
    assert_eq!(listed, std::slice::from_ref(&expected));

    let left: Schedule = stated.schedule.after(stated.schedule.due).unwrap();
    let advance = |version| ReminderChange::Advance {
        key: key("a", "x"),
        epoch: one.epoch("a"),
        version,
        due: left.due,
        firings: left.firings,
    };
    let changes = vec![advance(versions[0]), advance(versions[0] + 1)];
    let results = one.write(changes).await;
    let done = ReminderResult::Done { version: versions[0], deleted: 0 };
    assert_eq!(results, [done, ReminderResult::NotFound]);
    let after = Registration { schedule: left, ..stated.clone() };
    assert_eq!(one.list().await, [Reminder { registration: after, ..expected }]);

    // Registered again, it is another one: changes of the old one do not apply to it.
    let again = one.done(vec![first]).await;
    assert!(again[0] > versions[0]);
    let old = ReminderChange::Advance {
        key: key("a", "x"),
        epoch: one.epoch("a"),
        version: versions[0],
        due: left.due,
        firings: None,
    };
    let gone = ReminderChange::Delete {
        key: key("a", "x"),
        epoch: one.epoch("a"),
        version: Some(versions[0]),
    };
    assert_eq!(one.write(vec![old, gone]).await, vec![ReminderResult::NotFound; 2]);
    assert_eq!(one.list().await[0].registration, stated);
}

#[tokio::test]
async fn each_change_of_a_batch_sees_those_before_it_and_has_a_result_of_its_own() {
    let mut west = network().await;
    let one = Writer::enter(&west.member("shop", "one").await, 1).await;
    let absent = |name: &str| ReminderChange::Put {
        key: key("a", name),
        epoch: one.epoch("a"),
        registration: registration(),
        if_absent: true,
    };
    let mut elsewhere = one.put("a", "z");
    if let ReminderChange::Put { epoch, .. } = &mut elsewhere {
        *epoch = Epoch(epoch.0 - 1);
    }
    let changes = vec![
        absent("x"),
        absent("x"),
        one.delete("a", "x"),
        one.delete("a", "x"),
        absent("x"),
        one.put("a", "y"),
        elsewhere,
        ReminderChange::DeleteOfActor {
            actor_type: "cart".into(),
            actor_id: "a".into(),
            epoch: one.epoch("a"),
        },
        absent("y"),
        one.put("b", "x"),
    ];
    let results = one.write(changes).await;
    let kinds: Vec<String> = results
        .iter()
        .map(|result| match result {
            ReminderResult::Done { deleted, .. } => format!("done {deleted}"),
            other @ (ReminderResult::NotFound
            | ReminderResult::Exists
            | ReminderResult::Fenced
            | ReminderResult::Excess { .. }) => format!("{other:?}"),
        })
        .collect();
    let expected = [
        "done 0", "Exists", "done 1", "NotFound", "done 0", "done 0", "Fenced", "done 2", "done 0",
        "done 0",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(one.names().await, ["a/y", "b/x"]);
}

#[tokio::test]
async fn who_does_not_hold_the_shard_writes_nothing() {
    let mut west = network().await;
    let (first, second) = (west.member("shop", "one").await, west.member("shop", "two").await);
    let mut one = Writer::enter(&first, 1).await;
    let ids: Vec<String> = (0..100).map(|number| format!("actor-{number}")).collect();
    one.done(ids.iter().map(|id| one.put(id, "x")).collect()).await;
    let mut two = Writer::enter_in_line(&second, 1).await;
    let asked = one.host.asked_back().await;
    let (moved, stays): (Vec<_>, Vec<_>) = ids.iter().partition(|id| asked.contains(Shard::of(id)));
    assert!(!moved.is_empty() && !stays.is_empty());
    // It holds what is asked back until it has given it back.
    let before = one.host.held.clone();
    one.done(moved.iter().map(|id| one.put(id, "late")).collect()).await;
    let old: Vec<_> = moved.iter().map(|id| one.put(id, "too late")).collect();
    one.host.give_back(&asked).await;
    two.host.granted().await;
    assert_eq!(one.write(old).await, vec![ReminderResult::Fenced; moved.len()]);
    let names = two.names().await;
    assert_eq!(names.len(), 2 * moved.len(), "{names:?}");
    // Nor does the new one write for what stays, or under the epoch of the old one.
    let stolen = ids.iter().map(|id| ReminderChange::Delete {
        key: key(id, "x"),
        epoch: before[&Shard::of(id)],
        version: None,
    });
    assert_eq!(two.write(stolen.collect()).await, vec![ReminderResult::Fenced; ids.len()]);
    let all = ReminderChange::DeleteOfShards {
        actor_type: "cart".into(),
        grants: vec![(before[&Shard::of(&ids[0])], before.keys().copied().collect())],
    };
    assert_eq!(two.write(vec![all]).await, [ReminderResult::Fenced]);
    // Reads without a right are left out, and reported.
    let Listed { reminders, fenced, .. } = one.list_of(&before).await.unwrap();
    assert_eq!(fenced, asked);
    assert_eq!(reminders.len(), stays.len());
}

/// A host writes as fast as it can while its shards are handed over: of what it got answers for is
/// written, the next host reads everything, and nothing comes after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_next_holder_reads_all_that_the_former_got_an_answer_for() {
    for _ in 0..3 {
        hand_over_while_writing().await;
    }
}

async fn hand_over_while_writing() {
    let mut west = network().await;
    let (first, second) = (west.member("shop", "one").await, west.member("shop", "two").await);
    let mut one = Writer::enter(&first, 1).await;
    let answered: Arc<AtomicUsize> = Arc::default();
    let mut tasks = Vec::new();
    for lane in 0..16 {
        let (mut client, life) = (one.client.clone(), one.host.life);
        let (held, answered) = (one.host.held.clone(), answered.clone());
        tasks.push(tokio::spawn(async move {
            let mut written = BTreeSet::new();
            for number in 0.. {
                let id = format!("{lane}-{number}");
                let epoch = held[&Shard::of(&id)];
                let (key, registration) = (key(&id, "x"), registration());
                let put = ReminderChange::Put { key, epoch, registration, if_absent: false };
                match write(&mut client, life, vec![put]).await.unwrap().remove(0) {
                    ReminderResult::Done { .. } => {
                        written.insert(id);
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    ReminderResult::Fenced => break,
                    other @ (ReminderResult::NotFound
                    | ReminderResult::Exists
                    | ReminderResult::Excess { .. }) => panic!("{other:?}"),
                }
            }
            written
        }));
    }
    while answered.load(Ordering::Relaxed) < 500 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut two = Writer::enter_in_line(&second, 1).await;
    let asked = one.host.asked_back().await;
    // It continues to write: it stops later than its shards are asked back.
    one.host.give_back(&asked).await;
    two.host.granted().await;
    let read: BTreeSet<String> = two.names().await.into_iter().collect();
    let mut written = BTreeSet::new();
    for task in tasks {
        written.extend(task.await.unwrap());
    }
    let moved = |id: &&String| asked.contains(Shard::of(id));
    let expected: BTreeSet<String> =
        written.iter().filter(moved).map(|id| format!("{id}/x")).collect();
    assert!(expected.len() > 100, "{}", expected.len());
    assert_eq!(read, expected);
    assert_eq!(two.names().await.len(), read.len(), "nothing comes later");
}

#[tokio::test]
async fn a_restarted_control_plane_has_everything_and_waits_for_the_host_to_enter() {
    let mut west = network().await;
    let member = west.member("shop", "one").await;
    let one = Writer::enter(&member, 9).await;
    let kept: Vec<_> = (0..50).map(|number| one.put("a", &format!("{number:02}"))).collect();
    let versions = one.done(kept).await;
    let listed = one.list().await;
    let (held, put) = (one.host.held.clone(), one.put("a", "more"));
    let west = west.restart().await;
    let mut client = RemindersClient::new(member.channel().await);
    let status = write(&mut client, 9, vec![put.clone()]).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert!(status.message().contains("enter"), "{status:?}");
    let one = Writer::enter_with(&member, 9, held).await;
    assert_eq!(one.list().await, listed);
    assert_eq!(listed.iter().map(|it| it.version).collect::<Vec<_>>(), versions);
    let more = one.done(vec![put.clone()]).await;
    assert!(more[0] > *versions.iter().max().unwrap());
    // Another life of the host is another host.
    let status = write(&mut client, 10, vec![put]).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    drop(west);
}

#[tokio::test]
async fn many_reminders_are_listed_page_by_page() {
    let mut west = network().await;
    let one = Writer::enter(&west.member("shop", "one").await, 1).await;
    let mut expected = Vec::new();
    for batch in 0..5 {
        let id = |number: u32| format!("actor-{}", batch * 500 + number);
        one.done((0..500).map(|number| one.put(&id(number), "x")).collect()).await;
        expected.extend((0..500).map(id));
    }
    let held = one.host.held.clone();
    let listed = one.list_of(&held).await.unwrap();
    assert!(listed.pages >= 3, "{}", listed.pages);
    let order = |reminder: &Reminder| (Shard::of(&reminder.actor_id), reminder.actor_id.clone());
    assert!(listed.reminders.is_sorted_by_key(order));
    let mut listed_ids: Vec<_> = listed.reminders.into_iter().map(|it| it.actor_id).collect();
    listed_ids.sort();
    expected.sort();
    assert_eq!(listed_ids, expected);
    // Of some shards only those.
    let every_third = |(shard, _): &(&Shard, &Epoch)| shard.number() % 3 == 0;
    let some: BTreeMap<_, _> =
        held.iter().filter(every_third).map(|(shard, epoch)| (*shard, *epoch)).collect();
    let listed = one.list_of(&some).await.unwrap();
    let count = expected.iter().filter(|id| some.contains_key(&Shard::of(id))).count();
    assert_eq!(listed.reminders.len(), count);
    assert!(
        count > 0
            && listed.reminders.iter().all(|it| { some.contains_key(&Shard::of(&it.actor_id)) })
    );
    let none = one.list_of(&BTreeMap::new()).await.unwrap();
    assert_eq!((none.pages, none.reminders.len()), (1, 0));
}

#[tokio::test]
async fn an_actor_or_all_of_a_type_is_forgotten_at_once() {
    let mut west = network().await;
    let one = Writer::enter(&west.member("shop", "one").await, 1).await;
    let mut changes: Vec<_> =
        (0..600).map(|number| one.put(&format!("actor-{number}"), "x")).collect();
    changes.extend((0..5).map(|number| one.put("a", &format!("{number}"))));
    changes.push(one.put("aa", "x"));
    one.done(changes).await;
    let of_actor = ReminderChange::DeleteOfActor {
        actor_type: "cart".into(),
        actor_id: "a".into(),
        epoch: one.epoch("a"),
    };
    let deleted = |deleted| ReminderResult::Done { version: 0, deleted };
    assert_eq!(one.write(vec![of_actor.clone(), of_actor]).await, [deleted(5), deleted(0)]);
    assert_eq!(one.list().await.len(), 601);
    let mut grants: BTreeMap<Epoch, ShardSet> = BTreeMap::new();
    for (shard, epoch) in &one.host.held {
        grants.entry(*epoch).or_default().insert(*shard);
    }
    let of_shards = ReminderChange::DeleteOfShards {
        actor_type: "cart".into(),
        grants: grants.into_iter().collect(),
    };
    assert_eq!(one.write(vec![of_shards, one.put("b", "x")]).await[0], deleted(601));
    assert_eq!(one.names().await, ["b/x"]);
}

#[tokio::test]
async fn namespaces_do_not_see_each_other() {
    let mut west = network().await;
    let here = Writer::enter(&west.member("shop", "one").await, 1).await;
    let there = Writer::enter(&west.member("shop.elsewhere", "two").await, 1).await;
    here.done(vec![here.put("a", "x"), here.put("a", "y")]).await;
    there.done(vec![there.put("a", "x")]).await;
    assert_eq!(there.names().await, ["a/x"]);
    there.done(vec![there.delete("a", "x")]).await;
    assert_eq!(there.write(vec![there.delete("a", "y")]).await, [ReminderResult::NotFound]);
    assert_eq!(here.names().await, ["a/x", "a/y"]);
}

#[tokio::test]
async fn what_is_too_large_is_refused_by_itself_with_its_limit() {
    let mut west = network().await;
    let one = Writer::enter(&west.member("shop", "one").await, 1).await;
    let long = |bytes: usize| "x".repeat(bytes);
    let with = |id: &str, name: &str, adjust: &dyn Fn(&mut Registration)| {
        let mut registration = registration();
        adjust(&mut registration);
        let epoch = one.epoch(id);
        ReminderChange::Put { key: key(id, name), epoch, registration, if_absent: false }
    };
    let none = |_: &mut Registration| ();
    let (most_id, most_name) = (long(REMINDER_ACTOR_ID_BYTES), long(REMINDER_NAME_BYTES));
    let largest = with(&most_id, &most_name, &|it| it.data = vec![0; REMINDER_DATA_BYTES]);
    let changes = vec![
        largest,
        with(&long(REMINDER_ACTOR_ID_BYTES + 1), "x", &none),
        with("a", &long(REMINDER_NAME_BYTES + 1), &none),
        with("a", "x", &|it| it.data = vec![0; REMINDER_DATA_BYTES + 1]),
        with("a", "x", &|it| it.terms.ttl = long(129).into()),
        with("a", "x", &none),
    ];
    let results = one.write(changes).await;
    assert!(matches!(results[0], ReminderResult::Done { .. }), "{results:?}");
    assert_eq!(excess(&results[1]), ("the id of an actor in bytes", 401, 400));
    assert_eq!(excess(&results[2]), ("the name of a reminder in bytes", 301, 300));
    assert_eq!(excess(&results[3]), ("the data of a reminder in bytes", 65_537, 65_536));
    assert_eq!(excess(&results[4]), ("a term of a reminder in bytes", 129, 128));
    assert!(matches!(results[5], ReminderResult::Done { .. }), "{results:?}");
    assert_eq!(one.list().await.len(), 2);

    let many = vec![one.delete("a", "x"); REMINDER_CHANGES_LIMIT + 1];
    let status = one.try_write(many).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert!(status.message().contains("at most 1000"), "{status:?}");
    let heavy = with("a", "x", &|it| it.data = vec![0; REMINDER_DATA_BYTES]);
    let heavy = vec![heavy; REMINDERS_REQUEST_BYTES / REMINDER_DATA_BYTES + 1];
    let status = one.try_write(heavy).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    assert_eq!(one.list().await.len(), 2, "nothing of it was written");
}

#[tokio::test]
async fn what_is_not_valid_is_refused_with_the_reason() {
    let mut west = network().await;
    let one = Writer::enter(&west.member("shop", "one").await, 1).await;
    let cases = [
        (one.put("", "x"), "`actor_id` of a reminder is empty"),
        (one.put("a", ""), "`name` of a reminder is empty"),
        (one.put("a\0", "x"), "holds a NUL byte"),
    ];
    for (change, reason) in cases {
        let status = one.try_write(vec![change]).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains(reason), "{status:?}");
    }
    let gateway = west.gateway("gateway-1").await;
    let mut client = RemindersClient::new(gateway.channel().await);
    let status = write(&mut client, 1, Vec::new()).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    // A workload that is no host.
    let mut client = RemindersClient::new(west.member("web", "a").await.channel().await);
    let status = write(&mut client, 1, vec![one.put("a", "x")]).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
}

#[tokio::test]
async fn expired_reminders_go_by_themselves_and_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let ports = dir.path().join("ports");
    let file = ports.clone();
    let mut west = Network::start_with("west", |options| {
        options.timing.actor_lease = LONG;
        options.admin_listen = Some("127.0.0.1:0".parse().unwrap());
        options.ports_file = Some(file);
    })
    .await;
    let ports: BTreeMap<String, String> =
        serde_json::from_slice(&std::fs::read(ports).unwrap()).unwrap();
    let page = async |line: &str| {
        let mut stream = tokio::net::TcpStream::connect(&ports["admin"]).await.unwrap();
        let request = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text.lines().any(|other| other == line)
    };
    assert!(page("tollway_reminders 0").await);
    let one = Writer::enter(&west.member("shop", "one").await, 1).await;
    let brief = ReminderChange::Put {
        key: key("a", "brief"),
        epoch: one.epoch("a"),
        registration: registered("", "100ms", "300ms"),
        if_absent: true,
    };
    one.done(vec![brief.clone(), one.put("a", "long")]).await;
    one.write(vec![one.delete("a", "x")]).await;
    assert!(page("tollway_reminder_changes_total{result=\"done\"} 2").await);
    assert!(page("tollway_reminder_changes_total{result=\"not_found\"} 1").await);
    let deadline = tokio::time::Instant::now() + support::PATIENCE;
    while !page("tollway_reminders 1").await {
        assert!(tokio::time::Instant::now() < deadline, "it stays");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(page("tollway_reminders_expired_total 1").await);
    assert_eq!(one.names().await, ["a/long"]);
    // What is over and not yet swept counts as gone too.
    one.done(vec![brief.clone()]).await;
    while one.names().await != ["a/long"] {
        assert!(tokio::time::Instant::now() < deadline, "it stays listed");
        tokio::task::yield_now().await;
    }
    one.done(vec![brief]).await;
}

/// The harm: an intruder becomes a host of the type, before or after a restart of the control plane, and
/// reads, writes and deletes the reminders of its actors.
#[tokio::test]
async fn an_intruder_gets_no_reminders_even_first_after_a_restart() {
    let mut west = network().await;
    let (shop, other) = (west.member("shop", "one").await, west.member("intruder", "one").await);
    let writer = Writer::enter(&shop, 7).await;
    let ids: Vec<String> = (0..40).map(|id| format!("u{id}")).collect();
    writer.done(ids.iter().map(|id| writer.put(id, "pay")).collect()).await;
    let held = writer.host.held.clone();
    let check = async |intruder: &Writer| {
        for epoch in [held.values().max().copied().unwrap(), Epoch(1)] {
            let claimed = Shard::all().map(|shard| (shard, epoch)).collect();
            let listed = intruder.list_of(&claimed).await.unwrap();
            assert_eq!((listed.reminders.len(), listed.fenced.len()), (0, SHARDS), "{epoch:?}");
            let changes =
                ids.iter().flat_map(|id| [intruder.put(id, "x"), intruder.delete(id, "pay")]);
            let results = intruder.write(changes.collect()).await;
            assert!(results.iter().all(|it| *it == ReminderResult::Fenced), "{results:?}");
        }
    };
    let claims = async |life| {
        let mut first = enter(life);
        first.types[0].grants = tollway_wire::grants(&held);
        let mut host = Host::open(&other, Step::Enter(first)).await;
        (host.life, host.held) = (life, held.clone());
        while !matches!(host.answer().await.unwrap(), Answer::Entered(_)) {}
        Writer { host, client: RemindersClient::new(other.channel().await) }
    };
    check(&claims(1).await).await;
    let west = west.restart().await;
    check(&claims(2).await).await;
    // The host itself goes on with what it holds.
    let writer = Writer::enter_with(&shop, 7, held.clone()).await;
    assert_eq!(writer.names().await.len(), 40);
    writer.done(vec![writer.delete("u0", "pay")]).await;
    drop(west);
}

/// The harm: an app fills what its namespace may keep of reminders, and only that app can remove
/// them.
#[tokio::test]
async fn the_operator_removes_the_reminders_of_an_app_that_has_gone() {
    let mut west = network().await;
    let cart = west.member("cart.default", "a").await;
    let one = Writer::enter(&cart, 1).await;
    let put = |(id, name)| one.put(id, name);
    one.done([("a", "x"), ("a", "y"), ("b", "x"), ("c", "x")].map(put).to_vec()).await;
    let remove = |what| v1::RemoveActorRemindersRequest {
        namespace: "default".into(),
        actor_type: "cart".into(),
        what: Some(what),
    };
    let refused = west.admin.remove_actor_reminders(remove(What::All(true))).await.unwrap_err();
    assert!(refused.to_string().contains("default/cart has hosts"), "{refused}");
    assert_eq!(one.names().await, ["a/x", "a/y", "b/x", "c/x"]);
    one.host.send(Step::Leave(v1::Leave {})).await;
    while west.admin.actor_types("default").await.unwrap()[0].hosts > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    let all = west.admin.actor_reminders(Default::default()).await.unwrap();
    let usage = |listed: &v1::ListActorRemindersResponse| listed.types[0].usage.unwrap().entries;
    assert_eq!((all.types.len(), usage(&all), all.all.unwrap().entries), (1, 4, 4));
    assert!(all.reminders.is_empty(), "no type was requested");
    let of_type = v1::ListActorRemindersRequest {
        namespace: "default".into(),
        actor_type: "cart".into(),
        ..Default::default()
    };
    let of_actor = v1::ListActorRemindersRequest { actor_id: "a".into(), ..of_type.clone() };
    let of_actor = west.admin.actor_reminders(of_actor).await.unwrap();
    let names: Vec<_> = of_actor.reminders.iter().map(|it| (&*it.actor_id, &*it.name)).collect();
    assert_eq!(names, [("a", "x"), ("a", "y")]);
    assert_eq!((&*of_actor.reminders[0].period, of_actor.next.len()), ("R5/PT10M", 0));

    let named = v1::ReminderOfActor { actor_id: "a".into(), name: "x".into() };
    assert_eq!(west.admin.remove_actor_reminders(remove(What::One(named))).await.unwrap(), 1);
    let of_b = What::ActorId("b".into());
    assert_eq!(west.admin.remove_actor_reminders(remove(of_b)).await.unwrap(), 1);
    let rest = west.admin.actor_reminders(of_type).await.unwrap();
    let names: BTreeSet<_> = rest.reminders.iter().map(|it| (&*it.actor_id, &*it.name)).collect();
    assert_eq!(names, BTreeSet::from([("a", "y"), ("c", "x")]));
    assert_eq!(west.admin.remove_actor_reminders(remove(What::All(true))).await.unwrap(), 2);
    let next = Writer::enter(&cart, 2).await;
    assert_eq!(next.names().await, [""; 0]);
    for nothing in [What::All(false), What::ActorId(String::new())] {
        assert!(west.admin.remove_actor_reminders(remove(nothing)).await.is_err());
    }
}

/// The harm: a host writes schedules at the ends of what numbers can hold, and the control plane breaks,
/// or the next host that reads them.
#[tokio::test]
async fn schedules_at_the_ends_of_numbers_are_refused_or_read_by_the_next_host() {
    let mut west = network().await;
    let (evil, next) = (west.member("shop", "one").await, west.member("shop", "two").await);
    let writer = Writer::enter(&evil, 1).await;
    let periods = [(0, 0), (u32::MAX, 0), (0, u64::MAX), (u32::MAX, u64::MAX), (0, 1), (1, 0)];
    let (mut done, mut refused) = (0, 0);
    for due_unix_us in [i64::MIN, i64::MAX, 0, -1] {
        for (period_months, period_us) in periods {
            for firings in [0, 1, u32::MAX] {
                for ends_unix_us in [None, Some(i64::MIN), Some(i64::MAX)] {
                    let schedule = v1::ReminderSchedule {
                        due_unix_us,
                        period_months,
                        period_us,
                        firings,
                        ends_unix_us,
                    };
                    match write_stated(&writer, done + refused, schedule).await {
                        Ok(()) => done += 1,
                        Err(status) => {
                            assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
                            refused += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(done > 0 && refused > 0, "{done} are stored, {refused} are refused");
    drop(writer);
    let west = west.restart_with(|options| options.timing.actor_lease = timing().actor_lease).await;
    let next = Member { address: west.address, ..next };
    let mut writer = Writer::enter_in_line(&next, 2).await;
    writer.host.wait_for_all().await;
    // Reading them is the check of what each says.
    for reminder in writer.list().await {
        let _ = reminder.registration.schedule.after(now());
    }
}

/// Writes a reminder whose schedule is as it is stated.
async fn write_stated(
    writer: &Writer,
    number: usize,
    schedule: v1::ReminderSchedule,
) -> Result<(), Status> {
    let change: v1::ReminderChange = writer.put("a", &format!("n{number}")).into();
    let Some(v1::reminder_change::Change::Put(mut put)) = change.change else {
        panic!("it puts a reminder");
    };
    let retries = v1::ConstantRetries { interval_us: u64::MAX, max_retries: Some(u32::MAX) };
    let policy = Some(v1::reminder_failure_policy::Policy::Constant(retries));
    let registration = put.registration.as_mut().unwrap();
    registration.schedule = Some(schedule);
    registration.failure_policy = Some(v1::ReminderFailurePolicy { policy });
    let change = v1::ReminderChange { change: Some(v1::reminder_change::Change::Put(put)) };
    let request = v1::WriteRemindersRequest { life: writer.host.life, changes: vec![change] };
    writer.client.clone().write_reminders(request).await.map(drop)
}
