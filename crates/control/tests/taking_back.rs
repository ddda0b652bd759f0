//! What was given out is taken back: join tokens and identities, also stolen ones.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::time::{Duration, Instant};

use support::{
    Joined, Member, Network, PATIENCE, Registration, Watch, bootstrap, enroll, issue, subscribed,
};
use tokio::task::JoinSet;
use tollway_identity::{JoinToken, KeyPair};
use tollway_model::{ErrorCode, ServiceName};
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;
use tollway_wire::v1::identity_client::IdentityClient;
use tonic::{Code, Status};

/// Far more than the two seconds in which a revocation has to be in force.
const SOON: Duration = Duration::from_secs(10);

impl Network {
    async fn token_for(&mut self, uses: Option<u32>) -> (JoinToken, String) {
        let scope = Some(Scope::Any(v1::AnyWorkload {}));
        let request = v1::CreateTokenRequest { scope, ttl_ms: 0, uses };
        let created = self.admin.create_token(request).await.unwrap();
        (created.token.parse().unwrap(), created.id)
    }

    async fn listed(&mut self, id: &str) -> v1::TokenStatus {
        let listed = self.admin.tokens(v1::ListTokensRequest::default()).await.unwrap();
        listed.tokens.into_iter().find(|token| token.id == id).expect("it is listed")
    }

    async fn revoke(&mut self, app: &str, instance: &str) -> v1::RevokeIdentityResponse {
        self.admin.revoke_identity(identity(app, instance)).await.unwrap()
    }
}

fn identity(app: &str, instance: &str) -> v1::RevokedIdentity {
    let [app, instance] = [app, instance].map(str::to_owned);
    v1::RevokedIdentity { app, namespace: "default".to_owned(), instance }
}

/// Enrols with a key of the caller's choice.
async fn enroll_with(
    network: &Network,
    token: &JoinToken,
    service: &ServiceName,
    instance: &str,
    key: &KeyPair,
) -> Result<v1::IssueResponse, Status> {
    let request = v1::IssueRequest {
        csr: key.csr_der().unwrap(),
        service: Some(service.into()),
        instance: instance.to_owned(),
        token: token.to_string(),
        ttl_s: 0,
        pod_token: String::new(),
    };
    let mut client = IdentityClient::new(bootstrap(network.address, token).await);
    Ok(client.issue(request).await?.into_inner())
}

fn code(status: &Status) -> Option<ErrorCode> {
    tollway_wire::code_of(status)
}

#[tokio::test]
async fn a_stolen_token_enrols_nothing_once_it_is_spent() {
    let mut west = Network::start("west").await;
    let (token, id) = west.token_for(None).await;
    let stock = west.own("stock");
    enroll(west.address, &token, &stock, "a").await.unwrap();
    for (service, instance) in [("stock", "thief"), ("stock", "a"), ("orders", "a")] {
        let service = west.own(service);
        let refused = enroll(west.address, &token, &service, instance).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert_eq!(code(&refused), Some(ErrorCode::TokenSpent));
        let parts =
            ["spent: 1 of 1 uses", "stock.default (instance a)", "127.0.0.1", "token create"];
        assert!(parts.iter().all(|part| refused.message().contains(part)), "{refused:?}");
    }
    let mut client = IdentityClient::new(bootstrap(west.address, &token).await);
    let checked = client
        .check(v1::CheckRequest { token: token.to_string(), ..Default::default() })
        .await
        .unwrap_err();
    assert_eq!(code(&checked), Some(ErrorCode::TokenSpent));
    let listed = west.listed(&id).await;
    let last = listed.last_use.clone().unwrap();
    assert_eq!((listed.uses, listed.used, last.instance.as_str()), (1, 1, "a"));
    let secret = token.to_string().split('.').nth(3).unwrap().to_owned();
    assert!(!format!("{listed:?}").contains(&secret), "a list has no secrets");
}

#[tokio::test]
async fn an_answer_that_was_lost_locks_no_workload_out() {
    let mut west = Network::start("west").await;
    let (token, id) = west.token_for(None).await;
    let (stock, key) = (west.own("stock"), KeyPair::generate().unwrap());
    for _ in 0..3 {
        enroll_with(&west, &token, &stock, "a", &key).await.unwrap();
    }
    assert_eq!(west.listed(&id).await.used, 1);
    // Its key is of no use for another instance, nor another key for it.
    let other = enroll_with(&west, &token, &stock, "b", &key).await.unwrap_err();
    assert_eq!(code(&other), Some(ErrorCode::TokenSpent));
    let another = KeyPair::generate().unwrap();
    let other = enroll_with(&west, &token, &stock, "a", &another).await.unwrap_err();
    assert_eq!(code(&other), Some(ErrorCode::TokenSpent));
    // Another token is spent by the same instance.
    let (second, second_id) = west.token_for(None).await;
    enroll_with(&west, &second, &stock, "a", &key).await.unwrap();
    assert_eq!(west.listed(&second_id).await.used, 1);
}

