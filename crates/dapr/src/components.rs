//! Folders of Dapr's resource files: the components in them that an app may use. `files` reads the
//! other kinds.
//!
//! A file may have several documents. Types of component that are not served here are noted and
//! left out, since whole folders are often shared. A mistake in one that is served is an error
//! with file, line and column.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use tollway_config::{Mistakes, YamlError, yaml};
use tollway_model::{AppId, Label};
use tollway_runtime::StateStores;
use tollway_state::{Component, ComponentContext, Manifest, Read};

use crate::error::DaprError;

/// Most files of one folder that are read.
const FILES_LIMIT: usize = 1000;

/// The fields that every document has.
#[derive(Deserialize)]
struct Head {
    kind: Option<String>,
}

/// The components in folders of resources that are for an app.
#[derive(Debug)]
pub struct Components {
    pub stores: StateStores,
    /// A sentence about each component that is not served.
    pub notes: Vec<String>,
}

/// The state stores in folders, in the order of their files' names; that of the network where no
/// file describes one, not even for others.
///
/// # Errors
/// When a folder or file cannot be read, and every mistake in what is for this app.
pub fn read_components(
    folders: &[PathBuf],
    app: &AppId,
    namespace: &Label,
) -> Result<Components, DaprError> {
    let context = ComponentContext {
        app: app.as_str(),
        namespace: namespace.as_str(),
        variable: &|name| std::env::var(name).ok(),
    };
    let (mut found, mut notes, mut mistakes) = (Vec::new(), Vec::new(), Vec::new());
    let mut any_store = false;
    for folder in folders {
        for file in files(folder)? {
            let text = yaml::read_file(&file)?;
            let source = file.display().to_string();
            for document in documents(&text) {
                match read(&document, &source, &context) {
                    Ok(Some(Read::Store(component))) => found.push((*component, source.clone())),
                    Ok(None) => {}
                    Ok(Some(Read::ForOthers { is_store })) => any_store |= is_store,
                    Ok(Some(Read::NotServed(what))) => {
                        notes.push(format!("{what} is not served and left out"));
                    }
                    Err(mistake) => mistakes.push(mistake),
                }
            }
        }
    }
    mistakes.extend(doubled(&found));
    if !mistakes.is_empty() {
        return Err(DaprError::Components(Mistakes(mistakes)));
    }
    if found.is_empty() && !any_store {
        return Ok(Components { stores: StateStores::Network, notes });
    }
    let components = found.into_iter().map(|(component, _)| component).collect();
    Ok(Components { stores: StateStores::Components(components), notes })
}

/// The YAML files of a folder, by name.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>, DaprError> {
    let shown = || folder.display().to_string();
    let unreadable = |source| DaprError::Folder { folder: shown(), source };
    let entries = std::fs::read_dir(folder).map_err(unreadable)?;
    let entries = entries.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    let is_yaml =
        |file: &PathBuf| file.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
    let mut files: Vec<PathBuf> =
        entries.into_iter().map(|entry| entry.path()).filter(is_yaml).collect();
    if files.len() > FILES_LIMIT {
        return Err(DaprError::TooManyFiles { folder: shown(), limit: FILES_LIMIT });
    }
    files.sort();
    Ok(files)
}

/// Splits a text into its documents; each is on its original lines.
fn documents(text: &str) -> Vec<String> {
    let is_empty = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    let mut documents = Vec::new();
    let (mut current, mut filled, mut above) = (String::new(), false, 0);
    for line in text.lines() {
        if line.trim_end() == "---" || line.starts_with("--- ") {
            if filled {
                documents.push(std::mem::take(&mut current));
            }
            (current, filled) = ("\n".repeat(above + 1), false);
        } else {
            filled |= !is_empty(line);
            current.push_str(line);
            current.push('\n');
        }
        above += 1;
    }
    if filled {
        documents.push(current);
    }
    documents
}

