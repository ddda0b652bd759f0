use tollway_runtime::StateStores;

use super::*;

const HEAD: &str = "apiVersion: dapr.io/v1alpha1\n";

fn component(name: &str, of_type: &str) -> String {
    format!("{HEAD}kind: Component\nmetadata: {{name: {name}}}\nspec: {{type: {of_type}}}\n")
}

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// Reads a folder for the app `web`, with paths of files from there on.
fn read_for_web(files: &[(&str, &str)]) -> Result<FilesRead, String> {
    read_with(files, |given| given)
}

fn read_with(
    files: &[(&str, &str)],
    change: impl for<'a> FnOnce(Files<'a>) -> Files<'a>,
) -> Result<FilesRead, String> {
    let folder = folder(files);
    let (app, namespace) = (AppId::new("web").unwrap(), Label::new("default").unwrap());
    let resources = [folder.path().to_owned()];
    let config: Vec<PathBuf> = files
        .iter()
        .filter(|(name, _)| name.ends_with(".config"))
        .map(|(name, _)| folder.path().join(name))
        .collect();
    let given = change(Files {
        app: &app,
        namespace: &namespace,
        takes_all_namespaces: true,
        config: &config,
        resources: &resources,
        in_daprds_place: true,
    });
    let variable = |name: &str| (name == "LEVEL").then(|| "deny".to_owned());
    let prefix = folder.path().display().to_string() + "/";
    let texts = FileTexts::load(given.config, given.resources);
    match texts.and_then(|texts| given.read_texts(&texts, &variable)) {
        Ok(mut read) => {
            for note in &mut read.notes {
                *note = note.replace(&prefix, "");
            }
            Ok(read)
        }
        Err(error) => Err(error.to_string().replace(&prefix, "")),
    }
}

/// The names of the stores that are read, those that cannot be used in brackets.
fn stores(files: &[(&str, &str)]) -> String {
    match read_for_web(files).unwrap().stores {
        StateStores::Network => "the network's".to_owned(),
        StateStores::Components { stores, unusable } => {
            let usable = stores.into_iter().map(|store| store.name);
            let unusable = unusable.into_iter().map(|store| format!("({})", store.name));
            usable.chain(unusable).collect::<Vec<_>>().join(" ")
        }
    }
}

#[track_caller]
fn check_note(files: &[(&str, &str)], note: &str) {
    let notes = read_for_web(files).unwrap().notes;
    assert!(notes.iter().any(|found| found.contains(note)), "{note}: {notes:#?}");
}

#[test]
fn folders_of_resources_are_read_in_order() {
    let one = component("one", "state.in-memory");
    let many = format!(
        "# two of them\n---\n{}---\n{}\n---\nkind: Subscription\nspec: {{}}\n---\n{}",
        component("two", "state.in-memory"),
        component("three", "state.in-memory"),
        component("bus", "pubsub.redis"),
    );
    let files = [("b.YAML", one.as_str()), ("a.yml", &many), ("c.txt", "no: yaml: at all")];
    assert_eq!(stores(&files), "two three one");
    for nothing in ["# nothing\n---\n---\n", &component("bus", "pubsub.redis")] {
        assert_eq!(stores(&[("a.yaml", nothing)]), "the network's");
    }
    assert_eq!(stores(&[]), "the network's");
    assert_eq!(stores(&[("a.yaml", &(one + "scopes: [others]\n"))]), "");
}

#[test]
fn files_that_are_no_resources_are_passed_over() {
    let one = component("one", "state.in-memory");
    let others = [
        ("docker-compose.yml", "services:\n  web:\n    image: web\n    environment: [A=b]\n"),
        (
            "kustomization.yaml",
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n",
        ),
        ("values.yaml", "replicas: 2\nimage: {tag: \"1\"}\n"),
        ("dapr.yaml", "version: 1\napps: [{appDirPath: .}]\n"),
        ("list.yaml", "- a\n- b\n"),
        ("text.yaml", "just a text\n"),
        ("deployment.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n"),
        ("chart.yaml", "{{- if .Values.on }}\nkind: Component\n{{- end }}\n"),
        ("tabs.yaml", "a:\n\tb: 1\n"),
        ("one.yaml", &one),
    ];
    assert_eq!(stores(&others), "one");
    check_note(&others, "chart.yaml:");
    let silent = &others[..4];
    assert_eq!(read_for_web(silent).unwrap().notes, [""; 0]);
    let folder = folder(&[("bytes.yaml", "")]);
    std::fs::write(folder.path().join("bytes.yaml"), b"a: \xFF\n").unwrap();
    std::fs::create_dir(folder.path().join("folder.yaml")).unwrap();
    let texts = FileTexts::load(&[], &[folder.path().to_owned()]).unwrap();
    let read = Resources::of(&texts.resources);
    assert!(read.notes[0].contains("no text in UTF-8"), "{:?}", read.notes);
    assert_eq!(read.notes.len(), 1);
}

