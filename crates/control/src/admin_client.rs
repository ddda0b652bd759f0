//! The other end of the admin socket, for the command line.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::UnixStream;
use tollway_model::ErrorCode;
use tollway_wire::v1;
use tollway_wire::v1::admin_client::AdminClient as Client;
use tollway_wire::v1::neighbours_client;
use tollway_wire::{MESSAGE_LIMIT_BYTES, OBJECTS_LIMIT_BYTES};
use tonic::transport::{Channel, Endpoint, Uri};

/// Name of the socket in the store's directory.
pub const SOCKET_NAME: &str = "admin.sock";
/// Most bytes of a status: it lists every connected data plane.
const STATUS_LIMIT_BYTES: usize = 64 * 1024 * 1024;

/// A control plane that does not answer a ping is given up after both; an answer may take longer.
const PING_EVERY: Duration = Duration::from_secs(3);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Largest answer, in bytes: every object of a kind that there can be, and some more.
const ANSWER_LIMIT_BYTES: usize = OBJECTS_LIMIT_BYTES + MESSAGE_LIMIT_BYTES;

/// Why a command did not reach the control plane, or was refused.
#[derive(Debug, Error)]
pub enum AdminError {
    #[error("no control plane answers at {}; is `tollway control --store` running with this directory, as this user?", path.display())]
    Connect { path: PathBuf, source: tonic::transport::Error },
    #[error("the control plane does not answer any more; look whether it is stopped or overloaded")]
    Lost(#[source] tonic::Status),
    #[error("{}", .0.message())]
    Refused(tonic::Status),
}

impl From<tonic::Status> for AdminError {
    /// The control plane's error has no cause on this side.
    fn from(status: tonic::Status) -> Self {
        if status.source().is_some() { Self::Lost(status) } else { Self::Refused(status) }
    }
}

impl AdminError {
    /// Its entry in the catalogue of failures.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Connect { .. } | Self::Lost(_) => ErrorCode::NoControlPlane,
            Self::Refused(status) => {
                tollway_wire::code_of(status).unwrap_or(ErrorCode::AdminRefused)
            }
        }
    }
}

/// A connection to the control plane that runs over the store in a directory.
#[derive(Debug, Clone)]
pub struct AdminClient(Client<Channel>, NeighboursClient);

/// A client of the neighbours of the fabric.
pub type NeighboursClient = neighbours_client::NeighboursClient<Channel>;

impl AdminClient {
    /// Connects to `<store>/admin.sock`.
    ///
    /// # Errors
    /// [`AdminError::Connect`] when no control plane listens there.
    pub async fn connect(store: &Path) -> Result<Self, AdminError> {
        let path = store.join(SOCKET_NAME);
        let socket = path.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://admin.mesh")
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .connect_with_connector(connector)
            .await
            .map_err(|source| AdminError::Connect { path, source })?;
        let neighbours = neighbours_client::NeighboursClient::new(channel.clone());
        Ok(Self(Client::new(channel).max_decoding_message_size(ANSWER_LIMIT_BYTES), neighbours))
    }

    /// The neighbours of the fabric. What is refused there is an [`AdminError`] too.
    #[must_use]
    pub fn neighbours(&self) -> NeighboursClient {
        self.1.clone()
    }

