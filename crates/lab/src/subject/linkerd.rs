//! `linkerd`: linkerd2-proxy at the caller and at the app, as Linkerd puts it into pods.
//!
//! It is no program that a file could describe: it takes its configuration from a control plane,
//! of which the lab has a small one (`control.rs`, `answers.rs`), and its connections from the
//! kernel, which redirects them (`redirect.rs`). So it needs networks that are namespaces. Between
//! the two is what Linkerd makes of any call in its mesh: HTTP/2 over mutual TLS, whatever the
//! caller speaks, with the identities that Tollway's sidecars have in the same place.

mod answers;
mod control;
mod redirect;
mod start;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use tollway_record::record::Tls;

pub use control::{LinkerdControlArgs, LinkerdControlError, run_linkerd_control};

use super::adapter::{self, Get, Program};
use super::{Availability, Leg, StartedSubject, Subject, SubjectKind, Variant};
use crate::error::LabError;
use crate::experiment::Ground;
use crate::progress::Progress;
use crate::topology::Isolation;

/// Names of its program, and of the one that redirects.
const PROGRAM: &str = "linkerd2-proxy";
const NFT: &str = "nft";
const VARIANTS: &[Variant] =
    &[Variant::known("pair", "HTTP/2 and mutual TLS between the two, whatever the caller speaks")];

/// The kind of linkerd2-proxy's pair.
#[derive(Default)]
pub struct Linkerd {
    /// Found once: a program does not go away between the list and the run.
    found: OnceLock<Arc<Programs>>,
}

/// What works here.
struct Programs {
    proxy: Program,
    nft: PathBuf,
    /// Whether connections can be redirected; tried once.
    redirects: OnceLock<Result<(), String>>,
}

impl Linkerd {
    fn programs(&self) -> Result<&Arc<Programs>, Availability> {
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let proxy = find_proxy().ok_or_else(|| {
            let how = "put linkerd2-proxy on PATH; docs/guide/peers.md says where it is".to_owned();
            adapter::missing(&[PROGRAM.to_owned()], &Get::ByHand(how))
        })?;
        let nft = adapter::program_paths(NFT).into_iter().next();
        let nft = nft
            .ok_or_else(|| adapter::missing(&[NFT.to_owned()], &Get::Apt("nftables".to_owned())))?;
        let programs = Programs { proxy, nft, redirects: OnceLock::new() };
        Ok(self.found.get_or_init(|| Arc::new(programs)))
    }
}

/// It has no argument for its version: it prints it before the error that it is not configured.
fn find_proxy() -> Option<Program> {
    let in_folder = format!("{}/{PROGRAM}", adapter::PEERS);
    let paths = [PROGRAM, &in_folder].map(adapter::program_paths);
    paths.into_iter().flatten().find_map(|path| {
        let (_, printed) = adapter::printed(&path, &[])?;
        let (_, version) = printed.split_once("linkerd2_proxy: ")?;
        Some(Program { version: adapter::version_in(version)?, path })
    })
}

impl SubjectKind for Linkerd {
    fn name(&self) -> &'static str {
        "linkerd"
    }

    fn purpose(&self) -> &'static str {
        "linkerd2-proxy at both ends, connections redirected, mutual TLS between"
    }

    fn variants(&self) -> &[Variant] {
        VARIANTS
    }

    fn availability(&self) -> Availability {
        match self.programs() {
            Ok(programs) => Availability::Ready { version: programs.proxy.version.clone() },
            Err(missing) => missing,
        }
    }

    fn make(&self, _: &Variant) -> Box<dyn Subject> {
        Box::new(Pair { programs: self.programs().ok().cloned() })
    }
}

/// The two proxies, and what they need.
struct Pair {
    /// `None` where they are missing, which [`SubjectKind::availability`] has reported.
    programs: Option<Arc<Programs>>,
}

impl Subject for Pair {
    fn carries(&self, leg: &Leg) -> Result<(), String> {
        match leg.tls {
            Tls::Plain => Ok(()),
            Tls::Tls | Tls::Mtls => {
                Err("callers of a pair are plain: it stands beside them".to_owned())
            }
        }
    }

    fn stands_in(&self, isolation: &Isolation) -> Result<(), String> {
        if let Isolation::Loopback { reason } = isolation {
            return Err(format!(
                "it needs network namespaces, in which connections are redirected to it: {reason}"
            ));
        }
        let Some(programs) = &self.programs else { return Ok(()) };
        programs.redirects.get_or_init(|| redirect::probe(&programs.nft)).clone()
    }

    fn start(
        &self,
        ground: &mut Ground,
        legs: &[Leg],
        progress: &mut dyn Progress,
    ) -> Result<StartedSubject, LabError> {
        let missing = || LabError::MissingProgram {
            subject: "linkerd".to_owned(),
            why: format!("`{PROGRAM}` or `{NFT}` is gone"),
        };
        let programs = self.programs.as_ref().ok_or_else(missing)?;
        start::start(&programs.proxy.path, &programs.nft, ground, legs, progress)
    }
}
