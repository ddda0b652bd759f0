//! The programs as they are in this binary: loaded, attached to the cgroup of one app, and asked what
//! a connection was meant for.
//!
//! The object was compiled from `bpf/` before (`cargo xtask bpf`), so loading needs no compiler. The
//! kernel detaches the programs when the value that holds them is dropped, or this process ends.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{HashMap, MapData, MapError};
use aya::programs::{CgroupAttachMode, CgroupSockAddr, ProgramError, SockOps};
use aya::{Ebpf, EbpfError, EbpfLoader};

use crate::layout::{PLACE_LENGTH, Settings, address, mapped, place, range_bits};
use crate::{Rules, Spared};

/// The object file, at an address that ELF is read at.
static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/intercept.bpf.o"));

/// Programs for addresses of sockets. Those of `bind` are attached where the app's port is closed to
/// others.
const ADDRESSES: [&str; 8] = [
    "intercept_connect4",
    "intercept_connect6",
    "intercept_sendmsg4",
    "intercept_sendmsg6",
    "intercept_recvmsg4",
    "intercept_recvmsg6",
    "intercept_getpeername4",
    "intercept_getpeername6",
];
const BINDS: [&str; 2] = ["intercept_bind4", "intercept_bind6"];
const ESTABLISHED: &str = "intercept_established";
const STANDING: &str = "standing";
const SPARED_RANGES: &str = "spared_ranges";
const SPARED_PORTS: &str = "spared_ports";

/// Why the programs do not run.
#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    #[error("the kernel does not let this process load programs")]
    NotPermitted { source: Box<EbpfError> },
    #[error("the kernel did not take the tables of the programs")]
    Tables { source: Box<EbpfError> },
    #[error("the kernel refused the program {program}")]
    Program { program: &'static str, source: io::Error },
    #[error("the kernel did not attach the program {program} to the cgroup of the app")]
    Attach { program: &'static str, source: Box<ProgramError> },
    #[error("the programs in this binary are damaged: {what} is missing")]
    Damaged { what: &'static str },
    #[error("the kernel did not take what is left alone")]
    Spared { source: Box<MapError> },
}

/// The table of connections that stand: by source, what each was meant for.
type Unaccepted = HashMap<MapData, [u8; PLACE_LENGTH], [u8; PLACE_LENGTH]>;

/// Programs at work.
#[derive(Debug)]
pub(crate) struct Programs {
    /// Holds the programs' links.
    _ebpf: Ebpf,
    unaccepted: Mutex<Unaccepted>,
}

impl Programs {
    /// Loads the programs and attaches them to `cgroup`.
    pub(crate) fn attach(
        cgroup: impl AsFd,
        settings: Settings,
        rules: &Rules,
    ) -> Result<Self, ProgramsError> {
        let bytes = settings.bytes();
        let mut loader = EbpfLoader::new();
        loader.override_global("settings", &bytes, true);
        let mut ebpf = loader.load(OBJECT).map_err(refused)?;
        spare(&mut ebpf, rules)?;
        let unaccepted =
            ebpf.take_map(STANDING).ok_or(ProgramsError::Damaged { what: STANDING })?;
        let unaccepted = unaccepted.try_into().map_err(spared)?;
        let binds: &[&str] = if settings.app_port == 0 { &[] } else { &BINDS };
        // What a connection was meant for is noted before one is led anywhere.
        attach_established(&mut ebpf, &cgroup)?;
        for name in ADDRESSES.iter().chain(binds) {
            attach_address(&mut ebpf, name, &cgroup)?;
        }
        Ok(Self { _ebpf: ebpf, unaccepted: Mutex::new(unaccepted) })
    }

    /// What a connection from `source` was meant for; it is forgotten here. `None` for one that the
    /// programs have not led here.
    pub(crate) fn take(&self, source: SocketAddr) -> Option<SocketAddr> {
        let key = place(source);
        let mut unaccepted = self.unaccepted.lock().unwrap_or_else(PoisonError::into_inner);
        let meant = unaccepted.get(&key, 0).ok()?;
        // It may have given way meanwhile.
        let _ = unaccepted.remove(&key);
        Some(address(meant))
    }
}

fn spare(ebpf: &mut Ebpf, rules: &Rules) -> Result<(), ProgramsError> {
    const HERE: u8 = 1;
    let ports = ebpf.map_mut(SPARED_PORTS).ok_or(ProgramsError::Damaged { what: SPARED_PORTS })?;
    let mut ports: HashMap<_, u32, u8> = ports.try_into().map_err(spared)?;
    for port in rules.spared.iter().filter_map(Spared::port) {
        ports.insert(u32::from(port), HERE, 0).map_err(spared)?;
    }
    let ranges =
        ebpf.map_mut(SPARED_RANGES).ok_or(ProgramsError::Damaged { what: SPARED_RANGES })?;
    let mut ranges: LpmTrie<_, [u8; 16], u8> = ranges.try_into().map_err(spared)?;
    for (first, prefix_bits) in rules.spared.iter().filter_map(Spared::range) {
        ranges.insert(&range_key(first, prefix_bits), HERE, 0).map_err(spared)?;
    }
    Ok(())
}

fn range_key(first: IpAddr, prefix_bits: u8) -> Key<[u8; 16]> {
    Key::new(range_bits(first, prefix_bits), mapped(first))
}

fn attach_established(ebpf: &mut Ebpf, cgroup: &impl AsFd) -> Result<(), ProgramsError> {
    let program = ESTABLISHED;
    let found = ebpf.program_mut(program).ok_or(ProgramsError::Damaged { what: program })?;
    let ops: &mut SockOps = found.try_into().map_err(|source| not_loaded(program, source))?;
    ops.load().map_err(|source| not_loaded(program, source))?;
    let attached = ops.attach(cgroup, CgroupAttachMode::Single);
    attached.map(drop).map_err(|source| not_attached(program, source))
}

fn attach_address(
    ebpf: &mut Ebpf,
    program: &'static str,
    cgroup: &impl AsFd,
) -> Result<(), ProgramsError> {
    let found = ebpf.program_mut(program).ok_or(ProgramsError::Damaged { what: program })?;
    let addresses: &mut CgroupSockAddr =
        found.try_into().map_err(|source| not_loaded(program, source))?;
    addresses.load().map_err(|source| not_loaded(program, source))?;
    let attached = addresses.attach(cgroup, CgroupAttachMode::Single);
    attached.map(drop).map_err(|source| not_attached(program, source))
}

fn not_loaded(program: &'static str, error: ProgramError) -> ProgramsError {
    // It has all that the verifier has found, which is for those who change the program.
    tracing::debug!(program, %error, "a program is refused");
    let source = if let ProgramError::LoadError { io_error, .. } = error {
        io_error
    } else {
        io::Error::other(error)
    };
    ProgramsError::Program { program, source }
}

fn not_attached(program: &'static str, source: ProgramError) -> ProgramsError {
    ProgramsError::Attach { program, source: Box::new(source) }
}

fn spared(source: MapError) -> ProgramsError {
    ProgramsError::Spared { source: Box::new(source) }
}

fn refused(source: EbpfError) -> ProgramsError {
    let source = Box::new(source);
    if is_forbidden(&source) {
        ProgramsError::NotPermitted { source }
    } else {
        ProgramsError::Tables { source }
    }
}

fn is_forbidden(error: &EbpfError) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return matches!(error.raw_os_error(), Some(1 | 13));
        }
        cause = error.source();
    }
    false
}
