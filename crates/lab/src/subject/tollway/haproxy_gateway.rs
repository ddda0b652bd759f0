//! HAProxy in place of our gateway: it reads the server name of a connection and passes its bytes
//! to the sidecar of that service. Everything else, which is the traffic of control planes, goes to
//! our own gateway behind it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;

use crate::subject::{Adapter, SubjectKind, built_in_adapters};

/// The program; `Err` reports that it is missing, and how to get it.
pub(super) fn program() -> Result<PathBuf, String> {
    // Kept, as it remembers where it found the program.
    static HAPROXY: LazyLock<Adapter> = LazyLock::new(|| {
        let mut adapters = built_in_adapters().into_iter();
        adapters.find(|adapter| adapter.name() == "haproxy").expect("one of the program's own")
    });
    HAPROXY.path()
}

/// Its configuration: one thread, and nothing logged, as our gateway. `services` are full names
/// with the address of the sidecar of each.
pub(super) fn config(
    listen: SocketAddr,
    services: &BTreeMap<String, SocketAddr>,
    gateway: SocketAddr,
) -> String {
    let mut text = format!(
        "global\n    nbthread 1\n\n\
         defaults\n    mode tcp\n    timeout connect 5s\n    timeout client 1h\n    \
         timeout server 1h\n    timeout tunnel 1h\n\n\
         frontend mesh\n    bind {listen}\n    tcp-request inspect-delay 5s\n    \
         tcp-request content accept if {{ req.ssl_hello_type 1 }}\n",
    );
    let mut line = |line: String| {
        writeln!(text, "{line}").expect("writing to a string cannot fail");
    };
    for service in services.keys() {
        line(format!("    use_backend {service} if {{ req.ssl_sni {service}.mesh }}"));
        // Those of instances.
        line(format!("    use_backend {service} if {{ req.ssl_sni -m end .{service}.mesh }}"));
    }
    line("    default_backend gateway".to_owned());
    for (service, address) in services {
        line(format!("\nbackend {service}\n    server sidecar {address}"));
    }
    line(format!("\nbackend gateway\n    server gateway {gateway}"));
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use tollway_testkit::{TempDir, need_tool};

    use super::*;

    #[test]
    fn haproxy_takes_the_configuration_of_a_gateway() {
        let haproxy = need_tool!("haproxy");
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let services = ["echo.default.east", "echo-grpc.default.east"];
        let services = services.map(|service| (service.to_owned(), address(9)));
        let text = config(address(15_443), &services.into(), address(8));
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("haproxy.cfg");
        std::fs::write(&path, &text).unwrap();
        let checked = Command::new(haproxy).args(["-c", "-f"]).arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{said}\n{text}");
        assert_eq!(text.matches("use_backend echo.default.east if").count(), 2, "{text}");
    }
}
