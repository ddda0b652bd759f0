//! The key of a network's authority, sealed in the store by a passphrase.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use support::{Network, enroll};
use tollway_control::{ControlPlane, Options, StoredKey, check_stored_key};
use tollway_identity::SealingKey;
use tollway_model::ErrorCode;
use tollway_store::inspect_entry;
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;

fn key(text: &str) -> Arc<SealingKey> {
    Arc::new(SealingKey::new(text.as_bytes()).unwrap())
}

fn own() -> Arc<SealingKey> {
    key("a passphrase of this network")
}

/// Whether the store's file has a private key that can be read.
fn has_plain_key(store: &Path) -> bool {
    let bytes = std::fs::read(store.join("tollway.store")).unwrap();
    bytes.windows(11).any(|part| part == b"PRIVATE KEY")
}

/// Starts a control plane over what another has left, and fails.
async fn refused(options: &Options, key: Option<Arc<SealingKey>>) -> (Option<ErrorCode>, String) {
    let options = Options { authority_key: key, ..options.clone() };
    let control = ControlPlane::bind(options).await;
    let error = control.err().expect("it does not start");
    (error.code(), tollway_model::chain(&error))
}

/// The harm: a copy of the store, such as a backup, is enough to sign any identity.
#[tokio::test]
async fn a_copy_of_the_store_does_not_have_the_authoritys_key() {
    let mut west = Network::start_with("west", |options| options.authority_key = Some(own())).await;
    let token = west.token(Scope::Any(v1::AnyWorkload {})).await;
    enroll(west.address, &token, &west.own("stock"), "a").await.unwrap();
    assert!(!has_plain_key(west.store()));
    // It is the same authority after a restart.
    let west = west.restart().await;
    enroll(west.address, &token, &west.own("stock"), "a").await.unwrap();
    assert!(!has_plain_key(west.store()));
    let (dir, options, _) = west.stop().await;
    let file = options.store.join("tollway.store");
    let value = inspect_entry(&file, tollway_control::AUTHORITY_KEY.as_bytes()).unwrap().unwrap();
    assert_eq!(check_stored_key(&value, Some(&own())).unwrap(), StoredKey::Sealed);
    for (key, part) in [
        (None, "--authority-key-file"),
        (Some(key("a passphrase of another")), "another passphrase"),
    ] {
        check_stored_key(&value, key.as_deref()).unwrap_err();
        let (code, text) = refused(&options, key).await;
        assert_eq!(code, Some(ErrorCode::AuthorityKey), "{text}");
        assert!(text.contains(part), "{text}");
    }
    drop(dir);
}

#[tokio::test]
async fn a_plain_key_is_sealed_at_the_next_start_and_leaves_the_file() {
    let mut west = Network::start("west").await;
    let token = west.token(Scope::Any(v1::AnyWorkload {})).await;
    enroll(west.address, &token, &west.own("stock"), "a").await.unwrap();
    assert!(has_plain_key(west.store()), "the test looks for the right text");
    let west = west.restart_with(|options| options.authority_key = Some(own())).await;
    enroll(west.address, &token, &west.own("stock"), "a").await.unwrap();
    let is_sealed = async {
        while has_plain_key(west.store()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(support::PATIENCE, is_sealed).await.expect("a file without the key");
    let west = west.restart().await;
    enroll(west.address, &token, &west.own("stock"), "a").await.unwrap();
    let (_dir, options, _) = west.stop().await;
    assert_eq!(refused(&options, None).await.0, Some(ErrorCode::AuthorityKey));
}
