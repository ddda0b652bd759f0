//! Dapr's data and ours are compatible: rows and hashes as Dapr writes them are read, and what is
//! written here has Dapr's form, as each server's own client shows.

use std::time::{Duration, SystemTime};

use tollway_state::{
    Concurrency, Consistency, Delete, Fence, Set, StateError, StateStore, Transaction, Ttl, Value,
};
use tollway_testkit::{PostgresServer, RedisServer, TempDir, need_tool, retry_until};

use super::{component, opened, postgresql, redis, sqlite};

const HOUR: Ttl = Ttl::Seconds(std::num::NonZeroU32::new(3600).unwrap());

fn json(key: &str, text: &str) -> Set {
    Set::new(key, Value::Json(text.to_owned().into()))
}

fn bytes(key: &str, bytes: &[u8]) -> Set {
    Set::new(key, Value::Bytes(bytes.to_vec().into()))
}

/// Value and etag of a key, as texts.
async fn read(store: &dyn StateStore, key: &str) -> (String, String) {
    let entry = store.get(key, Consistency::Eventual).await.unwrap().unwrap();
    let value = String::from_utf8(entry.value.to_vec()).unwrap();
    (value, entry.etag.unwrap_or_default())
}

#[tokio::test]
async fn hashes_of_redis_are_those_of_dapr() {
    need_tool!("redis-server");
    let server = RedisServer::start(&[]).unwrap();
    let store = opened(&redis(&server, &[("ttlInSeconds", "1000")])).await;
    let cli = |line: &[&str]| server.command(line).unwrap();

    cli(&["HSET", "web||a", "data", "{\"n\":1}", "version", "7"]);
    assert_eq!(read(&*store, "web||a").await, ("{\"n\":1}".to_owned(), "7".to_owned()));
    cli(&["EXPIRE", "web||a", "100"]);
    let entry = store.get("web||a", Consistency::Eventual).await.unwrap().unwrap();
    let left = entry.expires.unwrap().duration_since(SystemTime::now()).unwrap();
    assert!(left > Duration::from_secs(90) && left <= Duration::from_secs(100), "{left:?}");
    let first = Set { concurrency: Concurrency::FirstWrite, ..json("web||a", "2") };
    store.set(Set { etag: Some("7".to_owned()), ttl: HOUR, ..first }).await.unwrap();
    assert_eq!(cli(&["HGETALL", "web||a"]), "data\n2\nversion\n8\nfirst-write\n0");
    let left: i64 = cli(&["TTL", "web||a"]).parse().unwrap();
    assert!((3590..=3600).contains(&left), "{left}");

    store.set(bytes("web||b", b"\x01\x02")).await.unwrap();
    assert_eq!(cli(&["HGET", "web||b", "version"]), "1");
    let left: i64 = cli(&["TTL", "web||b"]).parse().unwrap();
    assert!((990..=1000).contains(&left), "what the component says: {left}");
    store.set(Set { ttl: Ttl::Forever, ..bytes("web||b", b"x") }).await.unwrap();
    assert_eq!(cli(&["TTL", "web||b"]), "-1");

    // A text of before there were etags.
    cli(&["SET", "web||old", "text"]);
    assert_eq!(read(&*store, "web||old").await, ("text".to_owned(), String::new()));
    let found = store.bulk_get(&["web||old".to_owned(), "web||b".to_owned()]).await.unwrap();
    assert!(found.iter().all(Option::is_some));
    store.set(json("web||old", "1")).await.unwrap();
    assert_eq!(cli(&["TYPE", "web||old"]), "hash");

    cli(&["RPUSH", "web||list", "x"]);
    let reported = store.get("web||list", Consistency::Eventual).await.unwrap_err();
    assert!(matches!(reported, StateError::Foreign { .. }), "{reported}");
    cli(&["HSET", "web||half", "data", "x"]);
    let reported = store.get("web||half", Consistency::Eventual).await.unwrap_err();
    assert!(reported.to_string().contains("lacks `data` or `version`"), "{reported}");
    cli(&["HSET", "web||fence", "data", "seven", "version", "1"]);
    let fence = Some(Fence { key: "web||fence".to_owned(), number: 1 });
    let reported = store.transact(Transaction { ops: Vec::new(), fence }).await.unwrap_err();
    assert!(reported.to_string().contains("it is no number"), "{reported}");
}

