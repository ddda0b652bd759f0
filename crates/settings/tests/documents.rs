//! What the repository has of settings, the schemas in `schema/` and the table in
//! `docs/guide/configure.md`, is made of their list. `UPDATE_DOCS=1` writes both.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tollway_settings::{Flags, PARTS, PartEntry, Setting, SettingsError, Sidecar, schema_text};

fn in_repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn updates_docs() -> bool {
    std::env::var_os("UPDATE_DOCS").is_some()
}

#[test]
fn the_guide_lists_every_setting() {
    let path = in_repository("docs/guide/configure.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once("<!-- settings: begin -->\n").unwrap();
    let (table, after) = rest.split_once("<!-- settings: end -->").unwrap();
    let wanted = settings_table();
    if updates_docs() {
        let page =
            format!("{before}<!-- settings: begin -->\n{wanted}<!-- settings: end -->{after}");
        return std::fs::write(path, page).unwrap();
    }
    assert!(table == wanted, "docs/guide/configure.md is out of date: run `cargo xtask codegen`");
}

#[test]
fn the_schemas_of_the_repository_are_those_of_the_settings() {
    for part in PARTS {
        let name = format!("schema/tollway-{}.schema.json", part.name);
        let wanted = schema_text(part);
        if updates_docs() {
            std::fs::write(in_repository(&name), &wanted).unwrap();
        }
        let found = std::fs::read_to_string(in_repository(&name)).unwrap_or_default();
        assert!(found == wanted, "{name} is out of date: run `cargo xtask codegen`");
    }
}

/// What a file has is refused by the schema where the part refuses it, and taken where it does.
#[test]
fn schema_and_part_agree_on_files() {
    let sidecar = PARTS.iter().find(|part| part.name == "sidecar").unwrap();
    let schema = serde_json::from_str(&schema_text(sidecar)).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    for (text, valid) in [
        ("http_listen: 127.0.0.1:0", true),
        ("http_listen: '[::1]:80'", true),
        ("http_listen: localhost", false),
        ("http_lisen: 127.0.0.1:0", false),
        ("app_port: 8080", true),
        ("app_port: 80800", false),
        ("app_address: 127.0.0.1", true),
        ("app_address: '::1'", true),
        ("app_address: localhost", false),
        ("app_protocol: grpc", true),
        ("app_protocol: htp", false),
        ("app_max_concurrency: 1", true),
        ("app_max_concurrency: 0", false),
        ("app_health_threshold: 0", false),
        ("app_health_threshold: 5000000000", false),
        ("app_health_check_path: healthz", false),
        ("enable_app_health_check: true", true),
        ("enable_app_health_check: 1", false),
        ("threads: many", false),
        ("upstreams: ['5432=db', '1=b.c.d']", true),
        ("upstreams: 5432=db", false),
        ("upstreams: [db]", false),
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
        ("trace_endpoint: 'ftp://127.0.0.1:4317'", false),
        ("log_format: json", true),
        ("log_format: xml", false),
    ] {
        let document: serde_json::Value = serde_saphyr::from_str(text).unwrap();
        let message: Vec<String> =
            validator.iter_errors(&document).map(|error| error.to_string()).collect();
        assert_eq!(message.is_empty(), valid, "the schema on {text}: {message:?}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let survey = tollway_settings::survey::<Sidecar>(&Flags::default(), Some(file.path()));
        assert_eq!(survey.is_ok(), valid, "the part on {text}: {:?}", survey.err());
    }
}

/// The defaults and examples fit the schema, and every setting is described.
#[test]
fn a_schema_describes_every_setting_and_its_default() {
    for part in PARTS {
        let schema: serde_json::Value = serde_json::from_str(&schema_text(part)).unwrap();
        let properties = schema["properties"].as_object().unwrap();
        let settings = (part.settings)();
        assert_eq!(properties.len(), settings.len(), "{}", part.name);
        for setting in settings {
            let (key, property) = (setting.key, &properties[setting.key]);
            assert!(property["description"].as_str().unwrap().len() > 30, "{}: {key}", part.name);
            let validator = jsonschema::validator_for(property).unwrap();
            let default = property.get("default");
            assert!(default.is_none_or(|value| validator.is_valid(value)), "{}: {key}", part.name);
            for text in setting.default.into_iter().chain([setting.example]) {
                assert_eq!(setting.check(text), Ok(()), "{}: {key}: {text}", part.name);
            }
            assert!(default.is_some() == setting.default.is_some(), "{}: {key}", part.name);
        }
    }
}

/// An operator reads and writes the same settings as JSON.
#[test]
fn settings_are_serdes_types() {
    let json = serde_json::json!({
        "app_id": "orders", "app_port": 8080, "enable_app_health_check": true,
        "upstreams": ["5432=db.shop.east"], "limits": { "head_ms": 5000 },
        "trace_endpoint": "http://127.0.0.1:4317", "trace_ratio": 0.5,
    });
    let sidecar: Sidecar = serde_json::from_value(json).unwrap();
    assert_eq!((sidecar.app_port, sidecar.upstreams[0].port), (Some(8080), 5432));
    let (limits, timeouts) = sidecar.member.bounds();
    assert_eq!((limits.connections, timeouts.head.as_millis()), (100_000, 5000));
    let written = serde_json::to_value(&sidecar).unwrap();
    assert_eq!(written["app_port"], 8080);
    assert_eq!(written["upstreams"], serde_json::json!(["5432=db.shop.east"]));
    assert_eq!(written["http_listen"], "127.0.0.1:3500");
    assert_eq!(serde_json::from_value::<Sidecar>(written).unwrap(), sidecar);
    let refused = serde_json::from_value::<Sidecar>(serde_json::json!({ "app_ip": 7 }));
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("did you mean `app_id`?"), "{message}");
    let missing = serde_json::from_value::<Sidecar>(serde_json::json!({}));
    assert!(missing.unwrap_err().to_string().contains("`app_id` must be given"));
    let empty = tollway_settings::merge::<Sidecar>(&Flags::default(), None);
    assert!(matches!(empty, Err(SettingsError::Missing(_))));
}

/// Every port that a part opens has a row that states who may connect there.
#[test]
fn the_page_of_security_lists_every_port() {
    let page = std::fs::read_to_string(in_repository("docs/security.md")).unwrap();
    let rows = tollway_testkit::table(&page, "port", 2, ["process"]);
    let is_of = |part: &str, process: &str| match process {
        "sidecar" | "the app" => matches!(part, "run" | "sidecar"),
        "control plane" => part == "control",
        "all" => true,
        other => part == other,
    };
    let mut written = BTreeSet::new();
    for (keys, [process]) in &rows {
        for flag in keys[1].split(", ").filter_map(|word| word.trim_matches('`').strip_prefix("--"))
        {
            let has_flag = |part: &&PartEntry| {
                let settings = (part.settings)();
                is_of(part.name, process) && settings.iter().any(|s| s.flag == flag)
            };
            let before = written.len();
            written.extend(PARTS.iter().filter(has_flag).map(|part| (part.name, flag)));
            assert!(
                written.len() > before,
                "{process}: --{flag} is no setting of it, or twice there"
            );
        }
    }
    let opens_port = |setting: &Setting| {
        setting.key.contains("listen")
            || setting.key.ends_with("_port")
            || setting.key == "upstreams"
    };
    for PartEntry { name, settings, .. } in PARTS {
        for setting in settings().iter().filter(|setting| opens_port(setting)) {
            let flag = setting.flag;
            assert!(
                written.contains(&(name, flag)),
                "docs/security.md has no row for {name} --{flag}"
            );
        }
    }
}

/// One row a setting; parts that have the same share it.
fn settings_table() -> String {
    let mut rows: Vec<(&str, Vec<&str>, String)> = Vec::new();
    for PartEntry { name, settings, .. } in PARTS {
        for setting in settings() {
            let rest = row_of(&setting);
            match rows.iter_mut().find(|row| row.0 == setting.key && row.2 == rest) {
                Some(row) => row.1.push(name),
                None => rows.push((setting.key, vec![name], rest)),
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

fn row_of(setting: &Setting) -> String {
    format!(
        "{} | {} | {} | {} |",
        setting.value_form().replace('|', ", "),
        setting.default.map(|text| format!("`{text}`")).unwrap_or_default(),
        if setting.is_live { "yes" } else { "" },
        setting.help.replace('|', "\\|"),
    )
}
