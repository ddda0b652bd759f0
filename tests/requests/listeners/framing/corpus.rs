//! Requests that are valid, odd or evil, and what those that have a meaning mean.

use tollway_tests::network::STOCK;

const CHUNKED: &str = "transfer-encoding: chunked\r\n";
/// A request that would be read if a body ended where some reader believes it does.
pub(super) const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";

pub(crate) struct Case {
    /// It is also the path.
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
    pub(crate) method: &'static str,
    /// The rest of the target after the name.
    suffix: String,
    /// Lines of the head.
    fields: String,
    pub(crate) body: Vec<u8>,
    /// Whether it has a meaning at all.
    pub(crate) is_valid: bool,
}

impl Case {
    pub(crate) fn target(&self) -> String {
        format!("/{}{}", self.name, self.suffix)
    }

    /// In the form in which a server reports what it read.
    pub(crate) fn meaning(&self) -> String {
        let fields = self.fields();
        // Fields of one connection go no further than that.
        let of_connection: Vec<&str> = fields
            .iter()
            .filter(|(name, _)| name == "connection")
            .flat_map(|(_, names)| names.split(',').map(str::trim))
            .collect();
        let passed_on = fields.iter().filter(|(name, _)| !of_connection.contains(&name.as_str()));
        let passed_on = passed_on.map(|(name, value)| (name.as_str(), value.as_bytes()));
        report_of(self.method, &self.target(), &self.body, passed_on)
    }

    /// Names in small letters and values, without space around them.
    pub(crate) fn fields(&self) -> Vec<(String, String)> {
        let pairs = self.fields.split("\r\n").filter_map(|line| line.split_once(':'));
        pairs.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned())).collect()
    }
}

/// The report of a request that a server has read: `METHOD TARGET BODY.`, the body in hexadecimal,
/// and ` NAME=VALUE` for each field of a corpus's own, by name, its value in hexadecimal as well.
pub(crate) fn report_of<'a>(
    method: &str,
    target: &str,
    body: &[u8],
    fields: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut own: Vec<_> = fields
        .map(|(name, value)| (name.to_lowercase(), value))
        .filter(|(name, _)| is_own(name))
        .collect();
    own.sort_by(|(a, _), (b, _)| a.cmp(b));
    let own: String = own.iter().map(|(name, value)| format!(" {name}={}", hex(value))).collect();
    format!("{method} {target} {}.{own}", hex(body))
}

/// Whether a field is the case's own, not one that a hop adds.
fn is_own(name: &str) -> bool {
    name.starts_with("x-") && !name.starts_with("x-tollway-") && !name.starts_with("x-forwarded-")
}

pub(crate) fn corpus() -> Vec<Case> {
    let mut cases = Vec::new();
    valid(&mut cases);
    valid_bodies(&mut cases);
    targets(&mut cases);
    cases.iter_mut().for_each(|case| case.is_valid = true);
    evil_heads(&mut cases);
    evil_letters(&mut cases);
    evil_bodies(&mut cases);
    cases
}

/// Odd fields and methods with one meaning.
fn valid(cases: &mut Vec<Case>) {
    let mut add = |name, method, fields: &str| {
        cases.push(case(name, method, "", fields, "", ""));
    };
    add("get", "GET", "");
    add("options", "OPTIONS", "");
    add("delete", "DELETE", "");
    add("method-of-ones-own", "PURGE", "");
    add("tab-before-value", "GET", "x-a:\tb\r\n");
    add("no-space-before-value", "GET", "x-a:b\r\n");
    add("space-behind-value", "GET", "x-a: b \t \r\n");
    add("empty-value", "GET", "x-a:\r\n");
    add("fields-twice", "GET", "x-a: b\r\nx-a: c\r\nX-A: d\r\n");
    add("long-field", "GET", &format!("x-a: {}\r\n", "b".repeat(6000)));
    add("many-fields", "GET", &(0..80).map(|n| format!("x-{n}: b\r\n")).collect::<String>());
    add("eighth-bit-in-value", "GET", "x-a: \u{fc}\r\n");
    add("colon-in-value", "GET", "x-a: b: c\r\n");
    add("all-kinds-of-name", "GET", "x-!#$%&'*+.^`|~9: b\r\n");
    add("connection-names-fields", "GET", "connection: x-a, host, te\r\nx-a: b\r\nte: gzip\r\n");
    add("connection-names-length", "POST", "connection: content-length\r\ncontent-length: 0\r\n");
    add("upgrade-refused", "GET", "connection: upgrade\r\nupgrade: none-such\r\n");
    add(
        "upgrade-to-h2c",
        "GET",
        "connection: upgrade, http2-settings\r\nupgrade: h2c\r\n\
        http2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
    );
    add("trailer-without-any", "GET", "trailer: x-a\r\n");
    cases.push(Case {
        bytes: format!("\r\nGET /empty-line-first HTTP/1.1\r\nhost: {STOCK}\r\n\r\n").into(),
        ..case("empty-line-first", "GET", "", "", "", "")
    });
}

