//! The settings of each part of Tollway: one struct for each of `tollway sidecar`, `gateway`,
//! `front`, `control` and `run`.
//!
//! A field of such a struct is one setting. From its type, its comment and its attributes follow
//! the key in a settings file, the flag, the default, the JSON Schema, the line of
//! `--print-config`, and whether it changes while the part runs ([`Setting`]). [`merge()`] makes the
//! struct of flags, environment, file and defaults, in this order, and says where each value comes
//! from. [`reload`] follows a file that changes. The structs are serde's and schemars' too, so that
//! an operator can have them in its custom resources.
//!
//! Flags come in as texts ([`Flags`]): their parser, and what a part does with its settings, is
//! left to the caller. Secrets are no settings: they come from a file that a setting names, or from
//! the environment.

#![forbid(unsafe_code)]
#![allow(rustdoc::bare_urls, reason = "the comment of a setting is its help, which is plain text")]

// The derive macro names the crate by its own name, here too.
extern crate self as tollway_settings;

mod field;
mod given;
mod layers;
mod limit_value;
mod merge;
mod part;
mod parts;
mod print;
pub mod reload;
mod schema;
mod serial;
mod setting;
mod store_location;
mod upstream;
mod value;

pub use field::{Field, texts};
pub use given::{Changes, Given, Listing, Origin, ValueInEffect};
pub use layers::{Flags, Layers};
pub use limit_value::LimitValue;
pub use merge::{SettingsError, Survey, from_flags, merge, survey};
pub use part::{PARTS, Part, PartEntry, Settings};
pub use parts::{
    Access, ApiTokens, App, AppHost, Control, DaprFiles, Egress, Etcd, Front, Gateway, Intercept,
    InterceptMode, Location, Log, Member, Plane, RemoteCalls, ReusedKeys, Run, Sidecar, Telemetry,
    WebAccess,
};
pub use schema::schema_text;
pub use setting::{Kind, Setting};
pub use store_location::StoreLocation;
pub use tollway_settings_derive::Settings;
pub use upstream::Upstream;
pub use value::{Millis, RequestPath, Seconds, Share, TraceUrl, Value};