#[tokio::test]
async fn of_many_at_once_as_many_enrol_as_a_token_has_uses() {
    let mut west = Network::start("west").await;
    for uses in [1, 3] {
        let (token, id) = west.token_for(Some(uses)).await;
        let mut tries = JoinSet::new();
        for number in 0..12 {
            let (token, stock, address) = (token.clone(), west.own("stock"), west.address);
            let instance = format!("i-{uses}-{number}");
            tries.spawn(async move { enroll(address, &token, &stock, &instance).await.map(drop) });
        }
        let results = tries.join_all().await;
        let refused: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        assert_eq!(results.len() - refused.len(), uses as usize);
        assert!(refused.iter().all(|status| code(status) == Some(ErrorCode::TokenSpent)));
        assert_eq!(west.listed(&id).await.used, uses);
    }
}

#[tokio::test]
async fn a_revoked_token_enrols_no_more() {
    let mut west = Network::start("west").await;
    let (token, id) = west.token_for(Some(0)).await;
    for instance in ["a", "b"] {
        enroll(west.address, &token, &west.own("stock"), instance).await.unwrap();
    }
    let revoked = west.admin.revoke_token(id.clone()).await.unwrap().token.unwrap();
    assert!(revoked.revoked_at_unix_ms > 0);
    let refused = enroll(west.address, &token, &west.own("stock"), "c").await.unwrap_err();
    assert_eq!(code(&refused), Some(ErrorCode::TokenRevoked));
    assert!(refused.message().contains("was revoked"), "{refused:?}");
    let again = west.admin.revoke_token(id).await.unwrap().token.unwrap();
    assert_eq!(again.revoked_at_unix_ms, revoked.revoked_at_unix_ms);
    assert!(west.admin.revoke_token("unknown".to_owned()).await.is_err());
    // It stays so over a restart.
    let west = west.restart().await;
    assert!(enroll(west.address, &token, &west.own("stock"), "c").await.is_err());
}

