//! The registry: workloads and gateways announce themselves and stay while they renew their lease.
//! Each may announce only what its certificate names.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tollway_identity::GATEWAY_APP;
use tollway_model::{AddressRange, ErrorCode, Instance, ServiceName};
use tollway_store::{LeaseError, Store, Transaction};
use tollway_wire::v1::register_request::Request as Step;
use tollway_wire::v1::register_response::Response as Answer;
use tollway_wire::v1::registry_server::Registry;
use tollway_wire::{ENDPOINTS_PER_SERVICE_LIMIT, GATEWAYS_PER_NETWORK_LIMIT, v1};
use tonic::{Code, Request, Response, Status, Streaming};
use tracing::{debug, info, warn};

use crate::addresses::{AddressRefusal, Origin, check_host, check_workload};
use crate::background::Background;
use crate::catalogue::Gateway;
use crate::connections::{Caller, Renewing, expired_status, is_system, origin_of};
use crate::holders::{Held, Holders};
use crate::hub::Hub;
use crate::instance_keys::InstanceKeys;
use crate::key::Key;
use crate::options::Timing;
use crate::pace::Paces;
use crate::pods::Cluster;
use crate::standstill::Standstill;
use crate::status::{stopping, store_status};

/// Services of one network.
const SERVICES_LIMIT: usize = 100_000;
/// Answers waiting for a client that does not read.
const ANSWERS_LIMIT: usize = 4;
/// Changes of one instance's registration that are stored each second, after those at once: each
/// reaches the disk, every gateway and every joined network.
const CHANGES_PER_SECOND: u32 = 5;
/// Tries to put an announcement whose lease ended meanwhile.
const PUT_TRIES: usize = 3;

/// What all registration streams share.
pub(crate) struct Registrations {
    pub(crate) store: Store,
    pub(crate) hub: Arc<Hub>,
    pub(crate) keys: Arc<InstanceKeys>,
    /// Knows which workloads are in pods that have begun to terminate.
    pub(crate) pods: Option<Cluster>,
    pub(crate) timing: Timing,
    /// Where workloads may be, in addition to where their registrations come from.
    pub(crate) workload_addresses: Vec<AddressRange>,
    /// Which stream holds which lease.
    pub(crate) holders: Holders,
    pub(crate) standstill: Arc<Standstill>,
    pub(crate) background: Background,
    /// How fast each instance changes what it announces.
    pub(crate) paces: Paces<Bytes>,
}

pub(crate) struct RegistryService(pub(crate) Arc<Registrations>);

#[tonic::async_trait]
impl Registry for RegistryService {
    type RegisterStream = ReceiverStream<Result<v1::RegisterResponse, Status>>;

