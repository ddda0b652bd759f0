//! What an operator can choose.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tollway_model::{NetworkName, RunningConfig, TrustDomain};

/// Options of one control plane. [`Options::new`] gives the documented defaults.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the store file and the admin socket; made with mode 0700 when absent.
    pub store: PathBuf,
    /// Name of the network this control plane serves.
    pub network: NetworkName,
    /// Scope of its certificate authority. Fixed at the first start. Default
    /// `<network>.tollway`.
    pub trust_domain: TrustDomain,
    /// Where workloads, gateways and (through gateways) joined networks connect. Port 0 takes
    /// any free one. Default 127.0.0.1:15010.
    pub listen: SocketAddr,
    /// Life of a workload's certificate. Default 24 h, at least 10 s and at most 7 days.
    pub certificate_ttl: Duration,
    /// How workloads reach other networks. Default direct.
    pub egress: EgressMode,
    /// Metrics and health over plain HTTP, for this machine or a network that may see them.
    /// Default none.
    pub admin_listen: Option<SocketAddr>,
    /// A file that receives the bound addresses as JSON: `{"control": "ip:port"}`, and `admin`
    /// where there is such a port.
    pub ports_file: Option<PathBuf>,
    /// The settings that run, for the admin port to show.
    pub config: watch::Receiver<RunningConfig>,
    /// Ends by itself when nobody was connected for so long. Default `None`: never.
    pub linger: Option<Duration>,
    /// Times of registration and peering.
    pub timing: Timing,
}

/// The way of a call to another network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EgressMode {
    /// The caller dials the other network's gateway.
    #[default]
    Direct,
    /// The caller dials a gateway of its own network, which dials the other's: for workloads
    /// that may not open connections to the outside.
    Gateway,
}

/// Times that tests shorten and operators rarely need.
#[derive(Clone, Debug)]
pub struct Timing {
    /// A registration ends this long after the last sign of life. Default 10 s.
    pub lease: Duration,
    /// A registration whose connection broke ends after this. Default 2 s.
    pub grace: Duration,
    /// A stream with nothing to say says so this often, one of a data plane half as often.
    /// Default 1 s; data planes and peers give up after 5 to 6 s of silence.
    pub heartbeat: Duration,
    /// A joined network that has been silent for this long is withdrawn. Default 5 s.
    pub unreachable_after: Duration,
}

impl Options {
    /// A control plane of `network` over the store in directory `store`, all else by default.
    #[must_use]
    pub fn new(store: PathBuf, network: NetworkName) -> Self {
        Self {
            store,
            trust_domain: TrustDomain::default_for(&network),
            network,
            listen: SocketAddr::from(([127, 0, 0, 1], 15010)),
            certificate_ttl: Duration::from_secs(24 * 3600),
            egress: EgressMode::default(),
            admin_listen: None,
            ports_file: None,
            config: watch::channel(RunningConfig::default()).1,
            linger: None,
            timing: Timing::default(),
        }
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            grace: Duration::from_secs(2),
            heartbeat: Duration::from_secs(1),
            unreachable_after: Duration::from_secs(5),
        }
    }
}
