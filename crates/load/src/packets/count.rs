//! The program that counts, on its device for as long as a run lasts.

use std::path::PathBuf;

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::TcAttachOptions;
use aya::programs::xdp::XdpLink;
use aya::programs::{LinkOrder, TcAttachType, XdpMode};
use rustix::fs::{Mode, OFlags};
use tollway_net::device::Device;
use tollway_net::netns::NetNs;

use super::programs::Programs;
use super::{CountBy, Counter, PacketsError};

const XDP: &str = "packets_count_xdp";
const TC: &str = "packets_count_tc";
const PASS: &str = "packets_pass";

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A program that counts. What this process has put on the device goes with it.
pub(super) struct Counting {
    /// The pin under which another program is to let packets pass afterwards.
    in_place_of: Option<PathBuf>,
}

impl Counting {
    pub(super) fn start(programs: &mut Programs, counter: &Counter) -> Result<Self, PacketsError> {
        let failed =
            |source: Cause| PacketsError::Attach { device: counter.device.clone(), source };
        match &counter.by {
            CountBy::Xdp => {
                let program = programs.xdp(XDP)?;
                let attach = |device: Device| {
                    program.attach_to_if_index(device.index, XdpMode::Driver).map(drop)
                };
                at_device(counter, attach)?.map_err(|error| failed(error.into()))?;
            }
            CountBy::Tc => {
                let program = programs.tc(TC)?;
                let attach = |device: Device| {
                    let options = TcAttachOptions::TcxOrder(LinkOrder::default());
                    let entrance = TcAttachType::Ingress;
                    program.attach_with_options(&device.name, entrance, options).map(drop)
                };
                at_device(counter, attach)?.map_err(|error| failed(error.into()))?;
            }
            CountBy::XdpInPlaceOf(pin) => {
                put(programs, XDP, pin).map_err(failed)?;
                return Ok(Self { in_place_of: Some(pin.clone()) });
            }
        }
        Ok(Self { in_place_of: None })
    }

    /// Puts a program that lets everything pass where another one was before.
    pub(super) fn end(self, programs: &mut Programs) {
        if let Some(pin) = &self.in_place_of {
            // A link that is gone by now holds nothing that counts.
            let _ = put(programs, PASS, pin);
        }
    }
}

/// Runs `work` on the device where it is.
fn at_device<T: Send>(
    counter: &Counter,
    work: impl FnOnce(Device) -> T + Send,
) -> Result<T, PacketsError> {
    let open_and_work = || Device::open(&counter.device).map(work);
    let Some(path) = &counter.namespace else { return Ok(open_and_work()?) };
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(
        |error| PacketsError::OpenNamespace { path: path.clone(), source: error.into() },
    )?;
    let namespace = NetNs::from_fd(&path.display().to_string(), fd);
    Ok(namespace.run(open_and_work)??)
}

/// Puts a program under a pinned link.
fn put(programs: &mut Programs, name: &str, pin: &PathBuf) -> Result<(), Cause> {
    let link: FdLink = PinnedLink::from_pin(pin)?.into();
    let link: XdpLink = link.try_into()?;
    let program = programs.xdp(name)?;
    let id = program.attach_to_link(link)?;
    // Held by its pin.
    drop(program.take_link(id)?);
    Ok(())
}
