//! Memory that the allocator keeps for later.

#![allow(unsafe_code, reason = "the allocator's own call has no safe form")]

/// Gives the kernel back the pages of the heap that nothing uses: after a peak, since the allocator
/// does so by itself only at the heap's end. Takes milliseconds for each hundred megabytes. Other
/// allocators than glibc's decide for themselves.
pub fn let_free_memory_go() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time and touches only what is free.
    unsafe {
        libc::malloc_trim(0);
    }
}
