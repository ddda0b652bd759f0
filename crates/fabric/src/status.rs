//! The state of a group's forwarder on this machine, read from what is pinned: no agent needs to
//! run.

use std::io;
use std::path::Path;

use aya::maps::{Map, MapData, MapError};

use crate::attach::LINK;
use crate::layout::{Counters, Total};
use crate::programs::Counts;
use crate::table::{KernelTable, Table};

/// A forwarder as it is in the kernel.
#[derive(Debug)]
pub struct Status {
    /// Programs on devices: mode, device and index.
    pub links: Vec<String>,
    pub neighbours: u64,
    pub capacity: u64,
    /// The highest revision of a neighbour in the table.
    pub newest_revision: u64,
    pub totals: Vec<(Total, u64)>,
    /// By vni, in its order.
    pub networks: Vec<(u32, Counters)>,
}

/// Why the state cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    #[error(
        "there is no forwarder of this group here: {} is missing; `tollway fabric agent` makes one",
        path.display()
    )]
    Missing { path: std::path::PathBuf },
    #[error("cannot read what is pinned in {}; it needs root", path.display())]
    Read { path: std::path::PathBuf, source: io::Error },
}

/// Reads what is pinned in the directory `pins`. Counting takes a third of a second for a million
/// neighbours.
///
/// # Errors
/// [`StatusError`].
pub fn read_status(pins: &Path) -> Result<Status, StatusError> {
    if !pins.exists() {
        return Err(StatusError::Missing { path: pins.to_owned() });
    }
    read(pins).map_err(|source| StatusError::Read { path: pins.to_owned(), source })
}

/// The table that is pinned in the directory `pins`.
///
/// # Errors
/// That it is not there, or may not be opened.
pub fn pinned_table(pins: &Path) -> io::Result<KernelTable> {
    Ok(KernelTable::new(open(pins, "neighbours")?))
}

/// The counters that are pinned in the directory `pins`.
///
/// # Errors
/// That they are not there, or may not be opened.
pub fn pinned_counts(pins: &Path) -> io::Result<Counts> {
    Counts::from_maps(typed(pins, "totals")?, typed(pins, "counters")?).map_err(io::Error::other)
}

fn read(pins: &Path) -> io::Result<Status> {
    let table = pinned_table(pins)?;
    let (mut neighbours, mut newest_revision) = (0, 0);
    table.visit(&mut |_, neighbour| {
        neighbours += 1;
        newest_revision = neighbour.revision.max(newest_revision);
    })?;
    let counts = pinned_counts(pins)?;
    let mut networks = counts.networks()?;
    networks.sort_by_key(|(vni, _)| *vni);
    Ok(Status {
        links: links(pins)?,
        neighbours,
        capacity: table.capacity()?.into(),
        newest_revision,
        totals: counts.totals()?,
        networks,
    })
}

fn links(pins: &Path) -> io::Result<Vec<String>> {
    let mut links = Vec::new();
    for entry in std::fs::read_dir(pins)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        links.extend(name.strip_prefix(LINK).map(str::to_owned));
    }
    links.sort();
    Ok(links)
}

fn open(pins: &Path, table: &str) -> io::Result<MapData> {
    MapData::from_pin(pins.join(table)).map_err(plain)
}

fn typed(pins: &Path, table: &str) -> io::Result<Map> {
    Map::from_map_data(open(pins, table)?).map_err(plain)
}

/// The kernel's own error, if there is one: it distinguishes a missing privilege from a missing
/// file.
fn plain(error: MapError) -> io::Error {
    if let MapError::SyscallError(error) = &error
        && let Some(number) = error.io_error.raw_os_error()
    {
        return io::Error::from_raw_os_error(number);
    }
    io::Error::other(error)
}
