//! Words that the glossary bans from the names of types and files, since each has a standard term.
//!
//! Names that still have one are listed in `xtask/old-names.txt`. The list only gets shorter: a name
//! that is gone from the code must leave it, and nothing is added.

use std::collections::BTreeSet;
use std::path::Path;

use crate::sources::RustFile;

/// Whole words of a name, in lower case.
const BANNED: &[&str] = &[
    "beside", "door", "doors", "hear", "inside", "keeper", "kept", "life", "look", "outside",
    "place", "places", "room", "say", "says", "shed", "standing", "tell", "told", "untaken", "way",
    "ways", "whoever",
];

/// The list of names that are still to be replaced, from the root.
pub(crate) const LIST: &str = "xtask/old-names.txt";

/// Names with a banned word that the list does not have, and names of the list that are gone.
pub(crate) fn breaches(root: &Path, files: &[RustFile], list: &str) -> Vec<String> {
    let listed: BTreeSet<&str> = list
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let mut found = BTreeSet::new();
    let mut breaches = Vec::new();
    for file in files.iter().filter(|file| !file.is_generated()) {
        let path = file.path.strip_prefix(root).unwrap_or(&file.path);
        for name in names(path, &file.code) {
            let Some(word) = banned_word(&name) else { continue };
            if !listed.contains(name.as_str()) {
                breaches.push(format!(
                    "{}: `{name}` has the word `{word}`: ARCHITECTURE.md's glossary has the term",
                    path.display()
                ));
            }
            found.insert(name);
        }
    }
    let gone = listed.iter().filter(|name| !found.contains(**name));
    breaches.extend(gone.map(|name| format!("{LIST}: no `{name}` is left: remove the line")));
    breaches
}

/// The file and its folders, and the types that it defines.
fn names(path: &Path, code: &str) -> Vec<String> {
    let parts = path.with_extension("");
    let parts = parts.iter().filter_map(|part| part.to_str()).map(str::to_owned);
    parts.chain(code.lines().filter_map(type_defined)).collect()
}

/// The type whose definition begins on this line.
fn type_defined(line: &str) -> Option<String> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    if !matches!(words.next()?, "struct" | "enum" | "trait" | "type" | "union") {
        return None;
    }
    let name: String =
        words.next()?.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    name.starts_with(char::is_uppercase).then_some(name)
}

fn banned_word(name: &str) -> Option<&'static str> {
    let words = words(name);
    BANNED.iter().copied().find(|banned| words.iter().any(|word| word == banned))
}

/// The words of `BuiltOnce` and of `built_once`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in name.chars() {
        if c == '_' || c == '-' {
            words.push(String::new());
            continue;
        }
        if c.is_uppercase() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.extend(c.to_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str, list: &str) -> Vec<String> {
        let file = RustFile::parse(Path::new("/r").join(path), text.to_owned());
        breaches(Path::new("/r"), &[file], list)
    }

    #[test]
    fn a_banned_word_is_found_in_types_and_files_and_only_whole() {
        let types = "pub(crate) struct DoorKind;\nenum LastPlace<T> {}\ntype Told = u8;\n";
        assert_eq!(check("a.rs", types, "").len(), 3);
        assert_eq!(check("crates/x/src/kept/mod.rs", "", "").len(), 1);
        assert_eq!(check("crates/x/src/log_room.rs", "", "").len(), 1);
        let fine =
            "struct Placement;\nstruct Gateway;\nstruct Tolled;\nlet door = 1;\n// struct Door\n";
        assert_eq!(check("gateway.rs", fine, ""), [""; 0]);
    }

    #[test]
    fn a_listed_name_is_let_pass_until_it_is_gone() {
        let list = "# Names that are still to be replaced.\nDoor\n";
        assert_eq!(check("a.rs", "struct Door;\n", list), [""; 0]);
        let gone = check("a.rs", "struct Listener;\n", list);
        assert_eq!(gone.len(), 1);
        assert!(gone[0].contains("no `Door` is left"), "{gone:?}");
    }
}
