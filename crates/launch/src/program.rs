//! The file of this program, which starts further processes of itself.

use std::path::PathBuf;

/// The program as it runs, also when its file was replaced since it was started.
pub(crate) fn own_program() -> PathBuf {
    let by_name = std::env::current_exe().ok().filter(|path| path.exists());
    by_name.unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}
