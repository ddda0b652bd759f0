//! A folder for one test: removed when the test passes, left and named when it panics.

use std::path::Path;

use anyhow::{Context, Result};

/// A new empty folder, removed on drop unless the thread is panicking.
pub struct TempDir {
    inner: tempfile::TempDir,
}

impl TempDir {
    pub fn new() -> Result<Self> {
        let inner = tempfile::Builder::new()
            .prefix("tollway-test-")
            .tempdir()
            .context("could not make a folder for the test")?;
        Ok(Self { inner })
    }

    pub fn path(&self) -> &Path {
        self.inner.path()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.inner.disable_cleanup(true);
            eprintln!("kept for a look: {}", self.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_goes_with_its_owner() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().to_owned();
        std::fs::write(path.join("file"), "x").unwrap();
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn folder_stays_when_the_test_panics() {
        let (tell, told) = std::sync::mpsc::channel();
        let panicked = std::thread::spawn(move || {
            let dir = TempDir::new().unwrap();
            tell.send(dir.path().to_owned()).unwrap();
            panic!("on purpose");
        })
        .join();
        assert!(panicked.is_err());
        let path = told.recv().unwrap();
        assert!(path.exists());
        std::fs::remove_dir_all(path).unwrap();
    }
}
