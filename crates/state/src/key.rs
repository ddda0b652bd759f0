//! The keys under which stores have an app's entries. They are Dapr's, so that each finds the
//! other's data.

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
    join(&[app, actor_type, id, key])
}

/// The key of the number that fences the states of all actors in one shard of a type.
#[must_use]
pub fn actor_fence_key(app: &str, actor_type: &str, shard: usize) -> String {
    join(&[app, actor_type, NO_ID, FENCE, &shard.to_string()])
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
}
