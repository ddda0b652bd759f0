//! Makes the settings of a part of what is given: a flag wins over the environment, that over the
//! file, the file over the default. A list is one value.

use std::fmt;
use std::path::Path;

use thiserror::Error;
use tollway_config::entries::{self, Entry};
use tollway_config::yaml::read_file;
use tollway_config::{FileError, Mistakes};

use crate::given::{Given, Listing, ValueInEffect};
use crate::layers::{Flags, Layers};
use crate::part::{Part, Settings};
use crate::setting::Setting;

/// Why settings could not be used.
#[derive(Debug, Error)]
pub enum SettingsError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{0}")]
    Mistakes(#[from] Mistakes),
    #[error("{}", needed(.0))]
    Missing(Vec<Setting>),
}

/// What is given, whether or not it is enough to start the part.
#[derive(Debug)]
pub struct Survey<P> {
    settings: Option<P>,
    pub listing: Listing,
    /// Settings without which the part cannot start.
    pub missing: Vec<Setting>,
}

impl<P: Part> Survey<P> {
    /// The settings, if they are enough.
    ///
    /// # Errors
    /// [`SettingsError::Missing`].
    pub fn complete(self) -> Result<Given<P>, SettingsError> {
        match self.settings {
            Some(settings) if self.missing.is_empty() => {
                Ok(Given { settings, listing: self.listing })
            }
            _ => Err(SettingsError::Missing(self.missing)),
        }
    }
}

/// The settings that flags and a file give.
///
/// # Errors
/// [`SettingsError`].
pub fn merge<P: Part>(flags: &Flags, file: Option<&Path>) -> Result<Given<P>, SettingsError> {
    survey(flags, file)?.complete()
}

/// The settings that flags and a file give, even if some are missing that a start needs.
///
/// # Errors
/// [`SettingsError::File`] and [`SettingsError::Mistakes`], which has all mistakes of the file.
pub fn survey<P: Part>(flags: &Flags, file: Option<&Path>) -> Result<Survey<P>, SettingsError> {
    let Some(path) = file else { return Ok(survey_of(flags, &[], "")?) };
    let source = path.display().to_string();
    let entries =
        entries::read(&read_file(path)?, &source).map_err(|mistake| Mistakes(vec![mistake]))?;
    let mut survey: Survey<P> = survey_of(flags, &entries, &source)?;
    survey.listing.file = Some(path.to_owned());
    Ok(survey)
}

/// The settings that flags and the environment alone give: of a group, in a command without a
/// settings file.
///
/// # Errors
/// [`SettingsError::Missing`], and [`SettingsError::Mistakes`] for flags that were not checked.
pub fn from_flags<S: Settings>(flags: &Flags) -> Result<S, SettingsError> {
    let mut settings = Vec::new();
    S::list(&mut settings);
    let (group, _, missing) = read(&settings, flags, &[], "", "")?;
    group.filter(|_| missing.is_empty()).ok_or(SettingsError::Missing(missing))
}

pub(crate) fn survey_of<P: Part>(
    flags: &Flags,
    file: &[Entry],
    source: &str,
) -> Result<Survey<P>, Mistakes> {
    let (settings, list, missing) = read(&P::settings(), flags, file, source, P::NAME)?;
    let listing = Listing { part: P::NAME, file: None, list };
    Ok(Survey { settings, listing, missing })
}

/// What was read, each value with its origin, and the settings that are missing.
type Read<S> = (Option<S>, Vec<ValueInEffect>, Vec<Setting>);

/// Reads `settings` out of all layers. `part` is for the text of a mistake.
fn read<S: Settings>(
    settings: &[Setting],
    flags: &Flags,
    file: &[Entry],
    source: &str,
    part: &str,
) -> Result<Read<S>, Mistakes> {
    let mut layers = Layers::over(settings, flags, file, source);
    let read = S::read(&mut layers);
    layers.finish(part);
    let Layers { list, mistakes, missing, .. } = layers;
    if mistakes.is_empty() { Ok((read, list, missing)) } else { Err(Mistakes(mistakes)) }
}

/// The keys that are missing, for people.
fn needed(missing: &[Setting]) -> impl fmt::Display {
    let keys: Vec<String> = missing.iter().map(|setting| format!("`{}`", setting.key)).collect();
    format!("{} must be given; put it into the file, or give its flag", keys.join(", "))
}
