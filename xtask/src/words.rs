//! Words that the glossary bans, since each has a standard term: in names of types, files, folders
//! and functions, and in comments.

use std::path::Path;

use crate::sources::RustFile;

/// Whole words of the name of a type, a file or a folder, in lower case.
const BANNED: &[&str] = &[
    "beside", "door", "doors", "hear", "inside", "keeper", "kept", "life", "look", "outside",
    "place", "places", "room", "say", "says", "shed", "standing", "tell", "told", "untaken", "way",
    "ways", "whoever",
];

/// Whole words of the name of a function. Fewer than [`BANNED`]: `room` or `look` are verbs and
/// measures in functions (`has_room`, `look_up`).
const IN_FUNCTIONS: &[&str] = &[
    "anybody", "door", "doors", "hear", "hears", "keeper", "nobody", "say", "says", "shed",
    "somebody", "standing", "tell", "tells", "told", "untaken", "whoever",
];

/// Whole words of comments: programs as persons, and terms that the glossary replaces.
const IN_COMMENTS: &[&str] = &[
    "anew", "anybody", "door", "doors", "he", "him", "himself", "his", "nobody", "somebody",
    "tell", "tells", "told", "whoever", "whom", "whomever",
];

/// Names and comments with a banned word.
pub(crate) fn breaches(root: &Path, files: &[RustFile]) -> Vec<String> {
    let mut breaches = Vec::new();
    for file in files.iter().filter(|file| !file.is_generated()) {
        let path = file.path.strip_prefix(root).unwrap_or(&file.path);
        breaches.extend(names(path, &file.code).filter_map(|name| name_breach(path, &name)));
        // This file has to name the words.
        if path != Path::new("xtask/src/words.rs") {
            breaches.extend(line_breaches(path, &file.text));
        }
    }
    breaches
}

fn name_breach(path: &Path, name: &str) -> Option<String> {
    let word = words(name).find(|word| BANNED.contains(&word.as_str()))?;
    let path = path.display();
    Some(format!("{path}: `{name}` has the word `{word}`: ARCHITECTURE.md's glossary has the term"))
}

/// Banned words in comments and in names of functions, with the line of each.
fn line_breaches(path: &Path, text: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    for (line, number) in text.lines().map(str::trim_start).zip(1..) {
        let (kind, found) = match line.strip_prefix("//") {
            Some(comment) => ("comment", banned(&comment.to_lowercase(), IN_COMMENTS)),
            None => ("function's name", banned(function_defined(line), IN_FUNCTIONS)),
        };
        breaches.extend(found.into_iter().map(|word| {
            let path = path.display();
            format!("{path}:{number}: the {kind} has the word `{word}`: name what is meant")
        }));
    }
    breaches
}

/// The words of `text` that are in `list`, as often as they occur.
fn banned(text: &str, list: &'static [&'static str]) -> Vec<&'static str> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter_map(|word| list.iter().copied().find(|banned| *banned == word))
        .collect()
}

/// The file and its folders, and the types that it defines.
fn names(path: &Path, code: &str) -> impl Iterator<Item = String> {
    let parts = path.with_extension("");
    let parts: Vec<String> =
        parts.iter().filter_map(|part| part.to_str()).map(str::to_owned).collect();
    parts.into_iter().chain(code.lines().filter_map(type_defined))
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

/// The name of the function whose definition begins on this line; empty if none does.
fn function_defined(line: &str) -> &str {
    let Some(at) = line.find("fn ") else { return "" };
    let is_qualifier = |word: &str| {
        word.starts_with("pub") || matches!(word, "async" | "const" | "extern" | "unsafe" | "\"C\"")
    };
    if !line[..at].split_whitespace().all(is_qualifier) {
        return "";
    }
    line[at + 3..].split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// The words of `BuiltOnce` and of `built_once`.
fn words(name: &str) -> impl Iterator<Item = String> {
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
    words.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> RustFile {
        RustFile::parse(Path::new("/r").join(path), text.to_owned())
    }

    fn check(path: &str, text: &str) -> Vec<String> {
        breaches(Path::new("/r"), &[file(path, text)])
    }

    #[test]
    fn a_banned_word_is_found_in_types_and_files_and_only_whole() {
        let types = "pub(crate) struct DoorKind;\nenum LastPlace<T> {}\ntype Told = u8;\n";
        assert_eq!(check("a.rs", types).len(), 3);
        assert_eq!(check("crates/x/src/kept/mod.rs", "").len(), 1);
        assert_eq!(check("crates/x/src/log_room.rs", "").len(), 1);
        let fine = "struct Placement;\nstruct Gateway;\nstruct Tolled;\nlet door = 1;\n";
        assert_eq!(check("gateway.rs", fine), [""; 0]);
    }

    #[test]
    fn a_banned_word_is_found_in_functions_and_comments_with_its_line() {
        let text = "/// Nobody is told.\n\n    pub(crate) async fn tell_all() {}\n";
        let expected = [
            "a.rs:1: the comment has the word `nobody`: name what is meant",
            "a.rs:1: the comment has the word `told`: name what is meant",
            "a.rs:3: the function's name has the word `tell`: name what is meant",
        ];
        assert_eq!(check("a.rs", text), expected);
    }

    #[test]
    fn parts_of_words_calls_and_values_may_have_a_banned_word() {
        let fine = "// A teller, the shed\nfn teller() {}\nlet x = told(fn_told);\n\
                    let f: fn told = 1;\nlet nobody = \"nobody\";\n";
        assert_eq!(check("a.rs", fine), [""; 0]);
    }
}
