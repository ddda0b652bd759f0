//! One match of a rule, compiled.

use std::cmp::Reverse;

use regex::bytes::{Regex, RegexBuilder};
use tollway_model::route::{GrpcMatch, NamedMatch, PathMatch, RouteMatch, TextMatch};

use super::{RegexError, RoutedRequest, path};

/// Most memory of one compiled regular expression.
pub(super) const COMPILED_REGEX_BYTES: usize = 256 * 1024;

/// The precedence of a match; a smaller one comes first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Rank {
    path: Reverse<PathClass>,
    /// Bytes of the path that are named.
    named: Reverse<usize>,
    has_method: Reverse<bool>,
    headers: Reverse<usize>,
    query: Reverse<usize>,
    has_callers: Reverse<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum PathClass {
    Prefix,
    Regex,
    Exact,
}

#[derive(Debug)]
enum Text {
    Exact(Box<[u8]>),
    Regex(Regex),
}

#[derive(Debug)]
enum Path {
    Exact(Box<[u8]>),
    /// Without a slash at its end.
    Prefix(Box<[u8]>),
    Regex(Regex),
    Grpc {
        service: Option<Text>,
        method: Option<Text>,
    },
}

#[derive(Debug)]
struct Header {
    /// In lower case.
    name: Box<[u8]>,
    value: Text,
}

#[derive(Debug)]
struct Parameter {
    name: Box<str>,
    value: Text,
}

/// One match of a rule.
#[derive(Debug)]
pub(super) struct Matcher {
    path: Path,
    method: Option<Box<[u8]>>,
    headers: Vec<Header>,
    query: Vec<Parameter>,
    has_callers: bool,
}

/// Compiles a regular expression that has to hold for the whole of a text.
pub(super) fn compile(regex: &str) -> Result<Regex, RegexError> {
    let build = |regex: &str| RegexBuilder::new(regex).size_limit(COMPILED_REGEX_BYTES).build();
    // By itself first: `a)|(?:b` is one only within other parentheses, and not for the whole text.
    let built = build(regex).and_then(|_| build(&format!("^(?:{regex})$")));
    built.map_err(|error| {
        if matches!(error, regex::Error::CompiledTooBig(_)) {
            return RegexError::TooLarge { regex: regex.to_owned() };
        }
        // Its text shows the expression over several lines; the last one has the reason.
        let text = error.to_string();
        let reason = text.lines().last().unwrap_or_default();
        let reason = reason.trim().trim_start_matches("error: ").to_owned();
        RegexError::Invalid { regex: regex.to_owned(), reason }
    })
}

impl Text {
    fn new(of: &TextMatch) -> Result<Self, RegexError> {
        Ok(match of {
            TextMatch::Exact(text) => Self::Exact(text.as_bytes().into()),
            TextMatch::Regex(regex) => Self::Regex(compile(regex)?),
        })
    }

    fn matches(&self, text: &[u8]) -> bool {
        match self {
            Self::Exact(own) => **own == *text,
            Self::Regex(regex) => regex.is_match(text),
        }
    }
}

impl Path {
    fn new(of: &RouteMatch) -> Result<Self, RegexError> {
        if let Some(GrpcMatch { service, method }) = &of.grpc {
            let text = |of: &Option<TextMatch>| of.as_ref().map(Text::new).transpose();
            return Ok(Self::Grpc { service: text(service)?, method: text(method)? });
        }
        Ok(match &of.path {
            Some(PathMatch::Exact(path)) => Self::Exact(path.as_bytes().into()),
            Some(PathMatch::Prefix(path)) => Self::Prefix(path::trimmed(path).as_bytes().into()),
            Some(PathMatch::Regex(regex)) => Self::Regex(compile(regex)?),
            None => Self::Prefix(Box::default()),
        })
    }

