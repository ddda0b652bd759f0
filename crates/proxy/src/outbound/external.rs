//! Connections out of the mesh that carry bytes: those that the kernel has led here from the app, and
//! tunnels of the outbound port. Egress decides where they may go, and where TLS is begun for them.
//!
//! Of a tunnel the name is known, and the sidecar finds its addresses. Of an intercepted connection the
//! address is known, and the names that the sidecar has answered with it; its first bytes show which one is
//! meant. They wait for that, and the bytes of a server that speaks first do not. Where they are requests
//! without TLS, each further one waits, too.

use std::net::{IpAddr, SocketAddr};

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use tollway_model::egress::BeginTls;
use tollway_model::{ErrorCode, HostName};
use tollway_net::Tls;
use tollway_routing::{
    ConnectionDecision, EgressDecision, EgressRules, Shown, TargetError, Verdict,
};

use crate::cause::Cause;
use crate::conn::{ConnKey, Connections, ListenerKind, Relay, Role, access_log};
use crate::cx::Cx;
use crate::egress::{ExternalHost, Present};
use crate::observe::Kind;
use crate::outbound::requests::{EXTERNAL_HEAD_BYTES, Found, Protocol, Requests, show};
use crate::protocol::{http1_server, relay};
use crate::request_error::RequestError;
use crate::upstream::{Upstreams, relay_dial};

/// Connections that wait until the rules are known, or for the addresses of a name.
const EXTERNAL_WAITING_LIMIT: usize = 1_024;

/// A connection out of the mesh.
pub(crate) struct ExternalCall {
    /// The names that may be meant.
    names: Vec<HostName>,
    /// What it goes to, once that is decided.
    host: ExternalHost,
    /// Addresses that are still to be tried, the next one last.
    left: Vec<SocketAddr>,
    tls: Option<(HostName, BeginTls)>,
    /// The app has named the host itself.
    is_proxied: bool,
    /// Its requests, each of which is judged; the first one is while this is `None`.
    requests: Option<Requests>,
    is_first_due: bool,
}

impl ExternalCall {
    fn new(names: Vec<HostName>, host: ExternalHost, left: Vec<SocketAddr>) -> Self {
        let (tls, requests) = (None, None);
        Self { names, host, left, tls, is_proxied: false, requests, is_first_due: true }
    }

    fn of_proxy(names: Vec<HostName>, host: ExternalHost, left: Vec<SocketAddr>) -> Self {
        Self { is_proxied: true, ..Self::new(names, host, left) }
    }

    /// Whether there are further addresses to try.
    pub(crate) fn has_more(&self) -> bool {
        !self.left.is_empty()
    }
}

/// Connections of this thread that wait.
#[derive(Default)]
pub(crate) struct ExternalQueue {
    /// For the first rules.
    for_rules: Vec<ConnKey>,
    /// For the addresses of names.
    for_addresses: Vec<(HostName, Vec<ConnKey>)>,
}

impl ExternalQueue {
    fn len(&self) -> usize {
        self.for_rules.len() + self.for_addresses.iter().map(|(_, keys)| keys.len()).sum::<usize>()
    }
}

/// Sends an intercepted connection on to an address, if it may go there.
pub(crate) fn open_intercepted(
    cx: &mut Cx,
    conns: &mut Connections,
    queue: &mut ExternalQueue,
    key: ConnKey,
    address: SocketAddr,
) {
    access_log::begin_line(cx, conns, key, Kind::Tcp, None);
    let Some(present) = cx.config.egress.present() else {
        return wait_for_rules(cx, conns, queue, key, address);
    };
    let rules = present.rules();
    if rules.is_idle() {
        let decision = rules.decide_address(address);
        cx.config.egress.note(&decision, &address, cx.now);
        return relay_out(cx, conns, key, address);
    }
    let names = cx.config.interception.as_ref();
    let names = names.map(|of| of.names.external_names(address.ip().to_canonical(), cx.now));
    let names = names.unwrap_or_default();
    let decided = rules.decide_connection(address, &names);
    let host = ExternalHost::Address(address);
    let left = vec![address];
    begin(cx, conns, key, ExternalCall::new(names, host, left), decided);
}

