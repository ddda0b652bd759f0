//! What a pod asks for: its annotations, read by their table, and the name of its app.

use serde_json::{Map, Value, json};
use tollway_model::Label;

use crate::annotation::{
    ANNOTATIONS, APP, APP_ID, Annotation, CAPTURE, CONFIG, CONFIGURATION, ENABLED, Effect,
    Listener, PORT, PROTOCOL, ProbeKind, Resource, find, is_known_prefix,
};
use crate::dapr::{Carried, carried};
use crate::decision::Style;
use crate::error::Problem;
use crate::manifest::PodAt;
use crate::ports::{Declared, Ports, declared};
use crate::settings::{DaprConfig, Namespace, Settings, TokenFrom};
use crate::value::{Form, PORT_OF_SERVICES, list, mounts, pairs, secret_pairs, switch};

/// Has a sidecar take calls at the ports to which Services lead.
const SERVICE_PORTS: &str = "--service-ports";
/// Names of ports that say what is spoken there.
const SPOKEN: [&str; 3] = ["http", "h2c", "grpc"];

/// Why a Configuration of Dapr is refused where the objects of the namespace are not known.
const UNREAD_CONFIGURATION: &str = "it names a Configuration, which may decide who calls the app, and a file of manifests does not have it; put it into a ConfigMap and name that with tollway.dev/configuration";

/// A sidecar as its pod asks for it. What is `None` or empty is as the settings have it.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) style: Style,
    pub(crate) app: Label,
    /// The field of the pod that has the name of the instance.
    pub(crate) instance: &'static str,
    /// The pin of the network's root, for a sidecar that joins by the token of its service account.
    pub(crate) root_pin: Option<String>,
    pub(crate) app_port: Option<u16>,
    /// What the pod gets as its annotation of the port, where that says nothing.
    pub(crate) port_found: Option<String>,
    /// Arguments of the sidecar.
    pub(crate) flags: Vec<String>,
    pub(crate) ports: Ports,
    /// Quantities with the annotations that they come from.
    pub(crate) resources: Vec<(Resource, String, &'static str)>,
    pub(crate) image: Option<String>,
    pub(crate) pull_policy: Option<String>,
    pub(crate) control: Option<String>,
    pub(crate) token_secret: Option<String>,
    /// Variables, each with the Secret whose key `token` is its value.
    pub(crate) shared_tokens: Vec<(&'static str, String)>,
    pub(crate) configuration: Option<String>,
    pub(crate) resource_maps: Vec<String>,
    /// Dapr's objects that the pod carries.
    pub(crate) carried: Carried,
    /// Variables of the sidecar, as a container has them.
    pub(crate) env: Vec<Value>,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) readiness: Map<String, Value>,
    /// Empty: there is no such probe.
    pub(crate) liveness: Map<String, Value>,
    pub(crate) seccomp: Option<String>,
    /// Whether the kernel leads the app's connections to the sidecar.
    pub(crate) captures: bool,
}

/// A volume of the pod that the sidecar gets, too.
#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) volume: String,
    pub(crate) path: String,
    pub(crate) read_only: bool,
    pub(crate) annotation: &'static str,
}

impl Request {
    /// Reads the annotations of a pod. Those without effect become notes.
    pub(crate) fn read(
        object: &Value,
        at: &PodAt,
        style: Style,
        (namespace, settings): (&Namespace, &Settings),
        notes: &mut Vec<String>,
    ) -> Result<Self, Problem> {
        let given = given(object, at, style, notes)?;
        refuse_contradictions(&given)?;
        let mut request = Self {
            style,
            app: app(object, at, &given)?,
            instance: instance(object, at),
            root_pin: None,
            app_port: None,
            port_found: None,
            flags: Vec::new(),
            ports: Ports::new(style),
            resources: Vec::new(),
            image: None,
            pull_policy: None,
            control: None,
            token_secret: None,
            shared_tokens: Vec::new(),
            configuration: None,
            resource_maps: Vec::new(),
            carried: Carried::default(),
            env: Vec::new(),
            mounts: Vec::new(),
            readiness: Map::new(),
            liveness: Map::new(),
            seccomp: None,
            captures: false,
        };
        if style == Style::Own && !given.iter().any(|(of, _)| of.name == PORT) {
            let is_stated = given.iter().any(|(of, _)| of.name == PROTOCOL);
            request.find_port(object, at, is_stated, notes);
        }
        let of_namespace = namespace.labels.get(CAPTURE).and_then(|label| switch(label));
        request.captures = style == Style::Own && of_namespace == Some(true);
        let has_file = given.iter().any(|(of, _)| of.name == CONFIGURATION);
        let may_lack = settings.dapr_config == DaprConfig::LeaveOut;
        let mut configuration = None;
        for (annotation, value) in &given {
            if annotation.name != CONFIG {
                request.take(annotation, value, notes)?;
            } else if has_file {
                notes.push(format!("{CONFIGURATION} is read in place of {CONFIG}"));
            } else if namespace.dapr.is_some() {
                configuration = Some(value.as_str());
            } else if may_lack {
                notes.push(format!("the Configuration `{value}` of {CONFIG} is left out"));
            } else {
                request.take(annotation, value, notes)?;
            }
        }
        if let (Style::Daprd, Some(objects)) = (style, &namespace.dapr) {
            let is_there = |name: &&str| objects.configuration(name).is_some();
            if let Some(name) = configuration.filter(|name| may_lack && !is_there(name)) {
                notes.push(format!("the Configuration `{name}` of {CONFIG} is left out"));
                configuration = None;
            }
            request.carried = carried(objects, request.app.as_str(), configuration, notes)?;
        }
        if let (None, TokenFrom::ServiceAccount { root_pin, .. }) =
            (&request.token_secret, &settings.token)
        {
            request.root_pin = Some(root_pin.clone().ok_or(Problem::NoRootPin)?);
        }
        if !request.captures {
            request.ports.without(&[Listener::Captured, Listener::Names]);
        }
        Ok(request)
    }

