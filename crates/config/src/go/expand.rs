//! Variables of the environment in a text, as Go's `os.ExpandEnv` replaces them.

/// Replaces `$NAME` and `${NAME}`; a variable that is not set is empty. A `$` without a name stays.
#[must_use]
pub fn expand_variables(text: &str, variable: impl Fn(&str) -> Option<String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let (name, length) = name_at(rest);
        match name {
            "" if length == 0 => expanded.push('$'),
            // It is no name; what stands in the braces goes.
            "" => {}
            name => expanded.push_str(&variable(name).unwrap_or_default()),
        }
        rest = &rest[length..];
    }
    expanded.push_str(rest);
    expanded
}

/// The name at the start of what follows a `$`, and how many bytes belong to it.
fn name_at(text: &str) -> (&str, usize) {
    let is_special = |byte: u8| b"*#$@!?-".contains(&byte) || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    match bytes {
        [b'{', special, b'}', ..] if is_special(*special) => (&text[1..2], 3),
        [b'{', ..] => match text.find('}') {
            Some(1) => ("", 2),
            Some(end) => (&text[1..end], end + 1),
            None => ("", 1),
        },
        [special, ..] if is_special(*special) => (&text[..1], 1),
        _ => {
            let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
            let end = bytes.iter().position(|byte| !is_name(byte)).unwrap_or(text.len());
            (&text[..end], end)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_as_go_replaces_them() {
        let variable = |name: &str| (name == "A_1").then(|| "x".to_owned());
        let expanded = |text| expand_variables(text, variable);
        for (text, result) in [
            ("$A_1-${A_1}.", "x-x."),
            ("a: ${NOT_SET}$B!", "a: !"),
            ("5$ and $", "5$ and $"),
            ("${}${A", "A"),
            ("$1$$", ""),
            ("é$A_1é", "éxé"),
        ] {
            assert_eq!(expanded(text), result, "{text}");
        }
    }
}
