//! Decisions against policies as they are written, and against a model without a tree.

use proptest::prelude::*;
use tollway_model::{
    CallerPattern, Label, MethodName, NetworkName, PathPattern, PatternSegment, PolicyRule,
    PolicyTarget, SpiffeId,
};

use super::*;

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn stock() -> ServiceName {
    ServiceName::parse_in("stock.shop", &label("x"), &label("west")).unwrap()
}

/// `FROM METHODS PATHS`, each a list with commas or `any`.
fn rule(text: &str) -> PolicyRule {
    fn list<T: std::str::FromStr<Err: fmt::Debug>>(text: &str) -> Vec<T> {
        if text == "any" {
            Vec::new()
        } else {
            text.split(',').map(|t| t.parse().unwrap()).collect()
        }
    }
    let parts: Vec<_> = text.split(' ').collect();
    PolicyRule { from: list(parts[0]), methods: list(parts[1]), paths: list(parts[2]) }
}

fn policy(name: &str, allow: Option<&[&str]>, deny: &[&str]) -> Arc<Policy> {
    let rules = |texts: &[&str]| texts.iter().map(|text| rule(text)).collect();
    let policy = Policy {
        name: ObjectName::new("shop", name).unwrap(),
        target: PolicyTarget::App(label("stock")),
        mode: Mode::Enforce,
        allow: allow.map(rules),
        deny: rules(deny),
    };
    policy.check().unwrap();
    Arc::new(policy)
}

struct Who {
    spiffe: SpiffeId,
    network: NetworkName,
}

impl Who {
    /// `app.namespace.network`.
    fn new(name: &str) -> Self {
        let parts: Vec<_> = name.split('.').collect();
        let id = format!("spiffe://{}.tollway/ns/{}/{}", parts[2], parts[1], parts[0]);
        Self { spiffe: SpiffeId::parse(&id).unwrap(), network: label(parts[2]) }
    }

    fn caller(&self) -> Caller<'_> {
        Caller { spiffe: &self.spiffe, network: &self.network }
    }
}

fn view(policies: &[Arc<Policy>], who: &str) -> CallerView {
    PolicySet::new(stock(), policies.to_vec()).view(Who::new(who).caller())
}

/// What becomes of `METHOD TARGET`: `ok`, `ok TARGET` when it is changed, or who refuses.
#[track_caller]
fn check(view: &CallerView, request: &str, expected: &str) {
    let (method, target) = request.split_once(' ').unwrap();
    let decided = match view.decide_request(method.as_bytes(), target.as_bytes()) {
        Ok(None) => "ok".to_owned(),
        Ok(Some(target)) => format!("ok {}", String::from_utf8(target).unwrap()),
        Err(RequestRefusal::Policy(refusal)) => match refusal.why {
            PolicyReason::Denied => format!("denied by {}", refusal.policy.name),
            PolicyReason::NotAllowed => format!("closed by {}", refusal.policy.name),
        },
        Err(RequestRefusal::Path(_)) => "bad path".to_owned(),
    };
    assert_eq!(decided, expected, "{request}");
}

const WEB: &str = "web.shop.west";
const FAR: &str = "web.shop.east";

#[test]
fn without_policies_everything_is_open() {
    let set = PolicySet::new(stock(), []);
    assert!(set.is_empty());
    let view = set.view(Who::new(FAR).caller());
    check(&view, "DELETE //a/../%2e", "ok");
    assert_eq!(view.decide_connection(), Ok(()));
}

#[test]
fn policies_of_other_services_do_not_count() {
    let mut other = Policy::clone(&policy("p", Some(&[]), &[]));
    other.target = PolicyTarget::App(label("orders"));
    assert!(PolicySet::new(stock(), [Arc::new(other.clone())]).is_empty());
    other.target = PolicyTarget::Namespace;
    assert!(!PolicySet::new(stock(), [Arc::new(other)]).is_empty());
}

#[test]
fn an_allow_list_closes_the_service_for_the_rest() {
    let policies = [policy("readers", Some(&["web GET /items/**"]), &[])];
    let web = view(&policies, WEB);
    check(&web, "GET /items/7?x", "ok");
    check(&web, "GET /items", "ok");
    check(&web, "GET /items/", "ok");
    check(&web, "POST /items/7", "closed by readers");
    check(&web, "GET /itemsets", "closed by readers");
    check(&web, "GET /", "closed by readers");
    let far = view(&policies, FAR);
    check(&far, "GET /items/7", "closed by readers");
}

