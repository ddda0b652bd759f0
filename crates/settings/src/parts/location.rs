//! Where a sidecar runs.

use tollway_model::{AreaName, Locality};

use crate::Settings;

/// The zone and the region of a sidecar, for callers that prefer near replicas.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct Location {
    /// Zone in which this runs, such as `eu-west-1a`: where a traffic policy has it, calls go to near
    /// replicas.
    #[setting(form = "NAME")]
    pub zone: Option<AreaName>,
    /// Region of that zone, such as `eu-west-1`.
    #[setting(form = "NAME")]
    pub region: Option<AreaName>,
}

impl Location {
    /// As it is registered.
    #[must_use]
    pub fn locality(self) -> Locality {
        Locality { region: self.region, zone: self.zone }
    }
}
