//! An installed network, namespaces, pods.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tollway_testkit::{Cluster, Rig, binary, tool};

/// The image of the program in the clusters.
const IMAGE: &str = "tollway:test";
/// Enough for pods to start.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// The rig; the calling test is skipped without one.
macro_rules! need_rig {
    () => {
        match tollway_testkit::Rig::of_environment() {
            Some(rig) => rig,
            None => {
                tollway_testkit::skip!("no clusters: `cargo xtask cluster test` brings them up")
            }
        }
    };
}
pub(crate) use need_rig;

/// The port of the machines at which the gateway of a cluster is reached.
const GATEWAY_PORT: &str = "30443";

/// A network of the tests.
struct Network {
    name: &'static str,
    /// Where its gateway is reached.
    gateway: &'static str,
    /// Where that of the other one may be.
    peers: &'static str,
    /// The machine of its control plane, whose store ends with it; no test kills it.
    machine: &'static str,
}

const WEST: Network =
    Network { name: "west", gateway: "10.77.0.11", peers: "10.78.0.0/24", machine: "a1" };
const EAST: Network =
    Network { name: "east", gateway: "10.78.0.11", peers: "10.77.0.0/24", machine: "b1" };

/// Cluster `a` with the chart installed as network `west`, whichever test comes first.
pub(crate) fn west(rig: &Rig) -> Cluster<'_> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let cluster = rig.cluster("a");
    once(&INSTALLED, || install(cluster, &WEST, &[]));
    cluster
}

/// Cluster `b` as network `east`.
pub(crate) fn east(rig: &Rig) -> Cluster<'_> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let cluster = rig.cluster("b");
    once(&INSTALLED, || install(cluster, &EAST, &[]));
    cluster
}

fn once(done: &Mutex<bool>, work: impl FnOnce()) {
    let mut is_done = done.lock().unwrap_or_else(PoisonError::into_inner);
    if !*is_done {
        work();
        *is_done = true;
    }
}

/// Joins both, unless they are.
pub(crate) fn join(west: Cluster<'_>, east: Cluster<'_>) {
    let (code, printed) = tollway_kube(west, &[west, east], &["join", "a", "b"]);
    assert_eq!(code, Some(0), "{printed}\n{}\n{}", state(west, "tollway"), state(east, "tollway"));
}

/// Runs `tollway kube` in the network of a cluster, with contexts of these; its exit code and what it printed.
pub(crate) fn tollway_kube(
    from: Cluster<'_>,
    contexts: &[Cluster<'_>],
    arguments: &[&str],
) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = kube(from, contexts, arguments, "");
    let printed = [stdout, stderr].concat();
    (status.code(), String::from_utf8_lossy(&printed).into_owned())
}

fn kube(from: Cluster<'_>, contexts: &[Cluster<'_>], arguments: &[&str], input: &str) -> Output {
    let files = contexts.iter().map(Cluster::kubeconfig);
    let mut command = from.command(binary("tollway").unwrap());
    command.env("KUBECONFIG", std::env::join_paths(files).unwrap()).arg("kube").args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that does not read it reports the reason itself.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

const STORE: &str = "--store=/var/lib/tollway/control";

/// A command of the operator at the control plane of a cluster.
pub(crate) fn control(cluster: Cluster<'_>, command: &[&str]) -> String {
    control_in(cluster, "tollway", command)
}

/// The same of an install in another namespace.
pub(crate) fn control_in(cluster: Cluster<'_>, namespace: &str, command: &[&str]) -> String {
    let namespace = ["--namespace", namespace];
    cluster.kubectl(&[&namespace, &*at_control(command)].concat()).unwrap()
}

/// The arguments of `kubectl` by which a command is carried out at the control plane.
pub(crate) fn at_control<'a>(command: &[&'a str]) -> Vec<&'a str> {
    // Of several replicas the Service leads to the one that serves.
    let exec = ["exec", "service/tollway-control", "--", "/tollway"];
    [&exec, command, &[STORE]].concat()
}

/// Applies the chart to `west` once more, with other values.
pub(crate) fn reinstall(cluster: Cluster<'_>, values: &[&str]) {
    install(cluster, &WEST, values);
}

/// Removes the install of `west`, and installs again. Pods that were there have no network any more.
pub(crate) fn install_afresh(cluster: Cluster<'_>) {
    helm(cluster, &["uninstall", "tollway", "--namespace=tollway", "--ignore-not-found"], &[]);
    cluster.kubectl(&["delete", "namespace", "tollway", "--ignore-not-found"]).unwrap();
    install(cluster, &WEST, &[]);
}

