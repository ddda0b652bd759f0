//! Join bundles that an operator keeps in a cluster, in place of commands: each is accepted as soon as it is
//! there, unless its network is joined.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tracing::{info, warn};

use super::Peering;
use super::admission::JoinError;
use super::join;
use crate::bundle::JoinBundle;
use crate::catalogue::{Catalogue, Peer};
use crate::pods::Following;

/// Lists that wait; only the last one counts.
const LISTS_LIMIT: usize = 1;
/// Bundles of one list; the rest is left out.
const BUNDLES_LIMIT: usize = 256;
/// Bundles that could not be accepted are tried again after this, at first and at most.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(10);
const TRIED_AGAIN_WITHIN: Duration = Duration::from_secs(300);

/// A join bundle of an operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedBundle {
    /// How the operator calls it.
    pub name: String,
    /// As `tollway join export` prints it.
    pub file: Vec<u8>,
    /// Whether the network's gateways may move later without a new bundle.
    pub follow_gateways: bool,
}

/// Where an operator keeps join bundles.
pub trait JoinBundles: Send + Sync + fmt::Debug {
    /// Reports all bundles that there are, now and after each change. While there is no answer it reports nothing,
    /// and tries again.
    fn follow(&self, bundles: mpsc::Sender<Vec<NamedBundle>>) -> Following<'_>;
}

/// Accepts them until it is dropped.
pub(crate) async fn follow(peering: Arc<Peering>, kept: Arc<dyn JoinBundles>) {
    let (sender, lists) = mpsc::channel(LISTS_LIMIT);
    tokio::join!(kept.follow(sender), accept_all(peering, lists));
}

async fn accept_all(peering: Arc<Peering>, mut lists: mpsc::Receiver<Vec<NamedBundle>>) {
    let mut open: Vec<NamedBundle> = Vec::new();
    let mut complaints = BTreeSet::new();
    let mut pause = TRIED_AGAIN_AFTER;
    loop {
        tokio::select! {
            list = lists.recv() => {
                let Some(list) = list else { return };
                complaints.clear();
                pause = TRIED_AGAIN_AFTER;
                open = list;
                open.truncate(BUNDLES_LIMIT);
            }
            () = tokio::time::sleep(pause), if !open.is_empty() => {
                pause = (pause * 2).min(TRIED_AGAIN_WITHIN);
            }
        }
        let mut later = Vec::new();
        for bundle in open {
            let NamedBundle { name, file, follow_gateways } = &bundle;
            match accept(&peering, file, *follow_gateways).await {
                Ok(Accepted::Now(network)) => info!(bundle = name, network, "a bundle is accepted"),
                Ok(Accepted::Before(network)) => {
                    info!(bundle = name, network, "the network of a bundle is joined already");
                }
                Err(error) => {
                    let is_hopeless = is_hopeless(&error);
                    let error = tollway_model::chain(&error);
                    if complaints.insert((name.clone(), error.clone())) {
                        warn!(
                            bundle = name,
                            error,
                            tries_again = !is_hopeless,
                            "a bundle is not accepted"
                        );
                    }
                    if !is_hopeless {
                        later.push(bundle);
                    }
                }
            }
        }
        open = later;
    }
}

/// When a network was joined.
enum Accepted {
    Now(String),
    Before(String),
}

async fn accept(
    peering: &Arc<Peering>,
    file: &[u8],
    follow_gateways: bool,
) -> Result<Accepted, JoinError> {
    if let Some(bundle) = when_issued(file)
        && peering.hub.read(|catalogue| is_joined(catalogue, &bundle))
    {
        return Ok(Accepted::Before(bundle.network.to_string()));
    }
    let bundle = join::accept(peering, file, follow_gateways).await?;
    Ok(Accepted::Now(bundle.network.to_string()))
}

/// The bundle as it was issued: one that has expired since serves no more, and its network may be joined.
fn when_issued(file: &[u8]) -> Option<JoinBundle> {
    let stated: serde_json::Value = serde_json::from_slice(file).ok()?;
    JoinBundle::verify(file, stated.get("issued_at_unix_ms")?.as_u64()?).ok()
}

/// Whether the network of a bundle is joined. Where its gateways are is then known from elsewhere, and may have
/// changed since the bundle was made.
fn is_joined(catalogue: &Catalogue, bundle: &JoinBundle) -> bool {
    catalogue.find_peer(&bundle.network).and_then(Peer::joined).is_some()
}

/// Whether the same bundle can never be accepted here, as long as everything else stays as it is.
fn is_hopeless(error: &JoinError) -> bool {
    matches!(
        error,
        JoinError::Bundle(_)
            | JoinError::OwnNetwork { .. }
            | JoinError::SameName { .. }
            | JoinError::OnlyDialsOut { .. }
            | JoinError::Secret(_)
    )
}
