//! Who may come in: the policies of the own service, asked for every request and connection of
//! the inbound listener.
//!
//! The caller is identified by its certificate, never by a head. Until the policies are known every
//! request and connection is refused. A change holds for the next request of every connection, and
//! ends relayed connections that would be refused now.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tollway_http::{Method, RequestHead};
use tollway_identity::PeerIdentity;
use tollway_model::call_trace::Admission;
use tollway_model::{Caller, ErrorCode, ObjectName, ServiceName, SpiffeId};
use tollway_routing::{AccessList, CallerView, PolicySet, RequestRefusal};
use tollway_telemetry::{DaprMetrics, Judged, LogLimiter};

use crate::conn::{ConnKey, Connection, Connections, ListenerKind, Role, access_log};
use crate::cx::Cx;
use crate::headers;
use crate::inbound::RateGate;
use crate::mesh::PolicyUpdate;
use crate::protocol::relay;
use crate::request_error::RequestError;
use crate::runtime_protocol::ActorCaller;

/// Callers whose views are kept for their next connection.
const VIEWS_LIMIT: usize = 1024;
/// In front of the path that the app sees, in the call of an actor between sidecars.
const API: &[u8] = b"/v1.0";

/// What is known of the policies.
pub(crate) struct PolicyGate {
    /// What the app's own configuration says beside them.
    own: Option<Arc<AccessList>>,
    /// Where what it says is counted.
    metrics: Option<Arc<DaprMetrics>>,
    set: Option<Arc<PolicySet>>,
    /// They are known and there are none: nothing has to be asked.
    is_open: bool,
    /// Rises with every set; a view of an older one is void.
    generation: u64,
    views: HashMap<SpiffeId, Arc<CallerView>>,
    /// How many requests each caller may make.
    pub(crate) rates: RateGate,
}

/// What a connection remembers of its caller's rights.
pub(crate) struct Rights {
    generation: u64,
    view: Arc<CallerView>,
}

/// The request by which a connection left HTTP, to be judged again when policies change.
pub(crate) struct Upgraded {
    method: Method,
    target: Vec<u8>,
}

impl PolicyGate {
    pub(crate) fn new(own: Option<Arc<AccessList>>, metrics: Option<Arc<DaprMetrics>>) -> Self {
        Self {
            own,
            metrics,
            set: None,
            is_open: false,
            generation: 0,
            views: HashMap::new(),
            rates: RateGate::default(),
        }
    }

    fn replace(&mut self, set: Arc<PolicySet>) {
        let set = match &self.own {
            Some(own) => Arc::new(PolicySet::clone(&set).with_access_list(Arc::clone(own))),
            None => set,
        };
        self.is_open = set.is_empty();
        self.set = Some(set);
        self.generation += 1;
        self.views.clear();
    }

    /// Lets a request in or not. Gives the target it must be sent on with, if that is another. The
    /// request is judged by `passed_on` in place of the peer, if another replica of the own service has
    /// passed it on.
    pub(crate) fn admit_request(
        &mut self,
        conn: Option<&mut Connection>,
        head: &RequestHead,
        home: &ServiceName,
        passed_on: Option<&ActorCaller>,
    ) -> Result<Option<Vec<u8>>, RequestError> {
        if self.is_open {
            return Ok(None);
        }
        if let Some(ActorCaller { spiffe, network }) = passed_on {
            let set = self.set.as_ref().ok_or_else(|| unknown(home))?;
            let view = view_of(&mut self.views, set, Caller { spiffe, network });
            return judge(self.metrics.as_deref(), &view, spiffe, head, home, false);
        }
        let (peer, view) = self.rights(conn, home)?;
        judge(self.metrics.as_deref(), view, &peer.spiffe, head, home, peer.service == *home)
    }

    /// Why a request was let in that [`PolicyGate::admit_request`] has let in.
    pub(crate) fn admission(
        &mut self,
        conn: Option<&mut Connection>,
        head: &RequestHead,
        home: &ServiceName,
    ) -> Admission {
        if self.is_open {
            return Admission::Unprotected;
        }
        let Ok((_, view)) = self.rights(conn, home) else { return Admission::NotRefused };
        let method = head.method.as_bytes();
        if let Some(refusal) = view.shadow_refusal(method, &head.path) {
            return Admission::WouldBeRefused(refusal.policy);
        }
        let allowed_by = view.allowed_by(method, &head.path);
        allowed_by.map_or(Admission::NotRefused, |policy| Admission::Allowed(policy.clone()))
    }

    /// Whether policies in shadow mode have to be asked.
    #[inline]
    pub(crate) fn has_shadow(&self) -> bool {
        self.set.as_ref().is_some_and(|set| set.has_shadow())
    }

