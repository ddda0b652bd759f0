//! The settings that sidecar and gateway share.

use std::path::PathBuf;

use tollway_model::Instance;
use tollway_proxy::mesh::{RootPin, Targets};
use tollway_proxy::{Limits, Timeouts};

use super::Plane;
use super::plane::TIMES_AND_LIMITS;
use crate::{Millis, Settings};

/// A data plane that joins a network.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct Member {
    /// The control plane: its address, or several with commas between them, of which the first that
    /// answers is used; `srv:_SERVICE._tcp.DOMAIN` stands for the SRV records of that name.
    #[setting(form = "HOST:PORT", default = "127.0.0.1:15010")]
    pub control: Targets,
    /// File with the join token; without it the variable `TOLLWAY_TOKEN` is read.
    #[setting(form = "FILE")]
    pub token_file: Option<PathBuf>,
    /// File with the token of this pod's service account, for the audience `tollway`, in place of a
    /// join token: a control plane that runs with `--kubernetes` gives the pod its identity.
    #[setting(form = "FILE")]
    pub pod_token_file: Option<PathBuf>,
    /// The root of the network that the pod joins, as `tollway identity root` prints it.
    #[setting(form = "PIN")]
    pub root_pin: Option<RootPin>,
    /// Name of this instance of the service [default: random].
    #[setting(form = "NAME")]
    pub instance: Option<Instance>,
    /// Folder in which the identity is kept, so that a restart needs no new token; of this user and
    /// closed to others, made if it does not exist [default: none].
    #[setting(form = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Agree on keys by X25519 alone; by default members of the mesh use X25519MLKEM768, which
    /// keeps what is recorded today from computers to come.
    #[setting()]
    pub classical_key_exchange: bool,
    #[setting(flatten)]
    pub plane: Plane,
    /// Time without a sign of the peer after which a mesh connection with requests under way is
    /// closed, in milliseconds.
    #[setting(form = "MS", default = "20000", live, heading = TIMES_AND_LIMITS)]
    pub silence_timeout_ms: Millis,
    /// Time for the control plane to give a first identity, in milliseconds.
    #[setting(form = "MS", default = "30000", heading = TIMES_AND_LIMITS)]
    pub start_timeout_ms: Millis,
}

impl Member {
    /// What it spends on its peers.
    #[must_use]
    pub fn bounds(&self) -> (Limits, Timeouts) {
        let (limits, timeouts) = self.plane.bounds();
        (limits, Timeouts { silence: self.silence_timeout_ms.0, ..timeouts })
    }
}
