//! `tollway kube inject`: reads manifests, adds sidecars to their pods, prints them. Which pods get one
//! and what is added is decided in the crate `inject`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::Value;
use tollway_config::go::{manifests, to_json, to_yaml};
use tollway_inject::{
    DaprConfig, DefaultResources, InjectError, IpFamily, Namespace, PullPolicy, Settings,
    TokenFrom, Unmarked, inject,
};
use tollway_model::{ErrorCode, decode_text};
use tollway_proxy::mesh::RootPin;

use crate::failure::Failure;

/// Largest file that is read, in bytes: charts with their kinds have some millions.
const FILE_LIMIT_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Args)]
pub(crate) struct InjectArgs {
    /// File with manifests in YAML or JSON; `-` reads standard input. May be repeated.
    #[arg(short = 'f', long = "file", value_name = "FILE|-", required = true)]
    files: Vec<PathBuf>,
    /// Image of the sidecar.
    #[arg(long, value_name = "IMAGE", default_value = concat!("tollway:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// When a node fetches the image.
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent")]
    image_pull_policy: Pull,
    /// The control plane, as the sidecar's `--control` takes it.
    #[arg(long, value_name = "HOST:PORT", default_value = "tollway-control.tollway.svc:15010")]
    control: String,
    /// Secret with a join token under the key `token`; without it sidecars join by a token of their
    /// service account.
    #[arg(long, value_name = "SECRET")]
    token_secret: Option<String>,
    /// The root of the network, as `tollway identity root` prints it: by it the sidecar recognises the
    /// control plane that it shows the token of its service account to.
    #[arg(long, value_name = "PIN", conflicts_with = "token_secret")]
    root_pin: Option<RootPin>,
    /// Namespace of objects that name none.
    #[arg(short = 'n', long, value_name = "NAME", default_value = "default")]
    namespace: String,
    /// Only pods with an annotation or label that asks for a sidecar get one; by default all do but
    /// those with `tollway.dev/inject: "false"`.
    #[arg(long)]
    only_marked: bool,
    /// Leave out Configurations that `dapr.io/config` names, with a note; by default such a pod is a
    /// mistake, since a Configuration may decide who calls the app.
    #[arg(long)]
    leave_out_dapr_config: bool,
    /// Family of the pods' addresses.
    #[arg(long, value_name = "FAMILY", default_value = "ipv4")]
    ip_family: Family,
    /// User and group of the sidecar's processes.
    #[arg(long, value_name = "UID", default_value_t = 15_001, value_parser = clap::value_parser!(u32).range(1..))]
    uid: u32,
    #[command(flatten)]
    resources: ResourceArgs,
}

/// What a sidecar requests and may use, where its pod says nothing of it.
#[derive(Args)]
struct ResourceArgs {
    /// Processor time that a sidecar requests; `none` for nothing.
    #[arg(long, value_name = "QUANTITY", default_value = "10m")]
    cpu_request: String,
    /// Most processor time of a sidecar; `none` for any.
    #[arg(long, value_name = "QUANTITY", default_value = "none")]
    cpu_limit: String,
    /// Memory that a sidecar requests; `none` for nothing.
    #[arg(long, value_name = "QUANTITY", default_value = "16Mi")]
    memory_request: String,
    /// Most memory of a sidecar; `none` for any.
    #[arg(long, value_name = "QUANTITY", default_value = "256Mi")]
    memory_limit: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum Pull {
    #[value(name = "Always")]
    Always,
    #[value(name = "IfNotPresent")]
    IfNotPresent,
    #[value(name = "Never")]
    Never,
}

#[derive(Clone, Copy, ValueEnum)]
enum Family {
    Ipv4,
    Ipv6,
}

/// Prints the manifests when all of them could be read and changed; nothing is printed before.
pub(super) fn run(args: &InjectArgs) -> Result<()> {
    let settings = args.settings()?;
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
    Namespace { name: name.to_owned(), labels: BTreeMap::new() }
}

impl InjectArgs {
    fn settings(&self) -> Result<Settings> {
        let of = &self.resources;
        let quantity = |option: &str, text: &str| {
            let known = text == "none" || tollway_inject::is_quantity(text);
            if !known {
                let what =
                    format!("{option} is `{text}`; write a quantity such as 100m or 64Mi, or none");
                return Err(Failure::new(ErrorCode::BadConfiguration, what));
            }
            Ok((text != "none").then(|| text.to_owned()))
        };
        let token = match &self.token_secret {
            Some(name) => TokenFrom::Secret(name.clone()),
            None => TokenFrom::ServiceAccount {
                root_pin: self.root_pin.as_ref().map(ToString::to_string),
                expiration_seconds: TOKEN_SECONDS,
            },
        };
        Ok(Settings {
            pull_policy: match self.image_pull_policy {
                Pull::Always => PullPolicy::Always,
                Pull::IfNotPresent => PullPolicy::IfNotPresent,
                Pull::Never => PullPolicy::Never,
            },
            token,
            resources: DefaultResources {
                cpu_request: quantity("--cpu-request", &of.cpu_request)?,
                cpu_limit: quantity("--cpu-limit", &of.cpu_limit)?,
                memory_request: quantity("--memory-request", &of.memory_request)?,
                memory_limit: quantity("--memory-limit", &of.memory_limit)?,
            },
            uid: self.uid,
            ip_family: match self.ip_family {
                Family::Ipv4 => IpFamily::V4,
                Family::Ipv6 => IpFamily::V6,
            },
            unmarked: if self.only_marked { Unmarked::Leave } else { Unmarked::Inject },
            dapr_config: match self.leave_out_dapr_config {
                true => DaprConfig::LeaveOut,
                false => DaprConfig::Refuse,
            },
            ..Settings::new(&self.image, &self.control)
        })
    }
}

/// Life of the token of a service account; the kubelet renews it before.
const TOKEN_SECONDS: u32 = 3600;

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
