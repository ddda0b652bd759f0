//! What a data plane needs to find its mesh.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tollway_identity::{GATEWAY_APP, JoinToken, KeyExchange, RootPin, SYSTEM_NAMESPACE};
use tollway_model::{AppId, AppProtocol, Instance, Label, Locality, NetworkName, ServiceName};
use tollway_net::{OpenSecretFile, SecretFile};

use super::{MeshError, Targets};

/// The environment variable that may carry the join token.
pub const TOKEN_VARIABLE: &str = "TOLLWAY_TOKEN";
/// Largest file with a join token that is read, in bytes.
const TOKEN_FILE_LIMIT_BYTES: u64 = 4096;
/// Largest file with the token of a pod that is read, in bytes; they have one or two thousand.
const POD_TOKEN_FILE_LIMIT_BYTES: u64 = 16 << 10;

/// How to take part. The network is the one that the token names.
#[derive(Clone, Debug)]
pub struct MeshConfig {
    /// Where the control plane is; names are looked up for every connection.
    pub control: Targets,
    pub token: TokenSource,
    pub role: Role,
    /// Distinguishes this instance from others of the service.
    pub instance: Instance,
    /// Where this process runs. Default: not stated.
    pub locality: Locality,
    /// How long the first contact may take. Default 30 s.
    pub start_timeout: Duration,
    /// Asks for certificates of a shorter life than the network gives. Default `None`.
    pub certificate_ttl: Option<Duration>,
    /// Where the identity is kept over a restart. Default `None`: nowhere, so that each start needs a
    /// token.
    pub state: Option<StateDirectory>,
    /// How the keys of connections are agreed on. Default [`KeyExchange::Hybrid`].
    pub key_exchange: KeyExchange,
}

/// A folder for the identity of one instance. It is made if it does not exist, and has to be this
/// user's and closed to others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateDirectory {
    pub path: PathBuf,
    /// Takes the instance's name from there, once there is one.
    pub has_name: bool,
}

/// What the process is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// A sidecar of an app: knows the services it subscribes to.
    Sidecar { app: AppId, namespace: Label },
    /// A gateway: knows every service of its network and the gateways of joined ones.
    Gateway,
}

/// Where the token is by which a process proves who it is. It is read again whenever a new identity is
/// needed.
#[derive(Clone, Debug)]
pub enum TokenSource {
    /// A join token in the environment variable `TOLLWAY_TOKEN`.
    Environment,
    /// A join token in a file.
    File(SecretFile),
    Given(JoinToken),
    Pod(PodToken),
}

/// The token of a pod's service account, which the kubelet keeps fresh in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodToken {
    pub file: PathBuf,
    /// The control plane that the token may be shown to.
    pub root: RootPin,
}

/// What a process shows to a control plane that does not know it.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum FirstProof {
    Join(JoinToken),
    Pod { token: String, root: RootPin },
}

impl std::fmt::Debug for FirstProof {
    /// Without what is secret of it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Join(token) => f.debug_tuple("Join").field(token).finish(),
            Self::Pod { root, .. } => {
                f.debug_struct("Pod").field("root", root).finish_non_exhaustive()
            }
        }
    }
}

impl FirstProof {
    /// The control plane that it may be shown to.
    pub(super) fn root(&self) -> &RootPin {
        match self {
            Self::Join(token) => token.pin(),
            Self::Pod { root, .. } => root,
        }
    }
}

/// What an instance announces of itself to the mesh.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Announcement {
    Workload {
        /// Where mesh connections (mTLS) are accepted, reachable inside the network.
        address: SocketAddr,
        /// What its app speaks at its own port; `None` if it is called only at the ports to which Services of
        /// a Kubernetes cluster lead.
        protocol: Option<AppProtocol>,
        /// Whether it should be sent requests.
        ready: bool,
    },
    Gateway {
        /// Where other networks reach it; empty where it only dials out.
        outside: Vec<SocketAddr>,
        /// Where workloads of its own network reach it for calls to other networks, if they may.
        inside: Vec<SocketAddr>,
        /// Joined networks that only dial out, of which it holds reverse connections.
        reaches: BTreeSet<NetworkName>,
    },
}

impl Announcement {
    /// Of a workload that takes calls at the ports to which Services lead, and at none of its own.
    pub(crate) fn of_services(address: SocketAddr) -> Self {
        Self::Workload { address, protocol: None, ready: true }
    }
}

impl MeshConfig {
    /// A configuration with the defaults.
    #[must_use]
    pub fn new(control: Targets, token: TokenSource, role: Role, instance: Instance) -> Self {
        Self {
            control,
            token,
            role,
            instance,
            locality: Locality::default(),
            start_timeout: Duration::from_secs(30),
            certificate_ttl: None,
            state: None,
            key_exchange: KeyExchange::default(),
        }
    }
}