#[test]
fn an_empty_allow_list_closes_the_service_to_everybody() {
    let closed = view(&[policy("closed", Some(&[]), &[])], WEB);
    check(&closed, "GET /", "closed by closed");
    let opened = [policy("closed", Some(&[]), &[]), policy("web", Some(&["web any any"]), &[])];
    check(&view(&opened, WEB), "GET /", "ok");
    check(&view(&opened, FAR), "GET /", "closed by closed");
}

#[test]
fn deny_wins_over_any_allow() {
    let policies = [
        policy("a", Some(&["any any any"]), &[]),
        policy("b", None, &["*.*.east any /admin/**", "any DELETE any"]),
    ];
    let (web, far) = (view(&policies, WEB), view(&policies, FAR));
    check(&web, "GET /admin/x", "ok");
    check(&far, "GET /admin/x", "denied by b");
    check(&far, "GET /admin", "denied by b");
    check(&far, "GET /administrators", "ok");
    check(&web, "DELETE /a", "denied by b");
}

#[test]
fn a_deny_without_an_allow_leaves_the_rest_open() {
    let policies = [policy("p", None, &["any any /admin/**"])];
    check(&view(&policies, FAR), "GET /a", "ok");
    check(&view(&policies, FAR), "GET /admin", "denied by p");
}

#[test]
fn templates_stand_for_whole_segments() {
    let policies = [policy("p", Some(&["any GET /users/{id}/orders,/users/me/**"]), &[])];
    let web = view(&policies, WEB);
    check(&web, "GET /users/7/orders", "ok");
    check(&web, "GET /users/7/orders/", "ok");
    check(&web, "GET /users/7/orders/1", "closed by p");
    check(&web, "GET /users//orders", "closed by p");
    check(&web, "GET /users/me", "ok");
    // The named branch leads nowhere here, the other one does.
    check(&web, "GET /users/me/orders", "ok");
    let both = [policy("p", Some(&["any GET /a/b/c,/a/*/d"]), &[])];
    check(&view(&both, WEB), "GET /a/b/d", "ok");
}

#[test]
fn grpc_calls_are_paths() {
    let policies = [policy("p", Some(&["any POST /shop.Stock/Get,/grpc.health.v1.Health/*"]), &[])];
    let web = view(&policies, WEB);
    check(&web, "POST /shop.Stock/Get", "ok");
    check(&web, "POST /grpc.health.v1.Health/Check", "ok");
    check(&web, "POST /shop.Stock/Delete", "closed by p");
}

/// Known bypasses of a rule in other proxies, each against a deny and against an allow.
#[test]
fn no_spelling_of_a_path_gets_around_a_rule() {
    let deny = view(&[policy("p", None, &["any any /admin/**"])], WEB);
    let spellings = [
        "/admin",
        "/admin/",
        "//admin",
        "/./admin",
        "/a/../admin",
        "/%61dmin",
        "/%2e/admin",
        "/a/%2e%2e/admin",
        "/admin//x",
        "/ADMIN",
        "/Admin/x",
        "/admin;x=1",
        "/admin;x/y",
        "/admin%3bx",
        "/admin%2fx",
        "/admin%5Cx",
        "/admin\\x",
        "/admin/..;x",
        "/admin%2e%2e/../admin",
    ];
    for spelling in spellings {
        let request = (b"GET", spelling.as_bytes());
        assert!(deny.decide_request(request.0, request.1).is_err(), "{spelling}");
    }
    for refused in ["/%252561dmin", "/a/..%2fadmin", "/a/..;/admin", "/a/..%00/admin", "/%c0%af"] {
        check(&deny, &format!("GET {refused}"), "bad path");
    }
    let allow = view(&[policy("p", Some(&["any GET /public/**"]), &[])], WEB);
    for spelling in ["/public/../admin", "/public/%2e%2e/admin", "/PUBLIC/a", "/public;x/../admin"]
    {
        assert!(allow.decide_request(b"GET", spelling.as_bytes()).is_err(), "{spelling}");
    }
    check(&allow, "GET /public//a", "ok /public/a");
    check(&allow, "GET /x/../public/a?q", "ok /public/a?q");
    // Both readings are below /public.
    check(&allow, "GET /public/a%2Fb", "ok");
    check(&allow, "GET /public%2Fa", "closed by p");
}

#[test]
fn deny_ignores_case_and_allow_does_not() {
    let policies = [policy("p", Some(&["any GET /a"]), &["any DELETE /b"])];
    let web = view(&policies, WEB);
    check(&web, "get /a", "closed by p");
    check(&web, "GET /A", "closed by p");
    check(&web, "delete /B", "denied by p");
}

