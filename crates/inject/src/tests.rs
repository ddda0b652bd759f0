use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;

const IMAGE: &str = "registry.example/tollway:0.1.0";
const PIN: &str = "tollway1-root.west.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

fn settings() -> Settings {
    let root_pin = Some(PIN.to_owned());
    let token = TokenFrom::ServiceAccount { root_pin, expiration_seconds: 3600 };
    Settings { token, ..Settings::new(IMAGE, "control.tollway:15010") }
}

fn pod(annotations: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "annotations": annotations},
        "spec": {"containers": [{"name": "app", "image": "web:1"}]},
    })
}

fn asked(mut annotations: Value) -> Value {
    annotations["tollway.dev/inject"] = json!("true");
    pod(annotations)
}

fn of_dapr(mut annotations: Value) -> Value {
    annotations["dapr.io/enabled"] = json!("true");
    pod(annotations)
}

fn run(object: &Value) -> Result<Injection, InjectError> {
    inject(object, &Namespace::default(), &settings())
}

fn done(object: &Value) -> Injection {
    run(object).unwrap()
}

fn problem(object: &Value) -> Problem {
    run(object).unwrap_err().problem
}

fn sidecar(object: &Value) -> &Value {
    let list = object["spec"]["initContainers"].as_array().unwrap();
    list.iter().find(|container| container["restartPolicy"] == "Always").unwrap()
}

fn arguments(object: &Value) -> Vec<String> {
    let list = sidecar(object)["args"].as_array().unwrap();
    list.iter().map(|argument| argument.as_str().unwrap().to_owned()).collect()
}

fn notes(injection: &Injection) -> Vec<&str> {
    injection.notes.iter().map(|note| note.text.as_str()).collect()
}

#[track_caller]
fn has(object: &Value, argument: &str) {
    let arguments = arguments(object);
    assert!(arguments.iter().any(|given| given == argument), "{argument}: {arguments:?}");
}

#[test]
fn a_pod_that_asks_gets_a_native_sidecar_before_its_init_containers() {
    let mut object = asked(json!({"tollway.dev/port": "8080"}));
    object["spec"]["initContainers"] = json!([{"name": "migrate", "image": "web:1"}]);
    let object = done(&object).object;
    let sidecar = sidecar(&object);
    assert_eq!(sidecar["name"], "tollway");
    assert_eq!(sidecar["restartPolicy"], "Always");
    assert_eq!(sidecar["image"], IMAGE);
    assert_eq!(object["spec"]["initContainers"][1]["name"], "migrate");
    has(&object, "--app-id=web");
    has(&object, "--app-port=8080");
    has(&object, "--control=control.tollway:15010");
    has(&object, "--advertise=$(TOLLWAY_POD_IP):50002");
    assert_eq!(object["metadata"]["annotations"]["tollway.dev/injected"], settings().version);
    assert_eq!(object["metadata"]["annotations"]["tollway.dev/app"], "web");
}

#[test]
fn a_port_with_the_name_of_a_protocol_is_that_of_the_app() {
    let with = |annotations: Value, ports: Value| {
        let mut object = asked(annotations);
        object["spec"]["containers"][0]["ports"] = ports;
        done(&object)
    };
    let declared = |ports: &[(&str, u16)]| {
        let port = |(name, port): &(&str, u16)| match name.is_empty() {
            true => json!({"containerPort": port}),
            false => json!({"name": name, "containerPort": port}),
        };
        Value::Array(ports.iter().map(port).collect())
    };
    // Port and protocol of the sidecar, and the annotation.
    let found = |injection: &Injection| {
        let flags = arguments(&injection.object);
        let of = |name: &str| flags.iter().find_map(|flag| flag.strip_prefix(name));
        let annotations = &injection.object["metadata"]["annotations"];
        let annotation = annotations["tollway.dev/port"].as_str();
        [of("--app-port="), of("--app-protocol="), annotation]
            .map(|text| text.unwrap_or("-").to_owned())
    };
    for name in ["http", "h2c", "grpc"] {
        let several = with(json!({}), declared(&[("metrics", 9100), (name, 8000)]));
        assert_eq!(found(&several), ["8000", name, "8000"]);
        assert_eq!(notes(&several), [""; 0]);
    }
    let stated = with(json!({"tollway.dev/protocol": "tcp"}), declared(&[("", 5432)]));
    assert_eq!(found(&stated), ["5432", "tcp", "5432"]);
    let itself = with(json!({"tollway.dev/port": "7000"}), declared(&[("http", 8000)]));
    assert_eq!(found(&itself), ["7000", "-", "7000"]);
    let none = with(json!({"tollway.dev/port": "none"}), declared(&[("http", 8000)]));
    assert_eq!(found(&none), ["-", "-", "none"]);
    let of_services = with(json!({"tollway.dev/port": "services"}), declared(&[("http", 8000)]));
    assert_eq!(found(&of_services), ["-", "-", "services"]);
    let takes_services =
        |of: &Injection| arguments(&of.object).iter().any(|flag| flag == "--service-ports");
    assert!(takes_services(&of_services) && !takes_services(&none) && !takes_services(&itself));
    // The harm: what speaks something else is taken for HTTP.
    let unknown = [
        declared(&[("", 5432)]),
        declared(&[("postgres", 5432), ("", 8000)]),
        declared(&[("http", 8000), ("grpc", 8001)]),
    ];
    for ports in unknown {
        let injection = with(json!({}), ports);
        assert_eq!(found(&injection), ["-", "-", "services"]);
        assert!(takes_services(&injection));
        let notes = notes(&injection);
        assert!(notes[0].starts_with("the app takes calls of Services alone"), "{notes:?}");
    }
    let other = with(json!({}), json!([{"name": "http", "containerPort": 53, "protocol": "UDP"}]));
    let expected = ["-", "-", "services"].map(str::to_owned);
    assert_eq!((found(&other), notes(&other)), (expected, vec![]));
    assert_eq!(other.object["metadata"]["annotations"]["tollway.dev/network"], "west");
}

