//! How to reach PostgreSQL: a connection string or URL, with separate settings, as pgx takes them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;
use tollway_config::go::duration;
use tollway_identity::{RootsError, public_config, roots_in_file, system_roots};

use crate::error::StateError;

/// Where a server's socket is if nothing names a host, in the order of pgx.
const SOCKET_FOLDERS: [&str; 2] = ["/var/run/postgresql", "/tmp"];
/// What the client of the store takes as it is.
const CLIENT_WORDS: &[&str] = &[
    "user",
    "password",
    "dbname",
    "application_name",
    "options",
    "sslmode",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "channel_binding",
    "target_session_attrs",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "tcp_user_timeout",
    "load_balance_hosts",
];
/// Words of pgx and its pool that have nothing to set here.
const IDLE_WORDS: &[&str] = &[
    "pool_min_conns",
    "pool_min_idle_conns",
    "pool_max_conn_lifetime",
    "pool_max_conn_lifetime_jitter",
    "pool_health_check_period",
    "statement_cache_capacity",
    "description_cache_capacity",
    "default_query_exec_mode",
    "sslnegotiation",
    "sslsni",
    "min_protocol_version",
    "max_protocol_version",
    "client_encoding",
];
/// Words by which a client proves who it is in ways that are not served.
const REFUSED_WORDS: &[&str] = &[
    "sslcert",
    "sslkey",
    "sslpassword",
    "sslcrl",
    "sslcrldir",
    "passfile",
    "service",
    "servicefile",
    "require_auth",
    "requirepeer",
    "krbspn",
    "krbsrvname",
    "gssencmode",
];

/// What a connection string means.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) config: Config,
    /// The file of root certificates.
    pub(crate) roots: Option<PathBuf>,
    pub(crate) pool: Pool,
    /// Words that have no effect.
    pub(crate) idle: Vec<String>,
}

/// What a connection string sets of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Pool {
    pub(crate) max_connections: Option<usize>,
    pub(crate) max_idle: Option<Duration>,
}

/// Reads a connection string (`host=… user=…`) or URL, and the separate settings, which win. A
/// word that is not known is a parameter of the server.
///
/// # Errors
/// What is wrong with it, in words; never its values.
pub(crate) fn read_connection(
    written: &str,
    beside: &[(&'static str, String)],
) -> Result<Connection, String> {
    let is_url = written.starts_with("postgres://") || written.starts_with("postgresql://");
    let mut parts = if is_url { split_url(written)? } else { split(written)? };
    for (word, value) in beside {
        parts.retain(|(other, _)| other != word);
        parts.push(((*word).to_owned(), value.clone()));
    }
    let (mut text, mut options) = (String::new(), String::new());
    let (mut roots, mut pool, mut idle) = (None, Pool::default(), Vec::new());
    for (word, value) in parts {
        match word.as_str() {
            "sslrootcert" => roots = Some(PathBuf::from(value)),
            "sslmode" => add(&mut text, "sslmode", mode(&value)?),
            "target_session_attrs" => add(&mut text, &word, session(&value)?),
            "options" => options.insert_str(0, &format!("{value} ")),
            "fallback_application_name" => add(&mut text, "application_name", &value),
            "pool_max_conns" => {
                let number = value.parse().ok().filter(|number: &usize| *number > 0);
                pool.max_connections = Some(number.ok_or_else(|| wrong(&word, "a number from 1"))?);
            }
            "pool_max_conn_idle_time" => {
                let time = duration(&value).ok_or_else(|| wrong(&word, "a time such as 5m"))?;
                pool.max_idle = Some(time);
            }
            word if CLIENT_WORDS.contains(&word) => add(&mut text, word, &value),
            word if IDLE_WORDS.contains(&word) => idle.push(word.to_owned()),
            word if REFUSED_WORDS.contains(&word) => {
                return Err(format!("`{word}` is not supported; give a user and a password"));
            }
            word if is_parameter(word) => options.push_str(&parameter(word, &value)),
            _ => return Err("it has a word that is no name of a parameter".to_owned()),
        }
    }
    if !options.trim().is_empty() {
        add(&mut text, "options", options.trim());
    }
    let mut config = parse(&text)?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        let [usual, other] = SOCKET_FOLDERS.map(Path::new);
        config.host_path(if usual.is_dir() { usual } else { other });
    }
    Ok(Connection { config, roots, pool, idle })
}

fn wrong(word: &str, expected: &str) -> String {
    format!("`{word}` is not {expected}")
}

fn is_parameter(word: &str) -> bool {
    let first = word.chars().next();
    first.is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && word.chars().all(|sign| sign.is_ascii_alphanumeric() || "_.".contains(sign))
}

/// A parameter of the server as an option of its command line.
fn parameter(word: &str, value: &str) -> String {
    let mut escaped = String::new();
    for sign in value.chars() {
        if sign == '\\' || sign.is_whitespace() {
            escaped.push('\\');
        }
        escaped.push(sign);
    }
    format!("-c {word}={escaped} ")
}

/// The words that a URL stands for.
fn split_url(written: &str) -> Result<Vec<(String, String)>, String> {
    let (front, query) = written.split_once('?').unwrap_or((written, ""));
    let rest = front.split_once("://").map_or("", |(_, rest)| rest);
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (login, None),
    };
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for host in hosts.split(',').filter(|host| !host.is_empty()) {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name, port),
            _ => (host, ""),
        };
        names.push(decoded(name.trim_start_matches('[').trim_end_matches(']')));
        ports.push(if port.is_empty() { "5432" } else { port });
    }
    let mut parts = Vec::new();
    let mut push = |word: &str, value: String| {
        if !value.is_empty() {
            parts.push((word.to_owned(), value));
        }
    };
    push("user", decoded(user));
    push("password", decoded(password.unwrap_or_default()));
    push("host", names.join(","));
    push("port", ports.join(","));
    push("dbname", decoded(database));
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (word, value) = part.split_once('=').unwrap_or((part, ""));
        let word = decoded(word);
        let word = synonym(&word).to_owned();
        parts.retain(|(other, _)| *other != word);
        parts.push((word, decoded(&value.replace('+', " "))));
    }
    Ok(parts)
}

