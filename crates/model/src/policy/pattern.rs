//! What a rule of a policy compares a request with: callers, methods, paths.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::name::{Label, NameError, NetworkName, SpiffeId, TrustDomain};
use crate::path::{NormalPath, PathError};

/// Longest pattern, in bytes.
pub const PATTERN_BYTES_LIMIT: usize = 1024;
/// Segments of a path pattern.
pub const PATTERN_SEGMENTS_LIMIT: usize = 32;
/// Longest method, as in HTTP heads.
const METHOD_BYTES_LIMIT: usize = 32;

/// Why a pattern was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PatternError {
    #[error("a pattern has {bytes} bytes; at most {PATTERN_BYTES_LIMIT} are accepted")]
    TooLong { bytes: usize },
    #[error(
        "`*` alone could mean a namespace or everybody: leave `from` out for every caller, or write `*.<namespace>` or `*.*.<network>`"
    )]
    BareStar,
    #[error(
        "`{0}` is not a caller: write app[.namespace[.network]] with `*` for any, or spiffe://<trust-domain>/ns/<namespace>/<app>"
    )]
    Caller(String, #[source] NameError),
    #[error("`{0}` is not a method; methods are words such as GET")]
    Method(String),
    #[error("`{0}` is not a path; a path begins with `/`")]
    NotAbsolute(String),
    #[error("the path `{0}` has a query; rules look at the path alone")]
    Query(String),
    #[error(
        "the path `{0}` has `*` within a segment; `*` stands for one whole segment, `**` at the end for all that follow"
    )]
    PartialStar(String),
    #[error("the path `{0}` has `**` before its end; it stands for everything that follows")]
    EarlyDoubleStar(String),
    #[error(
        "the path `{path}` has {count} segments; at most {PATTERN_SEGMENTS_LIMIT} are accepted"
    )]
    TooManySegments { path: String, count: usize },
    #[error("the path `{0}` has an empty segment or `.`, which no path has that a rule sees")]
    EmptySegment(String),
    #[error("the path `{path}` has a segment that no rule sees as it is: write `{normal}` there")]
    NotNormal { path: String, normal: String },
    #[error("no path that a rule sees is written `{path}`")]
    Unreadable { path: String, source: PathError },
    #[error("the path `{0}` holds `;`, `\\` or an encoded slash, which rules cannot rely on")]
    Disputed(String),
}

/// The caller, as its certificate proves it.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    pub spiffe: &'a SpiffeId,
    /// The one network whose names the trust domain may vouch for.
    pub network: &'a NetworkName,
}

/// A part of a name, or any.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    Any,
    Is(Label),
}

impl Part {
    pub(crate) fn parse(text: &str) -> Result<Self, NameError> {
        if text == "*" { Ok(Self::Any) } else { Label::new(text).map(Self::Is) }
    }

    pub(crate) fn matches(&self, label: &Label) -> bool {
        match self {
            Self::Any => true,
            Self::Is(own) => own == label,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Is(label) => label.fmt(f),
        }
    }
}

/// Callers: `app[.namespace[.network]]` with `*` for any part, where parts left out mean "mine";
/// or `spiffe://<trust-domain>/ns/<namespace>/<app>`, likewise with `*` for the last two.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum CallerPattern {
    Service { app: Part, namespace: Option<Part>, network: Option<Part> },
    Spiffe { trust_domain: TrustDomain, namespace: Part, app: Part },
}

impl CallerPattern {
    /// Whether a caller is meant; `namespace` is the policy's, `network` the own one.
    #[must_use]
    pub fn matches(&self, caller: Caller<'_>, namespace: &Label, network: &NetworkName) -> bool {
        let id = caller.spiffe;
        match self {
            Self::Service { app, namespace: stated, network: stated_network } => {
                let of = |part: &Option<Part>, mine: &Label, label: &Label| match part {
                    Some(part) => part.matches(label),
                    None => mine == label,
                };
                app.matches(&id.app)
                    && of(stated, namespace, &id.namespace)
                    && of(stated_network, network, caller.network)
            }
            Self::Spiffe { trust_domain, namespace, app } => {
                *trust_domain == id.trust_domain
                    && namespace.matches(&id.namespace)
                    && app.matches(&id.app)
            }
        }
    }

