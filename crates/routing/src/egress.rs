//! Which external hosts an app may call, and where its sidecar begins TLS: the egress that holds for one
//! app, put together.
//!
//! A host is decided by its name where the sidecar resolves the name itself. Of an intercepted connection
//! only the address is known: the names that may be meant are those that the sidecar's own answers to the
//! app had for this address, and the connection's first bytes show which. A name that such bytes show and
//! that no answer had for the address allows nothing.

mod names;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tollway_model::egress::{BeginTls, EgressHost, HostPattern};
use tollway_model::{
    AddressKind, Egress, EgressDefault, HostName, Mode, ObjectName, plain_address,
};

pub use names::{EXTERNAL_NAMES_LIMIT, ExternalNames, NAME_WITHIN, NAMES_PER_ADDRESS_LIMIT};

/// What holds for one app.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EgressRules {
    by_default: EgressDefault,
    egresses: Vec<Arc<Egress>>,
}

/// Why a call passes or does not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// This egress allows it.
    Allowed(ObjectName),
    /// None does, and the default lets it pass.
    ByDefault,
    Refused,
}

/// What is decided on a call of an external host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EgressDecision {
    pub verdict: Verdict,
    /// The port at which the sidecar begins TLS, and who may sign the host's certificate.
    pub tls: Option<(u16, BeginTls)>,
    /// It would be refused if what is in shadow mode were enforced.
    pub would_refuse: bool,
}

impl EgressDecision {
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.verdict == Verdict::Refused
    }

    /// Whether an egress allows it.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(self.verdict, Verdict::Allowed(_))
    }
}

/// What is decided on a connection of which only the address is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConnectionDecision {
    /// It goes on as it is, or not.
    Known(EgressDecision),
    /// It may be connected at once; what its first bytes show decides whether they go out.
    ByFirstBytes,
    /// Its first bytes decide, and whether TLS is begun: nothing is connected before.
    ByHttp,
}

/// What the first bytes of a connection show of the host that is meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shown {
    /// More of them have to come.
    NotYet,
    Host(HostName),
    /// They are of a protocol that names none, or name none that can be.
    Nothing,
}

/// How near a pattern is to one name: exact, by an end of so many bytes, any.
type Nearness = (u8, usize);

impl EgressRules {
    #[must_use]
    pub fn new(by_default: EgressDefault, egresses: Vec<Arc<Egress>>) -> Self {
        Self { by_default, egresses }
    }

