//! How late the kernel may wake a sleeping thread.

use std::num::NonZeroU64;

/// Lets this thread's sleeps end on time instead of up to 50 µs late. Where the kernel refuses,
/// sleeps stay as late as they are.
pub fn ask_for_punctual_wakeups() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}
