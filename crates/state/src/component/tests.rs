use tollway_config::Mistake;

use super::*;

const HEAD: &str = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: statestore\n";

fn variable(name: &str) -> Option<String> {
    (name == "PASSWORD").then(|| "from outside".to_owned())
}

fn read(text: &str) -> Result<Read, Mistake> {
    let manifest: Manifest = serde_saphyr::from_str(text).unwrap();
    manifest.read(&ComponentContext { app: "web", namespace: "shop", variable: &variable })
}

fn store(text: &str) -> Component {
    match read(text).unwrap() {
        Read::Store(component) => *component,
        other @ (Read::ForOthers { .. } | Read::NotServed(_)) => panic!("{other:?}"),
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
fn a_mistake_has_its_place() {
    let redis = |metadata: &[(&str, &str)]| {
        written("state.redis", &[&[("redisHost", "value: 'a:1'")], metadata].concat())
    };
    let check = |metadata: &[(&str, &str)], what: &str| {
        check_mistake(&redis(metadata), (10, 5), what);
    };
    check(&[("redisHots", "value: x")], "unknown metadata `redisHots`; did you mean `redisHost`?");
    check(&[("RedisHost", "value: x")], "`RedisHost` are given twice");
    check(&[("redisDB", "value: one")], "`redisDB` is \"one\"; expected a number from 0");
    check(&[("enableTLS", "value: maybe")], "expected true or false");
    check(&[("redisType", "value: cluster")], "clusters are not supported");
    check(&[("failover", "value: true")], "Sentinel is not supported");
    check(&[("insecureSkipTLSVerify", "value: true")], "always checked");
    check(&[("readTimeout", "value: soon")], "a time such as 20s");
    check(&[("redisPassword", "envRef: NOT_SET")], "NOT_SET of the environment is not set");
    check(&[("redisPassword", "envRef: TOLLWAY_TOKEN")], "TOLLWAY_TOKEN is not for components");
    check(&[("redisPassword", "value: x, envRef: PASSWORD")], "more than one of");
    check(&[("redisPassword", "secretKeyRef: {name: PASSWORD, key: b}")], "leave `key` out");
    check(&[("keyPrefix", "value: 'a||b'")], "can't contain '||'");
    check_mistake(&written("state.redis", &[]), (6, 9), "`redisHost` are missing");
    check_mistake(
        &written("state.redis", &[("redisHost", "value: 'a:1,b:2'")]),
        (9, 5),
        "one HOST:PORT",
    );
    let twice = [("redisHost", "value: 'a:1'"), ("redisPort", "value: 2")];
    check_mistake(&written("state.redis", &twice), (9, 5), "the port 2, which `redisPort` says");
    let both = [("connectionString", "value: a"), ("url", "value: b")];
    check_mistake(
        &written("state.sqlite", &both),
        (10, 5),
        "`url` says what `connectionString` says",
    );
    let table = [("connectionString", "value: a"), ("tableName", "value: 'a;b'")];
    check_mistake(&written("state.sqlite", &table), (10, 5), "letters, digits and `_`");
    let wrong = [("connectionString", "value: 'host=db sslmode=maybe'")];
    check_mistake(&written("state.postgresql", &wrong), (9, 5), "`sslmode` is \"maybe\"");
    check_mistake(&written("state.mongodb", &[]), (6, 9), "unknown type `state.mongodb`; ");
    let version = written("state.redis", &[]).replace("version: v1", "version: v3");
    check_mistake(&version, (7, 12), "unknown version `v3`; expected one of v1");
    check_mistake(
        &HEAD.replace("Component", "Thing").add_spec(),
        (2, 7),
        "unknown kind `Thing`; expected one of Component",
    );
    check_mistake(
        &HEAD.replace("v1alpha1", "v2").add_spec(),
        (1, 13),
        "unknown apiVersion `dapr.io/v2`; ",
    );
    check_mistake(&HEAD.replace("statestore", "a/b").add_spec(), (4, 9), "part of paths");
}

#[test]
fn a_field_that_is_unknown_is_refused_where_it_stands() {
    for text in [
        format!("{HEAD}spec: {{type: state.in-memory, version: v1, colour: red}}\n"),
        format!("{HEAD}spec: {{type: state.in-memory, version: v1}}\ncolour: red\n"),
        format!("{HEAD}spec: {{version: v1}}\n"),
        written("state.in-memory", &[("a", "values: b")]),
        written("state.in-memory", &[("a", "value: [1]")]),
    ] {
        let reported = serde_saphyr::from_str::<Manifest>(&text).unwrap_err();
        assert!(reported.location().is_some_and(|place| place.line() >= 3), "{reported}");
    }
}

trait AddSpec {
    fn add_spec(&self) -> String;
}

impl AddSpec for String {
    fn add_spec(&self) -> String {
        format!("{self}spec: {{type: state.in-memory, version: v1}}\n")
    }
}
