//! The table of neighbours as those see it who write it: the kernel's map, or a test's.

use std::io;
use std::os::fd::AsFd;

use aya::maps::MapData;

use crate::batch::{self, Stopped, Walk};
use crate::layout::{Address, Neighbour};

/// Entries per call of the kernel: beyond a hundred or so, more at once gain nothing.
pub const BATCH: usize = 1000;

/// A table that is written in batches. Each call handles entries in order and returns how many were
/// done when it stops.
pub trait Table: Send {
    fn update(&mut self, keys: &[Address], values: &[Neighbour]) -> Result<(), Stopped>;

    /// Stops, with ENOENT, at one that is not there.
    fn delete(&mut self, keys: &[Address]) -> Result<(), Stopped>;

    fn look_up(&self, key: &Address) -> io::Result<Option<Neighbour>>;

    /// Calls `visit` with every entry.
    fn visit(&self, visit: &mut dyn FnMut(&Address, &Neighbour)) -> io::Result<()>;
}

/// The map that the programs read.
#[derive(Debug)]
pub struct KernelTable(MapData);

impl KernelTable {
    #[must_use]
    pub fn new(map: MapData) -> Self {
        Self(map)
    }

    /// Another handle of the same map.
    pub fn share(&self) -> io::Result<Self> {
        let map = self.0.fd().as_fd().try_clone_to_owned()?;
        Ok(Self(MapData::from_fd(map).map_err(io::Error::other)?))
    }

    /// Removes all entries.
    pub fn clear(&mut self) -> io::Result<()> {
        loop {
            let mut keys = Vec::new();
            self.visit(&mut |key, _| keys.push(*key))?;
            if keys.is_empty() {
                return Ok(());
            }
            for keys in keys.chunks(BATCH) {
                self.delete(keys).map_err(|stopped| stopped.source)?;
            }
        }
    }

    /// How many entries it can hold.
    pub fn capacity(&self) -> io::Result<u32> {
        Ok(self.0.info().map_err(io::Error::other)?.max_entries())
    }

    /// The kernel's id of the map, unique until the next boot.
    pub fn id(&self) -> io::Result<u32> {
        Ok(self.0.info().map_err(io::Error::other)?.id())
    }
}

impl Table for KernelTable {
    fn update(&mut self, keys: &[Address], values: &[Neighbour]) -> Result<(), Stopped> {
        batch::update(self.0.fd().as_fd(), keys, values)
    }

    fn delete(&mut self, keys: &[Address]) -> Result<(), Stopped> {
        batch::delete(self.0.fd().as_fd(), keys)
    }

    fn look_up(&self, key: &Address) -> io::Result<Option<Neighbour>> {
        batch::look_up(self.0.fd().as_fd(), key)
    }

    fn visit(&self, visit: &mut dyn FnMut(&Address, &Neighbour)) -> io::Result<()> {
        let mut walk: Walk<Address, Neighbour> = Walk::new(BATCH);
        while let Some((keys, values)) = walk.next(self.0.fd().as_fd())? {
            for (key, value) in keys.iter().zip(values) {
                visit(key, value);
            }
        }
        Ok(())
    }
}
