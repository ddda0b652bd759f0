//! The stores of a control plane: files of a directory, or etcd, where another process can continue
//! them.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use tollway_store::{Etcd, EtcdError, Limits, OpenError, Store};

use crate::options::Options;

/// What opens stores by their names.
#[derive(Clone, Debug)]
pub(crate) enum Stores {
    Directory(PathBuf),
    Etcd(Arc<Etcd>),
}

impl Stores {
    /// With etcd, waits until no other control plane serves from there; `other_master` gets its name.
    pub(crate) async fn begin(
        options: &Options,
        other_master: watch::Sender<Option<String>>,
    ) -> Result<Self, EtcdError> {
        Ok(match &options.etcd {
            Some(etcd) => Self::Etcd(Etcd::connect(etcd.clone(), other_master).await?),
            None => Self::Directory(options.store.clone()),
        })
    }

    pub(crate) async fn open(&self, name: &str, limits: Limits) -> Result<Store, OpenError> {
        match self {
            Self::Directory(directory) => Store::open_embedded(&directory.join(name), limits).await,
            Self::Etcd(etcd) => Store::open_etcd(Arc::clone(etcd), name, limits).await,
        }
    }

    /// Completes when another process may have gone on with the stores.
    pub(crate) async fn lost(&self) {
        match self {
            Self::Directory(_) => std::future::pending().await,
            Self::Etcd(etcd) => etcd.lost().await,
        }
    }

    /// Lets another process go on with them at once.
    pub(crate) async fn release(&self) {
        if let Self::Etcd(etcd) = self {
            etcd.release().await;
        }
    }
}
