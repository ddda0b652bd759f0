//! What the experiment ran on: the record's machine block. What cannot be found out is left out.

use std::collections::BTreeMap;
use std::fs;
use std::thread;

use tollway_record::record::Machine;

/// Describes this machine.
#[must_use]
pub fn describe() -> Machine {
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let system = rustix::system::uname();
    Machine {
        os: read("/etc/os-release").as_deref().and_then(os_name).unwrap_or_else(|| "Linux".into()),
        kernel: system.release().to_string_lossy().into_owned(),
        arch: system.machine().to_string_lossy().into_owned(),
        cpu_model: cpu_field(&cpuinfo, "model name"),
        cpus: cpus(),
        memory_bytes: read("/proc/meminfo").as_deref().and_then(memory_bytes),
        virtualization: virtualization(&cpuinfo),
        cpu_governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control"),
        steal_fraction: None,
        details: details(),
    }
}

/// Processors this process may use.
#[must_use]
pub fn cpus() -> u32 {
    thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX))
}

fn details() -> BTreeMap<String, String> {
    let mut details = BTreeMap::new();
    let load = read("/proc/loadavg").unwrap_or_default();
    if let Some(one) = load.split_whitespace().next() {
        details.insert("load_average_1m".to_owned(), one.to_owned());
    }
    for (name, path) in [
        ("clocksource", "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        ("tcp_slow_start_after_idle", "/proc/sys/net/ipv4/tcp_slow_start_after_idle"),
        ("tcp_rmem", "/proc/sys/net/ipv4/tcp_rmem"),
        ("tcp_wmem", "/proc/sys/net/ipv4/tcp_wmem"),
        ("smt", "/sys/devices/system/cpu/smt/control"),
    ] {
        details.extend(read(path).map(|value| (name.to_owned(), value.replace('\t', " "))));
    }
    details
}

/// The hypervisor or container around us, as far as it shows.
fn virtualization(cpuinfo: &str) -> Option<String> {
    let guest = cpu_field(cpuinfo, "flags")
        .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"));
    let vendor = read("/sys/devices/virtual/dmi/id/sys_vendor");
    let machine = guest.then(|| vendor.map_or("virtual machine".into(), |v| format!("VM ({v})")));
    let container = if fs::exists("/.dockerenv").unwrap_or(false) {
        Some("docker")
    } else if fs::exists("/run/.containerenv").unwrap_or(false) {
        Some("podman")
    } else {
        None
    };
    match (machine, container) {
        (Some(machine), Some(container)) => Some(format!("{machine}, {container}")),
        (machine, container) => machine.or(container.map(Into::into)),
    }
}

fn os_name(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(line.trim_matches('"').to_owned())
}

fn cpu_field(text: &str, key: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_bytes(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_s_files_are_understood() {
        assert_eq!(os_name("ID=x\nPRETTY_NAME=\"Debian 12\"\n"), Some("Debian 12".into()));
        assert_eq!(cpu_field("model name\t: Fast CPU\n", "model name"), Some("Fast CPU".into()));
        assert_eq!(memory_bytes("MemTotal:  1024 kB\n"), Some(1 << 20));
        assert_eq!(memory_bytes("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn this_machine_has_a_kernel_and_processors() {
        let machine = describe();
        assert!(!machine.kernel.is_empty() && machine.cpus > 0);
        assert!(machine.memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
    }
}
