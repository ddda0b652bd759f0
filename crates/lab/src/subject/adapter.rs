//! Subjects that an adapter file describes: foreign proxies, alone or in pairs.
//!
//! The peers that come with the program are such files too (`subjects/*.yaml`), and a user
//! who compares another program, or another tuning, writes a file like them. A file names a program
//! and, for each deployment, its processes: on the app's side, on the caller's side, or both. Texts hold placeholders for addresses, certificates and names; the lab makes
//! the certificates, finds free ports, starts the processes and reads what they use.

mod certificates;
mod check;
mod file;
mod program;
mod start;
mod template;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use tollway_record::record::Tls;

pub use certificates::CertificateError;
pub(crate) use certificates::{Authorities, Identity, write_secret};
pub use file::{AdapterFile, Deployment, Get, SUBJECT_SCHEMA, Side, VariantSpec};
pub use program::peers_folder;
pub(crate) use program::program_paths;
pub(super) use program::{PEERS, Program, missing, printed, version_in};
pub use template::TemplateError;

use super::{Availability, Leg, Listener, StartedSubject, Subject, SubjectKind, Variant};
use crate::error::LabError;
use crate::experiment::Ground;
use crate::progress::Progress;

/// Placeholders that every process has.
const FIXED_PLACEHOLDERS: &[&str] = &["program", "dir", "listen", "listen_ip", "listen_port"];

/// Placeholders of a side, for what it calls, its own certificate, and who is at the other end.
const SIDE_PLACEHOLDERS: &[&str] = &[
    "upstream",
    "upstream_ip",
    "upstream_port",
    "ca",
    "certificate",
    "key",
    "certificate_and_key",
    "own_name",
    "own_id",
    "peer_name",
    "peer_id",
];

/// Placeholders of a side with an authority: its address, and its folder.
const AUTHORITY_PLACEHOLDERS: &[&str] = &["authority", "authority_dir"];

/// The files that come with the program.
const BUILT_IN: [&str; 5] = [
    include_str!("../../subjects/dapr.yaml"),
    include_str!("../../subjects/envoy.yaml"),
    include_str!("../../subjects/haproxy.yaml"),
    include_str!("../../subjects/nginx.yaml"),
    include_str!("../../subjects/traefik.yaml"),
];

/// The adapters that come with the program.
#[must_use]
pub fn built_in_adapters() -> Vec<Adapter> {
    let read = |text: &&str| {
        let file = serde_saphyr::from_str(text).expect("the program's own files are tested");
        Adapter::new(file)
    };
    BUILT_IN.iter().map(read).collect()
}

/// A kind of subject that a file describes.
pub struct Adapter {
    file: Arc<AdapterFile>,
    variants: Vec<Variant>,
    /// Found once: a program does not go away between the list and the run.
    found: OnceLock<Program>,
}

impl Adapter {
    /// From a file in which [`AdapterFile::check`] finds no fault.
    #[must_use]
    pub fn new(file: AdapterFile) -> Self {
        let variants = file.variants.iter().map(|variant| Variant {
            name: variant.name.value.clone().into(),
            purpose: variant.purpose.clone().into(),
        });
        Self { variants: variants.collect(), file: Arc::new(file), found: OnceLock::new() }
    }

    /// The path of its program; `Err` has the reason, and how to get it.
    pub(super) fn path(&self) -> Result<PathBuf, String> {
        match self.availability() {
            Availability::Ready { .. } => Ok(self.found_path()),
            Availability::Missing { why, how, .. } => Err(format!("{why}; {how}")),
        }
    }

    /// Empty where the program is missing.
    fn found_path(&self) -> PathBuf {
        self.program().map(|program| program.path.clone()).unwrap_or_default()
    }

    /// `None` where the file has none, or it is missing.
    fn authority_path(&self) -> Option<PathBuf> {
        program::first_of(&self.file.authority.as_ref()?.program.value)
    }

