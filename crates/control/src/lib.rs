//! The control plane: registry, discovery, certificate authority, peering.
//!
//! Decisions are pure: `catalogue` derives what callers see from the store's keys, `delta` plans what a stream is sent next, `bundle` signs and checks introductions, `issue` and
//! `tokens` decide who may have a certificate, `revoke` takes identities back. Everything that must survive is in the store, and every
//! revision that data planes see is a revision of the store.

mod addresses;
mod admin;
mod admin_client;
mod admin_port;
mod admin_socket;
mod app;
mod app_state;
mod background;
mod bundle;
mod catalogue;
mod clock;
mod commits;
mod connected;
mod connections;
mod delta;
mod discovery;
mod error;
mod feed;
mod holders;
mod hub;
mod instance_keys;
mod issue;
mod issued;
mod key;
mod linger;
mod metrics;
mod neighbours;
mod objects;
mod options;
mod own;
mod pace;
mod parts;
mod peering;
mod placement;
mod pods;
mod quota;
mod registry;
mod reminders;
mod resources;
mod restored;
mod revoke;
mod services;
mod standstill;
mod status;
mod stored;
mod stores;
mod sweep;
mod tokens;

pub use addresses::AddressRefusal;
pub use admin_client::{AdminClient, AdminError, NeighboursClient, SOCKET_NAME};
pub use app::{ControlPlane, store_file};
pub use bundle::{BUNDLE_LIMIT_BYTES, BundleError, JoinBundle};
pub use error::{OwnCertificateError, StartError};
pub use feed::FeedError;
pub use key::AUTHORITY_KEY;
pub use options::{
    ConnectionOptions, FollowOptions, NeighbourOptions, Options, RemoteCalls, ReusedKeys, Timing,
};
pub use own::{StoredKey, check_stored_key};
pub use peering::admission::JoinError;
pub use peering::bundles::{JoinBundles, NamedBundle};
pub use pods::{
    Announcing, Asking, Following, PartAccounts, PodEvent, PodId, PodOptions, Pods, PodsError,
    ProvenPod, Proving,
};
pub use resources::{
    RefusalReason, Reporting, Resource, ResourceEvent, ResourceKind, ResourceName, ResourceStatus,
    Resources, Verdict,
};
pub use restored::{Restored, RestoredError, confirm_restored};
pub use services::{
    ClusterService, PodGroup, PodPorts, PortTarget, ServedPod, ServiceEvent, Services,
};
