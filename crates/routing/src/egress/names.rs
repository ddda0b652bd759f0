//! The names of external hosts for which a sidecar has passed addresses on to its app: an address that an
//! intercepted connection was meant for stands for these.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tollway_model::HostName;

/// Most addresses whose names are kept. A further one replaces the one used longest ago.
pub const EXTERNAL_NAMES_LIMIT: usize = 4_096;
/// Most names kept for one address. A further one replaces the one used longest ago.
pub const NAMES_PER_ADDRESS_LIMIT: usize = 64;
/// How long a name is remembered for an address after the last answer that had it, and the last
/// connection: programs keep addresses for longer than an answer allows.
pub const NAME_WITHIN: Duration = Duration::from_secs(3_600);

/// The names of addresses.
#[derive(Debug, Default)]
pub struct ExternalNames {
    by_address: HashMap<IpAddr, Vec<Used>>,
}

#[derive(Debug)]
struct Used {
    name: HostName,
    last: Instant,
}

impl ExternalNames {
    /// An answer with these addresses for a name goes to the app.
    pub fn note(
        &mut self,
        name: &HostName,
        addresses: impl IntoIterator<Item = IpAddr>,
        now: Instant,
    ) {
        for address in addresses {
            if !self.by_address.contains_key(&address)
                && self.by_address.len() >= EXTERNAL_NAMES_LIMIT
            {
                self.forget_oldest();
            }
            let names = self.by_address.entry(address).or_default();
            if let Some(known) = names.iter_mut().find(|used| used.name == *name) {
                known.last = now;
                continue;
            }
            if names.len() >= NAMES_PER_ADDRESS_LIMIT
                && let Some(oldest) = (0..names.len()).min_by_key(|at| names[*at].last)
            {
                names.swap_remove(oldest);
            }
            names.push(Used { name: name.clone(), last: now });
        }
    }

    /// The names that an address stands for now.
    #[must_use]
    pub fn of(&self, address: IpAddr, now: Instant) -> Vec<HostName> {
        let names = self.by_address.get(&address).map_or(&[][..], Vec::as_slice);
        let is_known = |used: &&Used| now.saturating_duration_since(used.last) < NAME_WITHIN;
        names.iter().filter(is_known).map(|used| used.name.clone()).collect()
    }

    /// A connection to an address is used under its name.
    pub fn note_use(&mut self, name: &HostName, address: IpAddr, now: Instant) {
        let names = self.by_address.get_mut(&address).into_iter().flatten();
        if let Some(used) = names.into_iter().find(|used| used.name == *name) {
            used.last = used.last.max(now);
        }
    }

    fn forget_oldest(&mut self) {
        let last = |names: &Vec<Used>| names.iter().map(|used| used.last).max();
        let oldest = self.by_address.iter().min_by_key(|(_, names)| last(names));
        if let Some(address) = oldest.map(|(address, _)| *address) {
            self.by_address.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        HostName::read(text).unwrap()
    }

    fn address(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn an_address_stands_for_the_names_that_were_answered_with_it() {
        let mut names = ExternalNames::default();
        let begin = Instant::now();
        names.note(&name("a.example"), [address(1), address(2)], begin);
        names.note(&name("b.example"), [address(1)], begin);
        assert_eq!(names.of(address(1), begin), [name("a.example"), name("b.example")]);
        assert_eq!(names.of(address(2), begin), [name("a.example")]);
        assert!(names.of(address(3), begin).is_empty());
        // An hour after the last answer or connection it is forgotten.
        let later = begin + NAME_WITHIN - Duration::from_secs(1);
        names.note_use(&name("a.example"), address(2), later);
        names.note(&name("b.example"), [address(1)], later);
        let after = begin + NAME_WITHIN;
        assert_eq!(names.of(address(1), after), [name("b.example")]);
        assert_eq!(names.of(address(2), after), [name("a.example")]);
        assert!(names.of(address(2), later + NAME_WITHIN).is_empty());
    }

    #[test]
    fn what_was_used_longest_ago_gives_way() {
        let mut names = ExternalNames::default();
        let begin = Instant::now();
        let limit = u32::try_from(EXTERNAL_NAMES_LIMIT).unwrap();
        for n in 0..limit {
            names.note(&name("a.example"), [address(n)], begin + Duration::from_millis(n.into()));
        }
        let now = begin + Duration::from_secs(60);
        names.note_use(&name("a.example"), address(0), now);
        names.note(&name("a.example"), [address(limit)], now);
        assert_eq!(names.by_address.len(), EXTERNAL_NAMES_LIMIT);
        assert!(names.of(address(1), now).is_empty() && !names.of(address(0), now).is_empty());

        for n in 0..=NAMES_PER_ADDRESS_LIMIT as u64 {
            let at = now + Duration::from_millis(n);
            names.note(&name(&format!("n{n}.example")), [address(7)], at);
        }
        let of = names.of(address(7), now);
        assert_eq!(of.len(), NAMES_PER_ADDRESS_LIMIT);
        assert!(!of.contains(&name("n0.example")) && of.contains(&name("n64.example")));
    }
}