/// Kills the control plane of `west`; the kubelet starts the container again.
pub(crate) fn kill_control() {
    let pid =
        process(|arguments| arguments.starts_with(&["/tollway", "control", "--network=west"]));
    kill_process(pid, Signal::KILL).unwrap();
}

/// Kills the control plane of a pod, one of several; the kubelet starts the container again.
pub(crate) fn kill_control_of(namespace: &str, pod: &str) {
    let pod = format!("--kubernetes-pod={namespace}/{pod}");
    let is_of_pod = |arguments: &[&str]| arguments.contains(&pod.as_str());
    kill_process(process(is_of_pod), Signal::KILL).unwrap();
}

/// Stops the sidecar of a pod: its connections stand, and nothing comes of it any more.
pub(crate) fn suspend_sidecar(pod: &str) {
    let instance = format!("--instance={pod}");
    let is_sidecar = |arguments: &[&str]| {
        arguments.starts_with(&["/tollway", "sidecar"]) && arguments.contains(&instance.as_str())
    };
    kill_process(process(is_sidecar), Signal::STOP).unwrap();
}

/// Kills one of the servers of the clusters, as the kernel does for want of memory.
pub(crate) fn kill_server() {
    let servers =
        processes(|arguments| arguments == ["/tollway", "echo", "--http=0.0.0.0:8080", ""]);
    kill_process(*servers.first().unwrap(), Signal::KILL).unwrap();
}

/// The one process of the rig with these arguments.
fn process(is_wanted: impl Fn(&[&str]) -> bool) -> Pid {
    let found = processes(is_wanted);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

/// Every process with these arguments, behind the last of which is an empty one.
fn processes(is_wanted: impl Fn(&[&str]) -> bool) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let is_wanted = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        is_wanted(&line.split('\0').collect::<Vec<_>>())
    };
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_wanted).filter_map(Pid::from_raw).collect()
}

/// Installs the chart, or brings it up to date, and waits until all of it is ready.
fn install(cluster: Cluster<'_>, network: &Network, values: &[&str]) {
    let namespace = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "tollway", "labels": {
            "pod-security.kubernetes.io/enforce": "restricted",
        }},
    });
    apply(cluster, &namespace);
    let Network { name: network, gateway, peers, machine } = network;
    let usual = [
        format!("network={network}"),
        "control.store=memory".to_owned(),
        format!(r"control.nodeSelector.kubernetes\.io/hostname={machine}"),
        format!("control.peerAddresses={{{peers}}}"),
        "gateway.service.type=NodePort".to_owned(),
        format!("gateway.service.nodePort={GATEWAY_PORT}"),
        format!("gateway.advertise={gateway}:{GATEWAY_PORT}"),
    ];
    let values = usual.iter().map(String::as_str).chain(values.iter().copied());
    let values: Vec<&str> = values.collect();
    helm_install(cluster, "tollway", &values);
}

fn helm_install(cluster: Cluster<'_>, namespace: &str, values: &[&str]) {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/tollway");
    let (name, tag) = IMAGE.split_once(':').unwrap();
    let (name, tag) = (format!("image.name={name}"), format!("image.tag={tag}"));
    let image = [name.as_str(), tag.as_str(), "image.pullPolicy=Never"];
    let install = ["upgrade", "--install", "tollway", chart, "--namespace", namespace];
    helm(cluster, &install, &[&image, values].concat());
}

fn apply(cluster: Cluster<'_>, object: &Value) {
    cluster.kubectl_with(&["apply", "-f", "-"], &object.to_string()).unwrap();
}

fn helm(cluster: Cluster<'_>, arguments: &[&str], values: &[&str]) {
    let helm = tool("helm").expect("`cargo xtask cluster test` brings it");
    let mut command: Command = cluster.command(helm);
    command.env("KUBECONFIG", cluster.kubeconfig()).args(arguments);
    command.args(["--wait", "--timeout=120s"]);
    for value in values {
        command.args(["--set", value]);
    }
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    let namespace = arguments.iter().position(|argument| *argument == "--namespace");
    let namespace = namespace.and_then(|at| arguments.get(at + 1)).unwrap_or(&"tollway");
    assert!(output.status.success(), "helm: {printed}\n{}", state(cluster, namespace));
}

/// An install of one test, without an injector, in a namespace with the apps that use it.
pub(crate) struct OwnInstall<'a> {
    pub(crate) namespace: Namespace<'a>,
}

impl<'a> OwnInstall<'a> {
    pub(crate) fn new(cluster: Cluster<'a>, name: &'static str, values: &[&str]) -> Self {
        let level = ("pod-security.kubernetes.io/enforce", "restricted");
        let installed = Self { namespace: Namespace::new(cluster, name, &[level]) };
        installed.apply(values);
        installed
    }

