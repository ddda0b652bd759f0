//! A document as a tree, with the position of each part. Aliases share what they name.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::rc::Rc;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

use tollway_model::decode_text;

use super::Reader;
use super::at::At;
use super::scalar::{Resolved, as_json, resolve};
use crate::yaml::{FileError, YamlError, no_text, read_bytes};

/// Most levels of lists and mappings within each other.
const DEPTH_LIMIT: usize = 100;
/// Most fields that merge keys bring into the mappings of a document.
const MERGED_LIMIT: usize = 200_000;
/// What ends a document of a file of resources, with the rest of its line.
const SEPARATOR: &str = "\n---";

/// A part of a document.
#[derive(Clone, Debug)]
pub struct Node {
    pub at: At,
    pub content: Content,
    /// Levels within it, those of aliases too.
    depth: usize,
}

/// What a part is.
#[derive(Clone, Debug)]
pub enum Content {
    Scalar {
        /// The text without quotes.
        written: String,
        resolved: Resolved,
    },
    List(Vec<Rc<Node>>),
    /// Keys in the order of the text, each once.
    Fields(Vec<(Key, Rc<Node>)>),
}

/// A key with its position.
#[derive(Clone, Debug)]
pub struct Key {
    pub at: At,
    pub name: String,
}

/// A document of a file: what was read of it, or why nothing was.
pub struct Document<'a> {
    /// The text of the document, for those who look for a word in what cannot be read.
    pub text: &'a str,
    /// `None` for one without content.
    pub node: Result<Option<Rc<Node>>, YamlError>,
}

/// The documents of a file of resources. One that cannot be read is no hindrance to the others. What
/// separates two begins with the end of the first one's last line, as for Dapr's reader.
pub fn documents<'a>(text: &'a str, source: &str) -> Vec<Document<'a>> {
    split(text, source, 0)
}

/// The documents of a file of manifests. Each has the end of its last line, as for `kubectl`: a block
/// at the end of a document ends with it.
pub fn manifests<'a>(text: &'a str, source: &str) -> Vec<Document<'a>> {
    split(text, source, 1)
}

/// The documents of a text, each with so many bytes of what separates it from the next.
fn split<'a>(text: &'a str, source: &str, ends_within: usize) -> Vec<Document<'a>> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (text, 0);
    loop {
        let (document, next) = match rest.find(SEPARATOR) {
            Some(at) => {
                let after = &rest[at + SEPARATOR.len()..];
                let skipped = after.find('\n').map_or(after.len(), |end| end + 1);
                (&rest[..at + ends_within], Some(&after[skipped..]))
            }
            None => (rest, None),
        };
        let node = parse(document, line, Reader::Resource, source);
        if !matches!(node, Ok(None)) {
            found.push(Document { text: document, node });
        }
        let Some(next) = next else { return found };
        line += lines(&rest[..rest.len() - next.len()]);
        rest = next;
    }
}

/// The first document of a file, which is all that is read of it; `None` without content.
///
/// # Errors
/// [`YamlError`] for what is no YAML.
pub fn only_document(
    text: &str,
    reader: Reader,
    source: &str,
) -> Result<Option<Rc<Node>>, YamlError> {
    parse(text, 0, reader, source)
}

/// The text of a file, which is UTF-8 with a byte order mark or without, or UTF-16 with one; `-` is
/// standard input.
///
/// # Errors
/// [`FileError`] when it cannot be read, is no text or is too large.
pub fn read_file(path: &Path) -> Result<String, FileError> {
    decode_text(read_bytes(path)?).ok_or_else(|| no_text(path, "it is no text in UTF-8 or UTF-16"))
}

fn lines(text: &str) -> u64 {
    u64::try_from(text.matches('\n').count()).unwrap_or(u64::MAX)
}

fn parse(
    text: &str,
    lines_before: u64,
    reader: Reader,
    source: &str,
) -> Result<Option<Rc<Node>>, YamlError> {
    let (stack, anchors) = (Vec::new(), HashMap::new());
    let mut builder = Builder { text, reader, lines_before, stack, anchors, merged: 0 };
    for event in Parser::new_from_str(text) {
        let (event, span) = event
            .map_err(|error| builder.no_yaml(&error))
            .map_err(|failure| failure.within(source))?;
        match builder.take(event, span) {
            Ok(None) => {}
            Ok(Some(root)) => return Ok(Some(root).filter(|root| !root.is_null())),
            Err(failure) => return Err(failure.within(source)),
        }
    }
    Ok(None)
}

/// A mistake in the form of the text.
struct Failure {
    at: At,
    what: String,
}

impl Failure {
    fn within(self, source: &str) -> YamlError {
        let Self { at, what } = self;
        YamlError { source_name: source.to_owned(), line: at.line, column: at.column, what }
    }
}

