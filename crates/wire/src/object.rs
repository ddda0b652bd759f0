//! Objects of every kind, as commands send them and the control plane stores them.

use tollway_model::{Object, ObjectId, ObjectKind, ObjectName};

use crate::{
    ConvertError, OBJECT_LIMIT_BYTES, egress, failover, policy, route, traffic_policy, v1,
};

impl From<ObjectKind> for v1::ObjectKind {
    fn from(kind: ObjectKind) -> Self {
        match kind {
            ObjectKind::Policy => Self::Policy,
            ObjectKind::Route => Self::Route,
            ObjectKind::TrafficPolicy => Self::TrafficPolicy,
            ObjectKind::Failover => Self::Failover,
            ObjectKind::Egress => Self::Egress,
        }
    }
}

impl From<&ObjectId> for v1::ObjectId {
    fn from(id: &ObjectId) -> Self {
        Self {
            kind: v1::ObjectKind::from(id.kind).into(),
            namespace: id.name.namespace.to_string(),
            name: id.name.name.to_string(),
        }
    }
}

impl From<&Object> for v1::Object {
    fn from(object: &Object) -> Self {
        let object = match object {
            Object::Policy(policy) => v1::object::Object::Policy((&**policy).into()),
            Object::Route(route) => v1::object::Object::Route((&**route).into()),
            Object::TrafficPolicy(policy) => v1::object::Object::TrafficPolicy((&**policy).into()),
            Object::Failover(failover) => v1::object::Object::Failover((&**failover).into()),
            Object::Egress(egress) => v1::object::Object::Egress((&**egress).into()),
        };
        Self { object: Some(object), ..Self::default() }
    }
}

/// Reads an object and checks it as a whole.
///
/// # Errors
/// [`ConvertError`] for the first thing that is wrong.
pub fn object(object: &v1::Object) -> Result<Object, ConvertError> {
    match object.object.as_ref() {
        Some(v1::object::Object::Policy(of)) => policy(of).map(|read| Object::Policy(read.into())),
        Some(v1::object::Object::Route(of)) => route(of).map(|read| Object::Route(read.into())),
        Some(v1::object::Object::TrafficPolicy(of)) => {
            traffic_policy(of).map(|read| Object::TrafficPolicy(read.into()))
        }
        Some(v1::object::Object::Failover(of)) => {
            failover(of).map(|read| Object::Failover(read.into()))
        }
        Some(v1::object::Object::Egress(of)) => egress(of).map(|read| Object::Egress(read.into())),
        None => Err(ConvertError::Missing { field: "object" }),
    }
}

/// Reads the kind of objects.
///
/// # Errors
/// [`ConvertError`] when it is unset or of a later version.
pub fn object_kind(value: i32) -> Result<ObjectKind, ConvertError> {
    let field = "kind";
    match v1::ObjectKind::try_from(value) {
        Ok(v1::ObjectKind::Policy) => Ok(ObjectKind::Policy),
        Ok(v1::ObjectKind::Route) => Ok(ObjectKind::Route),
        Ok(v1::ObjectKind::TrafficPolicy) => Ok(ObjectKind::TrafficPolicy),
        Ok(v1::ObjectKind::Failover) => Ok(ObjectKind::Failover),
        Ok(v1::ObjectKind::Egress) => Ok(ObjectKind::Egress),
        Ok(v1::ObjectKind::Unspecified) => Err(ConvertError::Missing { field }),
        Err(_) => Err(ConvertError::Unknown { field, value }),
    }
}

/// Reads the kind and the name of an object.
///
/// # Errors
/// [`ConvertError::ObjectName`], or as [`object_kind`].
pub fn object_id(id: &v1::ObjectId) -> Result<ObjectId, ConvertError> {
    Ok(ObjectId { kind: object_kind(id.kind)?, name: read_name(&id.namespace, &id.name)? })
}

/// States when an object was created, in milliseconds since 1970, if its kind has that.
pub fn set_created(object: &mut v1::Object, unix_ms: u64) {
    match &mut object.object {
        Some(v1::object::Object::Route(route)) => route.created_unix_ms = unix_ms,
        Some(
            v1::object::Object::Policy(_)
            | v1::object::Object::TrafficPolicy(_)
            | v1::object::Object::Failover(_)
            | v1::object::Object::Egress(_),
        )
        | None => {}
    }
}

