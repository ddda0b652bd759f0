//! Programs on devices: which kind, put there so that it stays when this process ends, and changed
//! without a packet lost.
//!
//! A link that is pinned in the BPF file system holds a program on its device while no process
//! runs; the next process replaces the program. The kernel does that at once: a packet meets the
//! old program or the new.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use aya::programs::links::{FdLink, LinkError, PinnedLink};
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, ProgramError, TcAttachType, Xdp, XdpMode};
use tollway_net::device::Device;

use crate::bpf::detach_pinned;
use crate::programs::{LoadError, Programs};

/// How a program meets packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// XDP in the driver: before the kernel has made anything of the packet.
    Native,
    /// XDP in the kernel, for drivers that have none: to try it out.
    Generic,
    /// tc, at the device's entrance: for virtual devices, which hand over whole bundles of
    /// segments and unfinished checksums.
    Tc,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::Native, Self::Generic, Self::Tc];

    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Tc => "tc",
        }
    }

    /// What suits a device: XDP where a driver of hardware runs it, tc on virtual ones.
    #[must_use]
    pub fn for_device(device: &Device) -> Self {
        const VIRTUAL: [&str; 9] =
            ["", "veth", "tun", "bridge", "dummy", "macvlan", "ipvlan", "bonding", "netkit"];
        if VIRTUAL.contains(&device.driver.as_str()) { Self::Tc } else { Self::Native }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Why no program is on a device.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(
        "the driver {driver:?} of {device} does not run XDP; choose mode `tc`, or `generic` to try \
         XDP out"
    )]
    NoNative { device: String, driver: String, source: Box<ProgramError> },
    #[error("another XDP program is on {device}; `ip link set dev {device} xdp off` takes it off")]
    Occupied { device: String, source: Box<ProgramError> },
    #[error("the kernel did not put the program on {device} in mode {mode}")]
    Attach { device: String, mode: Mode, source: Box<ProgramError> },
    #[error(
        "the kernel put the program on {device} in a way that cannot be pinned; mode `tc` needs \
         Linux 6.6, XDP 5.9"
    )]
    NoLink { device: String, source: Box<LinkError> },
    #[error("cannot pin the program's link at {}", path.display())]
    Pin { path: PathBuf, source: Box<aya::pin::PinError> },
    #[error("cannot remove {}", path.display())]
    Unpin { path: PathBuf, source: io::Error },
}

/// A program on a device. Dropped, it goes, unless it is pinned.
#[derive(Debug)]
pub struct Attached {
    _link: HeldLink,
    pub mode: Mode,
    /// Whether the program took the place of an earlier one, without a gap.
    pub replaced: bool,
}

/// The link of an attached program. The kernel detaches the program when its last reference closes.
#[derive(Debug)]
enum HeldLink {
    Pinned { _link: PinnedLink },
    Own { _link: FdLink },
}

/// Puts the program on `device`. With `pins` it stays there beyond this process, and takes the
/// place of one that an earlier process left in that directory, in whichever mode.
pub fn attach(
    programs: &mut Programs,
    device: &Device,
    mode: Mode,
    pins: Option<&Path>,
) -> Result<Attached, AttachError> {
    let Some(directory) = pins else {
        let link = attach_anew(programs, device, mode)?;
        return Ok(Attached { _link: HeldLink::Own { _link: link }, mode, replaced: false });
    };
    let path = pin_of(directory, device, mode);
    if let Some(link) = replace(programs, mode, &path)? {
        remove_others(directory, device, mode)?;
        return Ok(Attached { _link: HeldLink::Pinned { _link: link }, mode, replaced: true });
    }
    // tc and XDP can both be there for a moment; two kinds of XDP cannot.
    if mode != Mode::Tc {
        for other in [Mode::Native, Mode::Generic] {
            remove(&pin_of(directory, device, other))?;
        }
    }
    let link = attach_anew(programs, device, mode)?;
    let link = link
        .pin(&path)
        .map_err(|source| AttachError::Pin { path: path.clone(), source: Box::new(source) })?;
    remove_others(directory, device, mode)?;
    Ok(Attached { _link: HeldLink::Pinned { _link: link }, mode, replaced: false })
}

/// Detaches every program that is pinned in `directory`; returns the names of their devices.
pub fn detach_all(directory: &Path) -> Result<Vec<String>, AttachError> {
    let failed = |source| AttachError::Unpin { path: directory.to_owned(), source };
    let mut gone = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(link) = name.strip_prefix(LINK) {
            remove(&entry.path())?;
            gone.push(link.to_owned());
        }
    }
    gone.sort();
    Ok(gone)
}

