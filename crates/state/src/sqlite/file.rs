//! The connection to a file, from a connection string of Dapr's.

use rusqlite::{Connection, OpenFlags};

use super::failure;
use crate::component::SqliteSettings;
use crate::error::StateError;

/// A database that no other process sees.
const IN_MEMORY: [&str; 2] = [":memory:", "file::memory:"];

pub(super) fn open(settings: &SqliteSettings) -> Result<Connection, StateError> {
    let failed = |error| failure(&settings.file, error);
    let Target { uri, pragmas, in_memory, read_only } = target(&settings.file)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(&uri, flags).map_err(failed)?;
    connection.busy_timeout(settings.busy_timeout).map_err(failed)?;
    let journal = match (in_memory, settings.wal && !read_only) {
        (true, _) => "MEMORY",
        (false, true) => "WAL",
        (false, false) => "DELETE",
    };
    connection.pragma_update(None, "journal_mode", journal).map_err(failed)?;
    for (name, value) in pragmas {
        connection.pragma_update(None, &name, &value).map_err(failed)?;
    }
    Ok(connection)
}

/// The settings in a connection string.
struct Target {
    uri: String,
    pragmas: Vec<(String, String)>,
    in_memory: bool,
    read_only: bool,
}

/// Removes from the query the options of Dapr's driver: `_pragma=NAME(VALUE)`, `_txlock`.
fn target(written: &str) -> Result<Target, StateError> {
    let (path, query) = written.split_once('?').unwrap_or((written, ""));
    let lower = path.to_lowercase();
    let mut target = Target {
        uri: if lower.starts_with("file:") { path.to_owned() } else { format!("file:{path}") },
        pragmas: Vec::new(),
        in_memory: IN_MEMORY.iter().any(|name| lower.starts_with(name)),
        read_only: false,
    };
    let mut kept = Vec::new();
    for part in query.split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("_txlock", _)) => {}
            Some(("_pragma", pragma)) => target.pragmas.push(pragma_of(pragma)?),
            _ => {
                target.read_only |= matches!(part, "mode=ro" | "immutable=1");
                kept.push(part);
            }
        }
    }
    if !kept.is_empty() {
        target.uri.push('?');
        target.uri.push_str(&kept.join("&"));
    }
    Ok(target)
}

fn pragma_of(written: &str) -> Result<(String, String), StateError> {
    let wrong = |what: &str| StateError::Setting {
        what: format!("`_pragma={written}` of the connection string {what}"),
    };
    let parts =
        written.split_once('(').and_then(|(name, rest)| Some((name, rest.strip_suffix(')')?)));
    let (name, value) = parts.ok_or_else(|| wrong("is not NAME(VALUE)"))?;
    let plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    if name.is_empty() || !plain(name) || !plain(value) {
        return Err(wrong("has signs other than letters, digits, `_` and `-`"));
    }
    match name.to_lowercase().as_str() {
        "busy_timeout" => Err(wrong("is said by the metadata `busyTimeout`")),
        "journal_mode" => Err(wrong("is said by the metadata `disableWAL`")),
        _ => Ok((name.to_owned(), value.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_string_keeps_what_sqlite_knows() {
        let uri = |written: &str| target(written).unwrap().uri;
        assert_eq!(uri("data.db"), "file:data.db");
        assert_eq!(uri("/var/lib/app.db?_txlock=immediate"), "file:/var/lib/app.db");
        assert_eq!(uri("file:a.db?mode=rw&_pragma=synchronous(1)"), "file:a.db?mode=rw");
        let memory = target(":memory:").unwrap();
        assert!(memory.in_memory && memory.uri == "file::memory:");
        assert!(target("file:a.db?mode=ro").unwrap().read_only);
    }

    #[test]
    fn pragmas_are_checked() {
        assert_eq!(
            target("a.db?_pragma=cache_size(-2000)").unwrap().pragmas,
            [("cache_size".to_owned(), "-2000".to_owned())]
        );
        for wrong in ["busy_timeout(1)", "Journal_Mode(wal)", "x", "(1)", "a;b(1)", "a('1')"] {
            assert!(target(&format!("a.db?_pragma={wrong}")).is_err(), "{wrong}");
        }
    }
}
