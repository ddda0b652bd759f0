//! Protobuf messages and services between the parts, and conversions to the model.
//!
//! [`v1`] and [`dapr`] are generated from `proto/` by `cargo xtask codegen` and checked in. What
//! arrives from a peer is only a claim: it becomes a type of crate `model` by the conversions
//! here, which check every field and name the one that is wrong.

mod egress;
mod error;
mod failover;
mod failure;
mod limits;
mod name;
mod neighbours;
mod object;
mod placement;
mod policy;
mod reminders;
mod route;
mod service;
mod state;
mod traffic_policy;

pub use egress::{egress, egress_rules};
pub use error::ConvertError;
pub use failover::failover;
pub use failure::{clock_unix_ms_of, code_of, with_clock, with_code};
pub use generated::{dapr, v1};
pub use limits::{
    ACTOR_HOSTS_PER_TYPE_LIMIT, ACTOR_TYPE_LIMIT_BYTES, ACTOR_TYPES_PER_HOST_LIMIT,
    ACTOR_TYPES_PER_STREAM_LIMIT, ADDRESSES_PER_GATEWAY_LIMIT, APPS_PER_ACTOR_TYPE_LIMIT,
    ENDPOINTS_PER_SERVICE_LIMIT, GATEWAYS_PER_NETWORK_LIMIT, LOCALITIES_PER_SERVICE_LIMIT,
    MESSAGE_LIMIT_BYTES, OBJECT_BYTES_PER_SCOPE_LIMIT, OBJECT_LIMIT_BYTES, OBJECTS_LIMIT,
    OBJECTS_LIMIT_BYTES, OBJECTS_PER_REQUEST_LIMIT, PORTS_PER_APP_LIMIT, REMINDER_ACTOR_ID_BYTES,
    REMINDER_CHANGES_LIMIT, REMINDER_DATA_BYTES, REMINDER_NAME_BYTES, REMINDERS_REQUEST_BYTES,
    RESOURCE_BYTES_PER_NAMESPACE_LIMIT, RESOURCES_PER_NAMESPACE_LIMIT,
    REVOCATIONS_PER_TRUST_DOMAIN_LIMIT, ROOTS_PER_TRUST_DOMAIN_LIMIT, SERVICES_PER_REQUEST_LIMIT,
    SERVICES_PER_RESPONSE_LIMIT, STATE_CHANGES, STATE_KEY_BYTES, STATE_VALUE_BYTES,
    SUBSCRIPTIONS_PER_STREAM_LIMIT, TRUST_DOMAINS_LIMIT,
};
pub use name::{
    address, addresses, called_name, instance, label, network_name, revocation, revocations,
    service_name, trust_domain,
};
pub use neighbours::{neighbour, neighbour_group, neighbour_key, neighbour_to_delete};
pub use object::{object, object_id, object_kind, set_created};
pub use placement::{
    ActorHost, actor_type, grants, held, order, owners, read_grant, read_owners, shard_bytes,
    shard_set,
};
pub use policy::{policies, policy};
pub use reminders::{
    Registration, Reminder, ReminderChange, ReminderKey, ReminderResult, reminder, reminder_change,
    reminder_result,
};
pub use route::route;
pub use service::{
    NetworkState, NetworkUpdate, locality, network_update, probe_secret, probe_secret_bytes,
    protocol, served_ports, service_routes, service_state, service_traffic, service_update,
    workload,
};
pub use state::{StateWriteError, check_state_write};
pub use traffic_policy::{locality_rules, own_traffic, traffic_policy};

/// The reflection data of `dapr`'s services: a `google.protobuf.FileDescriptorSet`.
pub const DAPR_DESCRIPTORS: &[u8] = include_bytes!("generated/dapr.descriptors");

/// The descriptors of the mesh's own services: a `google.protobuf.FileDescriptorSet`.
pub const TOLLWAY_DESCRIPTORS: &[u8] = include_bytes!("generated/tollway.descriptors");

/// Messages, clients and servers.
#[allow(
    clippy::all,
    unreachable_pub,
    unused_qualifications,
    clippy::wildcard_enum_match_arm,
    clippy::allow_attributes_without_reason,
    clippy::large_futures,
    clippy::unused_async,
    reason = "written by a generator"
)]
mod generated {
    /// Of package `tollway.v1`.
    pub mod v1 {
        include!("generated/tollway.v1.rs");
    }

    /// The part of Dapr's public API that is spoken here; its packages as modules.
    pub mod dapr {
        pub mod proto {
            pub mod common {
                pub mod v1 {
                    include!("generated/dapr.proto.common.v1.rs");
                }
            }
            pub mod runtime {
                pub mod v1 {
                    include!("generated/dapr.proto.runtime.v1.rs");
                }
            }
        }
    }
}
