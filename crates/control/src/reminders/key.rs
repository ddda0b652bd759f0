//! Under which keys reminders lie in the file.
//!
//! `NAMESPACE NUL TYPE NUL SHARD ID NUL NAME`, the shard as two bytes: all reminders of a shard
//! are one range, and so are those of an actor. None of the parts has a NUL; the namespace is in
//! lower case, since namespaces compare without.

use bytes::{BufMut, Bytes, BytesMut};
use tollway_actors::placement::{SHARDS, Shard, ShardSet};
use tollway_model::Label;
use tollway_store::KeyRange;
use tollway_wire::ReminderKey;

const NUL: u8 = 0;
const SHARD_BYTES: usize = 2;

/// The start of the keys of an actor type.
fn type_prefix(namespace: &Label, actor_type: &str, more: usize) -> BytesMut {
    let namespace = namespace.to_lower();
    let length = namespace.len() + actor_type.len() + 2 + SHARD_BYTES + more;
    let mut key = BytesMut::with_capacity(length);
    key.put_slice(namespace.as_bytes());
    key.put_u8(NUL);
    key.put_slice(actor_type.as_bytes());
    key.put_u8(NUL);
    key
}

fn actor_prefix(namespace: &Label, actor_type: &str, actor_id: &str, more: usize) -> BytesMut {
    let mut key = type_prefix(namespace, actor_type, actor_id.len() + 1 + more);
    key.put_u16(Shard::of(actor_id).number() as u16);
    key.put_slice(actor_id.as_bytes());
    key.put_u8(NUL);
    key
}

pub(super) fn of_reminder(namespace: &Label, key: &ReminderKey) -> Bytes {
    let ReminderKey { actor_type, actor_id, name } = key;
    let mut stored = actor_prefix(namespace, actor_type, actor_id, name.len());
    stored.put_slice(name.as_bytes());
    stored.freeze()
}

pub(super) fn of_actor(namespace: &Label, actor_type: &str, actor_id: &str) -> KeyRange {
    KeyRange::prefix(actor_prefix(namespace, actor_type, actor_id, 0).freeze())
}

/// All reminders of a type.
pub(super) fn of_type(namespace: &Label, actor_type: &str) -> KeyRange {
    KeyRange::prefix(type_prefix(namespace, actor_type, 0).freeze())
}

/// The ranges of some shards of a type, in order; neighbours are one range.
pub(super) fn of_shards(namespace: &Label, actor_type: &str, shards: &ShardSet) -> Vec<KeyRange> {
    let at = |number: usize| {
        let mut key = type_prefix(namespace, actor_type, 0);
        key.put_u16(number as u16);
        key.freeze()
    };
    let mut ranges = Vec::new();
    let mut first = None;
    for number in 0..=SHARDS {
        let is_in = Shard::new(number).is_some_and(|shard| shards.contains(shard));
        match (first, is_in) {
            (None, true) => first = Some(number),
            (Some(from), false) => {
                ranges.push(KeyRange { start: at(from), end: Some(at(number)) });
                first = None;
            }
            (None, false) | (Some(_), true) => {}
        }
    }
    ranges
}

/// The namespace of a key.
pub(super) fn namespace(key: &[u8]) -> &str {
    let end = key.iter().position(|byte| *byte == NUL).unwrap_or(0);
    std::str::from_utf8(&key[..end]).unwrap_or_default()
}

/// All of a namespace.
pub(super) fn of_namespace(namespace: &Label) -> KeyRange {
    let mut prefix = namespace.to_lower().into_bytes();
    prefix.push(NUL);
    KeyRange::prefix(prefix)
}

/// The type of a key.
pub(super) fn actor_type(key: &[u8]) -> &str {
    let actor_type = key.split(|byte| *byte == NUL).nth(1);
    actor_type.and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
}

