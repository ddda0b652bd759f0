use tollway_config::Mistake;
use tollway_config::go::{Reader, decode, only_document};

use super::*;

const HEAD: &str = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: statestore\n";

fn variable(name: &str) -> Option<String> {
    (name == "PASSWORD").then(|| "from outside".to_owned())
}

fn read(text: &str) -> Result<Read, Mistake> {
    read_noted(text, false).map(|(read, _)| read)
}

/// With the notes, each with its line.
fn read_noted(
    text: &str,
    takes_all_namespaces: bool,
) -> Result<(Read, Vec<(u64, String)>), Mistake> {
    let node = only_document(text, Reader::Resource, "a.yaml").unwrap().unwrap();
    let manifest: Manifest = decode(&node, Reader::Resource, "a.yaml").unwrap().value;
    let context = ComponentContext {
        app: "web",
        namespace: "shop",
        takes_all_namespaces,
        variable: &variable,
    };
    let mut notes = Vec::new();
    let read = manifest.read(&context, &mut notes)?;
    Ok((read, notes.into_iter().map(|note| (note.line, note.what)).collect()))
}

#[track_caller]
fn check_note(text: &str, line: u64, what: &str) {
    let (_, notes) = read_noted(text, false).unwrap();
    assert!(notes.iter().any(|note| note.0 == line && note.1.contains(what)), "{what}: {notes:?}");
}

#[track_caller]
fn check_unusable(text: &str, why: &str) -> UnusableStore {
    let read = read(text).unwrap();
    let Read::Unusable(store) = read else { panic!("{why}: {read:?}") };
    assert!(store.why.contains(why), "{why}: {store:?}");
    store
}

fn store(text: &str) -> Component {
    match read(text).unwrap() {
        Read::Store(component) => *component,
        other @ (Read::ForOthers { .. } | Read::NotServed(_) | Read::Unusable(_)) => {
            panic!("{other:?}")
        }
    }
}

/// A component of a type with metadata, one `name: value` on each line from line 9 on.
fn written(component_type: &str, metadata: &[(&str, &str)]) -> String {
    let mut text = format!("{HEAD}spec:\n  type: {component_type}\n  version: v1\n  metadata:\n");
    for (name, value) in metadata {
        text += &format!("  - {{name: {name}, {value}}}\n");
    }
    text
}

#[track_caller]
fn check_mistake(text: &str, position: (u64, u64), what: &str) {
    let mistake = read(text).unwrap_err();
    assert!(mistake.what.contains(what), "{}", mistake.what);
    assert_eq!((mistake.line, mistake.column), position, "{}", mistake.what);
}

#[test]
fn a_component_of_dapr_is_read() {
    let text = "apiVersion: dapr.io/v1alpha1
kind: Component
metadata:
  name: orders
  namespace: shop
  labels: {team: a}
spec:
  type: state.redis
  version: v1
  ignoreErrors: true
  initTimeout: 1m
  metadata:
  - name: redisHost
    value: redis.internal
  - name: redisPort
    value: 6380
  - name: redisPassword
    secretKeyRef:
      name: PASSWORD
      key: PASSWORD
  - name: redisUsername
    value: \"\"
  - name: enableTLS
    value: true
  - name: redisMaxRetries
    value: \"3\"
  - name: actorStateStore
    value: \"true\"
  - name: keyPrefix
    value: name
  - name: ttlInSeconds
    value: 60
auth:
  secretStore: local-env
scopes:
- other
- web
";
    let component = store(text);
    assert_eq!(
        (component.name.as_str(), component.component_type.as_str()),
        ("orders", "state.redis")
    );
    assert!(component.is_actor_store && component.ignore_errors);
    assert_eq!(component.key_prefix, KeyPrefix::Name);
    assert_eq!(component.init_timeout, Duration::from_secs(60));
    let Engine::Redis(settings) = &component.engine else { panic!("{component:?}") };
    assert_eq!(settings.address(), "redis.internal:6380");
    assert_eq!(settings.password.as_deref(), Some("from outside"));
    assert_eq!((settings.username.as_deref(), settings.tls), (None, true));
    assert_eq!(settings.ttl.map(std::num::NonZeroU32::get), Some(60));
    assert!(!format!("{component:?}").contains("outside"), "{component:?}");
}

#[test]
fn what_is_for_others_or_of_another_kind_is_no_mistake() {
    let text = written("state.redis", &[]);
    assert!(matches!(
        read(&format!("{text}scopes: [other]\n")),
        Ok(Read::ForOthers { is_store: true })
    ));
    let elsewhere = text.replace("name: statestore", "name: statestore\n  namespace: other");
    assert!(matches!(read(&elsewhere), Ok(Read::ForOthers { is_store: true })));
    let bus = written("pubsub.redis", &[]) + "scopes: [other]\n";
    assert!(matches!(read(&bus), Ok(Read::ForOthers { is_store: false })));
    let Ok(Read::NotServed(what)) = read(&written("pubsub.redis", &[("redisHost", "value: x")]))
    else {
        panic!("a component of another kind is read")
    };
    assert_eq!(what, "Component `statestore` of type pubsub.redis");
}

