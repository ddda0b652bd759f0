//! Every engine against the one suite, and against the layout of Dapr's data. Redis and
//! PostgreSQL are real ones.

mod layout;

use std::sync::Arc;

use tollway_config::go::{Reader, decode, only_document};
use tollway_state::{Component, ComponentContext, Manifest, Read, StateStore, open};
use tollway_testkit::{PostgresServer, RedisServer, TempDir, need_tool};
use tollway_tests::state_contract;

/// The component of a type with these metadata.
fn component(component_type: &str, version: &str, metadata: &[(&str, &str)]) -> Component {
    let metadata: String = metadata
        .iter()
        .map(|(name, value)| format!("  - name: {name}\n    value: {value:?}\n"))
        .collect();
    let text = format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: statestore\nspec:\n  \
         type: {component_type}\n  version: {version}\n  metadata:\n{metadata}"
    );
    let node = only_document(&text, Reader::Resource, "store.yaml").unwrap().unwrap();
    let manifest: Manifest = decode(&node, Reader::Resource, "store.yaml").unwrap().value;
    let (takes_all_namespaces, variable) = (true, &|_: &str| None);
    let context =
        ComponentContext { app: "web", namespace: "default", takes_all_namespaces, variable };
    let mut notes = Vec::new();
    match manifest.read(&context, &mut notes).unwrap() {
        Read::Store(component) => *component,
        other @ (Read::ForOthers { .. } | Read::NotServed(_) | Read::Unusable(_)) => {
            panic!("{other:?}")
        }
    }
}

async fn opened(component: &Component) -> Arc<dyn StateStore> {
    open(component).await.unwrap_or_else(|error| panic!("{error:?}"))
}

fn sqlite(folder: &TempDir, more: &[(&str, &str)]) -> Component {
    let file = folder.path().join("state.db").display().to_string();
    component("state.sqlite", "v1", &[&[("connectionString", file.as_str())], more].concat())
}

fn redis(server: &RedisServer, more: &[(&str, &str)]) -> Component {
    let host = server.address().to_string();
    let known = [("redisHost", host.as_str()), ("redisPassword", RedisServer::PASSWORD)];
    component("state.redis", "v1", &[&known[..], more].concat())
}

fn postgresql(server: &PostgresServer, version: &str, more: &[(&str, &str)]) -> Component {
    let connection = server.connection_string();
    let known = [("connectionString", connection.as_str())];
    component("state.postgresql", version, &[&known[..], more].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_holds_the_contract() {
    state_contract::hold(opened(&component("state.in-memory", "v1", &[])).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_holds_the_contract() {
    let folder = TempDir::new().unwrap();
    state_contract::hold(opened(&sqlite(&folder, &[])).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_holds_the_contract() {
    need_tool!("redis-server");
    let server = RedisServer::start(&[]).unwrap();
    state_contract::hold(opened(&redis(&server, &[])).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_layouts_of_postgresql_hold_the_contract() {
    need_tool!("initdb");
    let server = PostgresServer::start(&[]).unwrap();
    for version in ["v1", "v2"] {
        let tables: &[_] = match version {
            "v1" => &[("tableName", "old_state")],
            _ => &[],
        };
        state_contract::hold(opened(&postgresql(&server, version, tables)).await).await;
    }
}
