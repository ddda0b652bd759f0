//! Egress.

use std::sync::Arc;

use prost::Message as _;
use tollway_model::egress::{BeginTls, EgressHost};
use tollway_model::{Egress, EgressDefault, Mode, ObjectId, ObjectKind};

use crate::object::{check_size, read_name};
use crate::{ConvertError, v1};

impl From<&Egress> for v1::Egress {
    fn from(egress: &Egress) -> Self {
        Self {
            namespace: egress.name.namespace.to_string(),
            name: egress.name.name.to_string(),
            shadow: egress.mode == Mode::Shadow,
            from: egress.from.iter().map(ToString::to_string).collect(),
            hosts: egress.hosts.iter().map(Into::into).collect(),
        }
    }
}

impl From<&EgressHost> for v1::EgressHost {
    fn from(host: &EgressHost) -> Self {
        let tls = host.tls.as_ref().map(|tls| v1::BeginTls {
            plain_port: tls.plain_port.into(),
            authorities: tls.authorities.as_deref().unwrap_or_default().to_owned(),
        });
        Self { host: host.host.to_string(), port: host.port.map_or(0, u32::from), tls }
    }
}

impl From<EgressDefault> for v1::EgressDefault {
    fn from(by_default: EgressDefault) -> Self {
        match by_default {
            EgressDefault::Open => Self::Open,
            EgressDefault::Closed => Self::Closed,
            EgressDefault::Shadow => Self::Shadow,
        }
    }
}

/// Reads an egress and checks it as a whole.
///
/// # Errors
/// [`ConvertError`] for the first thing that is wrong.
pub fn egress(egress: &v1::Egress) -> Result<Egress, ConvertError> {
    let name = read_name(&egress.namespace, &egress.name)?;
    let id = ObjectId { kind: ObjectKind::Egress, name: name.clone() };
    check_size(&id, egress.encoded_len())?;
    let in_object = |source: ConvertError| ConvertError::InObject {
        object: id.clone(),
        source: Box::new(source),
    };
    let app =
        |text: &String| text.parse().map_err(|source| ConvertError::Name { field: "from", source });
    let read = Egress {
        mode: if egress.shadow { Mode::Shadow } else { Mode::Enforce },
        from: egress.from.iter().map(app).collect::<Result<_, _>>().map_err(in_object)?,
        hosts: egress.hosts.iter().map(host).collect::<Result<_, _>>().map_err(in_object)?,
        name,
    };
    read.check().map_err(|source| ConvertError::Egress { object: id.clone(), source })?;
    Ok(read)
}

fn host(host: &v1::EgressHost) -> Result<EgressHost, ConvertError> {
    let port = |number: u32| {
        u16::try_from(number).map_err(|_| ConvertError::Port { field: "hosts.port", port: number })
    };
    let own_port = port(host.port)?;
    let tls = match &host.tls {
        Some(tls) => Some(BeginTls {
            plain_port: port(tls.plain_port)?,
            authorities: (!tls.authorities.is_empty()).then(|| tls.authorities.as_str().into()),
        }),
        None => None,
    };
    let pattern = host.host.parse().map_err(|source| ConvertError::Host { source })?;
    Ok(EgressHost { host: pattern, port: (own_port != 0).then_some(own_port), tls })
}

/// What holds for one app: the default, and what is allowed.
type EgressOfApp = (EgressDefault, Vec<Arc<Egress>>);

/// Reads what holds for one app; `None` where a response has nothing of it.
///
/// # Errors
/// [`ConvertError`] for the first egress that cannot be read, or a default of a later version.
pub fn egress_rules(response: &v1::WatchResponse) -> Result<Option<EgressOfApp>, ConvertError> {
    let Some(stated) = &response.egress else { return Ok(None) };
    let (field, value) = ("egress.by_default", stated.by_default);
    let by_default = match v1::EgressDefault::try_from(value) {
        Ok(v1::EgressDefault::Open) => EgressDefault::Open,
        Ok(v1::EgressDefault::Closed) => EgressDefault::Closed,
        Ok(v1::EgressDefault::Shadow) => EgressDefault::Shadow,
        Ok(v1::EgressDefault::Unspecified) => return Err(ConvertError::Missing { field }),
        Err(_) => return Err(ConvertError::Unknown { field, value }),
    };
    let read = stated.egresses.iter().map(|stated| egress(stated).map(Arc::new));
    Ok(Some((by_default, read.collect::<Result<_, _>>()?)))
}

