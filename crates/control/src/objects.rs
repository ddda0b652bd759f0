//! Changes of objects: planned against the catalogue, written in one transaction, and waited for
//! until the sidecars concerned have applied them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tollway_model::{Egress, NetworkName, Object, ObjectId, ObjectKind, ObjectScope};
use tollway_store::{Expected, Store, TransactError, Transaction};
use tollway_wire::v1::ObjectOrigin;
use tollway_wire::v1::object_change::Outcome;
use tollway_wire::{
    OBJECT_BYTES_PER_SCOPE_LIMIT, OBJECTS_LIMIT, OBJECTS_LIMIT_BYTES, OBJECTS_PER_REQUEST_LIMIT,
    RESOURCE_BYTES_PER_NAMESPACE_LIMIT, RESOURCES_PER_NAMESPACE_LIMIT, v1,
};
use tonic::Status;
use tracing::info;

use crate::catalogue::{Catalogue, Objects, Stored};
use crate::clock::unix_now_ms;
use crate::hub::Hub;
use crate::key::Key;
use crate::status::store_status;

/// Attempts to write a change while others write the same objects.
const WRITE_TRIES: usize = 3;
/// Longest wait for sidecars.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// Sidecars that are named when they lag.
const LAGGING_NAMED_LIMIT: usize = 100;

/// What is to become of one object.
#[derive(Debug)]
enum Wish {
    Put(Object),
    Delete,
}

/// What a change comes to.
#[derive(Debug)]
struct Plan {
    outcomes: Vec<(ObjectId, Outcome)>,
    transaction: Transaction,
    /// What the objects have and had.
    scopes: BTreeSet<ObjectScope>,
    /// The last change of objects that stay as they are.
    revision: u64,
    /// What is written.
    coming: Vec<Coming>,
}

/// A change that is stored, or that takes nothing to be stored.
#[derive(Debug)]
pub(crate) struct Written {
    outcomes: Vec<(ObjectId, Outcome)>,
    /// The last one that the sidecars concerned have to apply.
    pub(crate) revision: u64,
    /// Whose sidecars are concerned.
    pub(crate) scopes: BTreeSet<ObjectScope>,
}

#[derive(Debug)]
struct Coming {
    kind: ObjectKind,
    scope: ObjectScope,
    bytes: usize,
    is_new: bool,
}

/// Creates or replaces objects.
pub(crate) async fn apply(
    store: &Store,
    hub: &Hub,
    request: v1::ApplyObjectsRequest,
) -> Result<v1::ChangeObjectsResponse, Status> {
    check_count(request.objects.len())?;
    let now = unix_now_ms();
    let read = |mut stated: v1::Object| {
        tollway_wire::set_created(&mut stated, now);
        let object = tollway_wire::object(&stated).map_err(invalid)?;
        check(&object)?;
        Ok((object.id(), Wish::Put(object)))
    };
    let wishes: Vec<_> = request.objects.into_iter().map(read).collect::<Result<_, Status>>()?;
    let writer = Writer { origin: ObjectOrigin::Unspecified, dry_run: request.dry_run };
    let written = change(store, hub, &wishes, writer).await?;
    Ok(answer(hub, written, writer, request.wait_ms).await)
}

/// Creates or replaces the object of a custom resource that was created at `created_unix_ms`.
pub(crate) async fn apply_of_cluster(
    store: &Store,
    hub: &Hub,
    object: &Object,
    created_unix_ms: u64,
) -> Result<Written, Status> {
    let mut stated = v1::Object::from(object);
    tollway_wire::set_created(&mut stated, created_unix_ms);
    let object = tollway_wire::object(&stated).map_err(invalid)?;
    check(&object)?;
    change(store, hub, &[(object.id(), Wish::Put(object))], Writer::CLUSTER).await
}

/// Removes the object of a custom resource.
pub(crate) async fn delete_of_cluster(
    store: &Store,
    hub: &Hub,
    id: &ObjectId,
) -> Result<Written, Status> {
    change(store, hub, &[(id.clone(), Wish::Delete)], Writer::CLUSTER).await
}

/// Removes objects.
pub(crate) async fn delete(
    store: &Store,
    hub: &Hub,
    request: v1::DeleteObjectsRequest,
) -> Result<v1::ChangeObjectsResponse, Status> {
    check_count(request.ids.len())?;
    let read = |stated| tollway_wire::object_id(stated).map(|id| (id, Wish::Delete));
    let wishes: Vec<_> = request.ids.iter().map(read).collect::<Result<_, _>>().map_err(invalid)?;
    let writer = Writer { origin: ObjectOrigin::Unspecified, dry_run: request.dry_run };
    let written = change(store, hub, &wishes, writer).await?;
    Ok(answer(hub, written, writer, request.wait_ms).await)
}

