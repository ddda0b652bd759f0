//! Policies in the control plane: stored, limited, sent to the sidecars that they concern, waited for.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::time::{Duration, Instant};

use support::{Network, PATIENCE, Registration, Watch};
use tollway_wire::v1;
use tollway_wire::v1::policy_change::Outcome;

/// An empty allow list for `app`, or for the whole namespace.
fn closed(name: &str, app: Option<&str>) -> v1::Policy {
    let target = match app {
        Some(app) => v1::policy::Target::App(app.to_owned()),
        None => v1::policy::Target::WholeNamespace(v1::WholeNamespace {}),
    };
    v1::Policy {
        namespace: "default".into(),
        name: name.into(),
        target: Some(target),
        has_allow: true,
        ..v1::Policy::default()
    }
}

fn put(policies: Vec<v1::Policy>, wait: Duration) -> v1::ApplyPoliciesRequest {
    let wait_ms = u64::try_from(wait.as_millis()).unwrap();
    v1::ApplyPoliciesRequest { policies, dry_run: false, wait_ms }
}

fn outcomes(response: &v1::ChangePoliciesResponse) -> Vec<Outcome> {
    response.changes.iter().map(v1::PolicyChange::outcome).collect()
}

async fn apply(network: &mut Network, policies: Vec<v1::Policy>) -> v1::ChangePoliciesResponse {
    network.admin.apply_policies(put(policies, Duration::ZERO)).await.unwrap()
}

async fn delete(network: &mut Network, name: &str) -> v1::ChangePoliciesResponse {
    let name = v1::PolicyName { namespace: "default".into(), name: name.into() };
    let request = v1::DeletePoliciesRequest { names: vec![name], ..Default::default() };
    network.admin.delete_policies(request).await.unwrap()
}

async fn names(network: &mut Network) -> Vec<String> {
    let known = network.admin.policies(v1::ListPoliciesRequest::default()).await.unwrap();
    known.policies.into_iter().map(|policy| policy.name).collect()
}

/// Reads on until the stream has sent policies, and gives their names.
async fn policies_sent(watch: &mut Watch) -> Vec<String> {
    loop {
        if let Some(policies) = watch.next().await.unwrap().policies {
            return policies.policies.into_iter().map(|policy| policy.name).collect();
        }
    }
}

#[tokio::test]
async fn applied_policies_are_sent_and_survive_a_restart() {
    let mut west = Network::start("west").await;
    let first = apply(&mut west, vec![closed("a", Some("stock")), closed("b", None)]).await;
    assert_eq!(outcomes(&first), [Outcome::Created, Outcome::Created]);
    let again = apply(&mut west, vec![closed("a", Some("Stock")), closed("b", Some("x"))]).await;
    assert_eq!(outcomes(&again), [Outcome::Unchanged, Outcome::Changed]);
    assert!(again.revision > first.revision);
    let mut west = west.restart().await;
    assert_eq!(names(&mut west).await, ["a", "b"]);
    let same = apply(&mut west, vec![closed("a", Some("stock"))]).await;
    assert_eq!((outcomes(&same), same.revision), (vec![Outcome::Unchanged], first.revision));
    assert_eq!(outcomes(&delete(&mut west, "a").await), [Outcome::Deleted]);
    assert_eq!(outcomes(&delete(&mut west, "a").await), [Outcome::Absent]);
    assert_eq!(names(&mut west).await, ["b"]);
}

#[tokio::test]
async fn a_sidecar_gets_the_policies_of_its_service_and_no_others() {
    let mut west = Network::start("west").await;
    apply(&mut west, vec![closed("for-orders", Some("orders"))]).await;
    let stock = west.member("stock", "a").await;
    let mut watch = Watch::services(&stock, &[]).await;
    assert_eq!(policies_sent(&mut watch).await, [""; 0], "an empty set is sent too");
    watch.until_quiet().await;

    apply(&mut west, vec![closed("more-orders", Some("orders"))]).await;
    apply(&mut west, vec![closed("for-stock", Some("stock"))]).await;
    assert_eq!(policies_sent(&mut watch).await, ["for-stock"]);
    apply(&mut west, vec![closed("for-all", None)]).await;
    assert_eq!(policies_sent(&mut watch).await, ["for-all", "for-stock"]);
    // A policy that now protects another service has gone from here.
    apply(&mut west, vec![closed("for-stock", Some("orders"))]).await;
    assert_eq!(policies_sent(&mut watch).await, ["for-all"]);
    delete(&mut west, "for-all").await;
    assert_eq!(policies_sent(&mut watch).await, [""; 0]);
    drop(watch);

    // What changed while no sidecar was connected is sent at once.
    apply(&mut west, vec![closed("for-stock", Some("stock"))]).await;
    let west = west.restart().await;
    let mut watch = Watch::services(&stock, &[]).await;
    assert_eq!(policies_sent(&mut watch).await, ["for-stock"]);
    drop(west);
}

