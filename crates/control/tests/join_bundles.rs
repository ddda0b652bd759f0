//! Bundles in a Secret of a cluster are accepted without a command.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::{Network, PATIENCE};
use tokio::sync::{mpsc, watch};
use tollway_control::{Following, JoinBundles, NamedBundle};

/// What a cluster would report.
#[derive(Debug, Default)]
struct BundleStore(watch::Sender<Vec<NamedBundle>>);

impl JoinBundles for BundleStore {
    fn follow(&self, bundles: mpsc::Sender<Vec<NamedBundle>>) -> Following<'_> {
        let mut seen = self.0.subscribe();
        seen.mark_changed();
        Box::pin(async move {
            while seen.changed().await.is_ok() {
                let list = seen.borrow_and_update().clone();
                if bundles.send(list).await.is_err() {
                    return;
                }
            }
        })
    }
}

impl BundleStore {
    fn set(&self, bundles: &[(&str, &[u8])]) {
        let bundle = |(name, file): &(&str, &[u8])| NamedBundle {
            name: (*name).to_owned(),
            file: (*file).to_vec(),
            follow_gateways: false,
        };
        self.0.send_replace(bundles.iter().map(bundle).collect());
    }
}

async fn until_joined(network: &mut Network, expected: &[&str]) {
    let joined = async {
        loop {
            let joins = network.admin.joins().await.unwrap();
            let mut names: Vec<&str> = joins.iter().map(|join| join.network.as_str()).collect();
            names.sort_unstable();
            if names == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, joined).await.unwrap();
}

#[tokio::test]
async fn networks_are_joined_by_bundles_of_a_secret_and_mistakes_hurt_no_other() {
    let secret = Arc::new(BundleStore::default());
    let bundles: Arc<dyn JoinBundles> = Arc::<BundleStore>::clone(&secret);
    let mut west =
        Network::start_with("west", |options| options.join_bundles = Some(bundles)).await;
    let mut east = Network::start("east").await;
    let mut north = Network::start("north").await;
    let (_east_relay, _of_east) = east.open_gateway().await;
    let (_north_relay, _of_north) = north.open_gateway().await;
    let (_west_relay, _of_west) = west.open_gateway().await;
    let of_east = east.admin.export_join(0).await.unwrap();
    secret.set(&[("broken", b"{}"), ("east", &of_east)]);
    until_joined(&mut west, &["east"]).await;
    until_joined(&mut east, &["west"]).await;
    // The secret of the first one is spent; the second one is new.
    let of_north = north.admin.export_join(0).await.unwrap();
    secret.set(&[("east", &of_east), ("north", &of_north)]);
    until_joined(&mut west, &["east", "north"]).await;
    // A key that is taken out, and a restart, change nothing.
    secret.set(&[("east", &of_east)]);
    let mut west = west.restart().await;
    until_joined(&mut west, &["east", "north"]).await;
    let own = west.admin.export_join(0).await.unwrap();
    secret.set(&[("own", &own)]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    until_joined(&mut west, &["east", "north"]).await;
}

/// The other side is away when the bundle comes, and there later.
#[tokio::test]
async fn a_bundle_is_accepted_once_its_network_answers() {
    let secret = Arc::new(BundleStore::default());
    let bundles: Arc<dyn JoinBundles> = Arc::<BundleStore>::clone(&secret);
    let mut west =
        Network::start_with("west", |options| options.join_bundles = Some(bundles)).await;
    let mut east = Network::start("east").await;
    let (east_relay, _of_east) = east.open_gateway().await;
    let (_west_relay, _of_west) = west.open_gateway().await;
    let of_east = east.admin.export_join(0).await.unwrap();
    east_relay.cut();
    secret.set(&[("east", &of_east)]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    east_relay.restore(east.address);
    until_joined(&mut east, &["west"]).await;
    until_joined(&mut west, &["east"]).await;
}
