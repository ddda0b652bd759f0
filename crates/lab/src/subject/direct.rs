//! `direct`: the caller calls the app itself. What every other subject is compared with.

use std::collections::BTreeMap;

use tollway_record::record::{Protocol, Tls};

use super::{
    Availability, HOME, Leg, Route, StartedSubject, Subject, SubjectKind, Variant, direct_url,
};
use crate::error::LabError;
use crate::experiment::Ground;
use crate::progress::Progress;

/// Nothing between caller and callee.
pub struct Direct;

const VARIANTS: &[Variant] = &[
    Variant::known("plain", "nothing between caller and app"),
    Variant::known("again", "the same once more: what this machine's noise makes of a comparison"),
];

impl SubjectKind for Direct {
    fn name(&self) -> &str {
        "direct"
    }

    fn purpose(&self) -> &str {
        "the same request over the same link, with nothing between"
    }

    fn variants(&self) -> &[Variant] {
        VARIANTS
    }

    fn availability(&self) -> Availability {
        Availability::Ready { version: String::new() }
    }

    fn make(&self, _: &Variant) -> Box<dyn Subject> {
        Box::new(Self)
    }
}

impl Subject for Direct {
    fn carries(&self, leg: &Leg) -> Result<(), String> {
        match (leg.tls, leg.protocol) {
            (Tls::Plain, _) | (_, Protocol::Http1 | Protocol::Http2) => Ok(()),
            _ => Err("the app ends TLS for HTTP only".to_owned()),
        }
    }

    fn start(
        &self,
        ground: &mut Ground,
        legs: &[Leg],
        _: &mut dyn Progress,
    ) -> Result<StartedSubject, LabError> {
        let mut started = StartedSubject::default();
        for leg in legs {
            let app = ground.app(HOME, leg)?;
            let route = Route {
                url: direct_url(leg.protocol, leg.tls, app),
                headers: Vec::new(),
                caller_tls: ground.app_tls(leg),
                cgroup: None,
                hops: 0,
                tls: leg.tls,
                app_tls: leg.tls,
                made_of: leg.tls.to_string(),
                roles: BTreeMap::new(),
            };
            started.routes.insert(*leg, route);
        }
        Ok(started)
    }
}
