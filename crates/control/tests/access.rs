//! Every method of every service of the control plane, called as every kind of caller, and held to the
//! table in docs/security.md. A method without a row there fails, and so does a row without a method.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use support::host::{Answer, Host, Step, enter};
use support::{Joined, Member, Network, PATIENCE, Registration, bootstrap, enroll, subscribed};
use tokio_stream::StreamExt as _;
use tollway_identity::{
    Authority, AuthorityPem, Credentials, Expected, KeyPair, SystemRequest, client_config,
};
use tollway_model::{Instance, NetworkName, ServiceName, TrustDomain};
use tollway_store::{Limits, Store};
use tollway_testkit::table;
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;
use tollway_wire::v1::register_request::Request as Announce;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// A part of what belongs to `cart` alone, or to its namespace.
const MARK: &str = "mark-of-cart";
/// For how long an answer that is to lack [`MARK`] is read.
const WITHOUT_MARK: Duration = Duration::from_millis(300);

/// The columns of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Anonymous,
    Itself,
    OtherApp,
    OtherNamespace,
    OtherNetwork,
    Gateway,
    Agent,
    JoinedControl,
    Operator,
}

impl Kind {
    const ALL: [(Self, &str); 9] = [
        (Self::Anonymous, "anonymous"),
        (Self::Itself, "the workload"),
        (Self::OtherApp, "another app"),
        (Self::OtherNamespace, "another namespace"),
        (Self::OtherNetwork, "another network"),
        (Self::Gateway, "gateway"),
        (Self::Agent, "agent"),
        (Self::JoinedControl, "joined control plane"),
        (Self::Operator, "operator"),
    ];
}

/// A caller: its connection, and the name that it would call its own.
struct Caller {
    /// `None` when the control plane ends its connections.
    channel: Option<Channel>,
    service: ServiceName,
    instance: String,
}

/// What a request is about.
struct Subject<'a> {
    service: &'a ServiceName,
    instance: &'a str,
    /// A join token that is good for it, or nothing.
    token: &'a str,
    /// What the host of `cart` holds.
    host: &'a Host,
}

/// One use of a method.
struct Ask {
    /// The words of its row.
    what: &'static str,
    /// Its messages.
    messages: fn(&Subject<'_>) -> Vec<Vec<u8>>,
    /// Whether they name a workload, a type or a group that may be another's.
    names: bool,
    /// The code that shows that it was carried out, or that only its content was refused.
    done: Code,
    /// Whether [`Subject::token`] is part of them.
    takes_token: bool,
    /// What an answer has that shows more than the caller's own.
    mark: &'static str,
}

impl Ask {
    const fn of(what: &'static str, messages: fn(&Subject<'_>) -> Vec<Vec<u8>>) -> Self {
        Self { what, messages, names: false, done: Code::Ok, takes_token: false, mark: MARK }
    }

    const fn naming(what: &'static str, messages: fn(&Subject<'_>) -> Vec<Vec<u8>>) -> Self {
        Self { names: true, ..Self::of(what, messages) }
    }

    const fn with_token(self) -> Self {
        Self { takes_token: true, ..self }
    }

    /// Of the operator, with an empty request.
    const fn empty(done: Code) -> Self {
        Self { done, ..Self::of("the operator's commands", |_| vec![Vec::new()]) }
    }
}