#[test]
fn paths_are_untouched_where_no_rule_looks_at_them() {
    let policies = [policy("p", Some(&["web GET any"]), &[])];
    check(&view(&policies, WEB), "GET //a/%2F/../b", "ok");
}

#[test]
fn a_connection_is_judged_by_its_caller_alone() {
    let check = |allow: Option<&[&str]>, deny: &[&str], expected: &str| {
        let decided = view(&[policy("p", allow, deny)], WEB).decide_connection();
        let decided = decided.map_or_else(|refusal| refusal.to_string(), |()| "ok".to_owned());
        assert_eq!(decided, expected);
    };
    check(Some(&["web any any"]), &[], "ok");
    check(Some(&["orders any any"]), &[], "policy shop/p is in force and no rule allows it");
    // The condition of an allow rule cannot be shown, that of a deny rule cannot be excluded.
    check(Some(&["web GET any"]), &[], "policy shop/p is in force and no rule allows it");
    check(None, &["web GET /admin"], "policy shop/p denies it");
    check(None, &["orders any any"], "ok");
}

#[test]
fn the_network_can_be_closed_and_opened_by_service() {
    let closed = Policy {
        name: ObjectName::new("tollway", "closed").unwrap(),
        target: PolicyTarget::Network,
        mode: Mode::Enforce,
        allow: Some(Vec::new()),
        deny: Vec::new(),
    };
    closed.check().unwrap();
    let policies = [Arc::new(closed), policy("web", Some(&["web any any"]), &[])];
    check(&view(&policies, WEB), "GET /", "ok");
    check(&view(&policies, FAR), "GET /", "closed by web");
    check(&view(&policies[..1], WEB), "GET /", "closed by closed");
}

/// The own list of the service: `web` may read below `/open` and in `/one`, `batch` may do all.
fn listed(caller: &str) -> CallerView {
    let entry = |caller: &str, default, operations| CallerAccess {
        caller: caller.parse().unwrap(),
        default,
        operations,
    };
    let read = |path: &str| Operation {
        path: path.parse().unwrap(),
        methods: vec![MethodName::new("GET").unwrap()],
        action: Action::Allow,
    };
    let list = AccessList {
        name: ObjectName::new("shop", "accessControl").unwrap(),
        default: Action::Deny,
        callers: vec![
            entry("web", Action::Deny, vec![read("/open/**"), read("/one/*")]),
            entry("batch", Action::Allow, Vec::new()),
        ],
    };
    let set = PolicySet::new(stock(), []).with_access_list(Arc::new(list));
    assert!(!set.is_empty(), "a list protects the service");
    set.view(Who::new(caller).caller())
}

#[test]
fn the_services_own_list_keeps_out_whom_it_does_not_admit() {
    let check = |caller: &str, request: &str, expected: Result<Option<&str>, &str>| {
        let (method, target) = request.split_once(' ').unwrap();
        let decided = listed(caller).decide_access(method.as_bytes(), target.as_bytes());
        let decided = decided
            .map(|target| target.map(|bytes| String::from_utf8(bytes).unwrap()))
            .map_err(|refusal| match refusal {
                RequestRefusal::Policy(PolicyRefusal { why: PolicyReason::Denied, .. }) => "denied",
                RequestRefusal::Policy(_) => "not allowed",
                RequestRefusal::Path(_) => "bad path",
            });
        assert_eq!(decided, expected.map(|target| target.map(str::to_owned)), "{caller} {request}");
    };
    check(WEB, "GET /open/a", Ok(None));
    check(WEB, "GET /open//a", Ok(Some("/open/a")));
    check(WEB, "GET /shut/../open/a", Ok(Some("/open/a")));
    check(WEB, "GET /one/a", Ok(None));
    // The last one is `/one/a/b` to some servers.
    for request in ["GET /", "PUT /open/a", "GET /open/../shut", "GET /one/a%2Fb"] {
        check(WEB, request, Err("not allowed"));
    }
    for request in ["GET /open/%zz", "GET /open/..%2Fshut"] {
        check(WEB, request, Err("bad path"));
    }
    // No operation depends on the path, so it stays as it is.
    check("batch.shop.west", "PUT //a/../%zz", Ok(None));
    check("other.shop.west", "GET /open/a", Err("not allowed"));
    check(FAR, "GET /open/a", Err("not allowed"));
}

#[test]
fn a_caller_is_counted_as_named_where_the_list_names_it() {
    assert_eq!(listed(WEB).is_named(), Some(true));
    assert_eq!(listed(FAR).is_named(), Some(false));
    assert_eq!(view(&[policy("p", None, &["web any any"])], WEB).is_named(), None);
}

