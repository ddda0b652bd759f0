//! Names: labels, services, instances, networks, trust domains, SPIFFE identities.
//!
//! A service is `app[.namespace[.network]]`; omitted parts default to the own ones. Labels are 1 to
//! 63 characters of letters, digits, `-` and `_`, compared without case and stored as written. In the place
//! of the app there may be a port of a Kubernetes Service or an address ([`Called`]).

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;

use thiserror::Error;

/// The top-level host name under which every service of the mesh is reachable.
pub const MESH_SUFFIX: &str = "mesh";

/// In the place of a network: a service in any of the networks that may serve it. No network is called so.
pub const ANY_NETWORK: &str = "any";

/// Longest label, in bytes (RFC 1035).
const LABEL_LIMIT: usize = 63;

/// Why a name was refused. The text names the mistake and a valid form.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    #[error("the name is empty; a service is written app[.namespace[.network]]")]
    Empty,
    #[error("`{0}` has an empty part; a service is written app[.namespace[.network]]")]
    EmptyLabel(String),
    #[error("`{name}` has {count} parts; a service has at most three: app[.namespace[.network]]")]
    TooManyLabels { name: String, count: usize },
    #[error("`{label}` is {length} characters long; a label has at most 63")]
    LabelTooLong { label: String, length: usize },
    #[error(
        "`{label}` holds the character {character:?}; a label has letters, digits, `-` and `_`"
    )]
    Character { label: String, character: char },
    #[error("`{0}` does not end in `.mesh`")]
    NotMesh(String),
    #[error(
        "`{0}` is not a SPIFFE identity of a workload: spiffe://<trust-domain>/ns/<namespace>/<app>"
    )]
    Spiffe(String),
    #[error(
        "`{0}` is not a trust domain: lower-case letters, digits, `-`, `_` and `.`, at most 255 characters"
    )]
    TrustDomain(String),
    #[error(
        "a network cannot be called `{ANY_NETWORK}`, which stands for any network; choose another name"
    )]
    AnyNetwork,
}

/// One label of a name. Equality, order and hash ignore ASCII case; the spelling is preserved. In the place of
/// an app it may be what [`ServiceName::read_called`] takes.
#[derive(Clone)]
pub struct Label(Arc<str>);

impl Label {
    /// Checks length and characters.
    ///
    /// # Errors
    /// [`NameError`] when the label is empty, longer than 63 bytes or holds another character.
    pub fn new(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::EmptyLabel(text.to_owned()));
        }
        if !text.bytes().all(is_label_byte) {
            let other = |c: &char| !u8::try_from(*c).is_ok_and(is_label_byte);
            let character = text.chars().find(other).unwrap_or(char::REPLACEMENT_CHARACTER);
            return Err(NameError::Character { label: text.to_owned(), character });
        }
        if text.len() > LABEL_LIMIT {
            return Err(NameError::LabelTooLong { label: text.to_owned(), length: text.len() });
        }
        Ok(Self(text.into()))
    }

    /// The label as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it stands for any network, in the place of a network's name.
    #[must_use]
    pub fn is_any_network(&self) -> bool {
        self.0.len() == ANY_NETWORK.len() && self.0.eq_ignore_ascii_case(ANY_NETWORK)
    }

    /// The name of a network that exists.
    ///
    /// # Errors
    /// As [`Label::new`]; [`NameError::AnyNetwork`] for the word that stands for any network.
    pub fn of_network(text: &str) -> Result<NetworkName, NameError> {
        let name = Self::new(text)?;
        if name.is_any_network() { Err(NameError::AnyNetwork) } else { Ok(name) }
    }

    /// The label in lower case, as certificates and store keys have it.
    #[must_use]
    pub fn to_lower(&self) -> String {
        self.0.to_ascii_lowercase()
    }
}

fn is_label_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

