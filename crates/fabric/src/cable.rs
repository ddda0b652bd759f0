//! The far end of a virtual cable, made fit for XDP on the near one.
//!
//! A virtual device marks its packets as having valid checksums and computes none. XDP does not
//! learn of that, and packets that it forwards are dropped by the receiver. So the far end is set
//! to compute checksums. The driver takes frames of native XDP only to a device that runs a program
//! itself, so the far end gets one that passes everything.

use std::path::{Path, PathBuf};

use aya::programs::links::{FdLink, LinkError, PinnedLink};
use aya::programs::{ProgramError, XdpMode};
use tollway_net::device::{Device, DeviceError};
use tollway_net::netns::NetnsError;
use tollway_net::peer::{Peer, PeerError};

use crate::attach::{LINK, Mode, replace_xdp};
use crate::programs::{LoadError, Programs};

/// Why packets of XDP would be lost behind the far end.
#[derive(Debug, thiserror::Error)]
pub enum CableError {
    #[error(
        "the far end of the virtual cable {device} cannot be made fit for XDP; choose mode `tc`, \
         which needs nothing of it"
    )]
    Peer { device: String, source: Box<PeerError> },
    #[error("cannot put a program on {peer}, the far end of {device}; choose mode `tc`")]
    Attach { device: String, peer: String, source: Box<ProgramError> },
    #[error("cannot keep the program on {peer}, the far end of {device}; choose mode `tc`")]
    Keep { device: String, peer: String, source: Box<LinkError> },
    #[error("cannot pin the link of the far end at {}", path.display())]
    Pin { path: PathBuf, source: Box<aya::pin::PinError> },
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// What was changed at a far end.
#[derive(Debug)]
pub struct FarEnd {
    /// The name of the device there.
    pub peer: String,
    _link: Option<PinnedLink>,
}

/// Makes the far end of `device` fit for `mode`, if it is a virtual cable. The program there is
/// pinned in `pins`.
pub(crate) fn make_fit(
    programs: &mut Programs,
    device: &Device,
    mode: Mode,
    pins: &Path,
) -> Result<Option<FarEnd>, CableError> {
    if mode == Mode::Tc || device.driver != "veth" {
        return Ok(None);
    }
    let failed = |source: PeerError| CableError::Peer {
        device: device.name.clone(),
        source: Box::new(source),
    };
    let entered = |source: NetnsError| failed(source.into());
    let refused = |source: DeviceError| failed(source.into());
    let Some(peer) = Peer::of(device).map_err(failed)? else { return Ok(None) };
    peer.run(|there| there.set_transmit_checksums(false)).map_err(entered)?.map_err(refused)?;
    let link = match mode {
        Mode::Native => Some(keep_passing(programs, device, &peer, pins)?),
        Mode::Generic | Mode::Tc => None,
    };
    Ok(Some(FarEnd { peer: peer.device.name, _link: link }))
}

/// Puts the program that passes everything on the far end, in the place of one that an earlier
/// process has left there.
fn keep_passing(
    programs: &mut Programs,
    device: &Device,
    peer: &Peer,
    pins: &Path,
) -> Result<PinnedLink, CableError> {
    // The near end has a number that nothing else has in this namespace.
    let path = pins.join(format!("{LINK}far-{}", device.index));
    if let Some(link) = replace_xdp(programs.pass()?, &path) {
        return Ok(link);
    }
    let attach_failed = |source| CableError::Attach {
        device: device.name.clone(),
        peer: peer.device.name.clone(),
        source: Box::new(source),
    };
    let program = programs.pass()?;
    let attached = peer
        .run(|there| {
            let id = program.attach_to_if_index(there.index, XdpMode::Driver)?;
            program.take_link(id)
        })
        .map_err(|source| CableError::Peer {
            device: device.name.clone(),
            source: Box::new(source.into()),
        })?
        .map_err(attach_failed)?;
    let link: FdLink = attached.try_into().map_err(|source| CableError::Keep {
        device: device.name.clone(),
        peer: peer.device.name.clone(),
        source: Box::new(source),
    })?;
    link.pin(&path).map_err(|source| CableError::Pin { path, source: Box::new(source) })
}
