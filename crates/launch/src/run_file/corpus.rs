//! Run files as people have them, read here and by Dapr's own command line: `tests/corpus/dapr-files`
//! has the files and what Dapr found in them, as the program `daprfiles` wrote it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tollway_config::go::read_file;

use super::app_plan::{Around, plan};
use super::format::{self, Section};

/// Files that are read differently, and why.
const OTHER_FILES: &[(&str, &str)] = &[
    ("port-as-text", "a port in quotes is one here, too"),
    ("found-06", "Dapr takes an empty program, and fails when it starts it"),
    ("found-19", "Dapr takes one port for app and sidecar, and the sidecar does not start"),
];
/// Folders that files of the corpus name.
const FOLDERS: [&str; 5] = ["web", "stock", "api", "resources", "worker"];

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus/dapr-files")
}

/// The value of an app, or else that of all.
fn text<'a>(app: &'a Section, common: &'a Section, key: &str) -> &'a str {
    app.one(key).or_else(|| common.one(key)).map_or("", |(text, _)| text)
}

fn apps(file: &Path) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(folder.path()).unwrap();
    FOLDERS.iter().for_each(|name| std::fs::create_dir(root.join(name)).unwrap());
    let around = Around { source: "dapr.yaml", folder: &root, home: None };
    let read = format::read(&read_file(file).unwrap(), "dapr.yaml");
    let read = read.and_then(|file| plan(&file, &around).map(|plans| (file, plans)));
    let (read, plans) = match read {
        Ok(read) => read,
        Err(mistakes) => {
            println!("{}: {mistakes}", file.display());
            return json!({ "refused": true });
        }
    };
    let app = |(app, plan): (&Section, &super::AppPlan)| {
        let text = |key: &str| text(app, &read.common, key);
        let number = |key: &str| text(key).parse::<i64>().unwrap_or_default();
        let or = |key: &str, usual: &str| match text(key) {
            "" => usual.to_owned(),
            text => text.to_owned(),
        };
        let env = plan.env.iter().map(|(name, value)| (name.clone(), value.clone().into()));
        json!({
            "appID": plan.app_id, "appPort": plan.app_port.unwrap_or_default(),
            "command": plan.command, "env": Value::Object(env.collect()),
            "appProtocol": text("appProtocol"), "daprHTTPPort": number("daprHTTPPort"),
            "daprGRPCPort": number("daprGRPCPort"), "metricsPort": number("metricsPort"),
            "logLevel": text("logLevel"), "enableApiLogging": text("enableApiLogging") == "true",
            "appMaxConcurrency": number("appMaxConcurrency"),
            "appHealthCheckPath": text("appHealthCheckPath"),
            "enableAppHealthCheck": text("enableAppHealthCheck") == "true",
            "maxBodySize": text("maxBodySize"),
            "appLogDestination": or("appLogDestination", "fileAndConsole"),
            "daprdLogDestination": or("daprdLogDestination", "file"),
        })
    };
    json!({ "apps": read.apps.iter().zip(&plans).map(app).collect::<Value>() })
}

#[test]
fn run_files_are_read_as_dapr_run_reads_them() {
    let expected = std::fs::read_to_string(corpus().join("expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let expected = expected["run-files"].as_object().unwrap();
    let files = std::fs::read_dir(corpus().join("run-files")).unwrap().count();
    assert!(files >= 30 && files == expected.len(), "{files} files");
    let mut differing = BTreeSet::new();
    for (name, expected) in expected {
        let found = apps(&corpus().join("run-files").join(format!("{name}.yaml")));
        if found != *expected {
            println!("{name}: Dapr found {expected:#}\nand here it is {found:#}");
            differing.insert(name.as_str());
        }
    }
    let known: BTreeSet<_> = OTHER_FILES.iter().map(|(name, _)| *name).collect();
    assert_eq!(differing, known);
}