    /// What runs there, and who follows it.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn status(&mut self) -> Result<v1::StatusResponse, AdminError> {
        let mut client = self.0.clone().max_decoding_message_size(STATUS_LIMIT_BYTES);
        Ok(client.status(v1::StatusRequest {}).await?.into_inner())
    }

    /// Makes a join token.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn create_token(
        &mut self,
        request: v1::CreateTokenRequest,
    ) -> Result<v1::CreateTokenResponse, AdminError> {
        Ok(self.0.create_token(request).await?.into_inner())
    }

    /// A page of the join tokens that are remembered.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn tokens(
        &mut self,
        request: v1::ListTokensRequest,
    ) -> Result<v1::ListTokensResponse, AdminError> {
        Ok(self.0.list_tokens(request).await?.into_inner())
    }

    /// Takes a join token back.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn revoke_token(
        &mut self,
        id: String,
    ) -> Result<v1::RevokeTokenResponse, AdminError> {
        Ok(self.0.revoke_token(v1::RevokeTokenRequest { id }).await?.into_inner())
    }

    /// A page of the instances whose certificates run.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn identities(
        &mut self,
        request: v1::ListIdentitiesRequest,
    ) -> Result<v1::ListIdentitiesResponse, AdminError> {
        Ok(self.0.list_identities(request).await?.into_inner())
    }

    /// Takes the identity of an app or of an instance back.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn revoke_identity(
        &mut self,
        identity: v1::RevokedIdentity,
    ) -> Result<v1::RevokeIdentityResponse, AdminError> {
        let request = v1::RevokeIdentityRequest { identity: Some(identity) };
        Ok(self.0.revoke_identity(request).await?.into_inner())
    }

    /// Ends a revocation.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn restore_identity(
        &mut self,
        identity: v1::RevokedIdentity,
    ) -> Result<(), AdminError> {
        let request = v1::RestoreIdentityRequest { identity: Some(identity) };
        self.0.restore_identity(request).await?;
        Ok(())
    }

    /// What is revoked, in this network and in joined ones.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn revocations(&mut self) -> Result<Vec<v1::RevocationStatus>, AdminError> {
        let request = v1::ListRevocationsRequest {};
        Ok(self.0.list_revocations(request).await?.into_inner().revocations)
    }

    /// Every known service, of this network and of joined ones.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn services(&mut self) -> Result<v1::ListServicesResponse, AdminError> {
        Ok(self.0.list_services(v1::ListServicesRequest {}).await?.into_inner())
    }

    /// The gateways of this network.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn gateways(&mut self) -> Result<Vec<v1::GatewayStatus>, AdminError> {
        Ok(self.0.list_gateways(v1::ListGatewaysRequest {}).await?.into_inner().gateways)
    }

    /// A join bundle (a JSON file that holds a secret); `ttl_ms` is its validity in milliseconds, 0 means an hour.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn export_join(&mut self, ttl_ms: u64) -> Result<Vec<u8>, AdminError> {
        self.export_join_with(v1::ExportJoinRequest { ttl_ms, follow_gateways: false }).await
    }

    /// The same, with all that can be chosen.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn export_join_with(
        &mut self,
        request: v1::ExportJoinRequest,
    ) -> Result<Vec<u8>, AdminError> {
        Ok(self.0.export_join(request).await?.into_inner().bundle)
    }

    /// Joins the network of `bundle`.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn accept_join(
        &mut self,
        bundle: Vec<u8>,
    ) -> Result<v1::AcceptJoinResponse, AdminError> {
        self.accept_join_with(v1::AcceptJoinRequest { bundle, follow_gateways: false }).await
    }

    /// The same, with all that can be chosen.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn accept_join_with(
        &mut self,
        request: v1::AcceptJoinRequest,
    ) -> Result<v1::AcceptJoinResponse, AdminError> {
        Ok(self.0.accept_join(request).await?.into_inner())
    }

    /// The joined networks.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn joins(&mut self) -> Result<Vec<v1::JoinStatus>, AdminError> {
        Ok(self.0.list_joins(v1::ListJoinsRequest {}).await?.into_inner().joins)
    }

    /// Creates or replaces objects, all or none.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn apply_objects(
        &mut self,
        request: v1::ApplyObjectsRequest,
    ) -> Result<v1::ChangeObjectsResponse, AdminError> {
        Ok(self.0.apply_objects(request).await?.into_inner())
    }

    /// The objects of a kind, of a namespace or of a name; empty texts mean any.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn objects(
        &mut self,
        request: v1::ListObjectsRequest,
    ) -> Result<v1::ListObjectsResponse, AdminError> {
        Ok(self.0.list_objects(request).await?.into_inner())
    }

    /// Removes objects.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn delete_objects(
        &mut self,
        request: v1::DeleteObjectsRequest,
    ) -> Result<v1::ChangeObjectsResponse, AdminError> {
        Ok(self.0.delete_objects(request).await?.into_inner())
    }

    /// Which apps may host which actor types, of a namespace or, if it is empty, of all.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn actor_types(
        &mut self,
        namespace: &str,
    ) -> Result<Vec<v1::ActorTypeStatus>, AdminError> {
        let request = v1::ListActorTypesRequest { namespace: namespace.to_owned() };
        Ok(self.0.list_actor_types(request).await?.into_inner().types)
    }

    /// Has the named apps, and no others, host an actor type.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn allow_actor_type(
        &mut self,
        request: v1::AllowActorTypeRequest,
    ) -> Result<(), AdminError> {
        self.0.allow_actor_type(request).await?;
        Ok(())
    }

    /// Lets the next app that offers an actor type have it.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn release_actor_type(
        &mut self,
        request: v1::ReleaseActorTypeRequest,
    ) -> Result<(), AdminError> {
        self.0.release_actor_type(request).await?;
        Ok(())
    }

    /// Ends the trust in a joined network.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn remove_join(&mut self, network: &str) -> Result<(), AdminError> {
        let network = network.to_owned();
        self.0.remove_join(v1::RemoveJoinRequest { network }).await?;
        Ok(())
    }

    /// What apps keep in the state of the network.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn state(
        &mut self,
        request: v1::ListStateRequest,
    ) -> Result<v1::ListStateResponse, AdminError> {
        Ok(self.0.list_state(request).await?.into_inner())
    }

    /// Removes entries of an app, and returns what they were.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn remove_state(
        &mut self,
        request: v1::RemoveStateRequest,
    ) -> Result<v1::StateUsage, AdminError> {
        Ok(self.0.remove_state(request).await?.into_inner().removed.unwrap_or_default())
    }

    /// The reminders of actors that are stored.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn actor_reminders(
        &mut self,
        request: v1::ListActorRemindersRequest,
    ) -> Result<v1::ListActorRemindersResponse, AdminError> {
        Ok(self.0.list_actor_reminders(request).await?.into_inner())
    }

    /// Removes reminders of an actor type without hosts, and returns how many they were.
    ///
    /// # Errors
    /// [`AdminError::Refused`].
    pub async fn remove_actor_reminders(
        &mut self,
        request: v1::RemoveActorRemindersRequest,
    ) -> Result<u64, AdminError> {
        Ok(self.0.remove_actor_reminders(request).await?.into_inner().removed)
    }
}
