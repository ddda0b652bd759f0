//! Programs in namespaces of their own: network, processes, and files of the user.

use std::process::{Command, Stdio};

/// Starts of variables that would change what runs.
const VARIABLES: [&str; 4] = ["DAPR", "XDG_", "TOLLWAY", "RUST_"];

/// A shell's script, which finds loopback alone, and ports that no connection of it takes by chance.
/// It takes root.
pub(super) fn alone(script: &str) -> Command {
    let script = format!(
        "mkdir -p /run/user && mount -t tmpfs -o mode=755 none /run/user && \
         mkdir -m 700 /run/user/0 && mount -t proc proc /proc && ip link set lo up && \
         ip link set lo multicast on && echo '50000 60999' > /proc/sys/net/ipv4/ip_local_port_range \
         && {script}"
    );
    let mut command = Command::new("unshare");
    command.args(["-n", "-m", "-p", "-f", "--kill-child", "sh", "-c", &script]);
    for (name, _) in std::env::vars_os() {
        if VARIABLES.iter().any(|start| name.to_string_lossy().starts_with(start)) {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}