    fn parse_service(text: &str) -> Result<Self, NameError> {
        let parts: Vec<&str> = text.split('.').collect();
        if parts.len() > 3 {
            return Err(NameError::TooManyLabels { name: text.to_owned(), count: parts.len() });
        }
        let part = |at: usize| parts.get(at).map(|text| Part::parse(text)).transpose();
        let app = part(0)?.ok_or(NameError::Empty)?;
        Ok(Self::Service { app, namespace: part(1)?, network: part(2)? })
    }

    fn parse_spiffe(text: &str, rest: &str) -> Result<Self, NameError> {
        let parts: Vec<&str> = rest.split('/').collect();
        let [domain, "ns", namespace, app] = parts[..] else {
            return Err(NameError::Spiffe(text.to_owned()));
        };
        Ok(Self::Spiffe {
            trust_domain: TrustDomain::new(domain)?,
            namespace: Part::parse(namespace)?,
            app: Part::parse(app)?,
        })
    }
}

impl FromStr for CallerPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        check_length(text)?;
        if text == "*" {
            return Err(PatternError::BareStar);
        }
        let parsed = match text.strip_prefix("spiffe://") {
            Some(rest) => Self::parse_spiffe(text, rest),
            None => Self::parse_service(text),
        };
        parsed.map_err(|error| PatternError::Caller(text.to_owned(), error))
    }
}

impl fmt::Display for CallerPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service { app, namespace, network } => {
                app.fmt(f)?;
                for part in [namespace, network].into_iter().flatten() {
                    write!(f, ".{part}")?;
                }
                Ok(())
            }
            Self::Spiffe { trust_domain, namespace, app } => {
                write!(f, "spiffe://{trust_domain}/ns/{namespace}/{app}")
            }
        }
    }
}

/// The method of a request; compared with case, as HTTP does.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MethodName(Box<str>);

impl MethodName {
    /// Checks that it is a token of HTTP.
    ///
    /// # Errors
    /// [`PatternError::Method`].
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        // `*` is a token too, and its author means something else.
        if text.is_empty() || text.len() > METHOD_BYTES_LIMIT || text == "*" {
            return Err(PatternError::Method(shortened(text)));
        }
        if text.bytes().all(is_token) {
            Ok(Self(text.into()))
        } else {
            Err(PatternError::Method(shortened(text)))
        }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for MethodName {
    type Err = PatternError;
    fn from_str(text: &str) -> Result<Self, PatternError> {
        Self::new(text)
    }
}

impl fmt::Display for MethodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One segment of a path pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PatternSegment {
    /// These bytes, in the normal form of a path.
    Is(Box<[u8]>),
    /// Any one segment: `*` or `{name}`.
    Any,
}

/// Paths: segments that have to be equal, `*` or `{name}` for any one segment, `**` at the end
/// for the path before it and everything below. A slash at the end makes no difference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathPattern {
    text: Box<str>,
    segments: Box<[PatternSegment]>,
    below: bool,
}

impl PathPattern {
    /// The segments in front of `**`, or all of them.
    #[must_use]
    pub fn segments(&self) -> &[PatternSegment] {
        &self.segments
    }

    /// Whether everything below is meant too.
    #[must_use]
    pub fn includes_below(&self) -> bool {
        self.below
    }
}

impl FromStr for PathPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        check_length(text)?;
        let owned = || text.to_owned();
        if text.contains('?') {
            return Err(PatternError::Query(owned()));
        }
        let rest = text.strip_prefix('/').ok_or_else(|| PatternError::NotAbsolute(owned()))?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (rest, below) = match rest.strip_suffix("**") {
            Some("") => ("", true),
            Some(front) if front.ends_with('/') => (&front[..front.len() - 1], true),
            Some(_) | None => (rest, false),
        };
        let texts: Vec<&str> = if rest.is_empty() { Vec::new() } else { rest.split('/').collect() };
        if texts.len() > PATTERN_SEGMENTS_LIMIT {
            return Err(PatternError::TooManySegments { path: owned(), count: texts.len() });
        }
        let segments = texts.into_iter().map(|segment| parse_segment(text, segment));
        let segments = segments.collect::<Result<_, _>>()?;
        Ok(Self { text: text.into(), segments, below })
    }
}