    /// Takes the one port that containers declare as that of the app, if it is known what the app speaks there,
    /// and otherwise those to which Services lead.
    fn find_port(
        &mut self,
        object: &Value,
        at: &PodAt,
        is_protocol_stated: bool,
        notes: &mut Vec<String>,
    ) {
        let declared = declared(object, at, &["/spec/containers"]);
        let protocol = |of: &Declared| SPOKEN.into_iter().find(|protocol| *protocol == of.name);
        let is_meant = |of: &Declared| is_protocol_stated || protocol(of).is_some();
        let meant: Vec<_> = declared.iter().filter(|(_, of)| is_meant(of)).collect();
        if let [(port, of)] = meant.as_slice() {
            self.app_port = Some(**port);
            self.port_found = Some(port.to_string());
            self.flags.push(format!("--app-port={port}"));
            if !is_protocol_stated {
                self.flags.extend(protocol(of).map(|spoken| format!("--app-protocol={spoken}")));
            }
            return;
        }
        self.port_found = Some(PORT_OF_SERVICES.to_owned());
        self.flags.push(SERVICE_PORTS.to_owned());
        if !declared.is_empty() {
            let ports: Vec<_> = declared.keys().map(u16::to_string).collect();
            notes.push(format!(
                "the app takes calls of Services alone, and none by its name: its containers declare the port {}, and {PORT} does not name the one for those",
                ports.join(", ")
            ));
        }
    }