    /// The refusal of a request that is let in, if policies in shadow mode were in force.
    pub(crate) fn shadow_denial(
        &mut self,
        conn: Option<&mut Connection>,
        head: &RequestHead,
        home: &ServiceName,
        passed_on: Option<&ActorCaller>,
    ) -> Option<PolicyDenial> {
        let method = head.method.as_bytes();
        let (caller, refusal) = match passed_on {
            Some(ActorCaller { spiffe, network }) => {
                let view = view_of(&mut self.views, self.set.as_ref()?, Caller { spiffe, network });
                (spiffe.clone(), view.shadow_refusal(method, &head.path)?)
            }
            None => {
                let (peer, view) = self.rights(conn, home).ok()?;
                (peer.spiffe.clone(), view.shadow_refusal(method, &head.path)?)
            }
        };
        Some(PolicyDenial { service: home.clone(), caller, refusal })
    }

    /// Lets a connection in of which only the caller is known, or not.
    fn admit_connection(
        &mut self,
        conn: Option<&mut Connection>,
        home: &ServiceName,
    ) -> Result<(), RequestError> {
        if self.is_open {
            return Ok(());
        }
        let (peer, view) = self.rights(conn, home)?;
        view.decide_connection().map_err(|refusal| denied(refusal, &peer.spiffe, home))
    }

    /// The caller of a connection and what the policies mean for it.
    fn rights<'c>(
        &mut self,
        conn: Option<&'c mut Connection>,
        home: &ServiceName,
    ) -> Result<(&'c PeerIdentity, &'c CallerView), RequestError> {
        let unknown = || unknown(home);
        let set = self.set.as_ref().ok_or_else(unknown)?;
        let Connection { peer, rights, .. } = conn.ok_or_else(unknown)?;
        // Every connection of the inbound listener has a proven identity.
        let peer = peer.as_deref().ok_or_else(unknown)?;
        let is_current = rights.as_ref().is_some_and(|r| r.generation == self.generation);
        if !is_current {
            let caller = Caller { spiffe: &peer.spiffe, network: &peer.service.network };
            let view = view_of(&mut self.views, set, caller);
            *rights = Some(Rights { generation: self.generation, view });
        }
        rights.as_ref().map(|rights| (peer, &*rights.view)).ok_or_else(unknown)
    }
}

/// The view of a caller, made when it was not seen since the policies changed.
fn view_of(
    views: &mut HashMap<SpiffeId, Arc<CallerView>>,
    set: &PolicySet,
    caller: Caller<'_>,
) -> Arc<CallerView> {
    if let Some(view) = views.get(caller.spiffe) {
        return Arc::clone(view);
    }
    if views.len() >= VIEWS_LIMIT {
        views.clear();
    }
    let view = Arc::new(set.view(caller));
    views.insert(caller.spiffe.clone(), Arc::clone(&view));
    view
}

/// Whether a caller may make a request, and the target that it must be sent on with, if that is another.
fn judge(
    metrics: Option<&DaprMetrics>,
    view: &CallerView,
    caller: &SpiffeId,
    head: &RequestHead,
    home: &ServiceName,
    is_own: bool,
) -> Result<Option<Vec<u8>>, RequestError> {
    let method = head.method.as_bytes();
    let decided = view.decide_request(method, &head.path).and_then(|target| {
        let of_actors = headers::is_of_actors(&head.fields);
        // The list is about other apps: replicas of the own one call each other's actors.
        if of_actors && is_own {
            return Ok(target);
        }
        let path = target.as_deref().unwrap_or(&head.path);
        // What the list names is the path as the app sees it.
        let prefix = if of_actors && path.starts_with(API) { API.len() } else { 0 };
        let judged = view.decide_access(method, &path[prefix..]);
        if let (Some(metrics), Some(is_named)) = (metrics, view.is_named()) {
            count(metrics, caller, is_named, judged.is_ok());
        }
        let changed = judged?.map(|changed| [&path[..prefix], &changed].concat());
        Ok(changed.or(target))
    });
    decided.map_err(|refusal| match refusal {
        RequestRefusal::Policy(refusal) => denied(refusal, caller, home),
        RequestRefusal::Path(error) => {
            RequestError::BadRequest { status: 400, reason: error.to_string() }
        }
    })
}

fn unknown(home: &ServiceName) -> RequestError {
    RequestError::PolicyUnknown { service: home.clone() }
}

fn count(metrics: &DaprMetrics, caller: &SpiffeId, is_named: bool, is_allowed: bool) {
    metrics.judged(Judged {
        trust_domain: caller.trust_domain.as_str(),
        namespace: caller.namespace.as_str(),
        app: caller.app.as_str(),
        is_named,
        is_allowed,
    });
}

fn denied(
    refusal: tollway_routing::PolicyRefusal,
    caller: &SpiffeId,
    home: &ServiceName,
) -> RequestError {
    let (service, caller) = (home.clone(), caller.clone());
    RequestError::PolicyDenied(Box::new(PolicyDenial { service, caller, refusal }))
}

