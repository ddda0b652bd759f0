//! What an operator writes in files and applies: objects of a few kinds, each with a name.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::egress::Egress;
use crate::failover::Failover;
use crate::name::{Label, NameError, NetworkName, ServiceName};
use crate::policy::{Policy, PolicyScope};
use crate::route::{Route, RouteScope};
use crate::traffic_policy::TrafficPolicy;

/// What kinds of objects there are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ObjectKind {
    Policy,
    Route,
    TrafficPolicy,
    Failover,
    Egress,
}

impl ObjectKind {
    pub const ALL: [Self; 5] =
        [Self::Policy, Self::Route, Self::TrafficPolicy, Self::Failover, Self::Egress];

    /// As commands and keys have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Route => "route",
            Self::TrafficPolicy => "traffic-policy",
            Self::Failover => "failover",
            Self::Egress => "egress",
        }
    }

    /// Several of it.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::Policy => "policies",
            Self::Route => "routes",
            Self::TrafficPolicy => "traffic-policies",
            Self::Failover => "failovers",
            Self::Egress => "egresses",
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name of an object, unique in its namespace among those of its kind.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ObjectName {
    pub namespace: Label,
    pub name: Label,
}

impl ObjectName {
    /// Checks both parts.
    ///
    /// # Errors
    /// [`NameError`] for the first part that is no label.
    pub fn new(namespace: &str, name: &str) -> Result<Self, NameError> {
        Ok(Self { namespace: Label::new(namespace)?, name: Label::new(name)? })
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What names one object of a network.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ObjectId {
    pub kind: ObjectKind,
    pub name: ObjectName,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// An object of any kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Object {
    Policy(Arc<Policy>),
    Route(Arc<Route>),
    TrafficPolicy(Arc<TrafficPolicy>),
    Failover(Arc<Failover>),
    Egress(Arc<Egress>),
}

impl Object {
    #[must_use]
    pub fn kind(&self) -> ObjectKind {
        match self {
            Self::Policy(_) => ObjectKind::Policy,
            Self::Route(_) => ObjectKind::Route,
            Self::TrafficPolicy(_) => ObjectKind::TrafficPolicy,
            Self::Failover(_) => ObjectKind::Failover,
            Self::Egress(_) => ObjectKind::Egress,
        }
    }

    #[must_use]
    pub fn name(&self) -> &ObjectName {
        match self {
            Self::Policy(policy) => &policy.name,
            Self::Route(route) => &route.name,
            Self::TrafficPolicy(policy) => &policy.name,
            Self::Failover(failover) => &failover.name,
            Self::Egress(egress) => &egress.name,
        }
    }

    #[must_use]
    pub fn id(&self) -> ObjectId {
        ObjectId { kind: self.kind(), name: self.name().clone() }
    }

    /// Whether both are written alike, whenever they were created.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Policy(one), Self::Policy(other)) => one == other,
            (Self::Route(one), Self::Route(other)) => one.is_same(other),
            (Self::TrafficPolicy(one), Self::TrafficPolicy(other)) => one == other,
            (Self::Failover(one), Self::Failover(other)) => one == other,
            (Self::Egress(one), Self::Egress(other)) => one == other,
            (
                Self::Policy(_)
                | Self::Route(_)
                | Self::TrafficPolicy(_)
                | Self::Failover(_)
                | Self::Egress(_),
                _,
            ) => false,
        }
    }

    /// The object in the place of `older`: what was created then.
    #[must_use]
    pub fn in_place_of(self, older: &Self) -> Self {
        match (self, older) {
            (Self::Route(route), Self::Route(older)) => {
                let route = Arc::unwrap_or_clone(route);
                Self::Route(Arc::new(Route { created_unix_ms: older.created_unix_ms, ..route }))
            }
            (this, _) => this,
        }
    }

    /// Whose sidecars it concerns, where it is applied in `network`.
    #[must_use]
    pub fn scope(&self, network: &NetworkName) -> ObjectScope {
        match self {
            Self::Policy(policy) => ObjectScope::Policy(policy.scope()),
            Self::Route(route) => ObjectScope::Route(route.scope(network)),
            Self::TrafficPolicy(policy) => ObjectScope::TrafficPolicy(policy.scope()),
            Self::Failover(failover) => ObjectScope::Failover(failover.scope()),
            Self::Egress(egress) => ObjectScope::Egress(egress.scope()),
        }
    }
}