/// The uses of a method that are tried; empty for one that this test does not know.
fn asks(method: &str) -> Vec<Ask> {
    match method {
        "Identity.Issue" => vec![
            Ask::naming("a certificate", |of| {
                let csr = KeyPair::generate().unwrap().csr_der().unwrap();
                one(v1::IssueRequest {
                    csr,
                    service: Some(of.service.into()),
                    instance: of.instance.to_owned(),
                    token: of.token.to_owned(),
                    ttl_s: 0,
                    pod_token: String::new(),
                })
            })
            .with_token(),
        ],
        "Identity.Check" => vec![
            Ask::of("whether a token is good", |of| {
                one(v1::CheckRequest { token: of.token.to_owned(), ..v1::CheckRequest::default() })
            })
            .with_token(),
        ],
        "Registry.Register" => vec![
            Ask::naming("a workload", |of| {
                let workload = v1::Workload {
                    service: Some(of.service.into()),
                    instance: of.instance.to_owned(),
                    address: Some(here()),
                    protocol: v1::AppProtocol::Http.into(),
                    ready: true,
                    locality: None,
                };
                one(v1::RegisterRequest { request: Some(Announce::Workload(workload)) })
            }),
            Ask::of("a gateway", |of| {
                let (outside, inside) = (vec![here()], vec![here()]);
                let instance = of.instance.to_owned();
                let gateway = v1::Gateway { instance, outside, inside, ..Default::default() };
                one(v1::RegisterRequest { request: Some(Announce::Gateway(gateway)) })
            }),
        ],
        "Discovery.Watch" => vec![
            Ask::of("services by name", |_| one(watch_request(subscribed(0, &["cart"])))),
            Ask::of("the whole network", |_| {
                let scope = v1::open::Scope::Network.into();
                one(watch_request(v1::Open { scope, ..v1::Open::default() }))
            }),
        ],
        "Placement.Host" => vec![Ask::naming("an actor type of its namespace", |of| {
            let held = v1::HeldType { actor_type: type_of(of.service), grants: Vec::new() };
            let enter = v1::Enter { life: 77, types: vec![held], attempt: 0, shares_types: false };
            one(v1::HostRequest { request: Some(Step::Enter(enter)) })
        })],
        "Placement.WatchOwners" => vec![Ask::of("hosts of an actor type", |_| {
            one(v1::WatchOwnersRequest { add: vec!["cart".into()], remove: Vec::new() })
        })],
        "Reminders.WriteReminders" => vec![Ask::of("reminders of an actor type", |of| {
            one(v1::WriteRemindersRequest { life: of.host.life, changes: Vec::new() })
        })],
        "Reminders.ListReminders" => vec![Ask::of("reminders of an actor type", |of| {
            let (life, actor_type) = (of.host.life, "cart".to_owned());
            let grants = tollway_wire::grants(&of.host.held);
            one(v1::ListRemindersRequest { life, actor_type, grants })
        })],
        "State.ReadState" => {
            vec![Ask::of("state", |_| one(v1::ReadStateRequest { keys: vec!["order".into()] }))]
        }
        "State.WriteState" => vec![Ask::of("state", |of| one(state_of(of.instance)))],
        "Neighbours.GetNeighbours" => vec![Ask::naming("neighbours of a group", |of| {
            one(v1::GetNeighboursRequest { group: group_of(of.service), keys: Vec::new() })
        })],
        "Neighbours.ListNeighbours" => vec![Ask::naming("neighbours of a group", |of| {
            let group = group_of(of.service);
            one(v1::ListNeighboursRequest { group, ..Default::default() })
        })],
        "Neighbours.WatchNeighbours" => vec![Ask::naming("neighbours of a group", |of| {
            let start =
                v1::WatchNeighboursStart { group: group_of(of.service), ..Default::default() };
            let request = Some(v1::watch_neighbours_request::Request::Start(start));
            one(v1::WatchNeighboursRequest { request })
        })],
        "Neighbours.GetFabricStatus" => vec![Ask::naming("the state of a group", |of| {
            one(v1::GetFabricStatusRequest { group: group_of(of.service), ..Default::default() })
        })],
        "Neighbours.WriteNeighbours" | "Neighbours.WriteNeighboursInBulk" => {
            vec![Ask::of("neighbours", |_| {
                let operation = v1::NeighbourOperation::Apply.into();
                let group = "racks".to_owned();
                one(v1::WriteNeighboursRequest { group, operation, ..Default::default() })
            })]
        }
        "Peering.Join" => vec![Ask { what: "to be joined", ..Ask::empty(Code::InvalidArgument) }],
        "Peering.Follow" => vec![Ask {
            mark: "cart",
            ..Ask::of("services of this network", |_| {
                let open = v1::FollowOpen { revision: 0 };
                let request = Some(v1::follow_request::Request::Open(open));
                one(v1::FollowRequest { request })
            })
        }],
        "Admin.Status"
        | "Admin.ListServices"
        | "Admin.ListGateways"
        | "Admin.ListJoins"
        | "Admin.ApplyObjects"
        | "Admin.DeleteObjects"
        | "Admin.ListActorTypes"
        | "Admin.ListState"
        | "Admin.ListActorReminders"
        | "Admin.ExportJoin"
        | "Admin.ListTokens"
        | "Admin.ListIdentities"
        | "Admin.ListRevocations" => vec![Ask::empty(Code::Ok)],
        "Admin.CreateToken"
        | "Admin.ListObjects"
        | "Admin.AcceptJoin"
        | "Admin.RemoveJoin"
        | "Admin.AllowActorType"
        | "Admin.ReleaseActorType"
        | "Admin.RevokeIdentity"
        | "Admin.RestoreIdentity"
        | "Admin.RemoveState"
        | "Admin.RemoveActorReminders" => vec![Ask::empty(Code::InvalidArgument)],
        "Admin.RevokeToken" => vec![Ask::empty(Code::NotFound)],
        _ => Vec::new(),
    }
}

