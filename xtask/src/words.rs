//! Words that the glossary bans, since each has a standard term.
//!
//! No type, file or folder may have one in its name. Functions and comments had many; their number
//! by word is in `xtask/old-words.txt` and may only fall. Whoever removes one lowers the number.

use std::collections::BTreeMap;
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

/// The counts that may only fall, from the root.
pub(crate) const COUNTS: &str = "xtask/old-words.txt";

/// Names with a banned word, and words of functions and comments whose number is not the listed
/// one.
pub(crate) fn breaches(root: &Path, files: &[RustFile], listed: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut found = Counts::default();
    for file in files.iter().filter(|file| !file.is_generated()) {
        let path = file.path.strip_prefix(root).unwrap_or(&file.path);
        breaches.extend(names(path, &file.code).filter_map(|name| name_breach(path, &name)));
        // This file has to name the words.
        if path != Path::new("xtask/src/words.rs") {
            found.add(file);
        }
    }
    breaches.extend(found.differences(listed));
    breaches
}

fn name_breach(path: &Path, name: &str) -> Option<String> {
    let word = words(name).find(|word| BANNED.contains(&word.as_str()))?;
    let path = path.display();
    Some(format!("{path}: `{name}` has the word `{word}`: ARCHITECTURE.md's glossary has the term"))
}

/// How often each banned word occurs in names of functions and in comments, and the last file.
#[derive(Default)]
struct Counts(BTreeMap<String, (usize, String)>);

impl Counts {
    fn add(&mut self, file: &RustFile) {
        for line in file.text.lines() {
            let line = line.trim_start();
            let (kind, found) = match line.strip_prefix("//") {
                Some(comment) => ("comment", banned(comment.to_lowercase(), IN_COMMENTS)),
                None => ("fn", banned(function_defined(line).to_owned(), IN_FUNCTIONS)),
            };
            for word in found {
                let entry = self.0.entry(format!("{kind} {word}")).or_default();
                *entry = (entry.0 + 1, file.path.display().to_string());
            }
        }
    }

    /// Compares with lines such as `fn told 12`; a word without a line may not occur.
    fn differences(&self, listed: &str) -> Vec<String> {
        let mut allowed: BTreeMap<String, usize> = BTreeMap::new();
        for line in listed.lines().filter(|line| !line.starts_with('#')) {
            if let Some((word, count)) = line.rsplit_once(' ') {
                allowed.insert(word.to_owned(), count.parse().unwrap_or(0));
            }
        }
        let mut breaches = Vec::new();
        for (word, (count, file)) in &self.0 {
            let allowed = allowed.remove(word).unwrap_or(0);
            if *count > allowed {
                breaches.push(format!(
                    "`{word}` occurs {count} times, {COUNTS} allows {allowed} (one is in {file}): \
                     ARCHITECTURE.md's glossary has the term"
                ));
            } else if *count < allowed {
                breaches.push(format!("{COUNTS}: `{word}` occurs {count} times: lower the number"));
            }
        }
        let gone = allowed.into_keys();
        breaches.extend(gone.map(|word| format!("{COUNTS}: no `{word}` is left: remove the line")));
        breaches
    }
}

/// The words of `text` that are in `list`, as often as they occur.
fn banned(text: String, list: &'static [&'static str]) -> Vec<&'static str> {
    let is_word = |c: char| c.is_alphanumeric();
    text.split(|c| !is_word(c))
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

    fn check(path: &str, text: &str, listed: &str) -> Vec<String> {
        breaches(Path::new("/r"), &[file(path, text)], listed)
    }

    #[test]
    fn a_banned_word_is_found_in_types_and_files_and_only_whole() {
        let types = "pub(crate) struct DoorKind;\nenum LastPlace<T> {}\ntype Told = u8;\n";
        assert_eq!(check("a.rs", types, "").len(), 3);
        assert_eq!(check("crates/x/src/kept/mod.rs", "", "").len(), 1);
        assert_eq!(check("crates/x/src/log_room.rs", "", "").len(), 1);
        let fine = "struct Placement;\nstruct Gateway;\nstruct Tolled;\nlet door = 1;\n";
        assert_eq!(check("gateway.rs", fine, ""), [""; 0]);
    }

    #[test]
    fn functions_and_comments_are_counted_by_whole_words() {
        let text =
            "/// Nobody is told.\npub(crate) async fn tell_all() {}\n// A teller, the shed\n";
        let listed = "comment nobody 1\ncomment told 1\nfn tell 1\n";
        assert_eq!(check("a.rs", text, listed), [""; 0]);
        assert_eq!(check("a.rs", text, "").len(), 3);
        let calls = "let x = told(fn_told);\nlet f: fn told = 1;\n";
        assert_eq!(check("a.rs", calls, ""), [""; 0]);
    }

    #[test]
    fn a_count_may_neither_grow_nor_stay_behind() {
        let text = "// whoever\n// Whoever it is\n";
        assert_eq!(check("a.rs", text, "# Counts.\ncomment whoever 2\n"), [""; 0]);
        let grown = check("a.rs", text, "comment whoever 1\n");
        assert!(grown.len() == 1 && grown[0].contains("occurs 2 times"), "{grown:?}");
        let fallen = check("a.rs", text, "comment whoever 3\n");
        assert!(fallen.len() == 1 && fallen[0].contains("lower the number"), "{fallen:?}");
        let gone = check("a.rs", "", "comment whoever 3\n");
        assert!(gone.len() == 1 && gone[0].contains("remove the line"), "{gone:?}");
    }
}