    /// Applies the chart, once more with other values.
    pub(crate) fn apply(&self, values: &[&str]) {
        let usual = [
            "injector.enabled=false",
            "gateway.enabled=false",
            // Those of the network of the cluster are there.
            "customResources.install=false",
            "customResources.follow=false",
            "services.follow=false",
        ];
        let Namespace { cluster, name } = self.namespace;
        helm_install(cluster, name, &[&usual, values].concat());
    }

    pub(crate) fn control(&self, command: &[&str]) -> String {
        control_in(self.namespace.cluster, self.namespace.name, command)
    }

    /// Applies an object to whose pods `tollway kube inject` has added sidecars, with these options.
    pub(crate) fn apply_injected(&self, object: &Value, options: &[&str]) {
        let Namespace { cluster, name } = self.namespace;
        let control = format!("--control=tollway-control.{name}.svc:15010");
        let image = format!("--image={IMAGE}");
        let usual = ["inject", "-f", "-", &control, &image, "--image-pull-policy=Never"];
        let arguments = [&usual, options].concat();
        let Output { status, stdout, stderr } =
            kube(cluster, &[cluster], &arguments, &object.to_string());
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        let apply = self.namespace.here(&["apply", "-f", "-"]);
        cluster.kubectl_with(&apply, &String::from_utf8_lossy(&stdout)).unwrap();
    }
}

impl Drop for OwnInstall<'_> {
    /// Objects of no namespace would stay.
    fn drop(&mut self) {
        let Namespace { cluster, name } = self.namespace;
        let mut command = cluster.command(tool("helm").expect("it has installed this"));
        command.env("KUBECONFIG", cluster.kubeconfig());
        command.args(["uninstall", "tollway", "--namespace", name, "--ignore-not-found"]);
        if !command.status().is_ok_and(|status| status.success()) {
            eprintln!("the install in namespace {name} stays");
        }
    }
}

/// What is in a namespace, for a failure.
pub(crate) fn state(cluster: Cluster<'_>, namespace: &str) -> String {
    let shown = |arguments: &[&str]| {
        let all = [&["--namespace", namespace], arguments].concat();
        cluster.kubectl(&all).unwrap_or_else(|error| format!("{error:#}"))
    };
    let events = shown(&["get", "events", "--sort-by=.lastTimestamp"]);
    let events: Vec<&str> = events.lines().collect();
    let events = events[events.len().saturating_sub(30)..].join("\n");
    let mut text = shown(&["get", "pods", "--output=wide"]) + &events + "\n";
    let names = shown(&["get", "pods", "--output=name"]);
    for pod in names.lines() {
        text += &format!("{pod}:\n");
        text += &shown(&["logs", pod, "--all-containers", "--tail=15", "--prefix"]);
    }
    text
}

/// A namespace for one test, which is removed with all that is in it.
pub(crate) struct Namespace<'a> {
    cluster: Cluster<'a>,
    pub(crate) name: &'static str,
}

impl<'a> Namespace<'a> {
    /// Makes it with these labels, in place of one that an earlier run left.
    pub(crate) fn new(cluster: Cluster<'a>, name: &'static str, labels: &[(&str, &str)]) -> Self {
        let wait = "--timeout=60s";
        cluster.kubectl(&["delete", "namespace", name, "--ignore-not-found", wait]).unwrap();
        let labels: Value =
            labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels},
        });
        apply(cluster, &namespace);
        let namespace = Self { cluster, name };
        // No pod is admitted before.
        let account = ["get", "serviceaccount/default", "-o", "name"];
        namespace.wait_for(&account, |found| found.contains("/default"));
        namespace
    }

    /// Marked for sidecars, and with the strictest level of Pod Security.
    pub(crate) fn restricted(cluster: Cluster<'a>, name: &'static str) -> Self {
        let level = ("pod-security.kubernetes.io/enforce", "restricted");
        Self::new(cluster, name, &[("tollway.dev/inject", "true"), level])
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        let printed = self.cluster.kubectl(&self.here(arguments));
        printed.unwrap_or_else(|error| panic!("{error:#}\n{}", state(self.cluster, self.name)))
    }

    pub(crate) fn wait_for(&self, arguments: &[&str], holds: impl Fn(&str) -> bool) -> String {
        let found = self.cluster.wait_for(SOON, &self.here(arguments), holds);
        found.unwrap_or_else(|error| panic!("{error:#}\n{}", state(self.cluster, self.name)))
    }

    pub(crate) fn apply(&self, object: &Value) {
        self.try_apply(object).unwrap();
    }

    /// An error has what the API server says.
    pub(crate) fn try_apply(&self, object: &Value) -> Result<(), String> {
        let applied =
            self.cluster.kubectl_with(&self.here(&["apply", "-f", "-"]), &object.to_string());
        applied.map(drop).map_err(|error| format!("{error:#}"))
    }

    pub(crate) fn wait_rolled_out(&self, deployment: &str) {
        self.kubectl(&["rollout", "status", &format!("deployment/{deployment}"), "--timeout=60s"]);
    }

    /// Runs a line of the shell in the container `main` of a deployment's pod.
    pub(crate) fn shell(&self, deployment: &str, line: &str) -> String {
        let deployment = format!("deployment/{deployment}");
        self.kubectl(&["exec", &deployment, "--container=main", "--", "/bin/sh", "-c", line])
    }

    /// Runs it until it prints this line.
    pub(crate) fn shell_until(&self, deployment: &str, line: &str, expected: &str) {
        let deployment = format!("deployment/{deployment}");
        let exec = ["exec", &deployment, "--container=main", "--", "/bin/sh", "-c", line];
        self.wait_for(&exec, |printed| printed.trim_end() == expected);
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

/// What Pod Security `restricted` asks of a container.
fn security() -> Value {
    json!({
        "runAsNonRoot": true,
        "runAsUser": 1000,
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// A deployment of one pod. `container` is that of the app.
pub(crate) fn deployment(name: &str, annotations: Value, mut container: Value) -> Value {
    let labels = json!({"app": name});
    container["name"] = json!("main");
    container["securityContext"] = security();
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
            },
        },
    })
}

