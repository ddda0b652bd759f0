//! Join bundles in a Secret, for the control plane that accepts them.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::sync::{mpsc, watch};
use tollway_control::{Following, JoinBundles, NamedBundle};
use tollway_model::KubeName;

use crate::Cluster;
use crate::follow::{Seen, follow};

/// The annotation of the Secret by which gateways of the networks in it may move without a new bundle.
const FOLLOW_GATEWAYS: &str = "tollway.dev/follow-gateways";

/// The Secret of a cluster that has join bundles, each under a key of its own.
pub struct BundleSecret {
    client: Client,
    at: KubeName,
}

impl std::fmt::Debug for BundleSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BundleSecret").field("at", &self.at).finish_non_exhaustive()
    }
}

impl BundleSecret {
    /// The Secret `at` in a cluster.
    #[must_use]
    pub fn of(cluster: &Cluster, at: KubeName) -> Self {
        Self { client: cluster.client.clone(), at }
    }

    async fn report(&self, bundles: mpsc::Sender<Vec<NamedBundle>>) {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.at.namespace);
        let seen = watch::Sender::new(Seen::Unknown);
        let mut changes = seen.subscribe();
        let sending = async {
            while changes.changed().await.is_ok() {
                let list = changes.borrow_and_update().there().map(bundles_of);
                if bundles.send(list.unwrap_or_default()).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = follow(secrets, &self.at.name, &seen) => {}
            () = sending => {}
        }
    }
}

impl JoinBundles for BundleSecret {
    fn follow(&self, bundles: mpsc::Sender<Vec<NamedBundle>>) -> Following<'_> {
        Box::pin(self.report(bundles))
    }
}

fn bundles_of(secret: &Secret) -> Vec<NamedBundle> {
    let annotations = secret.metadata.annotations.as_ref();
    let follows = annotations.and_then(|all| all.get(FOLLOW_GATEWAYS));
    let follow_gateways = follows.is_some_and(|value| value == "true");
    let bundle = |(name, file): (&String, &k8s_openapi::ByteString)| NamedBundle {
        name: name.clone(),
        file: file.0.clone(),
        follow_gateways,
    };
    secret.data.iter().flatten().map(bundle).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_key_of_the_secret_is_a_bundle() {
        let of = |annotations| {
            let secret = json!({
                "metadata": {"name": "tollway-joins", "annotations": annotations},
                "data": {"east": "e30=", "north": "W10="},
            });
            bundles_of(&serde_json::from_value(secret).unwrap())
        };
        let bundle = |name: &str, file: &[u8], follow_gateways| NamedBundle {
            name: name.to_owned(),
            file: file.to_owned(),
            follow_gateways,
        };
        let both = |follows| vec![bundle("east", b"{}", follows), bundle("north", b"[]", follows)];
        assert_eq!(of(json!(null)), both(false));
        assert_eq!(of(json!({"tollway.dev/follow-gateways": "true"})), both(true));
        assert_eq!(of(json!({"tollway.dev/follow-gateways": "no"})), both(false));
        assert_eq!(bundles_of(&Secret::default()), []);
    }
}
