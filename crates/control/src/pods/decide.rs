//! Which identity a pod may have. Pure.

use thiserror::Error;
use tollway_model::{ErrorCode, Group, KubeName};

use super::{PartAccounts, ProvenPod};
use crate::connections::is_system;
use crate::issue::{Claim, agents_group};
use crate::tokens::is_gateway;

/// Longest token that is reviewed, in bytes; they have one or two thousand.
const TOKEN_BYTES_LIMIT: usize = 16 << 10;

/// Why a pod has no identity.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum PodRefusal {
    #[error(
        "this control plane takes no tokens of pods; start it with --kubernetes, or use a join token"
    )]
    NoCluster,
    #[error(
        "this is no token of a pod: mount a projected token of the service account, as `tollway kube inject` does"
    )]
    Shape,
    #[error(
        "the cluster refuses the token of the pod: {reason}; it is a projected token of the service account for the audience `tollway`"
    )]
    Token { reason: String },
    #[error("the API server of the cluster cannot be asked for the pod: {reason}")]
    NoAnswer { reason: String },
    #[error(
        "pod {pod} of namespace {namespace} has no identity of namespace {asked}; a sidecar has the namespace of its pod"
    )]
    Namespace { pod: String, namespace: String, asked: String },
    #[error(
        "pod {pod} of namespace {namespace} is not the app {asked}, it is {}; the annotation `tollway.dev/app` of the pod names its app",
        own.as_deref().unwrap_or("no app")
    )]
    App { pod: String, namespace: String, asked: String, own: Option<String> },
    #[error(
        "pod {pod} of namespace {namespace} is not the instance {asked}; an instance has its pod's name or UID"
    )]
    Instance { pod: String, namespace: String, asked: String },
    #[error(
        "pod {pod} runs as the service account {account}, which is not that of gateways (--kubernetes-gateways)"
    )]
    NotAGateway { pod: String, account: String },
    #[error(
        "pod {pod} runs as the service account {account}, which is not that of agents of the group {group} (--kubernetes-fabric)"
    )]
    NotAnAgent { pod: String, account: String, group: Group },
    #[error("no pod has the identity of {asked}, which is a part of the mesh")]
    System { asked: String },
}

impl PodRefusal {
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::NoAnswer { .. } => ErrorCode::ControlUnreachable,
            Self::Shape => ErrorCode::TokenMalformed,
            Self::NoCluster
            | Self::Token { .. }
            | Self::Namespace { .. }
            | Self::App { .. }
            | Self::Instance { .. }
            | Self::NotAGateway { .. }
            | Self::NotAnAgent { .. }
            | Self::System { .. } => ErrorCode::TokenRefused,
        }
    }

    /// Whether the same request may succeed later.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::NoAnswer { .. })
    }
}