fn one(message: impl Message) -> Vec<Vec<u8>> {
    vec![message.encode_to_vec()]
}

fn watch_request(open: v1::Open) -> v1::WatchRequest {
    v1::WatchRequest { request: Some(v1::watch_request::Request::Open(open)) }
}

fn here() -> v1::Address {
    std::net::SocketAddr::from(([127, 0, 0, 1], 9)).into()
}

fn state_of(value: &str) -> v1::WriteStateRequest {
    let change = v1::StateChange {
        key: "order".into(),
        value: Some(value.as_bytes().to_vec()),
        ..Default::default()
    };
    v1::WriteStateRequest { changes: vec![change], fence: None }
}

/// The actor type that a service would offer.
fn type_of(service: &ServiceName) -> String {
    service.app.as_str().to_owned()
}

/// The group of an agent; for other callers that of the fabric's only agent here.
fn group_of(service: &ServiceName) -> String {
    let app = service.app.as_str();
    app.strip_prefix("fabric-").unwrap_or("others").to_owned()
}

/// What was seen of one call.
struct Seen {
    code: Code,
    text: String,
    is_marked: bool,
}

/// Calls a method with messages as they are, and reads what comes: until there is the mark if it is to
/// come, and for a while if not.
async fn call(
    caller: &Caller,
    method: &str,
    messages: Vec<Vec<u8>>,
    mark: &str,
    is_mark_expected: bool,
) -> Seen {
    let Some(channel) = &caller.channel else {
        return Seen {
            code: Code::Unauthenticated,
            text: "no connection".into(),
            is_marked: false,
        };
    };
    let path = format!("/tollway.v1.{}", method.replace('.', "/"));
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let (requests, outgoing) = tokio::sync::mpsc::channel(8);
    for message in messages {
        requests.send(Bytes::from(message)).await.unwrap();
    }
    // The requests of a stream go on; a call with one request ends with it.
    let is_stream = streaming_methods().contains(method);
    let requests = is_stream.then_some(requests);
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
    let work = async {
        let answer = client.streaming(Request::new(outgoing), path.parse().unwrap(), Raw).await?;
        let mut answers = answer.into_inner();
        let first = answers.next().await.transpose()?;
        if let Some(refused) = first.as_ref().and_then(|bytes| refused_type(method, bytes)) {
            return Err(Status::permission_denied(refused.message));
        }
        let is_marked = first.as_ref().is_some_and(|bytes| has_mark(bytes, mark));
        Ok::<_, Status>((answers, is_marked))
    };
    let first = tokio::time::timeout(PATIENCE, work).await;
    let (mut answers, mut is_marked) = match first {
        Ok(Ok(first)) => first,
        Ok(Err(status)) => {
            let text = status.message().to_owned();
            return Seen { code: status.code(), text, is_marked: false };
        }
        Err(_) => {
            return Seen { code: Code::DeadlineExceeded, text: "silence".into(), is_marked: false };
        }
    };
    let within = if is_mark_expected { PATIENCE } else { WITHOUT_MARK };
    let rest = async {
        while !is_marked && let Some(Ok(bytes)) = answers.next().await {
            is_marked = has_mark(&bytes, mark);
        }
    };
    let _ = tokio::time::timeout(within, rest).await;
    drop(requests);
    Seen { code: Code::Ok, text: String::new(), is_marked }
}

