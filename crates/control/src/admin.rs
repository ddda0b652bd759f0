//! The operator's commands, served on a Unix socket in the store's directory. The socket has
//! mode 0600 and the directory 0700: a process that may open it may read the store too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollway_identity::RootPin;
use tollway_model::{Label, Locality, ServiceName, ServiceState};
use tollway_store::Store;
use tollway_wire::v1::admin_server::Admin;
use tollway_wire::v1::create_token_request::Scope as Asked;
use tollway_wire::{APPS_PER_ACTOR_TYPE_LIMIT, ConvertError, v1};
use tonic::{Request, Response, Status};

use crate::app_state::AppState;
use crate::catalogue::{Catalogue, Peer};
use crate::clock::unix_now_ms;
use crate::connected::{Connected, DataPlane};
use crate::connections::OpenConnections;
use crate::hub::Hub;
use crate::issued::IssuedLog;
use crate::objects;
use crate::peering::{Peering, join};
use crate::placement::{Placements, TypeStatus};
use crate::reminders::Reminders;
use crate::revoke::{self, Revoker};
use crate::tokens::{Scope, Tokens};

/// Life of a join token by default.
const TOKEN_TTL: Duration = Duration::from_secs(24 * 3600);
/// Instances that may use a join token by default.
const TOKEN_USES: u32 = 1;
/// Life of a join bundle by default.
const BUNDLE_TTL: Duration = Duration::from_secs(3600);
/// Longest life of either.
const LONGEST_TTL: Duration = Duration::from_secs(366 * 24 * 3600);

