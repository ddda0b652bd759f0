//! The types of single values: how each is read from text and written to it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use schemars::{Schema, json_schema};
use tollway_config::{AppScheme, request_path};
use tollway_model::{AddressRange, AgentAccount, AreaName, KubeName, Label, TrustDomain};
use tollway_proxy::mesh::{RootPin, Targets};
use tollway_proxy::{FrontTarget, MeshProtocol};
use tollway_routing::SamplingRatio;
use tollway_routing::intercept::{Alias, Spared};
use tollway_telemetry::trace::{TraceEndpoint, TraceProtocol};
use tollway_telemetry::{LogFilter, LogFormat, LogTarget};

use crate::parts::{AppHost, Egress, InterceptMode, RemoteCalls, ReusedKeys};
use crate::store_location::StoreLocation;
use crate::upstream::Upstream;

/// A value of a setting.
pub trait Value: Clone + PartialEq + fmt::Debug + 'static {
    /// All values and what each means, where there are only a few.
    const WORDS: &'static [(&'static str, &'static str)] = &[];
    /// Whether the flag alone, without a value, gives it.
    const IS_SWITCH: bool = false;
    /// Whether it is written `NAME=VALUE`, so that a list of them can be a section of a file.
    const IS_PAIR: bool = false;
    /// One that is valid.
    const EXAMPLE: &'static str;

    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with the text.
    fn read(text: &str) -> Result<Self, String>;

    /// Writes it as [`Value::read`] reads it.
    fn text(&self) -> String;

    /// What a settings file may have. A text is taken as it is written, also where YAML sees a
    /// number in it.
    fn schema() -> Schema {
        any_text()
    }

    /// What a section of a file may have, where a list of values can be one.
    fn section_schema() -> Schema {
        json_schema!({ "type": "object" })
    }
}

/// A time that is written as a number of milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Millis(pub Duration);

/// A time that is written as a number of seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seconds(pub Duration);

/// A share, from 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Share(f64);

/// The path of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestPath(pub String);

/// The URL of a collector of spans. The protocol may be another setting, so that it is not complete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceUrl(pub String);

impl Share {
    /// The ratio by which traces are recorded.
    #[must_use]
    pub fn ratio(self) -> SamplingRatio {
        SamplingRatio::new(self.0).expect("a share is from 0 to 1")
    }
}

/// Types that are read by a function of their own.
macro_rules! read_values {
    ($($kind:ty: $example:literal, $schema:expr, $read:expr, $text:expr;)+) => {$(
        impl Value for $kind {
            const EXAMPLE: &'static str = $example;
            fn read(text: &str) -> Result<Self, String> {
                $read(text)
            }
            fn text(&self) -> String {
                $text(self)
            }
            fn schema() -> Schema {
                $schema
            }
        }
    )+};
}

/// Types that are read and written by `FromStr` and `Display`.
macro_rules! text_values {
    ($($kind:ty: $example:literal, $schema:expr;)+) => {
        read_values! {$(
            $kind: $example, $schema,
                |text: &str| text.parse().map_err(|error: <$kind as FromStr>::Err| error.to_string()),
                ToString::to_string;
        )+}
    };
}

/// A text of any kind.
fn any_text() -> Schema {
    json_schema!({ "type": ["string", "number", "boolean"] })
}

/// A number up to `most`.
fn number(most: u64) -> Schema {
    json_schema!({ "type": "integer", "minimum": 0, "maximum": most })
}

/// A text of a form.
fn pattern(pattern: &str) -> Schema {
    json_schema!({ "type": "string", "pattern": pattern })
}

/// `IP:PORT`, an IPv6 address in brackets.
const ADDRESS: &str = r"^(\[[0-9a-fA-F:.]+\]|[0-9.]+):[0-9]{1,5}$";
/// An address, with or without a prefix.
const RANGE: &str = r"^[0-9a-fA-F:.]+(/[0-9]{1,3})?$";
const IP: &str = r"^([0-9a-fA-F:.]*:[0-9a-fA-F:.]*|[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+)$";