impl Role {
    /// The service this process is an instance of, in `network`.
    pub(super) fn service(&self, network: &NetworkName) -> ServiceName {
        let system = |text| Label::new(text).expect("the mesh's own names are valid labels");
        let (app, namespace) = match self {
            Self::Sidecar { app, namespace } => (app.clone(), namespace.clone()),
            Self::Gateway => (system(GATEWAY_APP), system(SYSTEM_NAMESPACE)),
        };
        ServiceName { app, namespace, network: network.clone() }
    }
}

impl TokenSource {
    /// A file that was named, or else the environment.
    #[must_use]
    pub fn of(file: Option<PathBuf>, may_be_open: bool) -> Self {
        file.map_or(Self::Environment, |path| Self::File(SecretFile::new(path, may_be_open)))
    }

    /// Reads the token.
    pub(super) fn read(&self) -> Result<FirstProof, MeshError> {
        let text = match self {
            Self::Given(token) => return Ok(FirstProof::Join(token.clone())),
            Self::Pod(pod) => return pod.read(),
            Self::Environment => std::env::var(TOKEN_VARIABLE)
                .map_err(|_| MeshError::NoToken { variable: TOKEN_VARIABLE })?,
            Self::File(file) => file.read_text(TOKEN_FILE_LIMIT_BYTES).map_err(|source| {
                let path = file.path().to_owned();
                match source.get_ref().filter(|inner| inner.is::<OpenSecretFile>()) {
                    Some(open) => MeshError::OpenTokenFile { path, reason: open.to_string() },
                    None => MeshError::TokenFile { path, source },
                }
            })?,
        };
        text.parse().map(FirstProof::Join).map_err(MeshError::Token)
    }
}

impl PodToken {
    /// The kubelet decides about the mode of the file, which only this container sees.
    fn read(&self) -> Result<FirstProof, MeshError> {
        let unread = |source| MeshError::PodTokenFile { path: self.file.clone(), source };
        let file = std::fs::File::open(&self.file).map_err(unread)?;
        let mut token = String::new();
        let mut limited = file.take(POD_TOKEN_FILE_LIMIT_BYTES + 1);
        limited.read_to_string(&mut token).map_err(unread)?;
        if token.len() as u64 > POD_TOKEN_FILE_LIMIT_BYTES {
            let reason = format!("it has more than {POD_TOKEN_FILE_LIMIT_BYTES} bytes");
            return Err(unread(std::io::Error::new(std::io::ErrorKind::InvalidData, reason)));
        }
        Ok(FirstProof::Pod { token: token.trim().to_owned(), root: self.root.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_file_is_read_with_its_line_end() {
        let network = Label::new("west").unwrap();
        let token = JoinToken::generate(&network, b"root").unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, format!("{token}\n")).unwrap();
        assert_eq!(
            TokenSource::File(SecretFile::new(file.path().to_owned(), false)).read().unwrap(),
            FirstProof::Join(token)
        );
    }

    #[test]
    fn the_token_of_a_pod_is_read_each_time_and_has_a_limit() {
        let root = RootPin::of(&Label::new("west").unwrap(), b"root");
        let file = tempfile::NamedTempFile::new().unwrap();
        let source =
            TokenSource::Pod(PodToken { file: file.path().to_owned(), root: root.clone() });
        for token in ["a.b.c", "d.e.f"] {
            std::fs::write(&file, format!("{token}\n")).unwrap();
            let token = token.to_owned();
            assert_eq!(source.read().unwrap(), FirstProof::Pod { token, root: root.clone() });
        }
        std::fs::write(&file, vec![b'a'; (16 << 10) + 1]).unwrap();
        let error = source.read().unwrap_err();
        assert!(tollway_model::chain(&error).contains("more than 16384 bytes"), "{error}");
        drop(file);
        let error = source.read().unwrap_err();
        assert!(matches!(error, MeshError::PodTokenFile { .. }), "{error}");
    }

    #[test]
    fn an_unusable_token_is_refused_with_the_way_out() {
        let missing =
            TokenSource::File(SecretFile::new("/nowhere/token".into(), false)).read().unwrap_err();
        assert_eq!(
            missing.to_string(),
            "cannot read the join token from /nowhere/token; make one with `tollway token create`"
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "nonsense").unwrap();
        let bad =
            TokenSource::File(SecretFile::new(file.path().to_owned(), false)).read().unwrap_err();
        assert!(matches!(bad, MeshError::Token(_)), "{bad}");
    }

    #[test]
    fn a_gateway_is_a_part_of_the_mesh() {
        let west = Label::new("west").unwrap();
        assert_eq!(Role::Gateway.service(&west).to_string(), "gateway.tollway.west");
    }
}
