//! Policy files of `tollway apply`.

use tollway_config::manifest::{PolicyManifest, to_yaml};
use tollway_config::yaml;
use tollway_model::Policy;

/// Mistakes are listed up to a number, each with its line.
const ERROR_BYTES: usize = 64 * 1024;

/// A text as a file of manifests.
pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let manifests = match yaml::parse_all::<PolicyManifest>(text, "policies.yaml") {
        Ok(manifests) => manifests,
        Err(error) => return assert!(error.to_string().len() <= ERROR_BYTES, "{error}"),
    };
    let policies: Result<Vec<Policy>, _> =
        manifests.into_iter().map(PolicyManifest::into_policy).collect();
    let Ok(policies) = policies else { return };
    let written = to_yaml(&policies.iter().cloned().map(Into::into).collect::<Vec<_>>());
    let written = written.expect("every policy can be written");
    let again =
        yaml::parse_all::<PolicyManifest>(&written, "again.yaml").expect("it is read again");
    let again: Vec<Policy> =
        again.into_iter().map(|m| m.into_policy().expect("it is a policy again")).collect();
    assert_eq!(again, policies, "what was read is written otherwise:\n{written}");
}
