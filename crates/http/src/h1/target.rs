//! Request targets (RFC 9112 section 3.2), and the authority that they and `host` give.

use memchr::{memchr2, memmem};

use super::authority::Authority;
use super::syntax::not_target_byte;
use super::{Refusal, Version};
use crate::Method;

/// Where a request goes, in the form in which [`RequestHead`](crate::RequestHead) keeps it.
#[derive(Debug)]
pub(super) struct Target<'a> {
    pub(super) scheme: &'static [u8],
    pub(super) authority: &'a [u8],
    pub(super) path: Path<'a>,
}

/// A path, and what is missing in front of it.
#[derive(Debug)]
pub(super) enum Path<'a> {
    AsWritten(&'a [u8]),
    /// The target was absolute, had a query and no path.
    OnlyQuery(&'a [u8]),
}

impl Path<'_> {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::AsWritten(path) => out.extend_from_slice(path),
            Self::OnlyQuery(query) => {
                out.push(b'/');
                out.extend_from_slice(query);
            }
        }
    }
}

/// Judges `target` for `method` together with the `host` field.
pub(super) fn resolve<'a>(
    method: &Method,
    target: &'a [u8],
    host: Option<&'a [u8]>,
    version: Version,
) -> Result<Target<'a>, Refusal> {
    if let Some(byte) = not_target_byte(target) {
        return Err(Refusal::TargetByte { byte });
    }
    let authority = host.unwrap_or_default();
    let host = Host::judge(host, version)?;
    if *method == Method::Connect {
        return resolve_connect(target, host);
    }
    let names_no_authority =
        target.starts_with(b"/") || (target == b"*" && *method == Method::Options);
    if !names_no_authority {
        return resolve_absolute(method, target, host);
    }
    Ok(Target { scheme: b"", authority, path: Path::AsWritten(target) })
}

/// `http://authority[/path][?query]`: what a client sends to a proxy.
fn resolve_absolute<'a>(
    method: &Method,
    target: &'a [u8],
    host: Host<'a>,
) -> Result<Target<'a>, Refusal> {
    let colon = memmem::find(target, b"://").ok_or(Refusal::TargetForm)?;
    let (scheme, default_port) = known_scheme(&target[..colon])?;
    let rest = &target[colon + 3..];
    let authority_end = memchr2(b'/', b'?', rest).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority_end);
    let parsed = Authority::parse(authority).ok_or(Refusal::TargetAuthority)?;
    host.check_same(&parsed, default_port)?;
    let path = match path.first() {
        None if *method == Method::Options => Path::AsWritten(b"*"),
        None => Path::AsWritten(b"/"),
        Some(b'?') => Path::OnlyQuery(path),
        Some(_) => Path::AsWritten(path),
    };
    Ok(Target { scheme, authority, path })
}

fn known_scheme(scheme: &[u8]) -> Result<(&'static [u8], u16), Refusal> {
    if scheme.eq_ignore_ascii_case(b"http") {
        Ok((b"http", 80))
    } else if scheme.eq_ignore_ascii_case(b"https") {
        Ok((b"https", 443))
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
    Ok(Target { scheme: b"", authority: target, path: Path::AsWritten(b"") })
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

    /// RFC 9112 section 3.2.2 lets the target win over `host`. A difference is refused instead: a
    /// hop before us that read `host` has decided about another destination.
    fn check_same(self, target: &Authority<'_>, default_port: u16) -> Result<(), Refusal> {
        match self {
            Self::Absent => Ok(()),
            Self::Is(host) if host.same_as(target, default_port) => Ok(()),
            Self::Is(_) | Self::Empty => Err(Refusal::HostMismatch),
        }
    }
}