fn valid_bodies(cases: &mut Vec<Case>) {
    let mut add = |name, fields: &str, sent: &str, body: &str| {
        cases.push(case(name, "POST", "", fields, sent, body));
    };
    add("no-body", "", "", "");
    add("length-0", "content-length: 0\r\n", "", "");
    add("length", "content-length: 5\r\n", "hello", "hello");
    add("length-in-spaces", "content-length: \t 5 \t\r\n", "hello", "hello");
    add("length-leading-zeros", "content-length: 0005\r\n", "hello", "hello");
    let length = format!("content-length: {}\r\ncontent_length: 0\r\n", SMUGGLED.len());
    add("length-with-underscore-too", &length, SMUGGLED, SMUGGLED);
    add("body-like-a-request", "content-length: 35\r\n", SMUGGLED, SMUGGLED);
    add("expects", "expect: 100-continue\r\ncontent-length: 5\r\n", "hello", "hello");
    add("chunks", CHUNKED, "5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n", "hello!");
    add("no-chunks", CHUNKED, "0\r\n\r\n", "");
    add("chunked-in-capitals", "Transfer-Encoding: CHUNKED\r\n", "1\r\nx\r\n0\r\n\r\n", "x");
    add(
        "chunk-size-of-two-cases",
        CHUNKED,
        "A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n",
        "01234567890123456789",
    );
    add("chunk-size-of-zeros", CHUNKED, "0005\r\nhello\r\n000\r\n\r\n", "hello");
    add("chunk-extension", CHUNKED, "5;a=b\r\nhello\r\n0;c\r\n\r\n", "hello");
    add("chunk-extension-quoted", CHUNKED, "5;a=\"b;c\"\r\nhello\r\n0\r\n\r\n", "hello");
    add("chunk-like-a-request", CHUNKED, &format!("23\r\n{}\r\n0\r\n\r\n", SMUGGLED), SMUGGLED);
    add("trailers", CHUNKED, "1\r\nx\r\n0\r\nx-a: b\r\nx-c:\r\n\r\n", "x");
    add("trailers-forbidden", CHUNKED, "1\r\nx\r\n0\r\ncontent-length: 9\r\nhost: x\r\n\r\n", "x");
}

