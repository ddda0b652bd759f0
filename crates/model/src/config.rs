//! The configuration that a part runs with.

/// What runs, and how the last change went.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunningConfig {
    /// 1 at the start; one more with every change that was put to work.
    pub revision: u64,
    /// The settings in effect, as a file that can be given back. Holds no secrets.
    pub text: String,
    /// Changes that were refused since the start.
    pub refused: u64,
    /// Why the last change was refused; `None` once one was accepted.
    pub last_refusal: Option<String>,
    /// Settings whose new values wait for a restart.
    pub needs_restart: Vec<String>,
}
