//! What is right and wrong about an install. Pure.

/// Oldest Kubernetes in which sidecars work: native ones are switched on from there.
const OLDEST: (u32, u32) = (1, 29);

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub grade: Grade,
    pub text: String,
    /// What to do; empty where nothing is to be done.
    pub remedy: String,
}

/// How a thing is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grade {
    Good,
    /// It may be meant.
    Note,
    Bad,
}

/// What was read of an install.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) kubernetes: (u32, u32),
    pub(super) control: Option<Part>,
    /// Members of an etcd of the install.
    pub(super) etcd: Option<Part>,
    pub(super) gateway: Option<Part>,
    pub(super) injector: Option<Part>,
    /// Agents of groups of neighbours.
    pub(super) agents: Sight<Vec<Agents>>,
    /// What the ConfigMap has; an install without rights in the cluster has no such ConfigMap.
    pub(super) root_pin: Sight<Option<String>>,
    pub(super) webhook: Sight<Webhook>,
    /// Absent where the cluster has no definitions of them.
    pub(super) resources: Sight<CustomResources>,
}

/// What was found of something that not every user may read.
#[derive(Clone, Debug)]
pub(super) enum Sight<T> {
    /// The user may not.
    Hidden,
    Absent,
    There(T),
}

impl<T> Sight<T> {
    pub(super) fn map<U>(self, to: impl FnOnce(T) -> U) -> Sight<U> {
        match self {
            Self::Hidden => Sight::Hidden,
            Self::Absent => Sight::Absent,
            Self::There(seen) => Sight::There(to(seen)),
        }
    }
}

/// The custom resources of a cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct CustomResources {
    pub(super) accepted: usize,
    /// Kind, namespace and name of those that are not.
    pub(super) refused: Vec<String>,
    /// Of which the control plane has not written anything.
    pub(super) unseen: usize,
}

/// Resources that are named.
const NAMED_LIMIT: usize = 10;

/// A workload of an install.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) wanted: i32,
    pub(super) ready: i32,
    pub(super) image: Option<String>,
}

/// The agents of a group of neighbours.
#[derive(Clone, Debug)]
pub(super) struct Agents {
    pub(super) namespace: String,
    /// Of the DaemonSet.
    pub(super) name: String,
    pub(super) part: Part,
}

#[derive(Clone, Debug)]
pub(super) struct Webhook {
    /// The API server has an authority for it.
    pub(super) is_trusted: bool,
    /// Pods start without a sidecar while no injector answers.
    pub(super) fails_open: bool,
}

pub(super) fn judge(seen: &Seen, namespace: &str, version: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (major, minor) = seen.kubernetes;
    findings.push(match seen.kubernetes >= OLDEST {
        true => good(format!("Kubernetes {major}.{minor}")),
        false => bad(
            format!("Kubernetes {major}.{minor} has no native sidecars"),
            "use 1.29 or later".to_owned(),
        ),
    });
    let Some(control) = &seen.control else {
        let text = format!("there is no control plane in namespace {namespace}");
        let remedy = "install it by `tollway kube install` or the chart, or name its namespace by --namespace";
        findings.push(bad(text, remedy.to_owned()));
        return findings;
    };
    findings.extend(workload(
        "control plane",
        "statefulset/tollway-control",
        control,
        namespace,
        version,
    ));
    if let Some(etcd) = &seen.etcd {
        // Its image is etcd's, of another version.
        findings.push(readiness("etcd", "statefulset/tollway-etcd", etcd, namespace));
    }
    findings.push(match &seen.root_pin {
        Sight::There(Some(pin)) => good(format!("the root of the network is {pin}")),
        Sight::There(None) => bad(
            "the control plane has not written the root of the network".to_owned(),
            format!("read `kubectl logs --namespace {namespace} statefulset/tollway-control`"),
        ),
        Sight::Absent => note(
            "the install has no rights in the cluster: pods join by tokens of `tollway token create`",
        ),
        Sight::Hidden => note("you may not get configmaps, so the root of the network is not shown"),
    });
    match &seen.gateway {
        Some(gateway) => {
            findings.extend(workload(
                "gateway",
                "deployment/tollway-gateway",
                gateway,
                namespace,
                version,
            ));
        }
        None => findings.push(note("there is no gateway: this network is joined with no other")),
    }
    findings.extend(agents(&seen.agents, version));
    findings.extend(resources(&seen.resources));
    match (&seen.injector, &seen.webhook) {
        (Some(injector), Sight::There(_) | Sight::Hidden) => {
            findings.extend(workload(
                "injector",
                "deployment/tollway-injector",
                injector,
                namespace,
                version,
            ));
            findings.extend(webhook(&seen.webhook, namespace));
        }
        (None, Sight::Absent | Sight::Hidden) => {
            findings.push(note(
                "there is no injector: `tollway kube inject` adds sidecars to manifests",
            ));
        }
        (Some(_), Sight::Absent) | (None, Sight::There(_)) => findings.push(bad(
            "of the injector and its MutatingWebhookConfiguration one is missing".to_owned(),
            "apply the install once more".to_owned(),
        )),
    }
    findings
}