#[test]
fn the_policy_that_admits_a_request_is_named() {
    let by = |policies: &[Arc<Policy>], request: &str| {
        let (method, target) = request.split_once(' ').unwrap();
        let view = view(policies, WEB);
        let policy = view.allowed_by(method.as_bytes(), target.as_bytes());
        policy.map(|policy| policy.name.to_string())
    };
    let paths = policy("paths", Some(&["web GET /a", "web any /b/**"]), &[]);
    let callers = policy("callers", Some(&["web PUT any"]), &[]);
    let named = |name: &str| Some(name.to_owned());
    assert_eq!(by(std::slice::from_ref(&callers), "PUT //x"), named("callers"));
    assert_eq!(by(std::slice::from_ref(&callers), "GET //x"), None);
    let both = [paths, callers];
    assert_eq!(by(&both, "GET /a"), named("paths"));
    assert_eq!(by(&both, "PATCH /b/c"), named("paths"));
    assert_eq!(by(&both, "PUT /a"), named("callers"));
    assert_eq!(by(&both, "PUT /%zz"), None);
    assert_eq!(by(&[policy("p", None, &["orders any any"])], "GET /"), None, "nothing is closed");
}

/// The rules as one would write them down, without a tree.
fn naive(policies: &[Arc<Policy>], who: &Who, method: &str, path: &str) -> bool {
    let equal = |a: &str, b: &str, is_deny: bool| {
        if is_deny { a.eq_ignore_ascii_case(b) } else { a == b }
    };
    let matches = |pattern: &PathPattern, is_deny: bool| {
        let asked: Vec<&str> = path.split('/').filter(|s| !s.is_empty()).collect();
        let own = pattern.segments();
        let fits = own.iter().zip(&asked).all(|(own, asked)| match own {
            PatternSegment::Any => true,
            PatternSegment::Is(own) => equal(std::str::from_utf8(own).unwrap(), asked, is_deny),
        });
        let long_enough = asked.len() >= own.len();
        fits && long_enough && (pattern.includes_below() || asked.len() == own.len())
    };
    let holds = |rule: &PolicyRule, is_deny: bool| {
        let from: &[CallerPattern] = &rule.from;
        (from.is_empty()
            || from.iter().any(|f| f.matches(who.caller(), &label("shop"), &label("west"))))
            && (rule.methods.is_empty()
                || rule.methods.iter().any(|m: &MethodName| equal(m.as_str(), method, is_deny)))
            && (rule.paths.is_empty() || rule.paths.iter().any(|p| matches(p, is_deny)))
    };
    let denied = policies.iter().any(|p| p.deny.iter().any(|rule| holds(rule, true)));
    let closed = policies.iter().any(|p| p.allow.is_some());
    let allowed = policies.iter().any(|p| p.allow.iter().flatten().any(|rule| holds(rule, false)));
    !denied && (!closed || allowed)
}

fn rules() -> impl Strategy<Value = Vec<PolicyRule>> {
    let from =
        prop_oneof![Just("any"), Just("web"), Just("*.*.east"), Just("orders,web.shop.east")];
    let methods = prop_oneof![Just("any"), Just("GET"), Just("GET,POST"), Just("get")];
    let segment = prop_oneof![Just("a"), Just("b"), Just("A"), Just("*"), Just("{x}")];
    let path =
        (proptest::collection::vec(segment, 0..4), any::<bool>()).prop_map(|(parts, below)| {
            let tail = if below { "/**" } else { "" };
            format!(
                "/{}{}",
                parts.join("/"),
                if parts.is_empty() { tail.trim_matches('/') } else { tail }
            )
        });
    let paths = prop_oneof![
        1 => Just("any".to_owned()),
        4 => proptest::collection::vec(path, 1..3).prop_map(|paths| paths.join(",")),
    ];
    let rule = (from, methods, paths).prop_map(|(from, m, p)| rule(&format!("{from} {m} {p}")));
    proptest::collection::vec(rule, 0..5)
}

#[test]
fn rules_for_other_callers_do_not_hold_however_many_there_are() {
    let many: Vec<String> = (0..40).map(|n| format!("app-{n} GET /a/**")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).chain(["app-7,web POST /a/b"]).collect();
    let policies = [policy("p", Some(&many), &[]), policy("q", None, &["app-7 any /a/c"])];
    check(&view(&policies, "app-7.shop.west"), "GET /a/x", "ok");
    check(&view(&policies, "app-7.shop.west"), "GET /a/c", "denied by q");
    check(&view(&policies, "app-8.shop.west"), "GET /a/c", "ok");
    check(&view(&policies, WEB), "GET /a/x", "closed by p");
    check(&view(&policies, WEB), "POST /a/b", "ok");
    check(&view(&policies, "app-40.shop.west"), "GET /a/x", "closed by p");
}