#[tokio::test]
async fn a_copied_key_renews_no_more_and_loses_its_streams_once_its_identity_is_revoked() {
    let mut west = Network::start("west").await;
    let (token, id) = west.token_for(Some(0)).await;
    let stock = west.own("stock");
    let member = async |instance: &str| Member {
        address: west.address,
        credentials: enroll(west.address, &token, &stock, instance).await.unwrap(),
    };
    let (victim, other) = (member("a").await, member("b").await);
    // The copied key renews itself, without a token.
    let thief = Member {
        address: west.address,
        credentials: issue(victim.channel().await, &stock, "a", String::new()).await.unwrap(),
    };
    let held = thief.channel().await;
    let mut watch = Watch::services(&thief, &["stock"]).await;
    watch.next().await.unwrap();
    let _registration = Registration::workload(&thief, 7).await.keep_alive();
    let mut observer = Watch::services(&other, &["stock"]).await;
    observer.until("stock", "local [7]").await;
    let asked = Instant::now();
    let done = west.revoke("stock", "a").await;
    assert!(done.connections >= 3, "{done:?}");
    assert_eq!(done.tokens, [id], "the token that it enrolled with is good still");
    // What is open ends, and callers are not sent there any more.
    let ended = async { while watch.next().await.is_ok() {} };
    tokio::time::timeout(SOON, ended).await.expect("the stream ends");
    println!("streams ended after {:?}", asked.elapsed());
    observer.until("stock", "unknown service").await;
    // The connection that stood is of no use, and no new one comes about.
    let renewed = issue(held, &stock, "a", String::new()).await;
    assert!(renewed.is_err(), "a standing connection renews");
    for credentials in [&victim.credentials, &thief.credentials] {
        let member = Member { address: west.address, credentials: credentials.clone() };
        assert!(!answers(&member).await, "it is served");
    }
    let refused = enroll(west.address, &token, &stock, "a").await.unwrap_err();
    assert_eq!(code(&refused), Some(ErrorCode::IdentityRevoked));
    assert!(answers(&other).await, "another instance is served");
    // After a restart it is still so; taken back, it ends.
    let mut west = west.restart().await;
    assert!(!answers(&thief).await, "it is served after a restart");
    west.admin.restore_identity(identity("stock", "a")).await.unwrap();
    assert!(west.admin.restore_identity(identity("stock", "a")).await.is_err());
    let deadline = Instant::now() + PATIENCE;
    while !answers(&thief).await {
        assert!(Instant::now() < deadline, "a restored identity is not served");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether the control plane serves a member on a new connection: as a sidecar begins.
async fn answers(member: &Member) -> bool {
    let opened = async {
        let channel = member.try_channel().await.ok()?;
        let own = member.credentials.service();
        let instance = member.credentials.instance()?.as_str().to_owned();
        issue(channel, own, &instance, String::new()).await.ok()
    };
    tokio::time::timeout(PATIENCE, opened).await.unwrap().is_some()
}

#[tokio::test]
async fn a_joined_network_refuses_what_this_one_revoked() {
    let mut joined = Joined::start().await;
    let Joined { east, west, .. } = &mut joined;
    let member = west.member("caller", "a").await;
    let mut watch = Watch::services(&member, &[]).await;
    let asked = Instant::now();
    east.revoke("stock", "a").await;
    let revoked = |trust: &Option<v1::TrustBundles>| {
        let bundles = trust.iter().flat_map(|trust| &trust.bundles);
        bundles.filter(|bundle| bundle.network == "east").any(|bundle| {
            bundle.revoked
                == [v1::RevokedIdentity { namespace: "default".into(), ..identity("stock", "a") }]
        })
    };
    while !revoked(&watch.trust) {
        assert!(asked.elapsed() < PATIENCE, "west does not learn of it");
        watch.next().await.unwrap();
    }
    println!("west's data planes have it after {:?}", asked.elapsed());
    let listed = west.admin.revocations().await.unwrap();
    let networks: Vec<_> = listed.iter().map(|one| one.network.as_str()).collect();
    assert_eq!(networks, ["east"]);
    east.admin.restore_identity(identity("stock", "a")).await.unwrap();
    while revoked(&watch.trust) {
        watch.next().await.unwrap();
    }
}

#[tokio::test]
async fn identities_that_run_are_listed_in_pages() {
    let mut west = Network::start("west").await;
    let (token, id) = west.token_for(Some(0)).await;
    for (app, instance) in [("stock", "b"), ("stock", "a"), ("Orders", "x")] {
        enroll(west.address, &token, &west.own(app), instance).await.unwrap();
    }
    let gateway = west.gateway("g").await;
    let _watch = Watch::open(
        &gateway,
        v1::Open { scope: v1::open::Scope::Network.into(), ..subscribed(0, &[]) },
    )
    .await
    .unwrap();
    let (mut after, mut listed) = (String::new(), Vec::new());
    loop {
        let request = v1::ListIdentitiesRequest { after, limit: 2 };
        let page = west.admin.identities(request).await.unwrap();
        assert!(page.identities.len() <= 2);
        listed.extend(page.identities);
        if page.next.is_empty() {
            break;
        }
        after = page.next;
    }
    let shown: Vec<_> = listed
        .iter()
        .map(|one| {
            let service = one.service.as_ref().unwrap();
            format!("{}.{}/{}", service.app, service.namespace, one.instance)
        })
        .collect();
    assert_eq!(
        shown,
        ["Orders.default/x", "stock.default/a", "stock.default/b", "gateway.tollway/g"]
    );
    let first = &listed[0];
    assert!(!first.serial.is_empty() && first.token == id && !first.revoked);
    assert!(first.issued_at_unix_ms < first.expires_at_unix_ms);
    assert!(listed[3].connected || listed[3].last_seen_unix_ms > 0);
}

#[tokio::test]
async fn revocations_have_a_limit_and_never_concern_the_control_plane() {
    let mut west = Network::start("west").await;
    let limit = tollway_wire::REVOCATIONS_PER_TRUST_DOMAIN_LIMIT;
    for number in 0..limit {
        west.revoke(&format!("app-{number}"), "").await;
    }
    let one_more = west.admin.revoke_identity(identity("one-more", "")).await.unwrap_err();
    assert!(one_more.to_string().contains("256 identities are revoked"), "{one_more}");
    // One that is there already is no more.
    west.revoke("app-0", "").await;
    let control = v1::RevokedIdentity { namespace: "Tollway".into(), ..identity("Control", "") };
    assert!(west.admin.revoke_identity(control).await.is_err());
    let nameless = v1::RevokedIdentity { app: "no label".into(), ..identity("a", "") };
    assert!(west.admin.revoke_identity(nameless).await.is_err());
    let member = west.member("stock", "a").await;
    assert!(answers(&member).await);
}
