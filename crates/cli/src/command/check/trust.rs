//! A running control plane's report on its own certificates and on its joined networks:
//! reachability, version, and the remaining life of their roots.

use std::time::Duration;

use tollway_identity::span;
use tollway_model::ErrorCode;
use tollway_wire::v1;

use super::finding::Finding;

/// Time left of the control plane's own certificate below which something is wrong: it is renewed
/// long before.
const CERTIFICATE_SOON: Duration = Duration::from_secs(5);
/// A root that ends sooner is worth a word: to change it takes the operators of all joined
/// networks.
const ROOT_SOON: Duration = Duration::from_secs(90 * 24 * 3600);

/// The control plane's certificate and its network's root.
pub(super) fn own(status: &v1::StatusResponse, now: Duration) -> Vec<Finding> {
    let fix = "make the network anew and join it again, before its certificates end with its root";
    let mut findings = vec![certificate(status, now)];
    findings.extend(roots("root", "the network's", status.root_ends_unix_s, now, fix));
    findings
}

/// One joined network; `version` is that of the control plane that answers.
pub(super) fn joined(join: &v1::JoinStatus, version: &str, now: Duration) -> Vec<Finding> {
    let fix = "make that network anew and join it again, before its certificates end with its root";
    let mut findings = vec![reached(join)];
    findings.extend(skew(join, version));
    let whose = format!("those of {}", join.network);
    findings.extend(roots("roots", &whose, join.roots_end_unix_s, now, fix));
    findings
}

fn certificate(status: &v1::StatusResponse, now: Duration) -> Finding {
    let left = Duration::from_secs(status.certificate_ends_unix_s).saturating_sub(now);
    if left < CERTIFICATE_SOON {
        return Finding::fail(
            "certificate",
            ErrorCode::CertificateExpired,
            "the control plane's own has ended",
            "check the clock, then start the control plane again",
        );
    }
    Finding::ok("certificate", format!("good for {} min, then renewed", left.as_secs() / 60))
}

/// Nothing if an older program reports none.
fn roots(name: &str, whose: &str, ends_unix_s: u64, now: Duration, fix: &str) -> Option<Finding> {
    let ends = Duration::from_secs(ends_unix_s);
    if ends.is_zero() {
        return None;
    }
    let left = ends.saturating_sub(now);
    Some(if left.is_zero() {
        let what = format!("{whose} ended {} ago", span(now.saturating_sub(ends)));
        Finding::fail(name, ErrorCode::CertificateExpired, what, fix)
    } else if left < ROOT_SOON {
        Finding::warn(name, format!("{whose} ends in {}", span(left)), fix)
    } else {
        Finding::ok(name, format!("{whose}, good for {} days", left.as_secs() / 86_400))
    })
}

fn reached(join: &v1::JoinStatus) -> Finding {
    let name = "peering";
    let services = format!("{}: {} services", join.network, join.services);
    if join.reachable && join.last_error.is_empty() {
        return Finding::ok(name, services);
    }
    if join.reachable {
        let what = format!("{services}, its control plane is away: {}", join.last_error);
        let fix = "start its control plane: calls go on, changes there are not heard";
        return Finding::warn(name, what, fix);
    }
    let reason = if join.last_error.is_empty() { "it does not answer" } else { &join.last_error };
    let fix = if join.gateways.is_empty() {
        "start a gateway in that network, then join again"
    } else {
        "check that network's gateway and control plane, and both clocks"
    };
    let what = format!("{} is not reached: {reason}", join.network);
    Finding::fail(name, ErrorCode::UnreachableNetwork, what, fix)
}

/// Whether both control planes have one version; nothing while the other never answered.
fn skew(join: &v1::JoinStatus, own: &str) -> Option<Finding> {
    if join.version == own || (join.version.is_empty() && !join.reachable) {
        return None;
    }
    let theirs = if join.version.is_empty() { "an older one" } else { &join.version };
    let what = format!("the control plane of {} runs {theirs}, this one {own}", join.network);
    let fix = "upgrade the older one: its control plane first, then gateways, then sidecars";
    Some(Finding::warn("versions", what, fix))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    const DAY: u64 = 86_400;

    fn at(days: u64) -> Duration {
        Duration::from_secs(days * DAY)
    }

    fn join() -> v1::JoinStatus {
        v1::JoinStatus {
            network: "east".to_owned(),
            reachable: true,
            version: "1.0.0".to_owned(),
            roots_end_unix_s: 1000 * DAY,
            ..Default::default()
        }
    }

    #[track_caller]
    fn check(join: &v1::JoinStatus, now: Duration, expected: &[(Level, &str)]) {
        let found = joined(join, "1.0.0", now);
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, (level, part)) in found.iter().zip(expected) {
            assert!(found.level == *level && found.what.contains(part), "{part}: {found:#?}");
            assert!(*level == Level::Ok || !found.fix.is_empty(), "{found:#?}");
        }
    }

    #[test]
    fn roots_are_reported_before_they_expire() {
        let reached = (Level::Ok, "east: 0 services");
        check(&join(), at(500), &[reached, (Level::Ok, "good for 500 days")]);
        check(&join(), at(950), &[reached, (Level::Warn, "those of east ends in 50 d")]);
        check(&join(), at(1002), &[reached, (Level::Fail, "those of east ended 2 d ago")]);
        check(&v1::JoinStatus { roots_end_unix_s: 0, ..join() }, at(500), &[reached]);
    }

    #[test]
    fn a_network_of_another_version_is_worth_a_word() {
        let rest = [(Level::Ok, "east: 0 services"), (Level::Ok, "good for 500 days")];
        let with = |version: &str| v1::JoinStatus { version: version.to_owned(), ..join() };
        let finding = |part| [rest[0], (Level::Warn, part), rest[1]];
        check(&with("0.9.0"), at(500), &finding("of east runs 0.9.0, this one 1.0.0"));
        check(&with(""), at(500), &finding("of east runs an older one"));
    }

    #[test]
    fn a_control_plane_that_is_away_is_no_lost_network() {
        let away = v1::JoinStatus { last_error: "refused".to_owned(), ..join() };
        let roots = (Level::Ok, "good for 500 days");
        check(&away, at(500), &[(Level::Warn, "its control plane is away: refused"), roots]);
        let lost = v1::JoinStatus { reachable: false, version: String::new(), ..away };
        check(&lost, at(500), &[(Level::Fail, "east is not reached: refused"), roots]);
    }
}