/// Passes on a connection that is none of the sidecar's.
pub(crate) fn pass_on(cx: &mut Cx, conns: &mut Connections, key: ConnKey, address: SocketAddr) {
    relay_out(cx, conns, key, address);
}

fn wait_for_rules(
    cx: &mut Cx,
    conns: &mut Connections,
    queue: &mut ExternalQueue,
    key: ConnKey,
    address: SocketAddr,
) {
    if queue.len() >= EXTERNAL_WAITING_LIMIT {
        queue.for_rules.retain(|key| conns.get(*key).is_some());
    }
    if queue.len() >= EXTERNAL_WAITING_LIMIT {
        return relay::refuse_tcp(cx, conns, key, ErrorCode::EgressUnknown);
    }
    let Some(conn) = conns.get_mut(key) else { return };
    let host = ExternalHost::Address(address);
    conn.external = Some(Box::new(ExternalCall::new(Vec::new(), host, Vec::new())));
    conn.since = cx.now;
    conns.schedule(cx, key);
    queue.for_rules.push(key);
}

/// An intercepted connection, or a tunnel whose addresses are known, goes on as it is decided.
fn begin(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    call: ExternalCall,
    decided: ConnectionDecision,
) {
    let Some(conn) = conns.get_mut(key) else { return };
    let host = call.host.clone();
    conn.external = Some(Box::new(call));
    match decided {
        ConnectionDecision::Known(decision) => {
            cx.config.egress.note(&decision, &host, cx.now);
            if decision.is_refused() {
                return refuse(cx, conns, key);
            }
            dial_next(cx, conns, key);
        }
        ConnectionDecision::ByFirstBytes => {
            hold(conns, key);
            dial_next(cx, conns, key);
            on_held_bytes(cx, conns, key);
        }
        ConnectionDecision::ByHttp => {
            hold(conns, key);
            if let Some(conn) = conns.get_mut(key) {
                conn.since = cx.now;
            }
            conns.schedule(cx, key);
            on_held_bytes(cx, conns, key);
        }
    }
}

fn hold(conns: &mut Connections, key: ConnKey) {
    if let Some(relay) = relay::relay(conns, key) {
        relay.is_held = true;
    }
}

/// Bytes have come that wait for a decision.
pub(crate) fn on_held_bytes(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    let Some(present) = cx.config.egress.present() else { return };
    if conns.get(key).and_then(|conn| conn.external.as_ref()?.requests.as_ref()).is_some() {
        return judge_requests(cx, conns, key, present.rules());
    }
    let Some(relay) = relay::relay(conns, key).filter(|relay| relay.is_held) else { return };
    let (shown, protocol) = show(&relay.early);
    let is_over = relay.ended || relay.early.len() >= EXTERNAL_HEAD_BYTES;
    if shown == Shown::NotYet && !is_over {
        return;
    }
    let Some(call) = conns.get_mut(key).and_then(|conn| conn.external.as_mut()) else { return };
    let (decision, name) = decide_shown(present.rules(), call, &shown);
    let port = port_of(&call.host);
    call.host = match (&name, &shown) {
        (Some(name), _) | (None, Shown::Host(name)) => ExternalHost::Name(name.clone(), port),
        (None, Shown::NotYet | Shown::Nothing) => call.host.clone(),
    };
    let (host, is_counted) = (call.host.clone(), call.is_proxied);
    if !is_counted || decision.is_refused() {
        cx.config.egress.note(&decision, &host, cx.now);
    }
    if decision.is_refused() {
        return refuse(cx, conns, key);
    }
    note_use(cx, conns, key, name.as_ref());
    if protocol == Protocol::Http1
        && let Some(call) = conns.get_mut(key).and_then(|conn| conn.external.as_mut())
    {
        call.requests = Some(Requests::new());
    }
    release(cx, conns, key, &present, decision, name, protocol == Protocol::Http2);
}