/// Every object of a kind, or those of a namespace, or of a name.
pub(crate) fn list(
    hub: &Hub,
    request: &v1::ListObjectsRequest,
) -> Result<v1::ListObjectsResponse, Status> {
    let wanted = |text: &str, field| match text {
        "" => Ok(None),
        text => tollway_wire::label(text, field).map(Some).map_err(invalid),
    };
    let kind = tollway_wire::object_kind(request.kind).map_err(invalid)?;
    let namespace = wanted(&request.namespace, "namespace")?;
    let name = wanted(&request.name, "name")?;
    Ok(hub.read(|catalogue| {
        let objects = catalogue.objects().of_kind(kind).filter(|stored| {
            let own = stored.object.name();
            namespace.as_ref().is_none_or(|n| *n == own.namespace)
                && name.as_ref().is_none_or(|n| *n == own.name)
        });
        v1::ListObjectsResponse {
            revision: catalogue.revision().0,
            objects: objects.map(|stored| stored.wire.clone()).collect(),
            network: catalogue.home().network.to_string(),
        }
    }))
}

/// Who changes objects, and whether it is only planned.
#[derive(Clone, Copy, Debug)]
struct Writer {
    origin: ObjectOrigin,
    dry_run: bool,
}

impl Written {
    /// Whether something was stored.
    pub(crate) fn is_change(&self) -> bool {
        self.outcomes.iter().any(|(_, outcome)| *outcome != Outcome::Unchanged)
    }
}

impl Writer {
    const CLUSTER: Self = Self { origin: ObjectOrigin::Cluster, dry_run: false };
}

async fn change(
    store: &Store,
    hub: &Hub,
    wishes: &[(ObjectId, Wish)],
    writer: Writer,
) -> Result<Written, Status> {
    for _ in 0..WRITE_TRIES {
        let planned = |catalogue: &Catalogue| {
            plan(catalogue.objects(), &catalogue.home().network, wishes, writer.origin)
        };
        let Plan { outcomes, transaction, scopes, mut revision, .. } = hub.read(planned)?;
        if writer.dry_run {
            return Ok(Written { outcomes, revision, scopes });
        }
        if !transaction.ops.is_empty() {
            match store.transact(transaction).await {
                Ok(stored) => revision = stored,
                Err(TransactError::Conflict { .. }) => {
                    // Another change was first: plan again once it is seen.
                    hub.visible(store.revision()).await;
                    continue;
                }
                Err(error) => return Err(store_status(&error)),
            }
        }
        hub.visible(revision).await;
        for (object, outcome) in &outcomes {
            info!(%object, outcome = outcome.as_str_name(), revision, "object");
        }
        return Ok(Written { outcomes, revision, scopes });
    }
    Err(Status::aborted("others keep changing the same objects; try again"))
}

/// What a command is answered, once the sidecars concerned have applied the change or the time is over.
async fn answer(
    hub: &Hub,
    written: Written,
    writer: Writer,
    wait_ms: u64,
) -> v1::ChangeObjectsResponse {
    let Written { outcomes, revision, scopes } = written;
    if writer.dry_run {
        return response(&outcomes, revision, 0, Vec::new());
    }
    let wait = Duration::from_millis(wait_ms).min(LONGEST_WAIT);
    let (sidecars, lagging) = hub.applied(&scopes, revision, wait).await;
    response(&outcomes, revision, sidecars, lagging)
}

/// Whether `writer` may change an object of this origin.
fn check_origin(id: &ObjectId, present: &Stored, writer: ObjectOrigin) -> Result<(), Status> {
    let Some(origin) = present.origin else { return Ok(()) };
    match (origin, writer) {
        (ObjectOrigin::Cluster, ObjectOrigin::Unspecified) => {
            Err(Status::failed_precondition(format!(
                "the {id} is a custom resource of the Kubernetes cluster; change it there, with \
                 kubectl"
            )))
        }
        (ObjectOrigin::Unspecified, ObjectOrigin::Cluster) => {
            Err(Status::failed_precondition(format!(
                "`tollway apply` has written the {id}; remove it with `tollway delete {id}`, or give \
                 the resource another name"
            )))
        }
        (ObjectOrigin::Cluster, ObjectOrigin::Cluster)
        | (ObjectOrigin::Unspecified, ObjectOrigin::Unspecified) => Ok(()),
    }
}

