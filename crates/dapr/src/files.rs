//! Dapr's files for a sidecar: Configurations, and the resources of folders. What decides who may
//! do what ends the start unless it is understood. What else is not served is noted and left out;
//! requests that need it are refused.

use std::path::{Path, PathBuf};

use tollway_config::go::{Reader, documents, expand_variables, only_document, read_file};
use tollway_config::{FileError, YamlError};
use tollway_model::{AppId, Label};
use tollway_runtime::StateStores;
use tollway_state::ComponentContext;

use crate::components::{self, read_components};
use crate::configuration::Configuration;
use crate::error::DaprError;
use crate::resources::{Resource, Resources, yaml_files};
use crate::{http_endpoint, resiliency};

/// Which files there are, and the app for which they are read.
#[derive(Clone, Copy)]
pub struct Files<'a> {
    pub app: &'a AppId,
    pub namespace: &'a Label,
    /// Resources of every namespace are for the app.
    pub takes_all_namespaces: bool,
    /// Files of Configurations.
    pub config: &'a [PathBuf],
    /// Folders of resources.
    pub resources: &'a [PathBuf],
    /// The sidecar is in daprd's place: it calls HTTPEndpoints, and counts under Dapr's names. What the
    /// files have about either is left out where it is not.
    pub in_daprds_place: bool,
}

/// The content of the files for an app.
#[derive(Debug)]
pub struct FilesRead {
    pub configuration: Configuration,
    pub stores: StateStores,
    /// A sentence about each part that is not served.
    pub notes: Vec<String>,
}

/// Texts of files, each with the name of its file.
#[derive(Default)]
pub struct FileTexts {
    /// Of Configurations.
    pub configurations: Vec<(String, String)>,
    /// Of resources; an error is a file that cannot be read.
    pub resources: Vec<(String, Result<String, FileError>)>,
}

impl FileTexts {
    /// The texts of Configurations, and of all YAML files of folders of resources by name.
    ///
    /// # Errors
    /// A Configuration or a folder cannot be read, or a folder has too many files.
    fn load(configurations: &[PathBuf], folders: &[PathBuf]) -> Result<Self, DaprError> {
        let shown = |file: &Path| file.display().to_string();
        let mut texts = Self::default();
        for file in configurations {
            texts.configurations.push((shown(file), read_file(file)?));
        }
        for folder in folders {
            let files = yaml_files(folder)?;
            texts.resources.extend(files.iter().map(|file| (shown(file), read_file(file))));
        }
        Ok(texts)
    }
}

impl Files<'_> {
    /// Reads the files.
    ///
    /// # Errors
    /// A folder or a Configuration cannot be read, a rule about who may do what is not understood,
    /// or a component that is served has mistakes; all of these are reported.
    pub fn read(self) -> Result<FilesRead, DaprError> {
        let texts = FileTexts::load(self.config, self.resources)?;
        self.read_texts(&texts, &|name| std::env::var(name).ok())
    }

    /// Reads the texts of files; `variable` is the environment.
    ///
    /// # Errors
    /// As [`Files::read`], but for what cannot be loaded.
    pub fn read_texts(
        self,
        texts: &FileTexts,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<FilesRead, DaprError> {
        let mut configuration = Configuration::default();
        for (source, text) in &texts.configurations {
            self.configuration(text, source, variable, &mut configuration)?;
        }
        if self.in_daprds_place {
            configuration.trace_by_environment(variable).map_err(DaprError::Flag)?;
        }
        if let Err(what) = configuration.plan_metrics(self.in_daprds_place) {
            let source = texts.configurations.last().map_or("--config", |(source, _)| source);
            return Err(DaprError::document(Path::new(source), what));
        }
        let mut resources = Resources::of(&texts.resources);
        let mut notes = std::mem::take(&mut configuration.notes);
        for resource in resources.found.iter().filter(|found| found.kind != components::KIND) {
            if resource.is_for(self.app.as_str(), self.own_namespace()) {
                self.resource(resource, variable, &mut configuration, &mut notes)?;
            }
        }
        let context = ComponentContext {
            app: self.app.as_str(),
            namespace: self.namespace.as_str(),
            takes_all_namespaces: self.takes_all_namespaces,
            variable,
        };
        let stores = read_components(&mut resources, &context, &configuration.denied_components)?;
        notes.extend(resources.notes);
        Ok(FilesRead { configuration, stores, notes })
    }

    fn own_namespace(&self) -> Option<&str> {
        (!self.takes_all_namespaces).then_some(self.namespace.as_str())
    }

    fn configuration(
        self,
        text: &str,
        source: &str,
        variable: &dyn Fn(&str) -> Option<String>,
        into: &mut Configuration,
    ) -> Result<(), DaprError> {
        let unreadable = |what| DaprError::document(Path::new(source), what);
        let text = expand_variables(text, variable);
        if documents(&text, source).len() > 1 {
            into.notes.push(format!("{source}: only the first document of the file is read"));
        }
        let Some(node) = only_document(&text, Reader::Configuration, source)? else {
            return Ok(());
        };
        into.read(&node, self.namespace, source).map_err(|why| match why {
            Refusal::Form(mistake) => DaprError::Yaml(mistake),
            Refusal::Meaning(what) => unreadable(what),
        })
    }

    fn resource(
        self,
        resource: &Resource,
        variable: &dyn Fn(&str) -> Option<String>,
        into: &mut Configuration,
        notes: &mut Vec<String>,
    ) -> Result<(), DaprError> {
        let Resource { source, kind, name, namespace, .. } = resource;
        let left_out = |why: &str| format!("{source}: {kind} `{name}` is left out: {why}");
        match kind.as_str() {
            "Resiliency" => {
                let rules = into.resilience.get_or_insert_default();
                match resiliency::read(resource, rules, notes) {
                    Ok(()) => into.rules.push((name.clone(), namespace.clone())),
                    Err(why) => notes.push(left_out(&why)),
                }
            }
            "HTTPEndpoint" if !self.in_daprds_place => {
                notes.push(left_out("only in daprd's place a sidecar calls out of the mesh"));
            }
            "HTTPEndpoint" => {
                if into.endpoints.iter().any(|known| known.name == *name) {
                    let what =
                        format!("HTTPEndpoint `{name}` is there twice; give one another name");
                    return Err(DaprError::document(Path::new(source), what));
                }
                match http_endpoint::read(resource, variable, notes) {
                    Ok(endpoint) => into.endpoints.push(endpoint),
                    Err(why) => notes.push(left_out(&why)),
                }
            }
            "Subscription" => {
                notes.push(left_out("publishing and subscribing are not served: no messages come"));
            }
            "Configuration" => notes.push(left_out("give its file with --config")),
            _ => notes.push(left_out("it is not served")),
        }
        Ok(())
    }
}

/// Why a Configuration ends the start.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// A value has the wrong form, at this position.
    Form(YamlError),
    /// In words.
    Meaning(String),
}

impl From<YamlError> for Refusal {
    fn from(mistake: YamlError) -> Self {
        Self::Form(mistake)
    }
}

impl From<String> for Refusal {
    fn from(what: String) -> Self {
        Self::Meaning(what)
    }
}

#[cfg(test)]
mod tests;
