//! `tollway kube inject`: reads manifests, adds sidecars to their pods, prints them. Which pods get one
//! and what is added is decided in the crate `inject`.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;
use tollway_config::go::{manifests, to_json, to_yaml};
use tollway_inject::{InjectError, Namespace, Settings, Unmarked, inject};
use tollway_model::{ErrorCode, decode_text};

use super::sidecar_args::SidecarArgs;
use crate::failure::Failure;

/// Largest file that is read, in bytes: charts with their kinds have some millions.
const FILE_LIMIT_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Args)]
pub(crate) struct InjectArgs {
    /// File with manifests in YAML or JSON; `-` reads standard input. May be repeated.
    #[arg(short = 'f', long = "file", value_name = "FILE|-", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    sidecar: SidecarArgs,
    /// Namespace of objects that name none.
    #[arg(short = 'n', long, value_name = "NAME", default_value = "default")]
    namespace: String,
    /// Only pods with an annotation or label that asks for a sidecar get one; by default all do but
    /// those with `tollway.dev/inject: "false"`.
    #[arg(long)]
    only_marked: bool,
}

/// Prints the manifests when all of them could be read and changed; nothing is printed before.
pub(super) fn run(args: &InjectArgs) -> Result<()> {
    let unmarked = if args.only_marked { Unmarked::Leave } else { Unmarked::Inject };
    let settings = Settings { unmarked, ..args.sidecar.settings()? };
    let mut printed = String::new();
    for path in &args.files {
        let source =
            if path == Path::new("-") { "standard input" } else { &*path.to_string_lossy() };
        let text = read(path, source)?;
        inject_all(&text, source, &args.namespace, &settings, &mut printed)?;
    }
    if printed.is_empty() {
        bail!("there is no object in what was given");
    }
    let mut out = std::io::stdout().lock();
    out.write_all(printed.as_bytes()).context("cannot write to standard output")
}

/// Appends the objects of a text to `printed`, and reports notes on standard error.
fn inject_all(
    text: &str,
    source: &str,
    namespace: &str,
    settings: &Settings,
    printed: &mut String,
) -> Result<()> {
    for (document, number) in manifests(text, source).into_iter().zip(1..) {
        let Some(node) = document.node? else { continue };
        let object = to_json(&node, source)?;
        let namespace = namespace_of(&object, namespace);
        let at = format!("{source}:{}: document {number}", node.at.line);
        let injection = inject(&object, &namespace, settings)
            .map_err(|InjectError { object, problem }| mistake(&at, &object, &problem))?;
        for note in injection.notes {
            eprintln!("note: {at}: {}: {}", note.object, note.text);
        }
        if !printed.is_empty() {
            printed.push_str("---\n");
        }
        printed.push_str(&to_yaml(&injection.object));
    }
    Ok(())
}

fn mistake(at: &str, object: &str, problem: &tollway_inject::Problem) -> Failure {
    Failure::new(ErrorCode::BadConfiguration, format!("{at}: {object}: {problem}"))
}

/// The namespace of an object. Its labels are not in a file of objects, so that they decide nothing.
fn namespace_of(object: &Value, usual: &str) -> Namespace {
    let name = object.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or(usual);
    Namespace { name: name.to_owned(), ..Namespace::default() }
}

/// The text of a file, or of standard input.
fn read(path: &Path, source: &str) -> Result<String> {
    let failed = || format!("cannot read {source}");
    let mut bytes = Vec::new();
    let limit = FILE_LIMIT_BYTES + 1;
    if path == Path::new("-") {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes).with_context(failed)?;
    } else {
        let file = std::fs::File::open(path).with_context(failed)?;
        file.take(limit).read_to_end(&mut bytes).with_context(failed)?;
    }
    if bytes.len() as u64 > FILE_LIMIT_BYTES {
        bail!("{source} has more than {FILE_LIMIT_BYTES} bytes; split it");
    }
    decode_text(bytes).with_context(|| format!("{source} is no text in UTF-8 or UTF-16"))
}

#[cfg(test)]
mod tests;