/// Decides what the wishes come to, all together.
fn plan(
    present: &Objects,
    network: &NetworkName,
    wishes: &[(ObjectId, Wish)],
    origin: ObjectOrigin,
) -> Result<Plan, Status> {
    let mut plan = Plan {
        outcomes: Vec::new(),
        transaction: Transaction::new(),
        scopes: BTreeSet::new(),
        revision: 0,
        coming: Vec::new(),
    };
    let mut seen = BTreeSet::new();
    for (id, wish) in wishes {
        if !seen.insert(id) {
            return Err(Status::invalid_argument(format!("the {id} is given twice")));
        }
        let known = present.get(id);
        if let Some(stored) = known {
            check_origin(id, stored, origin)?;
        }
        let revision = present.revision(id);
        let expected = revision.map_or(Expected::Absent, Expected::Revision);
        let key = Key::Object(id.clone()).encode();
        plan.scopes.extend(known.map(|stored| stored.scope.clone()));
        let outcome = match (wish, known) {
            (Wish::Put(object), Some(stored)) if stored.object.is_same(object) => {
                plan.revision = plan.revision.max(stored.revision);
                Outcome::Unchanged
            }
            (Wish::Put(object), _) => {
                let object = match known {
                    Some(stored) => object.clone().in_place_of(&stored.object),
                    None => object.clone(),
                };
                let scope = object.scope(network);
                let wire = v1::Object { origin: origin.into(), ..v1::Object::from(&object) };
                plan.scopes.insert(scope.clone());
                plan.coming.push(Coming {
                    kind: id.kind,
                    scope,
                    bytes: wire.encoded_len(),
                    is_new: known.is_none(),
                });
                let value = wire.encode_to_vec();
                plan.transaction = plan.transaction.when(key.clone(), expected).put(key, value);
                if revision.is_some() { Outcome::Changed } else { Outcome::Created }
            }
            (Wish::Delete, _) if revision.is_some() => {
                plan.transaction = plan.transaction.when(key.clone(), expected).delete(key);
                Outcome::Deleted
            }
            (Wish::Delete, _) => Outcome::Absent,
        };
        plan.outcomes.push((id.clone(), outcome));
    }
    check_limits(present, &plan)?;
    if origin == ObjectOrigin::Cluster {
        check_shares(present, &plan, wishes)?;
    }
    Ok(plan)
}

/// Whether the custom resources of each namespace are few and small enough afterwards: who may write them in
/// one namespace takes nothing from the others.
fn check_shares(present: &Objects, plan: &Plan, wishes: &[(ObjectId, Wish)]) -> Result<(), Status> {
    for (id, wish) in wishes {
        if matches!(wish, Wish::Delete) {
            continue;
        }
        let namespace = &id.name.namespace;
        let is_beside = |stored: &&Arc<Stored>| {
            let other = stored.object.name();
            stored.origin == Some(ObjectOrigin::Cluster)
                && other.namespace == *namespace
                && *other != id.name
        };
        let beside: Vec<_> = present.of_kind(id.kind).filter(is_beside).collect();
        let count = beside.len() + 1;
        if count > RESOURCES_PER_NAMESPACE_LIMIT {
            return Err(Status::resource_exhausted(format!(
                "a namespace has at most {RESOURCES_PER_NAMESPACE_LIMIT} {} as custom resources",
                id.kind.plural()
            )));
        }
        let coming: usize = plan.coming.iter().map(|coming| coming.bytes).sum();
        let staying: usize = beside.iter().map(|stored| stored.wire.encoded_len()).sum();
        let total = staying + coming;
        if total > RESOURCE_BYTES_PER_NAMESPACE_LIMIT {
            return Err(Status::resource_exhausted(format!(
                "the {} that are custom resources of the namespace {namespace} would have {total} \
                 bytes together; at most {RESOURCE_BYTES_PER_NAMESPACE_LIMIT} are accepted",
                id.kind.plural()
            )));
        }
    }
    Ok(())
}