pub(super) fn parse_segment(pattern: &str, segment: &str) -> Result<PatternSegment, PatternError> {
    let owned = || pattern.to_owned();
    let is_named = segment.len() > 2 && segment.starts_with('{') && segment.ends_with('}');
    match segment {
        "" | "." => return Err(PatternError::EmptySegment(owned())),
        "*" => return Ok(PatternSegment::Any),
        "**" => return Err(PatternError::EarlyDoubleStar(owned())),
        _ if is_named => return Ok(PatternSegment::Any),
        _ if segment.contains(['*', '{', '}']) => return Err(PatternError::PartialStar(owned())),
        _ => {}
    }
    normal_segment(pattern, segment).map(PatternSegment::Is)
}

/// The bytes of a segment, as it is in the normal form of a path.
pub(super) fn normal_segment(pattern: &str, segment: &str) -> Result<Box<[u8]>, PatternError> {
    let owned = || pattern.to_owned();
    let written = format!("/{}", escape_unicode(segment));
    let read = NormalPath::read(written.as_bytes())
        .map_err(|source| PatternError::Unreadable { path: owned(), source })?;
    if read.second_reading().is_some() {
        return Err(PatternError::Disputed(owned()));
    }
    if read.path() != written.as_bytes() {
        let normal = String::from_utf8_lossy(read.path()).into_owned();
        return Err(PatternError::NotNormal { path: owned(), normal });
    }
    Ok(read.path()[1..].into())
}

