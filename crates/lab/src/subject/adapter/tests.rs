use std::collections::BTreeSet;

use tollway_record::record::Protocol;

use super::*;
use tollway_config::Mistake;

const GOOD: &str = "schema: tollway.subject/1\nname: mine\npurpose: to see\n\
    program: [sh]\nversion: [-c, 'echo 1.2']\nget: {by_hand: \"write it\"}\n\
    authority: {program: [cat], process: {command: [\"{{program}}\", \"{{listen}}\"]}}\n\
    texts: {place: \"{{listen_ip}} {{listen_port}}\"}\nvariants:\n  - name: pair\n    \
    purpose: two\n    deployments:\n      - protocols: [http1]\n        asks_authority: true\n        \
    app_side: {command: [\"{{program}}\", \"{{authority}} {{authority_dir}} {{place}}\"]}\n        \
    caller_side: {command: [x, \"{{listen}}\"], ports: [admin], files: {a: \"{{admin_port}}\"}}\n";

const SCHEMA: &str = include_str!("../../../../../schema/tollway-subject-1.schema.json");
const EXAMPLE: &str = include_str!("../../../../../docs/guide/subjects/nghttpx.yaml");

fn faults(text: &str) -> Vec<Mistake> {
    serde_saphyr::from_str::<AdapterFile>(text).unwrap().check()
}

#[test]
fn the_program_s_own_files_are_right_and_carry_both_protocols() {
    let names: Vec<String> = built_in_adapters().iter().map(|a| a.name().to_owned()).collect();
    assert_eq!(names, ["dapr", "envoy", "haproxy", "nginx", "traefik"]);
    for adapter in built_in_adapters() {
        assert_eq!(adapter.file.check(), [], "{}", adapter.name());
        assert!(adapter.purpose().len() <= 80);
        let subject = adapter.make(&adapter.variants[0]);
        for protocol in [Protocol::Http1, Protocol::GrpcUnary] {
            let leg = Leg { network: 0, protocol, tls: Tls::Plain };
            assert_eq!(subject.carries(&leg), Ok(()), "{}", adapter.name());
        }
    }
}

#[test]
fn the_program_s_own_files_and_the_guide_s_example_fit_the_schema() {
    let validator = jsonschema::validator_for(&serde_json::from_str(SCHEMA).unwrap()).unwrap();
    for text in BUILT_IN.iter().copied().chain([EXAMPLE, GOOD]) {
        let value: serde_json::Value = serde_saphyr::from_str(text).unwrap();
        let unfit: Vec<String> = validator.iter_errors(&value).map(|e| e.to_string()).collect();
        assert!(unfit.is_empty(), "{}: {unfit:#?}", value["name"]);
        assert_eq!(faults(text), [], "{}", value["name"]);
    }
}

#[test]
fn the_schema_refuses_what_the_reader_refuses() {
    let validator = jsonschema::validator_for(&serde_json::from_str(SCHEMA).unwrap()).unwrap();
    let check = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "{from}");
        let text = GOOD.replacen(from, to, 1);
        let value: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert!(!validator.is_valid(&value), "{to} is taken by the schema");
        let read = serde_saphyr::from_str::<AdapterFile>(&text);
        let refused = read.map_or(true, |file| !file.check().is_empty());
        assert!(refused, "{to} is taken by the reader");
    };
    check("subject/1", "subject/2");
    check("purpose:", "porpoise:");
    check("by_hand:", "by_foot:");
    check("[http1]", "[http]");
    check("[http1]", "[]");
    check("app_side: {command", "app_side: {comand");
    check("files: {a:", "files: {../a:");
    check("ports: [admin]", "ports: [Admin]");
    check("ports: [admin]", "ports: [admin], ready: {port: admin, path: ping}");
    check("ports: [admin]", "ports: [admin], ready: {port: admin}");
    check("program: [cat]", "program: []");
    check("asks_authority: true", "asks_authority: it");
    check("process: {command", "process: {url: \"http://{{listen}}\", command");
    check("process: {command", "process: {headers: [\"a: b\"], command");
}

