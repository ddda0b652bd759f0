//! The programs as they are in this binary, loaded into the kernel with their tables.
//!
//! The object was compiled from `bpf/` before (`cargo xtask bpf`), so loading needs no compiler.
//! Tables can be pinned in a directory of the BPF file system, where the next load, of this
//! process or another, finds them with all that is in them. Attaching to devices is `attach`'s.

use std::io;
use std::path::{Path, PathBuf};

use aya::maps::{LpmTrie, Map, MapData, MapError, MapInfo, PerCpuArray, PerCpuHashMap, RingBuf};
use aya::programs::{ProgramError, SchedClassifier, Xdp};
use aya::{Ebpf, EbpfError, EbpfLoader};

use crate::layout::{Address, Counters, Link, Neighbour, Settings, Total, mapped};

/// The object file, at an address that ELF is read at.
static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/fabric.bpf.o"));

/// The tables of a forwarder: all its devices share them.
const TABLES: [&str; 8] = [
    "neighbours",
    "links",
    "counters",
    "totals",
    "reported",
    "sender_shares",
    "network_shares",
    "misses",
];
const NEIGHBOURS: &str = "neighbours";

/// Why the programs or their tables are not in the kernel.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(
        "the kernel does not let this process load programs; run it as root, or with the \
         capabilities CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    )]
    NotPermitted { source: Box<EbpfError> },
    #[error(
        "the kernel did not take the forwarder's tables for {capacity} neighbours; it needs Linux \
         5.18 or later and about 150 bytes of memory for each"
    )]
    Tables { capacity: u32, source: Box<EbpfError> },
    #[error("the kernel refused program {program}; it needs Linux 5.18 or later")]
    Program { program: &'static str, source: Box<ProgramError> },
    #[error(
        "the table pinned at {} is of another version of Tollway; `tollway fabric detach` removes \
         it, and the agent makes a new one", path.display()
    )]
    Foreign { path: PathBuf },
    #[error("cannot look at the table pinned at {}", path.display())]
    Look { path: PathBuf, source: Box<MapError> },
    #[error("the programs in this binary are damaged: {what} is missing; build it anew")]
    Damaged { what: &'static str },
    #[error("cannot use the table {table}")]
    Table { table: &'static str, source: Box<MapError> },
}

/// The programs for one device, and the forwarder's tables.
#[derive(Debug)]
pub struct Programs {
    ebpf: Ebpf,
}

impl Programs {
    /// Loads programs with these settings. New tables hold `capacity` neighbours. With `pins` they
    /// are taken from, or else put into, that directory, which must exist.
    pub fn load(
        settings: &Settings,
        capacity: u32,
        pins: Option<&Path>,
    ) -> Result<Self, LoadError> {
        let mut loader = EbpfLoader::new();
        loader.override_global("settings", settings, true);
        loader.map_max_entries(NEIGHBOURS, capacity.max(1));
        if let Some(directory) = pins {
            check_pins(directory)?;
            for table in TABLES {
                loader.map_pin_path(table, directory.join(table));
            }
        }
        let ebpf = loader.load(OBJECT).map_err(|source| refused(source, capacity))?;
        Ok(Self { ebpf })
    }

    /// The program for devices whose driver runs XDP, or for the kernel in the driver's place.
    pub fn xdp(&mut self) -> Result<&mut Xdp, LoadError> {
        self.load_xdp("fabric_xdp")
    }

    /// The program that passes everything, for the other end of a virtual cable.
    pub fn pass(&mut self) -> Result<&mut Xdp, LoadError> {
        self.load_xdp("fabric_pass")
    }

    /// The program for tc.
    pub fn tc(&mut self) -> Result<&mut SchedClassifier, LoadError> {
        const NAME: &str = "fabric_tc";
        let found = self.ebpf.program_mut(NAME).ok_or(LoadError::Damaged { what: NAME })?;
        let program: &mut SchedClassifier = found
            .try_into()
            .map_err(|source| LoadError::Program { program: NAME, source: Box::new(source) })?;
        once(program.load())
            .map_err(|source| LoadError::Program { program: NAME, source: Box::new(source) })?;
        Ok(program)
    }

    /// The table of neighbours, for `batch`. The caller takes it, as those below, and must hold it
    /// until the programs that read it are loaded.
    pub fn neighbours(&mut self) -> Result<MapData, LoadError> {
        let Map::HashMap(map) = self.take(NEIGHBOURS)? else {
            return Err(LoadError::Damaged { what: NEIGHBOURS });
        };
        Ok(map)
    }

    /// The networks that the forwarder's devices are in.
    pub fn links(&mut self) -> Result<LpmTrie<&mut MapData, [u8; 16], Link>, LoadError> {
        const NAME: &str = "links";
        let map = self.ebpf.map_mut(NAME).ok_or(LoadError::Damaged { what: NAME })?;
        map.try_into().map_err(|source| LoadError::Table { table: NAME, source: Box::new(source) })
    }

    /// Keys that the programs did not find.
    pub fn misses(&mut self) -> Result<RingBuf<MapData>, LoadError> {
        const NAME: &str = "misses";
        self.take(NAME)?
            .try_into()
            .map_err(|source| LoadError::Table { table: NAME, source: Box::new(source) })
    }

    /// What the programs count.
    pub fn counts(&mut self) -> Result<Counts, LoadError> {
        let (totals, counters) = (self.take("totals")?, self.take("counters")?);
        Counts::from_maps(totals, counters)
            .map_err(|source| LoadError::Table { table: "counters", source: Box::new(source) })
    }

    fn take(&mut self, table: &'static str) -> Result<Map, LoadError> {
        self.ebpf.take_map(table).ok_or(LoadError::Damaged { what: table })
    }

    fn load_xdp(&mut self, name: &'static str) -> Result<&mut Xdp, LoadError> {
        let found = self.ebpf.program_mut(name).ok_or(LoadError::Damaged { what: name })?;
        let program: &mut Xdp = found
            .try_into()
            .map_err(|source| LoadError::Program { program: name, source: Box::new(source) })?;
        once(program.load())
            .map_err(|source| LoadError::Program { program: name, source: Box::new(source) })?;
        Ok(program)
    }
}

/// What the programs of all devices have counted since the tables were made.
pub struct Counts {
    totals: PerCpuArray<MapData, u64>,
    counters: PerCpuHashMap<MapData, u32, Counters>,
}

impl Counts {
    pub(crate) fn from_maps(totals: Map, counters: Map) -> Result<Self, MapError> {
        Ok(Self { totals: totals.try_into()?, counters: counters.try_into()? })
    }

    /// Packets by outcome.
    pub fn totals(&self) -> io::Result<Vec<(Total, u64)>> {
        let sum = |total: Total| {
            let values = self.totals.get(&(total as u32), 0).map_err(io::Error::other)?;
            Ok((total, values.iter().sum()))
        };
        Total::ALL.into_iter().map(sum).collect()
    }

    /// Counters by virtual network, in no order.
    pub fn networks(&self) -> io::Result<Vec<(u32, Counters)>> {
        let mut networks = Vec::new();
        for entry in self.counters.iter() {
            let (vni, values) = entry.map_err(io::Error::other)?;
            let mut sum = Counters::default();
            values.iter().for_each(|value| sum += *value);
            networks.push((vni, sum));
        }
        Ok(networks)
    }
}

/// A key of the table of links: everything in the network of `ip` with this prefix, of IPv4 in
/// bits of 32.
#[must_use]
pub fn link_key(ip: std::net::IpAddr, prefix_bits: u8) -> aya::maps::lpm_trie::Key<[u8; 16]> {
    let before = if ip.is_ipv4() { 96 } else { 0 };
    aya::maps::lpm_trie::Key::new(before + u32::from(prefix_bits), mapped(ip))
}

/// A pinned table of another shape would be read as something that it is not.
fn check_pins(directory: &Path) -> Result<(), LoadError> {
    let shapes = [(NEIGHBOURS, size_of::<Address>(), size_of::<Neighbour>())];
    for (table, key, value) in shapes {
        let path = directory.join(table);
        if !path.exists() {
            continue;
        }
        let info = MapInfo::from_pin(&path)
            .map_err(|source| LoadError::Look { path: path.clone(), source: Box::new(source) })?;
        if (info.key_size() as usize, info.value_size() as usize) != (key, value) {
            return Err(LoadError::Foreign { path });
        }
    }
    Ok(())
}

/// A program stays loaded for all devices that it is attached to.
fn once(loaded: Result<(), ProgramError>) -> Result<(), ProgramError> {
    match loaded {
        Err(ProgramError::AlreadyLoaded) => Ok(()),
        other => other,
    }
}

fn refused(source: EbpfError, capacity: u32) -> LoadError {
    let source = Box::new(source);
    if is_forbidden(&source) {
        LoadError::NotPermitted { source }
    } else {
        LoadError::Tables { capacity, source }
    }
}

fn is_forbidden(error: &EbpfError) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.raw_os_error() == Some(libc::EPERM);
        }
        cause = error.source();
    }
    false
}