#[test]
fn what_hides_a_store_keeps_the_networks_store_out_of_its_place() {
    for text in [
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nspec: {type: state.redis}\nscopes: web\n",
        "apiVersion: dapr.io/v2\nkind: Component\nspec: {type: state.redis}\n",
        "{{ if .Values.on }}\nspec: {type: state.redis}\n",
    ] {
        assert_eq!(stores(&[("a.yaml", text)]), "", "{text}");
        assert!(!read_for_web(&[("a.yaml", text)]).unwrap().notes.is_empty(), "{text}");
    }
    assert_eq!(stores(&[("a.yaml", &component("mongo", "state.mongodb"))]), "(mongo)");
}

#[test]
fn what_dapr_init_leaves_behind_is_no_hindrance() {
    let configuration = "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  \
         name: daprConfig\nspec:\n  tracing:\n    samplingRate: \"1\"\n    zipkin:\n      \
         endpointAddress: http://localhost:9411/api/v2/spans\n";
    check_note(
        &[("a.config", configuration)],
        "no traces go to Zipkin; give it spans through `otel`",
    );
    check_note(
        &[("a.yaml", configuration)],
        "Configuration `daprConfig` is left out: give its file",
    );
    let workflow = format!("{HEAD}kind: WorkflowAccessPolicy\nmetadata: {{name: other}}\n");
    check_note(
        &[("a.yaml", &workflow)],
        "WorkflowAccessPolicy `other` is left out: it is not served",
    );
}

#[test]
fn what_is_not_served_starts_with_a_note() {
    let subscription = format!("{HEAD}kind: Subscription\nmetadata: {{name: s}}\n");
    check_note(&[("a.yaml", &subscription)], "Subscription `s` is left out: publishing and");
    let elsewhere = format!("{subscription}scopes: [other]\n");
    assert_eq!(read_for_web(&[("a.yaml", &elsewhere)]).unwrap().notes, [""; 0]);
    let resiliency =
        "kind: Resiliency\nmetadata: {name: r}\nspec: {targets: {apps: {b: {retry: c}}}}\n";
    check_note(&[("a.yaml", resiliency)], "targets.apps.b.retry is `c`");
    let wrong = "kind: Resiliency\nmetadata: {name: r}\nspec: {targets: {apps: {a.b.c.d: {}}}}\n";
    let files = [("a.yaml", wrong)];
    check_note(&files, "Resiliency `r` is left out: targets.apps.a.b.c.d");
    assert!(read_for_web(&files).unwrap().configuration.rules.is_empty());
    let endpoint =
        format!("{HEAD}kind: HTTPEndpoint\nmetadata: {{name: e}}\nspec: {{baseUrl: a}}\n");
    check_note(&[("a.yaml", &endpoint)], "HTTPEndpoint `e` is left out: spec.baseUrl");
    let list =
        format!("apiVersion: v1\nkind: List\nitems: [{{{}, kind: Component}}]\n", HEAD.trim());
    check_note(&[("a.yaml", &list)], "a.yaml:1: a List is passed over");
    let other = component("s", "state.in-memory").replace("v1alpha1", "v2");
    check_note(&[("a.yaml", &other)], "its apiVersion is `dapr.io/v2`; write dapr.io/v1alpha1");
}

#[test]
fn an_unknown_field_is_a_note_with_its_line_and_metadata_of_kubectl_are_none() {
    let text = component("one", "state.in-memory").replace(
        "{name: one}",
        "{name: one, creationTimestamp: null, uid: 5, annotations: {a: 1}}",
    );
    let coloured = text.clone() + "colour: red\nstatus: {}\n";
    check_note(&[("a.yaml", &coloured)], "a.yaml:5:1: the field `colour` is not known");
    assert_eq!(read_for_web(&[("a.yaml", &text)]).unwrap().notes, [""; 0]);
    assert_eq!(read_for_web(&[("a.yaml", &coloured)]).unwrap().notes.len(), 1);
}

#[test]
fn without_namespace_resources_of_all_are_for_the_app() {
    let one = component("one", "state.in-memory").replace("name: one", "name: one, namespace: a");
    let endpoint = format!(
        "{HEAD}kind: HTTPEndpoint\nmetadata: {{name: e, namespace: a}}\nspec: {{baseUrl: 'http://a'}}\n"
    );
    let files = [("a.yaml", one.as_str()), ("b.yaml", &endpoint)];
    assert_eq!(stores(&files), "one");
    assert_eq!(read_for_web(&files).unwrap().configuration.endpoints.len(), 1);
    let own = read_with(&files, |files| Files { takes_all_namespaces: false, ..files }).unwrap();
    assert!(own.configuration.endpoints.is_empty());
    let StateStores::Components { stores, .. } = own.stores else { panic!("the network's") };
    assert!(stores.is_empty());
}

