//! What is added to a pod: the sidecar as a native one, its volumes, the variables of the app, and the
//! mark of pods that have a sidecar.

use serde_json::{Map, Value, json};

use crate::annotation::{APP, INJECTED, Listener, NETWORK, PORT, Resource};
use crate::decision::Style;
use crate::edit::Edit;
use crate::error::Problem;
use crate::manifest::PodAt;
use crate::quantity;
use crate::request::{Request, from_secret, literal};
use crate::settings::{IpFamily, Settings, TokenFrom};

const TOKEN_VOLUME: &str = "tollway-token";
/// What a control plane of Kubernetes has the API server review tokens for.
const AUDIENCE: &str = "tollway";
const STATE_VOLUME: &str = "tollway-state";
const CONFIGURATION_VOLUME: &str = "tollway-configuration";
const RESOURCES_VOLUME: &str = "tollway-resources";
const VOLUMES: [&str; 4] = [TOKEN_VOLUME, STATE_VOLUME, CONFIGURATION_VOLUME, RESOURCES_VOLUME];

/// The init container that sets up what the kernel leads to the sidecar.
const CAPTURE_CONTAINER: &str = "tollway-capture";

const TOKEN_FOLDER: &str = "/var/run/secrets/tollway";
const STATE_FOLDER: &str = "/var/lib/tollway";
const CONFIGURATION_FOLDER: &str = "/etc/tollway/configuration";
const RESOURCES_FOLDER: &str = "/etc/tollway/resources";
const CONFIGURATION_KEY: &str = "configuration.yaml";
/// The annotations in which a pod carries Dapr's objects, and the file with the second one.
const CARRIED_CONFIGURATION: &str = "tollway.dev/dapr-configuration";
const CARRIED_RESOURCES: &str = "tollway.dev/dapr-resources";
const CARRIED_RESOURCES_FILE: &str = "of-the-namespace.yaml";

/// Failed startup probes, one a second, after which the kubelet starts the sidecar again. A sidecar ends
/// itself after half of that time without an identity.
const STARTUP_TRIES: u32 = 60;

/// Adds the sidecar that `request` asks for.
pub(crate) fn add(
    edit: &mut Edit,
    at: &PodAt,
    request: &Request,
    settings: &Settings,
) -> Result<(), Problem> {
    let object = edit.object();
    let apps = count(object, at, "/spec/containers")?;
    if apps == 0 {
        return Err(Problem::NoContainers { path: crate::error::dotted(&at.pointer("/spec")) });
    }
    let others = count(object, at, "/spec/initContainers")?;
    check_names(object, at)?;
    check_volumes(object, at, request)?;
    request.ports.check(object, at, request.app_port)?;
    if request.captures {
        check_users(object, at, settings.uid)?;
    }
    let sidecar = container(request, settings)?;
    let variables = variables(request);
    let annotations = at.pointer("/metadata/annotations");
    edit.set(&annotations, INJECTED, json!(settings.version))?;
    let carried = &request.carried;
    for (name, text) in
        [(CARRIED_CONFIGURATION, &carried.configuration), (CARRIED_RESOURCES, &carried.resources)]
    {
        if let Some(text) = text {
            edit.set(&annotations, name, json!(text))?;
        }
    }
    if at.annotation(edit.object(), APP).is_none() {
        edit.set(&annotations, APP, json!(request.app.as_str()))?;
    }
    if let Some(network) = request.root_pin.as_deref().and_then(|pin| pin.split('.').nth(1)) {
        edit.set(&annotations, NETWORK, json!(network))?;
    }
    if let Some(port) = &request.port_found {
        edit.set(&annotations, PORT, json!(port))?;
    }
    for (part, count) in [("/spec/containers", apps), ("/spec/initContainers", others)] {
        for index in 0..count {
            add_variables(edit, at, &format!("{part}/{index}"), &variables)?;
        }
    }
    edit.append(&at.pointer("/spec/volumes"), volumes(request, settings))?;
    // The first ones, so that other init containers have the mesh too.
    let mut first = Vec::new();
    if request.captures {
        first.push(capture(request, settings));
    }
    first.push(sidecar);
    edit.insert(&at.pointer("/spec/initContainers"), 0, first)
}