#[test]
fn the_sidecar_meets_pod_security_restricted() {
    let object = done(&asked(json!({}))).object;
    let context = &sidecar(&object)["securityContext"];
    assert_eq!(context["runAsNonRoot"], true);
    assert_ne!(context["runAsUser"], 0);
    assert_eq!(context["allowPrivilegeEscalation"], false);
    assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(context["readOnlyRootFilesystem"], true);
    let kinds = ["configMap", "emptyDir", "projected", "secret"];
    for volume in object["spec"]["volumes"].as_array().unwrap() {
        let allowed = volume.as_object().unwrap().keys().filter(|key| *key != "name");
        assert!(allowed.clone().all(|kind| kinds.contains(&kind.as_str())), "{volume}");
    }
}

#[test]
fn the_token_is_mounted_for_the_sidecar_alone() {
    let object = done(&asked(json!({}))).object;
    let token = &object["spec"]["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"];
    assert_eq!(token["audience"], "tollway");
    let name = &object["spec"]["volumes"][0]["name"];
    let mounted = sidecar(&object)["volumeMounts"].as_array().unwrap();
    assert!(mounted.iter().any(|mount| mount["name"] == *name && mount["readOnly"] == true));
    assert_eq!(object["spec"]["containers"][0].get("volumeMounts"), None);
    let object = done(&asked(json!({"tollway.dev/token-secret": "join"}))).object;
    assert_eq!(object["spec"]["volumes"][0]["secret"]["secretName"], "join");
    has(&object, "--token-file=/var/run/secrets/tollway/token");
}

#[test]
fn a_sidecar_with_the_token_of_its_pod_knows_its_control_plane_and_its_own_name() {
    let injected = done(&asked(json!({}))).object;
    has(&injected, "--pod-token-file=/var/run/secrets/tollway/token");
    has(&injected, &format!("--root-pin={PIN}"));
    has(&injected, "--instance=$(TOLLWAY_INSTANCE)");
    let instance = |object: &Value| {
        let env = sidecar(object)["env"].as_array().unwrap().clone();
        let variable = env.into_iter().find(|one| one["name"] == "TOLLWAY_INSTANCE").unwrap();
        variable["valueFrom"]["fieldRef"]["fieldPath"].as_str().unwrap().to_owned()
    };
    assert_eq!(instance(&injected), "metadata.name");
    for name in ["web.v1".to_owned(), "w".repeat(53)] {
        let mut pod = asked(json!({"tollway.dev/app": "web"}));
        pod["metadata"]["name"] = json!(name);
        assert_eq!(instance(&done(&pod).object), "metadata.uid", "{name}");
    }
    let without = Settings::new(IMAGE, "control.tollway:15010");
    let refused = inject(&asked(json!({})), &Namespace::default(), &without).unwrap_err();
    assert_eq!(refused.problem, Problem::NoRootPin);
    let by_secret = asked(json!({"tollway.dev/token-secret": "join"}));
    assert!(inject(&by_secret, &Namespace::default(), &without).is_ok());
}

#[test]
fn apps_wait_for_the_sidecar_and_probes_do_not_need_the_control_plane() {
    let object = done(&asked(json!({"tollway.dev/admin-port": "9100"}))).object;
    let sidecar = sidecar(&object);
    for probe in ["startupProbe", "readinessProbe"] {
        assert_eq!(sidecar[probe]["httpGet"], json!({"path": "/healthz", "port": 9100}), "{probe}");
    }
    has(&object, "--admin-listen=0.0.0.0:9100");
}

#[test]
fn every_container_finds_the_sidecar_and_keeps_its_own_variables() {
    let mut object = asked(json!({"tollway.dev/http-port": "3600"}));
    object["spec"]["containers"][0]["env"] = json!([
        {"name": "URL", "value": "$(DAPR_HTTP_PORT)"},
        {"name": "DAPR_GRPC_PORT", "value": "1"},
    ]);
    object["spec"]["initContainers"] = json!([{"name": "migrate", "image": "web:1"}]);
    let object = done(&object).object;
    let env = object["spec"]["containers"][0]["env"].as_array().unwrap();
    let names: Vec<_> = env.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["DAPR_HTTP_PORT", "DAPR_METRICS_PORT", "TOLLWAY_OUTBOUND_PORT", "URL", "DAPR_GRPC_PORT"]
    );
    assert_eq!(env[0]["value"], "3600");
    assert_eq!(object["spec"]["initContainers"][1]["env"][1]["name"], "DAPR_GRPC_PORT");
}