pub(crate) struct AdminService {
    pub(crate) store: Store,
    pub(crate) hub: Arc<Hub>,
    pub(crate) connected: Arc<Connected>,
    pub(crate) tokens: Tokens,
    pub(crate) issued: IssuedLog,
    pub(crate) open_connections: Arc<OpenConnections>,
    pub(crate) certificate_ttl: Duration,
    pub(crate) grace: Duration,
    pub(crate) peering: Arc<Peering>,
    pub(crate) placements: Arc<Placements>,
    pub(crate) app_state: Arc<AppState>,
    pub(crate) reminders: Arc<Reminders>,
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn status(
        &self,
        _request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let authority = &self.peering.authority;
        let data_plane = |connected: DataPlane| v1::DataPlane {
            service: Some((&connected.service).into()),
            instance: connected.instance.as_str().to_owned(),
            version: connected.version,
        };
        Ok(Response::new(v1::StatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            network: authority.network().to_string(),
            trust_domain: authority.trust_domain().to_string(),
            now_unix_ms: unix_now_ms(),
            revision: self.store.revision(),
            certificate_ends_unix_s: unix_s(self.peering.credentials().not_after()),
            root_ends_unix_s: unix_s(authority.root_not_after()),
            root_pin: RootPin::of(authority.network(), authority.root_der()).to_string(),
            data_planes: self.connected.list().into_iter().map(data_plane).collect(),
        }))
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        let request = request.into_inner();
        let scope = read_scope(request.scope)?;
        let (uses, ttl) = (request.uses.unwrap_or(TOKEN_USES), ttl(request.ttl_ms, TOKEN_TTL)?);
        let (token, expires_at_unix_ms) = self.tokens.create(&scope, ttl, uses).await?;
        let (id, token) = (token.id(), token.to_string());
        Ok(Response::new(v1::CreateTokenResponse { token, expires_at_unix_ms, id, uses }))
    }

    async fn list_tokens(
        &self,
        request: Request<v1::ListTokensRequest>,
    ) -> Result<Response<v1::ListTokensResponse>, Status> {
        self.tokens.list(request.get_ref()).await.map(Response::new)
    }

    async fn revoke_token(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> Result<Response<v1::RevokeTokenResponse>, Status> {
        let token = Some(self.tokens.revoke(&request.get_ref().id).await?);
        Ok(Response::new(v1::RevokeTokenResponse { token }))
    }

    async fn list_identities(
        &self,
        request: Request<v1::ListIdentitiesRequest>,
    ) -> Result<Response<v1::ListIdentitiesResponse>, Status> {
        let listed = self.issued.list(&self.hub, &self.connected, request.get_ref()).await;
        listed.map(Response::new)
    }

    async fn revoke_identity(
        &self,
        request: Request<v1::RevokeIdentityRequest>,
    ) -> Result<Response<v1::RevokeIdentityResponse>, Status> {
        let identity = request.get_ref().identity.as_ref();
        self.revoker().revoke(identity).await.map(Response::new)
    }

    async fn restore_identity(
        &self,
        request: Request<v1::RestoreIdentityRequest>,
    ) -> Result<Response<v1::RestoreIdentityResponse>, Status> {
        self.revoker().restore(request.get_ref().identity.as_ref()).await?;
        Ok(Response::new(v1::RestoreIdentityResponse {}))
    }

    async fn list_revocations(
        &self,
        _request: Request<v1::ListRevocationsRequest>,
    ) -> Result<Response<v1::ListRevocationsResponse>, Status> {
        Ok(Response::new(revoke::list(&self.hub)))
    }

    async fn list_services(
        &self,
        _request: Request<v1::ListServicesRequest>,
    ) -> Result<Response<v1::ListServicesResponse>, Status> {
        Ok(Response::new(self.hub.read(|catalogue| v1::ListServicesResponse {
            revision: catalogue.revision().0,
            services: list_services(catalogue),
        })))
    }

    async fn list_gateways(
        &self,
        _request: Request<v1::ListGatewaysRequest>,
    ) -> Result<Response<v1::ListGatewaysResponse>, Status> {
        let status = |gateway: &crate::catalogue::Gateway| v1::GatewayStatus {
            instance: gateway.instance.as_str().to_owned(),
            outside: gateway.outside.iter().copied().map(Into::into).collect(),
            inside: gateway.inside.iter().copied().map(Into::into).collect(),
            reaches: gateway.reaches.iter().map(|network| network.as_str().to_owned()).collect(),
        };
        let gateways = self.hub.read(|catalogue| catalogue.gateways().map(status).collect());
        Ok(Response::new(v1::ListGatewaysResponse { gateways }))
    }

    async fn export_join(
        &self,
        request: Request<v1::ExportJoinRequest>,
    ) -> Result<Response<v1::ExportJoinResponse>, Status> {
        let request = request.into_inner();
        let ttl = ttl(request.ttl_ms, BUNDLE_TTL)?;
        let bundle = join::export(&self.peering, ttl, request.follow_gateways).await?;
        Ok(Response::new(v1::ExportJoinResponse { bundle }))
    }

    async fn accept_join(
        &self,
        request: Request<v1::AcceptJoinRequest>,
    ) -> Result<Response<v1::AcceptJoinResponse>, Status> {
        // A caller that goes away must not leave a half-joined network behind.
        let peering = self.peering.clone();
        let request = request.into_inner();
        let accept = self.peering.background.spawn(async move {
            join::accept(&peering, &request.bundle, request.follow_gateways).await
        });
        let bundle = accept.await.map_err(|_| Status::internal("the join was interrupted"))??;
        Ok(Response::new(v1::AcceptJoinResponse {
            network: bundle.network.as_str().to_owned(),
            trust_domain: bundle.trust_domain.to_string(),
        }))
    }

    async fn list_joins(
        &self,
        _request: Request<v1::ListJoinsRequest>,
    ) -> Result<Response<v1::ListJoinsResponse>, Status> {
        let joins = self.hub.read(|catalogue| {
            catalogue.peers().filter_map(|(_, peer)| join_status(peer)).collect()
        });
        Ok(Response::new(v1::ListJoinsResponse { joins }))
    }

    async fn remove_join(
        &self,
        request: Request<v1::RemoveJoinRequest>,
    ) -> Result<Response<v1::RemoveJoinResponse>, Status> {
        let network = tollway_wire::network_name(&request.into_inner().network).map_err(invalid)?;
        join::remove(&self.peering, &network).await?;
        Ok(Response::new(v1::RemoveJoinResponse {}))
    }

    async fn apply_objects(
        &self,
        request: Request<v1::ApplyObjectsRequest>,
    ) -> Result<Response<v1::ChangeObjectsResponse>, Status> {
        objects::apply(&self.store, &self.hub, request.into_inner()).await.map(Response::new)
    }

    async fn list_objects(
        &self,
        request: Request<v1::ListObjectsRequest>,
    ) -> Result<Response<v1::ListObjectsResponse>, Status> {
        objects::list(&self.hub, request.get_ref()).map(Response::new)
    }

    async fn delete_objects(
        &self,
        request: Request<v1::DeleteObjectsRequest>,
    ) -> Result<Response<v1::ChangeObjectsResponse>, Status> {
        objects::delete(&self.store, &self.hub, request.into_inner()).await.map(Response::new)
    }

    async fn list_state(
        &self,
        request: Request<v1::ListStateRequest>,
    ) -> Result<Response<v1::ListStateResponse>, Status> {
        self.app_state.list(request.get_ref()).await.map(Response::new)
    }

    async fn remove_state(
        &self,
        request: Request<v1::RemoveStateRequest>,
    ) -> Result<Response<v1::RemoveStateResponse>, Status> {
        self.app_state.remove(request.into_inner()).await.map(Response::new)
    }

    async fn list_actor_reminders(
        &self,
        request: Request<v1::ListActorRemindersRequest>,
    ) -> Result<Response<v1::ListActorRemindersResponse>, Status> {
        self.reminders.list(request.get_ref()).await.map(Response::new)
    }

    async fn remove_actor_reminders(
        &self,
        request: Request<v1::RemoveActorRemindersRequest>,
    ) -> Result<Response<v1::RemoveActorRemindersResponse>, Status> {
        let removed = self.reminders.remove(request.into_inner()).await?;
        Ok(Response::new(v1::RemoveActorRemindersResponse { removed }))
    }

    async fn list_actor_types(
        &self,
        request: Request<v1::ListActorTypesRequest>,
    ) -> Result<Response<v1::ListActorTypesResponse>, Status> {
        let namespace = match request.get_ref().namespace.as_str() {
            "" => None,
            text => Some(label(text, "namespace")?),
        };
        let status = |namespace: &Label, status: TypeStatus| v1::ActorTypeStatus {
            namespace: namespace.to_string(),
            actor_type: status.actor_type,
            apps: status.apps.iter().map(Label::to_string).collect(),
            named: status.is_named,
            hosts: u32::try_from(status.hosts).unwrap_or(u32::MAX),
            vacant_since_unix_s: status.vacant_since.map_or(0, |since| since.as_secs()),
            refused: status.refused.iter().map(Label::to_string).collect(),
            shared: status.is_shared,
        };
        let mut types = Vec::new();
        for (namespace, known) in self.placements.types(namespace.as_ref()) {
            types.extend(known.into_iter().map(|known| status(&namespace, known)));
        }
        Ok(Response::new(v1::ListActorTypesResponse { types }))
    }

    async fn allow_actor_type(
        &self,
        request: Request<v1::AllowActorTypeRequest>,
    ) -> Result<Response<v1::AllowActorTypeResponse>, Status> {
        let request = request.into_inner();
        let namespace = label(&request.namespace, "namespace")?;
        let actor_type = tollway_wire::actor_type(&request.actor_type).map_err(invalid)?;
        let apps = request.apps.iter().map(|app| label(app, "apps"));
        let apps: BTreeSet<Label> = apps.collect::<Result<_, _>>()?;
        if apps.is_empty() || apps.len() > APPS_PER_ACTOR_TYPE_LIMIT {
            return Err(Status::invalid_argument(format!(
                "{} apps are named; name 1 to {APPS_PER_ACTOR_TYPE_LIMIT}",
                apps.len()
            )));
        }
        self.placements.allow(&namespace, actor_type, apps).await?;
        Ok(Response::new(v1::AllowActorTypeResponse {}))
    }

    async fn release_actor_type(
        &self,
        request: Request<v1::ReleaseActorTypeRequest>,
    ) -> Result<Response<v1::ReleaseActorTypeResponse>, Status> {
        let request = request.into_inner();
        let namespace = label(&request.namespace, "namespace")?;
        let actor_type = tollway_wire::actor_type(&request.actor_type).map_err(invalid)?;
        self.placements.release(&namespace, actor_type).await?;
        Ok(Response::new(v1::ReleaseActorTypeResponse {}))
    }
}

