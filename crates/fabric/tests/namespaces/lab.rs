//! A forwarder between the tunnels of one test.

use std::path::PathBuf;

use tollway_fabric::layout::{Address, Neighbour, SourceCheck};
use tollway_fabric::{Changes, Forwarder, ForwarderError, LoadError, Mode, Options, Table, pins};
use tollway_testkit::tunnels::{DEVICES, GUESTS, Tunnels, VNI};

pub(crate) struct Lab {
    pub(crate) tunnels: Tunnels,
    group: String,
    pins: PathBuf,
}

impl Lab {
    /// `None` where this is not permitted.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let group = format!("test-{}-{name}", std::process::id());
        let tunnels = Tunnels::new(&group)?;
        let pins = pins::directory(&group).ok()?;
        let lab = Self { tunnels, group, pins };
        match lab.try_open(None, SourceCheck::default()) {
            Err(ForwarderError::Load(LoadError::NotPermitted { .. })) => return None,
            other => drop(other.unwrap()),
        }
        Some(lab)
    }

    /// A forwarder in the middle.
    pub(crate) fn open(&self, mode: Option<Mode>) -> Forwarder {
        self.try_open(mode, SourceCheck::default()).unwrap()
    }

    /// A forwarder that checks sources so.
    pub(crate) fn open_with(&self, source_check: SourceCheck) -> Forwarder {
        self.try_open(None, source_check).unwrap()
    }

    fn try_open(
        &self,
        mode: Option<Mode>,
        source_check: SourceCheck,
    ) -> Result<Forwarder, ForwarderError> {
        let devices = DEVICES.map(str::to_owned).to_vec();
        let options = Options { devices, mode, port: 4789, capacity: 1000, source_check };
        self.tunnels.middle().run(|| Forwarder::open(&options, &self.pins)).unwrap()
    }

    /// Both guests, in both families.
    pub(crate) fn teach(&self, forwarder: &mut Forwarder) {
        let mut known = Changes::default();
        for guest in GUESTS {
            let host_ip = guest.host_ip.parse().unwrap();
            let neighbour = Neighbour::new(guest.mac, host_ip, guest.host_mac, 1);
            known.put(Address::new(VNI, guest.ip.parse().unwrap()), neighbour);
        }
        forwarder.table.update(&known.keys, &known.values).unwrap();
    }

    /// Programs by device, as they are pinned.
    pub(crate) fn links(&self) -> Vec<(&'static str, Mode)> {
        let names: Vec<String> = std::fs::read_dir(&self.pins)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let mut found = Vec::new();
        for device in DEVICES {
            for mode in Mode::ALL {
                let start = format!("link-{mode}-{device}-");
                found.extend(
                    names.iter().filter(|name| name.starts_with(&start)).map(|_| (device, mode)),
                );
            }
        }
        found
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        pins::remove_tables(&self.group).unwrap();
    }
}
