//! Dapr's files for a sidecar: Configuration, and resources other than components, which
//! `components` reads. What an app would miss without an error is refused; what is refused at its
//! use is noted and left out.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use tollway_config::yaml;
use tollway_model::{AppId, Label};
use tollway_runtime::StateStores;

use crate::components::{Components, files, read_components};
use crate::configuration::Configuration;
use crate::error::DaprError;
use crate::{http_endpoint, resiliency};

/// The fields of a resource that are read here.
#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: Metadata,
    /// The apps that it is for; all without any.
    #[serde(default)]
    scopes: Vec<String>,
    #[serde(default)]
    spec: Value,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
}

/// Which files there are, and the app for which they are read.
#[derive(Clone, Copy)]
pub struct Files<'a> {
    pub app: &'a AppId,
    pub namespace: &'a Label,
    /// Files of Configurations.
    pub config: &'a [PathBuf],
    /// Folders of resources.
    pub resources: &'a [PathBuf],
    /// The sidecar calls HTTPEndpoints; they are left out where it does not.
    pub calls_out: bool,
}

/// The content of the files for an app.
#[derive(Debug)]
pub struct FilesRead {
    pub configuration: Configuration,
    pub stores: StateStores,
    /// A sentence about each part that is not served.
    pub notes: Vec<String>,
}

impl Files<'_> {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or is no YAML, it has a field that an app would miss, or components
    /// have mistakes; all of these are reported.
    pub fn read(self) -> Result<FilesRead, DaprError> {
        let mut configuration = self.configuration()?;
        let Components { stores, notes: of_components } =
            read_components(self.resources, self.app, self.namespace)?;
        let mut notes = std::mem::take(&mut configuration.notes);
        notes.extend(of_components);
        Ok(FilesRead { configuration, stores, notes })
    }

    /// The content of all files but components.
    fn configuration(self) -> Result<Configuration, DaprError> {
        let mut configuration = Configuration::default();
        for file in self.config {
            for document in documents(file)? {
                read_configuration(&document, file, self.namespace, &mut configuration)
                    .map_err(|what| DaprError::document(file, what))?;
            }
        }
        for folder in self.resources {
            for file in files(folder)? {
                for document in documents(&file)? {
                    if document.kind != "Component" && document.is_for(self.app) {
                        self.resource(&document, &mut configuration)
                            .map_err(|what| DaprError::document(&file, what))?;
                    }
                }
            }
        }
        Ok(configuration)
    }

    fn resource(self, document: &Document, into: &mut Configuration) -> Result<(), String> {
        if document.kind == "HTTPEndpoint" && !self.calls_out {
            let name = &document.metadata.name;
            into.notes.push(format!(
                "HTTPEndpoint `{name}` is left out: only in daprd's place a sidecar calls out of the mesh"
            ));
            return Ok(());
        }
        read_resource(document, into)
    }
}

fn documents(file: &Path) -> Result<Vec<Document>, DaprError> {
    let text = yaml::read_file(file)?;
    Ok(yaml::parse_all(&text, &file.display().to_string())?)
}

impl Document {
    fn is_for(&self, app: &AppId) -> bool {
        let named = |scope: &String| scope.eq_ignore_ascii_case(app.as_str());
        self.scopes.is_empty() || self.scopes.iter().any(named)
    }
}

fn read_configuration(
    document: &Document,
    file: &Path,
    namespace: &Label,
    into: &mut Configuration,
) -> Result<(), String> {
    if document.kind == "Configuration" {
        return into.read(&document.spec, namespace, &file.display().to_string());
    }
    let kind = &document.kind;
    Err(format!("`{kind}` is no Configuration; give its folder with --resources-path"))
}

