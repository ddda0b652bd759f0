//! The servers that answer for names out of the mesh.

use std::net::SocketAddr;
use std::path::PathBuf;

use tollway_dial::name_servers;

const FILE: &str = "/etc/resolv.conf";

/// Where servers are found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resolvers {
    /// In a file of the form of `resolv.conf`, as it is at that moment.
    File(PathBuf),
    These(Vec<SocketAddr>),
}

impl Resolvers {
    /// `given`, or those of this machine if there are none.
    #[must_use]
    pub fn of(given: Vec<SocketAddr>) -> Self {
        if given.is_empty() { Self::File(FILE.into()) } else { Self::These(given) }
    }

    /// The servers to ask, in order.
    pub(crate) fn list(&self) -> Vec<SocketAddr> {
        match self {
            Self::These(servers) => servers.clone(),
            // Without the file there are none.
            Self::File(path) => name_servers(&std::fs::read_to_string(path).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_are_given_are_used_alone() {
        let given: SocketAddr = "127.0.0.1:5353".parse().unwrap();
        assert_eq!(Resolvers::of(vec![given]).list(), [given]);
        assert_eq!(Resolvers::of(Vec::new()), Resolvers::File(FILE.into()));
        assert_eq!(Resolvers::File("/no/such/file".into()).list(), []);
    }
}
