//! Files as people have them, read here and by Dapr's own loaders: `tests/corpus/dapr-files` has
//! the files and what Dapr found in them. The program `daprfiles` wrote that; a test in
//! `tests/commands` compares it with what the program finds now.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tollway_config::go::{GoText, Reader, decode, expand_variables, only_document, read_file};
use tollway_model::{AppId, Label};

use crate::configuration::Configuration;
use crate::files::{FileTexts, Files};
use crate::resiliency;
use crate::resources::Resources;

/// Resources that are read differently, and why.
const OTHER_RESOURCES: &[(&str, &str)] = &[
    ("redis-scopes-numbers", "Dapr passes over a component whose scopes are numbers"),
    ("tabs-behind-values", "Dapr takes no tab before a value"),
    ("name-with-slash", "it is a store that cannot be used, with the reason"),
];
/// Configurations that are refused here alone, and why.
const OTHER_CONFIGURATIONS: &[(&str, &str)] = &[];

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus/dapr-files")
}

/// Reads each file of a kind, and returns those that are read differently from Dapr.
fn differing(kind: &str, read: impl Fn(&Path) -> Value) -> BTreeSet<String> {
    let expected = std::fs::read_to_string(corpus().join("expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let mut differing = BTreeSet::new();
    let all = expected[kind].as_object().unwrap();
    assert!(all.len() >= 30, "{kind}: {}", all.len());
    for (name, expected) in all {
        let found = read(&corpus().join(kind).join(format!("{name}.yaml")));
        if found != *expected {
            println!("{kind}/{name}: Dapr found {expected:#}\nand here it is {found:#}");
            differing.insert(name.clone());
        }
    }
    let files = std::fs::read_dir(corpus().join(kind)).unwrap().count();
    assert_eq!(files, all.len(), "each file of {kind} has an expectation");
    differing
}

fn names(list: &[(&str, &str)]) -> BTreeSet<String> {
    list.iter().map(|(name, _)| (*name).to_owned()).collect()
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Item {
    name: String,
    value: GoText,
    env_ref: String,
    secret_key_ref: Secret,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Secret {
    name: String,
    key: String,
}

fn items(items: &[Item]) -> Value {
    let item = |item: &Item| {
        let Item { name, value, env_ref, secret_key_ref: Secret { name: secret, key } } = item;
        json!([name, value.0, env_ref, secret, key])
    };
    items.iter().map(item).collect()
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Component {
    metadata: ObjectMeta,
    spec: ComponentSpec,
    auth: Auth,
    scopes: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectMeta {
    name: String,
    namespace: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ComponentSpec {
    r#type: String,
    version: String,
    ignore_errors: bool,
    init_timeout: String,
    metadata: Vec<Item>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Auth {
    secret_store: String,
}

impl Component {
    fn summary(&self) -> Value {
        let ComponentSpec { r#type, version, ignore_errors, init_timeout, metadata } = &self.spec;
        json!({
            "name": self.metadata.name, "namespace": self.metadata.namespace, "type": r#type,
            "version": version, "ignoreErrors": ignore_errors, "initTimeout": init_timeout,
            "secretStore": self.auth.secret_store, "scopes": self.scopes,
            "metadata": items(metadata),
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Endpoint {
    metadata: ObjectMeta,
    spec: EndpointSpec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct EndpointSpec {
    base_url: String,
    headers: Vec<Item>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Rules {
    metadata: ObjectMeta,
    spec: RulesSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RulesSpec {
    policies: Policies,
    targets: Targets,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Policies {
    timeouts: Option<BTreeMap<String, String>>,
    retries: BTreeMap<String, Retry>,
    circuit_breakers: BTreeMap<String, Breaker>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Retry {
    policy: String,
    duration: String,
    max_interval: String,
    max_retries: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Breaker {
    max_requests: i64,
    interval: String,
    timeout: String,
    trip: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Targets {
    apps: BTreeMap<String, Target>,
    actors: BTreeMap<String, Target>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Target {
    timeout: String,
    retry: String,
    circuit_breaker: String,
    circuit_breaker_scope: String,
}

impl Rules {
    fn summary(&self, is_used: bool) -> Value {
        let Policies { timeouts, retries, circuit_breakers } = &self.spec.policies;
        let Targets { apps, actors } = &self.spec.targets;
        let names = |target: &Target, is_actor: bool| {
            let Target { timeout, retry, circuit_breaker, circuit_breaker_scope } = target;
            match is_actor {
                true => json!([timeout, retry, circuit_breaker, circuit_breaker_scope]),
                false => json!([timeout, retry, circuit_breaker]),
            }
        };
        let targets = |all: &BTreeMap<String, Target>, is_actor| {
            let target =
                |(name, target): (&String, &Target)| (name.clone(), names(target, is_actor));
            Value::Object(all.iter().map(target).collect())
        };
        let retry = |(name, retry): (&String, &Retry)| {
            let Retry { policy, duration, max_interval, max_retries } = retry;
            (name.clone(), json!([policy, duration, max_interval, max_retries]))
        };
        let breaker = |(name, breaker): (&String, &Breaker)| {
            let Breaker { max_requests, interval, timeout, trip } = breaker;
            (name.clone(), json!([max_requests, interval, timeout, trip]))
        };
        json!({
            "name": self.metadata.name, "timeouts": timeouts, "isUsed": is_used,
            "apps": targets(apps, false), "actors": targets(actors, true),
            "retries": Value::Object(retries.iter().map(retry).collect()),
            "breakers": Value::Object(circuit_breakers.iter().map(breaker).collect()),
        })
    }
}

/// What is found in a file that is the only one of a folder.
fn resources(file: &Path) -> Value {
    let resources = vec![("a.yaml".to_owned(), read_file(file))];
    let texts = FileTexts { configurations: Vec::new(), resources };
    let (app, namespace) = (AppId::new("web").unwrap(), Label::new("default").unwrap());
    let (takes_all_namespaces, in_daprds_place) = (true, true);
    let files = Files {
        app: &app,
        namespace: &namespace,
        takes_all_namespaces,
        config: &[],
        resources: &[],
        in_daprds_place,
    };
    if let Err(error) = files.read_texts(&texts, &|_| None) {
        println!("{}: {error}", file.display());
        return json!({ "refused": true });
    }
    let all = Resources::of(&texts.resources);
    let (mut components, mut endpoints, mut rules) = (Vec::new(), Vec::new(), Vec::new());
    let mut notes = Vec::new();
    for resource in all.found.iter().filter(|resource| resource.is_for("web", None)) {
        match resource.kind.as_str() {
            "Component" => {
                let read = resource.decode::<Component>(&mut notes);
                components.extend(read.ok().map(|component| component.summary()));
            }
            "HTTPEndpoint" => {
                let Ok(Endpoint { metadata, spec }) = resource.decode(&mut notes) else { continue };
                let headers = items(&spec.headers);
                endpoints.push(json!({
                    "name": metadata.name, "baseUrl": spec.base_url, "headers": headers,
                }));
            }
            "Resiliency" => {
                let is_used =
                    resiliency::read(resource, &mut Default::default(), &mut notes).is_ok();
                let read = resource.decode::<Rules>(&mut notes);
                rules.extend(read.ok().map(|read| read.summary(is_used)));
            }
            _ => {}
        }
    }
    json!({ "components": components, "endpoints": endpoints, "resiliency": rules })
}

#[test]
fn resources_are_read_as_dapr_reads_them() {
    assert_eq!(differing("resources", resources), names(OTHER_RESOURCES));
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    metadata: ObjectMeta,
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    tracing: Tracing,
    access_control: Access,
    api: Api,
    components: Denied,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Tracing {
    sampling_rate: String,
    stdout: bool,
    otel: Otel,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Otel {
    endpoint_address: String,
    protocol: String,
    is_secure: Option<bool>,
    headers: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Access {
    default_action: Option<String>,
    policies: Vec<Policy>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Policy {
    app_id: String,
    namespace: String,
    trust_domain: String,
    default_action: String,
    operations: Vec<Operation>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Operation {
    name: String,
    http_verb: Vec<String>,
    action: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Api {
    allowed: Vec<Rule>,
    denied: Vec<Rule>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Rule {
    name: String,
    version: String,
    protocol: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Denied {
    deny: Vec<String>,
}

fn read_configuration<T: DeserializeOwned + Default>(file: &Path) -> Result<T, String> {
    let text = expand_variables(&read_file(file).unwrap(), |_| None);
    let node = only_document(&text, Reader::Configuration, "a.yaml");
    let Some(node) = node.map_err(|error| error.to_string())? else { return Ok(T::default()) };
    let namespace = Label::new("default").unwrap();
    let mut configuration = Configuration::default();
    let read = configuration.read(&node, &namespace, "a.yaml");
    read.map_err(|refusal| format!("{refusal:?}"))?;
    let read = decode(&node, Reader::Configuration, "a.yaml");
    read.map(|read| read.value).map_err(|error| error.to_string())
}

fn configuration(file: &Path) -> Value {
    let Document { metadata, spec } = match read_configuration(file) {
        Ok(document) => document,
        Err(why) => {
            println!("{}: {why}", file.display());
            return json!({ "refused": true });
        }
    };
    let Spec { tracing, access_control, api, components } = spec;
    let Otel { endpoint_address, protocol, is_secure, headers } = tracing.otel;
    let operation = |one: &Operation| json!([one.name, one.http_verb, one.action]);
    let policy = |one: &Policy| {
        let operations: Value = one.operations.iter().map(operation).collect();
        json!({
            "appId": one.app_id, "namespace": one.namespace, "trustDomain": one.trust_domain,
            "defaultAction": one.default_action, "operations": operations,
        })
    };
    let rules = |rules: &[Rule]| -> Value {
        rules.iter().map(|rule| json!([rule.name, rule.version, rule.protocol])).collect()
    };
    json!({
        "name": metadata.name,
        "tracing": { "samplingRate": tracing.sampling_rate, "stdout": tracing.stdout },
        "otel": {
            "endpointAddress": endpoint_address, "protocol": protocol, "headers": headers,
            "isSecure": is_secure.unwrap_or(true),
        },
        "defaultAction": access_control.default_action.as_deref().unwrap_or("allow"),
        "policies": access_control.policies.iter().map(policy).collect::<Value>(),
        "allowed": rules(&api.allowed), "denied": rules(&api.denied), "deny": components.deny,
    })
}

#[test]
fn configurations_are_read_as_dapr_reads_them() {
    let found = differing("configurations", configuration);
    assert_eq!(found, names(OTHER_CONFIGURATIONS));
}
