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

mod access;
mod compiled;
mod tree;

use std::fmt;
use std::sync::Arc;

use tollway_model::{Caller, NormalPath, ObjectName, PathError, Policy, ServiceName};

use compiled::{Compiled, Membership};

pub use access::{AccessList, Action, CallerAccess, Operation};

/// The policies that protect one service.
#[derive(Clone, Debug)]
pub struct PolicySet {
    service: ServiceName,
    policies: Vec<Arc<Policy>>,
    compiled: Arc<Compiled>,
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
        let compiled = Arc::new(Compiled::new(&policies));
        Self { service, policies, compiled, access: None }
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

    /// The view of one caller. It compares the caller with each distinct list of callers.
    #[must_use]
    pub fn view(&self, caller: Caller<'_>) -> CallerView {
        let access = self.access.as_ref().map(|list| {
            let entry = list.entry(caller, &self.service);
            Access { list: Arc::clone(list), entry }
        });
        let caller = self.compiled.membership(caller, &self.service.network);
        CallerView { compiled: Arc::clone(&self.compiled), caller, access }
    }
}

/// What the policies of a service mean for one caller.
#[derive(Debug)]
pub struct CallerView {
    compiled: Arc<Compiled>,
    caller: Membership,
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
        let caller = &self.caller;
        if let Some(policy) = caller.deny_any {
            return Err(refusal(self.compiled.name(policy), PolicyReason::Denied));
        }
        match &self.compiled.closed_by {
            Some(policy) if !caller.allowed_without_request => {
                return Err(refusal(policy, PolicyReason::NotAllowed));
            }
            Some(_) | None => {}
        }
        match &self.access {
            Some(Access { list, entry }) => list.decide_connection(*entry),
            None => Ok(()),
        }
    }

    fn decide_path(&self, method: &[u8], path: &[u8]) -> Result<(), PolicyRefusal> {
        let (rules, audiences) = (&*self.compiled, &self.caller.audiences);
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
