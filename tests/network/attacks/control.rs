//! One identity with the least token, at the control plane.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tollway_testkit::resident_bytes;
use tollway_tests::h2_attacker::{Aim, Wire};
use tollway_tests::h2_frames::{ACK, Frame, PING, frame, hello};
use tollway_tests::mesh::http::runtime;
use tollway_tests::new_options;
use tollway_wire::v1;
use tollway_wire::v1::host_request::Request as Step;
use tollway_wire::v1::placement_client::PlacementClient;
use tollway_wire::v1::register_request::Request as Announce;
use tollway_wire::v1::registry_client::RegistryClient;
use tollway_wire::v1::state_client::StateClient;
use tonic::transport::Channel;

use super::member::{Member, code, of_west};
use super::world::{Scene, World, token};
use super::{Attack, Extent, Found};

pub(crate) const ATTACKS: [Attack; 7] = [
    Attack::new("connections of one identity", "workload", connections)
        .in_scene(Scene::FewDescriptors),
    Attack::new("names that are followed", "workload", names),
    Attack::new("empty steps of placement", "workload", steps),
    Attack::new("a token used again", "thief of a token", tokens),
    Attack::new("a copied key", "thief of a key", keys),
    Attack::new("another workload's name and address", "workload", registrations),
    Attack::new("state of a namespace", "workload", state),
];

/// For how long an attacker waits for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(1);
/// Steps that are taken: those of docs/limits.md in the time of an attack, and what fits into the
/// windows of a connection.
const STEPS_MOST: u64 = 30_000;

/// An identity of the namespace `lowly`, from a token for just that.
pub(crate) fn evil(world: &World, instance: &str) -> Member {
    let token = token(&world.west, &["--app", "evil", "--namespace", "lowly"]);
    let evil = Member::enrol(world.control(), &token, "evil.lowly.west", instance);
    runtime().block_on(evil).unwrap()
}

/// Connections that are open and answer pings.
pub(crate) struct Crowd(Vec<Wire>);

impl Crowd {
    /// Opens `count`, for at most `within`; how many were opened.
    pub(crate) fn open(aim: &Aim, count: usize, within: Duration) -> (Self, usize) {
        let (began, mut crowd, mut opened) = (Instant::now(), Self(Vec::new()), 0);
        while opened < count && began.elapsed() < within {
            let Ok(mut wire) = Wire::open_within(aim, Some(HANDSHAKE)) else { continue };
            if wire.send(&hello()).is_ok() {
                crowd.0.push(wire);
            }
            opened += 1;
            if opened % 50 == 0 {
                crowd.answer_pings();
            }
        }
        (crowd, opened)
    }

