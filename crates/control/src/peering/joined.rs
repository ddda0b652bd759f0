//! One joined network: what is known of it, and why a stream to it ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use thiserror::Error;
use tokio::time::Instant;
use tollway_identity::TlsError;
use tollway_model::{ErrorCode, NetworkName};
use tollway_store::{Expected, ReadError, TransactError, Transaction};
use tollway_wire::{ConvertError, v1};
use tracing::{info, warn};

use super::Peering;
use super::admission::TRUST_BYTES_LIMIT;
use super::dial::DialError;
use super::gateways::{self, Decision};
use super::pace::{Interval, PEER_GATEWAYS_WITHIN};
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
    #[error("cannot prepare TLS")]
    Tls(#[from] TlsError),
    #[error("it ended the stream: {0}")]
    Status(String),
    #[error("it was silent for {0:?}")]
    Silent(Duration),
    #[error("it sent something malformed")]
    Convert(#[from] ConvertError),
    #[error(
        "its roots would make the trust of all networks {bytes} bytes long, of at most {TRUST_BYTES_LIMIT}; the ones pinned before stay"
    )]
    TooManyRoots { bytes: usize },
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

impl LinkError {
    /// Whether the other network is what is wrong, so that to try again soon changes nothing.
    pub(super) fn is_theirs(&self) -> bool {
        match self {
            Self::Convert(_)
            | Self::TooManyRoots { .. }
            | Self::TooManyServices
            | Self::TrustDomainChanged { .. }
            | Self::Roots(_) => true,
            Self::NotJoined
            | Self::Dial(_)
            | Self::Tls(_)
            | Self::Status(_)
            | Self::Silent(_)
            | Self::Write(_)
            | Self::Read(_) => false,
        }
    }
}

/// What follows from the gateways that a joined network states.
pub(super) enum Gateways {
    Keep,
    /// They changed a moment ago; see [`JoinedNetwork::next_move_at`].
    Later,
    Move(Vec<SocketAddr>),
}

/// A network that is joined, or was a moment ago.
pub(super) struct JoinedNetwork {
    pub(super) peering: Arc<Peering>,
    pub(super) network: NetworkName,
}

impl JoinedNetwork {
    /// Changes what is stored of its state, if it is another one then. What others change at the same
    /// time stays.
    pub(super) async fn change_link(
        &self,
        change: impl Fn(&mut stored::PeerLink),
    ) -> Result<(), LinkError> {
        let trust_key = Key::PeerTrust { network: self.network.clone() }.encode();
        let link_key = Key::PeerLink { network: self.network.clone() }.encode();
        for last in [false, false, true] {
            let trust = self.peering.store.get(&trust_key).await?.ok_or(LinkError::NotJoined)?;
            let entry = self.peering.store.get(&link_key).await?;
            let expected =
                entry.as_ref().map_or(Expected::Absent, |entry| Expected::Revision(entry.revision));
            let before = entry.and_then(|entry| stored::PeerLink::decode(entry.value).ok());
            let mut link = before.clone().unwrap_or_default();
            change(&mut link);
            if before.as_ref() == Some(&link) {
                return Ok(());
            }
            let put = Transaction::new()
                .when(trust_key.clone(), Expected::Revision(trust.revision))
                .when(link_key.clone(), expected)
                .put(link_key.clone(), link.encode_to_vec());
            match self.peering.store.transact(put).await {
                Ok(revision) => {
                    self.peering.hub.visible(revision).await;
                    return Ok(());
                }
                Err(TransactError::Conflict { .. }) if !last => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Decides about the gateways that the network states, which are to be stored if they move.
    /// `warned`: whether the operator knows of some that are refused.
    pub(super) fn decide_gateways(&self, stated: &[SocketAddr], warned: &mut bool) -> Gateways {
        let (network, counts) = (&self.network, &self.peering.counts);
        let Decision { moved, not_in_bundle, refused } =
            self.peering.hub.read(|catalogue| gateways::decide(catalogue, network, stated));
        counts.gateways_pinned.add(not_in_bundle as u64);
        counts.gateways_refused.add(refused.len() as u64);
        let is_whole = not_in_bundle == 0 && refused.is_empty();
        if !is_whole && !std::mem::replace(warned, true) {
            let code = ErrorCode::AddressRefused;
            let reason = refused.first().map_or_else(
                || {
                    "they are not in its bundle, and it was joined without --follow-gateways"
                        .to_owned()
                },
                ToString::to_string,
            );
            warn!(%code, %network, reason, "a joined network states gateways that are not dialled; if they are meant, accept a new bundle of it");
        }
        let Some(taken) = moved else { return Gateways::Keep };
        let mut moves = self.peering.gateway_moves();
        let interval =
            moves.entry(network.clone()).or_insert_with(|| Interval::new(PEER_GATEWAYS_WITHIN));
        if !interval.may_change() {
            return Gateways::Later;
        }
        interval.changed();
        info!(%network, gateways = taken.len(), "the gateways of a joined network moved");
        Gateways::Move(taken)
    }

    /// Whether these gateways, which it states, have to wait.
    pub(super) fn holds_gateways(&self, stated: &[SocketAddr]) -> bool {
        let is_same = self.ask(|peer| *peer.gateways == *stated).unwrap_or(true);
        !is_same && self.next_move_at() > Instant::now()
    }

    /// When its gateways may move again.
    pub(super) fn next_move_at(&self) -> Instant {
        let moves = self.peering.gateway_moves();
        moves.get(&self.network).map_or_else(Instant::now, Interval::next_at)
    }

    pub(super) fn ask<T>(&self, question: impl FnOnce(&Peer) -> T) -> Option<T> {
        self.peering.hub.read(|catalogue| catalogue.find_peer(&self.network).map(question))
    }
}

/// Gateways as they are stored.
pub(super) fn encode_gateways(gateways: &[SocketAddr]) -> Vec<u8> {
    let addresses = gateways.iter().map(|gateway| (*gateway).into()).collect();
    v1::Gateways { addresses }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_joined_network_sends_wrong_is_its_own_fault_and_a_lost_connection_is_not() {
        let unknown = ConvertError::Missing { field: "app" };
        for error in [
            LinkError::TooManyServices,
            LinkError::TooManyRoots { bytes: TRUST_BYTES_LIMIT + 1 },
            LinkError::Convert(unknown),
            LinkError::TrustDomainChanged { pinned: "east".into(), found: "west".into() },
        ] {
            assert!(error.is_theirs(), "{error}");
        }
        for error in [
            LinkError::NotJoined,
            LinkError::Silent(Duration::from_secs(5)),
            LinkError::Status("h2 protocol error".into()),
            LinkError::Dial(DialError::NoGateway),
        ] {
            assert!(!error.is_theirs(), "{error}");
        }
    }
}