#[test]
fn settings_have_the_names_and_defaults_of_dapr() {
    let sqlite = written("state.sqlite", &[("connectionString", "value: 'data-{appID}.db'")]);
    let Engine::Sqlite(sqlite) = store(&sqlite).engine else { panic!("another engine") };
    assert_eq!((sqlite.file.as_str(), sqlite.table.as_str()), ("data-web.db", "state"));
    assert_eq!((sqlite.timeout, sqlite.cleanup_interval), (Duration::from_secs(20), None));
    let old = written(
        "state.postgresql",
        &[("connectionString", "value: 'host=db user=u'"), ("tableName", "value: public.s")],
    );
    let Engine::Postgresql(old) = store(&old).engine else { panic!("another engine") };
    assert_eq!((old.layout, old.table.as_str()), (PostgresqlLayout::V1, "public.s"));
    assert_eq!(old.cleanup_interval, Some(Duration::from_secs(3600)));
    let new = written(
        "state.postgresql",
        &[
            ("url", "value: 'postgres://u@db/app'"),
            ("cleanupInterval", "value: '-1'"),
            ("timeoutInSeconds", "value: 7"),
            ("maxConns", "value: 9"),
        ],
    );
    let Engine::Postgresql(new) = store(&new.replace("version: v1", "version: v2")).engine else {
        panic!("another engine")
    };
    assert_eq!((new.layout, new.table.as_str()), (PostgresqlLayout::V2, "state"));
    assert_eq!((new.cleanup_interval, new.timeout.as_secs()), (None, 7));
    assert_eq!(new.max_connections, 9);
}

#[test]
fn a_wrong_value_of_a_store_that_is_served_has_its_position() {
    let redis = |metadata: &[(&str, &str)]| {
        written("state.redis", &[&[("redisHost", "value: 'a:1'")], metadata].concat())
    };
    let check = |metadata: &[(&str, &str)], what: &str| {
        check_mistake(&redis(metadata), (10, 5), what);
    };
    check(&[("RedisHost", "value: x")], "`RedisHost` is `redisHost` in another case");
    check(&[("redisDB", "value: one")], "`redisDB` is \"one\"; expected a number from 0");
    check(&[("enableTLS", "value: maybe")], "expected true or false");
    check(&[("insecureSkipTLSVerify", "value: true")], "always checked");
    check(&[("useEntraID", "value: true")], "only passwords are supported");
    check(&[("primaryEncryptionKey", "value: x")], "nothing would be encrypted");
    check(&[("readTimeout", "value: soon")], "a time such as 20s");
    check(&[("keyPrefix", "value: 'a||b'")], "can't contain '||'");
    check_mistake(&written("state.redis", &[]), (6, 9), "`redisHost` are missing");
    let table = [("connectionString", "value: a"), ("tableName", "value: 'a;b'")];
    check_mistake(&written("state.sqlite", &table), (10, 5), "letters, digits and `_`");
    let wrong = [("connectionString", "value: 'host=db sslmode=maybe'")];
    check_mistake(&written("state.postgresql", &wrong), (9, 5), "`sslmode` is \"maybe\"");
    let timeout = redis(&[]).replace("version: v1", "version: v1\n  initTimeout: soon");
    check_note(&timeout, 8, "`initTimeout` is \"soon\"");
}

#[test]
fn a_store_that_ignores_errors_is_unusable_with_its_mistake() {
    let text = written("state.redis", &[("redisDB", "value: one")]);
    let store =
        check_unusable(&(text.clone() + "  ignoreErrors: true\n"), "`redisHost` are missing");
    assert_eq!(store.name, "statestore");
    assert!(read(&text).is_err());
}

#[test]
fn a_store_that_is_not_served_is_refused_at_its_use() {
    let other =
        written("state.mongodb", &[("host", "value: x"), ("actorStateStore", "value: true")]);
    let store = check_unusable(&other, "unknown type `state.mongodb`");
    assert!(store.is_actor_store);
    check_note(&other, 6, "the state store `statestore` cannot be used");
    let version = written("state.redis", &[]).replace("version: v1", "version: v3");
    check_unusable(&version, "unknown version `v3`; expected one of v1");
    let redis = |name: &str, value: &str| {
        written("state.redis", &[("redisHost", "value: 'a:1'"), (name, value)])
    };
    check_unusable(&redis("redisType", "value: cluster"), "clusters are not served");
    check_unusable(&redis("failover", "value: true"), "Redis Sentinel");
    check_unusable(&written("state.redis", &[("redisHost", "value: 'a:1,b:2'")]), "clusters");
    let secret = |secret: &str| redis("redisPassword", &format!("secretKeyRef: {secret}"));
    check_unusable(&secret("{name: redis, key: password}"), "`redis` has no key `password`");
    check_unusable(&secret("{name: NOT_SET}"), "NOT_SET of the environment is not set");
    check_unusable(&secret("{name: TOLLWAY_TOKEN}"), "TOLLWAY_TOKEN is not for components");
    let name = redis("redisDB", "value: 1").replace("name: statestore", "name: a/b");
    check_unusable(&name, "no part of a path");
    let odd = |text: &str| {
        written("state.in-memory", &[("keyPrefix", text)])
            .replace("name: statestore", "name: 'a#?|'")
    };
    check_unusable(&odd("value: name"), "its keys begin with its name");
    let Ok(Read::Store(taken)) = read(&odd("value: appid")) else { panic!("it is not served") };
    assert_eq!(taken.name, "a#?|");
}

