//! How to reach PostgreSQL: a connection string or URL, with separate settings.

use std::path::PathBuf;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;
use tollway_identity::{RootsError, public_config, roots_in_file, system_roots};

use crate::error::StateError;

/// Words of other clients for words of this one.
const SYNONYMS: [(&str, &str); 1] = [("database", "dbname")];

/// Reads a connection string (`host=… user=…`) or URL, and the separate settings, which win.
/// Returns the file of root certificates separately.
///
/// # Errors
/// What is wrong with it, in words; never its values.
pub(crate) fn read_connection(
    written: &str,
    beside: &[(&'static str, String)],
) -> Result<(Config, Option<PathBuf>), String> {
    if written.starts_with("postgres://") || written.starts_with("postgresql://") {
        return read_url(written, beside);
    }
    let mut parts = split(written)?;
    for (word, value) in beside {
        let word = synonym(word);
        parts.retain(|(other, _)| synonym(other) != word);
        parts.push((word.to_owned(), value.clone()));
    }
    let (mut text, mut roots) = (String::new(), None);
    for (word, value) in parts {
        match synonym(&word) {
            "sslrootcert" => roots = Some(PathBuf::from(value)),
            "sslmode" => add(&mut text, "sslmode", mode(&value)?),
            word => add(&mut text, word, &value),
        }
    }
    Ok((parse(&text)?, roots))
}

fn read_url(
    written: &str,
    beside: &[(&'static str, String)],
) -> Result<(Config, Option<PathBuf>), String> {
    let (front, query) = written.split_once('?').unwrap_or((written, ""));
    let (mut kept, mut roots) = (Vec::new(), None);
    for part in query.split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("sslrootcert", file)) => roots = Some(PathBuf::from(decoded(file))),
            Some(("sslmode", value)) => kept.push(format!("sslmode={}", mode(value)?)),
            _ => kept.push(part.to_owned()),
        }
    }
    let mut config = parse(&format!("{front}?{}", kept.join("&")))?;
    for (word, value) in beside {
        match *word {
            "user" => config.user(value),
            "password" => config.password(value),
            "dbname" => config.dbname(value),
            "sslrootcert" => {
                roots = Some(PathBuf::from(value));
                &mut config
            }
            word => return Err(format!("it is a URL, so say the {word} in it, not beside it")),
        };
    }
    Ok((config, roots))
}

fn parse(text: &str) -> Result<Config, String> {
    let config: Config = text.parse().map_err(|error: tokio_postgres::Error| {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        source.unwrap_or_else(|| error.to_string())
    })?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err("it names no host".to_owned());
    }
    Ok(config)
}

/// The words of a connection string and their values, without their quotes.
fn split(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut signs = text.chars().peekable();
    let mut parts = Vec::new();
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
        parts.push((word.trim().to_lowercase(), value));
    }
}

fn add(text: &mut String, word: &str, value: &str) {
    let value = value.replace('\\', r"\\").replace('\'', r"\'");
    text.push_str(&format!("{word}='{value}' "));
}

fn synonym(word: &str) -> &str {
    SYNONYMS.iter().find(|(other, _)| *other == word).map_or(word, |(_, own)| own)
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
        let (config, roots) = read_connection(written, &beside)?;
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
            &[("host", "other"), ("database", "b"), ("user", "u")],
            "u:@other:5432/b Prefer ",
        );
        check("", &[("host", "db")], ":@db:5432/ Prefer ");
    }

    #[test]
    fn what_is_no_connection_string_is_refused_without_its_values() {
        for wrong in [
            "",
            "secret",
            "host='db",
            "host=db port=secret",
            "host=db secret=x",
            "host=db sslmode=maybe",
            "postgres://",
            "postgres://u:p@db/app?sslmode=maybe",
        ] {
            let told = read(wrong, &[]).unwrap_err();
            assert!(!told.contains("=x") && !told.is_empty(), "{wrong}: {told}");
        }
        assert!(read("postgres://db/a", &[("host", "b")]).unwrap_err().contains("say the host"));
    }
}