#[tokio::test]
async fn a_redis_that_is_away_is_reported_and_found_again() {
    need_tool!("redis-server");
    let mut server = RedisServer::start(&[]).unwrap();
    let component = redis(&server, &[]);
    let store = opened(&component).await;
    let wrong = component_with_password(&server, "wrong");
    let reported = tollway_state::open(&wrong).await.err().unwrap();
    assert!(!format!("{reported:?} {reported}").contains("wrong"), "{reported:?}");
    server.kill().unwrap();
    let reported = store.set(json("a", "1")).await.unwrap_err();
    assert!(
        matches!(reported, StateError::Unreachable { .. } | StateError::TimedOut { .. }),
        "{reported:?}"
    );
    let reported = tollway_state::open(&component).await.err().unwrap();
    assert!(reported.to_string().contains(&server.address().to_string()), "{reported}");
    server.restart().unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while let Err(reported) = store.set(json("a", "1")).await {
        assert!(std::time::Instant::now() < deadline, "{reported:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(read(&*store, "a").await.0, "1");
}

fn component_with_password(server: &RedisServer, password: &str) -> tollway_state::Component {
    let host = server.address().to_string();
    let metadata = [("redisHost", host.as_str()), ("redisPassword", password)];
    component("state.redis", "v1", &metadata)
}

#[tokio::test]
async fn rows_of_postgresql_v1_are_those_of_dapr() {
    need_tool!("initdb");
    let server = PostgresServer::start(&[]).unwrap();
    let store = opened(&postgresql(&server, "v1", &[])).await;
    let query = |statement: &str| server.query(statement).unwrap();

    let columns = query(
        "SELECT string_agg(column_name || ' ' || data_type, ', ' ORDER BY ordinal_position)
         FROM information_schema.columns WHERE table_name = 'state'",
    );
    assert_eq!(
        columns,
        "key text, value jsonb, isbinary boolean, insertdate timestamp with time zone, \
         updatedate timestamp with time zone, expiredate timestamp with time zone"
    );
    assert_eq!(query("SELECT value FROM dapr_metadata WHERE key = 'migrations'"), "2");
    query("INSERT INTO state (key, value, isbinary) VALUES ('web||a', '{\"n\": 1}', false)");
    query("INSERT INTO state (key, value, isbinary) VALUES ('web||b', '\"aGk=\"', true)");
    let xmin = query("SELECT xmin FROM state WHERE key = 'web||a'");
    assert_eq!(read(&*store, "web||a").await, ("{\"n\": 1}".to_owned(), xmin.clone()));
    assert_eq!(read(&*store, "web||b").await.0, "hi");
    store.set(Set { etag: Some(xmin), ttl: HOUR, ..json("web||a", "[2]") }).await.unwrap();
    let row = "SELECT value, isbinary, updatedate IS NOT NULL,
                 round(extract(epoch FROM expiredate - updatedate)) FROM state WHERE key = ";
    assert_eq!(query(&format!("{row}'web||a'")), "[2]|f|t|3600");
    store.set(bytes("web||c", b"hi")).await.unwrap();
    assert_eq!(query(&format!("{row}'web||c'")), "\"aGk=\"|t|f|");

    query("INSERT INTO state (key, value, isbinary) VALUES ('web||x', '7', true)");
    let reported = store.get("web||x", Consistency::Eventual).await.unwrap_err();
    assert!(matches!(reported, StateError::Foreign { .. }), "{reported}");
    // A later Dapr has another column, which fills itself.
    query("ALTER TABLE state ADD COLUMN row_id bigint GENERATED BY DEFAULT AS IDENTITY");
    store.set(json("web||d", "1")).await.unwrap();
    let refused = store.set(json("web||d", "{not json")).await.unwrap_err();
    assert!(matches!(refused, StateError::Refused { .. }), "{refused:?}");
}

#[tokio::test]
async fn rows_of_postgresql_v2_are_those_of_dapr() {
    need_tool!("initdb");
    let server = PostgresServer::start(&[]).unwrap();
    let query = |statement: &str| server.query(statement).unwrap();
    query("CREATE SCHEMA app");
    let tables = [("tablePrefix", "app.my_"), ("metadataTableName", "app.meta")];
    let store = opened(&postgresql(&server, "v2", &tables)).await;
    let columns = query(
        "SELECT string_agg(column_name || ' ' || data_type, ', ' ORDER BY ordinal_position)
         FROM information_schema.columns WHERE table_schema = 'app' AND table_name = 'my_state'",
    );
    assert_eq!(
        columns,
        "key text, value bytea, etag uuid, created_at timestamp with time zone, \
         updated_at timestamp with time zone, expires_at timestamp with time zone"
    );
    assert_eq!(
        query("SELECT key, value FROM app.meta WHERE key LIKE 'm%'"),
        "migrations-state-v2-app.my_|1"
    );
    let etag = "3e9d58ba-3a5b-4e6b-9c3e-0a4a3cf9d0e5";
    query(&format!(
        "INSERT INTO app.my_state (key, value, etag) VALUES ('web||a', 'hi', '{etag}')"
    ));
    assert_eq!(read(&*store, "web||a").await, ("hi".to_owned(), etag.to_owned()));
    let with = Set { etag: Some(etag.to_uppercase()), ttl: HOUR, ..bytes("web||a", b"\x00") };
    store.set(with).await.unwrap();
    let row = "SELECT value, updated_at IS NOT NULL, expires_at IS NOT NULL FROM app.my_state";
    assert_eq!(query(row), "\\x00|t|t");
    assert_ne!(read(&*store, "web||a").await.1, etag);
    // Opened again, nothing is created.
    let again = opened(&postgresql(&server, "v2", &tables)).await;
    assert_eq!(read(&*again, "web||a").await.0, "\0");
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_rows_are_removed_by_one_of_all() {
    need_tool!("initdb");
    let server = PostgresServer::start(&[]).unwrap();
    let often = [("cleanupInterval", "1s")];
    let _one = opened(&postgresql(&server, "v2", &often)).await;
    let other = opened(&postgresql(&server, "v2", &often)).await;
    other.set(json("stays", "1")).await.unwrap();
    server
        .query("INSERT INTO state (key, value, expires_at) VALUES ('goes', '1', now() - interval '1 hour')")
        .unwrap();
    let left =
        || (server.query("SELECT string_agg(key, ' ') FROM state").ok()? == "stays").then_some(());
    tokio::task::block_in_place(|| retry_until(Duration::from_secs(30), "a sweep", left)).unwrap();
    assert_eq!(
        server
            .query("SELECT count(*) FROM dapr_metadata WHERE key = 'last-cleanup-state-v2-'")
            .unwrap(),
        "1"
    );
}

#[tokio::test]
async fn a_postgresql_that_is_away_is_reported_and_found_again() {
    need_tool!("initdb");
    let mut server = PostgresServer::start(&[]).unwrap();
    let component = postgresql(&server, "v2", &[("timeout", "5s")]);
    let store = opened(&component).await;
    store.set(json("a", "1")).await.unwrap();
    let wrong = postgresql(&server, "v2", &[("password", "not this one")]);
    let reported = tollway_state::open(&wrong).await.err().unwrap();
    assert!(matches!(reported, StateError::Refused { .. }), "{reported:?}");
    assert!(!format!("{reported:?}").contains("not this one"), "{reported:?}");
    server.kill().unwrap();
    for _ in 0..2 {
        let reported = store.set(json("a", "2")).await.unwrap_err();
        assert!(matches!(reported, StateError::Unreachable { .. }), "{reported:?}");
    }
    server.restart().unwrap();
    store.set(json("a", "3")).await.unwrap();
    assert_eq!(read(&*store, "a").await.0, "3");
}

#[tokio::test]
async fn postgresql_over_tls_needs_a_trusted_root_certificate() {
    need_tool!("initdb");
    let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let certificate = pair.cert.pem();
    let (_folder, key) =
        PostgresServer::file("key.pem", &pair.signing_key.serialize_pem()).unwrap();
    let (_folder2, file) = PostgresServer::file("cert.pem", &certificate).unwrap();
    let (key, file) = (key.display().to_string(), file.display().to_string());
    let (key, served) = (format!("ssl_key_file={key}"), format!("ssl_cert_file={file}"));
    let server = PostgresServer::start(&["ssl=on", &key, &served]).unwrap();
    let own = server.connection_string() + " sslmode=require";
    let with = |more: &[(&str, &str)]| {
        component("state.postgresql", "v2", &[&[("connectionString", own.as_str())], more].concat())
    };
    let reported = tollway_state::open(&with(&[])).await.err().unwrap();
    assert!(matches!(reported, StateError::Unreachable { .. }), "{reported:?}");
    let store = opened(&with(&[("sslRootCert", file.as_str())])).await;
    store.set(json("a", "1")).await.unwrap();
    let encrypted = "SELECT count(*) FROM pg_stat_ssl WHERE ssl AND version = 'TLSv1.3'";
    assert_ne!(server.query(encrypted).unwrap(), "0");
}

#[tokio::test]
async fn rows_of_sqlite_are_those_of_dapr() {
    let folder = TempDir::new().unwrap();
    let store = opened(&sqlite(&folder, &[("tableName", "my_state")])).await;
    let other = rusqlite::Connection::open(folder.path().join("state.db")).unwrap();
    let cell =
        |statement: &str| -> String { other.query_row(statement, [], |row| row.get(0)).unwrap() };
    let columns =
        cell("SELECT group_concat(name || ' ' || type, ', ') FROM pragma_table_info('my_state')");
    assert_eq!(
        columns,
        "key TEXT, value TEXT, is_binary BOOLEAN, etag TEXT, expiration_time TIMESTAMP, \
         update_time TIMESTAMP"
    );
    assert_eq!(cell("SELECT value FROM metadata WHERE key = 'migrations'"), "1");
    assert_eq!(cell("PRAGMA journal_mode"), "wal");
    let insert = "INSERT INTO my_state (key, value, is_binary, etag, expiration_time) VALUES ";
    let rows = "('web||a', '{\"n\":1}', 0, 'e1', NULL), ('web||b', 'aGk=', 1, 'e2', NULL),
                ('web||old', '1', 0, 'e3', '2020-01-01 00:00:00')";
    other.execute_batch(&format!("{insert}{rows}")).unwrap();
    assert_eq!(read(&*store, "web||a").await, ("{\"n\":1}".to_owned(), "e1".to_owned()));
    assert_eq!(read(&*store, "web||b").await, ("hi".to_owned(), "e2".to_owned()));
    assert_eq!(store.get("web||old", Consistency::Eventual).await.unwrap(), None);
    store.set(Set { ttl: HOUR, ..bytes("web||c", b"hi") }).await.unwrap();
    store.set(json("web||d", "[1]")).await.unwrap();
    let row = "SELECT value || '|' || is_binary || '|' || length(etag) || '|' ||
               coalesce(unixepoch(expiration_time) - unixepoch(update_time), '') FROM my_state
               WHERE key = ";
    assert_eq!(cell(&format!("{row}'web||c'")), "aGk=|1|36|3600");
    assert_eq!(cell(&format!("{row}'web||d'")), "[1]|0|36|");
    // Another process's lock is waited for.
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let reported = store.delete(Delete::new("web||d")).await.unwrap_err();
    assert!(matches!(reported, StateError::Unreachable { .. }), "{reported:?}");
    other.execute_batch("COMMIT").unwrap();
    store.delete(Delete::new("web||d")).await.unwrap();
    // What is in the file survives.
    drop(store);
    let again = opened(&sqlite(&folder, &[("tableName", "my_state")])).await;
    assert_eq!(read(&*again, "web||c").await.0, "hi");
}

#[tokio::test]
async fn a_file_that_cannot_be_a_database_is_refused() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("state.db"), "no database at all, but long enough").unwrap();
    let reported = tollway_state::open(&sqlite(&folder, &[])).await.err().unwrap();
    assert!(matches!(reported, StateError::Refused { .. }), "{reported:?}");
    let nowhere = component("state.sqlite", "v1", &[("connectionString", "/nowhere/state.db")]);
    let reported = tollway_state::open(&nowhere).await.err().unwrap();
    assert!(reported.to_string().contains("/nowhere/state.db"), "{reported}");
}
