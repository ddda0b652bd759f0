//! Memory of a process as the kernel counts it (`/proc/PID/status`).

use anyhow::{Context, Result};

/// Memory that is resident now, in bytes (`VmRSS`).
pub fn resident_bytes(pid: u32) -> Result<u64> {
    status_bytes(pid, "VmRSS")
}

/// The most memory that was ever resident, or since [`reset_peak`], in bytes (`VmHWM`).
pub fn peak_resident_bytes(pid: u32) -> Result<u64> {
    status_bytes(pid, "VmHWM")
}

/// Lets the peak start again at what is resident now. Needs the process to be ours.
pub fn reset_peak(pid: u32) -> Result<()> {
    const RESET_PEAK: &str = "5";
    let path = format!("/proc/{pid}/clear_refs");
    std::fs::write(&path, RESET_PEAK).with_context(|| format!("could not write {path}"))
}

fn status_bytes(pid: u32, field: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status =
        std::fs::read_to_string(&path).with_context(|| format!("could not read {path}"))?;
    field_bytes(&status, field).with_context(|| format!("{path} has no {field} (a zombie?)"))
}

fn field_bytes(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_is_read_in_bytes() {
        let status = "VmHWMX:\t 1 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 7 kB\n";
        assert_eq!(field_bytes(status, "VmHWM"), Some(2048 * 1024));
        assert_eq!(field_bytes(status, "VmSwap"), None);
    }

    #[test]
    fn peak_follows_an_allocation_and_a_reset() {
        const BLOCK: u64 = 64 << 20;
        let pid = std::process::id();
        let before = resident_bytes(pid).unwrap();
        let block = vec![1_u8; BLOCK as usize];
        assert_eq!(std::hint::black_box(&block)[17], 1);
        drop(block);
        let peak = peak_resident_bytes(pid).unwrap();
        assert!(peak >= before + BLOCK * 9 / 10, "{before} then {peak}");
        reset_peak(pid).unwrap();
        let after = peak_resident_bytes(pid).unwrap();
        assert!(after < peak - BLOCK / 2, "{peak} then {after}");
    }
}