    /// Whether every call passes as it is, and nothing is counted but that.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.egresses.is_empty() && self.by_default == EgressDefault::Open
    }

    #[must_use]
    pub fn by_default(&self) -> EgressDefault {
        self.by_default
    }

    /// Decides on a call of a host by its name.
    #[must_use]
    pub fn decide_name(&self, name: &HostName, port: u16) -> EgressDecision {
        let nearest = self
            .hosts(Mode::Enforce)
            .filter(|(_, host)| host.allows_port(port) || host.tls_from(port).is_some())
            .filter_map(|(egress, host)| Some((nearness(&host.host, name)?, egress, host)))
            // Of several that are as near, one that begins TLS counts, then the first.
            .reduce(|best, next| {
                let rank = |of: &(Nearness, _, &EgressHost)| (of.0, of.2.tls_from(port).is_some());
                if rank(&next) > rank(&best) { next } else { best }
            });
        let tls = nearest
            .and_then(|(_, _, host)| host.tls_from(port).map(|tls| (host.tls_port(), tls.clone())));
        let verdict = self.verdict(nearest.map(|(_, egress, _)| egress));
        let is_in_shadow = || {
            self.hosts(Mode::Shadow).any(|(_, host)| {
                let is_port = host.allows_port(port) || host.tls_from(port).is_some();
                is_port && host.host.matches_name(name)
            })
        };
        self.decided(verdict, tls, is_in_shadow)
    }

    /// Decides on a call of an address that no name stands for.
    #[must_use]
    pub fn decide_address(&self, address: SocketAddr) -> EgressDecision {
        let allows = |(_, host): &(&Egress, &EgressHost)| {
            host.host.matches_address(address.ip()) && host.allows_port(address.port())
        };
        let verdict = self.verdict(self.hosts(Mode::Enforce).find(allows).map(|(of, _)| of));
        self.decided(verdict, None, || self.hosts(Mode::Shadow).any(|of| allows(&of)))
    }

    /// Decides on a connection to an address for which the app was given `names`.
    #[must_use]
    pub fn decide_connection(&self, address: SocketAddr, names: &[HostName]) -> ConnectionDecision {
        let by_address = self.decide_address(address);
        if by_address.is_allowed() || self.is_idle() {
            return ConnectionDecision::Known(by_address);
        }
        if !self.may_be_behind_a_name(address) {
            return ConnectionDecision::Known(by_address);
        }
        let of = |name| self.decide_name(name, address.port());
        let mut begins = false;
        let mut allows = false;
        let mut is_in_shadow = false;
        for decision in names.iter().map(of) {
            begins |= decision.tls.is_some();
            allows |= decision.is_allowed();
            is_in_shadow |= !decision.is_refused() && !decision.would_refuse;
        }
        match self.by_default {
            _ if begins => ConnectionDecision::ByHttp,
            EgressDefault::Closed if allows => ConnectionDecision::ByFirstBytes,
            EgressDefault::Closed | EgressDefault::Open | EgressDefault::Shadow => {
                let would_refuse = by_address.would_refuse && !is_in_shadow;
                ConnectionDecision::Known(EgressDecision { would_refuse, ..by_address })
            }
        }
    }

    /// Decides on a connection whose first bytes have shown what they could. Gives the name for which it
    /// is decided, if it is for one.
    #[must_use]
    pub fn decide_shown(
        &self,
        address: SocketAddr,
        names: &[HostName],
        shown: &Shown,
    ) -> (EgressDecision, Option<HostName>) {
        let of = |name: &HostName| (self.decide_name(name, address.port()), Some(name.clone()));
        match shown {
            Shown::Host(host) => match names.iter().find(|name| *name == host) {
                Some(name) => of(name),
                // No answer had this address for it.
                None => (self.decided(self.verdict(None), None, || false), None),
            },
            Shown::NotYet | Shown::Nothing => {
                let mut allowed = names.iter().map(of).filter(|(decided, _)| decided.is_allowed());
                let nothing = || (self.decide_address(address), None);
                match (allowed.next(), allowed.next()) {
                    (Some(only), None) => only,
                    // Which of them is meant is not known: TLS cannot be begun.
                    (Some(one), Some(other)) => [one, other]
                        .into_iter()
                        .chain(allowed)
                        .find(|(decided, _)| decided.tls.is_none())
                        .unwrap_or_else(nothing),
                    (None, _) => nothing(),
                }
            }
        }
    }

    /// Whether an address may be called that was found by a name: neither this machine nor its link,
    /// unless an egress names the address itself. Names of others could lead there.
    #[must_use]
    pub fn may_be_behind_a_name(&self, address: SocketAddr) -> bool {
        match AddressKind::of(plain_address(address.ip())) {
            AddressKind::Public | AddressKind::Private => true,
            AddressKind::Loopback | AddressKind::LinkLocal | AddressKind::NoHost => {
                self.names_address(address.ip())
            }
        }
    }

    /// The authorities by which TLS is begun; `None` for the system's.
    pub fn authorities(&self) -> impl Iterator<Item = Option<Arc<str>>> {
        let begun = self.hosts(Mode::Enforce).filter_map(|(_, host)| host.tls.as_ref());
        begun.map(|tls| tls.authorities.clone())
    }

    /// Whether an egress names this address or a range that it is in.
    #[must_use]
    pub fn names_address(&self, ip: IpAddr) -> bool {
        self.hosts(Mode::Enforce).any(|(_, host)| host.host.matches_address(ip))
    }

    fn hosts(&self, mode: Mode) -> impl Iterator<Item = (&Egress, &EgressHost)> {
        let of_mode = self.egresses.iter().filter(move |egress| egress.mode == mode);
        of_mode.flat_map(|egress| egress.hosts.iter().map(move |host| (&**egress, host)))
    }

    fn verdict(&self, allowed_by: Option<&Egress>) -> Verdict {
        match (allowed_by, self.by_default) {
            (Some(egress), _) => Verdict::Allowed(egress.name.clone()),
            (None, EgressDefault::Closed) => Verdict::Refused,
            (None, EgressDefault::Open | EgressDefault::Shadow) => Verdict::ByDefault,
        }
    }

    /// With what would come of it if what is in shadow mode were enforced: the default is closed then.
    fn decided(
        &self,
        verdict: Verdict,
        tls: Option<(u16, BeginTls)>,
        is_in_shadow: impl Fn() -> bool,
    ) -> EgressDecision {
        let would_refuse = verdict == Verdict::ByDefault && self.has_shadow() && !is_in_shadow();
        EgressDecision { verdict, tls, would_refuse }
    }

    fn has_shadow(&self) -> bool {
        self.by_default == EgressDefault::Shadow
            || self.egresses.iter().any(|egress| egress.mode == Mode::Shadow)
    }
}

fn nearness(pattern: &HostPattern, name: &HostName) -> Option<Nearness> {
    if !pattern.matches_name(name) {
        return None;
    }
    Some(match pattern {
        HostPattern::Name(_) => (2, 0),
        HostPattern::Below(end) => (1, end.as_str().len()),
        HostPattern::AnyName | HostPattern::Range(_) => (0, 0),
    })
}

#[cfg(test)]
mod tests;