/// Passes on what an app has sent up to the next request that is not whole yet, and no request that is
/// refused. The first one has been judged before.
fn judge_requests(cx: &mut Cx, conns: &mut Connections, key: ConnKey, rules: &EgressRules) {
    let Some(up) = relay::relay(conns, key).and_then(|relay| relay.other) else { return };
    // Until it is connected, another address may be dialled.
    if relay::relay(conns, up).is_none() {
        return;
    }
    let Some(conn) = conns.get_mut(key) else { return };
    let Some(mut call) = conn.external.take() else { return };
    let Role::Relay(relay) = &conn.role else { return };
    let passed = find_judged(cx, rules, &mut call, &relay.early);
    conn.external = Some(call);
    match passed {
        Some(count) => relay::pass_held(cx, conns, key, up, count),
        None => refuse(cx, conns, key),
    }
}

/// How many of an app's bytes may go out; `None` if they have a request that may not.
fn find_judged(
    cx: &Cx,
    rules: &EgressRules,
    call: &mut ExternalCall,
    bytes: &[u8],
) -> Option<usize> {
    let mut at = 0;
    loop {
        match call.requests.as_mut()?.find(&bytes[at..]) {
            Found::NotYet => return Some(at),
            Found::Judged(count) => at += count,
            Found::Broken => return None,
            Found::Request(count, shown) => {
                let is_first = std::mem::take(&mut call.is_first_due);
                if !is_first && !may_go_on(cx, rules, call, &shown) {
                    return None;
                }
                at += count;
            }
        }
    }
}

/// Whether a further request may go out on a connection: an egress lets it pass, as it goes.
fn may_go_on(cx: &Cx, rules: &EgressRules, call: &mut ExternalCall, shown: &Shown) -> bool {
    let (decision, name) = decide_shown(rules, call, shown);
    let port = port_of(&call.host);
    if let Some(name) = &name {
        call.host = ExternalHost::Name(name.clone(), port);
    }
    let host = match (&name, shown) {
        (None, Shown::Host(name)) => ExternalHost::Name(name.clone(), port),
        _ => call.host.clone(),
    };
    if !call.is_proxied || decision.is_refused() {
        cx.config.egress.note(&decision, &host, cx.now);
    }
    let goes_as_begun = match (&call.tls, &decision.tls) {
        (Some((begun, _)), Some(_)) => name.as_ref() == Some(begun),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    };
    !decision.is_refused() && goes_as_begun
}

/// A tunnel to a host where TLS is begun needs no further sign of the host than its name.
fn decide_shown(
    rules: &EgressRules,
    call: &ExternalCall,
    shown: &Shown,
) -> (EgressDecision, Option<HostName>) {
    let port = port_of(&call.host);
    if let (true, ExternalHost::Name(name, _)) = (call.is_proxied, &call.host) {
        let decision = rules.decide_name(name, port);
        if decision.tls.is_some() {
            return (decision, Some(name.clone()));
        }
    }
    let address = match call.host {
        ExternalHost::Address(address) => address,
        ExternalHost::Name(..) => call.left.last().copied().unwrap_or_else(|| unknown(port)),
    };
    rules.decide_shown(address, &call.names, shown)
}

/// In the place of an address that no rule can name.
fn unknown(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), port)
}

fn port_of(host: &ExternalHost) -> u16 {
    match host {
        ExternalHost::Name(_, port) => *port,
        ExternalHost::Address(address) => address.port(),
    }
}

