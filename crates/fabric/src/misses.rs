//! Reports of the programs: addresses that they did not find in the table.

#![allow(unsafe_code, reason = "descriptors are registered on a promise")]

use std::io;

use aya::maps::{MapData, RingBuf};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use crate::layout::Address;

/// Addresses that may wait for a look-up; 20 bytes each.
pub const QUEUE: usize = 4096;

/// Passes reports on to `to` until its receiver is gone. A report that finds no room is dropped;
/// the program reports the address again with a later packet. So a flood of misses costs no more
/// than this queue.
///
/// # Errors
/// When the ring cannot be waited for.
pub async fn pass_on(ring: RingBuf<MapData>, to: mpsc::Sender<Address>) -> io::Result<()> {
    // SAFETY: the ring owns the map's descriptor and keeps it, the same one, open until it is
    // dropped, and with it the registration that has it.
    let mut ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE)? };
    while !to.is_closed() {
        let mut ready = ring.readable_mut().await?;
        while let Some(report) = ready.get_inner_mut().next() {
            if let Some(address) = Address::from_report(&report) {
                let _ = to.try_send(address);
            }
        }
        ready.clear_ready();
    }
    Ok(())
}