fn too_deep(at: At) -> Failure {
    Failure { at, what: format!("more than {DEPTH_LIMIT} levels within each other") }
}

/// A list or mapping that has not ended.
struct Open {
    at: At,
    anchor: usize,
    parts: Parts,
    depth: usize,
}

enum Parts {
    Items(Vec<Rc<Node>>),
    Pairs { key: Option<Rc<Node>>, fields: Fields, merged: Vec<Rc<Node>> },
}

/// The fields of a mapping in the order of the text, and where each name is.
#[derive(Default)]
struct Fields {
    list: Vec<(Key, Rc<Node>)>,
    places: HashMap<String, usize>,
}

struct Builder<'a> {
    text: &'a str,
    reader: Reader,
    lines_before: u64,
    stack: Vec<Open>,
    anchors: HashMap<usize, Rc<Node>>,
    /// Fields that merge keys have brought.
    merged: usize,
}

impl Builder<'_> {
    /// Takes an event; returns the root when it is whole.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the rest has no content")]
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<Option<Rc<Node>>, Failure> {
        let at = self.position(span.start.line(), span.start.col());
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let resolved = self.type_of(&text, style, tag.as_deref());
                let mut written = text.into_owned();
                if self.adds_line_break(&written, style, span) {
                    written.pop();
                }
                let content = Content::Scalar { written, resolved };
                self.complete(Node { at, content, depth: 0 }, anchor)
            }
            Event::SequenceStart(_, anchor, _) => self.open(at, anchor, Parts::Items(Vec::new())),
            Event::MappingStart(_, anchor, _) => {
                let parts =
                    Parts::Pairs { key: None, fields: Fields::default(), merged: Vec::new() };
                self.open(at, anchor, parts)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.stack.pop() {
                Some(Open { at, anchor, parts, depth }) => {
                    self.complete(Node { at, content: parts.whole(), depth }, anchor)
                }
                None => Ok(None),
            },
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some(node) => self.add(Rc::clone(node)),
                None => Err(Failure { at, what: "an alias within what it names".to_owned() }),
            },
            _ => Ok(None),
        }
    }

    fn open(&mut self, at: At, anchor: usize, parts: Parts) -> Result<Option<Rc<Node>>, Failure> {
        if self.stack.len() == DEPTH_LIMIT {
            return Err(too_deep(at));
        }
        self.stack.push(Open { at, anchor, parts, depth: 1 });
        Ok(None)
    }

    fn complete(&mut self, node: Node, anchor: usize) -> Result<Option<Rc<Node>>, Failure> {
        let node = Rc::new(node);
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.add(node)
    }

    /// Adds a part to what is open.
    fn add(&mut self, node: Rc<Node>) -> Result<Option<Rc<Node>>, Failure> {
        let reader = self.reader;
        let Some(open) = self.stack.last_mut() else { return Ok(Some(node)) };
        open.depth = open.depth.max(node.depth + 1);
        if open.depth > DEPTH_LIMIT {
            return Err(too_deep(open.at));
        }
        match &mut open.parts {
            Parts::Items(items) => items.push(node),
            Parts::Pairs { key, fields, merged } => match key.take() {
                None => *key = Some(node),
                Some(key) if key.is_merge() => {
                    let parts = mappings(&node)?;
                    self.merged += parts.iter().map(|part| part.fields().len()).sum::<usize>();
                    if self.merged > MERGED_LIMIT {
                        let what = format!("merge keys bring more than {MERGED_LIMIT} fields");
                        return Err(Failure { at: key.at, what });
                    }
                    merge(parts, reader, fields, merged)?;
                }
                Some(key) => {
                    let name = key.key_name(reader).ok_or_else(|| Failure {
                        at: key.at,
                        what: "a key that is no text".to_owned(),
                    })?;
                    fields.set(Key { at: key.at, name }, node, reader)?;
                }
            },
        }
        Ok(None)
    }

    fn position(&self, line: usize, column: usize) -> At {
        let number = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        At { line: number(line).saturating_add(self.lines_before), column: number(column) + 1 }
    }

    fn no_yaml(&self, error: &ScanError) -> Failure {
        let marker = error.marker();
        let at = self.position(marker.line(), marker.col());
        Failure { at, what: format!("it is no YAML: {}", error.kind()) }
    }

    /// Whether the line break at the end of a block is not in the file: the parser ends the last
    /// line where the file does not.
    fn adds_line_break(&self, block: &str, style: ScalarStyle, span: Span) -> bool {
        matches!(style, ScalarStyle::Literal | ScalarStyle::Folded)
            && block.ends_with('\n')
            && !self.text.ends_with(char::is_whitespace)
            && span.end.index() >= self.text.chars().count()
    }

    fn type_of(&self, text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Resolved {
        match tag.and_then(Tag::core_suffix) {
            Some("str") => Resolved::Text,
            Some(_) => resolve(text, self.reader),
            None if tag.is_some() || style != ScalarStyle::Plain => Resolved::Text,
            None => resolve(text, self.reader),
        }
    }
}

