//! Options about sidecars, which hold for all pods.

use anyhow::Result;
use clap::{Args, ValueEnum};
use tollway_inject::{
    DaprConfig, DefaultResources, IpFamily, PullPolicy, Settings, TokenFrom, Unmarked,
};
use tollway_model::ErrorCode;
use tollway_proxy::mesh::RootPin;

use crate::failure::Failure;

/// Life of the token of a service account; the kubelet renews it before.
const TOKEN_SECONDS: u32 = 3600;

#[derive(Args)]
pub(super) struct SidecarArgs {
    /// Image of the sidecar.
    #[arg(long, value_name = "IMAGE", default_value = concat!("tollway:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// When a node fetches the image.
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent")]
    image_pull_policy: Pull,
    /// The control plane, as the sidecar's `--control` takes it.
    #[arg(long, value_name = "HOST:PORT", default_value = "tollway-control.tollway.svc:15010")]
    control: String,
    /// Secret with a join token under the key `token`; without it sidecars join by a token of their
    /// service account.
    #[arg(long, value_name = "SECRET")]
    token_secret: Option<String>,
    /// The root of the network, as `tollway identity root` prints it: by it the sidecar recognises the
    /// control plane that it shows the token of its service account to.
    #[arg(long, value_name = "PIN", conflicts_with = "token_secret")]
    root_pin: Option<RootPin>,
    /// Leave out Configurations that `dapr.io/config` names, with a note; by default such a pod is a
    /// mistake, since a Configuration may decide who calls the app.
    #[arg(long)]
    leave_out_dapr_config: bool,
    /// Family of the pods' addresses.
    #[arg(long, value_name = "FAMILY", default_value = "ipv4")]
    ip_family: Family,
    /// User and group of the sidecar's processes.
    #[arg(long, value_name = "UID", default_value_t = 15_001, value_parser = clap::value_parser!(u32).range(1..))]
    uid: u32,
    #[command(flatten)]
    resources: ResourceArgs,
}

/// What a sidecar requests and may use, where its pod says nothing of it.
#[derive(Args)]
struct ResourceArgs {
    /// Processor time that a sidecar requests; `none` for nothing.
    #[arg(long, value_name = "QUANTITY", default_value = "10m")]
    cpu_request: String,
    /// Most processor time of a sidecar; `none` for any.
    #[arg(long, value_name = "QUANTITY", default_value = "none")]
    cpu_limit: String,
    /// Memory that a sidecar requests; `none` for nothing.
    #[arg(long, value_name = "QUANTITY", default_value = "16Mi")]
    memory_request: String,
    /// Most memory of a sidecar; `none` for any.
    #[arg(long, value_name = "QUANTITY", default_value = "256Mi")]
    memory_limit: String,
}

/// When a node fetches an image.
#[derive(Clone, Copy, ValueEnum)]
pub(super) enum Pull {
    #[value(name = "Always")]
    Always,
    #[value(name = "IfNotPresent")]
    IfNotPresent,
    #[value(name = "Never")]
    Never,
}

#[derive(Clone, Copy, ValueEnum)]
enum Family {
    Ipv4,
    Ipv6,
}

impl Pull {
    pub(super) fn policy(self) -> PullPolicy {
        match self {
            Self::Always => PullPolicy::Always,
            Self::IfNotPresent => PullPolicy::IfNotPresent,
            Self::Never => PullPolicy::Never,
        }
    }
}

impl SidecarArgs {
    /// The settings of all pods; those of which nothing is said get no sidecar.
    ///
    /// # Errors
    /// [`Failure`]: a quantity that is none.
    pub(super) fn settings(&self) -> Result<Settings> {
        let of = &self.resources;
        let quantity = |option: &str, text: &str| {
            let known = text == "none" || tollway_inject::is_quantity(text);
            if !known {
                let what =
                    format!("{option} is `{text}`; write a quantity such as 100m or 64Mi, or none");
                return Err(Failure::new(ErrorCode::BadConfiguration, what));
            }
            Ok((text != "none").then(|| text.to_owned()))
        };
        let token = match &self.token_secret {
            Some(name) => TokenFrom::Secret(name.clone()),
            None => TokenFrom::ServiceAccount {
                root_pin: self.root_pin.as_ref().map(ToString::to_string),
                expiration_seconds: TOKEN_SECONDS,
            },
        };
        Ok(Settings {
            pull_policy: self.image_pull_policy.policy(),
            token,
            resources: DefaultResources {
                cpu_request: quantity("--cpu-request", &of.cpu_request)?,
                cpu_limit: quantity("--cpu-limit", &of.cpu_limit)?,
                memory_request: quantity("--memory-request", &of.memory_request)?,
                memory_limit: quantity("--memory-limit", &of.memory_limit)?,
            },
            uid: self.uid,
            ip_family: match self.ip_family {
                Family::Ipv4 => IpFamily::V4,
                Family::Ipv6 => IpFamily::V6,
            },
            unmarked: Unmarked::Leave,
            dapr_config: match self.leave_out_dapr_config {
                true => DaprConfig::LeaveOut,
                false => DaprConfig::Refuse,
            },
            ..Settings::new(&self.image, &self.control)
        })
    }
}