/// A Job of one pod, which is tried once.
pub(crate) fn job(name: &str, annotations: Value, container: Value) -> Value {
    let mut template = deployment(name, annotations, container)["spec"]["template"].take();
    template["spec"]["restartPolicy"] = json!("Never");
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": template, "backoffLimit": 0},
    })
}

/// A server that answers `/echo`, and a pod in which to run commands.
pub(crate) fn server() -> Value {
    json!({"image": IMAGE, "args": ["echo", "--http=0.0.0.0:8080"], "imagePullPolicy": "Never"})
}

pub(crate) fn client() -> Value {
    json!({"image": "localhost/box:1", "command": ["/bin/sh", "-c", "exec sleep 100000"]})
}

/// What became of the calls of a Job.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    /// How many failed in which way.
    pub(crate) kinds: Value,
}

/// Makes a Job that calls `service` a hundred times a second for so many seconds; `apply` adds its sidecar where
/// no webhook does. `trouble` begins when calls flow.
pub(crate) fn calls_during(
    shop: &Namespace<'_>,
    apply: impl Fn(&Value),
    service: &str,
    seconds: u32,
    trouble: impl FnOnce(),
) -> Calls {
    let url = format!("http://127.0.0.1:3500/v1.0/invoke/{service}/method/echo");
    requests_during(shop, apply, (&url, json!({})), seconds, trouble)
}

/// The same with requests to a URL, by a pod with these annotations.
pub(crate) fn requests_during(
    shop: &Namespace<'_>,
    apply: impl Fn(&Value),
    (url, annotations): (&str, Value),
    seconds: u32,
    trouble: impl FnOnce(),
) -> Calls {
    let mut caller = server();
    caller["args"] = json!([
        "load",
        "http",
        url,
        "--rate=100",
        format!("--duration={seconds}s"),
        "--connections=8",
        "--json=-",
        "--quiet",
    ]);
    shop.kubectl(&["delete", "job/load", "--ignore-not-found"]);
    let mut load = job("load", annotations, caller);
    // Machines that are killed are others.
    load["spec"]["template"]["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "a1"});
    apply(&load);
    let ready = "--output=jsonpath={.items[*].status.containerStatuses[0].ready}";
    shop.wait_for(&["get", "pods", "--selector=job-name=load", ready], |it| it == "true");
    thread::sleep(Duration::from_secs(3));
    trouble();
    let ended = ["get", "job/load", "--output=jsonpath={.status.conditions[*].type}"];
    let ended = shop.wait_for(&ended, |it| it.contains("Complete") || it.contains("Failed"));
    let report = shop.kubectl(&["logs", "job/load", "--container=main"]);
    assert!(ended.contains("Complete"), "{report}");
    let report: Value = serde_json::from_str(&report).unwrap();
    let failed = report["errors"].as_u64().unwrap();
    let others = report["unfinished"].as_u64().unwrap() + report["dropped"].as_u64().unwrap();
    Calls {
        answered: report["requests"].as_u64().unwrap(),
        failed: failed + others,
        kinds: report["errors_by_kind"].clone(),
    }
}
