//! What to start, and where.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollway_net::netns::NetNs;

/// Variables a child gets from our environment, if set. Nothing else: a user's proxy settings
/// or preloaded libraries must not change what is measured.
const PASSED_ON: [&str; 2] = ["PATH", "TOLLWAY_LOG"];

/// A process to start.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Unique among the supervisor's running processes: `west/gateway`.
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// Variables in addition to those that every process has.
    pub environment: Vec<(OsString, OsString)>,
    /// Where it runs; `None` is the lab's own network.
    pub namespace: Option<Arc<NetNs>>,
    /// Namespaces whose descriptors stay open in it.
    pub lend: Vec<Arc<NetNs>>,
    /// The file `cgroup.procs` of the cgroup that it is started in; `None` is the lab's own.
    pub cgroup: Option<PathBuf>,
}

impl Spec {
    /// A process in the lab's own network.
    #[must_use]
    pub fn new(name: impl Into<String>, program: &Path) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            environment: Vec::new(),
            namespace: None,
            lend: Vec::new(),
            cgroup: None,
        }
    }

    /// The same under another name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds variables; they are not part of [`Spec::command_line`].
    #[must_use]
    pub fn environment<K: Into<OsString>, V: Into<OsString>>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.environment
            .extend(variables.into_iter().map(|(key, value)| (key.into(), value.into())));
        self
    }

    #[must_use]
    pub fn within(mut self, namespace: Option<&Arc<NetNs>>) -> Self {
        self.namespace = namespace.cloned();
        self
    }

    /// Starts it in the cgroup with this file `cgroup.procs`.
    #[must_use]
    pub fn in_cgroup(mut self, cgroup: Option<&Path>) -> Self {
        self.cgroup = cgroup.map(Path::to_owned);
        self
    }

    /// As one would type it.
    #[must_use]
    pub fn command_line(&self) -> String {
        let program = self.program.file_name().unwrap_or(self.program.as_os_str());
        let mut line = program.to_string_lossy().into_owned();
        for arg in &self.args {
            line.push(' ');
            line.push_str(&quoted(&arg.to_string_lossy()));
        }
        line
    }

    /// Everything that the process finds in its environment.
    pub(super) fn whole_environment(&self) -> Vec<(OsString, OsString)> {
        let passed = PASSED_ON.iter().filter_map(|key| Some((key.into(), std::env::var_os(key)?)));
        let fixed = [("LANG", "C.UTF-8"), ("RUST_BACKTRACE", "1")];
        let fixed = fixed.map(|(key, value)| (key.into(), value.into()));
        passed.chain(fixed).chain(self.environment.iter().cloned()).collect()
    }
}

fn quoted(arg: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+#".contains(c);
    if !arg.is_empty() && arg.chars().all(plain) {
        arg.into()
    } else {
        format!("'{}'", arg.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_pasted_into_a_shell() {
        let spec = Spec::new("x", Path::new("/usr/bin/tollway"));
        let spec = spec.args(["load", "http", "-H", "dapr-app-id: echo", "it's", ""]);
        assert_eq!(spec.command_line(), r"tollway load http -H 'dapr-app-id: echo' 'it'\''s' ''");
    }
}
