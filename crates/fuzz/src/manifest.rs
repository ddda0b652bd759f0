//! Files of `tollway apply`.

use tollway_config::manifest;

/// A mistake is one line, with its position.
const ERROR_BYTES: usize = 64 * 1024;

/// A text as a file of manifests.
pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let objects = match manifest::read(text, "objects.yaml") {
        Ok(objects) => objects,
        Err(error) => return assert!(error.to_string().len() <= ERROR_BYTES, "{error}"),
    };
    let written = manifest::to_yaml(&objects).expect("every object can be written");
    let again = manifest::read(&written, "again.yaml").expect("it is read again");
    assert_eq!(again, objects, "what was read is written otherwise:\n{written}");
}