#[test]
fn listeners_of_all_built_in_variants_have_names_of_their_own() {
    let mut names = BTreeSet::new();
    for adapter in built_in_adapters() {
        for variant in adapter.variants() {
            for listener in adapter.make(variant).published("west") {
                assert!(names.insert(listener.name.clone()), "{}", listener.name);
            }
        }
    }
    assert!(names.contains("haproxy-http1") && names.contains("haproxy.h1-http1"), "{names:?}");
}

#[test]
fn a_right_file_has_no_faults_and_is_found() {
    assert_eq!(faults(GOOD), []);
    let adapter = Adapter::new(serde_saphyr::from_str(GOOD).unwrap());
    assert_eq!(adapter.availability(), Availability::Ready { version: "1.2".into() });
    let leg = Leg { network: 0, protocol: Protocol::GrpcUnary, tls: Tls::Plain };
    let refusal = adapter.make(&adapter.variants[0]).carries(&leg).unwrap_err();
    assert_eq!(refusal, "it does not carry grpc-unary");
    let without =
        Adapter::new(serde_saphyr::from_str(&GOOD.replace("[cat]", "[no-such]")).unwrap());
    let Availability::Missing { why, .. } = without.availability() else {
        panic!("its authority is not there");
    };
    assert_eq!(why, "no working program `no-such` was found");
}

#[test]
fn mistakes_have_a_place() {
    let check = |from: &str, to: &str, line: u64, what: &str| {
        assert!(GOOD.contains(from), "{from}");
        let faults = faults(&GOOD.replacen(from, to, 1));
        let found: Vec<_> = faults.iter().map(|f| (f.line, f.what.as_str())).collect();
        assert_eq!(found, [(line, what)], "{to}");
    };
    check("subject/1", "subject/2", 1, "this version reads `tollway.subject/1`");
    check(
        "name: mine",
        "name: Mine!",
        2,
        "the name of a subject has 1 to 40 lower-case letters, digits, `-` and `.`",
    );
    check("{{place}}", "{{plaice}}", 15, "unknown placeholder `plaice`; did you mean `place`?");
    check("{{place}}", "", 15, "nothing says where it listens: name {{listen}} or {{listen_port}}");
    check("{{place}}", "{{place", 15, "`{{` is never closed by `}}`");
    check(
        "files: {a:",
        "files: {../a:",
        16,
        "`../a` cannot be a file's name: no `/`, no dot first",
    );
    let ready = "ports: [admin], ready: {port: admn, path: /}";
    check("ports: [admin]", ready, 16, "unknown port `admn`; did you mean `admin`?");
    let ready = "ports: [admin], ready: {port: admin, path: ping}";
    check("ports: [admin]", ready, 16, "`ping` is no path: it begins with `/` and has no spaces");
    check("[http1]", "[http1, http1]", 13, "two deployments carry http1 with plain callers");
    check(
        "[http1]\n",
        "[http1]\n        caller_tls: [mtls]\n",
        13,
        "callers of a pair are plain: it stands beside them",
    );
    let unknown = "`asks_authority` goes with an `authority` of the file and an `app_side`";
    check(
        "authority: {program: [cat], process: {command: [\"{{program}}\", \"{{listen}}\"]}}\n",
        "",
        12,
        unknown,
    );
    let called = "no request goes to an authority: it has no `url` and no `headers`";
    check("process: {command", "process: {url: x, command", 7, called);
    check(
        "\"{{program}}\", \"{{listen}}\"]}}",
        "\"{{upstream}}\", \"{{listen}}\"]}}",
        7,
        "unknown placeholder `upstream`; expected one of dir, listen, listen_ip, listen_port, program, place",
    );
    check(
        "asks_authority: true",
        "asks_authority: false",
        15,
        "unknown placeholder `authority`; expected one of ca, certificate, certificate_and_key, dir, key, \
         listen, listen_ip, listen_port, own_id, own_name, peer_id, peer_name, program, upstream, \
         upstream_ip, upstream_port, place",
    );
}