#[tokio::test]
async fn a_wait_ends_when_everybody_concerned_has_applied_it() {
    let mut west = Network::start("west").await;
    let (stock, slow) = (west.member("stock", "a").await, west.member("stock", "slow").await);
    let orders = west.member("orders", "a").await;
    let (mut ready, mut late) =
        (Watch::services(&stock, &[]).await, Watch::services(&slow, &[]).await);
    let _elsewhere = Watch::services(&orders, &[]).await;
    policies_sent(&mut ready).await;
    policies_sent(&mut late).await;

    // `Watch` acknowledges what it reads: `late` does not read.
    let mut admin = west.admin.clone();
    let request = put(vec![closed("a", Some("stock"))], Duration::from_millis(300));
    let applying = tokio::spawn(async move { admin.apply_policies(request).await.unwrap() });
    assert_eq!(policies_sent(&mut ready).await, ["a"]);
    let waited = applying.await.unwrap();
    assert_eq!((waited.sidecars, waited.lagging), (2, vec!["slow.stock.default".to_owned()]));

    let mut admin = west.admin.clone();
    let request = put(vec![closed("a", Some("stock"))], PATIENCE);
    let (began, applying) =
        (Instant::now(), tokio::spawn(async move { admin.apply_policies(request).await.unwrap() }));
    assert_eq!(policies_sent(&mut late).await, ["a"]);
    let waited = applying.await.unwrap();
    assert_eq!((waited.sidecars, waited.lagging.len()), (2, 0));
    assert!(began.elapsed() < PATIENCE);
}

#[tokio::test]
async fn a_registered_workload_that_is_away_lags_until_it_is_back_or_given_up() {
    let mut west = Network::start("west").await;
    let (stock, away) = (west.member("stock", "a").await, west.member("stock", "away").await);
    let mut ready = Watch::services(&stock, &[]).await;
    policies_sent(&mut ready).await;
    let _serving = Registration::workload(&stock, 1).await.keep_alive();
    // It is registered, and its stream of updates is broken.
    let registration = Registration::workload(&away, 2).await.keep_alive();
    let change = |west: &Network, name: &str, wait| {
        let (mut admin, request) = (west.admin.clone(), put(vec![closed(name, None)], wait));
        tokio::spawn(async move { admin.apply_policies(request).await.unwrap() })
    };
    let applying = change(&west, "a", Duration::from_millis(300));
    policies_sent(&mut ready).await;
    let waited = applying.await.unwrap();
    assert_eq!((waited.sidecars, waited.lagging), (2, vec!["away.stock.default".to_owned()]));

    // Back, with what it missed.
    let applying = change(&west, "b", PATIENCE);
    policies_sent(&mut ready).await;
    let mut back = Watch::services(&away, &[]).await;
    assert_eq!(policies_sent(&mut back).await, ["a", "b"]);
    back.until_quiet().await;
    let waited = applying.await.unwrap();
    assert_eq!((waited.sidecars, waited.lagging.len()), (2, 0));

    // Away again, for good.
    drop(back);
    let applying = change(&west, "c", PATIENCE);
    policies_sent(&mut ready).await;
    drop(registration);
    let waited = applying.await.unwrap();
    assert_eq!((waited.sidecars, waited.lagging.len()), (1, 0));
}

#[tokio::test]
async fn what_is_not_valid_or_too_much_is_refused_whole() {
    let mut west = Network::start("west").await;
    let refusal = |network: &mut Network, policies: Vec<v1::Policy>| {
        let mut admin = network.admin.clone();
        async move {
            let refused = admin.apply_policies(put(policies, Duration::ZERO)).await;
            refused.unwrap_err().to_string()
        }
    };
    let bad = v1::Policy { has_allow: false, ..closed("bad", Some("stock")) };
    let text = refusal(&mut west, vec![closed("good", Some("stock")), bad]).await;
    assert!(text.contains("`default/bad` is not valid: the policy has neither"), "{text}");
    let twice = vec![closed("a", Some("stock")), closed("A", Some("stock"))];
    assert!(refusal(&mut west, twice).await.contains("given twice"));

    let large = |name: &str| {
        let rule = v1::PolicyRule {
            paths: vec![format!("/{}", "x".repeat(1000)); 60],
            ..Default::default()
        };
        v1::Policy { allow: vec![rule], ..closed(name, Some("stock")) }
    };
    let eight: Vec<_> = (0..8).map(|n| large(&format!("p{n}"))).collect();
    apply(&mut west, eight).await;
    let text = refusal(&mut west, vec![large("one-more")]).await;
    assert!(text.contains("the policies for the service stock.default would have"), "{text}");
    assert_eq!(names(&mut west).await.len(), 8);
}
