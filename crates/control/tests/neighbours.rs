//! Neighbours through a whole control plane: over its admin socket, and as agents over mutual TLS.
#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod support;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use support::{Member, Network, PATIENCE, enroll};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tollway_control::{AdminClient, NeighbourOptions, Options};
use tollway_model::neighbour::Merged;
use tollway_model::neighbour::packed::{BATCH_RECORDS, pack_all, unpack};
use tollway_model::{HostLocation, Mac, NeighbourKey, NeighbourRecord, Vni};
use tollway_wire::v1;
use tollway_wire::v1::NeighbourOperation::{self, Apply, Create, Delete, Update};
use tollway_wire::v1::create_token_request::Scope;
use tollway_wire::v1::neighbours_client::NeighboursClient;
use tollway_wire::v1::watch_neighbours_request::Request;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

/// The neighbour of a number on the host of a number.
fn neighbour(number: u32, host: u8) -> NeighbourRecord {
    let mac = |kind| Mac::new([2, kind, 0, 0, 0, host]).unwrap();
    let location = HostLocation::new(mac(1), Ipv4Addr::new(192, 0, 2, host).into(), mac(2));
    NeighbourRecord { location: Some(location.unwrap()), ..gone(number) }
}

fn gone(number: u32) -> NeighbourRecord {
    let ip = Ipv4Addr::from(0x0a00_0001 + number);
    let key = NeighbourKey::new(Vni::new(7).unwrap(), ip.into()).unwrap();
    NeighbourRecord { key, revision: 0, location: None }
}

fn request(
    operation: NeighbourOperation,
    records: &[NeighbourRecord],
) -> v1::WriteNeighboursRequest {
    v1::WriteNeighboursRequest {
        group: "racks".into(),
        operation: operation.into(),
        neighbours: records.iter().map(Into::into).collect(),
        packed: Vec::new().into(),
    }
}

async fn write(
    client: &mut NeighboursClient<Channel>,
    operation: NeighbourOperation,
    records: &[NeighbourRecord],
) -> v1::WriteNeighboursResponse {
    client.write_neighbours(request(operation, records)).await.unwrap().into_inner()
}

/// The neighbours of the group, without their revisions, and the revision of the list.
async fn list(client: &mut NeighboursClient<Channel>) -> (Vec<NeighbourRecord>, u64) {
    let request = v1::ListNeighboursRequest { group: "racks".into(), ..Default::default() };
    let mut pages = client.list_neighbours(request).await.unwrap().into_inner();
    let (mut all, mut revision) = (Vec::new(), 0);
    while let Some(page) = pages.message().await.unwrap() {
        all.extend(unpack(&page.packed).unwrap());
        revision = page.revision;
    }
    (all, revision)
}

/// A watcher that records what it is sent.
struct Watcher {
    said: mpsc::Sender<v1::WatchNeighboursRequest>,
    responses: Streaming<v1::WatchNeighboursResponse>,
    merged: Merged,
    /// What it was sent of each key, oldest first.
    seen: HashMap<NeighbourKey, Vec<u64>>,
    revision: u64,
    table: u64,
    compacted: Vec<v1::NeighboursCompacted>,
    /// The records from before a new listing began.
    stale: Vec<NeighbourKey>,
}

impl Watcher {
    async fn start(client: NeighboursClient<Channel>, group: &str) -> Self {
        Self::resume(client, group, 0, 0, Merged::new()).await.unwrap()
    }

    async fn resume(
        mut client: NeighboursClient<Channel>,
        group: &str,
        from_revision: u64,
        table: u64,
        merged: Merged,
    ) -> Result<Self, Status> {
        let (said, saying) = mpsc::channel(4);
        let start = v1::WatchNeighboursStart {
            group: group.to_owned(),
            from_revision,
            table,
            version: "test".into(),
        };
        said.send(v1::WatchNeighboursRequest { request: Some(Request::Start(start)) })
            .await
            .unwrap();
        let responses = client.watch_neighbours(ReceiverStream::new(saying)).await?.into_inner();
        let (seen, compacted, stale) = Default::default();
        Ok(Self { said, responses, merged, seen, revision: from_revision, table, compacted, stale })
    }

