//! Actors of other apps: called through a deputy, hosted by an intruder, claimed after a restart.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hyper::HeaderMap;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tollway_identity::{Expected, client_config};
use tollway_model::TrustDomain;
use tollway_testkit::{TlsRelay, retry_until};
use tollway_tests::is_former;
use tollway_tests::mesh::http::{call, get, runtime};
use tollway_tests::mesh::{AppProtocol, PATIENCE};
use tollway_tests::network::label;
use tollway_tests::scripted_app::{App, Reply, Script, Then};
use tollway_wire::v1;
use tollway_wire::v1::host_request::Request as Step;
use tollway_wire::v1::host_response::Response as Answer;
use tollway_wire::v1::placement_client::PlacementClient;
use tollway_wire::v1::reminders_client::RemindersClient;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::control::list;
use super::member::{Member, code, of_west};
use super::world::{World, token};
use super::{Attack, Extent, Found};

pub(crate) const ATTACKS: [Attack; 4] = [
    Attack::new("another app's actors through a deputy", "workload", deputy).on_actors(),
    Attack::new("host of another app's type", "workload", intruder).on_actors(),
    Attack::new("many lives of one instance", "workload", lives).on_actors(),
    Attack {
        restarts_control: true,
        ..Attack::new("a claim after a restart", "workload", claim).on_actors()
    },
];

const CLOSED: &str = "apiVersion: tollway.dev/v1\nkind: Policy\nmetadata:\n  name: cart\nspec:\n  \
                      target: {app: cart}\n  allow: [{from: [web]}]\n";
/// Reminders of the type that is attacked.
const REMINDERS: usize = 40;
const TYPE: &str = "Echo";

/// How `caller` reaches the inbound listener of `callee`'s sidecar, by plain text.
pub(crate) fn relay(
    world: &World,
    caller: &str,
    callee: &str,
    inbound: std::net::SocketAddr,
) -> TlsRelay {
    let own = token(&world.west, &["--app", caller]);
    let name = format!("{caller}.default.west");
    let member = Member::enrol(world.control(), &own, &name, "e-1");
    let member = runtime().block_on(member).unwrap();
    let callee = of_west(callee);
    let expected = Expected::service(&callee, &TrustDomain::default_for(&label("west")));
    let config = client_config(&member.credentials, &expected, &[b"http/1.1"]).unwrap();
    TlsRelay::start(inbound, &callee.dns_san(), config).unwrap()
}

/// The fields by which a sidecar calls actors of another one, of any host and of this one.
pub(crate) fn actor_fields() -> [&'static [(&'static str, &'static str)]; 2] {
    if is_former() {
        [&[("x-tollway-actor", "1"), ("tollway-actor-anywhere", "1")], &[("x-tollway-actor", "1")]]
    } else {
        [&[("x-tollway-actor", "lookup")], &[("x-tollway-actor", "host")]]
    }
}

