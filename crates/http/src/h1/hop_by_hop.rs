//! Removing what is meant for the next hop only (RFC 9110 section 7.6.1).

use super::syntax::{members, trim};
use crate::Fields;

/// Removes the hop-by-hop fields of a parsed head: the standard ones, and every field that
/// `connection` names. `te` becomes `te: trailers` if it has that value (we forward trailers), and
/// is removed otherwise. `trailer` stays: it describes the content, not the connection.
///
/// No name is protected from being named in `connection`: the sender could as well have left the
/// field out, and a list of exceptions would only have to be complete. Protection comes from the
/// order instead: **strip first, then decide (policy, routing), then add** the fields that this
/// proxy vouches for (forwarding, identity, tracing). What is added after stripping cannot be named
/// by the peer; `host` and the framing fields are not among a head's fields at all.
pub fn strip_hop_by_hop(fields: &mut Fields) {
    let wants_trailers = fields.values(b"te").any(asks_for_trailers);
    strip_hop_by_hop_of_response(fields, |_| false);
    if wants_trailers {
        fields.push(b"te", b"trailers");
    }
}

/// Like [`strip_hop_by_hop`], of a response, where `te` means nothing and is removed. Removes in the same
/// pass the fields for which `is_ours(name)` is true: the private fields of a proxy, which may neither
/// come from nor go to others.
pub fn strip_hop_by_hop_of_response(fields: &mut Fields, is_ours: impl Fn(&[u8]) -> bool) {
    let named = named_in_connection(fields);
    fields.retain(|name, _| {
        !is_hop_by_hop(name) && !is_ours(name) && !named.iter().any(|option| option == name)
    });
}

/// Whether the field `name` is removed whether `connection` names it or not. Credentials for a proxy
/// are: they were meant for us, not for the application behind us.
fn is_hop_by_hop(name: &[u8]) -> bool {
    matches!(
        name,
        b"connection"
            | b"http2-settings"
            | b"keep-alive"
            | b"proxy-authenticate"
            | b"proxy-authorization"
            | b"proxy-connection"
            | b"te"
            | b"transfer-encoding"
            | b"upgrade"
    )
}

/// The names in all `connection` fields, lower case. The parser bounds their number.
fn named_in_connection(fields: &Fields) -> Vec<Vec<u8>> {
    fields
        .values(b"connection")
        .flat_map(members)
        .filter(|name| {
            !name.eq_ignore_ascii_case(b"close") && !name.eq_ignore_ascii_case(b"keep-alive")
        })
        .map(<[u8]>::to_ascii_lowercase)
        .collect()
}

fn asks_for_trailers(te: &[u8]) -> bool {
    members(te).any(|coding| {
        let name = coding.split(|&byte| byte == b';').next().unwrap_or_default();
        trim(name).eq_ignore_ascii_case(b"trailers")
    })
}
