use std::path::Path;

use tollway_settings::{Changes, Control, Front, Gateway, Listing, Run, Sidecar};

use super::*;

fn given(text: &str, flags: &[&str]) -> Result<Given<Sidecar>, SettingsError> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("part.yaml");
    std::fs::write(&file, text).unwrap();
    read_with(&file, flags)
}

fn read_with<P: Part>(file: &Path, flags: &[&str]) -> Result<Given<P>, SettingsError> {
    let mut options: Vec<OsString> = flags.iter().map(OsString::from).collect();
    options.extend(["--config".into(), file.into()]);
    parse_options::<PartArgs<P>>(P::NAME, &options).unwrap().survey()?.complete()
}

fn value(given: &Given<Sidecar>, key: &str) -> (Vec<String>, Origin) {
    let value = given.listing.get(key).unwrap();
    (value.values.clone(), value.origin.clone())
}

fn values(listing: &Listing) -> Vec<(&str, &[String])> {
    listing.list.iter().map(|one| (one.setting.key, one.values.as_slice())).collect()
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
    let given = given(text, &["--threads=4", "--upstream", "3=c"]).unwrap();
    let one = |text: &str| vec![text.to_owned()];
    assert_eq!(value(&given, "app_id"), (one("orders"), Origin::File { line: 1 }));
    assert_eq!(value(&given, "threads"), (one("4"), Origin::Flag));
    assert_eq!(value(&given, "request_timeout_ms"), (one("7"), Origin::File { line: 3 }));
    assert_eq!(value(&given, "upstreams"), (one("3=c"), Origin::Flag), "a list is one value");
    assert_eq!(value(&given, "connect_timeout_ms"), (one("5000"), Origin::Default));
    assert_eq!(value(&given, "advertise"), (vec![], Origin::Unset));
    let plane = &given.settings.member.plane;
    assert_eq!((plane.threads, plane.request_timeout_ms.0.as_millis()), (4, 7));
}

#[test]
fn all_mistakes_of_a_file_are_reported_with_their_positions() {
    let text = "app_id: orders\nhttp_lisen: 127.0.0.1:0\nthreads: many\napp_protocol: htp\n\
                upstreams: 5432=db\nadvertise:\nconfig: other.yaml\nnamespace: [a, b]\n\
                log_format: jsn\nenable_app_health_check: yess\napp_max_concurrency: 0\n\
                app_health_threshold: 0\nadmin_listen: {a: 1}\n";
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
            ":9:13: unknown value of `log_format`: `jsn`; did you mean `json`?",
            ":10:26: `enable_app_health_check` is true or false, not `yess`",
            ":11:22: `0` is no value of `app_max_concurrency` (COUNT): 0 is not in 1..=1000000",
            ":12:23: `0` is no value of `app_health_threshold` (COUNT): 0 is less than 1",
            ":13:15: `admin_listen` takes one value, not a section",
        ]
    );
    let Err(error) = given("app_id: a\nthreads: x\n", &["--threads", "2"]) else {
        panic!("the file is checked where a flag wins")
    };
    assert!(error.to_string().contains(":2:10: "), "{error}");
}

#[test]
fn printed_settings_can_be_given_back() {
    let text = "app_id: 007\nnamespace: 'no'\nhttp_listen: \"[::1]:0\"\nupstreams: [1=a, 2=b.c]\n\
                token_file: /run/a b#c\nlog_level: info,tollway_proxy=debug\n\
                limits:\n  head_ms: 5000\n  hops: 9\n";
    let twice = ["--limit", "hops=9", "--limit", "head_ms=5000", "--limit", "hops=10"];
    for flags in [["--drain-timeout-ms", "5"].as_slice(), &twice] {
        let first = given(text, flags).unwrap();
        let second = given(&first.listing.to_yaml(), &[]).unwrap();
        assert_eq!(values(&first.listing), values(&second.listing));
        assert_eq!(first.settings, second.settings);
    }
    let first = given(text, &["--drain-timeout-ms", "5"]).unwrap().listing.to_yaml();
    assert!(first.contains("# from the command line"), "{first}");
    assert!(first.contains("limits: {head_ms: 5000, hops: 9}"), "{first}");
    assert!(first.contains("part.yaml:4"), "{first}");
}

#[test]
fn what_a_file_gives_need_not_be_typed() {
    assert!(given("app_id: orders\n", &[]).is_ok());
    let Err(SettingsError::Missing(missing)) = given("threads: 1\n", &[]) else { panic!("no app") };
    let error = missing_flags::<Sidecar>(&missing).to_string();
    assert!(error.contains("not provided:\n  --app-id <ID>\n"), "{error}");
    assert!(error.contains("Usage: tollway sidecar [OPTIONS] --app-id <ID>"), "{error}");
    let Err(error) = read_with::<Sidecar>(Path::new("/nowhere.yaml"), &["--app-id", "a"]) else {
        panic!("there is no such file")
    };
    assert_eq!(error.to_string(), "cannot read /nowhere.yaml");
}

