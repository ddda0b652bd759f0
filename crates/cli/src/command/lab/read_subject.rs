//! Reads users' descriptions of subjects, every mistake with its place.

use std::path::PathBuf;

use anyhow::Result;
use tollway_lab::experiment::SubjectText;
use tollway_lab::subject::{Adapter, AdapterFile, Catalogue};

use tollway_config::Mistakes;
use tollway_config::yaml;

/// The program's own subjects and those of `files`, of which a later one replaces an earlier one
/// of the same name.
pub(super) fn catalogue(files: &[SubjectText]) -> Result<Catalogue> {
    let add = |known: Catalogue, file: &SubjectText| {
        Ok(known.with(Box::new(parse(&file.text, &file.source)?)))
    };
    files.iter().try_fold(Catalogue::built_in(), add)
}

/// The texts of files.
pub(super) fn read(files: &[PathBuf]) -> Result<Vec<SubjectText>> {
    let read = |path: &PathBuf| {
        Ok(SubjectText { source: path.display().to_string(), text: yaml::read_file(path)? })
    };
    files.iter().map(read).collect()
}

fn parse(text: &str, source: &str) -> Result<Adapter> {
    let file: AdapterFile = yaml::parse(text, source)?;
    let mistakes = file.check();
    if mistakes.is_empty() {
        return Ok(Adapter::new(file));
    }
    let mistakes = mistakes.into_iter().map(|mistake| mistake.within(source)).collect();
    Err(Mistakes(mistakes).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "schema: tollway.subject/1\nname: mine\npurpose: to see\nprogram: [sh]\n\
        get: {by_hand: \"write it\"}\nvariants:\n  - name: alone\n    purpose: one\n    deployments:\n      \
        - protocols: [http1]\n        app_side: {command: [x, \"{{listen}}\"]}\n";

    fn refusal(text: &str) -> String {
        let error = parse(text, "my.yaml").err().unwrap();
        match error.downcast_ref::<Mistakes>() {
            Some(Mistakes(mistakes)) => {
                mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
            }
            _ => error.to_string(),
        }
    }

    #[test]
    fn mistakes_have_a_place_and_a_hint() {
        assert!(parse(GOOD, "my.yaml").is_ok());
        let check = |from: &str, to: &str, message: &str| {
            assert!(GOOD.contains(from), "{from}");
            assert_eq!(refusal(&GOOD.replacen(from, to, 1)), message);
        };
        check(
            "purpose: one",
            "porpose: one",
            "my.yaml:8:5: unknown field `porpose`; did you mean `purpose`?",
        );
        check(
            "{{listen}}",
            "{{listn}}",
            "my.yaml:11:29: unknown placeholder `listn`; did you mean `listen`?",
        );
        check(
            "{{listen}}",
            "{{upstream}}",
            "my.yaml:11:29: nothing says where it listens: name {{listen}} or {{listen_port}}",
        );
    }

    #[test]
    fn a_file_adds_a_subject_or_replaces_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.yaml");
        let names = |text: &str| {
            std::fs::write(&path, text).unwrap();
            catalogue(&read(std::slice::from_ref(&path)).unwrap()).unwrap().names()
        };
        let built_in = Catalogue::built_in().names();
        assert_eq!(names(GOOD).len(), built_in.len() + 1);
        assert_eq!(names(&GOOD.replace("mine", "nginx")).len(), built_in.len());
    }
}