/// The actor's id and the name of a reminder; `None` for what is no key of one.
pub(super) fn id_and_name(key: &[u8]) -> Option<(&str, &str)> {
    let mut parts = key.splitn(3, |byte| *byte == NUL);
    let (_, rest) = (parts.next()?.len() + parts.next()?.len(), parts.next()?);
    // The shard may hold a byte that is NUL.
    let (_, rest) = rest.split_at_checked(SHARD_BYTES)?;
    let end = rest.iter().position(|byte| *byte == NUL)?;
    let text = |bytes| std::str::from_utf8(bytes).ok();
    Some((text(&rest[..end])?, text(&rest[end + 1..])?))
}

#[cfg(test)]
mod tests {
    use tollway_wire::{ACTOR_TYPE_LIMIT_BYTES, REMINDER_ACTOR_ID_BYTES, REMINDER_NAME_BYTES};

    use super::*;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    fn key(actor_type: &str, actor_id: &str, name: &str) -> ReminderKey {
        let own = str::to_owned;
        ReminderKey { actor_type: own(actor_type), actor_id: own(actor_id), name: own(name) }
    }

    #[test]
    fn parts_read_back() {
        for (id, name) in [("a", "b"), ("a|b@c d", "/\u{1}x"), ("\u{e9}", "\u{1f600}")] {
            let stored = of_reminder(&label("Shop"), &key("cart", id, name));
            assert_eq!(id_and_name(&stored), Some((id, name)));
            assert_eq!((namespace(&stored), actor_type(&stored)), ("shop", "cart"));
            assert!(of_namespace(&label("shop")).contains(&stored));
            assert!(!of_namespace(&label("sho")).contains(&stored));
        }
        for wrong in [&b""[..], b"a", b"a\0b", b"a\0b\0", b"a\0b\0xy", b"a\0b\0xyz"] {
            assert_eq!(id_and_name(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn an_actor_is_a_range_of_its_own() {
        let shop = label("shop");
        let range = of_actor(&shop, "cart", "a");
        assert!(range.contains(&of_reminder(&shop, &key("cart", "a", "x"))));
        assert!(range.contains(&of_reminder(&label("SHOP"), &key("cart", "a", "\u{10ffff}"))));
        for other in [key("cart", "aa", "x"), key("cart", "A", "x"), key("cartx", "a", "x")] {
            assert!(!range.contains(&of_reminder(&shop, &other)), "{other:?}");
        }
        assert!(!range.contains(&of_reminder(&label("shop2"), &key("cart", "a", "x"))));
    }

    #[test]
    fn shards_are_as_few_ranges_as_can_be() {
        let shop = label("shop");
        let shards = |numbers: &[usize]| numbers.iter().filter_map(|n| Shard::new(*n)).collect();
        let ranges = |numbers: &[usize]| of_shards(&shop, "cart", &shards(numbers));
        assert_eq!(ranges(&[]), []);
        assert_eq!(ranges(&(0..SHARDS).collect::<Vec<_>>()).len(), 1);
        assert_eq!(ranges(&[0, 1, 255, 256, 1023]).len(), 3);
        for id in ["a", "b", "c", "d", "e"] {
            let stored = of_reminder(&shop, &key("cart", id, "x"));
            let own = Shard::of(id).number();
            assert!(ranges(&[own])[0].contains(&stored));
            let others: Vec<usize> = (0..SHARDS).filter(|number| *number != own).collect();
            assert!(!ranges(&others).iter().any(|range| range.contains(&stored)));
        }
    }

    #[test]
    fn the_longest_parts_make_a_key_that_the_store_takes() {
        let long = |bytes| "x".repeat(bytes);
        let longest = key(
            &long(ACTOR_TYPE_LIMIT_BYTES),
            &long(REMINDER_ACTOR_ID_BYTES),
            &long(REMINDER_NAME_BYTES),
        );
        let stored = of_reminder(&label(&long(63)), &longest);
        assert!(stored.len() <= tollway_store::Limits::default().key_bytes, "{}", stored.len());
    }
}
