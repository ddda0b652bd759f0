//! The ports file: how a process that took free ports tells which.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

/// Writes `{"name": "ip:port"}`, whole or not at all: whoever waits for the file never sees half
/// of it.
///
/// # Errors
/// When the file, or the one beside it that becomes it, cannot be written.
pub fn write_ports<'a>(
    path: &Path,
    ports: impl IntoIterator<Item = (&'a str, SocketAddr)>,
) -> io::Result<()> {
    let ports: BTreeMap<&str, SocketAddr> = ports.into_iter().collect();
    let text = serde_json::to_string(&ports)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.{}", std::process::id()));
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, path)
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
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, r#"{"admin":"[::1]:3","http":"127.0.0.1:2"}"#);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        write_ports(&dir.path().join("none/ports"), []).unwrap_err();
    }
}
