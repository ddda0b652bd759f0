//! The components among resources that an app may use. Types that are not served are noted and
//! left out; a wrong setting of one that is served is a mistake with file, line and column.

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
/// Every mistake in what is for this app.
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
    };
    let Resources { found, notes, hides_store } = resources;
    for resource in found.iter().filter(|resource| resource.kind == KIND) {
        if let Err(mistake) = all.add(resource, notes) {
            all.mistakes.push(mistake);
        }
    }
    let All { stores, unusable, mut mistakes, any_store, .. } = all;
    mistakes.extend(doubled(&stores));
    if !mistakes.is_empty() {
        return Err(DaprError::Components(Mistakes(mistakes)));
    }
    if stores.is_empty() && unusable.is_empty() && !any_store && !*hides_store {
        return Ok(StateStores::Network);
    }
    let stores = stores.into_iter().map(|(component, _)| component).collect();
    Ok(StateStores::Components { stores, unusable })
}

struct All<'a> {
    context: &'a ComponentContext<'a>,
    denied: &'a [String],
    stores: Vec<(Component, String)>,
    unusable: Vec<UnusableStore>,
    mistakes: Vec<YamlError>,
    any_store: bool,
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
            Read::Store(component) => self.stores.push((*component, source.clone())),
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

/// Names that several components have.
fn doubled(found: &[(Component, String)]) -> Vec<YamlError> {
    let earlier = |index: usize, name: &str| {
        found[..index].iter().find(|(component, _)| component.name == name)
    };
    let mistake = |(index, (component, source)): (usize, &(Component, String))| {
        let (_, first) = earlier(index, &component.name)?;
        let what = format!(
            "the component `{}` is in {first} already; give this one another name",
            component.name
        );
        Some(YamlError { source_name: source.clone(), line: 0, column: 0, what })
    };
    found.iter().enumerate().filter_map(mistake).collect()
}
