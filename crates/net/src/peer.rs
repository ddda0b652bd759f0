//! The other end of a virtual cable (veth), in whichever network namespace it is.
//!
//! The kernel reports the device's number and, if it is in another namespace, a number for that
//! namespace (rtnetlink(7)). The namespace is found by comparing numbers with those of the visible
//! namespaces: the named ones and those of processes. One that is neither is not found.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use crate::device::{Device, DeviceError};
use crate::netns::{NetNs, NetnsError};

/// Numbers of `linux/rtnetlink.h`, `linux/if_link.h` and `linux/net_namespace.h`.
const ERROR: u16 = 2;
const GET_LINK: u16 = 18;
const GET_NAMESPACE: u16 = 90;
const LINK: u16 = 5;
const LINK_NAMESPACE: u16 = 37;
const NAMESPACE_NUMBER: u16 = 1;
const NAMESPACE_FD: u16 = 3;
const REQUEST: u16 = 1;

const HEADER_BYTES: usize = 16;
/// `ifinfomsg`, and `rtgenmsg` rounded up.
const LINK_BYTES: usize = 16;
const NAMESPACE_BYTES: usize = 4;

/// Why nothing can be done at the other end.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("cannot ask the kernel for the other end of {device}")]
    Ask { device: String, source: io::Error },
    #[error(
        "the other end of {device} is in a network namespace that neither has a name nor a process \
         in it that this one may see"
    )]
    Unseen { device: String },
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The other end of a virtual cable.
#[derive(Debug)]
pub struct Peer {
    pub device: Device,
    namespace: Option<NetNs>,
}

impl Peer {
    /// The other end of `device`, which is in the calling thread's namespace. `None` when it has
    /// none: it is no cable.
    pub fn of(device: &Device) -> Result<Option<Self>, PeerError> {
        let failed = |source| PeerError::Ask { device: device.name.clone(), source };
        let Some((index, number)) = ask_link(device.index).map_err(failed)? else {
            return Ok(None);
        };
        let namespace = match number {
            None => None,
            Some(number) => Some(
                find(number)
                    .map_err(failed)?
                    .ok_or_else(|| PeerError::Unseen { device: device.name.clone() })?,
            ),
        };
        let open = || Device::with_index(index);
        let device = match &namespace {
            None => open()?,
            Some(namespace) => namespace.run(open)??,
        };
        Ok(Some(Self { device, namespace }))
    }

    /// Runs `work` where the other end is.
    pub fn run<T: Send>(&self, work: impl FnOnce(&Device) -> T + Send) -> Result<T, NetnsError> {
        match &self.namespace {
            None => Ok(work(&self.device)),
            Some(namespace) => namespace.run(|| work(&self.device)),
        }
    }
}

/// The number of the other end, and that of its namespace if it is another one.
fn ask_link(index: u32) -> io::Result<Option<(u32, Option<i32>)>> {
    let mut body = [0; LINK_BYTES];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    let answer = ask(GET_LINK, &body)?;
    let number = |kind| {
        let value = attribute(&answer, LINK_BYTES, kind)?;
        Some(i32::from_ne_bytes(value.try_into().ok()?))
    };
    let link = number(LINK).and_then(|link| u32::try_from(link).ok()).filter(|link| *link != 0);
    Ok(link.map(|link| (link, number(LINK_NAMESPACE))))
}

/// The namespace that has this number in the calling thread's namespace.
fn find(number: i32) -> io::Result<Option<NetNs>> {
    let mut seen = HashSet::new();
    for path in candidates() {
        // What is gone by now, or not ours to see, is none.
        let Ok(file) = fs::metadata(&path) else { continue };
        if !seen.insert((file.dev(), file.ino())) {
            continue;
        }
        let Ok(fd) = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        else {
            continue;
        };
        if ask_namespace(&fd)? == Some(number) {
            return Ok(Some(NetNs::from_fd(&path.display().to_string(), fd)));
        }
    }
    Ok(None)
}

fn candidates() -> impl Iterator<Item = PathBuf> {
    let entries = |folder: &str| fs::read_dir(Path::new(folder)).into_iter().flatten().flatten();
    let named = entries("/run/netns").map(|entry| entry.path());
    let of_processes = entries("/proc").filter_map(|entry| {
        let is_process = entry.file_name().to_string_lossy().bytes().all(|c| c.is_ascii_digit());
        is_process.then(|| entry.path().join("ns/net"))
    });
    named.chain(of_processes)
}

fn ask_namespace(namespace: &OwnedFd) -> io::Result<Option<i32>> {
    let mut body = vec![0; NAMESPACE_BYTES];
    body.extend(8u16.to_ne_bytes());
    body.extend(NAMESPACE_FD.to_ne_bytes());
    body.extend(namespace.as_raw_fd().to_ne_bytes());
    let answer = ask(GET_NAMESPACE, &body)?;
    let value = attribute(&answer, NAMESPACE_BYTES, NAMESPACE_NUMBER);
    Ok(value.and_then(|value| value.try_into().ok()).map(i32::from_ne_bytes))
}

/// One request to rtnetlink, and what follows the header of its answer.
fn ask(kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    // Protocol 0 of netlink is rtnetlink.
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    let length = u32::try_from(HEADER_BYTES + body.len()).unwrap_or(u32::MAX);
    let mut request = Vec::new();
    request.extend(length.to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(REQUEST.to_ne_bytes());
    request.extend([0; 8]);
    request.extend(body);
    send(&socket, &request, SendFlags::empty())?;
    let mut answer = vec![0; 65_536];
    let (received, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    answer.truncate(received);
    let kind = answer.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes);
    let rest = answer.get(HEADER_BYTES..).unwrap_or_default();
    if kind == Some(ERROR) {
        let number = rest.get(..4).and_then(|number| number.try_into().ok());
        let number = number.map_or(libc::EBADMSG, |number| -i32::from_ne_bytes(number));
        return Err(io::Error::from_raw_os_error(number));
    }
    Ok(rest.to_vec())
}

/// The value of an attribute behind `fixed` bytes.
fn attribute(answer: &[u8], fixed: usize, wanted: u16) -> Option<&[u8]> {
    let mut rest = answer.get(fixed..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?);
        if kind == wanted {
            return rest.get(4..length);
        }
        // A length below that of its own header would never end.
        rest = rest.get(length.max(4).next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_behind_others_and_broken_ones_end() {
        let answer = [9, 9, 9, 9, 5, 0, 1, 0, 7, 0, 0, 0, 8, 0, 5, 0, 1, 2, 3, 4];
        assert_eq!(attribute(&answer, 4, 5), Some(&[1, 2, 3, 4][..]));
        assert_eq!(attribute(&answer, 4, 1), Some(&[7][..]));
        assert_eq!(attribute(&answer, 4, 6), None);
        assert_eq!(attribute(&[0; 64], 4, 6), None);
        assert_eq!(attribute(&[255; 9], 4, 6), None);
    }

    #[test]
    fn own_namespace_is_seen_from_a_new_one() {
        let Ok(elsewhere) = NetNs::create("peer test") else {
            tollway_testkit::skip!("network namespaces are not permitted here");
        };
        // Without a cable to it, a namespace has no number for another.
        let own = NetNs::current("own").unwrap();
        let fd = rustix::io::fcntl_dupfd_cloexec(&own, 0).unwrap();
        assert_eq!(elsewhere.run(|| ask_namespace(&fd)).unwrap().unwrap(), Some(-1));
    }
}
