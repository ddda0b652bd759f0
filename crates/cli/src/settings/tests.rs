use std::path::Path;

use clap::CommandFactory;

use super::differences::keys;
use super::*;
use crate::args::{Arguments, live_settings};

fn given(text: &str, flags: &[&str]) -> Result<(Arguments, Settings), SettingsError> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("part.yaml");
    std::fs::write(&file, text).unwrap();
    read_with(&file, flags)
}

fn read_with(file: &Path, flags: &[&str]) -> Result<(Arguments, Settings), SettingsError> {
    let mut argv: Vec<OsString> = vec!["tollway".into(), "sidecar".into()];
    argv.extend(flags.iter().map(OsString::from));
    argv.extend(["--config".into(), file.into()]);
    let program = Program { command: Arguments::command, live: live_settings };
    let (invocation, _) = invocation::<Arguments>(argv, program)?;
    Ok((invocation.arguments, invocation.given.settings))
}

fn value(settings: &Settings, key: &str) -> (Vec<String>, Origin) {
    let setting = settings.get(key).unwrap();
    (setting.values.clone(), setting.origin.clone())
}

/// What is refused, each line without the path of the file.
fn refusals(text: &str) -> Vec<String> {
    let Err(error) = given(text, &[]) else { panic!("{text} is taken") };
    let name = |line: &str| line.split_once("part.yaml").map(|(_, rest)| rest.to_owned());
    error.to_string().lines().map(|line| name(line).unwrap_or(line.to_owned())).collect()
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
    let text = "app_id: orders\nthreads: 3\nrequest_timeout_ms: 7\nupstreams: [1=a, 2=b]\n";
    let (_, settings) = given(text, &["--threads=4", "--upstream", "3=c"]).unwrap();
    let one = |text: &str| vec![text.to_owned()];
    assert_eq!(value(&settings, "app_id"), (one("orders"), Origin::File { line: 1 }));
    assert_eq!(value(&settings, "threads"), (one("4"), Origin::Flag));
    assert_eq!(value(&settings, "request_timeout_ms"), (one("7"), Origin::File { line: 3 }));
    assert_eq!(value(&settings, "upstreams"), (one("3=c"), Origin::Flag), "a list is one value");
    assert_eq!(value(&settings, "connect_timeout_ms"), (one("5000"), Origin::Default));
    assert_eq!(value(&settings, "advertise"), (vec![], Origin::Unset));
}

#[test]
fn all_mistakes_of_a_file_are_reported_with_their_positions() {
    let text = "app_id: orders\nhttp_lisen: 127.0.0.1:0\nthreads: many\napp_protocol: htp\n\
                upstreams: 5432=db\nadvertise:\nconfig: other.yaml\nnamespace: [a, b]\n";
    assert_eq!(
        refusals(text),
        [
            ":2:1: unknown setting `http_lisen`; did you mean `http_listen`?",
            ":3:10: `many` is no value of `threads` (COUNT): invalid digit found in string",
            ":4:15: `htp` is no value of `app_protocol` (PROTOCOL): \
             `htp` is not an app protocol; use http, https, h2c, grpc, grpcs or tcp",
            ":5:12: `upstreams` is a list; write `upstreams: [5432=db]`",
            ":6:1: `advertise` has no value; give one or remove it",
            ":7:1: unknown setting `config`; `tollway sidecar --print-config` names all there are",
            ":8:12: `namespace` takes one value, not a list",
        ]
    );
}

