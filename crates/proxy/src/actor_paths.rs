//! Paths by which a sidecar calls its app: `/actors/…` for turns of actors, `/dapr/…` for what the app
//! offers. Where an app runs actors, a request of another sidecar must not reach it by these: it would
//! get round the actor's turns, its host and the caller's reminders, and an app takes whatever comes by
//! them for its sidecar's.

use std::sync::atomic::{AtomicU8, Ordering};

use tollway_model::{NormalPath, ServiceName};

use crate::request_error::RequestError;

/// The first segments of these paths. Apps may read them in any case.
const OF_SIDECARS: [&[u8]; 2] = [b"actors", b"dapr"];

const NONE: u8 = 0;
const UNKNOWN: u8 = 1;
const SOME: u8 = 2;

/// Whether the app beside a sidecar runs actors behind such paths, by its last answer. The runtime sets
/// it, and data threads read it. By default the app runs none.
#[derive(Debug, Default)]
pub struct ActorApp(AtomicU8);

impl ActorApp {
    /// `is_asked`: the runtime will ask the app.
    pub(crate) fn new(is_asked: bool) -> Self {
        Self(AtomicU8::new(if is_asked { UNKNOWN } else { NONE }))
    }

    /// The app has answered whether it runs actors.
    pub fn set(&self, runs_actors: bool) {
        self.0.store(if runs_actors { SOME } else { NONE }, Ordering::Relaxed);
    }

    /// Whether a request of another sidecar may go to the app of `home`, by its target.
    ///
    /// # Errors
    /// [`RequestError::SidecarPath`], or [`RequestError::ActorsUnknown`] while the app has not
    /// answered whether it runs actors.
    pub(crate) fn admit(&self, target: &[u8], home: &ServiceName) -> Result<(), RequestError> {
        let state = self.0.load(Ordering::Relaxed);
        if state == NONE || !may_be_of_sidecars(target) {
            return Ok(());
        }
        let service = home.clone();
        Err(match state {
            UNKNOWN => RequestError::ActorsUnknown { service },
            _ => RequestError::SidecarPath { service },
        })
    }
}

/// Whether a server may read a target as such a path. One that servers read differently may be anything.
fn may_be_of_sidecars(target: &[u8]) -> bool {
    let Ok(path) = NormalPath::read(target) else { return true };
    is_of_sidecars(path.path()) || path.second_reading().is_some_and(is_of_sidecars)
}

fn is_of_sidecars(path: &[u8]) -> bool {
    let first = path.split(|byte| *byte == b'/').nth(1).unwrap_or_default();
    OF_SIDECARS.iter().any(|own| own.eq_ignore_ascii_case(first))
}

#[cfg(test)]
mod tests {
    use tollway_model::Label;

    use super::*;

    #[test]
    fn paths_of_sidecars_are_refused_in_every_spelling_where_the_app_runs_actors() {
        let label = |text| Label::new(text).unwrap();
        let home = ServiceName::parse_in("cart", &label("default"), &label("west")).unwrap();
        let app = ActorApp::new(true);
        let code = |target: &str| {
            app.admit(target.as_bytes(), &home).err().map(|error| error.code().word())
        };
        assert_eq!(code("/actors/Cart/anna"), Some("ERR_POLICY_UNKNOWN"), "not known yet");
        assert_eq!(code("/items/7"), None);
        app.set(true);
        for target in [
            "/actors/Cart/anna",
            "/actors/Cart/anna/method/remind/forged?x=1",
            "/actors",
            "/Actors/Cart/anna",
            "//actors/Cart/anna",
            "/./actors/Cart/anna",
            "/x/../actors/Cart/anna",
            "/%61ctors/Cart/anna",
            "/actors;a=b/Cart/anna",
            "/actors%2FCart/anna",
            "/actors\\Cart/anna",
            "/x/..%2Factors/Cart",
            "/x/..;/actors/Cart",
            "/%2561ctors/Cart",
            "/actors/%zz",
            "/dapr/config",
            "/DAPR/subscribe",
            "actors/Cart",
        ] {
            assert_eq!(code(target), Some("ERR_SIDECAR_PATH"), "{target}");
        }
        for target in
            ["/", "*", "/healthz", "/actors-of-a-film", "/v1/actors/7", "/items/%41", "/a?/actors/"]
        {
            assert_eq!(code(target), None, "{target}");
        }
        app.set(false);
        assert_eq!(code("/actors/7"), None);
        assert!(ActorApp::new(false).admit(b"/actors/7", &home).is_ok());
    }
}
