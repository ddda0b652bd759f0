//! The servers that answer for names out of the mesh.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

const PORT: u16 = 53;
/// As C libraries have it.
const SERVERS_MOST: usize = 3;
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
            Self::File(path) => servers(&std::fs::read_to_string(path).unwrap_or_default()),
        }
    }
}

fn servers(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == "nameserver").then_some(())?;
        let ip: IpAddr = words.next()?.parse().ok()?;
        Some(SocketAddr::new(ip, PORT))
    };
    text.lines().filter_map(server).take(SERVERS_MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_as_a_c_library_does() {
        let text = "# comment\nsearch example\nnameserver 10.0.0.2\n nameserver\t2001:db8::1 # x\n\
                    nameserver nonsense\nnameserver 10.0.0.3\nnameserver 10.0.0.4\n";
        let texts: Vec<String> = servers(text).iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.0.0.2:53", "[2001:db8::1]:53", "10.0.0.3:53"]);
    }

    #[test]
    fn servers_that_are_given_are_used_alone() {
        let given: SocketAddr = "127.0.0.1:5353".parse().unwrap();
        assert_eq!(Resolvers::of(vec![given]).list(), [given]);
        assert_eq!(Resolvers::of(Vec::new()), Resolvers::File(FILE.into()));
        assert_eq!(Resolvers::File("/no/such/file".into()).list(), []);
    }
}
