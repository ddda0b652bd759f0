//! What callers may ask of an app, as Dapr's access control has it: a default for each, and
//! operations that differ from it, of which the most particular counts.
//!
//! The list is the app's own. A call must be allowed by the list and by the policies.

use std::cmp::Reverse;

use tollway_model::{Caller, CallerPattern, MethodName, ObjectName, OperationPath, ServiceName};

use super::{PolicyReason, PolicyRefusal};

/// What is done with a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Allow,
    Deny,
}

/// Access rules of one app.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessList {
    /// What a refusal names.
    pub name: ObjectName,
    /// For callers that no entry names.
    pub default: Action,
    /// The first that names a caller is its own.
    pub callers: Vec<CallerAccess>,
}

/// What one caller may ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallerAccess {
    pub caller: CallerPattern,
    /// For what no operation names.
    pub default: Action,
    pub operations: Vec<Operation>,
}

/// Calls that are treated alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Compared without case. `**` before its end stands for one segment where it allows, as in
    /// Dapr, and for several where it denies, as Dapr's documentation has it.
    pub path: OperationPath,
    /// Empty means every method.
    pub methods: Vec<MethodName>,
    pub action: Action,
}

/// The place of a caller's entry; `None` where there is none.
pub(super) type Entry = Option<usize>;

impl AccessList {
    pub(super) fn entry(&self, caller: Caller<'_>, service: &ServiceName) -> Entry {
        let (namespace, network) = (&service.namespace, &service.network);
        self.callers.iter().position(|entry| entry.caller.matches(caller, namespace, network))
    }

    /// Whether the decision depends on the request.
    pub(super) fn looks_at_paths(&self, entry: Entry) -> bool {
        entry.is_some_and(|at| !self.callers[at].operations.is_empty())
    }

    /// Whether a request is let in; `path` is in its normal form.
    pub(super) fn decide(
        &self,
        entry: Entry,
        method: &[u8],
        path: &[u8],
    ) -> Result<(), PolicyRefusal> {
        let named = entry.and_then(|at| self.callers[at].named(method, path));
        match named {
            Some(action) => self.judge(action, PolicyReason::Denied),
            None => self.decide_connection(entry),
        }
    }

    /// Decides where only the caller is known.
    pub(super) fn decide_connection(&self, entry: Entry) -> Result<(), PolicyRefusal> {
        let default = entry.map_or(self.default, |at| self.callers[at].default);
        self.judge(default, PolicyReason::NotAllowed)
    }

    fn judge(&self, action: Action, reason: PolicyReason) -> Result<(), PolicyRefusal> {
        match action {
            Action::Allow => Ok(()),
            Action::Deny => Err(PolicyRefusal { policy: self.name.clone(), why: reason }),
        }
    }
}

impl CallerAccess {
    /// What is done with a request that an operation names. Of several paths that cover it the
    /// longest counts, then the one with fewest stars, then one that ends there.
    fn named(&self, method: &[u8], path: &[u8]) -> Option<Action> {
        let covering = || self.operations.iter().filter(|operation| operation.covers(path));
        let closest = covering().map(|operation| closeness(&operation.path)).max()?;
        let mut closest = covering().filter(|operation| closeness(&operation.path) == closest);
        closest.find(|operation| operation.takes(method)).map(|operation| operation.action)
    }
}

impl Operation {
    fn covers(&self, path: &[u8]) -> bool {
        self.path.covers(path, self.action == Action::Deny)
    }

    fn takes(&self, method: &[u8]) -> bool {
        let same = |own: &MethodName| own.as_str().as_bytes().eq_ignore_ascii_case(method);
        self.methods.is_empty() || self.methods.iter().any(same)
    }
}

fn closeness(path: &OperationPath) -> (usize, Reverse<usize>, bool) {
    (path.length(), Reverse(path.stars()), !path.includes_below())
}

#[cfg(test)]
mod tests {
    use tollway_model::{Label, SpiffeId};

    use super::*;

    fn operation(path: &str, methods: &[&str], action: Action) -> Operation {
        let methods = methods.iter().map(|name| MethodName::new(name).unwrap()).collect();
        Operation { path: path.parse().unwrap(), methods, action }
    }

    fn list(default: Action, callers: Vec<CallerAccess>) -> AccessList {
        let name = ObjectName::new("default", "accessControl").unwrap();
        AccessList { name, default, callers }
    }

    fn entry(caller: &str, default: Action, operations: Vec<Operation>) -> CallerAccess {
        CallerAccess { caller: caller.parse().unwrap(), default, operations }
    }