#[test]
fn a_setting_that_needs_another_is_refused_without_it() {
    let missing = |text: &str, flags: &[&str]| match given(text, flags) {
        Ok(_) => Vec::new(),
        Err(SettingsError::Missing(missing)) => missing.iter().map(|one| one.key).collect(),
        Err(error) => panic!("{error}"),
    };
    let (ratio, endpoint) = ("trace_ratio: 0.5\n", "trace_endpoint: 'http://127.0.0.1:4317'\n");
    assert_eq!(missing(&format!("app_id: a\n{ratio}"), &[]), ["trace_endpoint"]);
    assert_eq!(missing(ratio, &[]), ["app_id", "trace_endpoint"]);
    assert_eq!(missing(&format!("app_id: a\n{ratio}{endpoint}"), &[]), [""; 0]);
    assert_eq!(missing(&format!("app_id: a\n{endpoint}"), &["--trace-ratio", "1"]), [""; 0]);
}

#[test]
fn only_live_settings_change_and_the_others_are_named() {
    let mut running = given("app_id: a\nthreads: 1\nidle_timeout_ms: 5\n", &[]).unwrap();
    let wanted = given("app_id: a\nthreads: 2\nidle_timeout_ms: 6\n", &[]).unwrap();
    let changes = running.changes(&wanted);
    assert_eq!(
        (changes.live.as_slice(), changes.restart.as_slice()),
        (["idle_timeout_ms"].as_slice(), ["threads"].as_slice())
    );
    running.adopt(&wanted, &changes);
    assert_eq!(value(&running, "threads").0, ["1"]);
    assert_eq!(value(&running, "idle_timeout_ms").0, ["6"]);
    let plane = &running.settings.member.plane;
    assert_eq!((plane.threads, plane.idle_timeout_ms.0.as_millis()), (1, 6));
}

/// Each setting of each part, given by its flag and by a file.
#[test]
fn a_setting_is_the_same_by_flag_and_by_file() {
    let count = same_by_flag_and_file::<Run>()
        + same_by_flag_and_file::<Control>()
        + same_by_flag_and_file::<Sidecar>()
        + same_by_flag_and_file::<Gateway>()
        + same_by_flag_and_file::<Front>();
    let listed: usize = PARTS.iter().map(|part| (part.settings)().len()).sum();
    assert_eq!(count, listed);
}

fn same_by_flag_and_file<P: Part>() -> usize {
    let directory = tempfile::tempdir().unwrap();
    let settings = P::settings();
    let of_key = |key: &str| settings.iter().find(|setting| setting.key == key).unwrap();
    for setting in &settings {
        // With those that it needs, and those that a start needs.
        let others = settings.iter().filter(|other| other.must_be_given());
        let mut given: Vec<&Setting> = others.collect();
        let mut needed = vec![setting];
        while let Some(next) = needed.pop() {
            if !given.iter().any(|other| other.key == next.key) {
                given.push(next);
                needed.extend(next.needs.iter().map(|key| of_key(key)));
            }
        }
        let is_list = |one: &Setting| one.kind == Kind::List;
        let lines = given.iter().map(|one| match is_list(one) {
            true => format!("{}: ['{}']\n", one.key, one.example),
            false => format!("{}: '{}'\n", one.key, one.example),
        });
        let file = directory.path().join(format!("{}.yaml", setting.key));
        std::fs::write(&file, lines.collect::<String>()).unwrap();
        let flags: Vec<OsString> = given
            .iter()
            .map(|one| match one.kind {
                Kind::Switch => format!("--{}", one.flag).into(),
                Kind::One | Kind::Optional | Kind::List => {
                    format!("--{}={}", one.flag, one.example).into()
                }
            })
            .collect();
        let by_file: Given<P> = read_with(&file, &[]).unwrap();
        let by_flag = parse_options::<PartArgs<P>>(P::NAME, &flags).unwrap();
        let by_flag = by_flag.survey().unwrap().complete().unwrap();
        assert_eq!(by_flag.changes(&by_file), Changes::default(), "{} {}", P::NAME, setting.key);
        let is_example = |given: &Given<P>| given.listing.values(setting.key) == [setting.example];
        assert!(is_example(&by_flag) && is_example(&by_file), "{} {}", P::NAME, setting.key);
        let origin = |given: &Given<P>| given.listing.get(setting.key).unwrap().origin.clone();
        assert_eq!(origin(&by_flag), Origin::Flag);
        assert!(matches!(origin(&by_file), Origin::File { .. }));
    }
    settings.len()
}

/// What clap checks of a command only when it is built.
#[test]
fn the_commands_of_parts_are_consistent() {
    fn check<P: Part>() {
        PartArgs::<P>::augment_args(Command::new(P::NAME)).debug_assert();
    }
    check::<Run>();
    check::<Control>();
    check::<Sidecar>();
    check::<Gateway>();
    check::<Front>();
}
