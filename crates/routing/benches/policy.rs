//! What a decision costs, by the number of rules that concern the caller.
//!
//! `cargo bench -p tollway-routing --bench policy` prints nanoseconds per decision (least and
//! median of 15 blocks), and once what it costs to make the view of a caller.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use tollway_model::{
    Caller, Label, NetworkName, ObjectName, Policy, PolicyRule, PolicyTarget, ServiceName, SpiffeId,
};
use tollway_routing::{CallerView, PolicySet};

const BLOCKS: usize = 15;
const TURNS: usize = 200_000;

fn main() {
    for rules in [0, 1, 10, 1000] {
        let set = set(rules, true);
        let who = Who::new();
        let view = set.view(who.caller());
        report(&format!("decide-{rules}-path-rules"), TURNS, || decide(&view, b"/items/7?a=b"));
        let view = self::set(rules, false).view(who.caller());
        report(&format!("decide-{rules}-caller-rules"), TURNS, || decide(&view, b"/items/7?a=b"));
        report(&format!("view-{rules}-path-rules"), 200, || {
            black_box(set.view(who.caller()));
        });
    }
    let set = of_many_audiences(1000);
    let who = Who::new();
    let view = set.view(who.caller());
    report("decide-1000-audiences", TURNS, || decide(&view, b"/items/7?a=b"));
    report("view-1000-audiences", 200, || {
        black_box(set.view(who.caller()));
    });
    let view = self::set(10, true).view(Who::new().caller());
    report("decide-10-path-rules-rewritten", TURNS, || decide(&view, b"/a/../items//7?a=b"));
    report("decide-10-path-rules-refused", TURNS, || decide(&view, b"/other/7?a=b"));
}

fn decide(view: &CallerView, target: &[u8]) {
    let _ = black_box(view.decide_request(black_box(b"GET"), black_box(target)));
}

struct Who {
    spiffe: SpiffeId,
    network: NetworkName,
}

impl Who {
    fn new() -> Self {
        let spiffe = SpiffeId::parse("spiffe://west.tollway/ns/shop/web").expect("an identity");
        Self { spiffe, network: Label::new("west").expect("a label") }
    }

    fn caller(&self) -> Caller<'_> {
        Caller { spiffe: &self.spiffe, network: &self.network }
    }
}

/// `count` rules of several policies; the last of them lets the request in.
fn set(count: usize, with_paths: bool) -> PolicySet {
    let label = |text: &str| Label::new(text).expect("a label");
    let rule = |n: usize| {
        let path = if n + 1 == count { "/items/{id}".to_owned() } else { format!("/other-{n}/**") };
        PolicyRule {
            from: vec!["web".parse().expect("a caller")],
            methods: vec!["GET".parse().expect("a method")],
            paths: with_paths.then(|| path.parse().expect("a path")).into_iter().collect(),
        }
    };
    let rules: Vec<_> = (0..count).map(rule).collect();
    let policies = rules.chunks(500).enumerate().map(|(n, rules)| {
        Arc::new(Policy {
            name: ObjectName::new("shop", &format!("p{n}")).expect("a name"),
            target: PolicyTarget::App(label("stock")),
            mode: tollway_model::Mode::Enforce,
            allow: Some(rules.to_vec()),
            deny: Vec::new(),
        })
    });
    let service = ServiceName::parse_in("stock.shop", &label("x"), &label("west")).expect("a name");
    PolicySet::new(service, policies)
}

/// `count` rules, each for callers of its own, for the same path; the last lets the caller in.
fn of_many_audiences(count: usize) -> PolicySet {
    let label = |text: &str| Label::new(text).expect("a label");
    let rule = |n: usize| {
        let from = if n + 1 == count { "web".to_owned() } else { format!("app-{n}") };
        PolicyRule {
            from: vec![from.parse().expect("a caller")],
            methods: vec!["GET".parse().expect("a method")],
            paths: vec!["/items/{id}".parse().expect("a path")],
        }
    };
    let policy = Policy {
        name: ObjectName::new("shop", "p").expect("a name"),
        target: PolicyTarget::App(label("stock")),
        mode: tollway_model::Mode::Enforce,
        allow: Some((0..count).map(rule).collect()),
        deny: Vec::new(),
    };
    let service = ServiceName::parse_in("stock.shop", &label("x"), &label("west")).expect("a name");
    PolicySet::new(service, [Arc::new(policy)])
}

fn report(name: &str, turns: usize, mut turn: impl FnMut()) {
    let mut blocks: Vec<f64> = (0..BLOCKS)
        .map(|_| {
            let began = Instant::now();
            (0..turns).for_each(|_| turn());
            began.elapsed().as_nanos() as f64 / turns as f64
        })
        .collect();
    blocks.sort_by(f64::total_cmp);
    println!("{name:<32} {:>9.1} ns  median {:>9.1} ns", blocks[0], blocks[BLOCKS / 2]);
}
