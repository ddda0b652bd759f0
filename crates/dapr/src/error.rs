//! Why Dapr's files or flags cannot be used, with the code of the failure.

use std::path::Path;

use thiserror::Error;
use tollway_config::{FileError, Mistakes, YamlError};
use tollway_model::ErrorCode;

/// Why Dapr's files or daprd's flags cannot be used. Texts have the form `WHAT; WHAT TO DO`.
#[derive(Debug, Error)]
pub enum DaprError {
    /// A folder of `--resources-path`.
    #[error("cannot read the folder {folder}; check --resources-path")]
    Folder { folder: String, source: std::io::Error },
    #[error("the folder {folder} has more than {limit} YAML files; split it")]
    TooManyFiles { folder: String, limit: usize },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// All mistakes in components.
    #[error("{0}")]
    Components(#[source] Mistakes),
    /// Several components have one name; in Dapr's words, a line each.
    #[error("failed to load components: {}; give each a name of its own: see {files}", twice.join("\n"))]
    ComponentNames { twice: Vec<String>, files: String },
    /// A document needs what is not served, or has a value that is not understood.
    #[error("{file}: {what}")]
    Document { file: String, what: String },
    /// A flag or a variable of the environment.
    #[error("{0}")]
    Flag(String),
}

impl DaprError {
    pub(crate) fn document(file: &Path, what: String) -> Self {
        Self::Document { file: file.display().to_string(), what }
    }

    /// The code of the failure.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Folder { .. } => ErrorCode::FileUnusable,
            Self::File(error) => error.code(),
            Self::TooManyFiles { .. }
            | Self::Yaml(_)
            | Self::Components(_)
            | Self::ComponentNames { .. }
            | Self::Document { .. }
            | Self::Flag(_) => ErrorCode::BadConfiguration,
        }
    }
}