/// Whether a text may be the token of a service account: three parts of URL-safe base64. Others are not
/// worth a question.
pub(super) fn decide_shape(token: &str) -> Result<(), PodRefusal> {
    let is_of_base64 = |part: &str| {
        let mut bytes = part.bytes();
        !part.is_empty() && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let parts = token.split('.').count();
    if token.len() > TOKEN_BYTES_LIMIT || parts != 3 || !token.split('.').all(is_of_base64) {
        return Err(PodRefusal::Shape);
    }
    Ok(())
}

/// Whether `pod` may have the identity of `claim`. Pods of the service accounts of `parts` are gateways and
/// agents, and no other part of the mesh is a pod.
pub(super) fn decide_pod(
    pod: &ProvenPod,
    claim: &Claim,
    parts: &PartAccounts,
) -> Result<(), PodRefusal> {
    let (service, asked) = (&claim.service, claim.service.to_string());
    let (name, namespace) = (pod.name.clone(), pod.namespace.clone());
    let own = KubeName { namespace: namespace.clone(), name: pod.service_account.clone() };
    if is_gateway(service) {
        if parts.gateways.as_ref() != Some(&own) {
            return Err(PodRefusal::NotAGateway { pod: name, account: own.to_string() });
        }
    } else if let Some(group) = agents_group(service) {
        if !parts.agents.iter().any(|agents| agents.account == own && agents.group == group) {
            return Err(PodRefusal::NotAnAgent { pod: name, account: own.to_string(), group });
        }
    } else if is_system(service) {
        return Err(PodRefusal::System { asked });
    } else if !service.namespace.as_str().eq_ignore_ascii_case(&namespace) {
        let asked = service.namespace.to_string();
        return Err(PodRefusal::Namespace { pod: name, namespace, asked });
    } else if !pod.app.as_ref().is_some_and(|app| service.app.as_str().eq_ignore_ascii_case(app)) {
        let (asked, own) = (service.app.to_string(), pod.app.clone());
        return Err(PodRefusal::App { pod: name, namespace, asked, own });
    }
    let instance = claim.instance.as_str();
    if instance != pod.name && instance != pod.uid {
        let asked = instance.to_owned();
        return Err(PodRefusal::Instance { pod: name, namespace, asked });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tollway_identity::{GATEWAY_APP, SYSTEM_NAMESPACE};
    use tollway_model::{Label, ServiceName};

    use super::*;

    const UID: &str = "5b0e3a0c-8f4e-4a51-9f0e-0d9f0c1a2b3c";

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    fn claim(namespace: &str, app: &str, instance: &str) -> Claim {
        let service =
            ServiceName { app: label(app), namespace: label(namespace), network: label("west") };
        Claim { service, instance: label(instance) }
    }

    fn pod(app: Option<&str>) -> ProvenPod {
        ProvenPod {
            namespace: "shop".to_owned(),
            name: "stock-7d9f-x2x".to_owned(),
            uid: UID.to_owned(),
            service_account: "edge".to_owned(),
            node: "a1".to_owned(),
            app: app.map(str::to_owned),
        }
    }

    fn none() -> PartAccounts {
        PartAccounts::default()
    }

    #[test]
    fn a_pod_has_the_identity_of_its_own_app_in_its_own_namespace_and_no_other() {
        let stock = pod(Some("stock"));
        for instance in ["stock-7d9f-x2x", UID] {
            assert_eq!(decide_pod(&stock, &claim("shop", "stock", instance), &none()), Ok(()));
        }
        assert_eq!(decide_pod(&stock, &claim("Shop", "STOCK", UID), &none()), Ok(()));
        let refused = |pod: &ProvenPod, claim: Claim| decide_pod(pod, &claim, &none()).unwrap_err();
        let other = refused(&stock, claim("bank", "stock", UID));
        assert!(matches!(other, PodRefusal::Namespace { .. }), "{other}");
        let other = refused(&stock, claim("shop", "orders", UID));
        assert!(other.to_string().contains("is not the app orders, it is stock"), "{other}");
        let no_app = refused(&pod(None), claim("shop", "stock", UID));
        assert!(no_app.to_string().contains("it is no app"), "{no_app}");
        for instance in ["stock-7d9f-x2", "stock-7d9f-x2xx", "i-1"] {
            let other = refused(&stock, claim("shop", "stock", instance));
            assert!(matches!(other, PodRefusal::Instance { .. }), "{other}");
        }
    }

    #[test]
    fn only_pods_of_the_named_service_account_are_gateways() {
        let gateway = claim(SYSTEM_NAMESPACE, GATEWAY_APP, UID);
        let of = |account: &str| PartAccounts {
            gateways: Some(account.parse().unwrap()),
            agents: vec!["shop/edge=racks".parse().unwrap()],
        };
        let edge = of("shop/edge");
        assert_eq!(decide_pod(&pod(None), &gateway, &edge), Ok(()));
        for other in [none(), of("shop/other"), of("bank/edge")] {
            let refused = decide_pod(&pod(Some("gateway")), &gateway, &other);
            assert!(matches!(refused, Err(PodRefusal::NotAGateway { .. })), "{refused:?}");
        }
        let mut of_the_mesh = pod(Some("control"));
        of_the_mesh.namespace = SYSTEM_NAMESPACE.to_owned();
        let control = claim(SYSTEM_NAMESPACE, "control", UID);
        let refused = decide_pod(&of_the_mesh, &control, &edge);
        assert!(matches!(refused, Err(PodRefusal::System { .. })), "{refused:?}");
        let another = claim(SYSTEM_NAMESPACE, GATEWAY_APP, "i-1");
        let refused = decide_pod(&pod(None), &another, &edge);
        assert!(matches!(refused, Err(PodRefusal::Instance { .. })), "{refused:?}");
    }

    #[test]
    fn only_pods_of_a_service_account_of_the_group_are_its_agents() {
        let agent = |group: &str, instance: &str| {
            claim(SYSTEM_NAMESPACE, &format!("fabric-{group}"), instance)
        };
        let of = |accounts: &[&str]| PartAccounts {
            gateways: Some("shop/edge".parse().unwrap()),
            agents: accounts.iter().map(|account| account.parse().unwrap()).collect(),
        };
        let both = of(&["bank/edge=racks", "shop/edge=racks", "shop/edge=rooms"]);
        for group in ["racks", "rooms", "RACKS"] {
            assert_eq!(decide_pod(&pod(None), &agent(group, UID), &both), Ok(()));
        }
        let others = [
            none(),
            of(&[]),
            of(&["shop/edge=rooms"]),
            of(&["shop/other=racks"]),
            of(&["bank/edge=racks"]),
        ];
        for other in others {
            let refused = decide_pod(&pod(Some("fabric-racks")), &agent("racks", UID), &other);
            let Err(refused @ PodRefusal::NotAnAgent { .. }) = refused else {
                panic!("{refused:?}")
            };
            assert!(refused.to_string().contains("of agents of the group racks"), "{refused}");
        }
        let refused = decide_pod(&pod(None), &agent("racks", "i-1"), &both);
        assert!(matches!(refused, Err(PodRefusal::Instance { .. })), "{refused:?}");
    }

    #[test]
    fn what_is_no_token_is_not_reviewed() {
        assert_eq!(decide_shape("eyJ.eyJ_-.c2ln"), Ok(()));
        let longest = format!("a.{}.b", "c".repeat(TOKEN_BYTES_LIMIT - 4));
        assert_eq!(decide_shape(&longest), Ok(()));
        let long = format!("a.{}.b", "c".repeat(TOKEN_BYTES_LIMIT - 3));
        for text in ["", "a", "a.b", "a.b.c.d", "a..c", "a.b.c d", "a.b.\n", "tollway1.é.c", &long]
        {
            assert_eq!(decide_shape(text), Err(PodRefusal::Shape), "{text}");
        }
    }
}