#[test]
fn printed_settings_can_be_given_back() {
    let text = "app_id: 007\nnamespace: 'no'\nhttp_listen: \"[::1]:0\"\nupstreams: [1=a, 2=b.c]\n\
                token_file: /run/a b#c\nlog_level: info,tollway_proxy=debug\n\
                limits:\n  head_ms: 5000\n  hops: 9\n";
    let values = |settings: &Settings| -> Vec<(String, Vec<String>)> {
        settings.list.iter().map(|s| (s.key.clone(), s.values.clone())).collect()
    };
    let twice = ["--limit", "hops=9", "--limit", "head_ms=5000", "--limit", "hops=10"];
    for flags in [["--drain-timeout-ms", "5"].as_slice(), &twice] {
        let (_, first) = given(text, flags).unwrap();
        let (_, second) = given(&first.to_yaml(), &[]).unwrap();
        assert_eq!(values(&first), values(&second));
    }
    let (_, first) = given(text, &["--drain-timeout-ms", "5"]).unwrap();
    assert!(first.to_yaml().contains("# from the command line"), "{}", first.to_yaml());
    assert!(first.to_yaml().contains("limits: {head_ms: 5000, hops: 9}"), "{}", first.to_yaml());
    assert!(first.to_yaml().contains("part.yaml:4"), "{}", first.to_yaml());
}

#[test]
fn what_a_file_gives_need_not_be_typed() {
    assert!(given("app_id: orders\n", &[]).is_ok());
    let Err(SettingsError::Usage(error)) = given("threads: 1\n", &[]) else { panic!("no app") };
    assert!(error.to_string().contains("--app-id"), "{error}");
    let Err(error) = read_with(Path::new("/nowhere.yaml"), &["--app-id", "a"]) else {
        panic!("there is no such file")
    };
    assert_eq!(error.to_string(), "cannot read /nowhere.yaml");
}

#[test]
fn only_live_settings_change_and_the_others_are_named() {
    let (_, running) = given("app_id: a\nthreads: 1\nidle_timeout_ms: 5\n", &[]).unwrap();
    let (_, wanted) = given("app_id: a\nthreads: 2\nidle_timeout_ms: 6\n", &[]).unwrap();
    let changes = running.changes(&wanted, &["idle_timeout_ms"]);
    assert_eq!(
        (keys(&changes.live), keys(&changes.restart)),
        ("idle_timeout_ms".into(), "threads".into())
    );
    let then = running.with(&wanted, &changes);
    assert_eq!(value(&then, "threads").0, ["1"]);
    assert_eq!(value(&then, "idle_timeout_ms").0, ["6"]);
}

#[test]
fn settings_said_to_be_live_exist() {
    for (part, command) in parts() {
        let known: Vec<String> = settings_of(&command).map(merge::key_of).collect();
        for key in live_settings(&part) {
            assert!(known.iter().any(|name| name == key), "{part}: {key}");
        }
    }
}

/// `UPDATE_DOCS=1` writes the table anew.
#[test]
fn the_guide_lists_every_setting() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/configure.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (before, rest) = page.split_once("<!-- settings: begin -->\n").unwrap();
    let (table, after) = rest.split_once("<!-- settings: end -->").unwrap();
    let wanted = settings_table();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let page =
            format!("{before}<!-- settings: begin -->\n{wanted}<!-- settings: end -->{after}");
        return std::fs::write(path, page).unwrap();
    }
    assert_eq!(table, wanted, "run `UPDATE_DOCS=1 cargo test -p tollway the_guide_lists`");
}

/// `UPDATE_DOCS=1` writes them anew.
#[test]
fn the_schemas_of_the_repository_are_those_of_the_options() {
    for (part, command) in parts() {
        let name = format!("schema/tollway-{part}.schema.json");
        let path = format!("{}/../../{name}", env!("CARGO_MANIFEST_DIR"));
        let wanted = schema::of(&command, &live_settings(&part));
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == wanted, "{name} is out of date: run `cargo xtask codegen`");
    }
}

