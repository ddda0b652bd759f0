//! The settings of an app beside its sidecar: its address and protocol, concurrency limit, health
//! checks, tokens, and Dapr's files about it.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use tollway_config::AppScheme;
use tollway_model::HostNames;
use tollway_proxy::{AppOptions, HealthCheck, WebPages};

use crate::{Millis, RequestPath, Settings};

/// Which host calls of others name to the app.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AppHost {
    /// The name of its service.
    #[default]
    Service,
    /// Its own address.
    Address,
}

/// How a sidecar calls its app.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct App {
    /// Address of the app.
    #[setting(form = "IP", default = "127.0.0.1")]
    pub app_address: IpAddr,
    /// The host that calls of others name to the app: `service` for the name of its service, `address`
    /// for its own address, for apps that refuse hosts that they do not know.
    #[setting(form = "HOST", default = "service")]
    pub app_host: AppHost,
    /// Protocol of the app: http, https, h2c, grpc, grpcs or tcp.
    #[setting(form = "PROTOCOL", default = "http")]
    pub app_protocol: AppScheme,
    /// Concurrency limit of the app; further requests wait [default: none].
    #[setting(form = "COUNT", range(1, 1_000_000))]
    pub app_max_concurrency: Option<usize>,
    /// Check the health of the app, and call it only while it is healthy.
    #[setting()]
    pub enable_app_health_check: bool,
    /// Path of the health check over HTTP; 2xx means healthy.
    #[setting(form = "PATH", default = "/healthz")]
    pub app_health_check_path: RequestPath,
    /// Time between two health checks, in milliseconds.
    #[setting(form = "MS", default = "5000", least(1))]
    pub app_health_probe_interval_ms: Millis,
    /// Time for the answer to a health check, in milliseconds.
    #[setting(form = "MS", default = "500", least(1))]
    pub app_health_probe_timeout_ms: Millis,
    /// Failed health checks in a row that make the app unhealthy; one that succeeds makes it healthy.
    #[setting(form = "COUNT", default = "3", least(1))]
    pub app_health_threshold: u32,
}

impl App {
    /// The app at a port.
    #[must_use]
    pub fn at(&self, port: u16) -> AppOptions {
        let health_check = self.enable_app_health_check.then(|| HealthCheck {
            path: self.app_health_check_path.0.clone(),
            interval: self.app_health_probe_interval_ms.0,
            timeout: self.app_health_probe_timeout_ms.0,
            threshold: self.app_health_threshold,
        });
        let address = SocketAddr::new(self.app_address, port);
        AppOptions {
            address,
            other_addresses: Vec::new(),
            host: address.to_string(),
            names_host: self.app_host == AppHost::Address,
            protocol: self.app_protocol.protocol,
            is_tls: self.app_protocol.is_tls,
            max_concurrency: self.app_max_concurrency,
            health_check,
            asks_actors: true,
        }
    }
}

/// The files with the tokens between an app and its sidecar.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct ApiTokens {
    /// File with the token that requests to the HTTP and gRPC API must show; without it the
    /// variable `DAPR_API_TOKEN` is read.
    #[setting(form = "FILE")]
    pub api_token_file: Option<PathBuf>,
    /// File with the token that the sidecar shows to its app; without it the variable
    /// `APP_API_TOKEN` is read.
    #[setting(form = "FILE")]
    pub app_token_file: Option<PathBuf>,
}

/// Which web pages may use the ports of the app's side, where no token is required.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct WebAccess {
    /// A host name by which the HTTP API may be called, in addition to addresses and names that have no
    /// public owner (`localhost`, a name without a dot); `*` for every name. May be repeated.
    #[setting(form = "NAME", flag = "api-host-name")]
    pub api_host_names: Vec<String>,
    /// The origin of a web page that may send requests to the ports of the app's side, such as
    /// `https://shop.example`; `*` for every one. May be repeated.
    #[setting(form = "ORIGIN", flag = "api-origin")]
    pub api_origins: Vec<String>,
}

impl WebAccess {
    /// For a sidecar.
    #[must_use]
    pub fn pages(&self) -> WebPages {
        WebPages {
            host_names: HostNames::new(self.api_host_names.clone()),
            origins: self.api_origins.clone(),
        }
    }
}

/// Dapr's files about an app.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct DaprFiles {
    /// A folder with Dapr's resource files: components, which describe state stores, and Resiliency;
    /// may be repeated.
    #[setting(form = "DIR", flag = "resources-path", alias = "components-path")]
    pub resources_paths: Vec<PathBuf>,
    /// A file with Dapr's Configuration: parts of the API that there are, who may call the app, a
    /// collector of spans; may be repeated.
    #[setting(form = "FILE", flag = "configuration")]
    pub configurations: Vec<PathBuf>,
}