    /// Takes one message.
    async fn next(&mut self) -> Result<(), Status> {
        let message = tokio::time::timeout(PATIENCE, self.responses.message()).await;
        let message = message.expect("it is sent something")?.expect("the watch goes on");
        if message.table != 0 {
            self.table = message.table;
        }
        if let Some(compacted) = message.compacted {
            self.compacted.push(compacted);
            self.stale = self.merged.present().map(|record| record.key).collect();
            if compacted.unknown_revision {
                self.merged = Merged::new();
            }
        }
        for record in unpack(&message.packed).unwrap() {
            self.seen.entry(record.key).or_default().push(record.revision);
            self.merged.take(record);
            self.stale.retain(|key| *key != record.key);
        }
        if message.revision != 0 {
            assert!(message.revision >= self.revision, "marks go back");
            self.revision = message.revision;
            for key in std::mem::take(&mut self.stale) {
                let standing = self.merged.find(&key);
                if standing.is_some_and(|standing| standing.revision <= message.revision) {
                    self.merged.take(NeighbourRecord {
                        key,
                        revision: message.revision,
                        location: None,
                    });
                }
            }
        }
        Ok(())
    }

    /// Takes messages until everything up to a revision is sent.
    async fn until(&mut self, revision: u64) {
        while self.revision < revision {
            self.next().await.unwrap();
        }
    }

    fn present(&self) -> Vec<NeighbourRecord> {
        self.merged.present().collect()
    }

    async fn report(&self, revision: u64) {
        let report = v1::FabricAgentReport { revision, entries: 1, ..Default::default() };
        let request = v1::WatchNeighboursRequest { request: Some(Request::Report(report)) };
        self.said.send(request).await.unwrap();
    }
}

async fn agent(network: &mut Network, group: &str, instance: &str) -> Member {
    let token = network.token(Scope::FabricGroup(group.to_owned())).await;
    let service = network.own(&format!("fabric-{group}.tollway"));
    let credentials = enroll(network.address, &token, &service, instance).await.unwrap();
    Member { address: network.address, credentials }
}

fn keep(keep_tombstones: Duration) -> impl FnOnce(&mut Options) {
    move |options| options.neighbours.keep_tombstones = keep_tombstones
}

#[tokio::test]
async fn each_operation_is_answered_for_each_neighbour() {
    let network = Network::start("west").await;
    let mut client = network.admin.neighbours();
    let first = write(&mut client, Create, &[neighbour(1, 1), neighbour(2, 1)]).await;
    assert_eq!((first.changed, first.unchanged, first.failures.len()), (2, 0, 0));
    let mixed = [neighbour(2, 2), neighbour(3, 1), neighbour(3, 2)];
    let again = write(&mut client, Create, &mixed).await;
    assert!(again.revision > first.revision);
    assert_eq!(again.changed, 1);
    let failed: Vec<_> =
        again.failures.iter().map(|failure| (failure.index, &*failure.text)).collect();
    assert_eq!(
        failed,
        [
            (0, "the neighbour vni 7, 10.0.0.3 exists; update or apply it"),
            (2, "the neighbour vni 7, 10.0.0.4 exists; update or apply it"),
        ]
    );
    let same = write(&mut client, Apply, &[neighbour(1, 1), neighbour(3, 1)]).await;
    assert_eq!((same.changed, same.unchanged, same.revision), (0, 2, again.revision));
    let missing = write(&mut client, Update, &[neighbour(4, 1), neighbour(1, 3)]).await;
    assert_eq!((missing.changed, missing.failures[0].index), (1, 0));
    assert_eq!(missing.failures[0].text, "there is no neighbour vni 7, 10.0.0.5");
    let deleted = write(&mut client, Delete, &[gone(2), gone(2)]).await;
    assert_eq!((deleted.changed, deleted.failures.len()), (1, 1), "the second finds none");
    let (all, revision) = list(&mut client).await;
    assert_eq!(revision, deleted.revision);
    let expected = [(neighbour(1, 3), missing.revision), (neighbour(3, 1), again.revision)];
    assert_eq!(all, expected.map(|(record, revision)| NeighbourRecord { revision, ..record }));
}

