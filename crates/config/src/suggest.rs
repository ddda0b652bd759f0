//! Suggestions for names that are not known: the one that was probably meant.

/// Least similarity of a name that is suggested for an unknown one, from 0 to 1.
const LEAST_SIMILARITY: f64 = 0.6;

/// `unknown KIND NAME`, with the name that was probably meant, or else all that are known.
pub fn unknown<'a>(kind: &str, name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest(name, &known) {
        Some(meant) => format!("unknown {kind} `{name}`; did you mean `{meant}`?"),
        None if known.is_empty() => format!("unknown {kind} `{name}`; none is expected here"),
        None => format!("unknown {kind} `{name}`; expected one of {}", known.join(", ")),
    }
}

/// The known name that was probably meant, if one is similar enough.
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let similarity = |candidate: &str| strsim::normalized_damerau_levenshtein(name, candidate);
    let best = known.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)))?;
    (similarity(best) >= LEAST_SIMILARITY).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_name_is_suggested() {
        let known = ["http", "https", "grpc"];
        assert_eq!(unknown("word", "htps", known), "unknown word `htps`; did you mean `https`?");
        assert_eq!(nearest("gprc", &known), Some("grpc"));
    }

    #[test]
    fn without_a_similar_name_all_are_listed() {
        assert_eq!(unknown("word", "x", ["a", "b"]), "unknown word `x`; expected one of a, b");
        assert_eq!(unknown("word", "x", []), "unknown word `x`; none is expected here");
    }
}
