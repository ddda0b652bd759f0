//! What apps keep at the control plane: the operator sees and removes it, and no workload does.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use support::{Member, Network};
use tollway_wire::v1;
use tollway_wire::v1::admin_client::AdminClient;
use tollway_wire::v1::remove_state_request::What;
use tollway_wire::v1::state_client::StateClient;
use tollway_wire::v1::write_state_response::Refusal;
use tonic::Code;

fn set(key: &str, value: Vec<u8>) -> v1::StateChange {
    v1::StateChange { key: key.to_owned(), value: Some(value), ..Default::default() }
}

async fn write(member: &Member, changes: Vec<v1::StateChange>) -> Option<Refusal> {
    let mut client = StateClient::new(member.channel().await);
    let request = v1::WriteStateRequest { changes, fence: None };
    client.write_state(request).await.unwrap().into_inner().refusal
}

async fn read(member: &Member, key: &str) -> Vec<u8> {
    let mut client = StateClient::new(member.channel().await);
    let request = v1::ReadStateRequest { keys: vec![key.to_owned()] };
    client.read_state(request).await.unwrap().into_inner().entries.remove(0).value
}

fn remove(namespace: &str, app: &str, what: What) -> v1::RemoveStateRequest {
    v1::RemoveStateRequest {
        namespace: namespace.to_owned(),
        app: app.to_owned(),
        what: Some(what),
    }
}

#[tokio::test]
async fn the_operator_removes_one_key_or_all_of_an_app_over_several_pages() {
    let mut west = Network::start("west").await;
    let cart = west.member("cart.shop", "a").await;
    let other = west.member("cart.shop2", "a").await;
    write(&other, vec![set("x", b"kept".to_vec())]).await;
    for page in 0..3 {
        let page = (0..900).map(|number| set(&format!("{page}-{number:03}"), b"v".to_vec()));
        assert_eq!(write(&cart, page.collect()).await, None);
    }
    let request =
        v1::ListStateRequest { namespace: "shop".into(), app: "cart".into(), ..Default::default() };
    let first = west.admin.state(request.clone()).await.unwrap();
    assert_eq!((first.keys.len(), first.has_further_keys), (1000, true));
    assert_eq!(first.apps.len(), 1, "one app was requested");
    let after_key = "2-898".to_owned();
    let last = west.admin.state(v1::ListStateRequest { after_key, ..request }).await.unwrap();
    assert_eq!((&*last.keys[0].key, last.keys.len(), last.has_further_keys), ("2-899", 1, false));

    let one = remove("shop", "cart", What::Key("0-000".into()));
    assert_eq!(west.admin.remove_state(one.clone()).await.unwrap().entries, 1);
    assert_eq!(west.admin.remove_state(one).await.unwrap().entries, 0, "it is gone");
    assert_eq!(read(&cart, "0-001").await, b"v");
    let all = west.admin.remove_state(remove("shop", "cart", What::All(true))).await.unwrap();
    assert_eq!(all.entries, 2699);
    assert!(read(&cart, "0-001").await.is_empty());
    assert_eq!(read(&other, "x").await, b"kept");
    // It stays so.
    let mut west = west.restart().await;
    let listed = west.admin.state(v1::ListStateRequest::default()).await.unwrap();
    assert_eq!(listed.all.unwrap().entries, 1);
}

#[tokio::test]
async fn no_workload_lists_or_removes_what_apps_keep() {
    let mut west = Network::start("west").await;
    let cart = west.member("cart.shop", "a").await;
    let gateway = west.gateway("g").await;
    write(&cart, vec![set("x", b"kept".to_vec())]).await;
    for member in [&cart, &gateway] {
        let mut admin = AdminClient::new(member.channel().await);
        let listed = admin.list_state(v1::ListStateRequest::default()).await.unwrap_err();
        let all = remove("shop", "cart", What::All(true));
        let removed = admin.remove_state(all).await.unwrap_err();
        assert_eq!((listed.code(), removed.code()), (Code::Unimplemented, Code::Unimplemented));
    }
    assert_eq!(read(&cart, "x").await, b"kept");
}

#[tokio::test]
async fn what_names_no_app_removes_nothing() {
    let west = Network::start("west").await;
    let mut admin = west.admin.clone();
    let nothing = v1::RemoveStateRequest {
        namespace: "shop".into(),
        app: "cart".into(),
        ..Default::default()
    };
    let cases = [
        nothing,
        remove("", "cart", What::All(true)),
        remove("shop", "", What::All(true)),
        remove("shop", "a/b", What::All(true)),
        remove("shop", "cart", What::All(false)),
    ];
    for case in cases {
        let refused = admin.remove_state(case.clone()).await.unwrap_err();
        assert!(
            matches!(refused, tollway_control::AdminError::Refused(status)
            if status.code() == Code::InvalidArgument),
            "{case:?}"
        );
    }
}
