//! The scenarios that come with the program: files like a user's, embedded.

/// A scenario that comes with the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltIn {
    pub name: &'static str,
    /// The text of its file.
    pub text: &'static str,
}

macro_rules! built_in {
    ($(#[$doc:meta])* $list:ident: $($name:literal),+ $(,)?) => {
        $(#[$doc])*
        pub const $list: &[BuiltIn] = &[$(BuiltIn {
            name: $name,
            text: include_str!(concat!("../../scenarios/", $name, ".yaml")),
        }),+];
    };
}

built_in![
    /// Those of requests, in the order of a list.
    BUILT_IN:
    "cross-network",
    "invocation",
    "actors",
    "control-plane-cost",
    "tls",
    "push",
    "throughput",
    "max-rate",
    "cpu-limits",
    "load-steps",
];

built_in![
    /// Those of the fabric, in the order of a list.
    FABRIC_BUILT_IN:
    "neighbours-list",
    "neighbours-watch",
    "neighbours-get",
    "neighbours-fanout",
    "neighbours-churn",
    "fabric-forwarding",
];

/// The scenario of requests of that name.
#[must_use]
pub fn built_in(name: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|scenario| scenario.name == name)
}
