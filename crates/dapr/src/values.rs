//! Values as Go and Kubernetes write them: switches and sizes.

/// A switch, in the words that Go takes.
pub(crate) fn switch(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A size in bytes, such as `4Mi`, `16M` or `4096`. `None` where it is none; -1 is any size.
pub(crate) fn size(text: &str) -> Option<Size> {
    if text == "-1" {
        return Some(Size::Any);
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().ok()?;
    let factor: u64 = match &text[end..] {
        "" => 1,
        "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(factor).map(Size::Bytes)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Size {
    Bytes(u64),
    Any,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_quantities_of_kubernetes() {
        for (text, expected) in [
            ("4Mi", Some(Size::Bytes(4 << 20))),
            ("16M", Some(Size::Bytes(16_000_000))),
            ("4096", Some(Size::Bytes(4096))),
            ("64Ki", Some(Size::Bytes(64 << 10))),
            ("-1", Some(Size::Any)),
            ("", None),
            ("-2", None),
            ("4MiB", None),
            ("99999999999Gi", None),
        ] {
            assert_eq!(size(text), expected, "{text}");
        }
    }
}
