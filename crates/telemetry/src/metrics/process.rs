//! What the kernel counts for this process, under the names that Prometheus clients share.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::catalogue::names;
use super::page::Page;
use crate::log_limiter::left_out_lines;

/// Adds the metrics of this process to the page. Without `/proc` some are left out.
pub fn add_process(page: &mut Page) {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let cpu_s = Duration::try_from(cpu).unwrap_or_default().as_secs_f64();
    page.single(&names::PROCESS_CPU_SECONDS, cpu_s);
    page.single(&names::LOG_LINES_LEFT_OUT, left_out_lines());
    if let Some(bytes) = resident_bytes() {
        page.single(&names::PROCESS_RESIDENT_BYTES, bytes);
    }
    if let Ok(descriptors) = std::fs::read_dir("/proc/self/fd") {
        // One of them is the directory that is being read.
        page.single(&names::PROCESS_OPEN_FDS, descriptors.count().saturating_sub(1));
    }
    if let Some(limit) = getrlimit(Resource::Nofile).current {
        page.single(&names::PROCESS_MAX_FDS, limit);
    }
    if let Some(start) = start_time() {
        page.single(&names::PROCESS_START_TIME, start.as_secs_f64());
    }
}

fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * page_size() as u64)
}

/// Since 1970.
fn start_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let ticks = start_ticks(&stat)?;
    let after_boot = Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64);
    let up = Duration::try_from(clock_gettime(ClockId::Boottime)).ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    now.checked_sub(up.checked_sub(after_boot)?)
}

/// The 22nd field; the second is a name in parentheses that may hold anything.
fn start_ticks(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(") ")?;
    behind_name.split(' ').nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_read_behind_a_name_with_blanks_and_parentheses() {
        let fields: Vec<String> = (3..=52).map(|number| number.to_string()).collect();
        let stat = format!("7 (a b) c) {}", fields.join(" "));
        assert_eq!(start_ticks(&stat), Some(22));
    }

    #[test]
    fn this_process_started_before_now_and_uses_memory() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let start = start_time().unwrap();
        assert!(start <= now && now - start < Duration::from_secs(3600), "{start:?} {now:?}");
        assert!(resident_bytes().unwrap() > 100_000);
    }
}