/// What a file says is refused by the schema where the part refuses it, and taken where it does.
#[test]
fn schema_and_part_agree_on_files() {
    let (_, sidecar) = parts().into_iter().find(|(part, _)| part == "sidecar").unwrap();
    let schema = serde_json::from_str(&schema::of(&sidecar, &live_settings("sidecar"))).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    for (text, valid) in [
        ("http_listen: 127.0.0.1:0", true),
        ("http_listen: '[::1]:80'", true),
        ("http_listen: localhost", false),
        ("http_lisen: 127.0.0.1:0", false),
        ("app_port: 8080", true),
        ("app_port: 80800", false),
        ("app_protocol: grpc", true),
        ("app_protocol: htp", false),
        ("threads: many", false),
        ("upstreams: ['5432=db', '1=b.c.d']", true),
        ("upstreams: 5432=db", false),
        ("upstreams: {5432: db}", false),
        ("limits: {head_ms: 5000, app_connections: 7}", true),
        ("limits: [head_ms=5000]", true),
        ("limits: {hed_ms: 5000}", false),
        ("limits: [hed_ms=5000]", false),
        ("limits: {head_ms: soon}", false),
        ("limits: {head_ms: 0}", false),
        ("limits: 7", false),
        ("access_log: '-'", true),
        ("namespace: 007", true),
        ("namespace: [a]", false),
        ("namespace:", false),
        ("{trace_endpoint: 'http://127.0.0.1:4317', trace_ratio: 0.5}", true),
        ("{trace_endpoint: 'http://127.0.0.1:4317', trace_ratio: 1.5}", false),
        ("log_format: json", true),
        ("log_format: xml", false),
    ] {
        let document: serde_json::Value = serde_saphyr::from_str(text).unwrap();
        let message: Vec<String> =
            validator.iter_errors(&document).map(|error| error.to_string()).collect();
        assert_eq!(message.is_empty(), valid, "the schema on {text}: {message:?}");
        let taken = given(text, &["--app-id", "a"]);
        assert_eq!(taken.is_ok(), valid, "the part on {text}");
    }
}

/// The defaults fit the schema, and every setting is described.
#[test]
fn a_schema_describes_every_setting_and_its_default() {
    for (part, command) in parts() {
        let schema: serde_json::Value =
            serde_json::from_str(&schema::of(&command, &live_settings(&part))).unwrap();
        let properties = schema["properties"].as_object().unwrap();
        assert_eq!(properties.len(), settings_of(&command).count(), "{part}");
        for (key, property) in properties {
            assert!(property["description"].as_str().unwrap().len() > 30, "{part}: {key}");
            let validator = jsonschema::validator_for(property).unwrap();
            let default = property.get("default");
            assert!(default.is_none_or(|value| validator.is_valid(value)), "{part}: {key}");
        }
    }
}

/// Commands with a settings file.
fn parts() -> Vec<(String, clap::Command)> {
    let mut all = Arguments::command();
    // Resolves what is inherited, so that defaults and help are as shown.
    all.build();
    let parts = all.get_subcommands().filter(|command| merge::has_settings(command));
    parts.map(|command| (command.get_name().to_owned(), command.clone())).collect()
}

fn settings_of(command: &clap::Command) -> impl Iterator<Item = &clap::Arg> {
    command.get_arguments().filter(|arg| merge::is_setting(arg))
}

/// One row a setting; parts that have the same share it.
fn settings_table() -> String {
    let mut rows: Vec<(String, Vec<String>, String)> = Vec::new();
    for (part, command) in parts() {
        for arg in settings_of(&command) {
            let key = merge::key_of(arg);
            let default = arg.get_default_values().iter().map(|value| value.to_string_lossy());
            let default: Vec<String> = default.map(|value| format!("`{value}`")).collect();
            let live = live_settings(&part).contains(&key.as_str());
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let rest = format!(
                "{} | {} | {} | {} |",
                merge::form(arg).replace('|', ", "),
                default.join(", "),
                if live { "yes" } else { "" },
                help.replace('|', "\\|").replace('\n', " "),
            );
            match rows.iter_mut().find(|row| row.0 == key && row.2 == rest) {
                Some(row) => row.1.push(part.clone()),
                None => rows.push((key, vec![part.clone()], rest)),
            }
        }
    }
    let head =
        "| setting | parts | value | default | live | meaning |\n|---|---|---|---|---|---|\n";
    let rows = rows
        .iter()
        .map(|(key, parts, rest)| format!("| `{key}` | {} | {rest}\n", parts.join(", ")));
    head.to_owned() + &rows.collect::<String>()
}