fn targets(cases: &mut Vec<Case>) {
    for (name, suffix) in [
        ("query", "?a=b&c"),
        ("query-empty", "?"),
        ("two-questions", "?a?b"),
        ("encoded", "/%0d%0a%2f%5c%25"),
        ("double-slash", "//a///b"),
        ("semicolon", ";a=b"),
        ("quotes", "\"<>^`{|}"),
        ("backslash-in-query", "?a\\b\\..\\c"),
        ("backslash-in-path", "/a\\b"),
        ("long-target", &format!("/{}", "a".repeat(6000))),
    ] {
        cases.push(case(name, "GET", suffix, "", "", ""));
    }
    let absolute = case("absolute-form", "GET", "", "", "", "");
    let bytes = format!("GET http://{STOCK}/absolute-form HTTP/1.1\r\nhost: {STOCK}\r\n\r\n");
    cases.push(Case { bytes: bytes.into(), ..absolute });
    let other = case("absolute-and-other-host", "GET", "", "", "", "");
    let bytes = format!(
        "GET http://{STOCK}/absolute-and-other-host HTTP/1.1\r\nhost: shop.example\r\n\r\n"
    );
    cases.push(Case { bytes: bytes.into(), ..other });
    // Letters go on as escapes, which every server reads.
    let letters = case("letters", "GET", "/gr%C3%B6%C3%9Fe?q=Zo%C3%AB", "", "", "");
    let bytes =
        format!("GET /letters/gr\u{f6}\u{df}e?q=Zo\u{eb} HTTP/1.1\r\nhost: {STOCK}\r\n\r\n");
    cases.push(Case { bytes: bytes.into(), ..letters });
}

/// Heads that some reader somewhere takes for something else.
fn evil_heads(cases: &mut Vec<Case>) {
    let length = format!("content-length: {}\r\n", SMUGGLED.len() + 5);
    let mut add = |name, fields: &str| {
        cases.push(case(name, "POST", "", fields, &format!("0\r\n\r\n{SMUGGLED}"), ""));
    };
    add("length-and-chunked", &format!("{length}{CHUNKED}"));
    add("chunked-and-length", &format!("{CHUNKED}{length}"));
    add("chunked-behind-space", &format!("{length}transfer-encoding : chunked\r\n"));
    add("chunked-behind-tab", &format!("{length}transfer-encoding\t: chunked\r\n"));
    add("chunked-folded", &format!("{length}transfer-encoding:\r\n chunked\r\n"));
    add("chunked-behind-fold", &format!("{length}x-a: b\r\n transfer-encoding: chunked\r\n"));
    add("chunked-behind-vtab", &format!("{length}transfer-encoding: \x0bchunked\r\n"));
    add("chunked-quoted", &format!("{length}transfer-encoding: \"chunked\"\r\n"));
    add("chunked-misspelt", &format!("{length}transfer-encoding: xchunked\r\n"));
    add("chunked-and-null", &format!("{length}transfer-encoding: chunked\0\r\n"));
    add("chunked-with-comma", "transfer-encoding: chunked,\r\n");
    add("chunked-twice", &format!("{CHUNKED}{CHUNKED}"));
    add("chunked-then-identity", "transfer-encoding: chunked, identity\r\n");
    add("identity-then-chunked", "transfer-encoding: identity, chunked\r\n");
    add("gzip-then-chunked", "transfer-encoding: gzip, chunked\r\n");
    add("chunked-and-cow", &format!("{CHUNKED}transfer-encoding: cow\r\n"));
    add("chunked-behind-bare-cr", &format!("x-a: b\r{CHUNKED}"));
    add("chunked-behind-bare-lf", &format!("{length}x-a: b\n{CHUNKED}"));
    add("null-in-name", "x-\0a: b\r\n");
    add("space-in-name", "x a: b\r\n");
    add("first-field-indented", " x-a: b\r\n");
    add("no-colon", "x-a\r\n");
    add("two-hosts", "host: x\r\n");
    let mut raw = |name, text: String| {
        cases.push(Case { bytes: text.into(), ..case(name, "GET", "", "", "", "") });
    };
    let rest = format!("host: {STOCK}\r\n\r\n");
    raw("only-line-feeds", format!("GET /only-line-feeds HTTP/1.1\nhost: {STOCK}\n\n"));
    raw("two-spaces", format!("GET  /two-spaces HTTP/1.1\r\n{rest}"));
    raw("tabs-for-spaces", format!("GET\t/tabs-for-spaces\tHTTP/1.1\r\n{rest}"));
    raw("space-behind-version", format!("GET /space-behind-version HTTP/1.1 \r\n{rest}"));
    raw("version-1-10", format!("GET /version-1-10 HTTP/1.10\r\n{rest}"));
    raw("version-0-9", format!("GET /version-0-9\r\n{rest}"));
    raw("null-in-target", format!("GET /null-in-target\0 HTTP/1.1\r\n{rest}"));
    raw("fragment", format!("GET /fragment#x HTTP/1.1\r\n{rest}"));
    raw("chunked-in-1-0", format!("POST /chunked-in-1-0 HTTP/1.0\r\n{CHUNKED}{rest}0\r\n\r\n"));
}

