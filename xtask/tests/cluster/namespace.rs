//! A namespace of a cluster for one test, which is removed with all that is in it.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use tollway_testkit::Cluster;

/// How long an older one of the name may take to go, or the account of a new one to come.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Namespace<'a> {
    cluster: Cluster<'a>,
    name: &'static str,
}

impl<'a> Namespace<'a> {
    /// Makes it, in place of one that an earlier run left.
    pub(crate) fn new(cluster: Cluster<'a>, name: &'static str) -> Self {
        let wait = format!("--timeout={}s", LIMIT.as_secs());
        cluster.kubectl(&["delete", "namespace", name, "--ignore-not-found", &wait]).unwrap();
        cluster.kubectl(&["create", "namespace", name]).unwrap();
        let namespace = Self { cluster, name };
        // No pod is admitted before.
        let account = ["get", "serviceaccount/default", "-o", "name"];
        namespace.wait_for(LIMIT, &account, |found| found.contains("/default")).unwrap();
        namespace
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.kubectl(&self.here(arguments))
    }

    pub(crate) fn wait_for(
        &self,
        within: Duration,
        arguments: &[&str],
        holds: impl Fn(&str) -> bool,
    ) -> Result<String> {
        self.cluster.wait_for(within, &self.here(arguments), holds)
    }

    pub(crate) fn apply(&self, manifest: &Value) {
        let arguments = self.here(&["apply", "-f", "-"]);
        self.cluster.kubectl_with(&arguments, &manifest.to_string()).unwrap();
    }

    pub(crate) fn wait_ready(&self, pod: &str) {
        let pod = format!("pod/{pod}");
        self.kubectl(&["wait", "--for=condition=Ready", &pod, "--timeout=60s"]).unwrap();
    }

    fn here<'b>(&self, arguments: &[&'b str]) -> Vec<&'b str> {
        [&["--namespace", self.name], arguments].concat()
    }
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        let delete = ["delete", "namespace", self.name, "--wait=false"];
        if let Err(error) = self.cluster.kubectl(&delete) {
            eprintln!("namespace {} stays: {error:#}", self.name);
        }
    }
}