#[test]
fn a_template_has_the_name_of_what_makes_it() {
    for (kind, version, path) in [
        ("Deployment", "apps/v1", "/spec/template"),
        ("StatefulSet", "apps/v1", "/spec/template"),
        ("DaemonSet", "apps/v1", "/spec/template"),
        ("ReplicaSet", "apps/v1", "/spec/template"),
        ("ReplicationController", "v1", "/spec/template"),
        ("Job", "batch/v1", "/spec/template"),
        ("CronJob", "batch/v1", "/spec/jobTemplate/spec/template"),
    ] {
        let template = json!({
            "metadata": {"annotations": {"tollway.dev/inject": "true"}},
            "spec": {"containers": [{"name": "app"}]},
        });
        let spec = match kind {
            "CronJob" => json!({"jobTemplate": {"spec": {"template": template}}}),
            _ => json!({"template": template}),
        };
        let name = json!({"name": "orders"});
        let object = json!({"apiVersion": version, "kind": kind, "metadata": name, "spec": spec});
        let object = done(&object).object;
        has(object.pointer(path).unwrap(), "--app-id=orders");
        assert_eq!(object["metadata"], name);
    }
}

#[test]
fn a_pod_has_the_name_of_what_made_it() {
    for (kind, name, labels, expected) in [
        ("ReplicaSet", "web-5d4f", json!({"pod-template-hash": "5d4f"}), "web"),
        ("ReplicaSet", "own", json!({}), "own"),
        ("StatefulSet", "db", json!({}), "db"),
        ("Job", "report-29384756", json!({}), "report"),
        ("Job", "report-7", json!({}), "report-7"),
    ] {
        let mut object = asked(json!({}));
        object["metadata"]["generateName"] = json!("other-");
        object["metadata"]["labels"] = labels;
        object["metadata"]["ownerReferences"] =
            json!([{"kind": kind, "name": name, "controller": true}]);
        has(&done(&object).object, &format!("--app-id={expected}"));
    }
    let mut object = asked(json!({}));
    object["metadata"]["name"] = Value::Null;
    assert!(matches!(problem(&object), Problem::NoName { .. }));
    object["metadata"]["generateName"] = json!("api-");
    has(&done(&object).object, "--app-id=api");
    object["metadata"]["name"] = json!("api.v1");
    assert!(matches!(problem(&object), Problem::BadName { .. }));
}

#[test]
fn annotation_label_namespace_and_settings_decide_in_this_order() {
    let label = |value: &str| [("tollway.dev/inject".to_owned(), value.to_owned())].into();
    let namespace =
        |value| Namespace { name: "shop".to_owned(), labels: label(value), ..Namespace::default() };
    let injects = |object: &Value, namespace: &Namespace, settings: &Settings| {
        !inject(object, namespace, settings).unwrap().patch.is_empty()
    };
    let plain = pod(json!({}));
    let (unset, enabled) = (Namespace::default(), namespace("enabled"));
    assert!(!injects(&plain, &unset, &settings()));
    assert!(injects(&plain, &enabled, &settings()));
    let all = Settings { unmarked: Unmarked::Inject, ..settings() };
    assert!(injects(&plain, &unset, &all));
    assert!(!injects(&plain, &namespace("disabled"), &all));
    assert!(!injects(&pod(json!({"tollway.dev/inject": "false"})), &enabled, &all));
    assert!(!injects(&pod(json!({"dapr.io/enabled": "false"})), &enabled, &all));
    assert!(injects(&of_dapr(json!({})), &namespace("disabled"), &settings()));
    let mut labelled = pod(json!({}));
    labelled["metadata"]["labels"] = json!({"tollway.dev/inject": "false"});
    assert!(!injects(&labelled, &enabled, &settings()));
    labelled["metadata"]["annotations"] = json!({"tollway.dev/inject": "true"});
    assert!(injects(&labelled, &unset, &settings()));
    assert!(matches!(problem(&pod(json!({"tollway.dev/inject": "maybe"}))), Problem::Value { .. }));
    assert!(matches!(problem(&pod(json!({"tollway.dev/inject": true}))), Problem::Value { .. }));
}

#[test]
fn a_pod_that_cannot_have_a_sidecar_is_left_or_refused_if_it_asks() {
    let all = Settings { unmarked: Unmarked::Inject, ..settings() };
    for (field, value) in [
        ("hostNetwork", json!(true)),
        ("os", json!({"name": "windows"})),
        ("nodeSelector", json!({"kubernetes.io/os": "windows"})),
    ] {
        let mut object = pod(json!({}));
        object["spec"][field] = value.clone();
        let left = inject(&object, &Namespace::default(), &all).unwrap();
        assert_eq!((&left.object, left.notes.len()), (&object, 1), "{field}");
        let mut object = asked(json!({}));
        object["spec"][field] = value;
        assert!(matches!(problem(&object), Problem::Unfit { .. }), "{field}");
    }
    let system = Namespace { name: "kube-system".to_owned(), ..Namespace::default() };
    assert!(inject(&pod(json!({})), &system, &all).unwrap().patch.is_empty());
    assert!(!inject(&asked(json!({})), &system, &all).unwrap().patch.is_empty());
}