fn label(text: &str, field: &'static str) -> Result<Label, Status> {
    tollway_wire::label(text, field).map_err(invalid)
}

impl AdminService {
    fn revoker(&self) -> Revoker<'_> {
        Revoker {
            store: &self.store,
            hub: &self.hub,
            tokens: &self.tokens,
            open_connections: &self.open_connections,
            certificate_ttl: self.certificate_ttl,
            grace: self.grace,
        }
    }
}

fn read_scope(asked: Option<Asked>) -> Result<Scope, Status> {
    let name = |text: &str, field| -> Result<String, Status> {
        let label: Label = tollway_wire::label(text, field).map_err(invalid)?;
        if label.as_str().eq_ignore_ascii_case(tollway_identity::SYSTEM_NAMESPACE)
            && field == "namespace"
        {
            return Err(Status::invalid_argument(
                "the namespace `tollway` belongs to the mesh itself; for a gateway use --gateway, for an agent of the fabric --fabric",
            ));
        }
        Ok(label.to_lower())
    };
    match asked {
        Some(Asked::Any(_)) => Ok(Scope::Any),
        Some(Asked::Namespace(namespace)) => Ok(Scope::Namespace(name(&namespace, "namespace")?)),
        Some(Asked::App(scope)) => Ok(Scope::App {
            namespace: name(&scope.namespace, "namespace")?,
            app: name(&scope.app, "app")?,
        }),
        Some(Asked::Gateway(_)) => Ok(Scope::Gateway),
        Some(Asked::FabricGroup(group)) => {
            Ok(Scope::Fabric(tollway_wire::neighbour_group(&group).map_err(invalid)?))
        }
        None => Err(Status::invalid_argument("the field `scope` is missing")),
    }
}

