//! The options by which an agent of a group of forwarders joins the mesh.

use std::path::PathBuf;

use clap::Args;
use tollway_identity::SYSTEM_NAMESPACE;
use tollway_launch::random_instance;
use tollway_model::{Group, Instance, Label, NameError};
use tollway_proxy::mesh::{
    MeshClient, MeshConfig, MeshError, Role, RootPin, StateDirectory, Targets,
};

use crate::command::mesh::{ProofError, token_source};

/// The control plane of an agent, and its right to join.
#[derive(Args)]
pub(crate) struct MemberArgs {
    /// The control plane: its address, or several with commas between them, of which the first that
    /// answers is used; `srv:_SERVICE._tcp.DOMAIN` stands for the SRV records of that name.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:15010")]
    control: Targets,
    /// File with the join token, of `tollway token create --fabric`; without it the variable
    /// `TOLLWAY_TOKEN` is read.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// File with the token of this pod's service account, for the audience `tollway`, in place of a
    /// join token.
    #[arg(long, value_name = "FILE")]
    pod_token_file: Option<PathBuf>,
    /// The root of the network that the pod joins, as `tollway identity root` prints it.
    #[arg(long, value_name = "PIN")]
    root_pin: Option<RootPin>,
    /// Folder in which the identity is kept, so that a restart needs no new token; of this user and
    /// closed to others, made if it does not exist.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Read the token although others than the file's owner can use it.
    #[arg(long)]
    allow_open_files: bool,
}

/// The size of a table that is made.
#[derive(Args)]
pub(crate) struct CapacityArg {
    /// How many neighbours a new table holds; about 150 bytes of the kernel's memory each.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 1_048_576,
        value_parser = clap::value_parser!(u32).range(1..=16_777_216)
    )]
    pub(crate) capacity: u32,
}

/// Why an agent did not get an identity.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemberError {
    #[error("{0}")]
    Name(#[from] NameError),
    #[error("{0}")]
    Mesh(#[from] MeshError),
    #[error(transparent)]
    Proof(#[from] ProofError),
}

impl MemberArgs {
    /// Where the control plane is.
    pub(crate) fn control(&self) -> &Targets {
        &self.control
    }

    /// Gets an identity as an agent of the group; without an instance, under a random name.
    ///
    /// # Errors
    /// Why the control plane gave none.
    pub(crate) async fn join(
        &self,
        group: &Group,
        instance: Option<Instance>,
    ) -> Result<MeshClient, MemberError> {
        let role =
            Role::Sidecar { app: group.agent_app(), namespace: Label::new(SYSTEM_NAMESPACE)? };
        let pod = (self.pod_token_file.clone(), self.root_pin.clone());
        let token = token_source(self.token_file.clone(), pod, self.allow_open_files)?;
        let has_name = instance.is_none();
        let instance = instance.map_or_else(random_instance, Ok)?;
        let mut config = MeshConfig::new(self.control.clone(), token, role, instance);
        config.state = self.state_dir.clone().map(|path| StateDirectory { path, has_name });
        Ok(Box::pin(MeshClient::start(config, |_| {})).await?)
    }
}