#[test]
fn objects_without_pods_and_kinds_of_others_pass_unchanged() {
    let all = Settings { unmarked: Unmarked::Inject, ..settings() };
    let template = json!({"template": {"spec": {"containers": [{"name": "a"}]}}});
    for object in [
        json!({"apiVersion": "v1", "kind": "Service", "spec": {}}),
        json!({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "spec": template}),
        json!({"apiVersion": "example.org/v1", "kind": "Deployment", "spec": template}),
        json!(null),
        json!([1, 2]),
    ] {
        let passed = inject(&object, &Namespace::default(), &all).unwrap();
        assert_eq!((passed.object, passed.patch), (object, vec![]));
    }
}

#[test]
fn each_item_of_a_list_is_treated_by_itself_and_a_mistake_names_its_object() {
    let list = |items: Value| json!({"apiVersion": "v1", "kind": "List", "items": items});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}});
    let object =
        done(&list(json!([service, asked(json!({})), list(json!([asked(json!({}))]))]))).object;
    assert_eq!(object["items"][0], service);
    assert_eq!(sidecar(&object["items"][1])["name"], "tollway");
    assert_eq!(sidecar(&object["items"][2]["items"][0])["name"], "tollway");
    let wrong = asked(json!({"tollway.dev/port": "http"}));
    let error = run(&list(json!([service, wrong]))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Pod web: the annotation tollway.dev/port is `http`; write a port from 1 to 65535, `services` or `none`"
    );
}

#[test]
fn a_pod_of_dapr_gets_a_sidecar_in_daprds_place() {
    let object = done(&of_dapr(json!({
        "dapr.io/app-id": "nodeapp", "dapr.io/app-port": "3000", "dapr.io/enable-api-logging": "yes",
        "dapr.io/app-protocol": "GRPC", "dapr.io/log-level": "", "dapr.io/env": "A=1,B=2",
        "dapr.io/env-from-secret": "TOKEN=creds:key,PASSWORD=creds",
        "dapr.io/api-token-secret": "api", "tollway.dev/zone": "a",
    })))
    .object;
    let sidecar = sidecar(&object);
    assert_eq!(sidecar["name"], "daprd");
    assert_eq!(arguments(&object)[..3], ["sidecar", "--dapr", "--app-id=nodeapp"]);
    for argument in ["--app-port=3000", "--enable-api-logging=true", "--app-protocol=grpc"] {
        has(&object, argument);
    }
    assert!(!arguments(&object).iter().any(|argument| argument.starts_with("--log-level")));
    let env = sidecar["env"].as_array().unwrap();
    let named = |name: &str| env.iter().find(|variable| variable["name"] == name).unwrap();
    assert_eq!(named("B")["value"], "2");
    assert_eq!(named("TOLLWAY_ZONE")["value"], "a");
    let secret = |name: &str| named(name)["valueFrom"]["secretKeyRef"].clone();
    assert_eq!(secret("TOKEN"), json!({"name": "creds", "key": "key"}));
    assert_eq!(secret("PASSWORD"), json!({"name": "creds", "key": "PASSWORD"}));
    assert_eq!(secret("DAPR_API_TOKEN"), json!({"name": "api", "key": "token"}));
    let shown = object["spec"]["containers"][0]["env"].as_array().unwrap();
    assert!(shown.iter().any(|variable| variable["name"] == "DAPR_API_TOKEN"));
}

/// A namespace with the Configuration of the examples and a component.
fn of_appconfig() -> Namespace {
    let configuration = json!({"apiVersion": "dapr.io/v1alpha1", "kind": "Configuration",
        "metadata": {"name": "appconfig"}, "spec": {"accessControl": {"defaultAction": "deny"}}});
    let password = json!({"name": "redisPassword", "secretKeyRef": {"name": "redis", "key": "p"}});
    let component = json!({"apiVersion": "dapr.io/v1alpha1", "kind": "Component",
        "metadata": {"name": "store"}, "spec": {"type": "state.redis", "metadata": [password]}});
    let dapr = DaprObjects {
        configurations: vec![configuration],
        resources: vec![component],
        subscriptions: Vec::new(),
    };
    Namespace { name: "shop".to_owned(), dapr: Some(dapr), ..Namespace::default() }
}

