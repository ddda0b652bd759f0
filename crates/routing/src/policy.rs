//! Whether a caller may make a request: the compiled policies of one service.
//!
//! A caller's identity does not change while it is connected, so the work has three steps. A
//! [`PolicySet`] holds the policies of one service as trees of paths; it is compiled once per
//! revision, on another thread. A [`CallerView`] lists the audiences to which one caller belongs;
//! it is made once per caller and revision. Each request is decided with it.
//!
//! Deny wins. A service for which any policy has an `allow` list is closed for everything that no
//! policy allows; without one it is open. If a path has two readings, a request is admitted only if
//! both are allowed. A deny rule errs on the side of refusing: it ignores the case of letters, and
//! for a connection without requests (TCP) it applies by the caller alone.
//!
//! Policies in shadow mode change none of this: what would come of it if they were in force is decided
//! apart.

mod access;
mod compiled;
mod tree;

use std::fmt;
use std::sync::Arc;

use tollway_model::{Caller, Mode, NormalPath, ObjectName, PathError, Policy, ServiceName};

use compiled::{Compiled, Membership};

pub use access::{AccessList, Action, CallerAccess, Operation};

/// The policies that protect one service.
#[derive(Clone, Debug)]
pub struct PolicySet {
    service: ServiceName,
    policies: Vec<Arc<Policy>>,
    /// Those in force.
    compiled: Arc<Compiled>,
    /// The same with those in shadow mode, if there are any.
    shadow: Option<Arc<Compiled>>,
    access: Option<Arc<AccessList>>,
}

impl PolicySet {
    /// Keeps of `policies` those that protect `service`.
    #[must_use]
    pub fn new(service: ServiceName, policies: impl IntoIterator<Item = Arc<Policy>>) -> Self {
        let mut policies: Vec<_> =
            policies.into_iter().filter(|policy| policy.scope().covers(&service)).collect();
        // The order decides which policy a refusal names: it must not depend on the delivery.
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        let enforced: Vec<_> =
            policies.iter().filter(|policy| policy.mode == Mode::Enforce).cloned().collect();
        let has_shadow = enforced.len() < policies.len();
        let shadow = has_shadow.then(|| Arc::new(Compiled::new(&policies)));
        let compiled = Arc::new(Compiled::new(&enforced));
        Self { service, policies, compiled, shadow, access: None }
    }

    /// The view of a caller by these policies and by the service's own access list.
    #[must_use]
    pub fn with_access_list(self, list: Arc<AccessList>) -> Self {
        Self { access: Some(list), ..self }
    }

    /// Whether nothing protects the service: every caller may do everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.access.is_none()
    }

    /// Whether some of them are in shadow mode.
    #[must_use]
    pub fn has_shadow(&self) -> bool {
        self.shadow.is_some()
    }

    /// The view of one caller. It compares the caller with each distinct list of callers.
    #[must_use]
    pub fn view(&self, caller: Caller<'_>) -> CallerView {
        let access = self.access.as_ref().map(|list| {
            let entry = list.entry(caller, &self.service);
            Access { list: Arc::clone(list), entry }
        });
        let network = &self.service.network;
        let in_shadow = |compiled: &Arc<Compiled>| {
            let shadow = (Arc::clone(compiled), compiled.membership(caller, network));
            Box::new(shadow)
        };
        let shadow = self.shadow.as_ref().map(in_shadow);
        let caller = self.compiled.membership(caller, network);
        CallerView { compiled: Arc::clone(&self.compiled), caller, shadow, access }
    }
}

/// What the policies of a service mean for one caller.
#[derive(Debug)]
pub struct CallerView {
    compiled: Arc<Compiled>,
    caller: Membership,
    /// The same with the policies in shadow mode.
    shadow: Option<Box<(Arc<Compiled>, Membership)>>,
    access: Option<Access>,
}

/// What the service's own list means for one caller.
#[derive(Debug)]
struct Access {
    list: Arc<AccessList>,
    entry: access::Entry,
}

/// Why a caller is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyRefusal {
    /// The policy that refuses.
    pub policy: ObjectName,
    pub why: PolicyReason,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyReason {
    /// One of its deny rules holds.
    Denied,
    /// It closes the service, and no policy allows this.
    NotAllowed,
}

impl fmt::Display for PolicyRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            PolicyReason::Denied => write!(f, "policy {} denies it", self.policy),
            PolicyReason::NotAllowed => {
                write!(f, "policy {} is in force and no rule allows it", self.policy)
            }
        }
    }
}

impl CallerView {
    /// Whether a request is admitted, and the target to send if it differs from the one that came.
    /// Without rules about paths the target does not change.
    ///
    /// # Errors
    /// [`RequestRefusal`].
    pub fn decide_request(
        &self,
        method: &[u8],
        target: &[u8],
    ) -> Result<Option<Vec<u8>>, RequestRefusal> {
        if !self.caller.looks_at_paths {
            // Every rule here holds for any path.
            self.decide_path(method, b"/")?;
            return Ok(None);
        }
        let path = NormalPath::read(target)?;
        self.decide_path(method, path.path())?;
        if let Some(other) = path.second_reading() {
            self.decide_path(method, other)?;
        }
        Ok(path.into_changed_target())
    }

