//! Changes of policies: planned against the catalogue, written in one transaction, and waited
//! for until the sidecars concerned have applied them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tollway_model::{ObjectName, Policy, PolicyScope};
use tollway_store::{Expected, Store, TransactError, Transaction};
use tollway_wire::v1::policy_change::Outcome;
use tollway_wire::{
    POLICIES_LIMIT, POLICIES_LIMIT_BYTES, POLICIES_PER_REQUEST_LIMIT, POLICY_BYTES_PER_SCOPE_LIMIT,
    v1,
};
use tonic::Status;
use tracing::info;

use crate::catalogue::{Policies, StoredPolicy};
use crate::hub::Hub;
use crate::key::Key;
use crate::status::store_status;

/// Attempts to write a change while others write the same policies.
const WRITE_TRIES: usize = 3;
/// Longest wait for sidecars.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// Sidecars that are named when they lag.
const LAGGING_NAMED_LIMIT: usize = 100;

/// What is to become of one policy.
#[derive(Debug)]
enum Wish {
    Put(Box<Policy>),
    Delete(ObjectName),
}

impl Wish {
    fn name(&self) -> &ObjectName {
        match self {
            Self::Put(policy) => &policy.name,
            Self::Delete(name) => name,
        }
    }
}

/// What a change comes to.
#[derive(Debug)]
struct Plan {
    outcomes: Vec<(ObjectName, Outcome)>,
    transaction: Transaction,
    /// The services that it concerns, before or after.
    scopes: BTreeSet<PolicyScope>,
    /// The last change of policies that stay as they are.
    revision: u64,
}

/// Creates or replaces policies.
pub(crate) async fn apply(
    store: &Store,
    hub: &Hub,
    request: v1::ApplyPoliciesRequest,
) -> Result<v1::ChangePoliciesResponse, Status> {
    check_count(request.policies.len())?;
    let read = |stated| tollway_wire::policy(stated).map(|policy| Wish::Put(Box::new(policy)));
    let wishes: Vec<Wish> =
        request.policies.iter().map(read).collect::<Result<_, _>>().map_err(invalid)?;
    change(store, hub, &wishes, request.dry_run, request.wait_ms).await
}

/// Removes policies.
pub(crate) async fn delete(
    store: &Store,
    hub: &Hub,
    request: v1::DeletePoliciesRequest,
) -> Result<v1::ChangePoliciesResponse, Status> {
    check_count(request.names.len())?;
    let read = |stated| tollway_wire::policy_name(stated).map(Wish::Delete);
    let wishes: Vec<Wish> =
        request.names.iter().map(read).collect::<Result<_, _>>().map_err(invalid)?;
    change(store, hub, &wishes, request.dry_run, request.wait_ms).await
}

/// Every policy, or those of a namespace, or of a name.
pub(crate) fn list(
    hub: &Hub,
    request: &v1::ListPoliciesRequest,
) -> Result<v1::ListPoliciesResponse, Status> {
    let wanted = |text: &str, field| match text {
        "" => Ok(None),
        text => tollway_wire::label(text, field).map(Some).map_err(invalid),
    };
    let namespace = wanted(&request.namespace, "namespace")?;
    let name = wanted(&request.name, "name")?;
    Ok(hub.read(|catalogue| {
        let policies = catalogue.policies().iter().filter(|stored| {
            let own = &stored.policy.name;
            namespace.as_ref().is_none_or(|n| *n == own.namespace)
                && name.as_ref().is_none_or(|n| *n == own.name)
        });
        v1::ListPoliciesResponse {
            revision: catalogue.revision().0,
            policies: policies.map(|stored| stored.wire.clone()).collect(),
        }
    }))
}

async fn change(
    store: &Store,
    hub: &Hub,
    wishes: &[Wish],
    dry_run: bool,
    wait_ms: u64,
) -> Result<v1::ChangePoliciesResponse, Status> {
    for _ in 0..WRITE_TRIES {
        let plan = hub.read(|catalogue| plan(catalogue.policies(), wishes))?;
        if dry_run {
            return Ok(response(&plan.outcomes, plan.revision, 0, Vec::new()));
        }
        let revision = if plan.transaction.ops.is_empty() {
            plan.revision
        } else {
            match store.transact(plan.transaction).await {
                Ok(revision) => revision,
                Err(TransactError::Conflict { .. }) => {
                    // Another change was first: plan again once it is seen.
                    hub.visible(store.revision()).await;
                    continue;
                }
                Err(error) => return Err(store_status(&error)),
            }
        };
        hub.visible(revision).await;
        for (name, outcome) in &plan.outcomes {
            info!(policy = %name, outcome = outcome.as_str_name(), revision, "policy");
        }
        let wait = Duration::from_millis(wait_ms).min(LONGEST_WAIT);
        let (sidecars, lagging) = hub.policies_applied(&plan.scopes, revision, wait).await;
        return Ok(response(&plan.outcomes, revision, sidecars, lagging));
    }
    Err(Status::aborted("others keep changing the same policies; try again"))
}

