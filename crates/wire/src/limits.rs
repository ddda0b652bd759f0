//! How much one peer may send. Both ends of a stream know the same numbers.

/// Largest encoded message either side accepts, in bytes.
pub const MESSAGE_LIMIT_BYTES: usize = 4 << 20;

/// Services one data plane may subscribe to.
pub const SUBSCRIPTIONS_PER_STREAM_LIMIT: usize = 10_000;

/// Services in one subscribe, unsubscribe or open request.
pub const SERVICES_PER_REQUEST_LIMIT: usize = SUBSCRIPTIONS_PER_STREAM_LIMIT;

/// Services in one response; a longer list is sent as several.
pub const SERVICES_PER_RESPONSE_LIMIT: usize = 1_000;

/// Ready endpoints stated for one service; more are known and not sent.
pub const ENDPOINTS_PER_SERVICE_LIMIT: usize = 10_000;

/// Ports of one app beside its own that Services of a cluster lead to; those of higher numbers are not
/// served.
pub const PORTS_PER_APP_LIMIT: usize = 100;

/// Zones and regions stated for the replicas of one service; where more are known, those of the last
/// replicas are not sent.
pub const LOCALITIES_PER_SERVICE_LIMIT: usize = 256;

/// Addresses that one gateway states, for other networks and for its own, each.
pub const ADDRESSES_PER_GATEWAY_LIMIT: usize = 16;

/// Addresses of gateways stated for one network.
pub const GATEWAYS_PER_NETWORK_LIMIT: usize = 64;

/// Root certificates of one trust domain: two overlap during a rotation.
pub const ROOTS_PER_TRUST_DOMAIN_LIMIT: usize = 8;

/// Trust domains in one set of bundles: the own network and the joined ones.
pub const TRUST_DOMAINS_LIMIT: usize = 1_024;

/// Revoked identities of one trust domain.
pub const REVOCATIONS_PER_TRUST_DOMAIN_LIMIT: usize = 256;

/// Objects of one kind in one network.
pub const OBJECTS_LIMIT: usize = 10_000;

/// Encoded bytes of all objects of one kind in one network together.
pub const OBJECTS_LIMIT_BYTES: usize = 32 << 20;

/// Objects of one kind that custom resources of one namespace have.
pub const RESOURCES_PER_NAMESPACE_LIMIT: usize = 1_000;

/// Their encoded bytes together.
pub const RESOURCE_BYTES_PER_NAMESPACE_LIMIT: usize = 4 << 20;

/// Objects in one request to apply or to delete them.
pub const OBJECTS_PER_REQUEST_LIMIT: usize = 1_000;

/// Largest object, encoded, in bytes.
pub const OBJECT_LIMIT_BYTES: usize = 64 << 10;

/// Encoded bytes of the objects of one scope: the policies of a service, a namespace or the network,
/// the routes of a service for one set of callers. The policies of the three scopes of a service fit
/// into one message, and so do its routes beside its endpoints.
pub const OBJECT_BYTES_PER_SCOPE_LIMIT: usize = 512 << 10;

/// Actor types that one host offers.
pub const ACTOR_TYPES_PER_HOST_LIMIT: usize = 1_000;

/// Hosts of one actor type: each has a shard at least.
pub const ACTOR_HOSTS_PER_TYPE_LIMIT: usize = 1_024;

/// Apps that the operator may name for one actor type.
pub const APPS_PER_ACTOR_TYPE_LIMIT: usize = 100;

/// Actor types that one stream may follow the owners of.
pub const ACTOR_TYPES_PER_STREAM_LIMIT: usize = 10_000;

/// Longest name of an actor type, in bytes.
pub const ACTOR_TYPE_LIMIT_BYTES: usize = 256;

/// Largest encoded batch of changes to reminders, in bytes.
pub const REMINDERS_REQUEST_BYTES: usize = 1 << 20;

/// Changes in one such batch.
pub const REMINDER_CHANGES_LIMIT: usize = 1_000;

/// Longest id of an actor that has reminders, in bytes.
pub const REMINDER_ACTOR_ID_BYTES: usize = 400;

/// Longest name of a reminder, in bytes.
pub const REMINDER_NAME_BYTES: usize = 300;

/// Most data of a reminder, in bytes.
pub const REMINDER_DATA_BYTES: usize = 64 << 10;

/// Longest key of an app's state, in bytes: with the app's name it is one of the store.
pub const STATE_KEY_BYTES: usize = 800;
/// Largest value of an app's state, in bytes.
pub const STATE_VALUE_BYTES: usize = 1 << 20;
/// Most changes of an app's state in one request.
pub const STATE_CHANGES: usize = 1000;
