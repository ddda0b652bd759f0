//! Whether the addresses of a part are free.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use tollway_model::ErrorCode;

use super::finding::Finding;
use crate::failure::port_holder;
use tollway_settings::{Listing, Upstream};

/// Every flag that ends so is an address to listen on, or several.
const LISTEN: &str = "listen";
/// Begins the text for port 0.
const ANY_FREE: &str = "any free port";

/// One finding for each address that the part would listen on, and one for those of which any will
/// do.
pub(super) fn of(settings: &Listing) -> Vec<Finding> {
    let (any, mut findings): (Vec<_>, Vec<_>) =
        each(settings).into_iter().partition(|finding| finding.what.starts_with(ANY_FREE));
    match &any[..] {
        [] => {}
        [one] => findings.push(one.clone()),
        several => {
            let what = format!("{} are free ones, chosen at the start", several.len());
            findings.push(Finding::ok("other ports", what));
        }
    }
    findings
}

fn each(settings: &Listing) -> Vec<Finding> {
    let mut findings = Vec::new();
    for one in settings.list.iter().filter(|one| one.setting.flag.ends_with(LISTEN)) {
        for address in one.values.iter().filter_map(|value| value.parse().ok()) {
            findings.push(address_is_free(one.setting.key, address));
        }
    }
    for upstream in settings.values("upstreams") {
        if let Ok(Upstream { port, .. }) = upstream.parse() {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            findings.push(address_is_free("upstreams", address));
        }
    }
    findings
}

pub(super) fn address_is_free(key: &str, address: SocketAddr) -> Finding {
    if address.port() == 0 {
        return Finding::ok(key, format!("{ANY_FREE} of {}", address.ip()));
    }
    let other = format!("choose another with {}", option(key));
    match TcpListener::bind(address) {
        Ok(_) => Finding::ok(key, format!("{address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let holder = port_holder::find(address)
                .map(|holder| format!(" by {} (process {})", holder.program, holder.pid))
                .unwrap_or_default();
            let what = format!("{address} is taken{holder}");
            let fix = format!("end what holds it, or {other}");
            Finding::fail(key, ErrorCode::PortTaken, what, fix)
        }
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
            let what = format!("{} is no address of this machine", address.ip());
            Finding::fail(key, ErrorCode::AddressNotHere, what, other)
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Finding::fail(
            key,
            ErrorCode::MissingPrivilege,
            format!("port {} is for privileged users", address.port()),
            format!("choose one above 1023 with {}, or run as root", option(key)),
        ),
        Err(error) => {
            let what = format!("{address}: {}", error.kind());
            Finding::fail(key, ErrorCode::AddressNotHere, what, other)
        }
    }
}

fn option(key: &str) -> String {
    format!("--{}", singular(key).replace('_', "-"))
}

/// The option's own name of a key that may have several values.
fn singular(key: &str) -> &str {
    key.strip_suffix('s').unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn a_taken_port_is_reported_with_its_holder() {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let finding = address_is_free("http_listen", held.local_addr().unwrap());
        assert_eq!((finding.level, finding.code), (Level::Fail, Some(ErrorCode::PortTaken)));
        assert!(finding.what.contains("process"), "{}", finding.what);
        assert!(finding.fix.contains("--http-listen"), "{}", finding.fix);
        let free = address_is_free("http_listen", "127.0.0.1:0".parse().unwrap());
        assert_eq!(free.level, Level::Ok);
        let elsewhere = address_is_free("listen", "192.0.2.1:80".parse().unwrap());
        assert_eq!(elsewhere.code, Some(ErrorCode::AddressNotHere));
    }
}
