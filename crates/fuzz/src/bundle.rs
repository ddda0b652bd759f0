//! Join bundles, as the operator of another network sends them.

use tollway_control::JoinBundle;

/// 2026-11-27, in milliseconds since 1970.
const NOW_UNIX_MS: u64 = 1_795_780_000_000;
/// An error repeats one field.
const ERROR_BYTES: usize = 64 * 1024;

/// Any bytes as a file. The signature is that of the key in the file, so a bundle that was signed is
/// accepted and a changed one is not.
pub(crate) fn run(data: &[u8]) {
    match JoinBundle::verify(data, NOW_UNIX_MS) {
        Ok(bundle) => {
            assert!(!bundle.roots.is_empty() && !bundle.gateways.is_empty());
            assert!(bundle.issued_at_unix_ms <= bundle.expires_at_unix_ms);
            assert!(NOW_UNIX_MS <= bundle.expires_at_unix_ms);
        }
        Err(error) => assert!(error.to_string().len() <= ERROR_BYTES, "{error}"),
    }
}