fn parse(text: &str) -> Result<Config, String> {
    text.parse().map_err(|error: tokio_postgres::Error| {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        source.unwrap_or_else(|| error.to_string())
    })
}

/// The words of a connection string and their values, without their quotes. There may be blanks
/// around `=`.
fn split(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut signs = text.chars().peekable();
    let mut parts: Vec<(String, String)> = Vec::new();
    loop {
        while signs.next_if(|sign| sign.is_whitespace()).is_some() {}
        if signs.peek().is_none() {
            return Ok(parts);
        }
        let mut word = String::new();
        loop {
            match signs.next() {
                Some('=') => break,
                Some(sign) => word.push(sign),
                None => return Err("it is neither a URL nor words with `=`".to_owned()),
            }
        }
        while signs.next_if(|sign| sign.is_whitespace()).is_some() {}
        let quoted = signs.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match signs.next() {
                Some('\\') => value.extend(signs.next()),
                Some('\'') if quoted => break,
                Some(sign) if !quoted && sign.is_whitespace() => break,
                Some(sign) => value.push(sign),
                None if quoted => return Err("a quote in it does not end".to_owned()),
                None => break,
            }
        }
        let word = word.trim().to_lowercase();
        let word = synonym(&word).to_owned();
        parts.retain(|(other, _)| *other != word);
        parts.push((word, value));
    }
}

fn add(text: &mut String, word: &str, value: &str) {
    let value = value.replace('\\', r"\\").replace('\'', r"\'");
    text.push_str(&format!("{word}='{value}' "));
}

/// The word of this client for one of others.
fn synonym(word: &str) -> &str {
    if word == "database" { "dbname" } else { word }
}

/// What it may mean that TLS is wanted: a certificate is always checked.
fn mode(written: &str) -> Result<&'static str, String> {
    match written {
        "disable" => Ok("disable"),
        "allow" | "prefer" | "" => Ok("prefer"),
        "require" | "verify-ca" | "verify-full" => Ok("require"),
        _ => Err(format!(
            "`sslmode` is {written:?}; expected disable, prefer, require, verify-ca or verify-full"
        )),
    }
}

/// Which server of several is taken.
fn session(written: &str) -> Result<&'static str, String> {
    match written {
        "any" | "prefer-standby" | "" => Ok("any"),
        "read-write" | "primary" => Ok("read-write"),
        "read-only" | "standby" => Ok("read-only"),
        _ => Err(format!("`target_session_attrs` is {written:?}; expected any or read-write")),
    }
}

fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Host and database, for errors and logs.
pub(crate) fn shown(config: &Config) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    });
    let hosts: Vec<String> = match config.get_hosts() {
        [] => config.get_hostaddrs().iter().map(ToString::to_string).collect(),
        _ => hosts.collect(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let database = config.get_dbname().or_else(|| config.get_user()).unwrap_or_default();
    format!("{}:{port}/{database}", hosts.join(","))
}

/// Connections within the machine need no TLS, unless the settings ask for it.
pub(super) fn settle_mode(config: &mut Config) {
    let is_here = |host: &Host| match host {
        Host::Tcp(name) => {
            let address = name.parse::<std::net::IpAddr>();
            name == "localhost" || address.is_ok_and(|address| address.is_loopback())
        }
        Host::Unix(_) => true,
    };
    if config.get_ssl_mode() == SslMode::Prefer
        && config.get_hosts().iter().all(is_here)
        && config.get_hostaddrs().iter().all(std::net::IpAddr::is_loopback)
    {
        config.ssl_mode(SslMode::Disable);
    }
}

/// Checks the server's certificate against the system's roots, or those of a file.
///
/// # Errors
/// [`StateError::Setting`] when there are no roots.
pub(super) fn tls(roots: Option<&PathBuf>) -> Result<MakeRustlsConnect, StateError> {
    let wrong = |what: String| StateError::Setting { what };
    let roots = match roots {
        Some(file) => roots_in_file(file).map_err(|error| {
            let reason = match error {
                RootsError::Pem(error) => error.to_string(),
                RootsError::None => error.to_string(),
            };
            wrong(format!("cannot read root certificates from {}: {reason}", file.display()))
        })?,
        None => system_roots(),
    };
    let config = public_config(roots, &[], None)
        .map_err(|error| wrong(format!("cannot prepare TLS: {error}")))?;
    Ok(MakeRustlsConnect::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(written: &str, beside: &[(&'static str, &str)]) -> Result<String, String> {
        let beside: Vec<_> =
            beside.iter().map(|(word, value)| (*word, (*value).to_owned())).collect();
        let Connection { config, roots, .. } = read_connection(written, &beside)?;
        let password = config.get_password().map(String::from_utf8_lossy).unwrap_or_default();
        let roots = roots.map(|file| file.display().to_string()).unwrap_or_default();
        let user = config.get_user().unwrap_or_default();
        Ok(format!("{user}:{password}@{} {:?} {roots}", shown(&config), config.get_ssl_mode()))
    }

    #[test]
    fn connection_strings_of_dapr_are_read() {
        let check = |written, beside: &[_], expected: &str| {
            assert_eq!(read(written, beside).unwrap(), expected);
        };
        check(
            "host=localhost user=postgres password=example port=5433 connect_timeout=10 database=dapr",
            &[],
            "postgres:example@localhost:5433/dapr Prefer ",
        );
        check(r"host=db user=u password='a b\'c'", &[], "u:a b'c@db:5432/u Prefer ");
        check(
            "host=db user=u sslmode=verify-full sslrootcert=/etc/ca.pem",
            &[],
            "u:@db:5432/u Require /etc/ca.pem",
        );
        check(
            "postgres://u:p%40@db:5433/app?sslmode=verify-ca&sslrootcert=%2Fca.pem",
            &[("password", "x")],
            "u:x@db:5433/app Require /ca.pem",
        );
        check(
            "host=db dbname=a",
            &[("host", "other"), ("dbname", "b"), ("user", "u")],
            "u:@other:5432/b Prefer ",
        );
        check("", &[("host", "db")], ":@db:5432/ Prefer ");
    }

    fn options(written: &str) -> String {
        let connection = read_connection(written, &[]).unwrap();
        connection.config.get_options().unwrap_or_default().to_owned()
    }

    #[test]
    fn what_pgx_takes_in_a_connection_string_is_taken() {
        let pooled = read_connection(
            "host=db user=u pool_min_conns=1 pool_max_conns=10 pool_max_conn_idle_time=5m",
            &[],
        );
        let pooled = pooled.unwrap();
        let max_idle = Some(Duration::from_secs(300));
        assert_eq!(pooled.pool, Pool { max_connections: Some(10), max_idle });
        assert_eq!(pooled.idle, ["pool_min_conns"]);
        assert_eq!(options("postgres://u:p@db/d?search_path=app"), "-c search_path=app");
        let several = options("host=db timezone=UTC search_path='a, b' options='-c geqo=off'");
        assert_eq!(several, r"-c geqo=off -c timezone=UTC -c search_path=a,\ b");
        for blanks in
            ["host = db port = 1 user = u dbname = d", "host= db port =1 user='u' dbname=d"]
        {
            assert_eq!(read(blanks, &[]).unwrap(), "u:@db:1/d Prefer ");
        }
        let hosts = read("postgresql://u@a:1,[::1]:2/d?target_session_attrs=primary", &[]);
        assert_eq!(hosts.unwrap(), "u:@a,::1:1/d Prefer ");
        let beside = [("host", "other"), ("port", "6"), ("dbname", "e")];
        assert_eq!(read("postgres://u@db:5/d", &beside).unwrap(), "u:@other:6/e Prefer ");
        let socket = read("user=u dbname=d", &[]).unwrap();
        assert!(socket.starts_with("u:@/"), "{socket}");
    }

    #[test]
    fn other_ways_to_prove_an_identity_are_refused() {
        for word in REFUSED_WORDS {
            let refused = read(&format!("host=db {word}=x"), &[]).unwrap_err();
            assert!(refused.contains(word), "{refused}");
        }
    }

    #[test]
    fn what_is_no_connection_string_is_refused_without_its_values() {
        for wrong in [
            "secret",
            "host='db",
            "host=db port=secret",
            "host=db a-b=x",
            "host=db pool_max_conns=x",
            "host=db sslmode=maybe",
            "postgres://u:p@db/app?sslmode=maybe",
        ] {
            let told = read(wrong, &[]).unwrap_err();
            assert!(!told.contains("=x") && !told.is_empty(), "{wrong}: {told}");
        }
    }
}
