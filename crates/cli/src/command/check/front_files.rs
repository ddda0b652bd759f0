//! What a front would serve: its certificates, the authorities of its clients, its app.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tollway_dial::{DialError, dial};
use tollway_identity::span;
use tollway_model::ErrorCode;
use tollway_proxy::{CheckedPair, FrontTarget};

use super::finding::Finding;
use crate::async_runtime::block_on;

use crate::command::front::files;
use tollway_settings::Listing;

/// A certificate that ends sooner is worth a word.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);
/// How long the app may take to accept.
const APP_WITHIN: Duration = Duration::from_secs(1);

pub(super) fn inspect(settings: &Listing) -> Vec<Finding> {
    let mut findings = Vec::new();
    if paths(settings, "listens").is_empty() {
        let (what, fix) = ("no address is named", "name one with --listen IP:PORT");
        findings.push(Finding::fail("listens", ErrorCode::BadConfiguration, what, fix));
    }
    findings.extend(certificates(settings, SystemTime::now()));
    findings.push(app(&settings.first("to")));
    findings
}

fn paths(settings: &Listing, key: &str) -> Vec<PathBuf> {
    settings.values(key).iter().map(PathBuf::from).collect()
}

fn certificates(settings: &Listing, now: SystemTime) -> Vec<Finding> {
    let name = "certificates";
    let (chains, keys) = (paths(settings, "certs"), paths(settings, "keys"));
    if chains.is_empty() && keys.is_empty() {
        let (what, fix) = ("none is named", "name one with --cert FILE and --key FILE");
        return vec![Finding::fail(name, ErrorCode::BadConfiguration, what, fix)];
    }
    let client_ca = paths(settings, "client_ca").pop();
    let allow_open_files = settings.first("allow_open_files") == "true";
    let checked =
        files(chains, keys, client_ca.clone(), allow_open_files).map_err(anyhow::Error::from);
    let checked = checked.and_then(|files| Ok(files.check(now)?));
    let pairs = match checked {
        Ok(pairs) => pairs,
        Err(error) => return vec![Finding::of_error(name, &error)],
    };
    let mut findings: Vec<Finding> = pairs.iter().map(|pair| certificate(pair, now)).collect();
    findings.extend(client_ca.map(|path| {
        Finding::ok("clients", format!("all must show a certificate of {}", path.display()))
    }));
    findings
}

fn certificate(pair: &CheckedPair, now: SystemTime) -> Finding {
    let left = pair.not_after.duration_since(now).unwrap_or_default();
    let names = match pair.names.as_slice() {
        [] => "no name".to_owned(),
        [only] => only.clone(),
        [first, others @ ..] => format!("{first} and {} more", others.len()),
    };
    let what = format!("{}: {names}, good for {}", pair.certificate.display(), span(left));
    if left < SOON {
        return Finding::warn("certificate", what, "renew it; a front takes new files as it runs");
    }
    Finding::ok("certificate", what)
}

/// It may be started later, so that it is away is no failure.
fn app(to: &str) -> Finding {
    if to.is_empty() {
        let (what, fix) = ("none is named", "name one with --to http://HOST:PORT");
        return Finding::fail("app", ErrorCode::BadConfiguration, what, fix);
    }
    let target = match to.parse::<FrontTarget>() {
        Ok(target) => target,
        Err(error) => {
            return Finding::fail("app", ErrorCode::BadConfiguration, error.to_string(), "");
        }
    };
    let dialled = block_on(dial(target.authority(), None, APP_WITHIN));
    match dialled.unwrap_or_else(|error| Err(DialError::Connect(std::io::Error::other(error)))) {
        Ok(_) => Finding::ok("app", format!("{target} takes connections")),
        Err(DialError::Resolve(_)) => {
            let what = format!("the address of {target} cannot be found");
            Finding::fail("app", ErrorCode::AppUnreachable, what, "check --to")
        }
        Err(error) => {
            let what = format!("{target} takes none: {}", std::io::Error::from(error).kind());
            Finding::warn(
                "app",
                what,
                "start it; until then the front answers clients with an error",
            )
        }
    }
}
