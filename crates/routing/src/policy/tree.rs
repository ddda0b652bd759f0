//! Rules by path: a tree of segments, so that a decision costs the depth of the path and not the
//! number of rules. One tree serves all callers: its rules are listed by audience, and a request
//! has the audiences of its caller.

use std::cmp::Ordering;

use tollway_model::{MethodName, PathPattern, PatternSegment, PolicyRule};

/// The number of an audience: the callers of rules with the same `from` list.
pub(super) type Audience = u32;
/// The place of a policy in its set.
pub(super) type PolicyAt = u32;

/// Whether `/Admin` and `/admin` (and `get` and `GET`) are the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Case {
    Sensitive,
    Insensitive,
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
    here: Entries,
    /// Rules for here and everything below.
    below: Entries,
}

/// Rules at one place, by audience.
#[derive(Debug, Default)]
struct Entries(Vec<(Audience, Vec<Entry>)>);

#[derive(Debug)]
struct Entry {
    policy: PolicyAt,
    /// Empty means every method.
    methods: Box<[MethodName]>,
}

/// A request and the audiences of its caller.
#[derive(Clone, Copy)]
struct Question<'a> {
    /// Sorted.
    audiences: &'a [Audience],
    method: &'a [u8],
    case: Case,
}

impl RuleTree {
    pub(super) fn new(case: Case) -> Self {
        Self { case, root: Node::default() }
    }

    /// Adds a rule of a policy.
    pub(super) fn insert(&mut self, policy: PolicyAt, audience: Audience, rule: &PolicyRule) {
        let entry = || Entry { policy, methods: rule.methods.as_slice().into() };
        if rule.paths.is_empty() {
            return self.root.below.put(audience, entry());
        }
        for pattern in &rule.paths {
            let node = self.root.descend(pattern, self.case);
            let entries = if pattern.includes_below() { &mut node.below } else { &mut node.here };
            entries.put(audience, entry());
        }
    }

    /// The policy of a rule that matches a request of a caller in `audiences` (sorted). `path` is
    /// in its normal form.
    pub(super) fn find(
        &self,
        audiences: &[Audience],
        method: &[u8],
        path: &[u8],
    ) -> Option<PolicyAt> {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let path = path.strip_suffix(b"/").unwrap_or(path);
        let rest = if path.is_empty() { None } else { Some(path) };
        self.root.find(Question { audiences, method, case: self.case }, rest)
    }
}

impl Entries {
    /// Adds an entry unless an earlier one for the same callers holds whenever it does.
    fn put(&mut self, audience: Audience, entry: Entry) {
        let at = match self.0.binary_search_by_key(&audience, |(known, _)| *known) {
            Ok(at) => at,
            Err(at) => {
                self.0.insert(at, (audience, Vec::with_capacity(1)));
                at
            }
        };
        let entries = &mut self.0[at].1;
        let covers = |earlier: &Entry| {
            earlier.methods.is_empty()
                || (!entry.methods.is_empty()
                    && entry.methods.iter().all(|method| earlier.methods.contains(method)))
        };
        if !entries.iter().any(covers) {
            entries.push(entry);
        }
    }

    /// Goes through the shorter of two lists: the audiences here, and those of the caller.
    fn find(&self, asked: Question<'_>) -> Option<PolicyAt> {
        // Mutant `replace <= with >`: both lists give the same, the longer one later.
        if self.0.len() <= asked.audiences.len() {
            let mut here = self.0.iter();
            return here.find_map(|(audience, entries)| {
                asked.audiences.binary_search(audience).ok()?;
                holds(entries, asked)
            });
        }
        asked.audiences.iter().find_map(|audience| {
            let at = self.0.binary_search_by_key(audience, |(known, _)| *known).ok()?;
            holds(&self.0[at].1, asked)
        })
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
                    Case::Sensitive => segment.into(),
                    Case::Insensitive => segment.to_ascii_lowercase().into(),
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
    fn find(&self, asked: Question<'_>, rest: Option<&[u8]>) -> Option<PolicyAt> {
        if let Some(policy) = self.below.find(asked) {
            return Some(policy);
        }
        let Some(rest) = rest else { return self.here.find(asked) };
        if self.named.is_empty() && self.any.is_none() {
            return None;
        }
        let end = rest.iter().position(|byte| *byte == b'/');
        let (segment, rest) = match end {
            Some(end) => (&rest[..end], Some(&rest[end + 1..])),
            None => (rest, None),
        };
        let named = self.position(segment, asked.case).ok();
        named
            .and_then(|at| self.named[at].1.find(asked, rest))
            .or_else(|| self.any.as_ref().and_then(|any| any.find(asked, rest)))
    }
}

fn holds(entries: &[Entry], asked: Question<'_>) -> Option<PolicyAt> {
    let same = |known: &MethodName| match asked.case {
        Case::Sensitive => known.as_str().as_bytes() == asked.method,
        Case::Insensitive => known.as_str().as_bytes().eq_ignore_ascii_case(asked.method),
    };
    let found = entries.iter().find(|e| e.methods.is_empty() || e.methods.iter().any(same));
    found.map(|entry| entry.policy)
}

/// The order of a known segment and the requested one; `known` is in lower case if case is ignored.
fn compare(known: &[u8], segment: &[u8], case: Case) -> Ordering {
    match case {
        Case::Sensitive => known.cmp(segment),
        Case::Insensitive => known.iter().copied().cmp(segment.iter().map(u8::to_ascii_lowercase)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_add_nothing_take_no_memory() {
        let mut tree = RuleTree::new(Case::Sensitive);
        let mut entries = |policy, methods: &[&str]| {
            let methods = methods.iter().map(|name| MethodName::new(name).unwrap()).collect();
            tree.insert(policy, 7, &PolicyRule { methods, ..PolicyRule::default() });
            tree.root.below.0[0].1.len()
        };
        assert_eq!(entries(0, &["GET", "PUT"]), 1);
        assert_eq!(entries(1, &["PUT"]), 1, "a part of what is there");
        assert_eq!(entries(2, &["PUT", "POST"]), 2);
        assert_eq!(entries(3, &[]), 3, "every method is more than some");
        assert_eq!(entries(4, &[]), 3);
        assert_eq!(entries(5, &["PATCH"]), 3, "every method is there");
    }
}