    async fn register(
        &self,
        request: Request<Streaming<v1::RegisterRequest>>,
    ) -> Result<Response<Self::RegisterStream>, Status> {
        let (caller, origin) = (Caller::of(&request), origin_of(&request));
        let who = self.0.hub.read(|catalogue| caller.renewing(catalogue, Duration::ZERO))?;
        let (answers, stream) = mpsc::channel(ANSWERS_LIMIT);
        let session = Session {
            shared: self.0.clone(),
            who,
            origin,
            lease: None,
            announced: None,
            revision: 0,
            answers,
        };
        self.0.background.spawn(session.run(caller, request.into_inner()));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// One registration stream.
struct Session {
    shared: Arc<Registrations>,
    /// The caller, by its certificate.
    who: Renewing,
    origin: Origin,
    lease: Option<Held>,
    announced: Option<(Bytes, Bytes)>,
    /// Of what was announced last.
    revision: u64,
    answers: mpsc::Sender<Result<v1::RegisterResponse, Status>>,
}

/// Why a step was not carried out.
enum StepError {
    Refused(Status),
    NotStored(Status),
}

impl From<Status> for StepError {
    fn from(status: Status) -> Self {
        Self::Refused(status)
    }
}

/// How a session ended.
enum End {
    Deregistered,
    /// Something is wrong with what the caller sent or may do.
    Refused(Status),
    /// The stream broke, or the certificate ended.
    Broken(Option<Status>),
    /// Nothing came for as long as the lease lasts.
    Silent,
    /// The store took no write: that is no fault of the caller's, who keeps the lease it has.
    NotStored(Status),
    /// The control plane stops: the lease must outlive it.
    Stopping,
}

impl Session {
    async fn run(mut self, caller: Caller, mut requests: Streaming<v1::RegisterRequest>) {
        let end = self.serve(&caller, &mut requests).await;
        match end {
            End::Deregistered => self.leave().await,
            End::Refused(status) => {
                warn!(service = %self.who.service, instance = %self.who.instance, reason = status.message(), "a registration was refused");
                let _ = self.answers.send(Err(status)).await;
                self.leave().await;
            }
            End::Broken(status) => {
                if let Some(status) = status {
                    let _ = self.answers.try_send(Err(status));
                }
                self.leave_after_grace().await;
            }
            // Whether the lease has ended is the store's to judge.
            End::Silent => self.let_go(),
            End::NotStored(status) => {
                self.let_go();
                let _ = self.answers.send(Err(status)).await;
            }
            End::Stopping => drop(self.answers.try_send(Err(stopping()))),
        }
    }

    async fn serve(
        &mut self,
        caller: &Caller,
        requests: &mut Streaming<v1::RegisterRequest>,
    ) -> End {
        let stop = self.shared.background.stop.clone();
        let expired = caller.expired();
        tokio::pin!(expired);
        loop {
            let request = tokio::select! {
                request = tokio::time::timeout(self.shared.timing.lease, requests.next()) => request,
                () = &mut expired => return End::Broken(Some(expired_status())),
                () = stop.cancelled() => return End::Stopping,
            };
            let step = match request {
                Ok(Some(Ok(request))) => request.request,
                Ok(Some(Err(_)) | None) => return End::Broken(None),
                Err(_) => return End::Silent,
            };
            let answer = match self.step(step).await {
                Ok(answer) => answer,
                Err(StepError::Refused(status)) => return End::Refused(status),
                Err(StepError::NotStored(status)) => return End::NotStored(status),
            };
            let last = matches!(answer, Answer::Deregistered(_));
            let response = v1::RegisterResponse { response: Some(answer) };
            let delivered = self.answers.send(Ok(response)).await.is_ok();
            if last {
                return End::Deregistered;
            }
            if !delivered {
                return End::Broken(None);
            }
        }
    }

    async fn step(&mut self, step: Option<Step>) -> Result<Answer, StepError> {
        match step {
            Some(Step::Workload(workload)) => {
                let (key, value) = self.read_workload(&workload)?;
                self.announce(key, value).await
            }
            Some(Step::Gateway(gateway)) => {
                let (key, value) = self.read_gateway(&gateway)?;
                self.announce(key, value).await
            }
            Some(Step::KeepAlive(_)) => self.keep_alive().await,
            Some(Step::Deregister(_)) => {
                self.leave().await;
                let revision = self.shared.store.revision();
                self.shared.hub.visible(revision).await;
                Ok(Answer::Deregistered(v1::Deregistered { revision }))
            }
            None => Err(Status::invalid_argument("the field `request` is missing").into()),
        }
    }

    fn read_workload(&self, stated: &v1::Workload) -> Result<(Key, Vec<u8>), Status> {
        let mut workload = tollway_wire::workload(stated)
            .map_err(|error| Status::invalid_argument(tollway_model::chain(&error)))?;
        self.check_own(&workload.service, &workload.instance)?;
        if is_system(&workload.service) {
            return Err(Status::permission_denied(
                "a part of the mesh does not register as a service",
            ));
        }
        check_workload(workload.address, self.origin, &self.shared.workload_addresses)
            .map_err(|refusal| address_status(&refusal))?;
        self.shared.hub.read(|catalogue| {
            let known = catalogue.workload_count(&workload.service);
            let full = known >= ENDPOINTS_PER_SERVICE_LIMIT
                || (known == 0 && catalogue.service_count() >= SERVICES_LIMIT);
            if full && !catalogue.has_workload(&workload.service, &workload.instance) {
                return Err(Status::resource_exhausted(format!(
                    "a service has at most {ENDPOINTS_PER_SERVICE_LIMIT} workloads and a network at most {SERVICES_LIMIT} services"
                )));
            }
            Ok(())
        })?;
        let is_leaving = |pods: &Cluster| pods.is_leaving(&workload.service, &workload.instance);
        workload.ready &= !self.shared.pods.as_ref().is_some_and(is_leaving);
        let key = Key::Workload {
            namespace: workload.service.namespace.clone(),
            app: workload.service.app.clone(),
            instance: workload.instance.clone(),
        };
        Ok((key, v1::Workload::from(&workload).encode_to_vec()))
    }

    fn read_gateway(&self, stated: &v1::Gateway) -> Result<(Key, Vec<u8>), Status> {
        let invalid = |error| Status::invalid_argument(tollway_model::chain(&error));
        let gateway = Gateway::read(stated).map_err(invalid)?;
        let Gateway { instance, outside, inside, .. } = &gateway;
        // Which of its addresses a gateway has is known to who started it with a gateway's token.
        for address in outside.iter().chain(inside) {
            check_host(*address).map_err(|refusal| address_status(&refusal))?;
        }
        if !(is_system(&self.who.service) && self.who.service.app.as_str() == GATEWAY_APP) {
            return Err(Status::permission_denied(format!(
                "{} may not register as a gateway; use a gateway's token",
                self.who.service
            )));
        }
        self.check_own(&self.who.service, instance)?;
        let others = self.shared.hub.read(|catalogue| catalogue.addresses_beside(instance));
        if others + outside.len().max(inside.len()).max(1) > GATEWAYS_PER_NETWORK_LIMIT {
            return Err(Status::resource_exhausted(format!(
                "the gateways of a network have at most {GATEWAYS_PER_NETWORK_LIMIT} addresses"
            )));
        }
        Ok((Key::Gateway { instance: instance.clone() }, stated.encode_to_vec()))
    }

    fn check_own(&self, service: &ServiceName, instance: &Instance) -> Result<(), Status> {
        if *service == self.who.service && *instance == self.who.instance {
            return Ok(());
        }
        Err(Status::permission_denied(format!(
            "{} (instance {}) may not register {service} (instance {instance})",
            self.who.service, self.who.instance
        )))
    }

    async fn announce(&mut self, key: Key, value: Vec<u8>) -> Result<Answer, StepError> {
        let announced = (key.encode(), Bytes::from(value));
        self.check_key().await?;
        let first = self.announced.is_none();
        let is_same = self.announced.as_ref() == Some(&announced);
        self.announced = Some(announced.clone());
        let revision = if is_same && self.is_kept_alive().await {
            self.revision
        } else if let Some(revision) = self.take_over(&announced).await {
            revision
        } else {
            let burst = self.shared.timing.registration_burst;
            let ready_at = self.shared.paces.next(&announced.0, burst, CHANGES_PER_SECOND);
            let stop = self.shared.background.stop.clone();
            stop.run_until_cancelled(tokio::time::sleep_until(ready_at)).await;
            // A change is a sign of life, and storing it renews no lease.
            self.is_kept_alive().await;
            self.put(announced).await?
        };
        self.revision = revision;
        if first {
            info!(service = %self.who.service, instance = %self.who.instance, revision, "registered");
        }
        let lease = self.shared.timing.lease;
        let lease_ms = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        Ok(Answer::Registered(v1::Registered { revision, lease_ms }))
    }

    /// Whether the key of the caller may announce. That the store does not answer is no fault of the caller's.
    async fn check_key(&self) -> Result<(), StepError> {
        let allowed = self.shared.keys.registering(&self.who).await;
        allowed.map_err(|status| {
            if status.code() == Code::PermissionDenied {
                StepError::Refused(status)
            } else {
                StepError::NotStored(status)
            }
        })
    }

    /// Renews the lease. False if there is none, or it has ended.
    async fn is_kept_alive(&self) -> bool {
        let Some(held) = self.lease else { return false };
        self.shared.store.keep_alive(held.lease).await.is_ok()
    }

    /// Takes over what an earlier stream of the same instance announced, if it is the same and
    /// its lease lives. No watcher sees a change, and nothing is written: many may come back at once
    /// when a control plane was away, or the disk may be full.
    async fn take_over(&mut self, (key, value): &(Bytes, Bytes)) -> Option<u64> {
        if self.lease.is_some() {
            return None;
        }
        let entry = self.shared.store.get(key).await.ok()??;
        let lease = entry.lease.filter(|_| entry.value == *value)?;
        self.shared.store.keep_alive(lease).await.ok()?;
        self.lease = Some(self.shared.holders.take(lease));
        Some(entry.revision)
    }

    async fn put(&mut self, (key, value): (Bytes, Bytes)) -> Result<u64, StepError> {
        for _ in 0..PUT_TRIES {
            let held = match self.lease {
                Some(held) => held,
                None => self.grant().await?,
            };
            let put = Transaction::new().put_leased(key.clone(), value.clone(), held.lease);
            match self.shared.store.transact(put).await {
                Ok(revision) => {
                    // A pod that has ended meanwhile: its end was noted before the announcement was sought,
                    // or is seen here.
                    self.check_key().await?;
                    self.shared.hub.visible(revision).await;
                    return Ok(revision);
                }
                Err(tollway_store::TransactError::NoLease { .. }) => self.let_go(),
                Err(error) => return Err(StepError::NotStored(store_status(&error))),
            }
        }
        Err(Status::unavailable("the lease ended while it was used; try again").into())
    }

    async fn grant(&mut self) -> Result<Held, StepError> {
        let ttl = self.shared.timing.lease;
        let granted = self.shared.store.grant_lease(ttl).await;
        let lease = granted.map_err(|error| StepError::NotStored(store_status(&error)))?;
        let held = self.shared.holders.take(lease);
        self.lease = Some(held);
        Ok(held)
    }

    async fn keep_alive(&mut self) -> Result<Answer, StepError> {
        let (Some(announced), Some(held)) = (self.announced.clone(), self.lease) else {
            let reason = "announce something before keeping it alive";
            return Err(Status::failed_precondition(reason).into());
        };
        match self.shared.store.keep_alive(held.lease).await {
            Ok(_) => {}
            Err(LeaseError::NoLease { .. }) => {
                self.let_go();
                self.check_key().await?;
                let revision = self.put(announced).await?;
                debug!(service = %self.who.service, revision, "a lease had ended; registered again");
            }
            Err(error) => return Err(StepError::NotStored(store_status(&error))),
        }
        Ok(Answer::KeepAliveAck(v1::KeepAliveAck {}))
    }

    /// The lease runs on without this stream.
    fn let_go(&mut self) {
        if let Some(held) = self.lease.take() {
            self.shared.holders.release(held);
        }
    }

    /// Removes the announcement now, unless a newer stream of the same instance holds it.
    async fn leave(&mut self) {
        let Some(held) = self.lease.take() else { return };
        if !self.shared.holders.release(held) {
            return;
        }
        match self.shared.store.revoke(held.lease).await {
            Ok(()) => {
                info!(service = %self.who.service, instance = %self.who.instance, "deregistered")
            }
            Err(LeaseError::NoLease { .. }) => {}
            Err(error) => {
                warn!(error = %tollway_model::chain(&error), "a lease was not revoked; it ends by itself")
            }
        }
    }

    /// Gives a caller whose connection broke time to return on another one: a moment, or its whole
    /// lease if the connection may have broken because this process was suspended.
    async fn leave_after_grace(&mut self) {
        let timing = &self.shared.timing;
        let (grace, lease) = (timing.grace, timing.lease);
        let wait = async {
            tokio::time::sleep(grace).await;
            if self.shared.standstill.ended_within(lease) {
                tokio::time::sleep(lease).await;
            }
        };
        let stop = self.shared.background.stop.clone();
        if stop.run_until_cancelled(wait).await.is_some() {
            self.leave().await;
        }
    }
}

fn address_status(refusal: &AddressRefusal) -> Status {
    let status = Status::permission_denied(refusal.to_string());
    tollway_wire::with_code(status, ErrorCode::AddressRefused)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_registration_that_flaps_is_stored_at_a_bounded_rate_and_others_at_once() {
        const BURST: u32 = 50;
        let paces = Paces::default();
        let (flapping, honest) = (Bytes::from_static(b"evil"), Bytes::from_static(b"web"));
        let began = Instant::now();
        let mut stored = 0;
        while began.elapsed() < Duration::from_secs(100) {
            tokio::time::sleep_until(paces.next(&flapping, BURST, CHANGES_PER_SECOND)).await;
            stored += 1;
        }
        assert!((540..=560).contains(&stored), "{stored} in 100 s");
        assert!(
            paces.next(&honest, BURST, CHANGES_PER_SECOND) <= Instant::now(),
            "others are not held up"
        );
    }
}
