//! The built-in scenarios: files like a user's, embedded.

use super::ScenarioKind;

/// A built-in scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltIn {
    pub name: &'static str,
    pub kind: ScenarioKind,
    /// The text of its file.
    pub text: &'static str,
}

macro_rules! built_in {
    ($($kind:ident: $($name:literal),+);+ $(;)?) => {
        /// All built-in scenarios, in the order of a list.
        pub const BUILT_IN: &[BuiltIn] = &[$($(BuiltIn {
            name: $name,
            kind: ScenarioKind::$kind,
            text: include_str!(concat!("../../scenarios/", $name, ".yaml")),
        },)+)+];
    };
}

built_in! {
    Requests:
        "cross-network",
        "invocation",
        "actors",
        "control-plane-cost",
        "tls",
        "push",
        "throughput",
        "max-rate",
        "cpu-limits",
        "load-steps";
    Fabric:
        "neighbours-list",
        "neighbours-watch",
        "neighbours-get",
        "neighbours-fanout",
        "neighbours-churn",
        "fabric-forwarding";
}

/// The built-in scenario of that name.
#[must_use]
pub fn built_in(name: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|scenario| scenario.name == name)
}
