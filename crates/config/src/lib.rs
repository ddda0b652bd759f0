//! Files that a user writes. YAML is read strictly, and each mistake has its file, line and column
//! (`yaml`); names that are not known get a suggestion (`suggest`). `entries` reads a mapping whose
//! keys are not known beforehand, as it is written. Manifests are the kinds that `tollway apply`
//! reads (`manifest`).
//!
//! What a command does with the values, and how an error is printed, is left to the caller.

#![forbid(unsafe_code)]

pub mod entries;
pub mod go;
pub mod manifest;
pub mod suggest;
pub mod yaml;

mod app_scheme;
mod mistake;

pub use app_scheme::{AppScheme, request_path};
pub use mistake::Mistake;
pub use yaml::{FileError, Mistakes, YamlError};