#[tokio::test]
async fn neighbours_are_looked_up_and_listed_in_parts() {
    let network = Network::start("west").await;
    let mut client = network.admin.neighbours();
    let mut bulk = Vec::new();
    let all: Vec<_> = (0..3000).map(|number| neighbour(number, 1)).collect();
    for packed in pack_all(&all) {
        bulk.push(v1::WriteNeighboursRequest { packed: packed.into(), ..request(Apply, &[]) });
    }
    let answers = client.write_neighbours_in_bulk(tokio_stream::iter(bulk)).await.unwrap();
    let mut answers = answers.into_inner();
    let mut changed = 0;
    while let Some(answer) = answers.message().await.unwrap() {
        changed += answer.changed;
    }
    assert_eq!(changed, 3000);
    let (listed, _) = list(&mut client).await;
    let listed: Vec<_> =
        listed.into_iter().map(|record| NeighbourRecord { revision: 0, ..record }).collect();
    assert_eq!(listed, all);
    let keys = vec![(&gone(2999).key).into(), (&gone(3000).key).into(), (&gone(0).key).into()];
    let found = v1::GetNeighboursRequest { group: "RACKS".into(), keys };
    let found = client.get_neighbours(found).await.unwrap().into_inner();
    let found: Vec<_> = unpack(&found.packed).unwrap().iter().map(|record| record.key).collect();
    assert_eq!(found, [gone(2999).key, gone(0).key]);
    let part = v1::ListNeighboursRequest {
        group: "racks".into(),
        vni: Some(7),
        after: Some((&gone(9).key).into()),
        limit: 1500,
    };
    let mut pages = client.list_neighbours(part.clone()).await.unwrap().into_inner();
    let mut part_of = Vec::new();
    while let Some(page) = pages.message().await.unwrap() {
        part_of.extend(unpack(&page.packed).unwrap().iter().map(|record| record.key));
    }
    assert_eq!(part_of, (10..1510).map(|number| gone(number).key).collect::<Vec<_>>());
    let elsewhere = v1::ListNeighboursRequest { vni: Some(8), after: None, ..part };
    let mut pages = client.list_neighbours(elsewhere).await.unwrap().into_inner();
    let first = pages.message().await.unwrap().unwrap();
    assert!(first.packed.is_empty() && first.revision > 0);
    assert!(pages.message().await.unwrap().is_none());
}

#[tokio::test]
async fn a_watch_begins_with_everything_and_goes_on_where_it_was() {
    let network = Network::start("west").await;
    let mut client = network.admin.neighbours();
    write(&mut client, Apply, &[neighbour(1, 1), neighbour(2, 1)]).await;
    let deleted = write(&mut client, Delete, &[gone(2)]).await;
    let mut watcher = Watcher::start(client.clone(), "racks").await;
    watcher.until(deleted.revision).await;
    assert_eq!(watcher.seen.len(), 1, "a new watcher is not sent tombstones");
    let moved = write(&mut client, Apply, &[neighbour(1, 2), neighbour(3, 1)]).await;
    watcher.until(moved.revision).await;
    assert_eq!(watcher.present(), list(&mut client).await.0);
    // What happens while it is away, and across a restart.
    let Watcher { revision, table, merged, .. } = watcher;
    write(&mut client, Delete, &[gone(1)]).await;
    let network = network.restart().await;
    let mut client = network.admin.neighbours();
    let last = write(&mut client, Create, &[neighbour(4, 1)]).await;
    let resumed = Watcher::resume(client.clone(), "racks", revision, table, merged);
    let mut watcher = resumed.await.unwrap();
    watcher.until(last.revision).await;
    let mut sent: Vec<_> = watcher.seen.keys().copied().collect();
    sent.sort();
    assert_eq!(sent, [gone(1).key, gone(4).key], "only changes are sent");
    assert_eq!(watcher.present(), list(&mut client).await.0);
    assert!(watcher.compacted.is_empty());
}

#[tokio::test]
async fn another_table_and_a_revision_that_never_was_are_refused_as_such() {
    let network = Network::start("west").await;
    let mut client = network.admin.neighbours();
    let written = write(&mut client, Apply, &[neighbour(1, 1)]).await;
    let mut stale = Merged::new();
    stale.take(NeighbourRecord { revision: 1000, ..neighbour(1, 9) });
    stale.take(NeighbourRecord { revision: 1000, ..neighbour(2, 9) });
    let table = client
        .get_neighbours(v1::GetNeighboursRequest { group: "racks".into(), keys: vec![] })
        .await
        .unwrap()
        .into_inner()
        .table;
    for (from, table) in [(1000, table), (written.revision, table.wrapping_add(1).max(1))] {
        let resumed = Watcher::resume(client.clone(), "racks", from, table, stale.clone());
        let mut watcher = resumed.await.unwrap();
        watcher.revision = 0;
        watcher.until(written.revision).await;
        assert!(watcher.compacted[0].unknown_revision);
        assert_eq!(watcher.present(), list(&mut client).await.0);
    }
}