/// The number of containers in a list, each of which has to be a mapping.
fn count(object: &Value, at: &PodAt, part: &str) -> Result<usize, Problem> {
    let wrong = || Problem::wrong_form(&at.pointer(part), "a list of containers");
    match at.get(object, part) {
        None => Ok(0),
        Some(Value::Array(list)) if list.iter().all(Value::is_object) => Ok(list.len()),
        Some(_) => Err(wrong()),
    }
}

impl Style {
    /// The name of the container.
    fn container(self) -> &'static str {
        match self {
            Self::Own => "tollway",
            // Scripts ask for the log of it by this name.
            Self::Daprd => "daprd",
        }
    }
}

/// Refuses a pod that has a container or volume with a name of ours.
fn check_names(object: &Value, at: &PodAt) -> Result<(), Problem> {
    let containers = [Style::Own.container(), Style::Daprd.container(), CAPTURE_CONTAINER];
    let lists: [(&str, &'static str, &[&'static str]); 3] = [
        ("/spec/containers", "container", &containers),
        ("/spec/initContainers", "container", &containers),
        ("/spec/volumes", "volume", &VOLUMES),
    ];
    for (part, what, ours) in lists {
        for name in names(object, at, part) {
            if let Some(name) = ours.iter().find(|own| **own == name) {
                return Err(Problem::NameTaken { what, name });
            }
        }
    }
    Ok(())
}

/// Refuses containers that run as the sidecar's user, whose connections are not captured.
fn check_users(object: &Value, at: &PodAt, uid: u32) -> Result<(), Problem> {
    let refused = |user: String| Err(Problem::SidecarUser { user, uid });
    let is_it = |value: Option<&Value>| value.and_then(Value::as_u64) == Some(uid.into());
    if is_it(at.get(object, "/spec/securityContext/runAsUser")) {
        return refused("the pod".to_owned());
    }
    for part in ["/spec/containers", "/spec/initContainers"] {
        let containers = at.get(object, part).and_then(Value::as_array);
        for container in containers.into_iter().flatten() {
            if is_it(container.pointer("/securityContext/runAsUser")) {
                let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
                return refused(format!("the container `{name}`"));
            }
        }
    }
    Ok(())
}

/// Refuses mounts of volumes that the pod does not have.
fn check_volumes(object: &Value, at: &PodAt, request: &Request) -> Result<(), Problem> {
    let known: Vec<&str> = names(object, at, "/spec/volumes").collect();
    match request.mounts.iter().find(|mount| !known.contains(&mount.volume.as_str())) {
        None => Ok(()),
        Some(mount) => Err(Problem::NoVolume {
            annotation: mount.annotation.to_owned(),
            volume: mount.volume.clone(),
        }),
    }
}

fn names<'a>(object: &'a Value, at: &PodAt, part: &str) -> impl Iterator<Item = &'a str> {
    let items = at.get(object, part).and_then(Value::as_array);
    items.into_iter().flatten().filter_map(|item| item.get("name").and_then(Value::as_str))
}

/// Puts variables before those that a container has, so that these can refer to them. One that the
/// container sets itself stays as it is.
fn add_variables(
    edit: &mut Edit,
    at: &PodAt,
    container: &str,
    variables: &[Value],
) -> Result<(), Problem> {
    let env = format!("{container}/env");
    let known: Vec<String> = names(edit.object(), at, &env).map(str::to_owned).collect();
    let is_new = |variable: &&Value| {
        let name = variable.get("name").and_then(Value::as_str);
        name.is_some_and(|name| known.iter().all(|known| known != name))
    };
    let new: Vec<Value> = variables.iter().filter(is_new).cloned().collect();
    if new.is_empty() {
        return Ok(());
    }
    edit.insert(&at.pointer(&env), 0, new)
}

/// The variables by which an app finds its sidecar. Names that apps use for themselves, such as
/// `APP_PORT`, are not among them: they would hide what a container has by `envFrom`.
fn variables(request: &Request) -> Vec<Value> {
    let ports = Listener::SHOWN.into_iter().filter_map(|(name, listener)| {
        let port = request.ports.of(listener);
        (port != 0).then(|| json!({"name": name, "value": port.to_string()}))
    });
    let tokens = request.shared_tokens.iter();
    ports.chain(tokens.map(|(name, secret)| from_secret(name, secret, "token"))).collect()
}

