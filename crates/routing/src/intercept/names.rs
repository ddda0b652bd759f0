//! Addresses for names of the mesh.
//!
//! They are of 240.0.0.0/4, without its last /8: the range is reserved, so no host has one, and the
//! kernel, C libraries and language runtimes take them for ordinary addresses. Those of 127.0.0.0/8
//! are not used: programs treat loopback in ways of their own (they pass proxies by, trust it, or
//! refuse to call it).
//!
//! An address comes from its name by a hash, so that it stays the same over a restart, and an app that
//! remembers it for long still means the same service. Where two names meet, the later one has the
//! next free address.

use std::collections::HashMap;
use std::net::Ipv4Addr;

/// Names that have an address. The one that was asked for longest ago gives way; its address leads
/// nowhere until the name is asked for again.
pub const MESH_NAMES_LIMIT: usize = 4_096;
/// Bytes of a name, as DNS has it.
pub const NAME_BYTES: usize = 253;

const FIRST: u32 = 0xf000_0000;
/// Addresses below 255.0.0.0.
const ADDRESSES: u32 = 0x0f00_0000;
const SUFFIX: &str = ".mesh";

/// What a name is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// A service of the mesh, and the address that stands for it.
    Service(Ipv4Addr),
    /// It ends in `.mesh` and names no service.
    NoService,
    /// A name out of the mesh.
    Other,
}

/// The addresses of names, and the names of addresses.
#[derive(Debug, Default)]
pub struct MeshNames {
    by_name: HashMap<Box<str>, Entry>,
    by_address: HashMap<Ipv4Addr, Box<str>>,
    /// Names that the user has given to services, with the host of each.
    aliases: HashMap<Box<str>, Box<str>>,
    questions: u64,
}

#[derive(Debug)]
struct Entry {
    address: Ipv4Addr,
    /// At which question it was asked for last.
    asked: u64,
}

impl MeshNames {
    /// Names that end in `.mesh`, and `aliases`: a name of any form, and the service
    /// (`app[.namespace[.network]]`) that it stands for.
    pub fn new<'a>(aliases: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let host = |service: &str| format!("{service}{SUFFIX}").to_ascii_lowercase().into();
        let aliases =
            aliases.into_iter().map(|(name, service)| (plain(name).into(), host(service)));
        Self { aliases: aliases.collect(), ..Self::default() }
    }

    /// What a name is; a service gets an address if it has none.
    pub fn ask(&mut self, name: &str) -> Meaning {
        let name = plain(name);
        let host = self.aliases.get(name.as_str()).map_or(name.as_str(), AsRef::as_ref);
        let Some(stem) = host.strip_suffix(SUFFIX) else { return Meaning::Other };
        if !is_service(stem) {
            return Meaning::NoService;
        }
        let host: Box<str> = host.into();
        Meaning::Service(self.address_of(host))
    }

    /// The host name that an address stands for: `app[.namespace[.network]].mesh`, in small letters.
    #[must_use]
    pub fn host(&self, address: Ipv4Addr) -> Option<&str> {
        self.by_address.get(&address).map(AsRef::as_ref)
    }

    /// Whether an address is of the range that names have theirs of.
    #[must_use]
    pub fn is_of_range(address: Ipv4Addr) -> bool {
        (FIRST..FIRST + ADDRESSES).contains(&address.to_bits())
    }

    fn address_of(&mut self, host: Box<str>) -> Ipv4Addr {
        self.questions += 1;
        if let Some(entry) = self.by_name.get_mut(&host) {
            entry.asked = self.questions;
            return entry.address;
        }
        if self.by_name.len() >= MESH_NAMES_LIMIT {
            self.forget_oldest();
        }
        // There are thousands of times more addresses than names.
        let mut at = hash(host.as_bytes()) % ADDRESSES;
        let mut address = Ipv4Addr::from_bits(FIRST + at);
        while self.by_address.contains_key(&address) {
            at = (at + 1) % ADDRESSES;
            address = Ipv4Addr::from_bits(FIRST + at);
        }
        self.by_address.insert(address, host.clone());
        self.by_name.insert(host, Entry { address, asked: self.questions });
        address
    }

    fn forget_oldest(&mut self) {
        let oldest = self.by_name.iter().min_by_key(|(_, entry)| entry.asked);
        let Some(name) = oldest.map(|(name, _)| name.clone()) else { return };
        if let Some(entry) = self.by_name.remove(&name) {
            self.by_address.remove(&entry.address);
        }
    }
}

/// In small letters, without the root's dot.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Whether a name without its suffix has the form of a service's: one to three labels.
fn is_service(stem: &str) -> bool {
    let mut labels = stem.split('.');
    labels.by_ref().take(3).all(|label| tollway_model::Label::new(label).is_ok())
        && labels.next().is_none()
}