/// Whose sidecars an object concerns.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ObjectScope {
    /// Those of these services.
    Policy(PolicyScope),
    /// Those that call this service.
    Route(RouteScope),
    /// Those of these services, and those that call them.
    TrafficPolicy(PolicyScope),
    /// Those that call these services in any network.
    Failover(PolicyScope),
    /// Those of these services, for what these call.
    Egress(PolicyScope),
}

impl ObjectScope {
    #[must_use]
    pub fn kind(&self) -> ObjectKind {
        match self {
            Self::Policy(_) => ObjectKind::Policy,
            Self::Route(_) => ObjectKind::Route,
            Self::TrafficPolicy(_) => ObjectKind::TrafficPolicy,
            Self::Failover(_) => ObjectKind::Failover,
            Self::Egress(_) => ObjectKind::Egress,
        }
    }
}

impl fmt::Display for ObjectScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(scope) | Self::TrafficPolicy(scope) | Self::Egress(scope) => scope.fmt(f),
            Self::Failover(scope) => write!(f, "{scope} in any network"),
            Self::Route(scope) => scope.fmt(f),
        }
    }
}

/// A service as an object names it: `app[.namespace[.network]]`, or `service:port[.namespace]` for a port of
/// a Service of a Kubernetes cluster. A namespace that is left out is the object's, a network that is left
/// out the one in which the object is applied.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ServiceRef {
    pub app: Label,
    pub namespace: Option<Label>,
    pub network: Option<Label>,
}

impl ServiceRef {
    /// Reads `app[.namespace[.network]]` or `service:port[.namespace[.network]]`.
    ///
    /// # Errors
    /// [`NameError`].
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        let parts: Vec<&str> = text.split('.').collect();
        if parts.iter().any(|part| part.is_empty()) {
            return Err(NameError::EmptyLabel(text.to_owned()));
        }
        let (app, namespace, network) = match parts[..] {
            [app] => (app, None, None),
            [app, namespace] => (app, Some(namespace), None),
            [app, namespace, network] => (app, Some(namespace), Some(network)),
            _ => {
                let (name, count) = (text.to_owned(), parts.len());
                return Err(NameError::TooManyLabels { name, count });
            }
        };
        let label = |part: Option<&str>| part.map(Label::new).transpose();
        let is_address = app.parse::<SocketAddr>().is_ok();
        let app = if is_address { Label::new(app)? } else { ServiceName::read_called(app)? };
        Ok(Self { app, namespace: label(namespace)?, network: label(network)? })
    }

    /// The full name, for an object of `namespace` that is applied in `network`.
    #[must_use]
    pub fn resolve(&self, namespace: &Label, network: &NetworkName) -> ServiceName {
        ServiceName {
            app: self.app.clone(),
            namespace: self.namespace.as_ref().unwrap_or(namespace).clone(),
            network: self.network.as_ref().unwrap_or(network).clone(),
        }
    }
}

