//! Dapr's own SDK for Python, unmodified, on every engine.

use std::process::Command;

use tollway_testkit::{PostgresServer, RedisServer, TempDir, need_tool, skip};

use super::{component, resources, sidecar};
use crate::api::sdk::{python, script};
use tollway_tests::mesh::Mesh;

#[test]
fn pythons_client_keeps_state_in_every_engine() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    need_tool!("redis-server");
    need_tool!("initdb");
    let redis = RedisServer::start(&[]).unwrap();
    let postgres = PostgresServer::start(&[]).unwrap();
    let folder = TempDir::new().unwrap();
    let (file, host) =
        (folder.path().join("state.db").display().to_string(), redis.address().to_string());
    let connection = postgres.connection_string();
    let stores = [
        component("memory", "state.in-memory", &[]),
        component("sqlite", "state.sqlite", &[("connectionString", &file)]),
        component(
            "redis",
            "state.redis",
            &[("redisHost", &host), ("redisPassword", RedisServer::PASSWORD)],
        ),
        component(
            "postgresql-v1",
            "state.postgresql",
            &[("connectionString", &connection), ("tableName", "old")],
        ),
        component("postgresql-v2", "state.postgresql", &[("connectionString", &connection)])
            .replace("version: v1", "version: v2"),
    ];
    let mesh = Mesh::start();
    let sidecar = sidecar(&mesh, &resources(&stores));
    for store in ["memory", "sqlite", "redis", "postgresql-v1", "postgresql-v2"] {
        let output = Command::new(&python)
            .arg(script("state/client.py"))
            .arg(store)
            .env("DAPR_HTTP_PORT", sidecar.http().port().to_string())
            .env("DAPR_GRPC_PORT", sidecar.grpc().port().to_string())
            .output()
            .unwrap();
        let reported = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{store}: {reported}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "done\n");
    }
}
