//! What is written in a test.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// Clones share what is written.
#[derive(Clone, Default)]
pub(crate) struct Written(pub(crate) Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
