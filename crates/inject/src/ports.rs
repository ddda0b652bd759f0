//! The ports at which a sidecar listens, and whether another container of the pod listens there.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::annotation::Listener;
use crate::decision::Style;
use crate::error::Problem;
use crate::manifest::PodAt;

impl Listener {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Http => "its HTTP API",
            Self::Grpc => "its gRPC API",
            Self::Outbound => "calls of the app",
            Self::Inbound => "other sidecars",
            Self::Admin => "metrics and health",
            Self::Public => "Dapr's public health",
            Self::Captured => "captured connections",
            Self::Names => "questions for names",
        }
    }

    /// The annotation that moves it.
    fn annotation(self) -> &'static str {
        match self {
            Self::Http => "tollway.dev/http-port",
            Self::Grpc => "tollway.dev/grpc-port",
            Self::Outbound => "tollway.dev/outbound-port",
            Self::Inbound => "tollway.dev/inbound-port",
            Self::Admin | Self::Public => "tollway.dev/admin-port",
            Self::Captured => "tollway.dev/capture-port",
            Self::Names => "tollway.dev/capture-names-port",
        }
    }

    fn usual_port(self, style: Style) -> u16 {
        match self {
            Self::Http => 3500,
            Self::Grpc => 50001,
            Self::Outbound => 15001,
            Self::Inbound => 50002,
            Self::Admin => match style {
                // Apps serve metrics of their own at 9090.
                Style::Own => 15020,
                Style::Daprd => 9090,
            },
            Self::Public => 3501,
            Self::Captured => 15006,
            Self::Names => 15053,
        }
    }
}

/// Each listener of a sidecar with its port.
#[derive(Debug)]
pub(crate) struct Ports(BTreeMap<Listener, u16>);

impl Ports {
    pub(crate) fn new(style: Style) -> Self {
        use Listener::{Admin, Captured, Grpc, Http, Inbound, Names, Outbound, Public};
        let listeners: &[Listener] = match style {
            Style::Own => &[Http, Grpc, Outbound, Inbound, Admin, Captured, Names],
            Style::Daprd => &[Http, Grpc, Inbound, Admin, Public],
        };
        let usual = |listener: &Listener| (*listener, listener.usual_port(style));
        Self(listeners.iter().map(usual).collect())
    }

    /// The port of a listener; 0 for one that the style does not have.
    pub(crate) fn of(&self, listener: Listener) -> u16 {
        self.0.get(&listener).copied().unwrap_or(0)
    }

    /// Leaves out listeners that a sidecar does not have.
    pub(crate) fn without(&mut self, listeners: &[Listener]) {
        self.0.retain(|listener, _| !listeners.contains(listener));
    }

    pub(crate) fn set(&mut self, listener: Listener, port: u16) {
        self.0.insert(listener, port);
    }

    /// Refuses ports that others in the pod have: the app, another listener, or what a container
    /// declares.
    pub(crate) fn check(
        &self,
        object: &Value,
        at: &PodAt,
        app_port: Option<u16>,
    ) -> Result<(), Problem> {
        let parts = ["/spec/containers", "/spec/initContainers"];
        let used = declared(object, at, &parts).into_iter();
        let mut used: BTreeMap<u16, String> = used.map(|(port, of)| (port, of.user)).collect();
        if let Some(port) = app_port {
            used.entry(port).or_insert_with(|| "the app".to_owned());
        }
        for (listener, port) in &self.0 {
            let user = format!("the sidecar itself, for {}", listener.word());
            if let Some(user) = used.insert(*port, user) {
                return Err(Problem::PortTaken {
                    port: *port,
                    user,
                    listener: listener.word(),
                    annotation: listener.annotation(),
                });
            }
        }
        Ok(())
    }
}

/// A port that a container declares.
pub(crate) struct Declared {
    /// The container, in words.
    pub(crate) user: String,
    /// Of the port; empty without one.
    pub(crate) name: String,
}

/// The ports for TCP that containers of these parts declare.
pub(crate) fn declared(object: &Value, at: &PodAt, parts: &[&str]) -> BTreeMap<u16, Declared> {
    let mut used = BTreeMap::new();
    for part in parts {
        let containers = at.get(object, part).and_then(Value::as_array);
        for container in containers.into_iter().flatten() {
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
            let ports = container.get("ports").and_then(Value::as_array);
            for port in ports.into_iter().flatten() {
                let protocol = port.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
                let number = port.get("containerPort").and_then(Value::as_u64);
                if let Some(number) = number.and_then(|number| u16::try_from(number).ok())
                    && protocol == "TCP"
                {
                    let called = port.get("name").and_then(Value::as_str).unwrap_or_default();
                    let user = format!("the container `{name}`");
                    used.insert(number, Declared { user, name: called.to_owned() });
                }
            }
        }
    }
    used
}