/// Letters that are not UTF-8, and a slash in more bytes than it has.
fn evil_letters(cases: &mut Vec<Case>) {
    for (name, bytes) in [("letter-latin-1", &b"\xe9"[..]), ("letter-overlong", b"..\xc0\xaf..")] {
        let line = [format!("GET /{name}/").as_bytes(), bytes, b" HTTP/1.1\r\nhost: "].concat();
        let bytes = [&line[..], STOCK.as_bytes(), b"\r\n\r\n"].concat();
        cases.push(Case { bytes, ..case(name, "GET", "", "", "", "") });
    }
}

/// Lengths and chunks that are none, or two.
fn evil_bodies(cases: &mut Vec<Case>) {
    for (name, value) in [
        ("length-plus", "+5"),
        ("length-minus", "-5"),
        ("length-twice-in-one", "5, 5"),
        ("length-two-in-one", "5, 6"),
        ("length-hex", "0x5"),
        ("length-empty", ""),
        ("length-overflow", "18446744073709551621"),
        ("length-letters", "5a"),
        ("length-underscore", "1_0"),
    ] {
        let fields = format!("content-length: {value}\r\n");
        cases.push(case(name, "POST", "", &fields, "hello", ""));
    }
    let twice = "content-length: 5\r\ncontent-length: 5\r\n";
    cases.push(case("length-twice", "POST", "", twice, "hello", ""));
    let two = "content-length: 0\r\ncontent-length: 35\r\n";
    cases.push(case("two-lengths", "POST", "", two, SMUGGLED, ""));
    for (name, chunks) in [
        ("chunk-size-overflow", "10000000000000005\r\nhello\r\n0\r\n\r\n"),
        ("chunk-size-prefix", "0x5\r\nhello\r\n0\r\n\r\n"),
        ("chunk-size-plus", "+5\r\nhello\r\n0\r\n\r\n"),
        ("chunk-size-minus", "-5\r\nhello\r\n0\r\n\r\n"),
        ("chunk-size-underscore", "0_5\r\nhello\r\n0\r\n\r\n"),
        ("chunk-size-space", " 5\r\nhello\r\n0\r\n\r\n"),
        ("chunk-size-empty", "\r\nhello\r\n0\r\n\r\n"),
        ("chunk-line-feed", "5\nhello\r\n0\r\n\r\n"),
        ("chunk-extension-line-feed", "5;a\nhello\r\n0\r\n\r\n"),
        ("chunk-too-long", "5\r\nhelloo\r\n0\r\n\r\n"),
        ("chunk-too-short", "5\r\nhell\r\n0\r\n\r\n"),
        ("chunk-end-line-feed", "5\r\nhello\n0\r\n\r\n"),
        ("chunk-end-other", "5\r\nhelloXX0\r\n\r\n"),
        ("trailer-without-colon", "0\r\nx-a\r\n\r\n"),
        ("trailer-folded", "0\r\nx-a: b\r\n c\r\n\r\n"),
        ("trailer-line-feed", "0\r\nx-a: b\n\r\n"),
    ] {
        let sent = format!("{chunks}{SMUGGLED}");
        cases.push(case(name, "POST", "", CHUNKED, &sent, ""));
    }
}

fn case(
    name: &'static str,
    method: &'static str,
    suffix: &str,
    fields: &str,
    sent: &str,
    body: &str,
) -> Case {
    let head = format!("{method} /{name}{suffix} HTTP/1.1\r\nhost: {STOCK}\r\n{fields}\r\n");
    Case {
        name,
        bytes: (head + sent).into_bytes(),
        method,
        suffix: suffix.to_owned(),
        fields: fields.to_owned(),
        body: body.into(),
        is_valid: false,
    }
}