#[tokio::test]
async fn after_compacted_deletions_everything_is_sent() {
    let network = Network::start_with("west", keep(Duration::from_millis(40))).await;
    let mut client = network.admin.neighbours();
    let numbers: Vec<_> = (0..100).map(|number| neighbour(number, 1)).collect();
    let written = write(&mut client, Apply, &numbers).await;
    let mut watcher = Watcher::start(client.clone(), "racks").await;
    watcher.until(written.revision).await;
    let Watcher { revision, table, merged, .. } = watcher;
    let half: Vec<_> = (0..50).map(gone).collect();
    write(&mut client, Delete, &half).await;
    let status = v1::GetFabricStatusRequest { group: "racks".into(), ..Default::default() };
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let group = loop {
        let status = client.get_fabric_status(status.clone()).await.unwrap().into_inner();
        let group = status.groups[0].clone();
        if group.tombstones == 0 {
            break group;
        }
        assert!(tokio::time::Instant::now() < deadline, "tombstones stay: {group:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(group.neighbours, 50);
    assert!(group.oldest_revision > revision);
    let resumed = Watcher::resume(client.clone(), "racks", revision, table, merged);
    let mut watcher = resumed.await.unwrap();
    watcher.until(group.revision).await;
    let sent =
        v1::NeighboursCompacted { oldest_revision: group.oldest_revision, unknown_revision: false };
    assert_eq!(watcher.compacted, [sent]);
    assert_eq!(watcher.present(), list(&mut client).await.0);
    // From a revision whose tombstones remain, nothing is sent again.
    let resumed = Watcher::resume(client.clone(), "racks", group.revision, table, Merged::new());
    let mut watcher = resumed.await.unwrap();
    let last = write(&mut client, Create, &[neighbour(0, 2)]).await;
    watcher.until(last.revision).await;
    assert_eq!((watcher.compacted.len(), watcher.seen.len()), (0, 1));
    let restarted = network.restart().await;
    let mut client = restarted.admin.neighbours();
    let status = client.get_fabric_status(status).await.unwrap().into_inner();
    assert!(status.groups[0].oldest_revision >= group.oldest_revision, "it is kept");
    assert_eq!((status.groups[0].neighbours, status.groups[0].tombstones), (51, 0));
}

/// Writers that create, move and delete as fast as they can, while watchers begin, fall behind and
/// come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_writers_hammer() {
    let small = |options: &mut Options| {
        // So small that a slow reader falls out of it.
        options.neighbours = NeighbourOptions { lane_bytes: 0, ..NeighbourOptions::default() };
        options.neighbours.keep_tombstones = Duration::from_secs(1);
    };
    let network = Network::start_with("west", small).await;
    let client = network.admin.neighbours();
    let writers = (0..4_u32).map(|writer| {
        let mut client = client.clone();
        tokio::spawn(async move {
            let mut last = 0;
            for round in 0..120_u32 {
                // All writers share some keys, and have more of them than a batch holds.
                let first = (round * 37 + writer * 211) % 4000;
                let records: Vec<_> = (first..first + 300)
                    .map(|number| match (number + round) % 5 {
                        0 => gone(number),
                        host => neighbour(number, u8::try_from(host + writer).unwrap()),
                    })
                    .collect();
                let packed = pack_all(&records).concat().into();
                let request = v1::WriteNeighboursRequest { packed, ..request(Apply, &[]) };
                let answer = client.write_neighbours(request).await.unwrap().into_inner();
                assert!(answer.revision >= last, "revisions go back");
                last = answer.revision;
            }
            last
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut watchers = Vec::new();
    for number in 0..6_u64 {
        // Each has a connection: on one of several watchers those that do not read hold up others.
        let admin = AdminClient::connect(network.store()).await.unwrap();
        let client = admin.neighbours();
        let mut watcher = Watcher::start(client.clone(), "racks").await;
        watchers.push(tokio::spawn(async move {
            // Some read at once, some late, some go away and come back.
            for round in 0..10 * number {
                watcher.next().await.unwrap();
                if number % 2 == 1 {
                    tokio::time::sleep(Duration::from_millis(3 * number)).await;
                }
                if number % 3 == 2 && round % 10 == 9 && watcher.revision > 0 {
                    let Watcher { revision, table, merged, .. } = watcher;
                    let resumed = Watcher::resume(client.clone(), "racks", revision, table, merged);
                    watcher = resumed.await.unwrap();
                }
            }
            watcher
        }));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut last = 0;
    for writer in writers {
        last = writer.await.unwrap().max(last);
    }
    let mut client = client;
    let (stored, _) = list(&mut client).await;
    assert!(stored.len() > 1000, "{}", stored.len());
    for watcher in watchers {
        let mut watcher = watcher.await.unwrap();
        watcher.until(last).await;
        assert_eq!(watcher.present(), stored);
    }
}

#[tokio::test]
async fn a_watcher_that_keeps_up_gets_every_change_once() {
    let network = Network::start("west").await;
    let mut client = network.admin.neighbours();
    let mut watcher = Watcher::start(client.clone(), "racks").await;
    watcher.next().await.unwrap();
    let mut written: HashMap<NeighbourKey, Vec<u64>> = HashMap::new();
    let mut last = 0;
    for round in 0..200_u32 {
        let record = neighbour(round % 7, u8::try_from(round % 250 + 1).unwrap());
        last = write(&mut client, Apply, &[record]).await.revision;
        written.entry(record.key).or_default().push(last);
    }
    watcher.until(last).await;
    assert_eq!(watcher.seen, written);
}

/// A reader that takes nothing costs no memory, and gets the outcome once it reads.
#[tokio::test]
async fn a_slow_watcher_gets_the_latest_state() {
    let network = Network::start_with("west", |options| options.neighbours.lane_bytes = 0).await;
    let mut client = network.admin.neighbours();
    write(&mut client, Apply, &[neighbour(0, 1)]).await;
    let mut watcher = Watcher::start(client.clone(), "racks").await;
    while watcher.revision == 0 {
        watcher.next().await.unwrap();
    }
    let mut last = 0;
    // Far more than lane, channel and connection hold.
    for round in 0..60_u32 {
        let host = u8::try_from(round + 2).unwrap();
        let records: Vec<_> = (0..5000).map(|number| neighbour(number, host)).collect();
        let mut bulk = Vec::new();
        for packed in pack_all(&records) {
            bulk.push(v1::WriteNeighboursRequest { packed: packed.into(), ..request(Apply, &[]) });
        }
        let answers = client.write_neighbours_in_bulk(tokio_stream::iter(bulk)).await.unwrap();
        let mut answers = answers.into_inner();
        while let Some(answer) = answers.message().await.unwrap() {
            last = answer.revision;
        }
    }
    watcher.until(last).await;
    assert_eq!(watcher.present(), list(&mut client).await.0);
    let sent: usize = watcher.seen.values().map(Vec::len).sum();
    assert!(sent < 60 * 5000 * 3 / 4, "it was sent nearly all there was: {sent}");
}

#[tokio::test]
async fn an_agent_reads_its_own_group_and_nothing_else() {
    let mut network = Network::start("west").await;
    let mut operator = network.admin.neighbours();
    let written = write(&mut operator, Apply, &[neighbour(1, 1)]).await;
    let member = agent(&mut network, "racks", "forwarder-1").await;
    let mut client = NeighboursClient::new(member.channel().await);
    let mut watcher = Watcher::start(client.clone(), "Racks").await;
    watcher.until(written.revision).await;
    assert_eq!(watcher.present(), list(&mut client).await.0);
    let refused = Watcher::resume(client.clone(), "other", 0, 0, Merged::new()).await;
    let refused = refused.err().unwrap();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(
        refused.message(),
        "the certificate is of an agent of the group racks; it may not read the group other"
    );
    let refused = client.write_neighbours(request(Apply, &[neighbour(2, 1)])).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let all = client.get_fabric_status(v1::GetFabricStatusRequest::default()).await.unwrap_err();
    assert_eq!(all.code(), Code::PermissionDenied);
    // A workload has no business here, whatever it is called.
    let member = network.member("fabric-racks", "a").await;
    let mut client = NeighboursClient::new(member.channel().await);
    let look = v1::GetNeighboursRequest { group: "racks".into(), keys: vec![] };
    let refused = client.get_neighbours(look).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("tollway token create --fabric GROUP"), "{refused}");
    // Its token is good for nothing else, and no other token for it.
    let token = network.token(Scope::FabricGroup("racks".into())).await;
    for service in ["fabric-other.tollway", "gateway.tollway", "stock"] {
        let service = network.own(service);
        assert!(enroll(network.address, &token, &service, "a").await.is_err(), "{service}");
    }
    let token = network.token(Scope::Any(v1::AnyWorkload {})).await;
    let service = network.own("fabric-racks.tollway");
    assert!(enroll(network.address, &token, &service, "a").await.is_err());
}

#[tokio::test]
async fn the_status_shows_which_agents_hold_a_revision() {
    let mut network = Network::start("west").await;
    let mut operator = network.admin.neighbours();
    let written = write(&mut operator, Apply, &[neighbour(1, 1)]).await;
    let held = v1::GetFabricStatusRequest {
        group: "racks".into(),
        held_revision: written.revision,
        wait_ms: 50,
    };
    let status = operator.get_fabric_status(held.clone()).await.unwrap().into_inner();
    assert!(status.is_held && status.groups[0].agents.is_empty());
    let member = agent(&mut network, "racks", "forwarder-1").await;
    let client = NeighboursClient::new(member.channel().await);
    let mut watcher = Watcher::start(client, "racks").await;
    watcher.until(written.revision).await;
    let status = operator.get_fabric_status(held.clone()).await.unwrap().into_inner();
    assert!(!status.is_held);
    let lagging = &status.groups[0].agents[0];
    assert_eq!((&*lagging.instance, lagging.is_connected), ("forwarder-1", true));
    assert!(lagging.lag_us >= 50_000, "{}", lagging.lag_us);
    assert_eq!((lagging.full_lists, lagging.resyncs), (1, 0));
    let waiting = v1::GetFabricStatusRequest { wait_ms: 20_000, ..held.clone() };
    let mut asking = operator.clone();
    let waiting = tokio::spawn(async move { asking.get_fabric_status(waiting).await });
    watcher.report(written.revision).await;
    let status = waiting.await.unwrap().unwrap().into_inner();
    assert!(status.is_held);
    let agent = &status.groups[0].agents[0];
    assert_eq!((agent.lag_us, agent.report.as_ref().unwrap().entries), (0, 1));
    drop(watcher);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let status = operator.get_fabric_status(held.clone()).await.unwrap().into_inner();
        if !status.groups[0].agents[0].is_connected {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "it is taken for connected");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn what_is_stored_is_bounded() {
    let tight = |options: &mut Options| {
        options.neighbours.rows = 3;
        options.neighbours.groups = 2;
    };
    let network = Network::start_with("west", tight).await;
    let mut client = network.admin.neighbours();
    let records: Vec<_> = (0..5).map(|number| neighbour(number, 1)).collect();
    let written = write(&mut client, Apply, &records).await;
    assert_eq!((written.changed, written.failures.len()), (3, 2));
    assert_eq!(written.failures[0].reason(), v1::NeighbourFailureReason::Excess);
    // What is there can be moved and deleted; a tombstone takes its location.
    let moved = write(&mut client, Apply, &[neighbour(0, 2)]).await;
    assert_eq!(moved.changed, 1);
    assert_eq!(write(&mut client, Delete, &[gone(0)]).await.changed, 1);
    assert_eq!(write(&mut client, Create, &[neighbour(4, 1)]).await.failures.len(), 1);
    assert_eq!(write(&mut client, Create, &[neighbour(0, 3)]).await.changed, 1);
    let other = |group: &str| v1::WriteNeighboursRequest {
        group: group.into(),
        ..request(Delete, &[gone(1)])
    };
    client.write_neighbours(other("second")).await.unwrap();
    let refused = client.write_neighbours(other("third")).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), "there are 2 groups already, which is the most; use one of them");
    let many = request(Apply, &vec![neighbour(1, 1); BATCH_RECORDS + 1]);
    let refused = client.write_neighbours(many).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn groups_are_tables_of_their_own() {
    let network = Network::start("west").await;
    let mut client = network.admin.neighbours();
    let racks = write(&mut client, Apply, &[neighbour(1, 1)]).await;
    let other = v1::WriteNeighboursRequest {
        group: "other".into(),
        ..request(Apply, &[neighbour(1, 2), neighbour(2, 2)])
    };
    let other = client.write_neighbours(other).await.unwrap().into_inner();
    assert!(other.revision > racks.revision);
    let (all, revision) = list(&mut client).await;
    assert_eq!(revision, racks.revision, "another group's transactions do not count");
    assert_eq!(all, [NeighbourRecord { revision: racks.revision, ..neighbour(1, 1) }]);
    let mut watcher = Watcher::start(client.clone(), "other").await;
    watcher.until(other.revision).await;
    assert_eq!(watcher.present().len(), 2);
    let network = network.restart().await;
    let (after, again) = list(&mut network.admin.neighbours()).await;
    assert_eq!((after, again), (all, revision));
}
