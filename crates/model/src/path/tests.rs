//! The table of paths with which other proxies were got past, and properties that hold for any.

use proptest::prelude::*;

use super::*;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The target as it goes on, then the second reading where there is one; or why it is refused.
#[track_caller]
fn check(target: &str, expected: Result<(&str, Option<&str>), PathError>) {
    let read = NormalPath::read(target.as_bytes()).map(|normal| {
        let second = normal.second_reading().map(text);
        let sent = normal.into_changed_target();
        (sent.as_deref().map_or_else(|| target.to_owned(), text), second)
    });
    let expected = expected.map(|(sent, second)| (sent.to_owned(), second.map(str::to_owned)));
    assert_eq!(read, expected, "{target}");
}

#[track_caller]
fn check_normal(target: &str, sent: &str) {
    check(target, Ok((sent, None)));
}

#[track_caller]
fn check_refused(target: &str, error: PathError) {
    check(target, Err(error));
}

#[test]
fn a_plain_path_stays_as_it_is() {
    for path in ["/", "/a", "/a/", "/a/b.c", "/a..b", "/a.", "/a?b=%2F//..", "/a:b@c,d=e$f&g!'()*+"]
    {
        check_normal(path, path);
        assert!(NormalPath::read(path.as_bytes()).unwrap().target.is_none(), "{path}");
    }
}

#[test]
fn dot_segments_are_resolved() {
    check_normal("/./a", "/a");
    check_normal("/a/../b", "/b");
    check_normal("/a/./b/", "/a/b/");
    check_normal("/a/b/..", "/a/");
    check_normal("/a/.", "/a/");
    check_normal("/a/..", "/");
    check_normal("/%2e/a", "/a");
    check_normal("/a/%2E%2e/b?c=/../", "/b?c=/../");
    check_normal("/a/.%2e/b", "/b");
    check_normal("/...", "/...");
}

#[test]
fn what_leads_above_the_root_is_refused() {
    for path in ["/..", "/../a", "/a/../../b", "/%2e%2e/a", "/./../a"] {
        check_refused(path, PathError::AboveRoot);
    }
}

#[test]
fn repeated_slashes_are_one() {
    check_normal("//a", "/a");
    check_normal("/a//b///c", "/a/b/c");
    check_normal("/a//", "/a/");
    check_normal("//", "/");
    check_normal("//./a", "/a");
}

#[test]
fn dots_behind_an_empty_segment_mean_two_things() {
    // `/a/b` if the empty segment counts, `/b` if it does not.
    check_refused("/a//../b", PathError::DotsBehindSlashes);
    check_refused("//../a", PathError::DotsBehindSlashes);
}

#[test]
fn escapes_of_unreserved_characters_are_decoded_and_others_written_alike() {
    check_normal("/%61dmin", "/admin");
    check_normal("/%7Euser%2Dx", "/~user-x");
    check_normal("/a%20b", "/a%20b");
    check_normal("/%c3%a9", "/%C3%A9");
    check_normal("/100%25", "/100%25");
    check_normal("/a%3fb%23", "/a%3Fb%23");
}

#[test]
fn escapes_that_hide_something_are_refused() {
    check_refused("/a%", PathError::Escape);
    check_refused("/a%2", PathError::Escape);
    check_refused("/%zz", PathError::Escape);
    check_refused("/a%00b", PathError::Control);
    check_refused("/a%0d%0ab", PathError::Control);
    check_refused("/%7f", PathError::Control);
    check_refused("/%252e%252e/a", PathError::EncodedTwice);
    check_refused("/a%252Fb", PathError::EncodedTwice);
    check_refused("/a%25%32%66b", PathError::EncodedTwice);
    // An overlong dot and slash, and Latin-1.
    check_refused("/%c0%ae%c0%ae/a", PathError::NotUtf8);
    check_refused("/a%c0%afb", PathError::NotUtf8);
    check_refused("/caf%e9", PathError::NotUtf8);
    check_refused("/a#b", PathError::Fragment);
}