#[test]
fn mistakes_of_what_is_served_end_the_start_with_file_and_line() {
    let redis = component("one", "state.redis");
    let refused = read_for_web(&[("a.yaml", &redis)]).unwrap_err();
    assert!(refused.contains("a.yaml:4:14: the metadata `redisHost` are missing"), "{refused}");
    let one = component("one", "state.in-memory");
    let refused = read_for_web(&[("a.yaml", &one), ("b.yaml", &one)]).unwrap_err();
    let twice = "one (state.in-memory) with existing one (state.in-memory); give each";
    assert!(refused.contains(twice) && refused.contains("b.yaml"), "{refused}");
    let endpoint =
        format!("{HEAD}kind: HTTPEndpoint\nmetadata: {{name: e}}\nspec: {{baseUrl: 'http://a'}}\n");
    let refused = read_for_web(&[("a.yaml", &format!("{endpoint}---\n{endpoint}"))]).unwrap_err();
    assert!(refused.contains("HTTPEndpoint `e` is there twice"), "{refused}");
}

/// The harm: the app uses another component than the one that its name meant in daprd.
#[test]
fn a_name_of_two_components_ends_the_start_as_in_dapr() {
    let secrets = component("one", "secretstores.local.file");
    let store = component("one", "state.in-memory");
    let refused = read_for_web(&[("a.yaml", &secrets), ("b.yaml", &store)]).unwrap_err();
    let expected = "failed to load components: duplicate definition of Component name one \
                    (state.in-memory) with existing one (secretstores.local.file); give each a name \
                    of its own: see a.yaml, b.yaml";
    assert_eq!(refused, expected);
    // Several times; for other apps; with a version.
    let others = format!("{store}scopes: [others]\n");
    let first = store.replace("in-memory}", "in-memory, version: v1}");
    let all = [("a.yaml", &*first), ("b.yaml", &*others), ("c.yaml", &*secrets)];
    let refused = read_for_web(&all).unwrap_err();
    let existing = "with existing one (state.in-memory/v1)";
    let line = "duplicate definition of Component name one";
    let both = format!(
        "{line} (state.in-memory) {existing}\n{line} (secretstores.local.file) {existing};"
    );
    assert!(refused.contains(&both), "{refused}");
    // One that is for others alone leaves its name to the next.
    assert_eq!(stores(&[("a.yaml", &others), ("b.yaml", &store)]), "one");
    // Of another namespace it is no component here.
    let elsewhere = store.replace("name: one", "name: one, namespace: elsewhere");
    let files = [("a.yaml", &*store), ("b.yaml", &*elsewhere)];
    assert!(read_with(&files, |files| Files { takes_all_namespaces: false, ..files }).is_ok());
    assert!(read_for_web(&files).is_err());
}

#[test]
fn a_denied_type_of_component_cannot_be_used() {
    let one = component("one", "state.in-memory");
    for denied in ["state.in-memory", "state.In-Memory/v1"] {
        let config = format!("spec: {{components: {{deny: ['{denied}']}}}}\n");
        assert_eq!(stores(&[("a.yaml", &one), ("b.config", &config)]), "(one)");
    }
    let other = "spec: {components: {deny: [state.in-memory/v2]}}\n";
    assert_eq!(stores(&[("a.yaml", &one), ("b.config", other)]), "one");
}

#[test]
fn a_configuration_has_the_variables_of_the_environment() {
    let config = "spec:\n  accessControl: {defaultAction: $LEVEL}\n---\nspec: {}\n";
    let read = read_for_web(&[("a.config", config)]).unwrap();
    assert!(read.configuration.access.is_some());
    assert!(read.notes[0].contains("only the first document"), "{:?}", read.notes);
    let rule = "spec: {api: {denied: [{name: a}]}}\n";
    let refused = read_for_web(&[("a.config", rule)]).unwrap_err();
    assert!(refused.contains("a.config: `a` in api.denied is no rule"), "{refused}");
}

#[test]
fn an_endpoint_is_left_out_where_no_calls_leave_the_mesh() {
    let text =
        format!("{HEAD}kind: HTTPEndpoint\nmetadata: {{name: e}}\nspec: {{baseUrl: 'http://a'}}\n");
    let files = [("a.yaml", text.as_str())];
    let inside = read_with(&files, |files| Files { in_daprds_place: false, ..files }).unwrap();
    assert!(inside.configuration.endpoints.is_empty());
    assert!(inside.notes[0].contains("only in daprd's place"), "{:?}", inside.notes);
    assert_eq!(read_for_web(&files).unwrap().configuration.endpoints.len(), 1);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let (app, namespace) = (AppId::new("web").unwrap(), Label::new("default").unwrap());
    let read = |config: &[PathBuf], resources: &[PathBuf]| {
        let (takes_all_namespaces, in_daprds_place) = (true, true);
        let files = Files {
            app: &app,
            namespace: &namespace,
            takes_all_namespaces,
            config,
            resources,
            in_daprds_place,
        };
        files.read().unwrap_err().to_string()
    };
    assert!(read(&["/nowhere/config.yaml".into()], &[]).contains("/nowhere/config.yaml"));
    assert!(read(&[], &["/nowhere".into()]).contains("cannot read the folder /nowhere"));
}