impl PartialEq for Label {
    fn eq(&self, other: &Self) -> bool {
        // Spelt alike nearly always.
        self.0 == other.0 || self.0.eq_ignore_ascii_case(&other.0)
    }
}
impl Eq for Label {}
impl Hash for Label {
    /// Hashes whole words at a time, since every request looks up a name.
    fn hash<H: Hasher>(&self, state: &mut H) {
        /// Makes letters lower case, and no two other characters of a label alike.
        const LOWER: u64 = 0x2020_2020_2020_2020;
        let (words, rest) = self.0.as_bytes().as_chunks::<8>();
        for word in words {
            state.write_u64(u64::from_le_bytes(*word) | LOWER);
        }
        // Mutant `replace | with ^`: what is shifted in is zero, and one bit of a letter is enough.
        let last = rest.iter().fold(1, |last, byte| last << 8 | u64::from(byte | 0x20));
        state.write_u64(last);
    }
}
impl PartialOrd for Label {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Label {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let left = self.0.bytes().map(|b| b.to_ascii_lowercase());
        left.cmp(other.0.bytes().map(|b| b.to_ascii_lowercase()))
    }
}
impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}
impl std::str::FromStr for Label {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

/// The name of an app, unique in its namespace.
pub type AppId = Label;
/// The name of one running instance of an app.
pub type Instance = Label;
/// The name of a network: workloads inside it reach each other's addresses.
pub type NetworkName = Label;

/// What is called under a service's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Called<'a> {
    App,
    /// A port of a Service of the network's Kubernetes cluster: `reviews:9080`.
    Port {
        service: &'a str,
        port: u16,
    },
    /// An address in that cluster: `10.96.0.7:9080`.
    Address(SocketAddr),
}

/// The full name of a service.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ServiceName {
    /// An app. In names that data planes and their control plane give to each other also a port of a
    /// Service or an address, which no user writes: [`Self::called`].
    pub app: AppId,
    pub namespace: Label,
    pub network: NetworkName,
}

impl ServiceName {
    /// The name of a port of a Service of `network`'s Kubernetes cluster.
    #[must_use]
    pub fn of_port(service: &Label, port: u16, namespace: &Label, network: &NetworkName) -> Self {
        let app = Label(format!("{service}:{port}").into());
        Self { app, namespace: namespace.clone(), network: network.clone() }
    }

    /// The name of an address in the cluster of `home`'s network, as a workload of `home` calls it.
    #[must_use]
    pub fn of_address(address: SocketAddr, home: &Self) -> Self {
        Self { app: Label(address.to_string().into()), ..home.clone() }
    }