#[test]
fn disputed_bytes_give_a_second_reading() {
    check("/admin;x=1/b", Ok(("/admin;x=1/b", Some("/admin/b"))));
    check("/admin;", Ok(("/admin;", Some("/admin"))));
    check("/admin%3bx", Ok(("/admin%3Bx", Some("/admin"))));
    check("/a%2fb%2Fc", Ok(("/a%2Fb%2Fc", Some("/a/b/c"))));
    check("/a\\b", Ok(("/a\\b", Some("/a/b"))));
    check("/a%5cb", Ok(("/a%5Cb", Some("/a/b"))));
    check("/a%2F", Ok(("/a%2F", Some("/a/"))));
    check("//a/./b;c?d", Ok(("/a/b;c?d", Some("/a/b"))));
}

#[test]
fn what_only_the_second_reading_shows_is_refused() {
    for path in
        ["/a/..;/b", "/a/..;x=1/b", "/..%2fa", "/a%2f..%2fb", "/a/..%5cb", "/a\\..\\b", "/.;/a"]
    {
        check_refused(path, PathError::Hidden);
    }
    for path in ["/%2fadmin", "/a%2f%2fb", "/;x/admin", "/a/%5cb"] {
        check_refused(path, PathError::Hidden);
    }
    for path in ["/a;b%2Fc", "/a\\b%5Cc", "/a;b%3Bc"] {
        check_refused(path, PathError::Mixed);
    }
}

#[test]
fn the_server_as_a_whole_is_read_as_its_root() {
    for target in ["*", "", "?a"] {
        let read = NormalPath::read(target.as_bytes()).unwrap();
        assert_eq!(read.path(), b"/", "{target}");
        assert_eq!(read.into_changed_target(), None, "{target}");
    }
    check_refused("a", PathError::NotAbsolute);
}

/// Paths in which everything that matters is frequent.
fn paths() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("/"),
        Just("."),
        Just(".."),
        Just("%2e"),
        Just("%2F"),
        Just("%5c"),
        Just("\\"),
        Just(";"),
        Just("%3b"),
        Just("%25"),
        Just("%00"),
        Just("%c3%a9"),
        Just("%41"),
        Just("a"),
        Just("B"),
        Just("%"),
        Just("?"),
        Just("#"),
        Just("*"),
    ];
    proptest::collection::vec(part, 0..14).prop_map(|parts| format!("/{}", parts.concat()))
}

proptest! {
    #[test]
    fn a_normal_path_is_its_own_normal_form(target in paths()) {
        if let Ok(once) = NormalPath::read(target.as_bytes()) {
            let (path, second) = (once.path().to_vec(), once.second.clone());
            let sent = once.into_changed_target().unwrap_or_else(|| target.clone().into_bytes());
            let twice = NormalPath::read(&sent).unwrap();
            prop_assert_eq!(twice.path(), &path[..]);
            prop_assert_eq!(&twice.second, &second);
            prop_assert_eq!(twice.into_changed_target(), None);
        }
    }

    #[test]
    fn neither_reading_has_dots_or_empty_segments(target in paths()) {
        if let Ok(normal) = NormalPath::read(target.as_bytes()) {
            for reading in [Some(normal.path()), normal.second_reading()].into_iter().flatten() {
                let mut segments: Vec<_> = reading[1..].split(|b| *b == b'/').collect();
                if segments.last().is_some_and(|last| last.is_empty()) {
                    segments.pop();
                }
                for segment in segments {
                    prop_assert!(!matches!(segment, b"" | b"." | b".."), "{}", text(reading));
                }
            }
        }
    }

    #[test]
    fn how_it_was_encoded_makes_no_difference(
        path in "/[a-z.~-]{1,8}(/[a-zA-Z0-9._-]{1,8}){0,4}",
        which in proptest::collection::vec(any::<bool>(), 64),
        upper in any::<bool>(),
    ) {
        let mut encoded = String::new();
        for (byte, encode) in path.bytes().zip(which) {
            match (byte, encode, upper) {
                (b'/', ..) | (_, false, _) => encoded.push(char::from(byte)),
                (_, true, true) => encoded += &format!("%{byte:02X}"),
                (_, true, false) => encoded += &format!("%{byte:02x}"),
            }
        }
        let plain = NormalPath::read(path.as_bytes()).map(|normal| text(normal.path()));
        let other = NormalPath::read(encoded.as_bytes()).map(|normal| text(normal.path()));
        prop_assert_eq!(plain, other);
    }

    #[test]
    fn any_bytes_are_read_or_refused(target in proptest::collection::vec(any::<u8>(), 0..60)) {
        let _ = NormalPath::read(&target);
    }
}