#[test]
fn a_pod_of_dapr_carries_the_objects_of_its_namespace() {
    let object = of_dapr(json!({"dapr.io/config": "appconfig"}));
    let object = inject(&object, &of_appconfig(), &settings()).unwrap().object;
    let annotations = &object["metadata"]["annotations"];
    let carried = |name: &str| {
        let text = annotations[name].as_str().unwrap();
        serde_json::from_str::<Value>(text).unwrap()
    };
    assert_eq!(carried("tollway.dev/dapr-configuration")["kind"], "Configuration");
    assert_eq!(carried("tollway.dev/dapr-resources")["metadata"]["name"], "store");
    has(&object, "--config=/etc/tollway/configuration/configuration.yaml");
    has(&object, "--resources-path=/etc/tollway/resources");
    let volume = |name: &str| {
        let volumes = object["spec"]["volumes"].as_array().unwrap();
        volumes.iter().find(|volume| volume["name"] == name).unwrap().clone()
    };
    let file = |path: &str, annotation: &str| {
        let field = format!("metadata.annotations['tollway.dev/{annotation}']");
        json!({"items": [{"path": path, "fieldRef": {"fieldPath": field}}]})
    };
    let configuration = file("configuration.yaml", "dapr-configuration");
    assert_eq!(volume("tollway-configuration")["downwardAPI"], configuration);
    let sources = json!([{"downwardAPI": file("of-the-namespace.yaml", "dapr-resources")}]);
    assert_eq!(volume("tollway-resources")["projected"]["sources"], sources);
    let mut variables = sidecar(&object)["env"].as_array().unwrap().iter();
    let secret = variables.find(|variable| variable["name"] == "COMPONENT_SECRET_0").unwrap();
    assert_eq!(secret["valueFrom"]["secretKeyRef"], json!({"name": "redis", "key": "p"}));
    // An app that is none of Dapr gets nothing of it.
    let own = asked(json!({}));
    let own = inject(&own, &of_appconfig(), &settings()).unwrap().object;
    assert!(!own.to_string().contains("dapr-resources"), "{own}");
}

#[test]
fn a_configuration_that_is_not_there_may_be_left_out() {
    let settings = Settings { dapr_config: DaprConfig::LeaveOut, ..settings() };
    for (name, is_there) in [("appconfig", true), ("other", false)] {
        let object = of_dapr(json!({"dapr.io/config": name}));
        let injection = inject(&object, &of_appconfig(), &settings).unwrap();
        let carried =
            &injection.object["metadata"]["annotations"]["tollway.dev/dapr-configuration"];
        assert_eq!(carried.is_string(), is_there, "{name}");
        let notes: Vec<&str> = notes(&injection);
        assert_eq!(notes.iter().any(|note| note.contains("is left out")), !is_there, "{notes:?}");
    }
}

#[test]
fn annotations_without_effect_are_noted_with_the_reason() {
    let injection = done(&of_dapr(json!({
        "dapr.io/sidecar-image": "daprio/daprd:1.18.3", "dapr.io/enable-workflow": "true",
        "tollway.dev/prot": "1", "prometheus.io/scrape": "true",
    })));
    assert_eq!(
        notes(&injection),
        [
            "the annotation dapr.io/enable-workflow has no effect: it is not known",
            "the annotation tollway.dev/prot has no effect: it is not known",
            "the annotation dapr.io/sidecar-image has no effect: it names an image of daprd; use \
             tollway.dev/image",
        ]
    );
    let injection = done(&asked(json!({"dapr.io/app-port": "80"})));
    assert_eq!(
        notes(&injection),
        ["the annotation dapr.io/app-port has no effect without dapr.io/enabled"]
    );
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "annotations": {"dapr.io/enabled": "true"}},
        "spec": {"template": {"spec": {"containers": [{"name": "app"}]}}},
    });
    let injection = done(&object);
    assert_eq!(
        notes(&injection),
        ["the annotation dapr.io/enabled has no effect at the Deployment; write it under \
          `spec.template.metadata.annotations`"]
    );
    object["spec"]["template"]["metadata"] = json!({"annotations": {"dapr.io/enabled": "true"}});
    assert_eq!(notes(&done(&object)), [""; 0]);
}

#[test]
fn what_a_pod_would_rely_on_is_refused() {
    for (annotation, value) in [
        ("dapr.io/config", "appconfig"),
        ("dapr.io/unix-domain-socket-path", "/tmp/sockets"),
        ("dapr.io/pluggable-components", "store"),
    ] {
        let found = problem(&of_dapr(json!({annotation: value})));
        let Problem::Refused { annotation: named, .. } = &found else { panic!("{found:?}") };
        assert_eq!(named, annotation);
    }
    let injection = done(&of_dapr(json!({
        "dapr.io/config": "appconfig", "tollway.dev/configuration": "app-config",
    })));
    has(&injection.object, "--config=/etc/tollway/configuration/configuration.yaml");
    assert_eq!(notes(&injection), ["tollway.dev/configuration is read in place of dapr.io/config"]);
    let settings = Settings { dapr_config: DaprConfig::LeaveOut, ..settings() };
    let object = of_dapr(json!({"dapr.io/config": "appconfig"}));
    let injection = inject(&object, &Namespace::default(), &settings).unwrap();
    assert_eq!(notes(&injection), ["the Configuration `appconfig` of dapr.io/config is left out"]);
}

