//! The pages of the program's own files that this process has mapped.

#![allow(unsafe_code, reason = "dl_iterate_phdr and madvise have no safe form")]

use std::ffi::{c_int, c_void};
use std::ops::Range;

use crate::heap::let_free_memory_go;

/// Lets go of the code and the constants that are mapped from the program's file and its
/// libraries'. The kernel keeps them in its page cache as long as it likes, and each page is mapped
/// again when it is used next: afterwards the process holds what it uses, and no longer what only
/// its start has used, nor what the kernel has mapped around that.
fn let_program_pages_go() {
    let mut segments: Vec<Range<usize>> = Vec::new();
    // SAFETY: the callback gets the address of `segments`, which outlives the call and which
    // nothing else uses meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(add_segments), (&raw mut segments).cast()) };
    for segment in segments {
        let start = segment.start as *mut c_void;
        // SAFETY: these pages are mapped from files and may not be written, so nothing has been
        // changed in them and what is mapped next is what was there. Where the kernel refuses
        // (pages of its own, locked ones), they stay.
        unsafe { libc::madvise(start, segment.len(), libc::MADV_DONTNEED) };
    }
}

/// Lets go of what only a process's start has used: pages of its program, and free memory. To be
/// called some time after, and again for what came late.
pub fn let_start_go() {
    let_program_pages_go();
    let_free_memory_go();
}

/// Adds what an object has mapped from its file without the right to write. What the loader
/// protects after it has written to it belongs to a segment that has the right.
unsafe extern "C" fn add_segments(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    segments: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes an object that is valid for this call, with the number of headers
    // it states; `segments` is what `let_program_pages_go` has passed.
    let (base, headers, segments) = unsafe {
        let object = &*object;
        let headers = std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum));
        (object.dlpi_addr, headers, &mut *segments.cast::<Vec<Range<usize>>>())
    };
    // SAFETY: returns a number only.
    let page = address(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).max(1);
    for header in headers {
        if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0 {
            let start = address(base + header.p_vaddr);
            let end = start + address(header.p_memsz);
            segments.push(start / page * page..end.next_multiple_of(page));
        }
    }
    0
}

/// Addresses and lengths of the loader, which are as long as pointers.
fn address(number: impl TryInto<usize>) -> usize {
    number.try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    const KIB: usize = 1024;

    /// Constants of the test program, in no other use.
    static TABLE: [u8; 1024 * KIB] = [7; 1024 * KIB];

    #[test]
    fn pages_that_are_not_in_use_go_and_come_again() {
        let sum = || black_box(&TABLE).iter().map(|byte| usize::from(*byte)).sum::<usize>();
        assert_eq!(sum(), 7 * TABLE.len());
        let before_kib = resident_kib();
        assert!(before_kib >= 1000, "{before_kib}");
        let_program_pages_go();
        let after_kib = resident_kib();
        assert!(after_kib + 900 < before_kib, "{after_kib} of {before_kib}");
        assert_eq!(sum(), 7 * TABLE.len());
    }

    /// What of the mapping with the table is resident.
    fn resident_kib() -> usize {
        let at = TABLE.as_ptr().addr();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines().skip_while(|line| {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let hex = |text| usize::from_str_radix(text, 16).ok();
            let range = range.and_then(|(start, end)| Some(hex(start)?..hex(end)?));
            !range.is_some_and(|range| range.contains(&at))
        });
        let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        rss.trim().strip_suffix("kB").unwrap().trim().parse().unwrap()
    }
}