/// FNV-1a, folded.
fn hash(bytes: &[u8]) -> u32 {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let [a, b, c, d, e, f, g, h] = hash.to_be_bytes();
    u32::from_be_bytes([a, b, c, d]) ^ u32::from_be_bytes([e, f, g, h])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(names: &mut MeshNames, name: &str) -> Ipv4Addr {
        let Meaning::Service(address) = names.ask(name) else { panic!("{name}") };
        address
    }

    #[test]
    fn a_name_keeps_its_address_however_it_is_written() {
        let mut names = MeshNames::new([]);
        let stock = address(&mut names, "stock.mesh");
        for spelling in ["STOCK.mesh", "stock.mesh.", "Stock.Mesh"] {
            assert_eq!(address(&mut names, spelling), stock, "{spelling}");
        }
        assert_ne!(address(&mut names, "stock.shop.mesh"), stock);
        assert_eq!(names.host(stock), Some("stock.mesh"));
        // After a restart, whatever was asked for before.
        let mut later = MeshNames::new([]);
        address(&mut later, "other.mesh");
        assert_eq!(address(&mut later, "stock.mesh"), stock);
    }

    #[test]
    fn only_names_of_services_have_addresses() {
        let mut names = MeshNames::new([]);
        for name in ["stock.mesh", "stock.shop.mesh", "stock.shop.east.mesh", "a_b.mesh"] {
            assert!(MeshNames::is_of_range(address(&mut names, name)), "{name}");
        }
        for name in [".mesh", "a.b.c.d.mesh", "a..mesh", "_pg._tcp.db.shop.mesh", "-.m\u{e4}.mesh"]
        {
            assert_eq!(names.ask(name), Meaning::NoService, "{name}");
        }
        for name in ["mesh", "example.com", "mesh.example.com", "stockmesh", ""] {
            assert_eq!(names.ask(name), Meaning::Other, "{name}");
        }
    }

    #[test]
    fn an_alias_has_the_address_of_its_service() {
        let mut names = MeshNames::new([("Postgres", "db.shop"), ("db.internal.", "db.shop")]);
        let db = address(&mut names, "db.shop.mesh");
        assert_eq!(address(&mut names, "postgres"), db);
        assert_eq!(address(&mut names, "DB.internal"), db);
        assert_eq!(names.host(db), Some("db.shop.mesh"));
        assert_eq!(names.ask("postgres.internal"), Meaning::Other);
    }

    #[test]
    fn the_name_that_was_asked_for_longest_ago_gives_way() {
        let mut names = MeshNames::new([]);
        let first = address(&mut names, "kept.mesh");
        let lost = address(&mut names, "lost.mesh");
        for number in 0..MESH_NAMES_LIMIT - 2 {
            address(&mut names, &format!("n{number}.mesh"));
        }
        address(&mut names, "kept.mesh");
        address(&mut names, "one-more.mesh");
        assert_eq!(names.host(first), Some("kept.mesh"));
        assert_eq!(names.host(lost), None, "its address is no other name's");
        assert_eq!(names.by_name.len(), MESH_NAMES_LIMIT);
        assert_eq!(names.by_address.len(), MESH_NAMES_LIMIT);
        assert_eq!(address(&mut names, "lost.mesh"), lost);
    }

    #[test]
    fn addresses_are_none_that_a_host_may_have() {
        let of_range = |text: &str| MeshNames::is_of_range(text.parse().unwrap());
        for text in ["240.0.0.0", "247.1.2.3", "254.255.255.255"] {
            assert!(of_range(text), "{text}");
        }
        for text in ["239.255.255.255", "255.0.0.0", "255.255.255.255", "10.0.0.1", "127.0.0.1"] {
            assert!(!of_range(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn each_name_has_an_address_of_its_own(names in proptest::collection::hash_set("[a-z]{1,6}", 1..200)) {
            let mut table = MeshNames::new([]);
            let mut seen = HashMap::new();
            for name in &names {
                let host = format!("{name}.mesh");
                let address = address(&mut table, &host);
                prop_assert!(MeshNames::is_of_range(address));
                prop_assert_eq!(seen.insert(address, host), None);
            }
            for (address, host) in &seen {
                prop_assert_eq!(table.host(*address), Some(host.as_str()));
            }
        }

        #[test]
        fn any_text_is_a_question(text in "\\PC{0,300}") {
            let mut table = MeshNames::new([]);
            let _ = table.ask(&text);
            let _ = table.ask(&format!("{text}.mesh"));
        }
    }
}