/// The type that a host may not host: it is a part of the answer, since other types of the host go on.
fn refused_type(method: &str, answer: &[u8]) -> Option<v1::RefusedType> {
    if method != "Placement.Host" {
        return None;
    }
    match v1::HostResponse::decode(answer).ok()?.response? {
        Answer::Entered(entered) => entered.refused.into_iter().next(),
        Answer::LeaseKept(_) | Answer::Granted(_) | Answer::GiveBack(_) | Answer::Left(_) => None,
    }
}

fn has_mark(bytes: &[u8], mark: &str) -> bool {
    bytes.windows(mark.len()).any(|part| part == mark.as_bytes())
}

/// Whether a call was refused because of its caller.
fn is_refused(method: &str, seen: &Seen) -> bool {
    // Reminders are for hosts: others are in no condition to use them.
    let not_a_host = method.starts_with("Reminders.") && seen.code == Code::FailedPrecondition;
    let no_token =
        matches!(method, "Identity.Check" | "Peering.Join") && seen.code == Code::InvalidArgument;
    not_a_host
        || no_token
        || matches!(seen.code, Code::PermissionDenied | Code::Unauthenticated | Code::Unimplemented)
}

/// Messages as bytes.
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// The methods of the compiled definitions, as `Service.Method`; only those whose requests are a stream
/// if asked for.
fn methods(only_streaming: bool) -> BTreeSet<String> {
    let set = prost_types::FileDescriptorSet::decode(tollway_wire::TOLLWAY_DESCRIPTORS).unwrap();
    let services = set.file.iter().flat_map(|file| &file.service);
    let of_service = |service: &prost_types::ServiceDescriptorProto| {
        let wanted = |method: &&prost_types::MethodDescriptorProto| {
            !only_streaming || method.client_streaming()
        };
        let name = |method: &prost_types::MethodDescriptorProto| {
            format!("{}.{}", service.name(), method.name())
        };
        service.method.iter().filter(wanted).map(name).collect::<Vec<_>>()
    };
    services.flat_map(of_service).collect()
}

fn streaming_methods() -> BTreeSet<String> {
    methods(true)
}

/// The rows of the table in docs/security.md, by method and words, with a cell for each kind of caller.
fn rows() -> BTreeMap<(String, String), BTreeMap<Kind, String>> {
    let page = include_str!("../../../docs/security.md");
    let rows = table(page, "method", 2, Kind::ALL.map(|(_, word)| word)).into_iter();
    let row = |(keys, cells): (Vec<String>, [String; Kind::ALL.len()])| {
        let of = Kind::ALL.iter().map(|(kind, _)| *kind).zip(cells).collect();
        ((keys[0].clone(), keys[1].clone()), of)
    };
    rows.map(row).collect()
}

/// The control plane, the callers and what there is to protect.
struct Scene {
    callers: BTreeMap<Kind, Caller>,
    cart: Member,
    host: Host,
    /// For any workload.
    token: String,
    /// What lives as long as the scene.
    _kept: (Joined, support::KeepAliveTask),
}

impl Scene {
    async fn set() -> Self {
        let mut nets = Joined::start_with(|options| {
            options.timing.actor_lease = Duration::from_secs(1000);
        })
        .await;
        let joined_control = control_of_east(&mut nets).await;
        let west = &mut nets.west;
        let cart = west.member("cart", MARK).await;
        let kept = Registration::workload(&cart, 7).await.keep_alive();
        let channel = cart.channel().await;
        let mut state = v1::state_client::StateClient::new(channel);
        state.write_state(state_of(MARK)).await.unwrap();
        let mut host = Host::open(&cart, Step::Enter(enter(1))).await;
        host.life = 1;
        assert!(matches!(host.answer().await.unwrap(), Answer::Entered(_)));
        host.granted().await;
        remind(&cart, &host).await;
        let mut callers = BTreeMap::new();
        let token = west.token(Scope::Any(v1::AnyWorkload {})).await;
        let anonymous = Caller {
            channel: Some(bootstrap(west.address, &token).await),
            service: west.own("newcomer"),
            instance: "a".into(),
        };
        callers.insert(Kind::Anonymous, anonymous);
        let web = west.member("web", "a").await;
        let evil = west.member("evil.lowly", "a").await;
        let gateway = west.gateway("gateway-2").await;
        let of_agents = west.token(Scope::FabricGroup("racks".into())).await;
        let service = west.own("fabric-racks.tollway");
        let credentials = enroll(west.address, &of_agents, &service, "a").await.unwrap();
        let agent = Member { address: west.address, credentials };
        let foreign = nets.east.member("stock", "a").await;
        let members = [
            (Kind::Itself, cart.clone()),
            (Kind::OtherApp, web),
            (Kind::OtherNamespace, evil),
            (Kind::OtherNetwork, foreign),
            (Kind::Gateway, gateway),
            (Kind::Agent, agent),
        ];
        for (kind, member) in members {
            callers.insert(kind, caller(&nets.west, &member.credentials).await);
        }
        callers.insert(Kind::JoinedControl, caller(&nets.west, &joined_control).await);
        let operator = Caller {
            channel: Some(admin_socket(&nets.west).await),
            service: nets.west.own("operator"),
            instance: "a".into(),
        };
        callers.insert(Kind::Operator, operator);
        Self { callers, cart, host, token: token.to_string(), _kept: (nets, kept) }
    }

