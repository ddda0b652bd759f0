//! The `spec` of an egress.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tollway_model::egress::{self as model, AppPattern, EgressError, HostPattern, PLAIN_PORT};
use tollway_model::{Egress, ObjectName};

use super::Problem;
use super::values::{Mode, Text, bare, filled, texts};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spec {
    #[serde(default, skip_serializing_if = "Mode::is_enforce")]
    mode: Mode,
    #[serde(default, deserialize_with = "filled", skip_serializing_if = "Vec::is_empty")]
    from: Vec<Text<AppPattern>>,
    hosts: Vec<Host>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Host {
    host: Text<HostPattern>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<Tls>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plain_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    authorities: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Tls {
    Begin,
}

/// Why the parts of an egress do not fit together.
#[derive(Debug, Error)]
enum Misfit {
    #[error(
        "`{host}` has `{field}` without `tls: begin`; it is about the TLS that the sidecar begins"
    )]
    WithoutTls { host: HostPattern, field: &'static str },
    #[error(transparent)]
    Egress(#[from] EgressError),
}

impl Spec {
    pub(super) fn into_egress(self, name: ObjectName) -> Result<Egress, Problem> {
        let read = || {
            let egress = Egress {
                name,
                mode: self.mode.into(),
                from: bare(self.from),
                hosts: self.hosts.into_iter().map(Host::read).collect::<Result<_, _>>()?,
            };
            egress.check()?;
            Ok(egress)
        };
        read().map_err(|misfit: Misfit| Problem::of(&misfit))
    }
}

impl Host {
    fn read(self) -> Result<model::EgressHost, Misfit> {
        let Text(host) = self.host;
        let tls = match self.tls {
            Some(Tls::Begin) => Some(model::BeginTls {
                plain_port: self.plain_port.unwrap_or(PLAIN_PORT),
                authorities: self.authorities.map(Into::into),
            }),
            None => {
                let stated = [
                    ("plainPort", self.plain_port.is_some()),
                    ("authorities", self.authorities.is_some()),
                ];
                if let Some((field, _)) = stated.into_iter().find(|(_, is_stated)| *is_stated) {
                    return Err(Misfit::WithoutTls { host, field });
                }
                None
            }
        };
        Ok(model::EgressHost { host, port: self.port, tls })
    }
}

impl From<&Egress> for Spec {
    fn from(egress: &Egress) -> Self {
        Self {
            mode: egress.mode.into(),
            from: texts(&egress.from),
            hosts: egress.hosts.iter().map(Host::from).collect(),
        }
    }
}

impl From<&model::EgressHost> for Host {
    fn from(of: &model::EgressHost) -> Self {
        let tls = of.tls.as_ref();
        let plain_port = tls.map(|tls| tls.plain_port).filter(|port| *port != PLAIN_PORT);
        Self {
            host: Text(of.host.clone()),
            port: of.port,
            tls: tls.map(|_| Tls::Begin),
            plain_port,
            authorities: tls.and_then(|tls| tls.authorities.as_deref()).map(str::to_owned),
        }
    }
}