impl std::str::FromStr for ServiceRef {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

impl fmt::Display for ServiceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.app.fmt(f)?;
        for part in [&self.namespace, &self.network].into_iter().flatten() {
            write!(f, ".{part}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_may_name_a_port_of_a_service_and_no_address() {
        let read = |text: &str| ServiceRef::parse(text).map(|read| read.to_string());
        for text in ["stock", "stock.shop.east", "stock:80", "stock:80.shop"] {
            assert_eq!(read(text), Ok(text.to_owned()));
        }
        let [shop, west] = ["shop", "west"].map(|text| Label::new(text).unwrap());
        let port = ServiceRef::parse("stock:80").unwrap().resolve(&shop, &west);
        let stock = Label::new("stock").unwrap();
        assert_eq!(port, ServiceName::of_port(&stock, 80, &shop, &west));
        for text in ["stock:", "stock:0x50", ":80", "10.96.0.1:80", "[::1]:80", "a.b.c.d"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    fn route(name: &str, service: &str, created_unix_ms: u64) -> Object {
        let backend = crate::route::Backend {
            service: ServiceRef::parse(service).unwrap(),
            weight: 1,
            request: crate::route::HeaderEdits::default(),
            response: crate::route::HeaderEdits::default(),
        };
        Object::Route(Arc::new(Route {
            name: ObjectName::new("shop", name).unwrap(),
            service: ServiceRef::parse(service).unwrap(),
            rules: vec![crate::route::RouteRule::forward(vec![backend])],
            created_unix_ms,
        }))
    }

    #[test]
    fn an_object_that_replaces_another_is_as_old() {
        let (old, new) = (route("r", "stock", 3), route("r", "orders", 7));
        assert!(!old.is_same(&new));
        assert!(old.is_same(&route("r", "stock", 7)));
        assert_eq!(new.in_place_of(&old), route("r", "orders", 3));
    }

    #[test]
    fn an_object_is_named_by_its_kind_too() {
        let west = Label::new("west").unwrap();
        let object = route("r", "stock", 0);
        assert_eq!(object.id().to_string(), "route shop/r");
        let scope = object.scope(&west);
        assert_eq!(scope.kind(), object.kind());
        assert_eq!(scope.to_string(), "every caller of stock.shop.west");
        let other = route("r", "stock.orders", 0).scope(&west).to_string();
        assert_eq!(other, "the callers of stock.orders.west in the namespace shop");
        let policy = Object::Policy(Arc::new(Policy {
            name: ObjectName::new("shop", "r").unwrap(),
            target: crate::policy::PolicyTarget::Namespace,
            mode: crate::Mode::Enforce,
            allow: None,
            deny: Vec::new(),
        }));
        assert_eq!(policy.id().to_string(), "policy shop/r");
        assert!(!policy.is_same(&object) && policy.is_same(&policy.clone().in_place_of(&object)));
        let shown = policy.scope(&west);
        assert_eq!(shown.to_string(), "every service of the namespace shop");
        assert_eq!((shown.kind(), policy.kind()), (ObjectKind::Policy, ObjectKind::Policy));
        let traffic = Object::TrafficPolicy(Arc::new(TrafficPolicy {
            name: ObjectName::new("shop", "r").unwrap(),
            target: crate::traffic_policy::TrafficTarget::App(Label::new("stock").unwrap()),
            mode: crate::Mode::Enforce,
            parts: crate::traffic_policy::TrafficParts::default(),
        }));
        assert_eq!(traffic.id().to_string(), "traffic-policy shop/r");
        assert!(traffic.is_same(&traffic) && !traffic.is_same(&policy));
        let shown = traffic.scope(&west);
        assert_eq!(
            (shown.to_string(), shown.kind()),
            ("the service stock.shop".into(), traffic.kind())
        );
        let egress = Object::Egress(Arc::new(Egress {
            name: ObjectName::new("shop", "r").unwrap(),
            mode: crate::Mode::Enforce,
            from: Vec::new(),
            hosts: Vec::new(),
        }));
        assert_eq!(egress.id().to_string(), "egress shop/r");
        assert!(egress.is_same(&egress) && !egress.is_same(&traffic));
        let shown = egress.scope(&west);
        assert_eq!(
            (shown.to_string(), shown.kind()),
            ("every service of the namespace shop".into(), egress.kind())
        );
    }

    #[test]
    fn failover_is_about_services_in_any_network() {
        let failover = Object::Failover(Arc::new(Failover {
            name: ObjectName::new("shop", "r").unwrap(),
            target: crate::failover::FailoverTarget::Namespace,
            rules: crate::failover::FailoverRules {
                networks: Vec::new(),
                threshold: 70,
                spill_over: None,
            },
        }));
        assert_eq!(failover.id().to_string(), "failover shop/r");
        assert!(failover.is_same(&failover) && !failover.is_same(&route("r", "stock", 0)));
        let shown = failover.scope(&Label::new("west").unwrap());
        assert_eq!(shown.kind(), failover.kind());
        assert_eq!(shown.to_string(), "every service of the namespace shop in any network");
    }

    #[test]
    fn parts_that_are_left_out_are_those_of_the_object() {
        let label = |text| Label::new(text).unwrap();
        for (text, full) in [
            ("stock", "stock.shop.west"),
            ("stock.other", "stock.other.west"),
            ("stock.other.east", "stock.other.east"),
        ] {
            let read = ServiceRef::parse(text).unwrap();
            assert_eq!(read.to_string(), text);
            assert_eq!(read.resolve(&label("shop"), &label("west")).to_string(), full);
        }
    }

    #[test]
    fn what_names_no_service_is_refused() {
        for text in ["", "a..b", ".", "a.b.c.d", "a b", "*"] {
            assert!(ServiceRef::parse(text).is_err(), "{text}");
        }
    }
}