    fn take(
        &mut self,
        annotation: &'static Annotation,
        value: &str,
        notes: &mut Vec<String>,
    ) -> Result<(), Problem> {
        let name = annotation.name;
        let refused = |reason: &str| Problem::Refused {
            annotation: name.to_owned(),
            reason: reason.to_owned(),
        };
        let flag = |flag: &str, value: &str| format!("--{flag}={}", literal(value));
        match annotation.effect {
            Effect::Decides | Effect::Name => {}
            Effect::Flag(of) => self.flags.push(flag(of, &canonical(annotation.form, value))),
            Effect::Switch(of) if switch(value) == Some(true) => self.flags.push(format!("--{of}")),
            Effect::Switch(_) => {}
            Effect::Each(of) => self.flags.extend(list(value).map(|value| flag(of, value))),
            Effect::AppPort(_) if value == PORT_OF_SERVICES && self.style == Style::Own => {
                self.flags.push(SERVICE_PORTS.to_owned());
            }
            Effect::AppPort(of) => {
                self.app_port = value.parse().ok();
                self.flags.extend(self.app_port.map(|_| flag(of, value)));
            }
            Effect::Listener(listener) => {
                if let Ok(port) = value.parse() {
                    self.ports.set(listener, port);
                }
            }
            Effect::Resource(resource) => {
                self.resources.push((resource, value.to_owned(), name));
            }
            Effect::Image => self.image = Some(value.to_owned()),
            Effect::PullPolicy => self.pull_policy = Some(canonical(annotation.form, value)),
            Effect::Control => self.control = Some(value.to_owned()),
            Effect::TokenSecret => self.token_secret = Some(value.to_owned()),
            Effect::SharedToken(variable) => {
                if self.shared_tokens.iter().all(|(known, _)| *known != variable) {
                    self.shared_tokens.push((variable, value.to_owned()));
                }
            }
            Effect::Configuration => self.configuration = Some(value.to_owned()),
            Effect::Resources => self.resource_maps.extend(list(value).map(str::to_owned)),
            Effect::Env => {
                let pairs = pairs(value).into_iter().flatten();
                self.env.extend(pairs.map(|(name, value)| json!({"name": name, "value": value})));
            }
            Effect::EnvFromSecret => {
                let found = secret_pairs(value).into_iter().flatten();
                self.env.extend(found.map(|(name, secret, key)| from_secret(name, secret, key)));
            }
            Effect::Mounts { read_only } => {
                let found = mounts(value).into_iter().flatten();
                self.mounts.extend(found.map(|(volume, path)| Mount {
                    volume: volume.to_owned(),
                    path: path.to_owned(),
                    read_only,
                    annotation: name,
                }));
            }
            Effect::Locality(of, _) if self.style == Style::Own => self.flags.push(flag(of, value)),
            Effect::Locality(_, variable) => {
                self.env.push(json!({"name": variable, "value": value}));
            }
            Effect::Probe(kind, field) => {
                let probe = match kind {
                    ProbeKind::Readiness => &mut self.readiness,
                    ProbeKind::Liveness => &mut self.liveness,
                };
                probe.insert(field.to_owned(), json!(value.parse::<u64>().unwrap_or_default()));
            }
            Effect::Seccomp => self.seccomp = Some(canonical(annotation.form, value)),
            Effect::Ignored => {
                notes.push(format!("the annotation {name} has no effect: {}", annotation.meaning));
            }
            Effect::Refused => return Err(refused(annotation.meaning)),
            Effect::DaprConfiguration => return Err(refused(UNREAD_CONFIGURATION)),
            Effect::Capture => self.captures = switch(value) == Some(true),
        }
        Ok(())
    }
}

/// The annotations of the table that the pod has, in the order of the table, with their values. Notes
/// have those that are in no table, and those of Dapr where the pod is none of Dapr.
fn given(
    object: &Value,
    at: &PodAt,
    style: Style,
    notes: &mut Vec<String>,
) -> Result<Vec<(&'static Annotation, String)>, Problem> {
    let pointer = "/metadata/annotations";
    let all = match at.get(object, pointer) {
        None => return Ok(Vec::new()),
        Some(Value::Object(all)) => all,
        Some(_) => return Err(Problem::wrong_form(&at.pointer(pointer), "a mapping")),
    };
    for name in all.keys().filter(|name| is_known_prefix(name) && find(name).is_none()) {
        notes.push(format!("the annotation {name} has no effect: it is not known"));
    }
    let mut given = Vec::new();
    for annotation in ANNOTATIONS {
        let Some(value) = all.get(annotation.name).filter(|value| !value.is_null()) else {
            continue;
        };
        let wrong = |value: String, allowed: String| Problem::Value {
            annotation: annotation.name.to_owned(),
            value,
            allowed,
        };
        let Value::String(text) = value else {
            return Err(wrong(value.to_string(), "it in quotes, as a text".to_owned()));
        };
        if annotation.is_daprs() && style == Style::Own {
            if annotation.effect != Effect::Decides {
                let name = annotation.name;
                notes.push(format!("the annotation {name} has no effect without dapr.io/enabled"));
            }
            continue;
        }
        // To Dapr an empty one is as none.
        if annotation.is_daprs() && text.is_empty() {
            continue;
        }
        if !annotation.is_daprs() && annotation.is_of_one_style() && style == Style::Daprd {
            let instead = "the one of dapr.io that does the same, or remove dapr.io/enabled";
            return Err(Problem::OtherStyle { annotation: annotation.name.to_owned(), instead });
        }
        if !annotation.form.takes(text) {
            return Err(wrong(text.clone(), annotation.form.allowed()));
        }
        given.push((annotation, text.clone()));
    }
    Ok(given)
}

