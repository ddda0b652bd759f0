//! The settings of parts as a user gives them: by flag, by environment, in a file.

use std::process::Command;

use tollway_settings::{Kind, PARTS, PartEntry, Setting};
use tollway_testkit::TempDir;
use tollway_tests::program;

/// The output of a part that prints its settings, and its exit code.
fn printed(part: &PartEntry, flags: &[String], variable: Option<(&str, &str)>) -> (i32, String) {
    let mut command = Command::new(program());
    command.arg(part.name).args(flags).arg("--print-config").env_remove("TOLLWAY_LOG");
    let output = command.envs(variable).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

fn flag(setting: &Setting) -> String {
    match setting.kind {
        Kind::Switch => format!("--{}", setting.flag),
        Kind::One | Kind::Optional | Kind::List => {
            format!("--{}={}", setting.flag, setting.example)
        }
    }
}

/// The line of a setting, without where it comes from; and that.
fn line_of(text: &str, key: &str) -> (String, String) {
    let start = format!("{key}: ");
    let line = text.lines().find(|line| line.starts_with(&start)).unwrap_or_default();
    let (value, origin) = line.split_once(" # ").unwrap_or((line, ""));
    (value.trim().to_owned(), origin.to_owned())
}

/// Every setting that has a variable, in every part.
#[test]
fn a_setting_is_the_same_by_flag_by_variable_and_by_file() {
    let files = TempDir::new().unwrap();
    let mut found = 0;
    for part in PARTS {
        let settings = (part.settings)();
        let needed: Vec<String> =
            settings.iter().filter(|one| one.must_be_given()).map(flag).collect();
        for setting in &settings {
            let Some(variable) = setting.variable else { continue };
            found += 1;
            let (key, example) = (setting.key, setting.example);
            let by_flag = printed(part, &[&needed[..], &[flag(setting)]].concat(), None);
            let by_variable = printed(part, &needed, Some((variable, example)));
            let path = files.path().join(format!("{}-{key}.yaml", part.name));
            std::fs::write(&path, format!("{key}: '{example}'\n")).unwrap();
            let config = ["--config".to_owned(), path.to_str().unwrap().to_owned()];
            let with_file = [&needed[..], &config].concat();
            let by_file = printed(part, &with_file, None);
            for (code, text) in [&by_flag, &by_variable, &by_file] {
                assert_eq!(*code, 0, "{text}");
            }
            let line = |(_, text): &(i32, String)| line_of(text, key);
            assert!(line(&by_flag).0.starts_with(&format!("{key}: ")), "{by_flag:?}");
            assert_eq!(line(&by_flag).0, line(&by_variable).0);
            assert_eq!(line(&by_flag).0, line(&by_file).0);
            assert_eq!(line(&by_flag).1, "from the command line");
            assert_eq!(line(&by_variable).1, "from the environment");
            assert!(line(&by_file).1.ends_with(".yaml:1"), "{by_file:?}");
            // The variable wins over the file, the flag over both.
            let both = printed(part, &with_file, Some((variable, example)));
            assert_eq!(line(&both).1, "from the environment");
            let all = [&with_file[..], &[flag(setting)]].concat();
            let all = printed(part, &all, Some((variable, example)));
            assert_eq!(line(&all).1, "from the command line");
        }
    }
    assert!(found >= 4, "only {found} settings have a variable");
}

#[test]
fn what_is_missing_and_what_is_wrong_is_reported() {
    let files = TempDir::new().unwrap();
    let path = files.path().join("front.yaml");
    std::fs::write(&path, "listens: ['127.0.0.1:0']\ncerts: [a.pem]\n").unwrap();
    let front = PARTS.iter().find(|part| part.name == "front").unwrap();
    let config = ["--config".to_owned(), path.to_str().unwrap().to_owned()];
    let (code, text) = printed(front, &config, None);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("not provided:\n  --key <FILE>\n  --to <URL>\n"), "{text}");
    assert!(text.contains("Usage: tollway front [OPTIONS] --listen <IP:PORT>\n"), "{text}");
    std::fs::write(&path, "listen: 127.0.0.1:0\nthreads: x\n").unwrap();
    let (code, text) = printed(front, &config, None);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains(":1:1: unknown setting `listen`; did you mean `listens`?"), "{text}");
    assert!(text.contains(":2:10: `x` is no value of `threads`"), "{text}");
}

#[test]
fn a_part_prints_the_schema_of_its_file() {
    for part in PARTS {
        let output = Command::new(program()).args([part.name, "--print-schema"]).output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), tollway_settings::schema_text(part));
    }
}