#[test]
fn what_has_no_effect_is_a_note() {
    let redis = |metadata: &[(&str, &str)]| {
        written("state.redis", &[&[("redisHost", "value: 'a:1'")], metadata].concat())
    };
    for name in REDIS_NAMES_OF_DAPR {
        check_note(&redis(&[(name, "value: 3")]), 10, "has no effect");
    }
    check_note(&redis(&[("redisHots", "value: x")]), 10, "did you mean `redisHost`?");
    check_note(&redis(&[("redisPassword", "envRef: NOT_SET")]), 10, "`redisPassword` is empty");
    let both = [("connectionString", "value: a"), ("url", "value: b")];
    check_note(&written("state.sqlite", &both), 10, "`url` has no effect");
    let pool = [("connectionString", "value: 'host=db pool_min_conns=1'")];
    check_note(&written("state.postgresql", &pool), 9, "`pool_min_conns`");
    let aws = [("connectionString", "value: 'host=db'"), ("awsRegion", "value: x")];
    check_note(&written("state.postgresql", &aws), 10, "`awsRegion` has no effect");
}

/// What Dapr's page and code have for Redis beyond what has an effect here.
const REDIS_NAMES_OF_DAPR: &[&str] = &[
    "redisMaxRetries",
    "redisMinRetryInterval",
    "redisMaxRetryInterval",
    "writeTimeout",
    "poolSize",
    "poolTimeout",
    "maxConnAge",
    "minIdleConns",
    "idleCheckFrequency",
    "idleTimeout",
    "queryIndexes",
    "maxLenApprox",
    "processingTimeout",
    "redeliverInterval",
    "queueDepth",
    "concurrency",
    "consumerID",
    "streamTTL",
    "outboxPublishPubsub",
    "outboxPublishTopic",
    "outboxPubsub",
    "outboxDiscardWhenMissingState",
    "sentinelMasterName",
    "oidcClientID",
];

#[test]
fn a_component_is_read_as_go_writes_it() {
    let text = "apiVersion: dapr.io/v1alpha1\nauth:\n  secretStore: \"\"\nkind: Component\n\
                metadata:\n  creationTimestamp: null\n  name: statestore\nscopes: null\nspec:\n  \
                ignoreErrors: false\n  initTimeout: \"\"\n  metadata:\n  - envRef: \"\"\n    \
                name: redisHost\n    secretKeyRef:\n      key: \"\"\n      name: \"\"\n    value: \
                localhost:6379\n  - name: redisPassword\n    value: null\n  type: state.redis\n  \
                version: \"\"\nstatus: {}\n";
    let Read::Store(component) = read(text).unwrap() else { panic!("it is no store") };
    assert_eq!(component.init_timeout, Duration::from_secs(5));
    let Engine::Redis(settings) = &component.engine else { panic!("{component:?}") };
    assert_eq!((settings.address().as_str(), &settings.password), ("localhost:6379", &None));
    let in_any_case = "APIVersion: dapr.io/v1alpha1\nKind: Component\nMetadata: {Name: s}\n\
                       Spec: {Type: state.in-memory}\n";
    assert_eq!(store(in_any_case).name, "s");
}

#[test]
fn values_of_metadata_are_texts_as_go_makes_them() {
    let host = |value: &str| {
        let text = written("state.redis", &[("redisHost", value)]);
        let Engine::Redis(settings) = store(&text).engine else { panic!("another engine") };
        settings.address()
    };
    assert_eq!(host("value: '{appID}'"), "web:6379");
    assert_eq!(host("value: '{namespace}'"), "shop.web:6379");
    assert_eq!(host("value: 7"), "7:6379");
    // A secret counts before a value, and a value before a variable.
    assert_eq!(host("value: x, secretKeyRef: {name: PASSWORD}"), "from outside:6379");
    assert_eq!(host("value: x, envRef: PASSWORD"), "x:6379");
    let twice =
        [("redisHost", "value: a"), ("redisPort", "value: 2"), ("redisHost", "value: 'b:3'")];
    let Engine::Redis(settings) = store(&written("state.redis", &twice)).engine else {
        panic!("another engine")
    };
    assert_eq!(settings.address(), "b:3");
}

#[test]
fn without_a_namespace_of_the_process_components_of_all_are_taken() {
    let elsewhere = written("state.in-memory", &[])
        .replace("name: statestore", "name: statestore\n  namespace: production");
    assert!(matches!(read(&elsewhere).unwrap(), Read::ForOthers { is_store: true }));
    assert!(matches!(read_noted(&elsewhere, true).unwrap().0, Read::Store(_)));
}