    fn program(&self) -> Option<&Program> {
        if self.found.get().is_none()
            && let Some(found) = program::find(&self.file.program.value, &self.file.version)
        {
            return Some(self.found.get_or_init(|| found));
        }
        self.found.get()
    }
}

impl SubjectKind for Adapter {
    fn name(&self) -> &str {
        &self.file.name.value
    }

    fn purpose(&self) -> &str {
        &self.file.purpose
    }

    fn variants(&self) -> &[Variant] {
        &self.variants
    }

    fn availability(&self) -> Availability {
        let Some(program) = self.program() else {
            return missing(&self.file.program.value, &self.file.get);
        };
        match &self.file.authority {
            Some(spec) if self.authority_path().is_none() => {
                missing(&spec.program.value, &self.file.get)
            }
            _ => Availability::Ready { version: program.version.clone() },
        }
    }

    fn make(&self, variant: &Variant) -> Box<dyn Subject> {
        let name = self.name();
        let default = self.variants.first() == Some(variant);
        let label = if default { name.to_owned() } else { format!("{name}.{}", variant.name) };
        let (file, variant) = (self.file.clone(), variant.name.clone().into_owned());
        let (program, authority) = (self.found_path(), self.authority_path().unwrap_or_default());
        Box::new(Pair { file, variant, label, program, authority })
    }
}

/// One variant.
struct Pair {
    file: Arc<AdapterFile>,
    variant: String,
    /// Distinguishes its processes from those of other subjects.
    label: String,
    program: PathBuf,
    /// Empty where there is none.
    authority: PathBuf,
}

impl Pair {
    fn deployments(&self) -> &[Deployment] {
        self.file.variant(&self.variant).map_or(&[], |variant| &variant.deployments)
    }

    fn deployment(&self, leg: &Leg) -> Option<&Deployment> {
        let carries = |deployment: &&Deployment| {
            deployment.protocols.value.contains(&leg.protocol)
                && deployment.caller_tls.contains(&leg.tls)
        };
        self.deployments().iter().find(carries)
    }
}

impl Subject for Pair {
    fn carries(&self, leg: &Leg) -> Result<(), String> {
        let none = || match leg.tls {
            Tls::Plain => format!("it does not carry {}", leg.protocol),
            Tls::Tls | Tls::Mtls => format!("it does not carry {} over {}", leg.protocol, leg.tls),
        };
        self.deployment(leg).map(|_| ()).ok_or_else(none)
    }

    fn published(&self, _: &str) -> Vec<Listener> {
        let mut listeners = Vec::new();
        for deployment in
            self.deployments().iter().filter(|deployment| deployment.app_side.is_some())
        {
            for (protocol, tls) in deployment
                .protocols
                .value
                .iter()
                .flat_map(|p| deployment.caller_tls.iter().map(move |t| (*p, *t)))
            {
                let name = part_name(&self.label, &Leg { network: 0, protocol, tls });
                let authority = deployment.asks_authority.then(|| authority_name(&name));
                for name in [name].into_iter().chain(authority) {
                    let process = name.clone();
                    listeners.push(Listener { name, process, port: start::LISTEN });
                }
            }
        }
        listeners
    }

    fn start(
        &self,
        ground: &mut Ground,
        legs: &[Leg],
        progress: &mut dyn Progress,
    ) -> Result<StartedSubject, LabError> {
        start::start(self, ground, legs, progress)
    }
}

/// Name of the app's side of a leg: of its process and its listener.
fn part_name(label: &str, leg: &Leg) -> String {
    match leg.tls {
        Tls::Plain => format!("{label}-{}", leg.protocol),
        Tls::Tls | Tls::Mtls => format!("{label}-{}-{}", leg.protocol, leg.tls),
    }
}

/// Name of the authority of the part of that name, which its other side uses too.
fn authority_name(part: &str) -> String {
    format!("{part}-authority")
}

#[cfg(test)]
mod tests;