fn read_resource(document: &Document, into: &mut Configuration) -> Result<(), String> {
    let Document { kind, metadata, spec, .. } = document;
    let name = &metadata.name;
    match kind.as_str() {
        "Resiliency" => {
            let rules = into.resilience.get_or_insert_default();
            let read = resiliency::read(name, spec, rules, &mut into.notes);
            into.rules.push(name.clone());
            read.map_err(|what| format!("Resiliency `{name}`: {what}"))
        }
        "HTTPEndpoint" => {
            let read = http_endpoint::read(name, spec, |name| std::env::var(name).ok());
            let endpoint = read.map_err(|what| format!("HTTPEndpoint `{name}`: {what}"))?;
            if into.endpoints.iter().any(|known| known.name == *name) {
                return Err(format!("HTTPEndpoint `{name}` is there twice; give one another name"));
            }
            into.endpoints.push(endpoint);
            Ok(())
        }
        "Subscription" => Err(format!(
            "Subscription `{name}` is not served: no messages would come; scope it to other apps"
        )),
        _ => {
            into.notes.push(format!("{kind} `{name}` is not served and left out"));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_for_web(config: &[PathBuf], resources: &[PathBuf]) -> Result<Configuration, DaprError> {
        read_of_web(config, resources, true)
    }

    fn read_of_web(
        config: &[PathBuf],
        resources: &[PathBuf],
        calls_out: bool,
    ) -> Result<Configuration, DaprError> {
        let (app, namespace) = (AppId::new("web").unwrap(), Label::new("default").unwrap());
        Files { app: &app, namespace: &namespace, config, resources, calls_out }.configuration()
    }

    fn notes_of(text: &str) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        std::fs::write(&file, text).unwrap();
        std::fs::write(folder.path().join("notes.txt"), "kind: Subscription").unwrap();
        let found = match text.contains("Configuration") {
            true => read_for_web(&[file], &[]),
            false => read_for_web(&[], &[folder.path().to_owned()]),
        };
        found.map(|found| found.notes).map_err(|error| error.to_string())
    }

    #[test]
    fn what_dapr_init_leaves_behind_is_no_hindrance() {
        let configuration = "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  \
             name: daprConfig\nspec:\n  tracing:\n    samplingRate: \"1\"\n    zipkin:\n      \
             endpointAddress: http://localhost:9411/api/v2/spans\n";
        let notes = notes_of(configuration).unwrap();
        assert_eq!(notes, ["no traces go to Zipkin; give it spans through `otel`"]);
        let components = "kind: Component\nmetadata: {name: statestore}\nspec: {type: state.redis}\n\
             ---\nkind: Component\nmetadata: {name: pubsub}\n";
        assert_eq!(notes_of(components).unwrap(), [""; 0]);
        let workflow = "kind: WorkflowAccessPolicy\nmetadata: {name: other}\n";
        let notes = notes_of(workflow).unwrap();
        assert_eq!(notes, ["WorkflowAccessPolicy `other` is not served and left out"]);
        let endpoint = "kind: HTTPEndpoint\nmetadata: {name: other}\nspec: {baseUrl: 'http://a'}\n";
        assert_eq!(notes_of(endpoint).unwrap(), [""; 0]);
    }

    #[test]
    fn what_an_app_would_miss_ends_the_start() {
        let refused = notes_of("kind: Configuration\nspec: {api: {denied: [{name: a}]}}\n");
        let refused = refused.unwrap_err();
        assert!(refused.contains("a.yaml: {\"name\":\"a\"} in api.denied is no rule"), "{refused}");
        for (scopes, is_refused) in [("", true), ("scopes: [WEB]", true), ("scopes: [a]", false)] {
            let resiliency = "kind: Resiliency\nspec: {targets: {apps: {b: {retry: c}}}}\n";
            let message = notes_of(&format!("{resiliency}{scopes}\n"));
            assert_eq!(message.is_err(), is_refused, "{scopes}: {message:?}");
            let names = |message: &String| message.contains("targets.apps.b.retry is `c`");
            assert_eq!(message.as_ref().is_err_and(names), is_refused, "{message:?}");
            let message =
                notes_of(&format!("kind: Subscription\nmetadata: {{name: s}}\n{scopes}\n"));
            assert_eq!(message.is_err(), is_refused, "{scopes}: {message:?}");
        }
        let endpoint = "kind: HTTPEndpoint\nmetadata: {name: other}\nspec: {baseUrl: a}\n";
        let message = notes_of(&format!("{endpoint}---\n{endpoint}")).unwrap_err();
        assert!(message.contains("HTTPEndpoint `other`: spec.baseUrl: `a` is no URL"), "{message}");
        let endpoint = endpoint.replace("baseUrl: a", "baseUrl: 'http://a'");
        let message = notes_of(&format!("{endpoint}---\n{endpoint}")).unwrap_err();
        assert!(message.contains("HTTPEndpoint `other` is there twice"), "{message}");
        let notes = notes_of("kind: Resiliency\nspec: {targets: {components: {b: {retry: c}}}}\n");
        assert_eq!(notes.unwrap(), ["Resiliency has targets.components, which have no effect"]);
    }

    #[test]
    fn an_endpoint_is_left_out_where_no_calls_leave_the_mesh() {
        let folder = tempfile::tempdir().unwrap();
        let text = "kind: HTTPEndpoint\nmetadata: {name: other}\nspec: {baseUrl: 'http://a'}\n";
        std::fs::write(folder.path().join("a.yaml"), text).unwrap();
        let resources = [folder.path().to_owned()];
        let found = read_of_web(&[], &resources, false).unwrap();
        assert_eq!(found.endpoints.len(), 0);
        assert!(found.notes[0].starts_with("HTTPEndpoint `other` is left out"), "{found:?}");
        assert_eq!(read_of_web(&[], &resources, true).unwrap().endpoints.len(), 1);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let missing = read_for_web(&["/nowhere/config.yaml".into()], &[]).unwrap_err();
        assert!(missing.to_string().contains("/nowhere/config.yaml"), "{missing}");
        let missing = read_for_web(&[], &["/nowhere".into()]).unwrap_err();
        assert!(missing.to_string().contains("cannot read the folder /nowhere"), "{missing}");
    }
}
