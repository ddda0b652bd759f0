//! The ports file: how a process that took free ports publishes them.
//!
//! One JSON object, `{"http": "127.0.0.1:3500", "admin": "127.0.0.1:41234"}`: a name for each
//! listener, its address as `ip:port`. The file appears complete, and only when every listener in
//! it is bound. Names in use: `control`; `gateway`; `http`, `grpc`, `outbound`, `inbound`, `admin`
//! of a sidecar; `http`, `grpc`, `tcp`, `https` of the echo app.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Address by listener name.
pub type Ports = BTreeMap<String, SocketAddr>;

/// Longest ports file that is read, bytes.
const PORTS_FILE_LIMIT: u64 = 64 * 1024;

/// Why a ports file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PortsError {
    #[error("cannot read ports file {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot remove ports file {path}")]
    Remove { path: PathBuf, source: io::Error },
    #[error("cannot write ports file {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("ports file {path} is not a JSON object of names and \"ip:port\" texts")]
    Format { path: PathBuf, source: serde_json::Error },
    #[error("ports file {path} is larger than {PORTS_FILE_LIMIT} bytes")]
    TooLarge { path: PathBuf },
    #[error("ports file {path} names no listener {name:?}; it has {present}")]
    Missing { path: PathBuf, name: String, present: String },
}

/// Writes the file as [`write_ports`] does.
///
/// # Errors
/// [`PortsError::Write`].
pub fn write(path: &Path, ports: &Ports) -> Result<(), PortsError> {
    let named = ports.iter().map(|(name, address)| (name.as_str(), *address));
    write_ports(path, named).map_err(|source| PortsError::Write { path: path.into(), source })
}

/// Removes the file, if there is one.
///
/// # Errors
/// [`PortsError::Remove`].
pub fn remove(path: &Path) -> Result<(), PortsError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(PortsError::Remove { path: path.into(), source })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Reads the file; `None` while it does not exist.
///
/// # Errors
/// [`PortsError::Read`], [`PortsError::TooLarge`], [`PortsError::Format`].
pub fn read(path: &Path) -> Result<Option<Ports>, PortsError> {
    let failed = |source| PortsError::Read { path: path.into(), source };
    match fs::metadata(path) {
        Ok(meta) if meta.len() > PORTS_FILE_LIMIT => {
            return Err(PortsError::TooLarge { path: path.into() });
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|source| PortsError::Format { path: path.into(), source })
}

/// The address of one listener of a file that was read.
///
/// # Errors
/// [`PortsError::Missing`].
pub fn port(path: &Path, ports: &Ports, name: &str) -> Result<SocketAddr, PortsError> {
    ports.get(name).copied().ok_or_else(|| PortsError::Missing {
        path: path.into(),
        name: name.into(),
        present: ports.keys().cloned().collect::<Vec<_>>().join(", "),
    })
}

/// Writes `{"name": "ip:port"}` in one step: a reader never sees half of it.
///
/// # Errors
/// If the file, or the temporary one next to it, cannot be written.
pub fn write_ports<'a>(
    path: &Path,
    ports: impl IntoIterator<Item = (&'a str, SocketAddr)>,
) -> io::Result<()> {
    let ports: BTreeMap<&str, SocketAddr> = ports.into_iter().collect();
    let text = serde_json::to_string(&ports)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}", std::process::id()));
    fs::write(&temporary, text)?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_there_whole_and_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ports");
        let address = |text: &str| text.parse().unwrap();
        write_ports(&path, [("http", address("127.0.0.1:1"))]).unwrap();
        write_ports(&path, [("http", address("127.0.0.1:2")), ("admin", address("[::1]:3"))])
            .unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, r#"{"admin":"[::1]:3","http":"127.0.0.1:2"}"#);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        write_ports(&dir.path().join("none/ports"), []).unwrap_err();
    }

    #[test]
    fn what_is_written_is_read_and_what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ports.json");
        assert_eq!(read(&path).unwrap(), None);
        let ports = Ports::from([("http".to_owned(), "127.0.0.1:3500".parse().unwrap())]);
        write(&path, &ports).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), r#"{"http":"127.0.0.1:3500"}"#);
        assert_eq!(read(&path).unwrap(), Some(ports.clone()));
        assert_eq!(port(&path, &ports, "http").unwrap(), "127.0.0.1:3500".parse().unwrap());
        let error = port(&path, &ports, "grpc").unwrap_err().to_string();
        assert!(error.contains("\"grpc\"") && error.contains("http"), "{error}");
    }

    #[test]
    fn a_broken_file_is_refused_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ports.json");
        for text in ["", "[]", r#"{"http": 3500}"#, r#"{"http": "localhost:1"}"#] {
            fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("ports.json"), "{error}");
        }
    }
}