fn ttl(asked_ms: u64, default: Duration) -> Result<Duration, Status> {
    let ttl = if asked_ms == 0 { default } else { Duration::from_millis(asked_ms) };
    if ttl > LONGEST_TTL {
        let days = LONGEST_TTL.as_secs() / 86_400;
        return Err(Status::invalid_argument(format!("the longest life is {days} days")));
    }
    Ok(ttl)
}

fn list_services(catalogue: &Catalogue) -> Vec<v1::ServiceStatus> {
    let local = catalogue.local_services().map(|name| {
        let aggregate = catalogue.aggregate(name);
        let workloads = u32::try_from(catalogue.workload_count(name)).unwrap_or(u32::MAX);
        let place = |(locality, ready, workloads): (Locality, u32, u32)| v1::LocalityStatus {
            locality: locality.is_stated().then(|| (&locality).into()),
            ready,
            workloads,
        };
        v1::ServiceStatus {
            localities: catalogue.localities(name).into_iter().map(place).collect(),
            locality_rules: catalogue.objects().traffic_of(name).locality.map(Into::into),
            ..status(name, aggregate.protocol, aggregate.ready_replicas, workloads, true)
        }
    });
    let mut services: BTreeMap<ServiceName, v1::ServiceStatus> = local
        .zip(catalogue.local_services())
        .map(|(status, name)| (name.clone(), status))
        .collect();
    for (network, peer) in catalogue.peers() {
        for ((namespace, app), aggregate) in &peer.services {
            let name = ServiceName {
                app: app.clone(),
                namespace: namespace.clone(),
                network: network.clone(),
            };
            let reachable = matches!(catalogue.state(&name), ServiceState::Remote { .. })
                || peer.link.reachable;
            let protocol = v1::AppProtocol::from(aggregate.protocol).into();
            let status = status(&name, protocol, aggregate.ready_replicas, 0, reachable);
            services.insert(name, status);
        }
    }
    services.into_values().collect()
}

fn status(
    name: &ServiceName,
    protocol: i32,
    ready_replicas: u32,
    workloads: u32,
    reachable: bool,
) -> v1::ServiceStatus {
    v1::ServiceStatus {
        service: Some(name.into()),
        protocol,
        ready_replicas,
        workloads,
        reachable,
        ..v1::ServiceStatus::default()
    }
}

fn join_status(peer: &Peer) -> Option<v1::JoinStatus> {
    let trust = peer.joined()?;
    Some(v1::JoinStatus {
        network: trust.network.as_str().to_owned(),
        trust_domain: trust.trust_domain.to_string(),
        gateways: peer.gateways.iter().map(|gateway| (*gateway).into()).collect(),
        reachable: peer.link.reachable,
        services: u32::try_from(peer.services.len()).unwrap_or(u32::MAX),
        revision: peer.cursor,
        last_error: peer.link.last_error.clone(),
        version: peer.link.version.clone(),
        roots_end_unix_s: trust.roots_end().map_or(0, unix_s),
        follow_gateways: trust.follow_gateways,
        dials_out: peer.dials_out(),
    })
}

fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn invalid(error: ConvertError) -> Status {
    Status::invalid_argument(tollway_model::chain(&error))
}
