//! The keys under which stores have an app's entries. They are Dapr's, so that each finds the
//! other's data.
//!
//! No two entries have the same key. In Dapr the type and the id of an actor may hold the separator, so
//! that the state of one actor can be another's, or a fence. Such names, which are rare, are escaped here.

use std::borrow::Cow;

use thiserror::Error;

/// What separates the parts of a key, and hence cannot be in one.
const SEPARATOR: &str = "||";
/// The id in the key of a fence: no actor has an empty id.
const NO_ID: &str = "";
/// The last part but one of the key of a fence.
const FENCE: &str = "tollway-fence";

/// A key or prefix that would be taken for several.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("input key/keyPrefix '{0}' can't contain '||'")]
pub struct IllegalKey(pub String);

/// The prefix of an app's keys (`keyPrefix` of a component).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum KeyPrefix {
    /// The app's id: each app has keys of its own.
    #[default]
    AppId,
    /// The component's name: apps share keys.
    Name,
    /// Namespace and app.
    Namespace,
    /// Nothing.
    None,
    /// A word of the user's choice.
    Word(String),
}

/// Whose key it is.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    pub app: &'a str,
    pub namespace: &'a str,
    /// The component's name.
    pub store: &'a str,
}

impl KeyPrefix {
    /// Reads `keyPrefix`: one of the four words, in any case, or a word of its own, which Dapr
    /// takes in small letters.
    ///
    /// # Errors
    /// [`IllegalKey`].
    pub fn parse(text: &str) -> Result<Self, IllegalKey> {
        Ok(match checked(text)?.to_lowercase().as_str() {
            "appid" => Self::AppId,
            "name" => Self::Name,
            "namespace" => Self::Namespace,
            "none" => Self::None,
            word => Self::Word(word.to_owned()),
        })
    }

    /// The key in the store for an app's `key`.
    ///
    /// # Errors
    /// [`IllegalKey`].
    pub fn stored_key(&self, owner: &Owner<'_>, key: &str) -> Result<String, IllegalKey> {
        checked(key)?;
        Ok(match self {
            Self::AppId => join(&[owner.app, key]),
            Self::Name => join(&[owner.store, key]),
            Self::Namespace => join(&[&format!("{}.{}", owner.namespace, owner.app), key]),
            Self::None => key.to_owned(),
            Self::Word(word) => join(&[word, key]),
        })
    }
}

/// The key of one entry of an actor's state. No prefix strategy changes it.
#[must_use]
pub fn actor_state_key(app: &str, actor_type: &str, id: &str, key: &str) -> String {
    join(&[app, &escaped(actor_type), &escaped(id), key])
}

/// A part of a key that is not the last, in which the separator can be found nowhere: where it could, `|`
/// is `%7C` and `%` is `%25`. The last part needs none of this: it begins behind the third separator.
fn escaped(part: &str) -> Cow<'_, str> {
    let is_plain = !part.contains(SEPARATOR)
        && !part.starts_with('|')
        && !part.ends_with('|')
        && !part.contains("%7C");
    if is_plain {
        return Cow::Borrowed(part);
    }
    Cow::Owned(part.replace('%', "%25").replace('|', "%7C"))
}

/// The key of the number that fences the states of all actors in one shard of a type.
#[must_use]
pub fn actor_fence_key(app: &str, actor_type: &str, shard: usize) -> String {
    join(&[app, &escaped(actor_type), NO_ID, FENCE, &shard.to_string()])
}

fn join(parts: &[&str]) -> String {
    parts.join(SEPARATOR)
}

fn checked(text: &str) -> Result<&str, IllegalKey> {
    if text.contains(SEPARATOR) { Err(IllegalKey(text.to_owned())) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner<'_> = Owner { app: "web", namespace: "shop", store: "statestore" };

    #[track_caller]
    fn check(prefix: &str, stored: &str) {
        let prefix = KeyPrefix::parse(prefix).unwrap();
        assert_eq!(prefix.stored_key(&OWNER, "order").unwrap(), stored);
    }

    #[test]
    fn prefixes_are_those_of_dapr() {
        check("appid", "web||order");
        check("AppID", "web||order");
        check("name", "statestore||order");
        check("namespace", "shop.web||order");
        check("none", "order");
        check("Shared", "shared||order");
        assert_eq!(KeyPrefix::default(), KeyPrefix::AppId);
    }

    #[test]
    fn the_separator_is_no_part_of_a_key() {
        let refused = KeyPrefix::None.stored_key(&OWNER, "ke||y").unwrap_err();
        assert_eq!(refused.to_string(), "input key/keyPrefix 'ke||y' can't contain '||'");
        assert!(KeyPrefix::parse("a||b").is_err());
        assert_eq!(KeyPrefix::None.stored_key(&OWNER, "a|b").unwrap(), "a|b");
    }

    #[test]
    fn actors_have_keys_of_four_parts_and_fences_keys_of_five() {
        assert_eq!(actor_state_key("web", "Cart", "7", "items"), "web||Cart||7||items");
        assert_eq!(actor_fence_key("web", "Cart", 7), "web||Cart||||tollway-fence||7");
    }

    #[test]
    fn names_that_hold_a_separator_are_escaped_and_others_are_not() {
        let key = |actor_type, id| actor_state_key("web", actor_type, id, "k");
        assert_eq!(key("Cart", "a|b"), "web||Cart||a|b||k");
        assert_eq!(key("Cart", "50%"), "web||Cart||50%||k");
        assert_eq!(key("Cart", "a||b"), "web||Cart||a%7C%7Cb||k");
        assert_eq!(key("Cart", "a%7C%7Cb"), "web||Cart||a%257C%257Cb||k");
        assert_eq!(key("Cart|", "7"), "web||Cart%7C||7||k");
    }

    /// The harm: an actor whose id a caller chooses writes the fence of all others.
    #[test]
    fn no_actor_names_a_fence() {
        let fence = actor_fence_key("web", "Cart", 5);
        for (id, key) in [("||tollway-fence", "5"), ("|", "|tollway-fence||5"), ("||", "5")] {
            assert_ne!(actor_state_key("web", "Cart", id, key), fence);
        }
        assert_ne!(actor_state_key("web", "Cart||", "tollway-fence", "5"), fence);
    }

    proptest::proptest! {
        /// All ways to read one text as a type, an id and a key give entries with keys of their own, none of
        /// which is that of a fence.
        #[test]
        fn no_two_entries_have_one_key(text in "[|%7Ca]{3,14}", shard in 0_usize..9) {
            let bounds = || (1..text.len()).filter(|at| text[*at..].starts_with(SEPARATOR));
            let behind = |at: usize| at + SEPARATOR.len();
            let splits = bounds().flat_map(|one| bounds().map(move |two| (one, two)));
            let splits = splits.filter(|(one, two)| behind(*one) < *two && behind(*two) <= text.len());
            let mut keys: Vec<String> = splits
                .map(|(one, two)| {
                    let (id, key) = (&text[behind(one)..two], &text[behind(two)..]);
                    actor_state_key("a", &text[..one], id, key)
                })
                .chain([actor_fence_key("a", &text, shard)])
                .collect();
            let count = keys.len();
            keys.sort_unstable();
            keys.dedup();
            proptest::prop_assert_eq!(keys.len(), count);
        }
    }
}
