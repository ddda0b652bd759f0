//! All kinds of subjects that this program knows.

use super::adapter::built_in_adapters;
use super::{Direct, Floor, Linkerd, SubjectKind, SubjectName, Tollway, Variant};

/// The kinds by name.
pub struct Catalogue {
    kinds: Vec<Box<dyn SubjectKind>>,
}

impl Catalogue {
    /// What comes with the program.
    #[must_use]
    pub fn built_in() -> Self {
        let mut kinds: Vec<Box<dyn SubjectKind>> =
            vec![Box::new(Direct), Box::new(Floor), Box::new(Tollway)];
        let mut peers: Vec<Box<dyn SubjectKind>> = vec![Box::<Linkerd>::default()];
        for adapter in built_in_adapters() {
            peers.push(Box::new(adapter));
        }
        peers.sort_by(|a, b| a.name().cmp(b.name()));
        kinds.extend(peers);
        Self { kinds }
    }

    /// One more; a kind of the same name is replaced.
    #[must_use]
    pub fn with(mut self, kind: Box<dyn SubjectKind>) -> Self {
        self.kinds.retain(|known| known.name() != kind.name());
        self.kinds.push(kind);
        self
    }

    pub fn kinds(&self) -> impl Iterator<Item = &dyn SubjectKind> {
        self.kinds.iter().map(AsRef::as_ref)
    }

    #[must_use]
    pub fn kind(&self, name: &str) -> Option<&dyn SubjectKind> {
        self.kinds().find(|kind| kind.name() == name)
    }

    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.kinds().map(|kind| kind.name().to_owned()).collect()
    }

    /// Kind and variant of a name; `None` when either is unknown.
    #[must_use]
    pub fn find(&self, name: &SubjectName) -> Option<(&dyn SubjectKind, &Variant)> {
        let kind = self.kind(&name.name)?;
        let variants = kind.variants();
        let variant = match &name.variant {
            Some(wanted) => variants.iter().find(|variant| variant.name == *wanted)?,
            None => variants.first()?,
        };
        Some((kind, variant))
    }
}