    /// The word that a cell ought to have, by what happens.
    async fn word(&self, kind: Kind, method: &str, ask: &Ask, expected: &str) -> String {
        let caller = &self.callers[&kind];
        let cart = self.cart.credentials.service();
        let is_mark_expected = expected == "yes" && !ask.names && kind != Kind::Operator;
        let subject =
            |service, instance, token| Subject { service, instance, token, host: &self.host };
        let odd = std::cell::RefCell::new(None);
        let judge = async |of: Subject<'_>| {
            let seen = call(caller, method, (ask.messages)(&of), ask.mark, is_mark_expected).await;
            let is_refused = is_refused(method, &seen);
            if !is_refused && seen.code != ask.done {
                let line = format!("about {}: {:?} {}", of.service, seen.code, seen.text);
                odd.borrow_mut().get_or_insert(line);
            }
            (!is_refused).then_some(seen)
        };
        let own = judge(subject(&caller.service, &caller.instance, "")).await;
        if expected == "token" {
            let of = subject(&caller.service, &caller.instance, &self.token);
            let with_token = !ask.takes_token || judge(of).await.is_some();
            let word = if own.is_none() && with_token { "token" } else { "not only with a token" };
            return odd.take().unwrap_or_else(|| word.to_owned());
        }
        if !ask.names {
            let sees_all = |seen: &Seen| seen.is_marked || kind == Kind::Operator;
            let word = own.map_or("no", |seen| if sees_all(&seen) { "yes" } else { "own" });
            return odd.take().unwrap_or_else(|| word.to_owned());
        }
        let of_cart = kind != Kind::Itself && judge(subject(cart, MARK, "")).await.is_some();
        let word = match (own.is_some(), of_cart) {
            (true, true) => "yes",
            (true, false) => "own",
            (false, true) => "others alone",
            (false, false) => "no",
        };
        odd.take().unwrap_or_else(|| word.to_owned())
    }
}

/// A connection with these credentials to the control plane of `network`.
async fn caller(network: &Network, credentials: &Credentials) -> Caller {
    let home = network.own("control").network;
    let expected = Expected::home_control(&home, &TrustDomain::default_for(&home));
    let config = client_config(credentials, &expected, support::ALPN).unwrap();
    let name = expected.server_name().unwrap();
    let channel = match support::connect(network.address, name, config).await {
        Ok(channel) => stays(&channel).await.then_some(channel),
        Err(_) => None,
    };
    let instance = credentials.instance().map_or("a".to_owned(), |i| i.as_str().to_owned());
    Caller { channel, service: credentials.service().clone(), instance }
}

/// Whether a connection goes on after its handshake: then its first call has an answer.
async fn stays(channel: &Channel) -> bool {
    let mut client = v1::identity_client::IdentityClient::new(channel.clone());
    let checked = client.check(v1::CheckRequest::default()).await;
    checked.is_err_and(|status| status.code() == Code::InvalidArgument)
}

async fn admin_socket(network: &Network) -> Channel {
    let path = network.store().join("admin.sock");
    let connector = tower::service_fn(move |_: http::Uri| {
        let path = path.clone();
        async move { tokio::net::UnixStream::connect(path).await.map(hyper_util::rt::TokioIo::new) }
    });
    Endpoint::from_static("http://admin.mesh").connect_with_connector(connector).await.unwrap()
}