/// How the files of pinned links begin; mode and device follow.
pub(crate) const LINK: &str = "link-";

fn pin_of(directory: &Path, device: &Device, mode: Mode) -> PathBuf {
    // The BPF file system takes no dots in names, devices may have them. Indexes keep those apart
    // that differ in nothing else.
    let name = device.name.replace('.', "_");
    directory.join(format!("{LINK}{mode}-{name}-{}", device.index))
}

/// Replaces the program under a pinned link. `None` when there is no such link, or when its device
/// is gone, after which it holds nothing.
fn replace(
    programs: &mut Programs,
    mode: Mode,
    path: &Path,
) -> Result<Option<PinnedLink>, AttachError> {
    if !path.exists() {
        return Ok(None);
    }
    match mode {
        Mode::Native | Mode::Generic => Ok(replace_xdp(programs.xdp()?, path)),
        Mode::Tc => {
            let program = programs.tc()?;
            let under = |link: FdLink| {
                let id = program.attach_to_link(link.try_into().ok()?).ok()?;
                program.take_link(id).ok()?.try_into().ok()
            };
            Ok(replace_under(path, under))
        }
    }
}

/// As [`replace`], for a program of XDP.
pub(crate) fn replace_xdp(program: &mut Xdp, path: &Path) -> Option<PinnedLink> {
    replace_under(path, |link| {
        let id = program.attach_to_link(link.try_into().ok()?).ok()?;
        program.take_link(id).ok()?.try_into().ok()
    })
}

/// A link that is not to be had or does not take the program is removed.
fn replace_under(path: &Path, under: impl FnOnce(FdLink) -> Option<FdLink>) -> Option<PinnedLink> {
    let updated = PinnedLink::from_pin(path).ok().and_then(|link| under(link.into()));
    if updated.is_none() {
        // There may be none.
        let _ = remove(path);
    }
    // The pin itself has stayed; it is opened again to be held.
    updated.and_then(|_| PinnedLink::from_pin(path).ok())
}

fn attach_anew(
    programs: &mut Programs,
    device: &Device,
    mode: Mode,
) -> Result<FdLink, AttachError> {
    let no_link =
        |source| AttachError::NoLink { device: device.name.clone(), source: Box::new(source) };
    let failed = |source| explain(device, mode, source);
    let xdp_mode = match mode {
        Mode::Native => XdpMode::Driver,
        Mode::Generic => XdpMode::Skb,
        Mode::Tc => {
            let program = programs.tc()?;
            let options = TcAttachOptions::TcxOrder(LinkOrder::default());
            let id = program
                .attach_with_options(&device.name, TcAttachType::Ingress, options)
                .map_err(failed)?;
            return program.take_link(id).map_err(failed)?.try_into().map_err(no_link);
        }
    };
    let program = programs.xdp()?;
    let id = program.attach_to_if_index(device.index, xdp_mode).map_err(failed)?;
    program.take_link(id).map_err(failed)?.try_into().map_err(no_link)
}

fn explain(device: &Device, mode: Mode, source: ProgramError) -> AttachError {
    let number = if let ProgramError::SyscallError(error) = &source {
        error.io_error.raw_os_error()
    } else {
        None
    };
    let source = Box::new(source);
    let name = device.name.clone();
    match (mode, number) {
        (Mode::Native, Some(libc::EOPNOTSUPP)) => {
            AttachError::NoNative { device: name, driver: device.driver.clone(), source }
        }
        (Mode::Native | Mode::Generic, Some(libc::EBUSY | libc::EEXIST)) => {
            AttachError::Occupied { device: name, source }
        }
        _ => AttachError::Attach { device: name, mode, source },
    }
}

fn remove_others(directory: &Path, device: &Device, mode: Mode) -> Result<(), AttachError> {
    let others = Mode::ALL.into_iter().filter(|other| *other != mode);
    others.map(|other| pin_of(directory, device, other)).try_for_each(|path| remove(&path))
}

/// Removes a pinned link, after which its device is free for another.
fn remove(path: &Path) -> Result<(), AttachError> {
    // There may be none, or one whose device is gone; an old kernel frees the device later.
    let _ = detach_pinned(path);
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(AttachError::Unpin { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}