/// Escapes non-ASCII letters and spaces, so that a user may write them plainly.
fn escape_unicode(segment: &str) -> String {
    let mut escaped = String::with_capacity(segment.len());
    for byte in segment.bytes() {
        match byte {
            b' ' | 0x80.. => escaped.push_str(&format!("%{byte:02X}")),
            _ => escaped.push(char::from(byte)),
        }
    }
    escaped
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

pub(super) fn check_length(text: &str) -> Result<(), PatternError> {
    if text.len() > PATTERN_BYTES_LIMIT {
        return Err(PatternError::TooLong { bytes: text.len() });
    }
    Ok(())
}

fn shortened(text: &str) -> String {
    text.chars().take(2 * METHOD_BYTES_LIMIT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    /// A pattern of a policy in the namespace `shop` of the network `west`.
    #[track_caller]
    fn check_caller(pattern: &str, id: &str, network: &str, expected: bool) {
        let parsed: CallerPattern = pattern.parse().unwrap();
        assert_eq!(parsed.to_string(), pattern);
        let (spiffe, network) = (SpiffeId::parse(id).unwrap(), label(network));
        let caller = Caller { spiffe: &spiffe, network: &network };
        let matches = parsed.matches(caller, &label("shop"), &label("west"));
        assert_eq!(matches, expected, "{pattern} and {id} of {network}");
    }

    const WEB: &str = "spiffe://west.tollway/ns/shop/web";
    const FAR: &str = "spiffe://far.example/ns/shop/web";

    #[test]
    fn parts_left_out_mean_mine() {
        check_caller("web", WEB, "west", true);
        check_caller("WEB.Shop.West", WEB, "west", true);
        check_caller("web", FAR, "east", false);
        check_caller("web.shop", FAR, "east", false);
        check_caller("web.other", WEB, "west", false);
        check_caller("web.shop.east", FAR, "east", true);
    }

    #[test]
    fn stars_stand_for_any_name() {
        check_caller("*.shop", WEB, "west", true);
        check_caller("*.shop", FAR, "east", false);
        check_caller("*.*.east", FAR, "east", true);
        check_caller("*.*.*", FAR, "east", true);
        check_caller("web.*.*", WEB, "west", true);
        check_caller("orders.*.*", WEB, "west", false);
    }

    #[test]
    fn a_trust_domain_is_named_by_its_identity() {
        check_caller(FAR, FAR, "east", true);
        check_caller("spiffe://far.example/ns/*/*", FAR, "east", true);
        check_caller("spiffe://far.example/ns/shop/*", WEB, "west", false);
    }

    #[track_caller]
    fn check_refused<T: FromStr<Err = PatternError> + fmt::Debug>(text: &str, part: &str) {
        let message = text.parse::<T>().unwrap_err().to_string();
        assert!(message.contains(part), "{text}: {message}");
    }

    #[test]
    fn callers_that_could_mean_something_else_are_refused() {
        check_refused::<CallerPattern>("*", "leave `from` out");
        for text in ["", "a.b.c.d", "web.", "we*", "spiffe://a/b", "spiffe://A/ns/b/c", "a b"] {
            check_refused::<CallerPattern>(text, "is not a caller");
        }
        check_refused::<CallerPattern>(&"x".repeat(2000), "2000 bytes");
    }

    #[test]
    fn methods_are_words() {
        assert_eq!(MethodName::new("PROPFIND").unwrap().as_str(), "PROPFIND");
        for text in ["", "*", "GET POST", "é", &"X".repeat(33)] {
            check_refused::<MethodName>(text, "is not a method");
        }
        let longest = "X".repeat(32);
        assert_eq!(longest.parse::<MethodName>().unwrap().to_string(), longest);
        // A long text does not fill the line that refuses it.
        let shown =
            |text: &str| MethodName::new(text).unwrap_err().to_string().matches('X').count();
        assert_eq!(shown(&"X".repeat(5000)), 64);
    }

    #[test]
    fn path_patterns_have_segments_and_perhaps_everything_below() {
        let check = |text: &str, expected: &str| {
            let pattern: PathPattern = text.parse().unwrap();
            assert_eq!(pattern.to_string(), text);
            let mut printed = String::new();
            for segment in pattern.segments() {
                printed += &match segment {
                    PatternSegment::Is(bytes) => format!("/{}", String::from_utf8_lossy(bytes)),
                    PatternSegment::Any => "/<any>".to_owned(),
                };
            }
            printed += if pattern.includes_below() { " and below" } else { "" };
            assert_eq!(printed, expected, "{text}");
        };
        check("/", "");
        check("/**", " and below");
        check("/orders", "/orders");
        check("/orders/", "/orders");
        check("/orders/**", "/orders and below");
        check("/users/{id}/orders/*", "/users/<any>/orders/<any>");
        check("/shop.Stock/Get", "/shop.Stock/Get");
        check("/caf\u{e9} a", "/caf%C3%A9%20a");
        check(&"/a".repeat(32), &"/a".repeat(32));
        let longest = format!("/{}", "a".repeat(1023));
        check(&longest, &longest);
    }

    #[test]
    fn path_patterns_that_never_match_are_refused() {
        check_refused::<PathPattern>("orders", "begins with `/`");
        check_refused::<PathPattern>("/a?b", "has a query");
        check_refused::<PathPattern>("/a*", "one whole segment");
        for text in ["/a/{", "/a/{}", "/a/{b", "/a/b}", "/{b}c"] {
            check_refused::<PathPattern>(text, "one whole segment");
        }
        check_refused::<PathPattern>(&format!("/{}", "a".repeat(1024)), "1025 bytes");
        check_refused::<PathPattern>("/a**", "one whole segment");
        check_refused::<PathPattern>("/**/b", "before its end");
        for text in ["/a//b", "//a", "/a//", "/a/./b"] {
            check_refused::<PathPattern>(text, "empty segment or `.`");
        }
        check_refused::<PathPattern>("/%61", "write `/a`");
        check_refused::<PathPattern>("/a/../b", "no path that a rule sees");
        check_refused::<PathPattern>("/a%2Fb", "rules cannot rely on");
        check_refused::<PathPattern>("/a;b", "rules cannot rely on");
        check_refused::<PathPattern>(&"/a".repeat(33), "33 segments");
    }
}