    /// Whether it holds, and the length of the prefix that it names.
    fn matches(&self, path: &[u8], is_grpc: bool) -> Option<Option<usize>> {
        match self {
            Self::Exact(own) => (**own == *path).then_some(None),
            Self::Prefix(prefix) => path::is_below(path, prefix).then_some(Some(prefix.len())),
            Self::Regex(regex) => regex.is_match(path).then_some(None),
            Self::Grpc { service, method } => {
                let mut parts = path.strip_prefix(b"/").filter(|_| is_grpc)?.split(|b| *b == b'/');
                let (called, of) = (parts.next()?, parts.next()?);
                let holds =
                    |text: &Option<Text>, part| text.as_ref().is_none_or(|t| t.matches(part));
                let is_call = parts.next().is_none() && holds(service, called) && holds(method, of);
                is_call.then_some(None)
            }
        }
    }

    /// The class, and the bytes that are named. Of gRPC the service counts before the method, and a
    /// service that is named before one of several.
    fn class(&self) -> (PathClass, usize) {
        match self {
            Self::Exact(path) => (PathClass::Exact, path.len()),
            Self::Prefix(path) => (PathClass::Prefix, path.len()),
            Self::Regex(_) => (PathClass::Regex, 0),
            Self::Grpc {
                service: Some(Text::Exact(service)),
                method: Some(Text::Exact(method)),
            } => (PathClass::Exact, service.len() + method.len()),
            // Of two services that hold for one call both names are the same.
            Self::Grpc { service: Some(Text::Exact(service)), .. } => {
                (PathClass::Prefix, service.len())
            }
            Self::Grpc { service: Some(Text::Regex(_)), .. } => (PathClass::Prefix, 1),
            Self::Grpc { service: None, .. } => (PathClass::Prefix, 0),
        }
    }

    fn has_grpc_method(&self) -> bool {
        matches!(self, Self::Grpc { method: Some(_), .. })
    }
}

impl Matcher {
    pub(super) fn new(of: &RouteMatch) -> Result<Self, RegexError> {
        let header = |of: &NamedMatch| -> Result<Header, RegexError> {
            let name = of.name.to_ascii_lowercase().into_bytes().into();
            Ok(Header { name, value: Text::new(&of.value)? })
        };
        let parameter = |of: &NamedMatch| -> Result<Parameter, RegexError> {
            Ok(Parameter { name: of.name.as_str().into(), value: Text::new(&of.value)? })
        };
        Ok(Self {
            path: Path::new(of)?,
            method: of.method.as_ref().map(|method| method.as_str().as_bytes().into()),
            headers: of.headers.iter().map(header).collect::<Result<_, _>>()?,
            query: of.query.iter().map(parameter).collect::<Result<_, _>>()?,
            has_callers: !of.from.is_empty(),
        })
    }

    pub(super) fn rank(&self) -> Rank {
        let (class, named) = self.path.class();
        Rank {
            path: Reverse(class),
            named: Reverse(named),
            has_method: Reverse(self.method.is_some() || self.path.has_grpc_method()),
            headers: Reverse(self.headers.len()),
            query: Reverse(self.query.len()),
            has_callers: Reverse(self.has_callers),
        }
    }

    /// Whether it holds, and the length of the prefix of the path that it names.
    pub(super) fn matches(
        &self,
        request: &RoutedRequest<'_>,
        path: &[u8],
        query: &[u8],
    ) -> Option<Option<usize>> {
        let prefix = self.path.matches(path, request.is_grpc)?;
        let is_method = self.method.as_deref().is_none_or(|method| method == request.method);
        let has_header = |header: &Header| {
            let value = request.fields.value(&header.name);
            value.is_some_and(|value| header.value.matches(&value))
        };
        let has_parameter = |parameter: &Parameter| {
            let value = path::parameter(query, &parameter.name);
            value.is_some_and(|value| parameter.value.matches(&value))
        };
        let holds = is_method
            && self.headers.iter().all(has_header)
            && self.query.iter().all(has_parameter);
        holds.then_some(prefix)
    }
}