fn agents(agents: &Sight<Vec<Agents>>, version: &str) -> Vec<Finding> {
    let found = match agents {
        Sight::There(found) => found.as_slice(),
        Sight::Absent => &[],
        Sight::Hidden => {
            return vec![note(
                "you may not list daemonsets of all namespaces, so agents of the fabric are not checked",
            )];
        }
    };
    let each = found.iter().map(|Agents { namespace, name, part }| {
        let object = format!("daemonset/{name}");
        workload(&format!("agents {name}"), &object, part, namespace, version)
    });
    each.flatten().collect()
}

fn webhook(webhook: &Sight<Webhook>, namespace: &str) -> Vec<Finding> {
    let Sight::There(Webhook { is_trusted, fails_open }) = webhook else {
        return vec![note(
            "you may not get mutatingwebhookconfigurations, so it is not checked whether the API server knows the injector",
        )];
    };
    let mut findings = vec![match is_trusted {
        true => good("the API server knows the injector's authority".to_owned()),
        false => bad(
            "the API server does not know the injector's authority yet".to_owned(),
            format!("read `kubectl logs --namespace {namespace} deployment/tollway-injector`"),
        ),
    }];
    if *fails_open {
        findings.push(note(
            "pods start without a sidecar while no injector answers (failurePolicy: Ignore)",
        ));
    }
    findings
}

fn resources(resources: &Sight<CustomResources>) -> Vec<Finding> {
    let CustomResources { accepted, refused, unseen } = match resources {
        Sight::There(resources) => resources,
        Sight::Absent => {
            return vec![note(
                "the cluster has no definitions of custom resources: `tollway apply` takes files",
            )];
        }
        Sight::Hidden => {
            return vec![note(
                "you may not list custom resources of all namespaces, so they are not checked",
            )];
        }
    };
    let mut findings = Vec::new();
    if !refused.is_empty() {
        let (count, total) = (refused.len(), refused.len() + accepted + unseen);
        let named = refused[..count.min(NAMED_LIMIT)].join(", ");
        let more = if count > NAMED_LIMIT { " and others" } else { "" };
        findings.push(bad(
            format!("{count} of {total} custom resources are not accepted: {named}{more}"),
            "their condition `Accepted` has the reason: `kubectl describe`".to_owned(),
        ));
    }
    if *unseen > 0 {
        findings.push(bad(
            format!("{unseen} custom resources have no status"),
            "the control plane does not follow them: look at customResources.follow of the chart, and at its log".to_owned(),
        ));
    }
    if findings.is_empty() {
        findings.push(good(format!("{accepted} custom resources are accepted")));
    }
    findings
}

fn workload(what: &str, object: &str, part: &Part, namespace: &str, version: &str) -> Vec<Finding> {
    let Part { image, .. } = part;
    let mut findings = vec![readiness(what, object, part, namespace)];
    let tag = image.as_deref().and_then(|image| image.rsplit_once(':')).map(|(_, tag)| tag);
    if let Some(tag) = tag.filter(|tag| *tag != version) {
        findings
            .push(note(&format!("{what}: its image is of {tag}, and this program of {version}")));
    }
    findings
}

fn readiness(what: &str, object: &str, part: &Part, namespace: &str) -> Finding {
    let Part { wanted, ready, .. } = part;
    let text = format!("{what}: {ready} of {wanted} pods are ready");
    match ready >= wanted && *wanted > 0 {
        true => good(text),
        false => bad(
            text,
            format!(
                "read `kubectl describe --namespace {namespace} {object}` and the events of its pods"
            ),
        ),
    }
}

fn good(text: String) -> Finding {
    Finding { grade: Grade::Good, text, remedy: String::new() }
}

fn note(text: &str) -> Finding {
    Finding { grade: Grade::Note, text: text.to_owned(), remedy: String::new() }
}

