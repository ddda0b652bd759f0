//! Folders of Dapr's component files, as tests hand them to a sidecar.

use tollway_testkit::TempDir;

/// A component of a type, with lines of metadata.
pub fn component(name: &str, component_type: &str, metadata: &[(&str, &str)]) -> String {
    let metadata: String = metadata
        .iter()
        .map(|(name, value)| format!("  - name: {name}\n    value: {value:?}\n"))
        .collect();
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  \
         type: {component_type}\n  version: v1\n  metadata:\n{metadata}"
    )
}

/// A folder with one file of these components.
pub fn resources(components: &[String]) -> TempDir {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("stores.yaml"), components.join("---\n")).unwrap();
    folder
}
