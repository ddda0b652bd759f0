//! Many entries of a map by one system call: `bpf(2)` with BPF_MAP_UPDATE_BATCH and its siblings
//! (Linux 5.6), which `aya` has not.
//!
//! A batch can stop half-way. The error has the number of entries done, so that the caller
//! continues from there.

#![allow(unsafe_code, reason = "bpf(2) has no safe form")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use aya::Pod;

use crate::bpf;

const LOOKUP_ELEM: libc::c_long = 1;
const LOOKUP_BATCH: libc::c_long = 24;
const UPDATE_BATCH: libc::c_long = 26;
const DELETE_BATCH: libc::c_long = 27;

/// The part of the kernel's `bpf_attr` that batches use.
#[repr(C)]
#[derive(Default)]
struct BatchAttributes {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

/// The part that single entries use.
#[repr(C)]
#[derive(Default)]
struct ElementAttributes {
    map: u32,
    unused: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// A batch that stopped half-way.
#[derive(Debug)]
pub struct Stopped {
    /// Entries that were done, from the first on.
    pub done: usize,
    pub source: io::Error,
}

/// Writes `values` under `keys`, new or not. Both must be of the same length and of the map's
/// types.
pub fn update<K: Pod, V: Pod>(map: impl AsFd, keys: &[K], values: &[V]) -> Result<(), Stopped> {
    let count = count_of(keys.len().min(values.len()));
    let mut attributes = BatchAttributes {
        keys: keys.as_ptr() as u64,
        values: values.as_ptr() as u64,
        count,
        map: number(map),
        ..Default::default()
    };
    run(UPDATE_BATCH, &mut attributes).map_err(|source| stopped(&attributes, count, source))
}

/// Removes `keys`. It stops, with ENOENT, at one that is not there.
pub fn delete<K: Pod>(map: impl AsFd, keys: &[K]) -> Result<(), Stopped> {
    let count = count_of(keys.len());
    let mut attributes = BatchAttributes {
        keys: keys.as_ptr() as u64,
        count,
        map: number(map),
        ..Default::default()
    };
    run(DELETE_BATCH, &mut attributes).map_err(|source| stopped(&attributes, count, source))
}

/// The value under `key`; `None` when there is none.
pub fn look_up<K: Pod, V: Pod + Default>(map: impl AsFd, key: &K) -> io::Result<Option<V>> {
    let mut value = V::default();
    let mut attributes = ElementAttributes {
        map: number(map),
        key: std::ptr::from_ref(key) as u64,
        value: std::ptr::from_mut(&mut value) as u64,
        ..Default::default()
    };
    match run(LOOKUP_ELEM, &mut attributes) {
        Ok(()) => Ok(Some(value)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// All entries of a hash map, some thousand at a time. An entry that is written meanwhile may be
/// missing; one that exists throughout is returned once.
pub struct Walk<K, V> {
    keys: Vec<K>,
    values: Vec<V>,
    /// The bucket to go on with, as the kernel has it.
    place: Option<u32>,
    over: bool,
}

impl<K: Pod + Default, V: Pod + Default> Walk<K, V> {
    /// `at_once`: entries per call. At least as many as one bucket can hold: a thousand will do.
    #[must_use]
    pub fn new(at_once: usize) -> Self {
        Self {
            keys: vec![K::default(); at_once],
            values: vec![V::default(); at_once],
            place: None,
            over: false,
        }
    }

    /// The next entries; `None` at the end.
    pub fn next(&mut self, map: impl AsFd) -> io::Result<Option<(&[K], &[V])>> {
        if self.over {
            return Ok(None);
        }
        let mut next = 0u32;
        let mut attributes = BatchAttributes {
            in_batch: self.place.as_ref().map_or(0, |place| std::ptr::from_ref(place) as u64),
            out_batch: std::ptr::from_mut(&mut next) as u64,
            keys: self.keys.as_mut_ptr() as u64,
            values: self.values.as_mut_ptr() as u64,
            count: count_of(self.keys.len()),
            map: number(map),
            ..Default::default()
        };
        match run(LOOKUP_BATCH, &mut attributes) {
            Ok(()) => self.place = Some(next),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => self.over = true,
            Err(error) => return Err(error),
        }
        let found = (attributes.count as usize).min(self.keys.len());
        Ok(Some((&self.keys[..found], &self.values[..found])))
    }
}

/// An error before the first entry leaves the count as it was given.
fn stopped(attributes: &BatchAttributes, given: u32, source: io::Error) -> Stopped {
    let done = if attributes.count < given { attributes.count as usize } else { 0 };
    Stopped { done, source }
}

fn count_of(entries: usize) -> u32 {
    u32::try_from(entries).unwrap_or(u32::MAX)
}

fn number(map: impl AsFd) -> u32 {
    map.as_fd().as_raw_fd().cast_unsigned()
}

fn run<A>(command: libc::c_long, attributes: &mut A) -> io::Result<()> {
    // SAFETY: `attributes` is a prefix of the kernel's `bpf_attr`. The pointers in it come from
    // slices and values that outlive the call, of at least `count` entries of plain bytes; that
    // these are the map's sizes is what the callers of this module promise by using the types of
    // `layout`, whose sizes the loader has compared with the map's.
    unsafe { bpf::call(command, attributes) }.map(drop)
}