#[test]
fn the_label_of_a_namespace_captures_pods_that_have_no_annotation_for_it() {
    let labels = [("tollway.dev/inject", "true"), ("tollway.dev/capture", "true")];
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let namespace =
        Namespace { name: "shop".to_owned(), labels: labels.into(), ..Namespace::default() };
    let captures = |object: &Value| {
        let done = inject(object, &namespace, &settings()).unwrap().object;
        let first = done["spec"]["initContainers"][0]["name"].as_str().unwrap().to_owned();
        first == "tollway-capture"
    };
    assert!(captures(&pod(json!({}))));
    assert!(!captures(&pod(json!({"tollway.dev/capture": "false"}))));
    assert!(!captures(&of_dapr(json!({}))));
}

#[test]
fn capture_takes_an_init_container_that_may_change_the_network_alone() {
    let mut object =
        asked(json!({"tollway.dev/capture": "true", "tollway.dev/capture-port": "15016"}));
    let done_once = done(&object).object;
    let first = &done_once["spec"]["initContainers"];
    assert_eq!(
        (&first[0]["name"], &first[1]["name"]),
        (&json!("tollway-capture"), &json!("tollway"))
    );
    let expected = ["kube", "capture", "--port=15016", "--names-port=15053", "--sidecar-uid=15001"];
    assert_eq!(first[0]["args"], json!(expected));
    let rights = &first[0]["securityContext"]["capabilities"];
    assert_eq!(*rights, json!({"add": ["NET_ADMIN"], "drop": ["ALL"]}));
    assert_eq!(first[1]["securityContext"]["capabilities"], json!({"drop": ["ALL"]}));
    let given = first[1]["args"].as_array().unwrap();
    assert!(given.contains(&json!("--capture-port=15016")), "{given:?}");
    object["spec"]["containers"][0]["securityContext"] = json!({"runAsUser": 15_001});
    assert!(matches!(problem(&object), Problem::SidecarUser { uid: 15_001, .. }));
    object["metadata"]["annotations"]["tollway.dev/capture"] = json!("false");
    let without = done(&object).object;
    assert_eq!(sidecar(&without)["name"], "tollway");
    let of_dapr = of_dapr(json!({"tollway.dev/capture": "true"}));
    assert!(matches!(problem(&of_dapr), Problem::OtherStyle { .. }));
}

#[test]
fn mistakes_have_what_to_write() {
    for (annotations, expected) in [
        (
            json!({"tollway.dev/protocol": "htp"}),
            "the annotation tollway.dev/protocol is `htp`; write `http`, `https`, `h2c`, `grpc`, \
             `grpcs`, `tcp`",
        ),
        (
            json!({"tollway.dev/port": 8080}),
            "the annotation tollway.dev/port is `8080`; write it in quotes, as a text",
        ),
        (
            json!({"tollway.dev/cpu-limit": "half"}),
            "the annotation tollway.dev/cpu-limit is `half`; write a quantity above zero, such as \
             `100m` or `64Mi`",
        ),
        (
            json!({"tollway.dev/memory-request": "1Gi", "tollway.dev/memory-limit": "64Mi"}),
            "the sidecar requests more memory than its limit (1Gi and 64Mi); change the annotation \
             tollway.dev/memory-limit",
        ),
        (
            json!({"tollway.dev/volume-mounts": "certs:/etc/certs"}),
            "the annotation tollway.dev/volume-mounts mounts the volume `certs`, which the pod does \
             not have; add it to `volumes`",
        ),
        (
            json!({"tollway.dev/port": "3500"}),
            "port 3500 is of the app, and the sidecar listens there for its HTTP API; move the \
             sidecar with the annotation tollway.dev/http-port",
        ),
        (
            json!({"tollway.dev/admin-port": "3500"}),
            "port 3500 is of the sidecar itself, for its HTTP API, and the sidecar listens there \
             for metrics and health; move the sidecar with the annotation tollway.dev/admin-port",
        ),
    ] {
        assert_eq!(problem(&asked(annotations)).to_string(), expected);
    }
    let both = json!({"tollway.dev/app": "a", "dapr.io/app-id": "b"});
    assert!(matches!(problem(&of_dapr(both)), Problem::Contradiction { .. }));
    let found = problem(&of_dapr(json!({"tollway.dev/protocol": "grpc"})));
    assert!(matches!(found, Problem::OtherStyle { .. }), "{found}");
}

#[test]
fn names_and_ports_of_the_pod_are_respected() {
    let mut object = asked(json!({}));
    object["spec"]["containers"][0]["ports"] = json!([{"containerPort": 15020, "protocol": "UDP"}]);
    done(&object);
    object["spec"]["containers"][0]["ports"] = json!([{"containerPort": 15020}]);
    assert!(matches!(problem(&object), Problem::PortTaken { port: 15020, .. }));
    object["metadata"]["annotations"]["tollway.dev/admin-port"] = json!("9091");
    done(&object);
    // Many apps have metrics of their own there.
    object["spec"]["containers"][0]["ports"] = json!([{"containerPort": 9090}]);
    done(&object);
    let mut of_dapr = of_dapr(json!({}));
    of_dapr["spec"]["containers"][0]["ports"] = json!([{"containerPort": 9090}]);
    assert!(matches!(problem(&of_dapr), Problem::PortTaken { port: 9090, .. }));
    for (part, name) in
        [("containers", "daprd"), ("initContainers", "tollway"), ("volumes", "tollway-token")]
    {
        let mut object = asked(json!({}));
        object["spec"][part] = json!([{"name": name}]);
        if part != "containers" {
            object["spec"]["containers"] = json!([{"name": "app"}]);
        }
        assert!(matches!(problem(&object), Problem::NameTaken { .. }), "{part}");
    }
}

