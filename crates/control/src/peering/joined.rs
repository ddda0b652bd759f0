//! One joined network: what is known of it, and why a stream to it ends.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use thiserror::Error;
use tollway_identity::TlsError;
use tollway_model::NetworkName;
use tollway_store::{Expected, ReadError, TransactError, Transaction};
use tollway_wire::ConvertError;

use super::Peering;
use super::dial::DialError;
use super::probe::ProbeError;
use crate::catalogue::Peer;
use crate::key::Key;
use crate::stored;

/// Services that one joined network may state.
pub(super) const PEER_SERVICES_LIMIT: usize = 100_000;

/// Why a stream to a joined network ended.
#[derive(Debug, Error)]
pub(super) enum LinkError {
    #[error("the network is not joined")]
    NotJoined,
    #[error("cannot dial it")]
    Dial(#[from] DialError),
    #[error("no gateway of it answers")]
    Probe(#[from] ProbeError),
    #[error("cannot prepare TLS")]
    Tls(#[from] TlsError),
    #[error("it ended the stream: {0}")]
    Status(String),
    #[error("it was silent for {0:?}")]
    Silent(Duration),
    #[error("it sent something malformed")]
    Convert(#[from] ConvertError),
    #[error("it states more than {PEER_SERVICES_LIMIT} services")]
    TooManyServices,
    #[error(
        "it claims the trust domain {found}, but {pinned} was pinned when it was joined; join it again if that is meant"
    )]
    TrustDomainChanged { pinned: String, found: String },
    #[error("its roots cannot be used; the ones pinned before stay")]
    Roots(#[from] tollway_identity::BundleError),
    #[error("cannot store what it said")]
    Write(#[from] TransactError),
    #[error("cannot read what it said before")]
    Read(#[from] ReadError),
}

/// A network that is joined, or was a moment ago.
pub(super) struct JoinedNetwork {
    pub(super) peering: Arc<Peering>,
    pub(super) network: NetworkName,
}

impl JoinedNetwork {
    pub(super) async fn store_link(&self, link: stored::PeerLink) -> Result<(), LinkError> {
        let trust_key = Key::PeerTrust { network: self.network.clone() }.encode();
        let Some(entry) = self.peering.store.get(&trust_key).await? else {
            return Err(LinkError::NotJoined);
        };
        let put = Transaction::new()
            .when(trust_key, Expected::Revision(entry.revision))
            .put(Key::PeerLink { network: self.network.clone() }.encode(), link.encode_to_vec());
        let revision = self.peering.store.transact(put).await?;
        self.peering.hub.visible(revision).await;
        Ok(())
    }

    pub(super) fn ask<T>(&self, question: impl FnOnce(&Peer) -> T) -> Option<T> {
        self.peering.hub.read(|catalogue| catalogue.find_peer(&self.network).map(question))
    }
}