    /// What the name is of.
    #[must_use]
    pub fn called(&self) -> Called<'_> {
        let Some((service, port)) = self.app.as_str().rsplit_once(':') else { return Called::App };
        if let Ok(address) = self.app.as_str().parse() {
            return Called::Address(address);
        }
        port.parse().map_or(Called::App, |port| Called::Port { service, port })
    }

    /// Whether it is the name of an address.
    #[must_use]
    pub fn is_address(&self) -> bool {
        matches!(self.called(), Called::Address(_))
    }

    /// The service under whose name routes and policies are for what is called: of a port that which has the
    /// name of its Service.
    #[must_use]
    pub fn as_app(&self) -> Cow<'_, Self> {
        match self.called() {
            Called::Port { service, .. } => {
                Cow::Owned(Self { app: Label(service.into()), ..self.clone() })
            }
            Called::App | Called::Address(_) => Cow::Borrowed(self),
        }
    }

    /// Reads the first part of a name that a data plane or its control plane states: an app, a port of a
    /// Service or an address.
    ///
    /// # Errors
    /// As [`Label::new`].
    pub fn read_called(text: &str) -> Result<AppId, NameError> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Label(address.to_string().into()));
        }
        match text.rsplit_once(':').map(|(service, port)| (service, port.parse::<u16>())) {
            Some((service, Ok(port))) => {
                let service = Label::new(service)?;
                Ok(Label(format!("{service}:{port}").into()))
            }
            Some((_, Err(_))) | None => Label::new(text),
        }
    }

    /// Reads `app[.namespace[.network]]`; parts left out are taken from `home`.
    ///
    /// # Errors
    /// [`NameError`] for an empty name or label, a bad character, an over-long label or more
    /// than three labels.
    pub fn parse(text: &str, home: &Self) -> Result<Self, NameError> {
        Self::parse_in(text, &home.namespace, &home.network)
    }

    /// Reads `app[.namespace[.network]]` with the given defaults.
    ///
    /// # Errors
    /// As [`ServiceName::parse`].
    pub fn parse_in(
        text: &str,
        namespace: &Label,
        network: &NetworkName,
    ) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        let mut parts = text.split('.');
        // A part that is spelt like the default shares its memory.
        let mut next = |default: Option<&Label>| match parts.next() {
            None => Ok(default.cloned()),
            Some("") => Err(NameError::EmptyLabel(text.to_owned())),
            Some(part) => match default {
                Some(default) if default.as_str() == part => Ok(Some(default.clone())),
                _ => Label::new(part).map(Some),
            },
        };
        let app = next(None)?.ok_or(NameError::Empty)?;
        let namespace = next(Some(namespace))?.ok_or(NameError::Empty)?;
        let network = next(Some(network))?.ok_or(NameError::Empty)?;
        if parts.next().is_some() {
            let count = text.split('.').count();
            return Err(NameError::TooManyLabels { name: text.to_owned(), count });
        }
        Ok(Self { app, namespace, network })
    }

    /// Whether it names a service in any network, and so no service that has replicas.
    #[must_use]
    pub fn is_in_any_network(&self) -> bool {
        self.network.is_any_network()
    }

    /// The service of this name in `network`.
    #[must_use]
    pub fn in_network(&self, network: &NetworkName) -> Self {
        Self { network: network.clone(), ..self.clone() }
    }

    /// The shortest name by which a workload of `home` calls the service.
    #[must_use]
    pub fn short(&self, home: &Self) -> String {
        let Self { app, namespace, network } = self;
        if *network != home.network {
            return self.to_string();
        }
        if *namespace == home.namespace { app.to_string() } else { format!("{app}.{namespace}") }
    }

    /// Reads a host name `app[.namespace[.network]].mesh`, without port; a trailing dot is
    /// allowed. Parts left out are taken from `home`.
    ///
    /// # Errors
    /// [`NameError::NotMesh`] when the suffix is missing, otherwise as [`ServiceName::parse`].
    pub fn parse_host(host: &str, home: &Self) -> Result<Self, NameError> {
        let host = host.strip_suffix('.').unwrap_or(host);
        let stem = strip_mesh_suffix(host).ok_or_else(|| NameError::NotMesh(host.to_owned()))?;
        Self::parse(stem, home)
    }

    /// Reads the server name of a certificate: all three labels, in front of `.mesh`.
    ///
    /// # Errors
    /// [`NameError`] when a part is missing or malformed, or the network is any.
    pub fn parse_dns_san(name: &str) -> Result<Self, NameError> {
        let stem = strip_mesh_suffix(name).ok_or_else(|| NameError::NotMesh(name.to_owned()))?;
        let mut parts = stem.splitn(3, '.');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(app), Some(namespace), Some(network)) => Ok(Self {
                app: Label::new(app)?,
                namespace: Label::new(namespace)?,
                network: Label::of_network(network)?,
            }),
            _ => Err(NameError::EmptyLabel(name.to_owned())),
        }
    }

    /// The network of any server name of the mesh: a service's, an instance's or a control
    /// plane's. `None` if it is not one.
    #[must_use]
    pub fn network_of_server_name(name: &str) -> Option<NetworkName> {
        let stem = strip_mesh_suffix(name)?;
        let (_, network) = stem.rsplit_once('.')?;
        Label::of_network(network).ok()
    }

    /// `<app>.<namespace>.<network>.mesh` in lower case: the DNS SAN of the service's
    /// certificates and the TLS server name under which it is dialled.
    #[must_use]
    pub fn dns_san(&self) -> String {
        let mut name = Vec::new();
        self.write_dns_san(&mut name);
        String::from_utf8(name).expect("labels are ASCII")
    }

    /// Appends [`Self::dns_san`].
    pub fn write_dns_san(&self, name: &mut Vec<u8>) {
        let labels = [&self.app, &self.namespace, &self.network];
        // Mutant `replace + with *`: where less is reserved, the vector grows.
        // Mutant `replace + with -`: as above.
        let bytes: usize = labels.iter().map(|label| label.as_str().len() + 1).sum();
        // Mutant `replace + with *`: where more is reserved, it stays empty.
        // Mutant `replace + with -`: where less is reserved, the vector grows.
        name.reserve(bytes + MESH_SUFFIX.len());
        for label in labels {
            name.extend(label.as_str().bytes().map(|byte| byte.to_ascii_lowercase()));
            name.push(b'.');
        }
        name.extend_from_slice(MESH_SUFFIX.as_bytes());
    }

    /// `<instance>.<app>.<namespace>.<network>.mesh` in lower case.
    #[must_use]
    pub fn instance_dns_san(&self, instance: &Instance) -> String {
        format!("{}.{}", instance.to_lower(), self.dns_san())
    }

    /// The SPIFFE identity of this service's workloads in `trust_domain`.
    #[must_use]
    pub fn spiffe_id(&self, trust_domain: &TrustDomain) -> SpiffeId {
        SpiffeId {
            trust_domain: trust_domain.clone(),
            namespace: Label(self.namespace.to_lower().into()),
            app: Label(self.app.to_lower().into()),
        }
    }
}

