//! The settings of each engine, from the names that Dapr gives them.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use tollway_config::Mistake;

use super::fields::{Field, Fields};
use crate::postgresql::Connection;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
/// Time for a request to a SQL engine without `timeout`.
const SQL_TIMEOUT: Duration = Duration::from_secs(20);
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// How often PostgreSQL is rid of entries whose time has come.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(3600);
/// Of one request to Redis, and of a connection to it.
const REDIS_TIMEOUT: Duration = Duration::from_secs(3);
const REDIS_DIAL_TIMEOUT: Duration = Duration::from_secs(5);
const REDIS_PORT: u16 = 6379;
/// Connections to PostgreSQL without `maxConns`. Each carries one transaction at a time.
const MAX_CONNECTIONS: usize = 4;

/// What Dapr's client of Redis is tuned by. Here one connection carries all requests at once and
/// is made again when it ends, so that they have nothing to tune.
const REDIS_POOL: &[&str] = &[
    "redisMaxRetries",
    "redisMinRetryInterval",
    "redisMaxRetryInterval",
    "poolSize",
    "minIdleConns",
    "maxConnAge",
    "poolTimeout",
    "idleTimeout",
    "idleCheckFrequency",
    "writeTimeout",
];

/// What only Dapr's queries and messages have.
const REDIS_OTHERS: &[&str] = &[
    "queryIndexes",
    "consumerID",
    "redeliverInterval",
    "processingTimeout",
    "queueDepth",
    "concurrency",
    "maxLenApprox",
    "streamTTL",
];

/// What another way to prove an identity to PostgreSQL is set up by.
const POSTGRESQL_CLOUDS: &[&str] = &[
    "azureTenantId",
    "azureClientId",
    "azureClientSecret",
    "azureCertificate",
    "azureCertificateFile",
    "azureCertificatePassword",
    "azureEnvironment",
    "region",
    "awsRegion",
    "accessKey",
    "awsAccessKey",
    "secretKey",
    "awsSecretKey",
    "sessionToken",
    "awsSessionToken",
    "assumeRoleArn",
    "sessionName",
];

/// Of `state.sqlite`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SqliteSettings {
    /// A path, a URI of SQLite (`file:…`), or `:memory:`.
    pub file: String,
    pub timeout: Duration,
    /// How long it waits for another process's write.
    pub busy_timeout: Duration,
    pub wal: bool,
    pub table: String,
    pub metadata_table: String,
    /// How often entries whose time has come are removed; `None` for never.
    pub cleanup_interval: Option<Duration>,
}

/// Of `state.redis`.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisSettings {
    pub host: String,
    pub port: u16,
    pub username: Option<String>,
    pub password: Option<String>,
    pub database: i64,
    pub tls: bool,
    /// Certificate and key in PEM, to be known by.
    pub client_pair: Option<(String, String)>,
    pub dial_timeout: Duration,
    pub timeout: Duration,
    pub ttl: Option<NonZeroU32>,
}

/// Which of Dapr's two table layouts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PostgresqlLayout {
    /// `state.postgresql` v1: documents (`jsonb`), the row's `xmin` as etag.
    V1,
    /// v2: bytes, and an etag of its own.
    V2,
}

/// Of `state.postgresql`.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresqlSettings {
    pub layout: PostgresqlLayout,
    /// Address and credentials.
    pub config: tokio_postgres::Config,
    pub root_certificates: Option<PathBuf>,
    /// Name of the table, with its schema where one was given.
    pub table: String,
    /// v2: the prefix of the table's name.
    pub table_prefix: String,
    pub metadata_table: String,
    pub timeout: Duration,
    pub cleanup_interval: Option<Duration>,
    pub max_connections: usize,
    pub max_idle: Option<Duration>,
}

pub(super) fn sqlite(fields: &mut Fields) -> Result<SqliteSettings, Mistake> {
    let file = fields.required(&["connectionString", "url"])?;
    Ok(SqliteSettings {
        file: file.value,
        timeout: sql_timeout(fields)?,
        busy_timeout: match fields.time(&["busyTimeout"], SECOND)? {
            None => BUSY_TIMEOUT,
            Some(given) => given.unwrap_or(Duration::ZERO),
        },
        wal: !fields.is_yes("disableWAL")?,
        table: plain_name(fields, "tableName", "state")?,
        metadata_table: plain_name(fields, "metadataTableName", "metadata")?,
        cleanup_interval: cleanup(fields)?.flatten(),
    })
}