fn note_use(cx: &Cx, conns: &Connections, key: ConnKey, name: Option<&HostName>) {
    let up = conns.get(key).and_then(|conn| match &conn.role {
        Role::Relay(relay) => conns.get(relay.other?)?.remote,
        _ => None,
    });
    let left = conns.get(key).and_then(|conn| conn.external.as_ref()?.left.last().copied());
    if let (Some(of), Some(name), Some(address)) = (&cx.config.interception, name, up.or(left)) {
        of.names.note_use(name, address.ip().to_canonical(), cx.now);
    }
}

/// What was held goes out.
fn release(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    present: &Present,
    decision: EgressDecision,
    name: Option<HostName>,
    is_h2: bool,
) {
    let call = conns.get(key).and_then(|conn| conn.external.as_ref());
    let is_judged_on = call.is_some_and(|call| call.requests.is_some());
    let Some(relay) = relay::relay(conns, key) else { return };
    relay.is_held = is_judged_on;
    let other = relay.other;
    match (other, decision.tls, name) {
        // It is connected without TLS already: the rules have changed since.
        (Some(_), Some(_), _) => refuse(cx, conns, key),
        (Some(_), None, _) if is_judged_on => judge_requests(cx, conns, key, present.rules()),
        (Some(other), None, _) => relay::pass_early(conns, key, other),
        (None, Some((port, tls)), Some(name)) => {
            if present.tls(&tls.authorities, is_h2).is_none() {
                let reason = "there are no authorities for the host's certificate".to_owned();
                let cause = Cause::coded(ErrorCode::TlsFailed, reason);
                return relay::refuse_undialled(cx, conns, key, &cause);
            }
            if let Some(call) = conns.get_mut(key).and_then(|conn| conn.external.as_mut()) {
                call.tls = Some((name, tls));
                call.left.iter_mut().for_each(|address| address.set_port(port));
            }
            dial_next(cx, conns, key);
        }
        (None, _, _) => dial_next(cx, conns, key),
    }
}

/// Dials the next address of a connection out of the mesh.
pub(crate) fn dial_next(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    let Some(call) = conns.get_mut(key).and_then(|conn| conn.external.as_mut()) else { return };
    let Some(address) = call.left.pop() else { return };
    let Some((name, begun)) = call.tls.clone() else { return relay_out(cx, conns, key, address) };
    let is_h2 =
        relay::relay(conns, key).is_some_and(|relay| show(&relay.early).1 == Protocol::Http2);
    let config =
        cx.config.egress.present().and_then(|present| present.tls(&begun.authorities, is_h2));
    let tls = config.zip(ServerName::try_from(name.to_string()).ok());
    let tls = tls.and_then(|(config, name)| UnbufferedClientConnection::new(config, name).ok());
    match tls {
        Some(tls) => relay_to(cx, conns, key, address, Some(tls.into())),
        None => {
            let reason = format!("`{name}` is no name that a certificate can have");
            let cause = Cause::coded(ErrorCode::TlsFailed, reason);
            relay::refuse_undialled(cx, conns, key, &cause);
        }
    }
}

/// Passes bytes on to an address out of the mesh.
fn relay_out(cx: &mut Cx, conns: &mut Connections, key: ConnKey, address: SocketAddr) {
    relay_to(cx, conns, key, address, None);
}

fn relay_to(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    address: SocketAddr,
    tls: Option<Tls>,
) {
    if !relay_dial::dial_relayed_with(cx, conns, key, address, tls) {
        return;
    }
    let up = relay::relay(conns, key).and_then(|relay| relay.other);
    if let Some(conn) = up.and_then(|up| conns.get_mut(up)) {
        // For the access log.
        conn.remote = Some(address);
    }
}

fn refuse(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    let up = relay::relay(conns, key).and_then(|relay| relay.other);
    if conns.get(key).is_some_and(|conn| conn.via == Some(ListenerKind::Intercepted)) {
        cx.metrics.intercepted.refused.add(1);
    }
    if up.is_some() {
        access_log::fail_line(conns, key, ErrorCode::EgressRefused);
        cx.metrics.request_failures.add(1);
        if let Some(conn) = conns.get_mut(key) {
            conn.io.abort_on_close();
        }
        return relay::on_failed(cx, conns, key);
    }
    relay::refuse_tcp(cx, conns, key, ErrorCode::EgressRefused);
}