fn deputy(world: &mut World, extent: &Extent) -> Found {
    let config = r#"{"entities":["Cart"]}"#;
    let types = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{config}", config.len());
    let reply = Reply { bytes: types.into_bytes(), then: Then::GoOn };
    let app = App::start(Script::from([("/dapr/config", reply)]));
    let cart = world.west.sidecar_of("cart", app.address.port(), AppProtocol::Http);
    let evil = world.west.sidecar("evil", &[]);
    let hosted = retry_until(PATIENCE, "an actor that answers", || {
        let answer = get(cart.http(), "/v1.0/actors/Cart/0/method/hello");
        answer.starts_with("HTTP/1.1 200").then_some(())
    });
    hosted.unwrap();
    let deputy = world.web.process.port("inbound").unwrap();
    let relay = relay(world, "evil", "web", deputy);
    let reminder = "/v1.0/actors/Cart/anna/reminders/pay";
    let due = r#"{"dueTime":"1h","data":"4111-SECRET"}"#;
    let runtime = runtime();
    let (status, ..) = runtime.block_on(call(cart.http(), "POST", reminder, &[], due));
    assert!(status.is_success(), "the app's own reminder");
    world.west.apply(CLOSED);
    app.forget();
    let (mut outcomes, mut sent, mut secrets) = (BTreeMap::<String, usize>::new(), 0, 0);
    let began = Instant::now();
    while sent == 0 || began.elapsed() < extent.time {
        let mut asks = vec![
            (evil.http(), "POST", "/v1.0/invoke/cart.default/method/x", &[][..]),
            (evil.http(), "POST", "/v1.0/actors/Cart@cart.default.west/anna/method/Add", &[][..]),
            (evil.http(), "POST", "/v1.0/actors/Cart@web.default.west/anna/method/Add", &[][..]),
            (evil.http(), "POST", "/v1.0/actors/Cart/anna/method/Add", &[][..]),
        ];
        for fields in actor_fields() {
            for (method, path) in [
                ("PUT", "/v1.0/actors/Cart/anna/method/Add"),
                ("GET", reminder),
                ("GET", "/v1.0/actors/Cart/anna/reminders"),
                ("PUT", "/v1.0/actors/Cart/anna/reminders/evil"),
                ("DELETE", reminder),
            ] {
                asks.push((relay.address(), method, path, fields));
            }
        }
        for (to, method, path, fields) in asks {
            let body =
                if method == "GET" || method == "DELETE" { "" } else { r#"{"dueTime":"0s"}"# };
            let (status, head, text) = runtime.block_on(call(to, method, path, fields, body));
            *outcomes.entry(outcome(status.as_u16(), &head, &text)).or_default() += 1;
            secrets += usize::from(text.contains("4111-SECRET"));
            sent += 1;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    // Work of actors and plain calls alike; what the sidecar asks for itself is none.
    let arrived = app.times_sent(b"/method/Add")
        + app.times_sent(b"remind/evil")
        + app.times_sent(b"POST /x ");
    let (status, ..) = runtime.block_on(call(cart.http(), "GET", reminder, &[], ""));
    let kept = status.as_u16() == 200;
    let got = format!(
        "{}; {arrived} reach the app, {secrets} reminders read{}",
        list(&outcomes),
        if kept { "" } else { ", a reminder deleted" }
    );
    Found::new(format!("{sent} calls of methods and reminders, directly and through web"), got)
        .promise(arrived == 0, format!("{arrived} calls reach the app"))
        .promise(secrets == 0, format!("{secrets} reminders are read"))
        .promise(kept, "a reminder is deleted")
        .holding((cart, evil))
}

/// The code of an answer that is a refusal, or its status.
pub(crate) fn outcome(status: u16, head: &HeaderMap, body: &str) -> String {
    let in_head = head.get("x-tollway-error").and_then(|value| value.to_str().ok());
    let envelope = serde_json::from_str::<serde_json::Value>(body).unwrap_or_default();
    let in_body = envelope["errorCode"].as_str();
    // How sidecars answer each other where an actor is not at this one.
    let is_elsewhere = status == 503 && body.is_empty();
    let in_words = is_elsewhere.then_some("not hosted there");
    in_head.or(in_body).or(in_words).map_or_else(|| status.to_string(), str::to_owned)
}

/// An identity of the namespace that is no host of the type.
fn other_app(world: &World) -> Member {
    let token = token(&world.west, &["--app", "intruder"]);
    let member = Member::enrol(world.control(), &token, "intruder.default.west", "i-1");
    runtime().block_on(member).unwrap()
}

struct Host {
    requests: mpsc::Sender<v1::HostRequest>,
    answers: Streaming<v1::HostResponse>,
    granted: Vec<v1::Grant>,
    /// Shards that it claimed and was asked to give back.
    asked_back: usize,
    refused: Vec<String>,
}

impl Host {
    async fn enter(channel: Channel, life: u64, grants: Vec<v1::Grant>) -> Result<Self, Status> {
        let (requests, outgoing) = mpsc::channel(64);
        let types = vec![v1::HeldType { actor_type: TYPE.into(), grants }];
        let enter = Step::Enter(v1::Enter { life, types, attempt: 1, shares_types: false });
        requests.send(v1::HostRequest { request: Some(enter) }).await.unwrap();
        let answers = PlacementClient::new(channel).host(ReceiverStream::new(outgoing)).await?;
        let answers = answers.into_inner();
        Ok(Self { requests, answers, granted: Vec::new(), asked_back: 0, refused: Vec::new() })
    }

    /// Reads for so long and keeps its lease; how the stream ended, if it did.
    async fn read(&mut self, time: Duration) -> Option<Status> {
        let deadline = tokio::time::Instant::now() + time;
        let mut renewal = tokio::time::interval(Duration::from_millis(800));
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => return None,
                _ = renewal.tick() => {
                    let request = Some(Step::KeepLease(v1::KeepLease {}));
                    let _ = self.requests.try_send(v1::HostRequest { request });
                }
                answer = self.answers.message() => match answer {
                    Ok(Some(answer)) => self.note(answer.response),
                    Ok(None) => return Some(Status::ok("end")),
                    Err(status) => return Some(status),
                },
            }
        }
    }

    fn note(&mut self, answer: Option<Answer>) {
        match answer {
            Some(Answer::Entered(entered)) => {
                self.refused = entered.refused.into_iter().map(|refused| refused.code).collect();
            }
            Some(Answer::Granted(granted)) => self.granted.extend(granted.grant),
            Some(Answer::GiveBack(back)) => self.asked_back += ones(&back.shards),
            _ => {}
        }
    }

    fn shards(&self) -> usize {
        self.granted.iter().map(|grant| ones(&grant.shards)).sum()
    }
}

fn ones(shards: &[u8]) -> usize {
    shards.iter().map(|byte| byte.count_ones() as usize).sum()
}

/// How many reminders it reads of these shards.
async fn read_reminders(channel: Channel, life: u64, grants: Vec<v1::Grant>) -> usize {
    let request = v1::ListRemindersRequest { life, actor_type: TYPE.into(), grants };
    let Ok(pages) = RemindersClient::new(channel).list_reminders(request).await else { return 0 };
    let (mut pages, mut read) = (pages.into_inner(), 0);
    while let Ok(Some(page)) = pages.message().await {
        read += page.reminders.len();
    }
    read
}

/// Every shard, under an epoch.
fn everything(epoch: u64) -> v1::Grant {
    v1::Grant { epoch, shards: vec![0xff; 128] }
}

fn register_reminders(world: &World) {
    let runtime = runtime();
    for id in 0..REMINDERS {
        let path = format!("/v1.0/actors/{TYPE}/u{id}/reminders/pay");
        let body = r#"{"dueTime":"1h","data":"4111-SECRET"}"#;
        let (status, _, text) =
            runtime.block_on(call(world.stock.http(), "POST", &path, &[], body));
        assert!(status.is_success(), "{text}");
    }
}

fn intruder(world: &mut World, extent: &Extent) -> Found {
    register_reminders(world);
    let member = other_app(world);
    runtime().block_on(async {
        let channel = member.channel().await.unwrap();
        let mut host = Host::enter(channel.clone(), 1, Vec::new()).await.unwrap();
        let ended = host.read(extent.time).await;
        let mut grants = host.granted.clone();
        if grants.is_empty() {
            grants.push(everything(1));
        }
        let read = read_reminders(channel, 1, grants).await;
        let shards = host.shards();
        let refused = ended.map(|status| code(&status)).into_iter().chain(host.refused);
        let refused: Vec<_> = refused.collect();
        let got = format!(
            "{}; {shards} of 1024 shards, {read} of {REMINDERS} reminders",
            if refused.is_empty() { "entered".to_owned() } else { refused.join(", ") }
        );
        Found::new("it enters as a host of the type and asks for its reminders", got)
            .promise(shards == 0, format!("{shards} shards are granted"))
            .promise(read == 0, format!("{read} reminders are read"))
    })
}

fn lives(world: &mut World, extent: &Extent) -> Found {
    const PER_CONNECTION: usize = 60;
    let count = extent.of(1_100);
    let member = other_app(world);
    runtime().block_on(async {
        let (mut tasks, mut entered) = (tokio::task::JoinSet::new(), 0);
        let began = Instant::now();
        let mut channel = member.channel().await.ok();
        for life in 0..count {
            if life % PER_CONNECTION == PER_CONNECTION - 1 {
                channel = member.channel().await.ok();
            }
            let Some(channel) = channel.clone() else { continue };
            let left = extent.time.saturating_sub(began.elapsed());
            entered += 1;
            tasks.spawn(async move {
                let life = 5_000 + u64::try_from(life).unwrap();
                match Host::enter(channel, life, Vec::new()).await {
                    Ok(mut host) => {
                        let ended = host.read(left).await.map(|status| code(&status));
                        let refused = host.refused.first().cloned();
                        (host.shards(), ended.or(refused).unwrap_or_else(|| "hosts".to_owned()))
                    }
                    Err(status) => (0, code(&status)),
                }
            });
        }
        let (mut shards, mut granted, mut outcomes) = (0, 0, BTreeMap::<String, usize>::new());
        while let Some(ended) = tasks.join_next().await {
            let (own, outcome) = ended.unwrap();
            shards += own;
            granted += usize::from(own > 0);
            *outcomes.entry(outcome).or_default() += 1;
        }
        let got = format!("{}; {granted} are granted {shards} shards", list(&outcomes));
        Found::new(format!("{entered} lives of one instance enter"), got)
            .promise(shards == 0, format!("{shards} shards are granted"))
    })
}

fn claim(world: &mut World, extent: &Extent) -> Found {
    register_reminders(world);
    let member = other_app(world);
    world.west.control.kill().unwrap();
    world.west.restart_control();
    runtime().block_on(async {
        let (mut asked_back, mut read, mut refused) = (0, 0, BTreeMap::<String, usize>::new());
        let began = Instant::now();
        let mut claims = 0;
        let mut life = 99;
        while claims == 0 || began.elapsed() < extent.time / 2 {
            let Ok(channel) = member.channel().await else { continue };
            for epoch in [1, 1 << 40] {
                life += 1;
                claims += 1;
                let claimed = everything(epoch);
                let entering = Host::enter(channel.clone(), life, vec![claimed.clone()]).await;
                let outcome = match entering {
                    Ok(mut host) => {
                        let ended = host.read(Duration::from_millis(300)).await;
                        asked_back += usize::from(host.asked_back == 1024);
                        let ended = ended.map(|status| code(&status));
                        let word = ended.or_else(|| host.refused.first().cloned());
                        let own = read_reminders(channel.clone(), life, vec![claimed]).await;
                        read = read.max(own);
                        word.unwrap_or_else(|| "entered".to_owned())
                    }
                    Err(status) => code(&status),
                };
                *refused.entry(outcome).or_default() += 1;
            }
        }
        let got = format!(
            "{}; of {claims} claims {asked_back} are asked back whole, {read} of {REMINDERS} \
             reminders",
            list(&refused)
        );
        Found::new(format!("{claims} claims of all 1024 shards, first after a restart"), got)
            .promise(read == 0, format!("{read} reminders are read"))
            .promise(!refused.contains_key("entered"), "it enters as a host")
    })
}