pub(super) fn redis(fields: &mut Fields) -> Result<RedisSettings, Mistake> {
    refuse_other_redis(fields)?;
    fields.skip(REDIS_POOL, "one connection carries all requests, and is made again when it ends");
    fields.skip(REDIS_OTHERS, "queries and messages are not served");
    let host = fields.required(&["redisHost"])?;
    let port = fields.number("redisPort", "a port", |port| *port > 0)?;
    if host.value.contains(',') {
        fields.refuse_use(
            "it names several servers of Redis, and clusters are not served".to_owned(),
        );
    }
    let (name, port) = host_and_port(&host, port)?;
    let certificate = fields.text("clientCert");
    let key = fields.take(&["clientKey"]);
    let client_pair = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key.value)),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            let what = "`clientCert` and `clientKey` go together: give both or none";
            return Err(Mistake::at(host.at, what));
        }
    };
    Ok(RedisSettings {
        host: name,
        port,
        username: fields.text("redisUsername"),
        password: fields.text("redisPassword"),
        database: fields.number("redisDB", "a number from 0", |number| *number >= 0)?.unwrap_or(0),
        tls: fields.is_yes("enableTLS")?,
        client_pair,
        dial_timeout: fields
            .time(&["dialTimeout"], MILLISECOND)?
            .flatten()
            .unwrap_or(REDIS_DIAL_TIMEOUT),
        timeout: fields.time(&["readTimeout"], MILLISECOND)?.flatten().unwrap_or(REDIS_TIMEOUT),
        ttl: fields
            .number("ttlInSeconds", "whole seconds, or -1 for no end", |ttl: &i32| *ttl >= -1)?
            .and_then(|ttl| u32::try_from(ttl).ok().and_then(NonZeroU32::new)),
    })
}

/// Refuses settings that need another client, rather than take them for a single server.
fn refuse_other_redis(fields: &mut Fields) -> Result<(), Mistake> {
    if let Some(field) = fields.take(&["redisType"])
        && !field.value.eq_ignore_ascii_case("node")
    {
        fields.refuse_use(format!("it is a {} of Redis, and clusters are not served", field.value));
    }
    if fields.is_truthy("failover") {
        fields.refuse_use("it is behind Redis Sentinel, which is not served".to_owned());
    }
    let refused: [(&[&str], &str); 2] = [
        (
            &["insecureSkipTLSVerify"],
            "false: the certificate of the server is always checked; trust its authority",
        ),
        (&["useEntraID", "useAzureAD", "useOIDC"], "false: only passwords are supported"),
    ];
    for (names, expected) in refused {
        for name in names {
            if let Some(field) = fields.take(&[name])
                && !matches!(field.value.to_lowercase().as_str(), "false" | "0" | "no")
            {
                return Err(field.wrong(expected));
            }
        }
    }
    let oidc = &["oidcTokenEndpoint", "oidcClientID", "oidcClientSecret", "oidcScopes"];
    fields.skip(oidc, "only passwords are supported");
    let sentinel = &["sentinelMasterName", "sentinelUsername", "sentinelPassword"];
    fields.skip(sentinel, "Redis Sentinel is not served");
    Ok(())
}

fn host_and_port(host: &Field, port: Option<u16>) -> Result<(String, u16), Mistake> {
    let text = host.value.as_str();
    if text.contains(',') {
        return Ok((text.to_owned(), REDIS_PORT));
    }
    let (name, written) = match text.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            let port = port.parse::<u16>().ok().filter(|port| *port > 0);
            (name, Some(port.ok_or_else(|| host.wrong("HOST:PORT"))?))
        }
        _ => (text, None),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if name.is_empty() {
        return Err(host.wrong("HOST:PORT"));
    }
    Ok((name.to_owned(), written.or(port).unwrap_or(REDIS_PORT)))
}