    /// Whether the service's own list lets in a call of the app that the policies let in, and how
    /// its target must be sent on when that is not as it came.
    ///
    /// # Errors
    /// [`RequestRefusal`].
    pub fn decide_access(
        &self,
        method: &[u8],
        target: &[u8],
    ) -> Result<Option<Vec<u8>>, RequestRefusal> {
        let Some(Access { list, entry }) = &self.access else { return Ok(None) };
        if !list.looks_at_paths(*entry) {
            list.decide_connection(*entry)?;
            return Ok(None);
        }
        let path = NormalPath::read(target)?;
        list.decide(*entry, method, path.path())?;
        if let Some(other) = path.second_reading() {
            list.decide(*entry, method, other)?;
        }
        Ok(path.into_changed_target())
    }

    /// Whether the service's own list names the caller; `None` where there is no list.
    #[must_use]
    pub fn is_named(&self) -> Option<bool> {
        self.access.as_ref().map(|access| access.entry.is_some())
    }

    /// The refusal of a request that is let in, if the policies in shadow mode were in force.
    #[must_use]
    pub fn shadow_refusal(&self, method: &[u8], target: &[u8]) -> Option<PolicyRefusal> {
        let (rules, caller) = &**self.shadow.as_ref()?;
        if !caller.looks_at_paths {
            return decide_path(rules, caller, method, b"/").err();
        }
        // Another reading of the path is no matter of these policies.
        let path = NormalPath::read(target).ok()?;
        let of = |path| decide_path(rules, caller, method, path).err();
        of(path.path()).or_else(|| path.second_reading().and_then(of))
    }

    /// The same of a connection of which only the caller is known.
    #[must_use]
    pub fn shadow_connection_refusal(&self) -> Option<PolicyRefusal> {
        let (rules, caller) = &**self.shadow.as_ref()?;
        decide_connection(rules, caller).err()
    }

    /// The policy of which a rule allows a request that is let in; `None` if it needs none.
    #[must_use]
    pub fn allowed_by(&self, method: &[u8], target: &[u8]) -> Option<&ObjectName> {
        let rules = &*self.compiled;
        rules.closed_by.as_ref()?;
        let find = |path| rules.allow.find(&self.caller.audiences, method, path);
        let policy = if self.caller.looks_at_paths {
            find(NormalPath::read(target).ok()?.path())
        } else {
            find(b"/")
        };
        policy.map(|policy| rules.name(policy))
    }

    /// Whether a connection is let in of which only the caller is known (TCP).
    ///
    /// # Errors
    /// [`PolicyRefusal`].
    pub fn decide_connection(&self) -> Result<(), PolicyRefusal> {
        decide_connection(&self.compiled, &self.caller)?;
        match &self.access {
            Some(Access { list, entry }) => list.decide_connection(*entry),
            None => Ok(()),
        }
    }

    fn decide_path(&self, method: &[u8], path: &[u8]) -> Result<(), PolicyRefusal> {
        decide_path(&self.compiled, &self.caller, method, path)
    }
}

fn decide_path(
    rules: &Compiled,
    caller: &Membership,
    method: &[u8],
    path: &[u8],
) -> Result<(), PolicyRefusal> {
    let audiences = &caller.audiences;
    if let Some(policy) = rules.deny.find(audiences, method, path) {
        return Err(refusal(rules.name(policy), PolicyReason::Denied));
    }
    match &rules.closed_by {
        Some(policy) if rules.allow.find(audiences, method, path).is_none() => {
            Err(refusal(policy, PolicyReason::NotAllowed))
        }
        Some(_) | None => Ok(()),
    }
}

fn decide_connection(rules: &Compiled, caller: &Membership) -> Result<(), PolicyRefusal> {
    if let Some(policy) = caller.deny_any {
        return Err(refusal(rules.name(policy), PolicyReason::Denied));
    }
    match &rules.closed_by {
        Some(policy) if !caller.allowed_without_request => {
            Err(refusal(policy, PolicyReason::NotAllowed))
        }
        Some(_) | None => Ok(()),
    }
}

fn refusal(policy: &ObjectName, why: PolicyReason) -> PolicyRefusal {
    PolicyRefusal { policy: policy.clone(), why }
}

/// Why a request is not let in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RequestRefusal {
    Policy(PolicyRefusal),
    /// The path has no safe reading, so no rule can be applied to it.
    Path(PathError),
}

impl From<PolicyRefusal> for RequestRefusal {
    fn from(refusal: PolicyRefusal) -> Self {
        Self::Policy(refusal)
    }
}

impl From<PathError> for RequestRefusal {
    fn from(error: PathError) -> Self {
        Self::Path(error)
    }
}

#[cfg(test)]
mod tests;