fn container(request: &Request, settings: &Settings) -> Result<Value, Problem> {
    let image = request.image.as_deref().unwrap_or(&settings.image);
    let pull = request.pull_policy.as_deref().unwrap_or(settings.pull_policy.word());
    let (inbound, admin) = (request.ports.of(Listener::Inbound), request.ports.of(Listener::Admin));
    let mut container = json!({
        "name": request.style.container(),
        "image": image,
        "imagePullPolicy": pull,
        "restartPolicy": "Always",
        "args": arguments(request, settings),
        "env": own_variables(request),
        "ports": [
            {"name": "tollway-mesh", "containerPort": inbound, "protocol": "TCP"},
            {"name": "tollway-admin", "containerPort": admin, "protocol": "TCP"},
        ],
        "resources": resources(request, settings)?,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "privileged": false,
            "readOnlyRootFilesystem": true,
            "runAsGroup": settings.uid,
            "runAsNonRoot": true,
            "runAsUser": settings.uid,
            "seccompProfile": {"type": request.seccomp.as_deref().unwrap_or("RuntimeDefault")},
        },
        "startupProbe": probe(admin, &[("periodSeconds", 1), ("failureThreshold", STARTUP_TRIES)]),
        // Not `/readyz`: it fails while the control plane is away, which stops changes and no calls.
        "readinessProbe": probe(admin, &[]),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts(request),
    });
    for (field, changes) in
        [("readinessProbe", &request.readiness), ("livenessProbe", &request.liveness)]
    {
        if !changes.is_empty() {
            let Value::Object(mut probe) = probe(admin, &[]) else { continue };
            probe.extend(changes.clone());
            container[field] = Value::Object(probe);
        }
    }
    Ok(container)
}