/// Whether the objects are few and small enough afterwards.
fn check_limits(present: &Objects, plan: &Plan) -> Result<(), Status> {
    for kind in ObjectKind::ALL {
        let coming = || plan.coming.iter().filter(|coming| coming.kind == kind);
        if coming().next().is_none() {
            continue;
        }
        let is_new = |coming: &&Coming| coming.is_new;
        if present.of_kind(kind).count() + coming().filter(is_new).count() > OBJECTS_LIMIT {
            return Err(Status::resource_exhausted(format!(
                "a network has at most {OBJECTS_LIMIT} {}",
                kind.plural()
            )));
        }
        let total = bytes_after(present.of_kind(kind), plan, |of| of.kind == kind);
        if total > OBJECTS_LIMIT_BYTES {
            return Err(Status::resource_exhausted(format!(
                "the {} of the network would have {total} bytes together; at most \
                 {OBJECTS_LIMIT_BYTES} are accepted",
                kind.plural()
            )));
        }
    }
    for scope in &plan.scopes {
        let bytes = bytes_after(present.of_scope(scope), plan, |of| of.scope == *scope);
        if bytes > OBJECT_BYTES_PER_SCOPE_LIMIT {
            return Err(Status::resource_exhausted(format!(
                "the {} for {scope} would have {bytes} bytes together; at most \
                 {OBJECT_BYTES_PER_SCOPE_LIMIT} are accepted",
                scope.kind().plural()
            )));
        }
    }
    Ok(())
}

/// Bytes of those of `present` that stay and of what comes and counts.
fn bytes_after<'a>(
    present: impl Iterator<Item = &'a Arc<Stored>>,
    plan: &Plan,
    counts: impl Fn(&Coming) -> bool,
) -> usize {
    let going: BTreeSet<&ObjectId> = plan
        .outcomes
        .iter()
        .filter(|(_, outcome)| matches!(outcome, Outcome::Changed | Outcome::Deleted))
        .map(|(id, _)| id)
        .collect();
    let staying = present
        .filter(|stored| !going.contains(&stored.object.id()))
        .map(|stored| stored.wire.encoded_len());
    let coming = plan.coming.iter().filter(|coming| counts(coming)).map(|coming| coming.bytes);
    staying.chain(coming).sum()
}

fn response(
    outcomes: &[(ObjectId, Outcome)],
    revision: u64,
    sidecars: u32,
    mut lagging: Vec<String>,
) -> v1::ChangeObjectsResponse {
    let changes = outcomes
        .iter()
        .map(|(id, outcome)| v1::ObjectChange { id: Some(id.into()), outcome: (*outcome).into() });
    lagging.truncate(LAGGING_NAMED_LIMIT);
    v1::ChangeObjectsResponse { changes: changes.collect(), revision, sidecars, lagging }
}

fn check_count(count: usize) -> Result<(), Status> {
    if count > OBJECTS_PER_REQUEST_LIMIT {
        return Err(Status::invalid_argument(format!(
            "{count} objects at once are too many; at most {OBJECTS_PER_REQUEST_LIMIT} are \
             accepted"
        )));
    }
    Ok(())
}

/// Checks what takes more than to read it.
fn check(object: &Object) -> Result<(), Status> {
    match object {
        Object::Policy(_) | Object::TrafficPolicy(_) | Object::Failover(_) => Ok(()),
        Object::Egress(egress) => check_authorities(egress),
        Object::Route(route) => tollway_routing::check_regexes(route).map_err(|error| {
            let text = format!("the {}: {}", object.id(), tollway_model::chain(&error));
            Status::invalid_argument(text)
        }),
    }
}

/// Each text of authorities has one that a sidecar can use.
fn check_authorities(egress: &Egress) -> Result<(), Status> {
    let texts = egress
        .hosts
        .iter()
        .filter_map(|host| Some((&host.host, host.tls.as_ref()?.authorities.as_deref()?)));
    for (host, text) in texts {
        tollway_identity::roots_in_pem(text).map_err(|error| {
            let (name, why) = (&egress.name, tollway_model::chain(&error));
            let text = format!("the egress {name}: the authorities for `{host}`: {why}");
            Status::invalid_argument(text)
        })?;
    }
    Ok(())
}

fn invalid(error: tollway_wire::ConvertError) -> Status {
    Status::invalid_argument(tollway_model::chain(&error))
}

/// The policies of a service as they are sent to its sidecars.
pub(crate) fn policies_message(policies: &[Arc<Stored>]) -> v1::Policies {
    let policy = |stored: &Arc<Stored>| match &stored.wire.object {
        Some(v1::object::Object::Policy(policy)) => Some(policy.clone()),
        Some(
            v1::object::Object::Route(_)
            | v1::object::Object::TrafficPolicy(_)
            | v1::object::Object::Failover(_)
            | v1::object::Object::Egress(_),
        )
        | None => None,
    };
    v1::Policies { policies: policies.iter().filter_map(policy).collect() }
}

#[cfg(test)]
mod tests;