#[test]
fn a_malformed_pod_is_refused_with_the_path() {
    for (spec, path) in [
        (json!({"containers": []}), "spec"),
        (json!({"containers": "app"}), "spec.containers"),
        (json!({"containers": [1]}), "spec.containers"),
        (json!({"containers": [{"name": "a"}], "initContainers": 7}), "spec.initContainers"),
        (json!({"containers": [{"name": "a", "env": 7}]}), "spec.containers.0.env"),
        (json!({"containers": [{"name": "a"}], "volumes": {}}), "spec.volumes"),
    ] {
        let mut object = asked(json!({}));
        object["spec"] = spec;
        let message = problem(&object).to_string();
        assert!(message.contains(&format!("`{path}`")), "{message}");
    }
}

#[test]
fn resources_of_the_settings_give_way_to_those_of_the_pod() {
    let resources = |annotations| sidecar(&done(&asked(annotations)).object)["resources"].clone();
    assert_eq!(
        resources(json!({})),
        json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "256Mi"}})
    );
    assert_eq!(
        resources(json!({"tollway.dev/memory-limit": "8Mi", "tollway.dev/cpu-limit": "0.5"})),
        json!({"requests": {"cpu": "10m"}, "limits": {"cpu": "0.5", "memory": "8Mi"}})
    );
    assert_eq!(
        resources(json!({"tollway.dev/memory-request": "1Gi"})),
        json!({"requests": {"cpu": "10m", "memory": "1Gi"}})
    );
}

#[test]
fn arguments_from_annotations_are_taken_as_they_are() {
    let object = done(&asked(json!({
        "tollway.dev/health-check": "true", "tollway.dev/health-check-path": "/h/$(NAMESPACE)",
        "tollway.dev/upstreams": "5432=db.shop.east, 6379=cache",
    })))
    .object;
    for argument in [
        "--enable-app-health-check",
        "--app-health-check-path=/h/$$(NAMESPACE)",
        "--upstream=5432=db.shop.east",
        "--upstream=6379=cache",
    ] {
        has(&object, argument);
    }
}

#[test]
fn ipv6_addresses_have_brackets_where_a_port_follows() {
    let six = Settings { ip_family: IpFamily::V6, ..settings() };
    let injected = |object: &Value| inject(object, &Namespace::default(), &six).unwrap().object;
    let own = injected(&asked(json!({})));
    has(&own, "--inbound-listen=[::]:50002");
    has(&own, "--advertise=[$(TOLLWAY_POD_IP)]:50002");
    has(&injected(&of_dapr(json!({}))), "--metrics-listen-address=::");
}

#[test]
fn the_table_has_each_annotation_once_with_a_value_that_it_takes() {
    let names: BTreeSet<_> = ANNOTATIONS.iter().map(|annotation| annotation.name).collect();
    assert_eq!(names.len(), ANNOTATIONS.len());
    for annotation in ANNOTATIONS {
        assert!(annotation.form.takes(annotation.example), "{}", annotation.name);
    }
}

/// A value of JSON of some depth.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z/~ ]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z/~]{1,6}", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn any_fields() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map("x[a-zA-Z/~.]{0,8}", any_value(), 0..4)
        .prop_map(|fields| fields.into_iter().collect())
}

/// Some annotations of the table with their examples: of a pod of Dapr, or of another.
fn any_annotations() -> impl Strategy<Value = Map<String, Value>> {
    any::<bool>().prop_flat_map(|of_dapr| {
        let fits = |annotation: &&Annotation| match of_dapr {
            true => annotation.is_daprs() || !annotation.is_of_one_style(),
            false => !annotation.is_daprs(),
        };
        let usable = ANNOTATIONS.iter().filter(|annotation| !annotation.is_refused());
        let usable: Vec<&Annotation> = usable.filter(fits).collect();
        let count = usable.len();
        prop::sample::subsequence(usable, 0..=count).prop_map(move |chosen| {
            let examples = chosen.iter().map(|of| (of.name.to_owned(), json!(of.example)));
            let mut annotations: Map<String, Value> = examples.collect();
            if of_dapr {
                annotations.insert("dapr.io/enabled".to_owned(), json!("true"));
            }
            annotations
        })
    })
}

fn any_containers(name: &'static str, least: usize) -> impl Strategy<Value = Value> {
    let env = prop::option::of(prop::collection::vec("[A-Z_]{1,12}|DAPR_HTTP_PORT", 0..3));
    let container = (any_fields(), env).prop_map(|(mut fields, env)| {
        let env = env.map(|names| {
            names.iter().map(|name| json!({"name": name, "value": "1"})).collect::<Vec<_>>()
        });
        fields.extend(env.map(|env| ("env".to_owned(), json!(env))));
        fields
    });
    prop::collection::vec(container, least..4).prop_map(move |list| {
        let named = list.into_iter().enumerate().map(|(index, mut fields)| {
            fields.insert("name".to_owned(), json!(format!("{name}-{index}")));
            Value::Object(fields)
        });
        Value::Array(named.collect())
    })
}