/// Decides what the wishes come to, all together.
fn plan(present: &Policies, wishes: &[Wish]) -> Result<Plan, Status> {
    let mut plan = Plan {
        outcomes: Vec::new(),
        transaction: Transaction::new(),
        scopes: BTreeSet::new(),
        revision: 0,
    };
    let mut seen = BTreeSet::new();
    for wish in wishes {
        let name = wish.name();
        if !seen.insert(name) {
            return Err(Status::invalid_argument(format!("the policy {name} is given twice")));
        }
        let known = present.get(name);
        let expected = known.map_or(Expected::Absent, |stored| Expected::Revision(stored.revision));
        let key = Key::Policy { namespace: name.namespace.clone(), name: name.name.clone() };
        let key = key.encode();
        plan.scopes.extend(known.map(|stored| stored.policy.scope()));
        let outcome = match (wish, known) {
            (Wish::Put(policy), Some(stored)) if stored.policy == **policy => {
                plan.revision = plan.revision.max(stored.revision);
                Outcome::Unchanged
            }
            (Wish::Put(policy), _) => {
                plan.scopes.insert(policy.scope());
                let value = v1::Policy::from(&**policy).encode_to_vec();
                plan.transaction = plan.transaction.when(key.clone(), expected).put(key, value);
                if known.is_some() { Outcome::Changed } else { Outcome::Created }
            }
            (Wish::Delete(_), Some(_)) => {
                plan.transaction = plan.transaction.when(key.clone(), expected).delete(key);
                Outcome::Deleted
            }
            (Wish::Delete(_), None) => Outcome::Absent,
        };
        plan.outcomes.push((name.clone(), outcome));
    }
    check_limits(present, wishes, &plan)?;
    Ok(plan)
}

/// Whether the policies are few and small enough afterwards.
fn check_limits(present: &Policies, wishes: &[Wish], plan: &Plan) -> Result<(), Status> {
    let count = |outcome| plan.outcomes.iter().filter(|(_, is)| *is == outcome).count();
    if present.len() + count(Outcome::Created) > POLICIES_LIMIT {
        return Err(Status::resource_exhausted(format!(
            "a network has at most {POLICIES_LIMIT} policies"
        )));
    }
    let touched: BTreeSet<&ObjectName> = wishes.iter().map(Wish::name).collect();
    let total = bytes_after(present.iter(), &touched, wishes, |_| true);
    if total > POLICIES_LIMIT_BYTES {
        return Err(Status::resource_exhausted(format!(
            "the policies of the network would have {total} bytes together; at most \
             {POLICIES_LIMIT_BYTES} are accepted"
        )));
    }
    for scope in &plan.scopes {
        let bytes = bytes_after(present.of_scope(scope), &touched, wishes, |policy| {
            policy.scope() == *scope
        });
        if bytes > POLICY_BYTES_PER_SCOPE_LIMIT {
            return Err(Status::resource_exhausted(format!(
                "the policies for {scope} would have {bytes} bytes together; at most \
                 {POLICY_BYTES_PER_SCOPE_LIMIT} are accepted"
            )));
        }
    }
    Ok(())
}

/// Bytes of those of `present` that stay and of what comes and counts.
fn bytes_after<'a>(
    present: impl Iterator<Item = &'a Arc<StoredPolicy>>,
    touched: &BTreeSet<&ObjectName>,
    wishes: &[Wish],
    counts: impl Fn(&Policy) -> bool,
) -> usize {
    let staying = present
        .filter(|stored| !touched.contains(&stored.policy.name))
        .map(|stored| stored.wire.encoded_len());
    let coming = wishes.iter().filter_map(|wish| match wish {
        Wish::Put(policy) if counts(policy) => Some(v1::Policy::from(&**policy).encoded_len()),
        Wish::Put(_) | Wish::Delete(_) => None,
    });
    staying.chain(coming).sum()
}

fn response(
    outcomes: &[(ObjectName, Outcome)],
    revision: u64,
    sidecars: u32,
    mut lagging: Vec<String>,
) -> v1::ChangePoliciesResponse {
    let changes = outcomes.iter().map(|(name, outcome)| v1::PolicyChange {
        name: Some(name.into()),
        outcome: (*outcome).into(),
    });
    lagging.truncate(LAGGING_NAMED_LIMIT);
    v1::ChangePoliciesResponse { changes: changes.collect(), revision, sidecars, lagging }
}

fn check_count(count: usize) -> Result<(), Status> {
    if count > POLICIES_PER_REQUEST_LIMIT {
        return Err(Status::invalid_argument(format!(
            "{count} policies at once are too many; at most {POLICIES_PER_REQUEST_LIMIT} are \
             accepted"
        )));
    }
    Ok(())
}

fn invalid(error: tollway_wire::ConvertError) -> Status {
    Status::invalid_argument(tollway_model::chain(&error))
}

/// The policies of a service as they are sent to its sidecars.
pub(crate) fn snapshot(policies: &[Arc<StoredPolicy>]) -> v1::Policies {
    v1::Policies { policies: policies.iter().map(|stored| stored.wire.clone()).collect() }
}
