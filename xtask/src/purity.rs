//! Pure crates stay pure: no sockets, clock, environment, randomness or runtime in what ships.
//!
//! Time and seeds are arguments there, so that a decision can be replayed. Their tests are free.

use crate::edges::CRATES;
use crate::sources::RustFile;
use crate::workspace::{Resolved, Workspace, short_name};

/// Crates that bring input and output, a runtime or the system's randomness.
const IMPURE_CRATES: &[&str] = &[
    "async-io",
    "async-std",
    "getrandom",
    "hyper",
    "mio",
    "reqwest",
    "rustix",
    "smol",
    "socket2",
    "tempfile",
    "tokio",
];

/// What the standard library offers of the same.
const IMPURE_CALLS: &[&str] = &[
    "File::create",
    "File::open",
    "Instant::now",
    "SystemTime::now",
    "TcpListener",
    "TcpStream",
    "UdpSocket",
    "UnixStream",
    "env::args",
    "env::var",
    "fs::read",
    "fs::write",
    "std::env",
    "std::fs",
    "std::process",
    "thread::sleep",
    "thread::spawn",
];

pub(crate) fn breaches(
    workspace: &Workspace,
    resolved: &Resolved,
    files: &[RustFile],
) -> Vec<String> {
    let linked = resolved.linked_crates();
    let mut breaches = Vec::new();
    for package in workspace.packages.iter().filter(|package| is_pure(&package.name)) {
        let name = package.short_name();
        for bad in linked.get(&package.name).into_iter().flatten() {
            if IMPURE_CRATES.contains(&bad.as_str()) {
                breaches.push(format!("pure crate `{name}` links `{bad}`: see `cargo tree -i`"));
            }
        }
        let own = files.iter().filter(|file| file.path.starts_with(package.folder()));
        for file in own {
            for call in calls(file.shipped_code()) {
                let place = file.path.strip_prefix(&workspace.root).unwrap_or(&file.path);
                breaches.push(format!("{}: `{call}` in pure crate `{name}`", place.display()));
            }
        }
    }
    breaches
}

fn is_pure(package: &str) -> bool {
    CRATES.iter().any(|crate_| crate_.pure && crate_.name == short_name(package))
}

fn calls(code: &str) -> impl Iterator<Item = &'static str> {
    IMPURE_CALLS.iter().copied().filter(|call| code.contains(call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_and_sockets_are_found_and_addresses_are_not() {
        let found: Vec<_> = calls("let t = std::time::Instant::now(); TcpStream::x()").collect();
        assert_eq!(found, ["Instant::now", "TcpStream"]);
        assert_eq!(calls("use std::net::SocketAddr; use std::time::Instant;").count(), 0);
    }
}