fn bad(text: String, remedy: String) -> Finding {
    Finding { grade: Grade::Bad, text, remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(ready: i32) -> Part {
        Part { wanted: 1, ready, image: Some("tollway:0.1.0".to_owned()) }
    }

    fn whole() -> Seen {
        Seen {
            kubernetes: (1, 37),
            control: Some(part(1)),
            etcd: Some(Part { image: Some("etcd:v3.6.5".to_owned()), ..part(1) }),
            gateway: Some(part(1)),
            injector: Some(part(1)),
            agents: Sight::There(agents_of(part(1))),
            root_pin: Sight::There(Some("tollway1-root.west.x".to_owned())),
            webhook: Sight::There(Webhook { is_trusted: true, fails_open: false }),
            resources: Sight::There(CustomResources { accepted: 3, ..CustomResources::default() }),
        }
    }

    fn agents_of(part: Part) -> Vec<Agents> {
        let [namespace, name] = ["tollway-fabric", "tollway-fabric-racks"].map(str::to_owned);
        vec![Agents { namespace, name, part }]
    }

    fn bad_ones(seen: &Seen) -> Vec<String> {
        let findings = judge(seen, "tollway", "0.1.0");
        let bad = findings.into_iter().filter(|finding| finding.grade == Grade::Bad);
        bad.map(|finding| {
            assert!(!finding.remedy.is_empty(), "{}", finding.text);
            finding.text
        })
        .collect()
    }

    #[test]
    fn a_whole_install_is_good() {
        let findings = judge(&whole(), "tollway", "0.1.0");
        assert!(findings.iter().all(|finding| finding.grade == Grade::Good), "{findings:?}");
        assert_eq!(findings.len(), 9);
    }

    #[test]
    fn whatever_is_missing_is_named_with_what_to_do() {
        type Breaking = fn(&mut Seen);
        let broken: [(&str, Breaking); 12] = [
            ("no native sidecars", |seen| seen.kubernetes = (1, 28)),
            ("no control plane in namespace tollway", |seen| seen.control = None),
            ("control plane: 0 of 1", |seen| seen.control = Some(part(0))),
            ("has not written the root", |seen| seen.root_pin = Sight::There(None)),
            ("etcd: 0 of 1", |seen| seen.etcd = Some(part(0))),
            ("gateway: 0 of 1", |seen| seen.gateway = Some(part(0))),
            ("agents tollway-fabric-racks: 0 of 1", |seen| {
                seen.agents = Sight::There(agents_of(part(0)));
            }),
            ("agents tollway-fabric-racks: 0 of 0", |seen| {
                seen.agents = Sight::There(agents_of(Part { wanted: 0, ..part(0) }));
            }),
            ("one is missing", |seen| seen.webhook = Sight::Absent),
            ("does not know the injector", |seen| {
                seen.webhook = Sight::There(Webhook { is_trusted: false, fails_open: false });
            }),
            ("1 of 3 custom resources are not accepted: policy shop/a", |seen| {
                let refused = vec!["policy shop/a".to_owned()];
                seen.resources = Sight::There(CustomResources { accepted: 2, refused, unseen: 0 });
            }),
            ("2 custom resources have no status", |seen| {
                let resources = CustomResources { unseen: 2, ..CustomResources::default() };
                seen.resources = Sight::There(resources);
            }),
        ];
        for (words, breaking) in broken {
            let mut seen = whole();
            breaking(&mut seen);
            let bad = bad_ones(&seen);
            assert!(bad.len() == 1 && bad[0].contains(words), "{words}: {bad:?}");
        }
    }

    #[test]
    fn what_may_be_meant_is_a_note() {
        let noted: [fn(&mut Seen); 9] = [
            |seen| seen.gateway = None,
            |seen| seen.resources = Sight::Absent,
            |seen| (seen.injector, seen.webhook) = (None, Sight::Absent),
            |seen| seen.webhook = Sight::There(Webhook { is_trusted: true, fails_open: true }),
            |seen| seen.root_pin = Sight::Absent,
            // What the user may not read is no mistake of the install.
            |seen| seen.root_pin = Sight::Hidden,
            |seen| seen.webhook = Sight::Hidden,
            |seen| seen.agents = Sight::Hidden,
            |seen| seen.resources = Sight::Hidden,
        ];
        for change in noted {
            let mut seen = whole();
            change(&mut seen);
            assert_eq!(bad_ones(&seen), Vec::<String>::new());
            let findings = judge(&seen, "tollway", "0.1.0");
            assert!(findings.iter().any(|finding| finding.grade == Grade::Note));
        }
        let other = judge(&whole(), "tollway", "0.2.0");
        assert!(
            other
                .iter()
                .any(|finding| finding.text.contains("of 0.1.0, and this program of 0.2.0"))
        );
    }
}