/// Two annotations for one thing have to agree.
fn refuse_contradictions(given: &[(&'static Annotation, String)]) -> Result<(), Problem> {
    for (index, (one, value)) in given.iter().enumerate() {
        let may_add_up = matches!(
            one.effect,
            Effect::Env | Effect::EnvFromSecret | Effect::Mounts { .. } | Effect::Ignored
        );
        if may_add_up || matches!(one.effect, Effect::Decides | Effect::Refused) {
            continue;
        }
        let mut others = given[index + 1..].iter();
        let other = others.find(|(other, said)| other.effect == one.effect && said != value);
        if let Some((other, _)) = other {
            let (first, second) = (one.name.to_owned(), other.name.to_owned());
            return Err(Problem::Contradiction { first, second });
        }
    }
    Ok(())
}

/// The name of the app: by annotation, or that of what makes the pod.
fn app(
    object: &Value,
    at: &PodAt,
    given: &[(&'static Annotation, String)],
) -> Result<Label, Problem> {
    let named = given.iter().find(|(annotation, _)| annotation.effect == Effect::Name);
    let is_daprs = given.iter().any(|(annotation, _)| annotation.name == ENABLED);
    let annotation = if is_daprs { APP_ID } else { APP };
    let name = match named {
        Some((_, name)) => name.clone(),
        None => maker(object, at).ok_or(Problem::NoName { annotation })?,
    };
    Label::new(&name).map_err(|why| Problem::BadName { name, annotation, why })
}

/// The field of a pod by which its instance is called: its name, which fits unless it has a dot or is long;
/// then its UID. What makes pods adds up to eleven characters to its own name, and Kubernetes cuts that at 63.
fn instance(object: &Value, at: &PodAt) -> &'static str {
    let own = ["/metadata/name", "/metadata/generateName"];
    let names = own.map(|path| at.of_owner(object, path).or_else(|| at.text(object, path)));
    let fits = |name: &str| name.len() <= 52 && !name.contains('.');
    if names.into_iter().flatten().all(fits) { "metadata.name" } else { "metadata.uid" }
}

/// The name of what makes the pod. A Deployment makes its pods by ReplicaSets, whose names end with a
/// hash that their pods have as a label; a CronJob by Jobs, whose names end with minutes.
fn maker(object: &Value, at: &PodAt) -> Option<String> {
    if !at.is_pod() {
        return named(at.of_owner(object, "/metadata/name"))
            .or_else(|| trimmed(at.of_owner(object, "/metadata/generateName")));
    }
    let owners = at.get(object, "/metadata/ownerReferences").and_then(Value::as_array);
    let controls = |owner: &&Value| owner.get("controller") == Some(&Value::Bool(true));
    if let Some(owner) = owners.and_then(|owners| owners.iter().find(controls)) {
        let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or_default();
        let name = text("name");
        let hash = at.text(object, "/metadata/labels/pod-template-hash").unwrap_or_default();
        return Some(match text("kind") {
            "ReplicaSet" => name.strip_suffix(hash).and_then(|name| name.strip_suffix('-')),
            "Job" => without_minutes(name),
            _ => None,
        })
        .map(|found| found.unwrap_or(name).to_owned());
    }
    named(at.text(object, "/metadata/name"))
        .or_else(|| trimmed(at.text(object, "/metadata/generateName")))
}

fn named(name: Option<&str>) -> Option<String> {
    name.filter(|name| !name.is_empty()).map(str::to_owned)
}

/// A beginning of names, without its `-`.
fn trimmed(start: Option<&str>) -> Option<String> {
    named(start.map(|start| start.trim_end_matches('-')))
}

/// The name of the CronJob of a Job that has one: a CronJob adds the minutes since 1970.
fn without_minutes(job: &str) -> Option<&str> {
    let (name, minutes) = job.rsplit_once('-')?;
    let is_time = minutes.len() == 8 && minutes.bytes().all(|byte| byte.is_ascii_digit());
    (is_time && !name.is_empty()).then_some(name)
}

/// A variable of a container whose value is in a Secret.
pub(crate) fn from_secret(variable: &str, secret: &str, key: &str) -> Value {
    json!({"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
}

/// A text as an argument: the kubelet puts the values of variables for `$(NAME)`, and `$` for `$$`.
pub(crate) fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

/// A value as the sidecar takes it: the words of closed sets and switches in their own spelling.
fn canonical(form: Form, value: &str) -> String {
    if let Form::OneOf(words) = form {
        let word = words.iter().find(|word| word.eq_ignore_ascii_case(value));
        return word.copied().unwrap_or(value).to_owned();
    }
    let yes = if matches!(form, Form::Switch) { switch(value) } else { None };
    yes.map_or_else(|| value.to_owned(), |yes| yes.to_string())
}

impl Listener {
    /// Which listeners the app is shown in its variables.
    pub(crate) const SHOWN: [(&'static str, Self); 4] = [
        ("DAPR_HTTP_PORT", Self::Http),
        ("DAPR_GRPC_PORT", Self::Grpc),
        ("DAPR_METRICS_PORT", Self::Admin),
        ("TOLLWAY_OUTBOUND_PORT", Self::Outbound),
    ];
}