#[cfg(test)]
mod tests {
    use tollway_model::ObjectName;

    use super::*;

    fn sample() -> Egress {
        let host = |text: &str, port, tls| EgressHost { host: text.parse().unwrap(), port, tls };
        let authorities = Some("-----BEGIN CERTIFICATE-----".into());
        Egress {
            name: ObjectName::new("shop", "payments").unwrap(),
            mode: Mode::Shadow,
            from: vec!["web".parse().unwrap(), "*.shop".parse().unwrap()],
            hosts: vec![
                host("*", None, None),
                host("*.example.org", Some(443), None),
                host("10.1.0.0/16", Some(5432), None),
                host("api.example", None, Some(BeginTls { plain_port: 80, authorities: None })),
                host("b.example", Some(8443), Some(BeginTls { plain_port: 8443, authorities })),
            ],
        }
    }

    #[test]
    fn an_egress_survives_the_wire() {
        for mode in [Mode::Enforce, Mode::Shadow] {
            let sent = Egress { mode, from: vec!["web".parse().unwrap()], ..sample() };
            let bytes = v1::Egress::from(&sent).encode_to_vec();
            assert_eq!(egress(&v1::Egress::decode(&bytes[..]).unwrap()), Ok(sent));
        }
        let read = egress(&v1::Egress::from(&Egress { from: Vec::new(), ..sample() })).unwrap();
        assert_eq!(read.hosts, sample().hosts);
    }

    #[test]
    fn the_rules_of_an_app_survive_the_wire() {
        let none = v1::WatchResponse::default();
        assert_eq!(egress_rules(&none), Ok(None));
        let of = |by_default| {
            let egresses = vec![v1::Egress::from(&Egress { from: Vec::new(), ..sample() })];
            let egress = Some(v1::EgressRules { by_default, egresses });
            egress_rules(&v1::WatchResponse { egress, ..v1::WatchResponse::default() })
        };
        for by_default in [EgressDefault::Open, EgressDefault::Closed, EgressDefault::Shadow] {
            let (read, egresses) = of(v1::EgressDefault::from(by_default).into()).unwrap().unwrap();
            assert_eq!((read, egresses.len()), (by_default, 1));
        }
        assert_eq!(of(0), Err(ConvertError::Missing { field: "egress.by_default" }));
        assert!(matches!(of(9), Err(ConvertError::Unknown { value: 9, .. })));
    }

    #[test]
    fn what_is_not_valid_is_refused_with_its_name() {
        let check = |break_it: &dyn Fn(&mut v1::Egress), expected: &str| {
            let mut sent = v1::Egress::from(&Egress { from: Vec::new(), ..sample() });
            break_it(&mut sent);
            let refused = tollway_model::chain(&egress(&sent).unwrap_err());
            assert!(refused.contains(expected), "{refused}");
        };
        check(&|e| e.name = "a b".into(), "`shop/a b` is not the name of an object");
        check(&|e| e.hosts.clear(), "the egress shop/payments is not valid: it allows no hosts");
        check(&|e| e.from = vec!["web.other".into()], "its own namespace `shop`");
        check(&|e| e.from = vec!["a.b.c".into()], "the egress shop/payments cannot be read");
        check(&|e| e.hosts[0].host = "a b".into(), "`a b` is not a host");
        check(&|e| e.hosts[1].port = 65_536, "holds the port 65536");
        check(&|e| e.hosts[0].host = "x".repeat(70_000), "at most 65536 are accepted: split it");
    }
}