/// Who was refused what by which policy. The text is for the caller, who sees neither.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the policies of {service} do not allow this call")]
pub(crate) struct PolicyDenial {
    service: ServiceName,
    caller: SpiffeId,
    refusal: tollway_routing::PolicyRefusal,
}

impl PolicyDenial {
    /// The policy that refuses, for a call trace.
    pub(crate) fn policy(&self) -> &ObjectName {
        &self.refusal.policy
    }

    /// Notes in the own log who was refused by which policy: for each caller and policy once in a while.
    pub(crate) fn log(&self, log: &mut LogLimiter, now: Instant) {
        let Self { service, caller, refusal } = self;
        let subject = format!("{caller} {}", refusal.policy);
        if let Some(left_out) = log.admit("policy", subject, now) {
            let code = ErrorCode::PolicyDenied;
            tracing::info!(%code, %service, %caller, %refusal, left_out, "a policy refused a caller");
        }
    }

    /// The same of one that policies in shadow mode would refuse; it is let in.
    pub(crate) fn log_shadow(&self, log: &mut LogLimiter, now: Instant) {
        let Self { service, caller, refusal } = self;
        let subject = format!("{caller} {}", refusal.policy);
        if let Some(left_out) = log.admit("policy in shadow mode", subject, now) {
            tracing::info!(%service, %caller, %refusal, left_out, "a policy in shadow mode would refuse a caller");
        }
    }
}

impl Upgraded {
    pub(crate) fn new(head: &RequestHead) -> Box<Self> {
        Box::new(Self { method: head.method.clone(), target: head.path.clone() })
    }
}

/// Takes new policies; connections that are relayed are judged again at once.
pub(crate) fn on_policies(
    cx: &mut Cx,
    conns: &mut Connections,
    policy: &mut PolicyGate,
    update: &PolicyUpdate,
) {
    policy.replace(Arc::clone(&update.set));
    for key in conns.keys() {
        judge_relay(cx, conns, policy, key);
    }
}

/// Ends a relayed connection of the inbound listener that would not be let in now.
pub(crate) fn judge_relay(
    cx: &mut Cx,
    conns: &mut Connections,
    policy: &mut PolicyGate,
    key: ConnKey,
) {
    if policy.is_open {
        return;
    }
    let Some(conn) = conns.get_mut(key) else { return };
    if conn.via != Some(ListenerKind::Inbound) || !matches!(conn.role, Role::Relay(_)) {
        return;
    }
    let home = &cx.config.home;
    let judged = match conn.upgraded.take() {
        Some(request) => {
            let head = RequestHead {
                method: request.method.clone(),
                path: request.target.clone(),
                ..RequestHead::default()
            };
            let judged = policy.admit_request(Some(conn), &head, home, None).map(|_| ());
            conn.upgraded = Some(request);
            judged
        }
        None => policy.admit_connection(Some(conn), home),
    };
    if let Err(error) = judged {
        cx.metrics.policy_closed_connections.add(1);
        log_refusal(cx, &error);
        access_log::fail_line(conns, key, error.code());
        if let Some(conn) = conns.get_mut(key) {
            conn.io.abort_on_close();
        }
        relay::on_failed(cx, conns, key);
    }
}

/// Whether the caller may have a TCP connection to the app; if not, it is reset.
pub(crate) fn admit_tcp(
    cx: &mut Cx,
    conns: &mut Connections,
    policy: &mut PolicyGate,
    key: ConnKey,
) -> bool {
    let conn = conns.get_mut(key);
    let Err(error) = policy.admit_connection(conn, &cx.config.home) else {
        note_shadow_of_tcp(cx, conns, policy, key);
        return true;
    };
    cx.metrics.policy_denials.add(1);
    log_refusal(cx, &error);
    relay::refuse_tcp(cx, conns, key, error.code());
    false
}

/// Counts a connection that is let in, and that policies in shadow mode would refuse.
fn note_shadow_of_tcp(cx: &mut Cx, conns: &mut Connections, policy: &mut PolicyGate, key: ConnKey) {
    if !policy.has_shadow() {
        return;
    }
    let service = cx.config.home.clone();
    let Ok((peer, view)) = policy.rights(conns.get_mut(key), &service) else { return };
    let caller = peer.spiffe.clone();
    let Some(refusal) = view.shadow_connection_refusal() else { return };
    cx.metrics.policy_shadow_denials.add(1);
    PolicyDenial { service, caller, refusal }.log_shadow(&mut cx.log, cx.now);
}

fn log_refusal(cx: &mut Cx, error: &RequestError) {
    match error {
        RequestError::PolicyDenied(denial) => denial.log(&mut cx.log, cx.now),
        other => tracing::debug!(error = %other, "a connection was not let in"),
    }
}