    /// Answers for so long; how many stay.
    pub(crate) fn stay(&mut self, time: Duration) -> usize {
        let began = Instant::now();
        loop {
            self.answer_pings();
            if began.elapsed() >= time {
                return self.0.len();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn answer_pings(&mut self) {
        self.0.retain_mut(|wire| {
            let Ok(bytes) = wire.take() else { return false };
            let pings =
                Frame::all(&bytes).into_iter().filter(|came| came.kind == PING && came.flags == 0);
            pings.into_iter().all(|ping| wire.send(&frame(PING, ACK, 0, &ping.payload)).is_ok())
        });
    }
}

fn connections(world: &mut World, extent: &Extent) -> Found {
    let count = extent.of(1500);
    let (began, aim) = (Instant::now(), aim_of(&evil(world, "e-1")));
    let (mut crowd, opened) = Crowd::open(&aim, count, extent.time / 2);
    let stay = crowd.stay(extent.time.saturating_sub(began.elapsed()));
    let got = format!("{stay} stay");
    Found::new(format!("{opened} connections that answer pings"), got)
        .promise(stay <= 100, format!("{stay} of {opened} connections stay"))
        .holding(crowd)
}

fn aim_of(member: &Member) -> Aim {
    Aim { address: member.control, tls: Some(member.tls()) }
}

/// A stream that follows `count` names of its own, and how it ended if it did.
async fn follow(
    channel: Channel,
    stream: usize,
    count: usize,
) -> (mpsc::Sender<v1::WatchOwnersRequest>, tokio::task::JoinHandle<String>) {
    let (requests, outgoing) = mpsc::channel(8);
    let add = (0..count).map(|nth| format!("{:x<250}", format!("T{stream}_{nth}_"))).collect();
    requests.send(v1::WatchOwnersRequest { add, remove: Vec::new() }).await.unwrap();
    let reading = tokio::spawn(async move {
        let mut client = PlacementClient::new(channel);
        let mut owners = match client.watch_owners(ReceiverStream::new(outgoing)).await {
            Ok(owners) => owners.into_inner(),
            Err(status) => return code(&status),
        };
        loop {
            match owners.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return "end".to_owned(),
                Err(status) => return code(&status),
            }
        }
    });
    (requests, reading)
}

fn names(world: &mut World, extent: &Extent) -> Found {
    const NAMES: usize = 10_000;
    let streams = extent.of(60);
    let (evil, began) = (evil(world, "e-1"), Instant::now());
    let control = world.west.control.pid();
    let before = resident_bytes(control).unwrap();
    let runtime = runtime();
    let (open, codes, held) = runtime.block_on(async {
        let channel = evil.channel().await.unwrap();
        let mut held = Vec::new();
        for stream in 0..streams {
            held.push(follow(channel.clone(), stream, NAMES).await);
        }
        tokio::time::sleep(extent.time.saturating_sub(began.elapsed())).await;
        let mut codes = BTreeMap::<String, usize>::new();
        let mut open = 0;
        let mut senders = Vec::new();
        for (requests, reading) in held {
            if reading.is_finished() {
                *codes.entry(reading.await.unwrap()).or_default() += 1;
            } else {
                open += 1;
            }
            senders.push(requests);
        }
        (open, codes, senders)
    });
    let grown = resident_bytes(control).unwrap().saturating_sub(before) >> 20;
    let sent = format!("{streams} streams with {NAMES} names of 250 bytes each, on one connection");
    let got =
        format!("{open} streams stay, {}; the control plane grows by {grown} MiB", list(&codes));
    Found::new(sent, got)
        .promise(open <= 4, format!("{open} streams stay"))
        .holding((held, runtime))
}

/// `3 ERR_ONE, 1 ERR_OTHER`.
pub(crate) fn list(codes: &BTreeMap<String, usize>) -> String {
    if codes.is_empty() {
        return "none refused".to_owned();
    }
    let parts: Vec<_> = codes.iter().map(|(code, count)| format!("{count} {code}")).collect();
    parts.join(", ")
}

fn steps(world: &mut World, extent: &Extent) -> Found {
    let (evil, other) = (evil(world, "e-1"), evil(world, "e-2"));
    let (sent, took) = runtime().block_on(async {
        // Its own watchers are those that each step might wake.
        let channel = other.channel().await.unwrap();
        let _watching = [follow(channel.clone(), 0, 5_000).await, follow(channel, 1, 5_000).await];
        let (requests, outgoing) = mpsc::channel(64);
        let types = vec![v1::HeldType { actor_type: "Z".into(), grants: Vec::new() }];
        let enter = v1::Enter { life: 1, types, attempt: 1, shares_types: false };
        requests.send(v1::HostRequest { request: Some(Step::Enter(enter)) }).await.unwrap();
        let mut client = PlacementClient::new(evil.channel().await.unwrap());
        let mut answers = client.host(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
        tokio::spawn(async move { while let Ok(Some(_)) = answers.message().await {} });
        let back = v1::GivenBack { actor_type: "Z".into(), grants: Vec::new() };
        let step = v1::HostRequest { request: Some(Step::GivenBack(back)) };
        let (began, mut sent) = (Instant::now(), 0_u64);
        while let Some(left) = extent.time.checked_sub(began.elapsed()) {
            match tokio::time::timeout(left, requests.send(step.clone())).await {
                Ok(Ok(())) => sent += 1,
                Ok(Err(_)) | Err(_) => break,
            }
        }
        (sent, began.elapsed())
    });
    let seconds = took.as_secs_f64();
    let got = format!("{sent} are taken in {seconds:.0} s");
    let mut found = Found::new("empty steps, as fast as they are taken", got)
        .promise(sent < STEPS_MOST, format!("{sent} steps are taken"));
    found.cores = Some(0.3);
    found
}

fn tokens(world: &mut World, _: &Extent) -> Found {
    let once = new_options(&["--uses", "1"]);
    let made = [&["token", "create", "--app", "evil", "--namespace", "lowly"], &once[..]].concat();
    let token = world.west.done(&made, "");
    let mut outcomes = BTreeMap::<String, usize>::new();
    let mut issued = 0;
    runtime().block_on(async {
        for (service, instance) in [
            ("evil.lowly.west", "e-1"),
            ("evil.lowly.west", "e-2"),
            ("evil.lowly.west", "e-1"),
            ("web.default.west", "e-1"),
            ("evil.default.west", "e-1"),
        ] {
            match Member::enrol(world.control(), &token, service, instance).await {
                Ok(_) => issued += 1,
                Err(status) => *outcomes.entry(code(&status)).or_default() += 1,
            }
        }
    });
    let got = format!("{issued} issued, {}", list(&outcomes));
    Found::new("5 enrolments with one token, under 3 names", got)
        .promise(issued == 1, format!("{issued} certificates"))
}

fn keys(world: &mut World, _: &Extent) -> Found {
    let (issued, outcomes, other) = runtime().block_on(async {
        let token = token(&world.west, &["--app", "web"]);
        let owner =
            Member::enrol(world.control(), &token, "web.default.west", "w-9").await.unwrap();
        let mut thief = owner.clone();
        let renewed = owner.renew(None).await.unwrap();
        // The owner uses what it got.
        renewed.renew(None).await.unwrap();
        let (mut outcomes, mut issued) = (BTreeMap::<String, usize>::new(), 0);
        for _ in 0..5 {
            match thief.renew(None).await {
                Ok(renewed) => {
                    issued += 1;
                    thief = renewed;
                }
                Err(status) => *outcomes.entry(code(&status)).or_default() += 1,
            }
        }
        let other = thief.renew(Some(&of_west("stock"))).await.err().map(|status| code(&status));
        (issued, outcomes, other)
    });
    let as_other = other.clone().unwrap_or_else(|| "issued".to_owned());
    let got = format!("{issued} issued, {}; as another app {as_other}", list(&outcomes));
    Found::new("5 renewals with the key that its owner had before", got)
        .promise(issued == 0, format!("{issued} certificates by a copied key"))
        .promise(other.is_some(), "a certificate of another app")
}

fn registrations(world: &mut World, _: &Extent) -> Found {
    let evil = evil(world, "e-1");
    let cases = [
        ("another app's name", "stock", "default", [127, 0, 0, 1]),
        ("an address inside", "evil", "lowly", [10, 1, 2, 3]),
        ("the metadata service", "evil", "lowly", [169, 254, 169, 254]),
    ];
    let mut outcomes = Vec::new();
    let mut taken = 0;
    for (what, app, namespace, ip) in cases {
        let name = |word: &str| word.to_owned();
        let workload = v1::Workload {
            service: Some(v1::ServiceName {
                app: name(app),
                namespace: name(namespace),
                network: name("west"),
            }),
            instance: name("e-1"),
            address: Some(std::net::SocketAddr::from((ip, 80)).into()),
            protocol: v1::AppProtocol::Http.into(),
            ready: true,
            locality: None,
        };
        let outcome = runtime().block_on(async {
            let (requests, outgoing) = mpsc::channel(1);
            let request = Some(Announce::Workload(workload));
            requests.send(v1::RegisterRequest { request }).await.unwrap();
            let mut client = RegistryClient::new(evil.channel().await.unwrap());
            let mut answers = client.register(ReceiverStream::new(outgoing)).await?.into_inner();
            answers.message().await
        });
        let text = match outcome {
            Err(status) => code(&status),
            Ok(_) => {
                taken += 1;
                "registered".to_owned()
            }
        };
        outcomes.push(format!("{what}: {text}"));
    }
    Found::new("3 registrations", outcomes.join("; "))
        .promise(taken == 0, format!("{taken} registrations are taken"))
}

fn state(world: &mut World, extent: &Extent) -> Found {
    const PIECE: usize = 1 << 20;
    let least = token(&world.west, &["--namespace", "lowly"]);
    let control = world.control();
    let victim = async |key: &str| {
        let name = "victim.honest.west";
        let victim = Member::enrol(control, &world.any_token, name, "v-1").await.unwrap();
        write(&victim, key, 100).await
    };
    let (filled, refused, after) = runtime().block_on(async {
        let began = Instant::now();
        victim("before").await.unwrap();
        let (mut filled, mut refused) = (0, BTreeMap::<String, usize>::new());
        'apps: for app in 0..5 {
            let name = format!("filler{app}.lowly.west");
            let filler = Member::enrol(control, &least, &name, "f-1").await.unwrap();
            for piece in 0..extent.of(64) {
                if began.elapsed() > extent.time {
                    break 'apps;
                }
                match write(&filler, &format!("k{piece}"), PIECE).await {
                    Ok(()) => filled += 1,
                    Err(why) => {
                        *refused.entry(why).or_default() += 1;
                        break;
                    }
                }
            }
        }
        let filler = Member::enrol(control, &least, "filler9.lowly.west", "f-1").await.unwrap();
        let (mut size, mut number) = (PIECE, 0);
        while size > 8 && began.elapsed() < extent.time * 2 {
            match write(&filler, &format!("small{number}"), size).await {
                Ok(()) => filled += usize::from(size == PIECE),
                Err(_) => size /= 2,
            }
            number += 1;
        }
        (filled, refused, victim("after").await)
    });
    let stores = after.as_ref().map_or_else(Clone::clone, |()| "stores".to_owned());
    let got = format!("{filled} MiB are stored, {}; another namespace {stores}", list(&refused));
    let mut found = Found::new(format!("{} MiB and then smaller pieces", 5 * extent.of(64)), got)
        .promise(after.is_ok(), "another namespace stores nothing");
    // What it may keep, and its copy in the store's memory while it is written.
    found.growth = 320 << 20;
    found
}

async fn write(member: &Member, key: &str, bytes: usize) -> Result<(), String> {
    let channel = member.channel().await.map_err(|status| code(&status))?;
    let change = v1::StateChange {
        key: key.to_owned(),
        value: Some(vec![b'x'; bytes]),
        ..Default::default()
    };
    let request = v1::WriteStateRequest { changes: vec![change], fence: None };
    let answer = StateClient::new(channel).write_state(request).await;
    match answer.map_err(|status| code(&status))?.into_inner().refusal {
        None => Ok(()),
        Some(v1::write_state_response::Refusal::Excess(excess)) => {
            Err(format!("over the quota of {}", excess.what))
        }
        Some(other) => Err(format!("{other:?}")),
    }
}
