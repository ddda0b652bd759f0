//! What an operator writes in files and applies: objects of a few kinds, each with a name.

use std::fmt;

use crate::name::{Label, NameError, NetworkName, ServiceName};

/// The name of an object, unique in its namespace among those of its kind.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ObjectName {
    pub namespace: Label,
    pub name: Label,
}

impl ObjectName {
    /// Checks both parts.
    ///
    /// # Errors
    /// [`NameError`] for the first part that is no label.
    pub fn new(namespace: &str, name: &str) -> Result<Self, NameError> {
        Ok(Self { namespace: Label::new(namespace)?, name: Label::new(name)? })
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A service as an object names it: `app[.namespace[.network]]`. A namespace that is left out is the
/// object's, a network that is left out the one in which the object is applied.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ServiceRef {
    pub app: Label,
    pub namespace: Option<Label>,
    pub network: Option<Label>,
}

impl ServiceRef {
    /// Reads `app[.namespace[.network]]`.
    ///
    /// # Errors
    /// [`NameError`].
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        let parts: Vec<&str> = text.split('.').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err(NameError::EmptyLabel(text.to_owned()));
        }
        let (app, namespace, network) = match parts[..] {
            [app] => (app, None, None),
            [app, namespace] => (app, Some(namespace), None),
            [app, namespace, network] => (app, Some(namespace), Some(network)),
            _ => {
                let (name, count) = (text.to_owned(), parts.len());
                return Err(NameError::TooManyLabels { name, count });
            }
        };
        let label = |part: Option<&str>| part.map(Label::new).transpose();
        Ok(Self { app: Label::new(app)?, namespace: label(namespace)?, network: label(network)? })
    }

    /// The full name, for an object of `namespace` that is applied in `network`.
    #[must_use]
    pub fn resolve(&self, namespace: &Label, network: &NetworkName) -> ServiceName {
        ServiceName {
            app: self.app.clone(),
            namespace: self.namespace.as_ref().unwrap_or(namespace).clone(),
            network: self.network.as_ref().unwrap_or(network).clone(),
        }
    }
}

impl std::str::FromStr for ServiceRef {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

impl fmt::Display for ServiceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.app.fmt(f)?;
        for part in [&self.namespace, &self.network].into_iter().flatten() {
            write!(f, ".{part}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_left_out_are_those_of_the_object() {
        let label = |text| Label::new(text).unwrap();
        for (text, full) in [
            ("stock", "stock.shop.west"),
            ("stock.other", "stock.other.west"),
            ("stock.other.east", "stock.other.east"),
        ] {
            let read = ServiceRef::parse(text).unwrap();
            assert_eq!(read.to_string(), text);
            assert_eq!(read.resolve(&label("shop"), &label("west")).to_string(), full);
        }
    }

    #[test]
    fn what_names_no_service_is_refused() {
        for text in ["", "a..b", ".", "a.b.c.d", "a b", "*"] {
            assert!(ServiceRef::parse(text).is_err(), "{text}");
        }
    }
}