/// What a document is for this app; `None` where it is no component.
fn read(
    document: &str,
    source: &str,
    context: &ComponentContext<'_>,
) -> Result<Option<Read>, YamlError> {
    let head: Head = yaml::parse(document, source)?;
    if head.kind.is_some_and(|kind| kind != "Component") {
        return Ok(None);
    }
    let manifest: Manifest = yaml::parse(document, source)?;
    manifest.read(context).map(Some).map_err(|mistake| mistake.within(source))
}

/// Names that several components have.
fn doubled(found: &[(Component, String)]) -> Vec<YamlError> {
    let earlier = |index: usize, name: &str| {
        found[..index].iter().find(|(component, _)| component.name == name)
    };
    let mistake = |(index, (component, source)): (usize, &(Component, String))| {
        let (_, first) = earlier(index, &component.name)?;
        let what = format!(
            "the component `{}` is in {first} already; give this one another name",
            component.name
        );
        Some(YamlError { source_name: source.clone(), line: 0, column: 0, what })
    };
    found.iter().enumerate().filter_map(mistake).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn components(files: &[(&str, &str)]) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let found = stores(folder.path());
        let prefix = folder.path().display().to_string() + "/";
        match found {
            Ok(StateStores::Network) => Ok("the network's".to_owned()),
            Ok(StateStores::Components(found)) => {
                Ok(found.into_iter().map(|one| one.name).collect::<Vec<_>>().join(" "))
            }
            Err(error) => Err(error.to_string().replace(&prefix, "")),
        }
    }

    fn stores(folder: &Path) -> Result<StateStores, DaprError> {
        let (web, namespace) = (AppId::new("web").unwrap(), Label::new("default").unwrap());
        read_components(&[folder.to_owned()], &web, &namespace).map(|found| found.stores)
    }

    fn component(name: &str, of_type: &str) -> String {
        format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata: {{name: {name}}}\n\
             spec: {{type: {of_type}, version: v1}}\n"
        )
    }

    #[test]
    fn folders_of_resources_are_read_in_order() {
        let one = component("one", "state.in-memory");
        let many = format!(
            "# two of them\n---\n{}---\n{}\n---\nkind: Subscription\nspec: {{}}\n---\n{}",
            component("two", "state.in-memory"),
            component("three", "state.in-memory"),
            component("bus", "pubsub.redis"),
        );
        let files = [("b.yaml", one.as_str()), ("a.yml", &many), ("c.txt", "no: yaml: at all")];
        assert_eq!(components(&files).unwrap(), "two three one");
        for nothing in ["# nothing\n---\n---\n", &component("bus", "pubsub.redis")] {
            assert_eq!(components(&[("a.yaml", nothing)]).unwrap(), "the network's");
        }
        assert_eq!(components(&[]).unwrap(), "the network's");
        let of_others = one + "scopes: [others]\n";
        assert_eq!(components(&[("a.yaml", &of_others)]).unwrap(), "");
    }

    #[test]
    fn every_mistake_has_its_file_and_line() {
        let one = component("one", "state.in-memory");
        let wrong = format!("{one}---\n{}colour: red\n", component("two", "state.in-memory"));
        let typed = one.replace("in-memory", "memory").replace("name: one", "name: other");
        let message = components(&[("a.yaml", &wrong), ("b.yaml", &typed)]).unwrap_err();
        assert!(
            message.contains("a.yaml:10:1: unknown field `colour`; expected one of"),
            "{message}"
        );
        let meant = "b.yaml:4:14: unknown type `state.memory`; did you mean `state.in-memory`?";
        assert!(message.contains(meant), "{message}");
        let message = components(&[("a.yaml", &one), ("b.yaml", &one)]).unwrap_err();
        assert!(message.contains("b.yaml: the component `one` is in a.yaml already"), "{message}");
        let message = components(&[("a.yaml", "just text\n")]).unwrap_err();
        assert!(message.contains("a.yaml:1:1"), "{message}");
        let message = components(&[("a.yaml", "apiVersion: dapr.io/v1alpha1\n")]).unwrap_err();
        assert!(message.contains("the field `kind` is missing"), "{message}");
        let found = stores(Path::new("/nowhere"));
        assert!(found.unwrap_err().to_string().contains("/nowhere; check --resources-path"));
    }
}
