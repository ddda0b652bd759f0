//! The components among resources that an app may use. Types that are not served are noted and
//! left out; a wrong setting of one that is served is a mistake with file, line and column.

use std::collections::{BTreeSet, HashMap};

use tollway_config::{Mistake, Mistakes, YamlError};
use tollway_runtime::StateStores;
use tollway_state::{Component, ComponentContext, Manifest, Read, UnusableStore};

use crate::error::DaprError;
use crate::resources::{Resource, Resources};

/// The kind of these resources.
pub(crate) const KIND: &str = "Component";

/// The state stores among resources; that of the network where no document describes one, not even
/// for others. `denied` lists types that may not be used. Adds to the notes of the resources.
///
/// # Errors
/// Every mistake in what is for this app, and names that several components have.
pub(crate) fn read_components(
    resources: &mut Resources,
    context: &ComponentContext<'_>,
    denied: &[String],
) -> Result<StateStores, DaprError> {
    let mut all = All {
        context,
        denied,
        stores: Vec::new(),
        unusable: Vec::new(),
        mistakes: Vec::new(),
        any_store: false,
        names: Names::default(),
    };
    let Resources { found, notes, hides_store } = resources;
    for resource in found.iter().filter(|resource| resource.kind == KIND) {
        if let Err(mistake) = all.add(resource, notes) {
            all.mistakes.push(mistake);
        }
    }
    let All { stores, unusable, mistakes, any_store, names, .. } = all;
    names.check()?;
    if !mistakes.is_empty() {
        return Err(DaprError::Components(Mistakes(mistakes)));
    }
    if stores.is_empty() && unusable.is_empty() && !any_store && !*hides_store {
        return Ok(StateStores::Network);
    }
    Ok(StateStores::Components { stores, unusable })
}

struct All<'a> {
    context: &'a ComponentContext<'a>,
    denied: &'a [String],
    stores: Vec<Component>,
    unusable: Vec<UnusableStore>,
    mistakes: Vec<YamlError>,
    any_store: bool,
    names: Names,
}

impl All<'_> {
    fn add(&mut self, resource: &Resource, notes: &mut Vec<String>) -> Result<(), YamlError> {
        let source = &resource.source;
        let manifest: Manifest = match resource.decode(notes) {
            Ok(manifest) => manifest,
            Err(mistake) => {
                notes.push(format!("{mistake}; the component is passed over"));
                self.any_store = true;
                return Ok(());
            }
        };
        self.names.add(resource, self.context);
        let mut about = Vec::new();
        let read = manifest.read(self.context, &mut about);
        notes.extend(about.into_iter().map(|note: Mistake| note.within(source).to_string()));
        match read.map_err(|mistake| mistake.within(source))? {
            Read::Store(component) if self.is_denied(&component) => {
                let Component { name, component_type, is_actor_store, .. } = *component;
                let why = format!("components of the type {component_type} are denied");
                notes.push(format!("{source}: the component `{name}` is left out: {why}"));
                self.unusable.push(UnusableStore { name, why, is_actor_store });
            }
            Read::Store(component) => self.stores.push(*component),
            Read::Unusable(store) => self.unusable.push(store),
            Read::ForOthers { is_store } => self.any_store |= is_store,
            Read::NotServed(what) => notes.push(format!("{what} is not served and left out")),
        }
        Ok(())
    }

    /// A denied type is `TYPE`, or `TYPE/VERSION`; without a version it is v1.
    fn is_denied(&self, component: &Component) -> bool {
        let Component { component_type, version, .. } = component;
        let version = if version.is_empty() { "v1" } else { version };
        let full = format!("{component_type}/{version}");
        let names = |denied: &String| {
            denied.eq_ignore_ascii_case(component_type) || denied.eq_ignore_ascii_case(&full)
        };
        self.denied.iter().any(names)
    }
}

/// The names of components of every type: whether it is served or not, a name has to mean one.
#[derive(Default)]
struct Names {
    /// Of components for this app: how Dapr names each, and its file.
    known: HashMap<String, (String, String)>,
    twice: Vec<String>,
    files: BTreeSet<String>,
}

impl Names {
    /// As in Dapr one for other apps may not have the name of an earlier one for this app either.
    fn add(&mut self, resource: &Resource, of: &ComponentContext<'_>) {
        let namespace = (!of.takes_all_namespaces).then_some(of.namespace);
        if !resource.is_of(namespace) {
            return;
        }
        let own = resource.name_and_type();
        if let Some((existing, file)) = self.known.get(&resource.name) {
            let what = "duplicate definition of Component name";
            self.twice.push(format!("{what} {own} with existing {existing}"));
            self.files.extend([file.clone(), resource.source.clone()]);
        } else if resource.is_for(of.app, namespace) {
            self.known.insert(resource.name.clone(), (own, resource.source.clone()));
        }
    }

    fn check(self) -> Result<(), DaprError> {
        if self.twice.is_empty() {
            return Ok(());
        }
        let files = self.files.into_iter().collect::<Vec<_>>().join(", ");
        Err(DaprError::ComponentNames { twice: self.twice, files })
    }
}