impl Parts {
    fn whole(self) -> Content {
        match self {
            Self::Items(items) => Content::List(items),
            Self::Pairs { mut fields, merged, .. } => {
                for (key, node) in merged.iter().flat_map(|node| node.fields()) {
                    if !fields.places.contains_key(&key.name) {
                        fields.add(key.clone(), Rc::clone(node));
                    }
                }
                Content::Fields(fields.list)
            }
        }
    }
}

/// The mappings that a merge key takes in.
fn mappings(node: &Rc<Node>) -> Result<Vec<&Rc<Node>>, Failure> {
    let parts: Vec<&Rc<Node>> = match &node.content {
        Content::List(items) => items.iter().collect(),
        Content::Fields(_) | Content::Scalar { .. } => vec![node],
    };
    match parts.iter().find(|part| !matches!(part.content, Content::Fields(_))) {
        Some(part) => {
            let what = "a merge key takes a mapping, or a list of them".to_owned();
            Err(Failure { at: part.at, what })
        }
        None => Ok(parts),
    }
}

/// Takes in a merge key. What stands beside it wins, but for the older readers only what follows.
fn merge(
    parts: Vec<&Rc<Node>>,
    reader: Reader,
    fields: &mut Fields,
    merged: &mut Vec<Rc<Node>>,
) -> Result<(), Failure> {
    if reader == Reader::Configuration {
        merged.extend(parts.into_iter().map(Rc::clone));
        return Ok(());
    }
    // The first of several wins.
    for (key, value) in parts.into_iter().rev().flat_map(|part| part.fields()) {
        fields.set(key.clone(), Rc::clone(value), reader)?;
    }
    Ok(())
}

impl Fields {
    fn set(&mut self, key: Key, node: Rc<Node>, reader: Reader) -> Result<(), Failure> {
        match self.places.get(&key.name).map(|place| &mut self.list[*place]) {
            Some((known, _)) if reader == Reader::Configuration => {
                let what = format!("`{}` is in line {} already; keep one", key.name, known.at.line);
                Err(Failure { at: key.at, what })
            }
            Some(known) => {
                *known = (key, node);
                Ok(())
            }
            None => {
                self.add(key, node);
                Ok(())
            }
        }
    }

    fn add(&mut self, key: Key, node: Rc<Node>) {
        self.places.insert(key.name.clone(), self.list.len());
        self.list.push((key, node));
    }
}

impl Node {
    /// No value, as `null` or nothing after a key.
    pub fn is_null(&self) -> bool {
        matches!(self.content, Content::Scalar { resolved: Resolved::Null, .. })
    }

    /// The keys and values of a mapping; none of others.
    pub fn fields(&self) -> &[(Key, Rc<Node>)] {
        match &self.content {
            Content::Fields(fields) => fields,
            Content::List(_) | Content::Scalar { .. } => &[],
        }
    }

    /// The value of a key of a mapping, which has this very name.
    pub fn field(&self, name: &str) -> Option<&Rc<Self>> {
        self.fields().iter().find(|(key, _)| key.name == name).map(|(_, node)| node)
    }

    /// Whether a text within it begins with `start`.
    pub fn mentions(&self, start: &str) -> bool {
        // What aliases share is looked at once.
        let mut seen = HashSet::new();
        let mut left = vec![self];
        while let Some(node) = left.pop() {
            if !seen.insert(std::ptr::from_ref(node)) {
                continue;
            }
            match &node.content {
                Content::Scalar { written, .. } if written.starts_with(start) => return true,
                Content::Scalar { .. } => {}
                Content::List(items) => left.extend(items.iter().map(|item| &**item)),
                Content::Fields(fields) => left.extend(fields.iter().map(|(_, node)| &**node)),
            }
        }
        false
    }

    fn is_merge(&self) -> bool {
        matches!(&self.content, Content::Scalar { written, .. } if written == "<<")
    }

    /// The text of a key. Of resources Go reads keys as values, so that `N` is `false`.
    fn key_name(&self, reader: Reader) -> Option<String> {
        match &self.content {
            Content::Scalar { resolved: Resolved::Null, .. } => None,
            Content::Scalar { written, resolved } => {
                let value = as_json(*resolved).filter(|_| reader == Reader::Resource);
                Some(value.unwrap_or_else(|| written.clone()))
            }
            Content::List(_) | Content::Fields(_) => None,
        }
    }
}
