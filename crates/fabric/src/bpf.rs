//! `bpf(2)`, for what `aya` has not.

#![allow(unsafe_code, reason = "bpf(2) has no safe form")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const OBJECT_GET: libc::c_long = 7;
const LINK_DETACH: libc::c_long = 34;

/// The part of the kernel's `bpf_attr` that opens what is pinned.
#[repr(C)]
#[derive(Default)]
struct ObjectAttributes {
    path: u64,
    object: u32,
    flags: u32,
}

#[repr(C)]
struct LinkAttributes {
    link: u32,
}

/// Takes the program of the link that is pinned at `path` off its device before this returns.
/// (When only the pin is removed the kernel does it a moment later.)
pub(crate) fn detach_pinned(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = ObjectAttributes { path: path.as_ptr() as u64, ..Default::default() };
    // SAFETY: the path ends with a zero and outlives the call.
    let opened = unsafe { call(OBJECT_GET, &mut attributes) }?;
    let number = RawFd::try_from(opened).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made it for us.
    let link = unsafe { OwnedFd::from_raw_fd(number) };
    let mut attributes = LinkAttributes { link: link.as_raw_fd().cast_unsigned() };
    // SAFETY: there are no pointers in it.
    unsafe { call(LINK_DETACH, &mut attributes) }.map(drop)
}

/// Returns what the kernel does.
///
/// # Safety
/// `attributes` is a prefix of the kernel's `bpf_attr` for `command`, and its pointers are good for
/// what the kernel reads and writes there.
pub(crate) unsafe fn call<A>(
    command: libc::c_long,
    attributes: &mut A,
) -> io::Result<libc::c_long> {
    let bytes = size_of::<A>();
    // SAFETY: the kernel reads and writes `bytes` bytes there; the rest the caller promises.
    let answer =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), bytes) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
