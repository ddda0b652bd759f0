//! The passphrase by which a control plane seals the key of its authority: from a file, or from a
//! variable. It is no setting, and nothing prints it.

use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use tollway_identity::SealingKey;
use tollway_model::ErrorCode;
use tollway_net::SecretFile;

use crate::failure::Failure;

/// The variable that is read where no file is named.
const VARIABLE: &str = "TOLLWAY_AUTHORITY_KEY";

/// Reads it. A variable that is empty gives none.
///
/// # Errors
/// [`Failure`]: the file cannot be read, or what it or the variable holds is too short or too long.
pub(super) fn authority_key(
    file: Option<PathBuf>,
    may_be_open: bool,
) -> Result<Option<SealingKey>, Failure> {
    let (passphrase, place) = match file {
        Some(path) => {
            let file = SecretFile::new(path, may_be_open);
            let shown = file.path().display().to_string();
            let read = file.read(SealingKey::FILE_BYTES + 1).map_err(|error| {
                let code = ErrorCode::of_file(&error, ErrorCode::FileUnusable);
                Failure::new(code, format!("cannot read the passphrase in {shown}: {error}"))
            })?;
            (read, shown)
        }
        None => match std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) {
            Some(text) => (text.into_vec(), VARIABLE.to_owned()),
            None => return Ok(None),
        },
    };
    SealingKey::new(&passphrase).map(Some).map_err(|error| {
        let what = format!("the passphrase in {place} cannot be used: {error}");
        Failure::new(ErrorCode::BadConfiguration, what)
    })
}