/// CONNECT on the outbound port, for a host that is no service.
pub(crate) fn on_connect(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &Upstreams,
    queue: &mut ExternalQueue,
    key: ConnKey,
    authority: &str,
) {
    let host = match decide_proxied(cx, authority, None) {
        Ok((host, _)) => host,
        Err(error) => return http1_server::answer_error(cx, conns, key, &error),
    };
    let (name, port) = match &host {
        ExternalHost::Address(address) => {
            let address = *address;
            return open_tunnel(cx, conns, key, host, vec![address]);
        }
        ExternalHost::Name(name, port) => (name.clone(), *port),
    };
    if queue.len() >= EXTERNAL_WAITING_LIMIT {
        let what = "the queue for the addresses of names";
        let error = RequestError::Overloaded { what, limit: EXTERNAL_WAITING_LIMIT };
        return http1_server::answer_error(cx, conns, key, &error);
    }
    let Some(conn) = conns.get_mut(key) else { return };
    conn.since = cx.now;
    let host = ExternalHost::Name(name.clone(), port);
    let names = vec![name.clone()];
    conn.external = Some(Box::new(ExternalCall::of_proxy(names, host, Vec::new())));
    match queue.for_addresses.iter_mut().find(|(known, _)| *known == name) {
        Some((_, keys)) => keys.push(key),
        None => {
            upstreams.find_addresses(&name);
            queue.for_addresses.push((name, vec![key]));
        }
    }
}

/// Whether the outbound proxy passes a call on: only what an egress allows.
///
/// # Errors
/// [`RequestError::EgressRefused`], [`RequestError::EgressUnknown`], or that the host is no service of the
/// mesh.
pub(crate) fn decide_proxied(
    cx: &Cx,
    authority: &str,
    default_port: Option<u16>,
) -> Result<(ExternalHost, EgressDecision), RequestError> {
    let no_service = || RequestError::Target(TargetError::NotMesh(authority.to_owned()));
    let host = ExternalHost::read(authority, default_port.unwrap_or(0)).ok_or_else(no_service)?;
    if port_of(&host) == 0 {
        return Err(no_service());
    }
    let Some(rules) = cx.config.egress.rules() else {
        return Err(RequestError::EgressUnknown { service: cx.config.home.clone() });
    };
    let decision = host.decide(&rules);
    match &decision.verdict {
        Verdict::Allowed(_) => {
            cx.config.egress.note(&decision, &host, cx.now);
            Ok((host, decision))
        }
        // As without any egress.
        Verdict::ByDefault => Err(no_service()),
        Verdict::Refused => {
            cx.config.egress.note(&decision, &host, cx.now);
            Err(RequestError::EgressRefused { host: host.to_string() })
        }
    }
}

/// The addresses of a name are known, or that it has none.
pub(crate) fn on_addresses(
    cx: &mut Cx,
    conns: &mut Connections,
    queue: &mut ExternalQueue,
    name: &HostName,
    found: &Result<Vec<IpAddr>, String>,
) {
    let Some(at) = queue.for_addresses.iter().position(|(known, _)| known == name) else { return };
    let (_, keys) = queue.for_addresses.swap_remove(at);
    for key in keys {
        let Some(conn) = conns.get(key) else { continue };
        let Some(call) = conn.external.as_ref() else { continue };
        let (host, port) = (call.host.clone(), port_of(&call.host));
        match usable(cx, port, found) {
            Ok(addresses) => open_tunnel(cx, conns, key, host, addresses),
            Err(reason) => {
                let code = ErrorCode::Unreachable;
                let error = RequestError::Unreachable { code, peer: host.to_string(), reason };
                cx.metrics.request_failures.add(1);
                http1_server::answer_error(cx, conns, key, &error);
            }
        }
    }
}

