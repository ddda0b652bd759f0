//! Folders of Dapr's resource files: which documents are in them, as daprd finds them.
//!
//! Whole folders are often shared, with files that are no resources. What cannot be read or is of
//! another kind is passed over, and a note says so where it could be missed.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tollway_config::go::{Document, Node, Reader, Unknown, decode, documents};
use tollway_config::{FileError, YamlError};
use tollway_model::chain;

use crate::error::DaprError;

/// Most files of one folder that are read.
const FILES_LIMIT: usize = 1000;
/// The group of Dapr's resources.
const GROUP: &str = "dapr.io/";
/// The one version of those that are read here.
const API_VERSION: &str = "dapr.io/v1alpha1";
/// Kinds of which a document in another version would be missed.
const KINDS: [&str; 3] = ["Component", "HTTPEndpoint", "Subscription"];
/// Rules about failures, which are read in any version.
const RESILIENCY: &str = "Resiliency";
/// How the type of a state store begins.
const STORE: &str = "state.";

/// A document that describes a resource of Dapr.
pub(crate) struct Resource {
    /// The file.
    pub(crate) source: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) namespace: String,
    scopes: Vec<String>,
    pub(crate) node: Rc<Node>,
}

/// The resources of folders, in the order of their files' names.
#[derive(Default)]
pub(crate) struct Resources {
    pub(crate) found: Vec<Resource>,
    pub(crate) notes: Vec<String>,
    /// Something that was passed over may describe a state store.
    pub(crate) hides_store: bool,
}

/// What every document has.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Head {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectMeta {
    name: String,
    namespace: String,
}

/// The apps that a resource is for.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Scoped {
    scopes: Vec<String>,
}

/// How Dapr names a component: with its type, and its version if it has one.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Typed {
    spec: TypeAndVersion,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TypeAndVersion {
    r#type: String,
    version: String,
}

impl Resources {
    /// Those in these files, each a name and its text.
    pub(crate) fn of(files: &[(String, Result<String, FileError>)]) -> Self {
        let mut all = Self::default();
        for (source, text) in files {
            match text {
                Ok(text) => {
                    for document in documents(text, source) {
                        all.add(&document, source);
                    }
                }
                Err(error) => {
                    all.notes.push(format!("{source} is passed over: {}", chain(error)));
                    all.hides_store = true;
                }
            }
        }
        all
    }

    fn add(&mut self, document: &Document<'_>, source: &str) {
        let read = match &document.node {
            Ok(Some(node)) => read(node, source),
            Ok(None) => Ok(None),
            Err(mistake) => Err(mistake.clone()),
        };
        match read {
            Ok(Some(Found::Resource(resource))) => self.found.push(resource),
            Ok(Some(Found::Other(note))) => {
                self.hides_store |= document.text.contains(STORE);
                self.notes.push(note);
            }
            Ok(None) => {}
            Err(mistake) => {
                self.hides_store |= document.text.contains(STORE);
                self.notes.push(format!("{mistake}; the document is passed over"));
            }
        }
    }
}

enum Found {
    Resource(Resource),
    /// It is passed over, as the note says.
    Other(String),
}

/// What a document is; `None` where it is none of Dapr's.
fn read(node: &Rc<Node>, source: &str) -> Result<Option<Found>, YamlError> {
    let Head { api_version, kind, metadata } = decode(node, Reader::Resource, source)?.value;
    let ObjectMeta { name, namespace } = metadata;
    let is_known = KINDS.contains(&kind.as_str()) && api_version == API_VERSION;
    if is_known
        || kind == RESILIENCY
        || api_version.starts_with(GROUP) && !KINDS.contains(&kind.as_str())
    {
        let scopes = decode::<Scoped>(node, Reader::Resource, source)?.value.scopes;
        let (source, node) = (source.to_owned(), Rc::clone(node));
        let resource = Resource { source, kind, name, namespace, scopes, node };
        return Ok(Some(Found::Resource(resource)));
    }
    let at = |what: String| Found::Other(format!("{source}:{}: {what}", node.at.line));
    if KINDS.contains(&kind.as_str()) {
        return Ok(Some(at(format!(
            "{kind} `{name}` is passed over: its apiVersion is `{api_version}`; write {API_VERSION}"
        ))));
    }
    let items = node.field("items").filter(|_| kind == "List");
    let is_list = items.is_some_and(|items| items.mentions(GROUP));
    Ok(is_list.then(|| {
        at("a List is passed over; write each of its items as a document of its own".to_owned())
    }))
}

impl Resource {
    /// Whether it is for this app. A namespace of `None` is any.
    pub(crate) fn is_for(&self, app: &str, namespace: Option<&str>) -> bool {
        let named = |scope: &String| scope.eq_ignore_ascii_case(app);
        self.is_of(namespace) && (self.scopes.is_empty() || self.scopes.iter().any(named))
    }

    /// Whether it is for apps of this namespace. `None` is any.
    pub(crate) fn is_of(&self, namespace: Option<&str>) -> bool {
        namespace
            .is_none_or(|own| self.namespace.is_empty() || self.namespace.eq_ignore_ascii_case(own))
    }

    /// `NAME (TYPE/VERSION)`.
    pub(crate) fn name_and_type(&self) -> String {
        let typed = decode::<Typed>(&self.node, Reader::Resource, &self.source);
        let TypeAndVersion { r#type, version } =
            typed.map(|read| read.value.spec).unwrap_or_default();
        let slash = if version.is_empty() { "" } else { "/" };
        format!("{} ({type}{slash}{version})", self.name, type = r#type)
    }

    /// Reads the document as a type, with a note about each field that the type does not have.
    ///
    /// # Errors
    /// A value of another kind than its field takes.
    pub(crate) fn decode<T: DeserializeOwned>(
        &self,
        notes: &mut Vec<String>,
    ) -> Result<T, YamlError> {
        let decoded = decode(&self.node, Reader::Resource, &self.source)?;
        notes.extend(unknown_fields(&decoded.unknown, &self.source));
        Ok(decoded.value)
    }
}

/// A note about each field that is not known.
pub(crate) fn unknown_fields(unknown: &[Unknown], source: &str) -> impl Iterator<Item = String> {
    unknown.iter().map(move |Unknown { at, name }| {
        format!(
            "{source}:{}:{}: the field `{name}` is not known and has no effect",
            at.line, at.column
        )
    })
}

/// The YAML files of a folder, by name.
///
/// # Errors
/// The folder cannot be read, or has too many files.
pub(crate) fn yaml_files(folder: &Path) -> Result<Vec<PathBuf>, DaprError> {
    let shown = || folder.display().to_string();
    let unreadable = |source| DaprError::Folder { folder: shown(), source };
    let entries = std::fs::read_dir(folder).map_err(unreadable)?;
    let entries = entries.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    let is_yaml = |file: &PathBuf| {
        let ending = file.extension().map(std::ffi::OsStr::to_ascii_lowercase);
        ending.is_some_and(|ending| ending == "yaml" || ending == "yml") && !file.is_dir()
    };
    let mut files: Vec<PathBuf> =
        entries.into_iter().map(|entry| entry.path()).filter(is_yaml).collect();
    if files.len() > FILES_LIMIT {
        return Err(DaprError::TooManyFiles { folder: shown(), limit: FILES_LIMIT });
    }
    files.sort();
    Ok(files)
}
