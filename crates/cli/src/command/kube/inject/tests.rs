use clap::Parser;
use serde_json::json;
use tollway_inject::{ANNOTATIONS, DaprObjects, TokenFrom};

use super::*;
use crate::args::{Arguments, Command};
use crate::daprd::words_of;

fn settings() -> Settings {
    let unmarked = Unmarked::Inject;
    let token = TokenFrom::Secret("join".to_owned());
    Settings { unmarked, token, ..Settings::new("tollway:1", "control:15010") }
}

/// The arguments of the sidecar of a pod with these annotations.
fn arguments(annotations: &Value) -> Vec<String> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "annotations": annotations},
        "spec": {
            "containers": [{"name": "app"}],
            "volumes": [{"name": "certs"}, {"name": "data"}],
        },
    });
    // That of the example.
    let configuration = json!({"metadata": {"name": "appconfig"}, "spec": {}});
    let dapr = DaprObjects { configurations: vec![configuration], ..DaprObjects::default() };
    let namespace = Namespace { dapr: Some(dapr), ..Namespace::default() };
    let injected = inject(&pod, &namespace, &settings()).unwrap().object;
    let list = injected["spec"]["initContainers"].as_array().unwrap();
    let args = &list.last().unwrap()["args"];
    // What the kubelet puts for them.
    let filled = |text: &str| {
        let text = text.replace("$(NAMESPACE)", "shop").replace("$(TOLLWAY_INSTANCE)", "web-1");
        text.replace("$(TOLLWAY_POD_IP)", "10.0.0.7").replace("$$", "$")
    };
    args.as_array().unwrap().iter().map(|arg| filled(arg.as_str().unwrap())).collect()
}

/// Whether the sidecar of a pod starts with its arguments, as far as they are read.
#[track_caller]
fn check(annotations: &Value) {
    let arguments = arguments(annotations);
    let words: Vec<std::ffi::OsString> = arguments.iter().map(Into::into).collect();
    if annotations.get("dapr.io/enabled").is_some() {
        let words = crate::daprd::texts(words_of("sidecar", &words).unwrap());
        let parsed = tollway_dapr::parse(&words).unwrap();
        let tollway_dapr::Parsed::Flags(given) = parsed else { panic!("{words:?}") };
        let variable = |name: &str| (name == "DAPR_HOST_IP").then(|| "10.0.0.7".to_owned());
        let options = tollway_dapr::DaprdOptions::of(&given, variable).unwrap();
        assert_eq!(options.control.unwrap().to_string(), "control:15010");
        return;
    }
    let argv = std::iter::once("tollway".into()).chain(words);
    let parsed = Arguments::try_parse_from(argv).unwrap();
    let Command::Sidecar(sidecar) = parsed.command else { panic!("{arguments:?}") };
    let settings = sidecar.survey().unwrap().complete().unwrap().settings;
    assert_eq!(settings.namespace.as_str(), "shop");
    assert_eq!(settings.advertise.unwrap().to_string(), "10.0.0.7:50002");
}

#[test]
fn a_sidecar_takes_what_each_annotation_becomes() {
    check(&json!({}));
    check(&json!({"dapr.io/enabled": "true"}));
    for annotation in ANNOTATIONS.iter().filter(|annotation| !annotation.is_refused()) {
        // These move what `check` compares, or leave the pod without a sidecar.
        if ["injected", "inbound-port", "control"].contains(&short(annotation.name)) {
            continue;
        }
        let mut annotations = json!({annotation.name: annotation.example});
        if annotation.is_daprs() {
            annotations["dapr.io/enabled"] = json!("true");
        }
        if annotation.name.starts_with("tollway.dev/trace-") {
            annotations["tollway.dev/trace-endpoint"] = json!("http://127.0.0.1:4317");
        }
        check(&annotations);
    }
}

fn short(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, name)| name)
}

#[test]
fn documents_are_printed_in_their_order_with_objects_between_them_untouched() {
    let text = "# first\napiVersion: v1\nkind: Service\nmetadata: {name: web}\n---\n---\n\
                apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a}]}\n";
    let mut printed = String::new();
    inject_all(text, "a.yaml", "shop", &settings(), &mut printed).unwrap();
    let (service, pod) = printed.split_once("---\n").unwrap();
    assert_eq!(service, "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n");
    assert!(pod.contains("\n  - args:\n    - sidecar\n"), "{pod}");
    assert!(pod.contains("\n    - \"--app-id=web\"\n"), "{pod}");
    let mut again = String::new();
    inject_all(&printed, "a.yaml", "shop", &settings(), &mut again).unwrap();
    assert_eq!(again, printed);
}

#[test]
fn a_mistake_has_file_line_document_and_object() {
    let text = "kind: A\n---\n\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  \
                template:\n    metadata:\n      annotations: {tollway.dev/port: many}\n    spec: \
                {containers: [{name: a}]}\n";
    let mut printed = String::new();
    let error = inject_all(text, "a.yaml", "shop", &settings(), &mut printed).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a.yaml:4: document 2: Deployment web: the annotation tollway.dev/port is `many`; write a port \
         from 1 to 65535, `services` or `none`"
    );
    let error = inject_all("a: [", "a.yaml", "shop", &settings(), &mut printed).unwrap_err();
    assert!(error.to_string().starts_with("a.yaml:1:"), "{error}");
}