    #[track_caller]
    fn check(list: &AccessList, caller: &str, asked: &str, expected: Action) {
        let label = |text| Label::new(text).unwrap();
        let own = ServiceName::parse_in("stock", &label("default"), &label("west")).unwrap();
        let spiffe = SpiffeId::parse(caller).unwrap();
        let network = spiffe.trust_domain.to_string();
        let network = label(network.trim_end_matches(".tollway"));
        let at = list.entry(Caller { spiffe: &spiffe, network: &network }, &own);
        let (method, path) = asked.split_once(' ').unwrap();
        let decided = list.decide(at, method.as_bytes(), path.as_bytes());
        assert_eq!(decided.is_ok(), expected == Action::Allow, "{caller} {asked}: {decided:?}");
    }

    const WEB: &str = "spiffe://west.tollway/ns/default/web";
    const OTHER: &str = "spiffe://west.tollway/ns/default/other";
    const ELSEWHERE: &str = "spiffe://west.tollway/ns/shop/web";
    const ABROAD: &str = "spiffe://east.tollway/ns/default/web";

    #[test]
    fn each_caller_has_a_default_of_its_own() {
        use Action::{Allow, Deny};
        for (default, named) in [(Deny, Allow), (Allow, Deny)] {
            let list = list(default, vec![entry("web.default", named, Vec::new())]);
            check(&list, WEB, "GET /a", named);
            for other in [OTHER, ELSEWHERE, ABROAD] {
                check(&list, other, "GET /a", default);
            }
        }
        let abroad = entry("spiffe://east.tollway/ns/default/web", Allow, Vec::new());
        let list = list(Deny, vec![abroad]);
        check(&list, ABROAD, "GET /a", Allow);
        check(&list, WEB, "GET /a", Deny);
    }

    #[test]
    fn the_most_particular_operation_counts() {
        use Action::{Allow, Deny};
        let operations = vec![
            operation("/**", &["GET"], Allow),
            operation("/orders/**", &[], Deny),
            operation("/orders/*", &["GET"], Allow),
            operation("/orders/secret", &[], Deny),
            operation("/v*/items", &[], Deny),
            operation("/rooms/**/key", &[], Deny),
            operation("/halls/**/key", &[], Allow),
            operation("/halls/**", &[], Deny),
            operation("/Both", &["GET"], Allow),
            operation("/Both", &["POST"], Deny),
        ];
        let list = list(Deny, vec![entry("web.default", Allow, operations)]);
        for (asked, expected) in [
            ("GET /", Allow),
            ("GET /a/b/c", Allow),
            ("GET /orders", Deny),
            ("GET /orders/7", Allow),
            ("get /ORDERS/7/", Allow),
            ("GET /v1/items", Deny),
            ("GET /v1/orders", Allow),
            ("GET /rooms/a/key", Deny),
            ("GET /rooms/a/b/key", Deny),
            ("GET /halls/a/key", Allow),
            ("GET /halls/a/b/key", Deny),
            ("GET /orders/7/8", Deny),
            ("GET /orders/secret", Deny),
            ("GET /orders/SECRET", Deny),
            ("GET /both", Allow),
            ("POST /both", Deny),
            // What is named for other methods alone is not named.
            ("PUT /both", Allow),
            ("POST /orders/7", Allow),
        ] {
            check(&list, WEB, asked, expected);
        }
    }

    #[test]
    fn a_path_alone_counts_before_the_same_path_with_all_below() {
        use Action::{Allow, Deny};
        for (here, below) in [(Allow, Deny), (Deny, Allow)] {
            let operations = vec![operation("/a/**", &[], below), operation("/a", &[], here)];
            let list = list(Deny, vec![entry("web.default", Deny, operations)]);
            check(&list, WEB, "GET /a", here);
            check(&list, WEB, "GET /a/b", below);
        }
    }

    #[test]
    fn a_refusal_distinguishes_a_denial_from_a_missing_rule() {
        let operations = vec![operation("/a", &[], Action::Deny)];
        let list = list(Action::Allow, vec![entry("web.default", Action::Deny, operations)]);
        let why = |path: &[u8]| list.decide(Some(0), b"GET", path).unwrap_err().to_string();
        assert_eq!(why(b"/a"), "policy default/accessControl denies it");
        let open = "policy default/accessControl is in force and no rule allows it";
        assert_eq!(why(b"/b"), open);
        assert_eq!(list.decide_connection(Some(0)).unwrap_err().to_string(), open);
        assert_eq!(list.decide_connection(None), Ok(()));
    }
}