/// What east's control plane shows of itself. It is made with east's authority, which is read from a
/// copy of its store.
async fn control_of_east(nets: &mut Joined) -> Credentials {
    #[derive(Clone, PartialEq, Message)]
    struct Stored {
        #[prost(string, tag = "3")]
        certificate: String,
        #[prost(string, tag = "4")]
        key: String,
    }
    let copy = tempfile::tempdir().unwrap();
    let file = copy.path().join("tollway.store");
    std::fs::copy(nets.east.store().join("tollway.store"), &file).unwrap();
    let store = Store::open_embedded(&file, Limits::default()).await.unwrap();
    let entry = store.get(tollway_control::AUTHORITY_KEY.as_bytes()).await.unwrap().unwrap();
    let stored = Stored::decode(&*entry.value).unwrap();
    let network = NetworkName::new("east").unwrap();
    let domain = TrustDomain::default_for(&network);
    let pem = AuthorityPem { certificate: stored.certificate, key: stored.key };
    let authority = Authority::from_pem(&domain, &network, &pem).unwrap();
    let key = KeyPair::generate().unwrap();
    let instance = Instance::new("control").unwrap();
    let ttl = Duration::from_secs(3600);
    let request = SystemRequest { csr_der: key.csr_der().unwrap(), instance, ttl };
    let issued = authority.issue_control(&request, std::time::SystemTime::now()).unwrap();
    let bundles = nets.east.member("stock", "a").await.credentials.bundles().clone();
    Credentials::new(&key, issued.chain, bundles).unwrap()
}

/// A reminder of `cart` with the mark in it.
async fn remind(cart: &Member, host: &Host) {
    let shard = tollway_actors::placement::Shard::of("7");
    let put = v1::PutReminder {
        key: Some(v1::ReminderKey {
            actor_type: "cart".into(),
            actor_id: "7".into(),
            name: "pay".into(),
        }),
        epoch: host.held[&shard].0,
        registration: Some(v1::ReminderRegistration {
            schedule: Some(v1::ReminderSchedule {
                due_unix_us: 4_000_000_000_000_000,
                firings: 1,
                ..Default::default()
            }),
            data: MARK.into(),
            ..Default::default()
        }),
        if_absent: false,
    };
    let change = Some(v1::reminder_change::Change::Put(put));
    let changes = vec![v1::ReminderChange { change }];
    let mut client = v1::reminders_client::RemindersClient::new(cart.channel().await);
    let request = v1::WriteRemindersRequest { life: host.life, changes };
    let written = client.write_reminders(request).await.unwrap().into_inner();
    let result = written.results[0].result.clone();
    assert!(matches!(result, Some(v1::reminder_result::Result::Done(_))), "{result:?}");
}

#[tokio::test]
async fn no_method_answers_a_caller_that_the_table_does_not_name() {
    let rows = rows();
    let scene = Box::pin(Scene::set()).await;
    let mut wrong = Vec::new();
    let mut known = BTreeSet::new();
    let mut methods: Vec<String> = methods(false).into_iter().collect();
    // Last, since hosts that enter take shards of others.
    methods.sort_by_key(|method| method == "Placement.Host");
    for method in methods {
        let asks = asks(&method);
        assert!(!asks.is_empty(), "this test does not know how to call {method}");
        for ask in asks {
            let row = (method.clone(), ask.what.to_owned());
            let Some(cells) = rows.get(&row) else {
                wrong.push(format!("docs/security.md has no row for `{method}` ({})", ask.what));
                continue;
            };
            for (kind, word) in Kind::ALL {
                let expected = &cells[&kind];
                let found = scene.word(kind, &method, &ask, expected).await;
                if found != *expected {
                    let what = ask.what;
                    wrong.push(format!("{method} ({what}), {word}: {found}, not {expected}"));
                }
            }
            known.insert(row);
        }
    }
    wrong.extend(
        rows.keys().filter(|row| !known.contains(*row)).map(|row| format!("{row:?} is not there")),
    );
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    // What others wrote has not reached the state of `cart`.
    let mut state = v1::state_client::StateClient::new(scene.cart.channel().await);
    let request = v1::ReadStateRequest { keys: vec!["order".into()] };
    let read = state.read_state(request).await.unwrap().into_inner();
    assert_eq!(read.entries[0].value, MARK.as_bytes());
}