fn strip_mesh_suffix(host: &str) -> Option<&str> {
    let at = host.len().checked_sub(MESH_SUFFIX.len() + 1)?;
    let (stem, suffix) = (host.get(..at)?, host.get(at..)?);
    suffix.strip_prefix('.').filter(|s| s.eq_ignore_ascii_case(MESH_SUFFIX)).map(|_| stem)
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.app, self.namespace, self.network)
    }
}

/// A trust domain: the scope of one certificate authority. Lower case (SPIFFE-ID section 2.1).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TrustDomain(Arc<str>);

impl TrustDomain {
    /// Checks characters and length.
    ///
    /// # Errors
    /// [`NameError::TrustDomain`].
    pub fn new(text: &str) -> Result<Self, NameError> {
        let allowed =
            |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
        if text.is_empty() || text.len() > 255 || !text.bytes().all(allowed) {
            return Err(NameError::TrustDomain(text.to_owned()));
        }
        Ok(Self(text.into()))
    }

    /// The default trust domain of a network: `<network>.tollway`.
    #[must_use]
    pub fn default_for(network: &NetworkName) -> Self {
        Self(format!("{}.tollway", network.to_lower()).into())
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The identity of a workload: `spiffe://<trust-domain>/ns/<namespace>/<app>`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SpiffeId {
    pub trust_domain: TrustDomain,
    pub namespace: Label,
    pub app: Label,
}

impl SpiffeId {
    /// Reads the URI form exactly: no query, fragment, port, empty or extra segment.
    ///
    /// # Errors
    /// [`NameError::Spiffe`].
    pub fn parse(uri: &str) -> Result<Self, NameError> {
        let refuse = || NameError::Spiffe(uri.to_owned());
        let rest = uri.strip_prefix("spiffe://").ok_or_else(refuse)?;
        let mut parts = rest.split('/');
        let (domain, ns, namespace, app) = (parts.next(), parts.next(), parts.next(), parts.next());
        if parts.next().is_some() || ns != Some("ns") {
            return Err(refuse());
        }
        let label = |part: Option<&str>| part.and_then(|p| Label::new(p).ok()).ok_or_else(refuse);
        Ok(Self {
            trust_domain: domain.and_then(|d| TrustDomain::new(d).ok()).ok_or_else(refuse)?,
            namespace: label(namespace)?,
            app: label(app)?,
        })
    }

    /// The parts that make the URI form, one after the other.
    #[must_use]
    pub fn parts(&self) -> [&str; 6] {
        let domain = self.trust_domain.as_str();
        ["spiffe://", domain, "/ns/", self.namespace.as_str(), "/", self.app.as_str()]
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts().into_iter().try_for_each(|part| f.write_str(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> ServiceName {
        ServiceName::parse_in("me", &label("default"), &label("west")).unwrap()
    }

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    #[track_caller]
    fn check(input: &str, expected: &str) {
        let printed = match ServiceName::parse(input, &home()) {
            Ok(name) => name.to_string(),
            Err(error) => format!("refused: {error}"),
        };
        assert_eq!(printed, expected);
    }

    #[test]
    fn parts_left_out_mean_mine() {
        check("stock", "stock.default.west");
        check("stock.shop", "stock.shop.west");
        check("stock.shop.east", "stock.shop.east");
        check("Stock_1.Shop.EAST", "Stock_1.Shop.EAST");
    }

    #[test]
    fn a_name_of_a_port_or_an_address_reads_back_and_is_no_apps() {
        let called = |text: &str| {
            let app = ServiceName::read_called(text).map_err(|error| error.to_string())?;
            let name = ServiceName { app, ..home() };
            assert_eq!(ServiceName::read_called(name.app.as_str()), Ok(name.app.clone()), "{text}");
            Ok::<_, String>((name.to_string(), format!("{:?}", name.called())))
        };
        for (text, name, expected) in [
            ("stock", "stock", "App"),
            ("stock:9080", "stock:9080", "Port { service: \"stock\", port: 9080 }"),
            ("stock:09080", "stock:9080", "Port { service: \"stock\", port: 9080 }"),
            ("10.96.0.7:80", "10.96.0.7:80", "Address(10.96.0.7:80)"),
            ("[fd00::1]:80", "[fd00::1]:80", "Address([fd00::1]:80)"),
            ("[FD00:0:0::1]:80", "[fd00::1]:80", "Address([fd00::1]:80)"),
        ] {
            let found = called(text).unwrap();
            assert_eq!(found, (format!("{name}.default.west"), expected.to_owned()), "{text}");
        }
        for text in ["stock:", ":80", "stock:70000", "a:b:80", "10.96.0.7", "fd00::1", "a.b:80", ""]
        {
            assert!(called(text).is_err(), "{text}");
        }
        // A user cannot write one.
        for text in ["stock:9080", "10.96.0.7:80"] {
            assert!(ServiceName::parse(text, &home()).is_err(), "{text}");
            assert!(Label::new(text).is_err(), "{text}");
        }
        let stock = ServiceName::parse("stock", &home()).unwrap();
        let port = ServiceName::of_port(&stock.app, 9080, &stock.namespace, &stock.network);
        assert_eq!(port.called(), Called::Port { service: "stock", port: 9080 });
        assert_eq!((&*port.as_app(), &*stock.as_app()), (&stock, &stock));
        let address = "[::1]:80".parse().unwrap();
        let name = ServiceName::of_address(address, &home());
        assert_eq!(name.called(), Called::Address(address));
        assert!(name.is_address() && !port.is_address() && !stock.is_address());
    }

    #[test]
    fn bad_names_are_refused_with_the_reason() {
        check("", "refused: the name is empty; a service is written app[.namespace[.network]]");
        check(
            "a..b",
            "refused: `a..b` has an empty part; a service is written app[.namespace[.network]]",
        );
        check(
            "a.b.c.d",
            "refused: `a.b.c.d` has 4 parts; a service has at most three: app[.namespace[.network]]",
        );
        check(
            "a/b",
            "refused: `a/b` holds the character '/'; a label has letters, digits, `-` and `_`",
        );
        let long = "x".repeat(64);
        check(&long, &format!("refused: `{long}` is 64 characters long; a label has at most 63"));
    }

    #[test]
    fn labels_compare_without_case() {
        let hash = |name: &ServiceName| {
            let mut hasher = std::hash::DefaultHasher::new();
            name.hash(&mut hasher);
            hasher.finish()
        };
        let (a, b) = (
            ServiceName::parse("Stock.SHOP", &home()).unwrap(),
            ServiceName::parse("stock.shop.WEST", &home()).unwrap(),
        );
        assert_eq!(a, b);
        assert_eq!(hash(&a), hash(&b));
        assert_eq!(a.dns_san(), b.dns_san());
    }

    #[test]
    fn names_that_differ_are_kept_apart_in_a_table() {
        let hash = |text: &str| {
            let mut hasher = std::hash::DefaultHasher::new();
            label(text).hash(&mut hasher);
            hasher.finish()
        };
        // Words of eight letters, and what is left of them.
        for [one, other] in
            [["ab", "cb"], ["ab", "ac"], ["stockwest", "stackwest"], ["stockwes-a", "stockwes-b"]]
        {
            assert_ne!(hash(one), hash(other), "{one} and {other}");
            assert_eq!(hash(one), hash(&one.to_ascii_uppercase()), "{one}");
        }
        assert!(label("a") < label("B") && label("B") > label("a"));
        assert_eq!(format!("{:?}", label("Stock")), "\"Stock\"");
    }

    #[test]
    fn a_part_like_the_default_takes_no_memory() {
        let home = home();
        let own = ServiceName::parse("stock.default.west", &home).unwrap();
        assert!(Arc::ptr_eq(&own.network.0, &home.network.0));
        assert!(Arc::ptr_eq(&own.namespace.0, &home.namespace.0));
        let other = ServiceName::parse("stock.default.WEST", &home).unwrap();
        assert_eq!(other.network.as_str(), "WEST", "as it was written");
    }

    #[test]
    fn hosts_need_the_suffix_and_may_end_in_a_dot() {
        let parse = |host| ServiceName::parse_host(host, &home()).map(|n| n.to_string());
        assert_eq!(parse("stock.mesh").unwrap(), "stock.default.west");
        assert_eq!(parse("stock.shop.east.MESH.").unwrap(), "stock.shop.east");
        assert_eq!(parse("stock.example"), Err(NameError::NotMesh("stock.example".into())));
        assert_eq!(parse("mesh"), Err(NameError::NotMesh("mesh".into())));
        assert_eq!(parse(".mesh"), Err(NameError::Empty));
    }

    #[test]
    fn server_names_carry_all_three_labels() {
        let name = ServiceName::parse_dns_san("stock.shop.east.mesh").unwrap();
        assert_eq!(name.dns_san(), "stock.shop.east.mesh");
        assert!(ServiceName::parse_dns_san("stock.shop.mesh").is_err());
        assert!(ServiceName::parse_dns_san("i-1.stock.shop.east.mesh").is_err());
        assert_eq!(name.instance_dns_san(&label("I-1")), "i-1.stock.shop.east.mesh");
    }

    #[test]
    fn a_service_is_called_by_as_few_labels_as_name_it() {
        let home = ServiceName::parse("web.shop.west", &home()).unwrap();
        for (text, short) in [
            ("stock.shop.west", "stock"),
            ("stock.bank.west", "stock.bank"),
            ("stock.shop.east", "stock.shop.east"),
        ] {
            assert_eq!(ServiceName::parse(text, &home).unwrap().short(&home), short);
        }
    }

    #[test]
    fn no_network_is_called_any() {
        for text in ["any", "ANY", "Any"] {
            assert!(label(text).is_any_network());
            assert_eq!(Label::of_network(text), Err(NameError::AnyNetwork));
            let host = format!("stock.shop.{text}.mesh");
            let called = ServiceName::parse_host(&host, &home()).unwrap();
            assert!(called.is_in_any_network());
            assert_eq!(called.in_network(&label("east")).to_string(), "stock.shop.east");
            // It is called, and nothing proves to be it.
            assert_eq!(ServiceName::parse_dns_san(&host), Err(NameError::AnyNetwork));
            assert_eq!(ServiceName::network_of_server_name(&host), None);
        }
        for text in ["anyone", "an", "sea", "west"] {
            assert_eq!(Label::of_network(text).unwrap().as_str(), text);
            assert!(!label(text).is_any_network());
        }
        assert!(!home().is_in_any_network());
        assert_eq!(Label::of_network(""), Err(NameError::EmptyLabel(String::new())));
    }

    #[test]
    fn the_network_is_read_from_a_server_name() {
        let network = |name| ServiceName::network_of_server_name(name).map(|n| n.to_string());
        for name in ["control.east.mesh", "a.b.east.mesh", "i-1.a.b.east.MESH"] {
            assert_eq!(network(name).as_deref(), Some("east"), "{name}");
        }
        for name in ["east.mesh", ".mesh", "a..mesh", "a.east.example", ""] {
            assert_eq!(network(name), None, "{name}");
        }
    }

    #[test]
    fn spiffe_identities_are_read_exactly() {
        let id = "spiffe://west.tollway/ns/default/stock";
        assert_eq!(SpiffeId::parse(id).unwrap().to_string(), id);
        for bad in [
            "spiffe://west.tollway/ns/default",
            "spiffe://west.tollway/ns/default/stock/",
            "spiffe://west.tollway/ns/../stock",
            "spiffe://West.tollway/ns/default/stock",
            "spiffe://west.tollway:80/ns/default/stock",
            "https://west.tollway/ns/default/stock",
            "spiffe:///ns/default/stock",
            "spiffe://west.tollway/sa/default/stock",
            "spiffe://west.tollway/ns/default/stock?x",
        ] {
            assert!(SpiffeId::parse(bad).is_err(), "{bad}");
        }
    }

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_is_refused_or_printed_as_it_was_read(text in ".{0,80}") {
            if let Ok(name) = ServiceName::parse(&text, &home()) {
                let printed = name.to_string();
                prop_assert!(printed.starts_with(&text));
                prop_assert_eq!(ServiceName::parse(&printed, &home()).unwrap(), name);
            }
        }

        #[test]
        fn a_server_name_gives_its_service_back(
            app in "[A-Za-z0-9_-]{1,63}",
            namespace in "[A-Za-z0-9_-]{1,63}",
            network in "[A-Za-z0-9_-]{4,63}",
        ) {
            let text = format!("{app}.{namespace}.{network}");
            let name = ServiceName::parse(&text, &home()).unwrap();
            prop_assert_eq!(&ServiceName::parse_dns_san(&name.dns_san()).unwrap(), &name);
            let host = format!("{text}.mesh");
            prop_assert_eq!(&ServiceName::parse_host(&host, &home()).unwrap(), &name);
            let id = name.spiffe_id(&TrustDomain::default_for(&name.network));
            prop_assert_eq!(SpiffeId::parse(&id.to_string()).unwrap(), id);
        }

        #[test]
        fn hosts_and_identities_never_panic(text in "\\PC{0,80}") {
            let _ = ServiceName::parse_host(&text, &home());
            let _ = ServiceName::parse_dns_san(&text);
            let _ = SpiffeId::parse(&text);
        }
    }
}
