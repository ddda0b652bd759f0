//! Crate edges: the crates of this workspace, and for each the crates it may depend on.
//!
//! The order is the layering: a crate depends only on earlier ones, and `proxy`, `control` and
//! `fabric` never on each other. Adding an edge means changing this list, where a review sees it.

/// A crate and its allowed neighbours, by short name.
pub(crate) struct Crate {
    pub name: &'static str,
    /// Values and decisions only: no sockets, clock, environment, randomness, runtime.
    pub pure: bool,
    pub may_use: &'static [&'static str],
}

/// The crate of test helpers: every crate may use it, in tests only.
pub(crate) const TEST_HELPERS: &str = "testkit";

/// The crate of tests of whole processes: it is a test as a whole.
pub(crate) const TESTS: &str = "tests";

/// The crate that puts the parts together: it may use all of them.
pub(crate) const TOP: &str = "cli";

pub(crate) const CRATES: &[Crate] = &[
    pure("model", &[]),
    pure("http", &[]),
    pure("routing", &["model"]),
    pure("actors", &[]),
    pure("record", &[]),
    pure("inject", &["model"]),
    part("config", &["model", "routing"]),
    part("net", &[]),
    part("wire", &["model", "actors"]),
    part("identity", &["model"]),
    part("dial", &["identity"]),
    part("store", &["model"]),
    part("telemetry", &["model", "identity", "dial"]),
    part("state", &["config", "identity"]),
    part("proxy", &["model", "http", "routing", "net", "wire", "identity", "dial", "telemetry"]),
    part(
        "runtime",
        &[
            "model",
            "routing",
            "actors",
            "net",
            "wire",
            "identity",
            "dial",
            "state",
            "telemetry",
            "proxy",
        ],
    ),
    part("intercept", &["net", "routing", "dial", "proxy"]),
    part("settings-derive", &[]),
    part("settings", &["config", "model", "routing", "telemetry", "proxy", "settings-derive"]),
    part("dapr", &["config", "model", "routing", "state", "telemetry", "proxy", "runtime"]),
    part(
        "control",
        &["model", "routing", "actors", "net", "wire", "identity", "dial", "store", "telemetry"],
    ),
    part("kube", &["config", "model", "inject", "identity", "telemetry", "control"]),
    part(
        "launch",
        &[
            "config",
            "model",
            "net",
            "wire",
            "identity",
            "proxy",
            "routing",
            "runtime",
            "intercept",
            "dapr",
            "control",
        ],
    ),
    part("fabric", &["model", "net", "wire", "identity", "telemetry"]),
    part("echo", &["http", "record", "net"]),
    part(
        "load",
        &["model", "http", "record", "net", "echo", "wire", "identity", "dial", "telemetry"],
    ),
    part("lab", &["config", "model", "record", "net", "identity", "telemetry"]),
    part("report", &["model", "record"]),
    part("cli", &[]),
    part(
        "tests",
        &[
            "model", "routing", "record", "config", "net", "wire", "identity", "dial", "store",
            "state", "proxy", "runtime", "settings", "control", "fabric", "echo", "lab",
        ],
    ),
    part(
        "fuzz",
        &[
            "model", "http", "actors", "config", "wire", "identity", "control", "fabric", "dapr",
            "launch",
        ],
    ),
    part("testkit", &["net"]),
    part("xtask", &["model", "record"]),
];

const fn pure(name: &'static str, may_use: &'static [&'static str]) -> Crate {
    Crate { name, pure: true, may_use }
}

const fn part(name: &'static str, may_use: &'static [&'static str]) -> Crate {
    Crate { name, pure: false, may_use }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts that meet only in `model` and `wire`.
    const STRANGERS: &[&str] = &["proxy", "control", "fabric"];

    fn position(name: &str) -> usize {
        CRATES.iter().position(|other| other.name == name).expect("every edge ends in the list")
    }

    #[test]
    fn allowed_edges_point_to_earlier_crates() {
        for (place, crate_) in CRATES.iter().enumerate() {
            for target in crate_.may_use {
                assert!(position(target) < place, "{} -> {target}", crate_.name);
            }
        }
    }

    #[test]
    fn strangers_have_no_edge_between_them() {
        for crate_ in CRATES.iter().filter(|crate_| STRANGERS.contains(&crate_.name)) {
            for target in crate_.may_use {
                assert!(!STRANGERS.contains(target), "{} -> {target}", crate_.name);
            }
        }
    }

    #[test]
    fn pure_crates_may_use_only_pure_ones() {
        for crate_ in CRATES.iter().filter(|crate_| crate_.pure) {
            for target in crate_.may_use {
                assert!(CRATES[position(target)].pure, "{} -> {target}", crate_.name);
            }
        }
    }
}