text_values! {
    u16: "8080", number(u64::from(u16::MAX));
    u32: "3", number(u64::from(u32::MAX));
    u64: "70", json_schema!({ "type": "integer", "minimum": 0 });
    usize: "7", json_schema!({ "type": "integer", "minimum": 0 });
    String: "127.0.0.1:15010", any_text();
    Targets: "127.0.0.1:15010,[2001:db8::2]:15010", any_text();
    RootPin: "tollway1-root.west.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", any_text();
    KubeName: "tollway/gateway", pattern("^[^/]+/[^/]+$");
    AgentAccount: "tollway-fabric/racks=racks", pattern("^[^/]+/[^/=]+=[^=]+$");
    IpAddr: "127.0.0.1", pattern(IP);
    SocketAddr: "127.0.0.1:8443", pattern(ADDRESS);
    AddressRange: "10.2.0.0/16", pattern(RANGE);
    Label: "orders", any_text();
    AreaName: "eu-west-1a", pattern("^[0-9A-Za-z_.-]{1,63}$");
    AppScheme: "grpc", json_schema!({ "enum": AppScheme::WORDS });
    FrontTarget: "http://127.0.0.1:8080", pattern("^(http|h2c)://");
    StoreLocation: "etcd://127.0.0.1:2379/tollway/west", any_text();
    Upstream: "5432=db.shop.east", pattern("^[0-9]{1,5}=");
    Alias: "postgres=db.shop.east", pattern("^[0-9A-Za-z_.-]+=");
    Spared: "10.0.0.0/8", json_schema!({ "type": ["string", "number"] });
    LogFilter: "info,tollway_proxy=debug", any_text();
    LogTarget: "/var/log/access.log", any_text();
}

read_values! {
    Millis: "1500", u64::schema(),
        |text| u64::read(text).map(|number| Self(Duration::from_millis(number))),
        |value: &Self| value.0.as_millis().to_string();
    Seconds: "30", u64::schema(),
        |text| u64::read(text).map(|number| Self(Duration::from_secs(number))),
        |value: &Self| value.0.as_secs().to_string();
    Share: "0.5", json_schema!({ "type": "number", "minimum": 0, "maximum": 1 }),
        share, |value: &Self| value.0.to_string();
    RequestPath: "/healthz", pattern("^/"),
        |text| request_path(text).map(Self), |value: &Self| value.0.clone();
    TraceUrl: "http://127.0.0.1:4317", pattern("^https?://"),
        trace_url, |value: &Self| value.0.clone();
    PathBuf: "/run/tollway/file", any_text(),
        |text| Ok(Self::from(text)), |value: &Self| value.display().to_string();
    TrustDomain: "west.tollway", any_text(),
        |text| Self::new(text).map_err(|error| error.to_string()), Self::to_string;
}

fn share(text: &str) -> Result<Share, String> {
    let share = text.parse().ok().filter(|share| SamplingRatio::new(*share).is_some());
    share.map(Share).ok_or_else(|| "it must be a number from 0 to 1, such as 0.01".to_owned())
}

/// Checks it as far as that is possible without the protocol.
fn trace_url(text: &str) -> Result<TraceUrl, String> {
    let checked = TraceEndpoint::parse(text, None).map_err(|error| error.to_string());
    checked.map(|_| TraceUrl(text.to_owned()))
}

impl Value for bool {
    const IS_SWITCH: bool = true;
    const EXAMPLE: &'static str = "true";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("it is true or false, not `{text}`"))
    }

    fn text(&self) -> String {
        self.to_string()
    }

    fn schema() -> Schema {
        json_schema!({ "type": "boolean" })
    }
}

/// Types of a few values, each with its word.
macro_rules! word_values {
    ($($kind:ident { $($variant:ident: $word:literal, $help:literal;)+ })+) => {$(
        impl Value for $kind {
            const WORDS: &'static [(&'static str, &'static str)] = &[$(($word, $help)),+];
            const EXAMPLE: &'static str = Self::WORDS[Self::WORDS.len() - 1].0;
            fn read(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(format!("it is one of {}", [$($word),+].join(", "))),
                }
            }
            fn text(&self) -> String {
                match self {
                    $(Self::$variant => $word,)+
                }
                .to_owned()
            }
            fn schema() -> Schema {
                json_schema!({ "enum": [$($word),+] })
            }
        }
    )+};
}

word_values! {
    MeshProtocol { Http1: "http1", ""; Http2: "http2", ""; }
    TraceProtocol { Grpc: "grpc", ""; Http: "http", ""; }
    AppHost { Service: "service", "The name of the app's service"; Address: "address", "The app's own address"; }
    InterceptMode {
        Auto: "auto", "The way that this machine has; without one the app runs as it is";
        Bpf: "bpf", "Programs of the app's cgroup; without them the app is not started";
        Nftables: "nftables", "A network namespace of the app's own, where nftables redirects; without it the app is not started";
    }
    LogFormat { Text: "text", "For people"; Json: "json", "One JSON object a line"; }
    ReusedKeys {
        Bar: "bar", "The instance renews no more until it is enrolled again";
        Refuse: "refuse", "It is refused, and the holder of the later key goes on";
    }
    Egress {
        Open: "open", "Calls pass as they did before";
        Closed: "closed", "They are refused";
        Shadow: "shadow", "They pass; that they would be refused is counted and logged";
    }
    RemoteCalls {
        Direct: "direct", "They dial the other network's gateway";
        Gateway: "gateway", "They dial their own gateway, which dials the other";
    }
}