/// Sets up, before the sidecar starts, what the kernel leads to it. It is root in its container, and may
/// change nothing but the pod's network.
fn capture(request: &Request, settings: &Settings) -> Value {
    let port = |listener| request.ports.of(listener);
    json!({
        "name": CAPTURE_CONTAINER,
        "image": request.image.as_deref().unwrap_or(&settings.image),
        "imagePullPolicy": request.pull_policy.as_deref().unwrap_or(settings.pull_policy.word()),
        "args": [
            "kube",
            "capture",
            format!("--port={}", port(Listener::Captured)),
            format!("--names-port={}", port(Listener::Names)),
            format!("--sidecar-uid={}", settings.uid),
        ],
        "resources": {
            "requests": {"cpu": "10m", "memory": "16Mi"},
            "limits": {"memory": "64Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
            "privileged": false,
            "readOnlyRootFilesystem": true,
            "runAsGroup": 0,
            "runAsNonRoot": false,
            "runAsUser": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}

/// A probe of whether the sidecar has its identity: the admin port answers from then on.
fn probe(admin: u16, times: &[(&str, u32)]) -> Value {
    let mut probe = json!({"httpGet": {"path": "/healthz", "port": admin}, "timeoutSeconds": 3});
    for (field, value) in times {
        probe[*field] = json!(value);
    }
    probe
}

/// The arguments of the sidecar. The kubelet puts the values of variables for `$(NAME)`.
fn arguments(request: &Request, settings: &Settings) -> Vec<String> {
    let ports = &request.ports;
    let of = |listener| ports.of(listener);
    let control = literal(request.control.as_deref().unwrap_or(&settings.control));
    let (any, pod) = match settings.ip_family {
        IpFamily::V4 => ("0.0.0.0", "$(TOLLWAY_POD_IP)"),
        IpFamily::V6 => ("[::]", "[$(TOLLWAY_POD_IP)]"),
    };
    let mut arguments = vec!["sidecar".to_owned()];
    let app = request.app.as_str();
    match request.style {
        Style::Own => arguments.extend([
            format!("--app-id={app}"),
            "--namespace=$(NAMESPACE)".to_owned(),
            format!("--control={control}"),
            "--instance=$(TOLLWAY_INSTANCE)".to_owned(),
            format!("--state-dir={STATE_FOLDER}/identity"),
            format!("--http-listen=127.0.0.1:{}", of(Listener::Http)),
            format!("--grpc-listen=127.0.0.1:{}", of(Listener::Grpc)),
            format!("--outbound-listen=127.0.0.1:{}", of(Listener::Outbound)),
            format!("--inbound-listen={any}:{}", of(Listener::Inbound)),
            format!("--advertise={pod}:{}", of(Listener::Inbound)),
            format!("--admin-listen={any}:{}", of(Listener::Admin)),
        ]),
        Style::Daprd => {
            let any = any.trim_matches(['[', ']']);
            arguments.extend([
                "--dapr".to_owned(),
                format!("--app-id={app}"),
                format!("--control-plane-address={control}"),
                // With it the metadata say that actors can run, as they do in Dapr's own pods.
                format!("--placement-host-address={control}"),
                format!("--dapr-http-port={}", of(Listener::Http)),
                format!("--dapr-grpc-port={}", of(Listener::Grpc)),
                format!("--dapr-internal-grpc-listen-address={any}"),
                format!("--dapr-internal-grpc-port={}", of(Listener::Inbound)),
                format!("--dapr-public-listen-address={any}"),
                format!("--dapr-public-port={}", of(Listener::Public)),
                format!("--metrics-listen-address={any}"),
                format!("--metrics-port={}", of(Listener::Admin)),
            ]);
        }
    }
    if request.style == Style::Own {
        match &request.root_pin {
            Some(pin) => arguments.extend([
                format!("--pod-token-file={TOKEN_FOLDER}/token"),
                format!("--root-pin={}", literal(pin)),
            ]),
            // The kubelet lets every user of a container read it; the container is the border.
            None => arguments.extend([
                format!("--token-file={TOKEN_FOLDER}/token"),
                "--allow-open-files".to_owned(),
            ]),
        }
    }
    let (file, folder) = match request.style {
        Style::Own => ("configuration", "resources-path"),
        Style::Daprd => ("config", "resources-path"),
    };
    if has_configuration(request) {
        arguments.push(format!("--{file}={CONFIGURATION_FOLDER}/{CONFIGURATION_KEY}"));
    }
    if has_resources(request) {
        arguments.push(format!("--{folder}={RESOURCES_FOLDER}"));
    }
    if request.captures {
        arguments.push(format!("--capture-port={}", of(Listener::Captured)));
        arguments.push(format!("--capture-names-port={}", of(Listener::Names)));
    }
    arguments.extend(request.flags.iter().cloned());
    arguments
}

/// The variables of the sidecar itself. Those that arguments refer to come first.
fn own_variables(request: &Request) -> Vec<Value> {
    let field = |name: &str, path: &str| {
        let from = json!({"fieldRef": {"fieldPath": path}});
        json!({"name": name, "valueFrom": from})
    };
    let text = |name: &str, value: &str| json!({"name": name, "value": value});
    let mut variables =
        vec![field("NAMESPACE", "metadata.namespace"), field("TOLLWAY_INSTANCE", request.instance)];
    let token = format!("{TOKEN_FOLDER}/token");
    match (request.style, &request.root_pin) {
        (Style::Own, _) => variables.push(field("TOLLWAY_POD_IP", "status.podIP")),
        (Style::Daprd, pin) => {
            variables.push(field("DAPR_HOST_IP", "status.podIP"));
            variables.push(text("TOLLWAY_STATE_DIR", &format!("{STATE_FOLDER}/identity")));
            variables.extend(match pin {
                Some(pin) => [
                    text("TOLLWAY_POD_TOKEN_FILE", &token),
                    text("TOLLWAY_ROOT_PIN", &literal(pin)),
                ],
                None => {
                    [text("TOLLWAY_TOKEN_FILE", &token), text("TOLLWAY_ALLOW_OPEN_FILES", "true")]
                }
            });
        }
    }
    let tokens = request.shared_tokens.iter();
    variables.extend(tokens.map(|(name, secret)| from_secret(name, secret, "token")));
    variables.extend(request.carried.secrets.iter().cloned());
    variables.extend(request.env.iter().cloned());
    variables
}

fn has_configuration(request: &Request) -> bool {
    request.configuration.is_some() || request.carried.configuration.is_some()
}

fn has_resources(request: &Request) -> bool {
    !request.resource_maps.is_empty() || request.carried.resources.is_some()
}

/// A file with the value of an annotation of the pod.
fn carried_file(annotation: &str, path: &str) -> Value {
    let field = format!("metadata.annotations['{annotation}']");
    json!({"items": [{"path": path, "fieldRef": {"fieldPath": field}}]})
}

/// What the sidecar requests and may use. A default request above a limit that the pod sets gives way:
/// Kubernetes then requests the limit.
fn resources(request: &Request, settings: &Settings) -> Result<Value, Problem> {
    let mut requests = Map::new();
    let mut limits = Map::new();
    let usual = &settings.resources;
    let rows = [
        ("cpu", Resource::CpuRequest, &usual.cpu_request, Resource::CpuLimit, &usual.cpu_limit),
        (
            "memory",
            Resource::MemoryRequest,
            &usual.memory_request,
            Resource::MemoryLimit,
            &usual.memory_limit,
        ),
    ];
    for (name, request_of, usual_request, limit_of, usual_limit) in rows {
        let given = |of| request.resources.iter().find(|(resource, ..)| *resource == of);
        let (asked, most) = (given(request_of), given(limit_of));
        let mut wanted = asked.map(|(_, value, _)| value).or(usual_request.as_ref());
        let mut limit = most.map(|(_, value, _)| value).or(usual_limit.as_ref());
        if is_above(wanted, limit) {
            match (asked, most) {
                (None, _) => wanted = None,
                (Some(_), None) => limit = None,
                (Some((_, request, _)), Some((_, limit, annotation))) => {
                    return Err(Problem::AboveLimit {
                        resource: name,
                        request: request.clone(),
                        limit: limit.clone(),
                        annotation: (*annotation).to_owned(),
                    });
                }
            }
        }
        requests.extend(wanted.map(|value| (name.to_owned(), json!(value))));
        limits.extend(limit.map(|value| (name.to_owned(), json!(value))));
    }
    let mut resources = Map::new();
    for (field, values) in [("requests", requests), ("limits", limits)] {
        if !values.is_empty() {
            resources.insert(field.to_owned(), Value::Object(values));
        }
    }
    Ok(Value::Object(resources))
}

fn is_above(request: Option<&String>, limit: Option<&String>) -> bool {
    let value = |text: Option<&String>| text.and_then(|text| quantity::value(text));
    matches!((value(request), value(limit)), (Some(request), Some(limit)) if request > limit)
}

fn mounts(request: &Request) -> Vec<Value> {
    let read = |name: &str, path: &str| json!({"name": name, "mountPath": path, "readOnly": true});
    let mut mounts = vec![
        read(TOKEN_VOLUME, TOKEN_FOLDER),
        json!({"name": STATE_VOLUME, "mountPath": STATE_FOLDER}),
    ];
    if has_configuration(request) {
        mounts.push(read(CONFIGURATION_VOLUME, CONFIGURATION_FOLDER));
    }
    if has_resources(request) {
        mounts.push(read(RESOURCES_VOLUME, RESOURCES_FOLDER));
    }
    mounts.extend(request.mounts.iter().map(
        |mount| json!({"name": mount.volume, "mountPath": mount.path, "readOnly": mount.read_only}),
    ));
    mounts
}

fn volumes(request: &Request, settings: &Settings) -> Vec<Value> {
    let secret =
        |name: &str| json!({"secretName": name, "items": [{"key": "token", "path": "token"}]});
    let token = match (&request.token_secret, &settings.token) {
        (Some(name), _) | (None, TokenFrom::Secret(name)) => {
            json!({"name": TOKEN_VOLUME, "secret": secret(name)})
        }
        (None, TokenFrom::ServiceAccount { expiration_seconds, .. }) => json!({
            "name": TOKEN_VOLUME,
            "projected": {"sources": [{"serviceAccountToken": {
                "audience": AUDIENCE,
                "expirationSeconds": expiration_seconds,
                "path": "token",
            }}]},
        }),
    };
    // In memory: it has a private key, which goes with the pod.
    let state = json!({"name": STATE_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}});
    let mut volumes = vec![token, state];
    if let Some(name) = &request.configuration {
        let items = json!([{"key": CONFIGURATION_KEY, "path": CONFIGURATION_KEY}]);
        volumes.push(json!({
            "name": CONFIGURATION_VOLUME,
            "configMap": {"name": name, "items": items},
        }));
    } else if request.carried.configuration.is_some() {
        let file = carried_file(CARRIED_CONFIGURATION, CONFIGURATION_KEY);
        volumes.push(json!({"name": CONFIGURATION_VOLUME, "downwardAPI": file}));
    }
    if has_resources(request) {
        let maps = request.resource_maps.iter().map(|name| json!({"configMap": {"name": name}}));
        let carried = request.carried.resources.as_ref().map(
            |_| json!({"downwardAPI": carried_file(CARRIED_RESOURCES, CARRIED_RESOURCES_FILE)}),
        );
        let sources = maps.chain(carried);
        volumes.push(json!({
            "name": RESOURCES_VOLUME,
            "projected": {"sources": sources.collect::<Vec<_>>()},
        }));
    }
    volumes
}
