//! Request targets (RFC 9112 section 3.2), and the authority that they and `host` give.

use memchr::{memchr2, memmem};

use super::authority::Authority;
use super::syntax::{escaped_length, not_target_byte, push_escaped};
use super::{Limits, Refusal, Version};
use crate::Method;

/// Where a request goes, in the form in which [`RequestHead`](crate::RequestHead) keeps it.
#[derive(Debug)]
pub(super) struct Target<'a> {
    pub(super) scheme: &'static [u8],
    pub(super) authority: &'a [u8],
    pub(super) path: Path<'a>,
    /// The path has letters beyond ASCII, which are sent on as escapes.
    has_letters: bool,
}

impl Target<'_> {
    pub(super) fn write_path(&self, out: &mut Vec<u8>) {
        let path = match self.path {
            Path::AsWritten(path) => path,
            Path::OnlyQuery(query) => {
                out.push(b'/');
                query
            }
        };
        if self.has_letters {
            push_escaped(out, path);
        } else {
            out.extend_from_slice(path);
        }
    }
}

/// A path, and what is missing in front of it.
#[derive(Debug)]
pub(super) enum Path<'a> {
    AsWritten(&'a [u8]),
    /// The target was absolute, had a query and no path.
    OnlyQuery(&'a [u8]),
}

/// Judges `target` for `method` together with the `host` field.
pub(super) fn resolve<'a>(
    method: &Method,
    target: &'a [u8],
    host: Option<&'a [u8]>,
    version: Version,
    limits: &Limits,
) -> Result<Target<'a>, Refusal> {
    let has_letters = match not_target_byte(target) {
        Some(byte) => judge_letters(target, byte, limits)?,
        None => false,
    };
    let authority = host.unwrap_or_default();
    let host = Host::judge(host, version)?;
    if *method == Method::Connect {
        return resolve_connect(target, host);
    }
    let names_no_authority =
        target.starts_with(b"/") || (target == b"*" && *method == Method::Options);
    let resolved = if names_no_authority {
        Target { scheme: b"", authority, path: Path::AsWritten(target), has_letters }
    } else {
        Target { has_letters, ..resolve_absolute(method, target)? }
    };
    Ok(resolved)
}

/// Letters beyond ASCII are taken in UTF-8: clients send them as they were typed. `first` is the first
/// byte that is not allowed; true if letters are the only ones.
fn judge_letters(target: &[u8], first: u8, limits: &Limits) -> Result<bool, Refusal> {
    let is_bad = |byte: &&u8| byte.is_ascii() && not_target_byte(&[**byte]).is_some();
    let byte = target.iter().find(is_bad).copied().unwrap_or(first);
    match escaped_length(target) {
        Some(length) if !byte.is_ascii() => match length > limits.target_bytes {
            true => Err(Refusal::TargetTooLong { limit: limits.target_bytes }),
            false => Ok(true),
        },
        Some(_) | None => Err(Refusal::TargetByte { byte }),
    }
}

/// `http://authority[/path][?query]`: what a client sends to a proxy. What `host` names is ignored (RFC
/// 9112 section 3.2.2); it must be a host all the same.
fn resolve_absolute<'a>(method: &Method, target: &'a [u8]) -> Result<Target<'a>, Refusal> {
    let colon = memmem::find(target, b"://").ok_or(Refusal::TargetForm)?;
    let scheme = known_scheme(&target[..colon])?;
    let rest = &target[colon + 3..];
    let authority_end = memchr2(b'/', b'?', rest).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority_end);
    Authority::parse(authority).ok_or(Refusal::TargetAuthority)?;
    let path = match path.first() {
        None if *method == Method::Options => Path::AsWritten(b"*"),
        None => Path::AsWritten(b"/"),
        Some(b'?') => Path::OnlyQuery(path),
        Some(_) => Path::AsWritten(path),
    };
    Ok(Target { scheme, authority, path, has_letters: false })
}

fn known_scheme(scheme: &[u8]) -> Result<&'static [u8], Refusal> {
    if scheme.eq_ignore_ascii_case(b"http") {
        Ok(b"http")
    } else if scheme.eq_ignore_ascii_case(b"https") {
        Ok(b"https")
    } else {
        Err(Refusal::TargetScheme)
    }
}

/// CONNECT names host and port and nothing else (RFC 9110 section 9.3.6). A `host` field without
/// port is taken to mean the target's.
fn resolve_connect<'a>(target: &'a [u8], host: Host<'a>) -> Result<Target<'a>, Refusal> {
    let parsed = Authority::parse(target).ok_or(Refusal::TargetForm)?;
    let port = parsed.port.ok_or(Refusal::TargetForm)?;
    host.check_same(&parsed, port)?;
    Ok(Target { scheme: b"", authority: target, path: Path::AsWritten(b""), has_letters: false })
}

/// The `host` field, judged.
#[derive(Clone, Copy)]
enum Host<'a> {
    /// Only HTTP/1.0 may leave it out.
    Absent,
    /// Valid for a target that names no authority; whether such a request can be served is for
    /// the recipient to decide.
    Empty,
    Is(Authority<'a>),
}

impl<'a> Host<'a> {
    fn judge(host: Option<&'a [u8]>, version: Version) -> Result<Self, Refusal> {
        match host {
            None if version == Version::Http11 => Err(Refusal::HostMissing),
            None => Ok(Self::Absent),
            Some(b"") => Ok(Self::Empty),
            Some(bytes) => Authority::parse(bytes).map(Self::Is).ok_or(Refusal::HostInvalid),
        }
    }

    /// For CONNECT. A difference is refused: a hop before us that read `host` has decided about another
    /// destination.
    fn check_same(self, target: &Authority<'_>, default_port: u16) -> Result<(), Refusal> {
        match self {
            Self::Absent => Ok(()),
            Self::Is(host) if host.same_as(target, default_port) => Ok(()),
            Self::Is(_) | Self::Empty => Err(Refusal::HostMismatch),
        }
    }
}
