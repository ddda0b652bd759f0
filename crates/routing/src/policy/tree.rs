//! Rules by path: a tree of segments, so that a decision costs the depth of the path and not the
//! number of rules.

use std::cmp::Ordering;

use tollway_model::{MethodName, PathPattern, PatternSegment, PolicyName, PolicyRule};

/// Whether `/Admin` and `/admin` (and `get` and `GET`) are the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Case {
    Kept,
    Ignored,
}

/// Rules of one effect.
#[derive(Debug)]
pub(super) struct RuleTree {
    case: Case,
    root: Node,
}

#[derive(Debug, Default)]
struct Node {
    /// Children by segment, sorted; in lower case where case is ignored.
    named: Vec<(Box<[u8]>, Self)>,
    /// The child for any segment.
    any: Option<Box<Self>>,
    /// Rules whose path ends here.
    here: Vec<Entry>,
    /// Rules for here and everything below.
    below: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    policy: PolicyName,
    /// Empty means every method.
    methods: Box<[MethodName]>,
}

impl RuleTree {
    pub(super) fn new(case: Case) -> Self {
        Self { case, root: Node::default() }
    }

    /// Adds a rule; its callers have been looked at.
    pub(super) fn insert(&mut self, policy: &PolicyName, rule: &PolicyRule) {
        let entry = || Entry { policy: policy.clone(), methods: rule.methods.as_slice().into() };
        if rule.paths.is_empty() {
            return put(&mut self.root.below, entry());
        }
        for pattern in &rule.paths {
            let node = self.root.descend(pattern, self.case);
            let entries = if pattern.includes_below() { &mut node.below } else { &mut node.here };
            put(entries, entry());
        }
    }

    /// The policy of a rule that holds for a request; `path` is in its normal form.
    pub(super) fn find(&self, method: &[u8], path: &[u8]) -> Option<&PolicyName> {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let path = path.strip_suffix(b"/").unwrap_or(path);
        let rest = if path.is_empty() { None } else { Some(path) };
        self.root.find(method, rest, self.case)
    }
}

/// Adds an entry unless an earlier one holds whenever it does.
fn put(entries: &mut Vec<Entry>, entry: Entry) {
    let covers = |earlier: &Entry| {
        earlier.methods.is_empty()
            || (!entry.methods.is_empty()
                && entry.methods.iter().all(|method| earlier.methods.contains(method)))
    };
    if !entries.iter().any(covers) {
        entries.push(entry);
    }
}

impl Node {
    /// The node at the end of a pattern's segments, made where it is not there.
    fn descend(&mut self, pattern: &PathPattern, case: Case) -> &mut Self {
        pattern.segments().iter().fold(self, |node, segment| match segment {
            PatternSegment::Any => &mut **node.any.get_or_insert_default(),
            PatternSegment::Is(bytes) => node.named_child(bytes, case),
        })
    }

    fn named_child(&mut self, segment: &[u8], case: Case) -> &mut Self {
        let at = match self.position(segment, case) {
            Ok(at) => at,
            Err(at) => {
                let kept = match case {
                    Case::Kept => segment.into(),
                    Case::Ignored => segment.to_ascii_lowercase().into(),
                };
                self.named.insert(at, (kept, Self::default()));
                at
            }
        };
        &mut self.named[at].1
    }

    fn position(&self, segment: &[u8], case: Case) -> Result<usize, usize> {
        self.named.binary_search_by(|(known, _)| compare(known, segment, case))
    }

    /// `rest` are the segments that are still to come, joined by slashes; `None` when there are
    /// none. Depth and number of visited nodes are bounded by the rules, not by the request.
    fn find(&self, method: &[u8], rest: Option<&[u8]>, case: Case) -> Option<&PolicyName> {
        if let Some(policy) = holds(&self.below, method, case) {
            return Some(policy);
        }
        let Some(rest) = rest else { return holds(&self.here, method, case) };
        if self.named.is_empty() && self.any.is_none() {
            return None;
        }
        let end = rest.iter().position(|byte| *byte == b'/');
        let (segment, rest) = match end {
            Some(end) => (&rest[..end], Some(&rest[end + 1..])),
            None => (rest, None),
        };
        let named = self.position(segment, case).ok();
        named
            .and_then(|at| self.named[at].1.find(method, rest, case))
            .or_else(|| self.any.as_ref().and_then(|any| any.find(method, rest, case)))
    }
}

fn holds<'a>(entries: &'a [Entry], method: &[u8], case: Case) -> Option<&'a PolicyName> {
    let same = |known: &MethodName| match case {
        Case::Kept => known.as_str().as_bytes() == method,
        Case::Ignored => known.as_str().as_bytes().eq_ignore_ascii_case(method),
    };
    let found = entries.iter().find(|e| e.methods.is_empty() || e.methods.iter().any(same));
    found.map(|entry| &entry.policy)
}

/// The order of a known segment and one that is looked for; `known` is in lower case already
/// where case is ignored.
fn compare(known: &[u8], segment: &[u8], case: Case) -> Ordering {
    match case {
        Case::Kept => known.cmp(segment),
        Case::Ignored => known.iter().copied().cmp(segment.iter().map(u8::to_ascii_lowercase)),
    }
}