/// # Errors
/// Why none of the addresses may be called.
fn usable(
    cx: &Cx,
    port: u16,
    found: &Result<Vec<IpAddr>, String>,
) -> Result<Vec<SocketAddr>, String> {
    let rules = cx.config.egress.rules().ok_or("its rules are not known")?;
    let all = found.as_ref().map_err(Clone::clone)?;
    let mut addresses: Vec<_> = all.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
    addresses.retain(|address| cx.config.egress.may_be_behind_a_name(&rules, *address));
    match (addresses.is_empty(), all.first()) {
        (false, _) => Ok(addresses),
        (true, Some(first)) => Err(format!("its address {first} is of this machine or its link")),
        (true, None) => Err("its name has no address".to_owned()),
    }
}

/// Answers CONNECT, and has the bytes go to one of the addresses.
fn open_tunnel(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    host: ExternalHost,
    mut addresses: Vec<SocketAddr>,
) {
    let Some(present) = cx.config.egress.present() else { return };
    let now = cx.now;
    let Some(conn) = conns.get_mut(key) else { return };
    let Role::Http1Server(server) = &mut conn.role else { return };
    let early = std::mem::take(&mut server.input);
    conn.io.out().extend_from_slice(b"HTTP/1.1 200 OK\r\n\r\n");
    conn.role = Role::Relay(Relay::to_be_dialled(early, now));
    conns.mark_dirty(key);
    access_log::mark_line(conns, key, |entry| entry.status = 200);
    let decision = host.decide(present.rules());
    let names = match &host {
        ExternalHost::Name(name, _) => vec![name.clone()],
        ExternalHost::Address(_) => Vec::new(),
    };
    let is_closed = present.rules().by_default() == tollway_model::EgressDefault::Closed;
    let decided = match &decision.tls {
        Some(_) => ConnectionDecision::ByHttp,
        None if is_closed && !names.is_empty() => ConnectionDecision::ByFirstBytes,
        // It is counted already.
        None => {
            addresses.reverse();
            if let Some(conn) = conns.get_mut(key) {
                conn.external = Some(Box::new(ExternalCall::of_proxy(names, host, addresses)));
            }
            dial_next(cx, conns, key);
            return conns.queue_read(key);
        }
    };
    addresses.reverse();
    begin(cx, conns, key, ExternalCall::of_proxy(names, host, addresses), decided);
    conns.queue_read(key);
}

/// The rules have changed: what waits for the first ones goes on, and connections that would be refused
/// now end.
pub(crate) fn on_rules(cx: &mut Cx, conns: &mut Connections, queue: &mut ExternalQueue) {
    for key in std::mem::take(&mut queue.for_rules) {
        let call = conns.get(key).and_then(|conn| conn.external.as_ref());
        if let Some(ExternalHost::Address(address)) = call.map(|call| call.host.clone()) {
            open_intercepted(cx, conns, queue, key, address);
        }
    }
    let Some(rules) = cx.config.egress.rules() else { return };
    for key in conns.keys() {
        let Some(conn) = conns.get(key) else { continue };
        let (Some(call), Role::Relay(relay)) = (&conn.external, &conn.role) else { continue };
        if relay.is_held && call.requests.is_none() {
            continue;
        }
        let decision = call.host.decide(&rules);
        // One by its address may have been let in by the names of the address.
        let by_names = || {
            call.names.iter().any(|name| !rules.decide_name(name, port_of(&call.host)).is_refused())
        };
        let is_by_address = matches!(call.host, ExternalHost::Address(_));
        if decision.is_refused() && !(is_by_address && by_names()) {
            let host = call.host.clone();
            cx.config.egress.note(&decision, &host, cx.now);
            refuse(cx, conns, key);
        }
    }
}
