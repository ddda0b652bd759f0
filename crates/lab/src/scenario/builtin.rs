//! The scenarios that come with the program: files like a user's, embedded.

/// A scenario that comes with the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltIn {
    pub name: &'static str,
    /// The text of its file.
    pub text: &'static str,
}

macro_rules! built_in {
    ($($name:literal),+ $(,)?) => {
        /// All of them, in the order of a list.
        pub const BUILT_IN: &[BuiltIn] = &[$(BuiltIn {
            name: $name,
            text: include_str!(concat!("../../scenarios/", $name, ".yaml")),
        }),+];
    };
}

built_in![
    "cross-network",
    "invocation",
    "control-plane-cost",
    "tls",
    "push",
    "throughput",
    "max-rate",
    "cpu-limits",
    "load-steps",
];

/// The scenario of that name.
#[must_use]
pub fn built_in(name: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|scenario| scenario.name == name)
}