pub(super) fn postgresql(
    fields: &mut Fields,
    layout: PostgresqlLayout,
) -> Result<Box<PostgresqlSettings>, Mistake> {
    for name in ["useAzureAD", "useAWSIAM"] {
        if fields.is_yes(name)? {
            let what = format!("`{name}` is not supported; give a user and a password");
            return Err(Mistake::at(fields.location(), what));
        }
    }
    // All modes of preparing queries are accepted.
    fields.take(&["queryExecMode"]);
    fields.skip(POSTGRESQL_CLOUDS, "only a user and a password are supported");
    let Connection { config, roots: root_certificates, pool, .. } = connection(fields)?;
    let (table_prefix, table) = match layout {
        PostgresqlLayout::V1 => (String::new(), schema_name(fields, "tableName", "state")?),
        PostgresqlLayout::V2 => {
            let prefix = fields.take(&["tablePrefix"]);
            let prefix = prefix.map_or(Ok(String::new()), |field| {
                let table = format!("{}state", field.value);
                if is_schema_name(&table) {
                    Ok(field.value)
                } else {
                    Err(field.wrong("letters, digits and `_`, at most with a schema before a dot"))
                }
            })?;
            let table = format!("{prefix}state");
            (prefix, table)
        }
    };
    Ok(Box::new(PostgresqlSettings {
        layout,
        config,
        root_certificates,
        table,
        table_prefix,
        metadata_table: schema_name(fields, "metadataTableName", "dapr_metadata")?,
        timeout: sql_timeout(fields)?,
        cleanup_interval: cleanup(fields)?.unwrap_or(Some(CLEANUP_INTERVAL)),
        max_connections: fields
            .number("maxConns", "a whole number", |_: &i64| true)?
            .and_then(|number| usize::try_from(number).ok().filter(|number| *number > 0))
            .or(pool.max_connections)
            .unwrap_or(MAX_CONNECTIONS),
        max_idle: fields.time(&["connectionMaxIdleTime"], SECOND)?.flatten().or(pool.max_idle),
    }))
}

/// The connection string with the separate settings.
fn connection(fields: &mut Fields) -> Result<Connection, Mistake> {
    let written = fields.take(&["connectionString", "url"]);
    let at = written.as_ref().map_or_else(|| fields.location(), |field| field.at);
    let mut beside = Vec::new();
    for (name, word) in [
        ("host", "host"),
        ("hostaddr", "hostaddr"),
        ("port", "port"),
        ("database", "dbname"),
        ("user", "user"),
        ("password", "password"),
        ("sslRootCert", "sslrootcert"),
    ] {
        beside.extend(fields.text(name).map(|value| (word, value)));
    }
    let text = written.map(|field| field.value).unwrap_or_default();
    if text.is_empty() && beside.is_empty() {
        return Err(Mistake::at(at, "the metadata `connectionString` are missing"));
    }
    let connection = crate::postgresql::read_connection(&text, &beside)
        .map_err(|what| Mistake::at(at, format!("`connectionString`: {what}")))?;
    for word in &connection.idle {
        fields.note(at, format!("`{word}` of `connectionString` has no effect"));
    }
    Ok(connection)
}

fn sql_timeout(fields: &mut Fields) -> Result<Duration, Mistake> {
    let Some(given) = fields.time(&["timeout", "timeoutInSeconds"], SECOND)? else {
        return Ok(SQL_TIMEOUT);
    };
    given
        .filter(|timeout| *timeout >= SECOND)
        .ok_or_else(|| Mistake::at(fields.location(), "`timeout` is too short; give at least 1s"))
}

fn cleanup(fields: &mut Fields) -> Result<Option<Option<Duration>>, Mistake> {
    fields.time(&["cleanupInterval", "cleanupIntervalInSeconds"], SECOND)
}

fn plain_name(fields: &mut Fields, name: &'static str, otherwise: &str) -> Result<String, Mistake> {
    match fields.take(&[name]) {
        None => Ok(otherwise.to_owned()),
        Some(field) if is_name(&field.value) => Ok(field.value),
        Some(field) => Err(field.wrong("letters, digits and `_`")),
    }
}

/// A name, or a schema and a name. They go into statements as they are.
fn schema_name(
    fields: &mut Fields,
    name: &'static str,
    otherwise: &str,
) -> Result<String, Mistake> {
    match fields.take(&[name]) {
        None => Ok(otherwise.to_owned()),
        Some(field) if is_schema_name(&field.value) => Ok(field.value),
        Some(field) => {
            Err(field.wrong("letters, digits and `_`, at most with a schema before a dot"))
        }
    }
}

fn is_schema_name(text: &str) -> bool {
    text.split_once('.').map_or(is_name(text), |(schema, name)| is_name(schema) && is_name(name))
}

fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !text.is_empty() && text.chars().all(plain) && !text.starts_with(|c: char| c.is_ascii_digit())
}

impl RedisSettings {
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl PostgresqlSettings {
    /// Without what could be a secret.
    pub(crate) fn address(&self) -> String {
        crate::postgresql::shown(&self.config)
    }
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl fmt::Debug for PostgresqlSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresqlSettings")
            .field("address", &self.address())
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}