/// An object of any kind with pods, and fields that nothing here knows.
fn any_workload() -> impl Strategy<Value = Value> {
    let kinds = prop_oneof![
        Just(("Pod", "v1", "")),
        Just(("Deployment", "apps/v1", "/spec/template")),
        Just(("Job", "batch/v1", "/spec/template")),
        Just(("CronJob", "batch/v1", "/spec/jobTemplate/spec/template")),
    ];
    let pod = (
        any_fields(),
        prop::option::of(any_annotations()),
        any_containers("app", 1),
        prop::option::of(any_containers("init", 0)),
        any_fields(),
        prop::option::of(any_fields()),
    );
    (kinds, pod, any_fields()).prop_map(|((kind, version, path), pod, rest)| {
        let (mut metadata, annotations, containers, inits, mut spec, volume) = pod;
        metadata.extend(annotations.map(|all| ("annotations".to_owned(), Value::Object(all))));
        spec.insert("containers".to_owned(), containers);
        spec.extend(inits.map(|inits| ("initContainers".to_owned(), inits)));
        // Those that examples of annotations mount.
        let mut volumes = vec![json!({"name": "certs"}), json!({"name": "data"})];
        volumes.extend(volume.map(Value::Object));
        spec.insert("volumes".to_owned(), Value::Array(volumes));
        let mut object = rest;
        let mut inner = json!({"metadata": metadata, "spec": spec});
        let mut parts: Vec<&str> = path.split('/').skip(1).collect();
        while let Some(part) = parts.pop() {
            inner = json!({ part: inner });
        }
        object.extend(inner.as_object().cloned().unwrap_or_default());
        object.insert("kind".to_owned(), json!(kind));
        object.insert("apiVersion".to_owned(), json!(version));
        if kind != "Pod" {
            object.insert("metadata".to_owned(), json!({}));
        }
        object["metadata"]["name"] = json!("web");
        Value::Object(object)
    })
}

/// What of `before` is not in `after`: each field has to be there with its value, and each item of a
/// list in its order.
fn lost(before: &Value, after: &Value, path: &str, found: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in before {
                let path = format!("{path}/{key}");
                match after.get(key) {
                    Some(after) => lost(value, after, &path, found),
                    None => found.push(path),
                }
            }
        }
        (Value::Array(before), Value::Array(after)) if after.len() >= before.len() => {
            // Additions are before or after what was there.
            let at = |shift: usize| {
                let mut lost_here = Vec::new();
                for (index, value) in before.iter().enumerate() {
                    lost(value, &after[index + shift], &format!("{path}/{index}"), &mut lost_here);
                }
                lost_here
            };
            let tries = (0..=after.len() - before.len()).map(at);
            found.extend(tries.min_by_key(Vec::len).unwrap_or_default());
        }
        (Value::Null, _) => {}
        _ if before == after => {}
        _ => found.push(path.to_owned()),
    }
}

proptest! {
    #[test]
    fn injection_loses_nothing_and_twice_is_as_once(object in any_workload(), inject_all in any::<bool>()) {
        let unmarked = if inject_all { Unmarked::Inject } else { Unmarked::Leave };
        let settings = Settings { unmarked, ..settings() };
        let namespace = of_appconfig();
        let once = inject(&object, &namespace, &settings).unwrap();
        let mut gone = Vec::new();
        lost(&object, &once.object, "", &mut gone);
        prop_assert!(gone.is_empty(), "{gone:?}");
        let twice = inject(&once.object, &namespace, &settings).unwrap();
        prop_assert_eq!(&twice.object, &once.object);
        prop_assert!(twice.patch.is_empty());
    }

    /// The crate `json-patch` is of others, so a mistake of ours does not cancel itself.
    #[test]
    fn the_patch_turns_the_object_into_the_one_with_a_sidecar(object in any_workload()) {
        let settings = Settings { unmarked: Unmarked::Inject, ..settings() };
        let injection = inject(&object, &of_appconfig(), &settings).unwrap();
        let text = serde_json::to_string(&injection.patch).unwrap();
        let patch: json_patch::Patch = serde_json::from_str(&text).unwrap();
        let mut patched = object;
        json_patch::patch(&mut patched, &patch).unwrap();
        prop_assert_eq!(patched, injection.object);
    }

    #[test]
    fn no_object_causes_a_panic(object in any_value(), spec in any_value(), metadata in any_value()) {
        let settings = Settings { unmarked: Unmarked::Inject, ..settings() };
        let _ = inject(&object, &Namespace::default(), &settings);
        for part in [&spec, &json!({"template": {"spec": spec, "metadata": metadata}})] {
            for (kind, version) in [("Pod", "v1"), ("Deployment", "apps/v1")] {
                let metadata = metadata.clone();
                let object =
                    json!({"kind": kind, "apiVersion": version, "metadata": metadata, "spec": part});
                let _ = inject(&object, &Namespace::default(), &settings);
            }
        }
    }
}