#[test]
fn a_name_without_a_namespace_is_of_the_policys_own() {
    let mut other = Policy::clone(&policy("p", Some(&["web any /theirs"]), &[]));
    other.name = ObjectName::new("orders", "p").unwrap();
    other.target = PolicyTarget::Network;
    let policies = [Arc::new(other), policy("q", Some(&["web any /ours"]), &[])];
    check(&view(&policies, WEB), "GET /ours", "ok");
    check(&view(&policies, WEB), "GET /theirs", "closed by p");
    check(&view(&policies, "web.orders.west"), "GET /theirs", "ok");
}

fn in_shadow(policy: &Arc<Policy>) -> Arc<Policy> {
    Arc::new(Policy { mode: Mode::Shadow, ..Policy::clone(policy) })
}

#[test]
fn a_policy_in_shadow_mode_changes_nothing_and_shows_what_it_would() {
    let open = policy("open", None, &["any DELETE any"]);
    let closed = policy("closed", Some(&["web GET /a/**"]), &["any any /secret/**"]);
    let view = view(&[open.clone(), in_shadow(&closed)], WEB);
    let shadow = |request: &str| {
        let (method, target) = request.split_once(' ').unwrap();
        let refusal = view.shadow_refusal(method.as_bytes(), target.as_bytes());
        refusal.map_or("-".to_owned(), |refusal| refusal.to_string())
    };
    for (request, decided, of_shadow) in [
        ("GET /a/x", "ok", "-"),
        ("GET /b", "ok", "policy shop/closed is in force and no rule allows it"),
        ("GET /a/../secret/x", "ok", "policy shop/closed denies it"),
        ("DELETE /a/x", "denied by open", "policy shop/open denies it"),
    ] {
        check(&view, request, decided);
        assert_eq!(shadow(request), of_shadow, "{request}");
    }
    assert_eq!(view.decide_connection().unwrap_err().policy.name.as_str(), "open");
    let alone = PolicySet::new(stock(), [in_shadow(&closed)]);
    assert!(alone.has_shadow() && !alone.is_empty());
    assert!(!PolicySet::new(stock(), [open]).has_shadow());
    let who = Who::new(WEB);
    let view = alone.view(who.caller());
    assert_eq!(view.decide_connection(), Ok(()));
    assert_eq!(view.shadow_connection_refusal().unwrap().why, PolicyReason::Denied);
}

proptest! {
    #[test]
    fn the_tree_decides_as_the_rules_read(
        sets in proptest::collection::vec((proptest::option::of(rules()), rules()), 0..4),
        who in prop_oneof![Just(WEB), Just(FAR), Just("orders.shop.west")],
        method in prop_oneof![Just("GET"), Just("POST"), Just("get")],
        segments in proptest::collection::vec(prop_oneof![Just("a"), Just("b"), Just("A"), Just("c")], 0..5),
        slash in any::<bool>(),
    ) {
        let policies: Vec<Arc<Policy>> = sets.into_iter().enumerate().map(|(n, (allow, deny))| {
            let name = ObjectName::new("shop", &format!("p{n}")).unwrap();
            let (target, mode) = (PolicyTarget::Namespace, Mode::Enforce);
            Arc::new(Policy { name, target, mode, allow, deny })
        }).collect();
        let mut path = format!("/{}", segments.join("/"));
        if slash && !segments.is_empty() {
            path.push('/');
        }
        let who_is = Who::new(who);
        let decided = view(&policies, who).decide_request(method.as_bytes(), path.as_bytes());
        prop_assert_eq!(decided.is_ok(), naive(&policies, &who_is, method, &path));
        // With the last one in shadow mode it is as without it, and what it would be is known.
        if let [others @ .., last] = &policies[..] {
            let (method, path) = (method.as_bytes(), path.as_bytes());
            let shadow = view(&[others, &[in_shadow(last)]].concat(), who);
            let without = view(others, who).decide_request(method, path);
            prop_assert_eq!(shadow.decide_request(method, path).is_ok(), without.is_ok());
            let would = shadow.shadow_refusal(method, path).map(RequestRefusal::Policy);
            prop_assert_eq!(would, decided.err());
        }
    }
}