pub(crate) fn read_name(namespace: &str, name: &str) -> Result<ObjectName, ConvertError> {
    ObjectName::new(namespace, name).map_err(|source| {
        let name = format!("{namespace}/{name}");
        ConvertError::ObjectName { name, source }
    })
}

/// Refuses an object that is too large.
pub(crate) fn check_size(id: &ObjectId, bytes: usize) -> Result<(), ConvertError> {
    if bytes > OBJECT_LIMIT_BYTES {
        let limit = OBJECT_LIMIT_BYTES;
        return Err(ConvertError::ObjectTooLarge { object: id.clone(), bytes, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_kind_survive_the_wire() {
        for kind in ObjectKind::ALL {
            let id = ObjectId { kind, name: ObjectName::new("shop", "readers").unwrap() };
            assert_eq!(object_id(&v1::ObjectId::from(&id)), Ok(id));
        }
        let unset = v1::ObjectId { namespace: "a".into(), name: "b".into(), kind: 0 };
        assert_eq!(object_id(&unset), Err(ConvertError::Missing { field: "kind" }));
        let later = v1::ObjectId { kind: 99, ..unset };
        let refused = ConvertError::Unknown { field: "kind", value: 99 };
        assert_eq!(object_id(&later), Err(refused));
    }

    #[test]
    fn an_object_is_of_the_kind_that_it_holds() {
        let policy = v1::Policy {
            namespace: "shop".into(),
            name: "p".into(),
            target: Some(v1::policy::Target::App("stock".into())),
            has_allow: true,
            ..v1::Policy::default()
        };
        let backend = v1::Backend { service: "stock".into(), weight: 1, ..v1::Backend::default() };
        let forward = v1::Forward { backends: vec![backend] };
        let rule = v1::RouteRule {
            action: Some(v1::route_rule::Action::Forward(forward)),
            ..v1::RouteRule::default()
        };
        let route = v1::Route {
            namespace: "shop".into(),
            name: "r".into(),
            service: "stock".into(),
            rules: vec![rule],
            created_unix_ms: 0,
        };
        let traffic = v1::TrafficPolicy {
            namespace: "shop".into(),
            name: "t".into(),
            target: Some(v1::traffic_policy::Target::AllApps(true)),
            parts: Some(v1::TrafficParts { panic_percent: Some(1), ..Default::default() }),
            shadow: false,
        };
        let host = v1::EgressHost { host: "a.example".into(), ..v1::EgressHost::default() };
        let egress = v1::Egress {
            namespace: "shop".into(),
            name: "e".into(),
            hosts: vec![host],
            ..v1::Egress::default()
        };
        let failover = v1::Failover {
            namespace: "shop".into(),
            name: "f".into(),
            target: Some(v1::failover::Target::AllApps(true)),
            rules: Some(v1::FailoverRules {
                networks: vec![v1::FailoverNetwork {
                    network: "west".into(),
                    priority: 1,
                    weight: 2,
                }],
                threshold: 70,
                spill_over: Some(3),
            }),
        };
        for (of, id) in [
            (v1::object::Object::Policy(policy), "policy shop/p"),
            (v1::object::Object::Route(route), "route shop/r"),
            (v1::object::Object::TrafficPolicy(traffic), "traffic-policy shop/t"),
            (v1::object::Object::Failover(failover), "failover shop/f"),
            (v1::object::Object::Egress(egress), "egress shop/e"),
        ] {
            let mut sent = v1::Object { object: Some(of), ..v1::Object::default() };
            let read = object(&sent).unwrap();
            assert_eq!(read.id().to_string(), id);
            assert_eq!(v1::Object::from(&read), sent);
            set_created(&mut sent, 7);
            assert_eq!(sent == v1::Object::from(&read), read.kind() != ObjectKind::Route);
        }
        let empty = object(&v1::Object::default());
        assert_eq!(empty, Err(ConvertError::Missing { field: "object" }));
    }
}
