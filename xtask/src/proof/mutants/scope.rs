//! Which files are mutated: the pure code that decides who may do what. What reads or writes files,
//! sockets or the store stays out: tests of whole processes hold it.

/// Files that decide one thing.
pub(super) struct Group {
    /// What they decide.
    pub decides: &'static str,
    /// Paths below `crates`.
    pub files: &'static [&'static str],
}

/// In the order in which they are run: what opens most comes first.
pub(super) const GROUPS: &[Group] = &[
    Group {
        decides: "whether policies and access lists admit a request",
        files: &[
            "routing/src/policy.rs",
            "routing/src/policy/access.rs",
            "routing/src/policy/compiled.rs",
            "routing/src/policy/tree.rs",
            "model/src/policy.rs",
            "model/src/policy/pattern.rs",
            "model/src/policy/operation.rs",
            "dapr/src/access_control.rs",
        ],
    },
    Group {
        decides: "whose certificate it is, whether it counts, and when it is renewed",
        files: &[
            "model/src/name.rs",
            "identity/src/peer.rs",
            "identity/src/bundle.rs",
            "identity/src/revocations.rs",
            "identity/src/tls/verify.rs",
            "identity/src/tls/server_name.rs",
            "identity/src/tls/records.rs",
            "identity/src/renew.rs",
        ],
    },
    Group {
        decides: "who is enrolled, renewed and barred",
        files: &[
            "identity/src/token.rs",
            "identity/src/shared_token.rs",
            "control/src/issue/decide.rs",
            "control/src/issue/paces.rs",
            "control/src/instance_keys/decide.rs",
            "control/src/tokens/decide.rs",
            "control/src/addresses.rs",
            "model/src/address.rs",
            "control/src/pods/decide.rs",
            "control/src/pods/enrolled.rs",
            "kube/src/proof.rs",
            "proxy/src/gateway/reverse/admission.rs",
        ],
    },
    Group {
        decides: "who calls the control plane, and each caller's share of it",
        files: &[
            "control/src/connections/caller.rs",
            "control/src/connections/shares/limit.rs",
            "control/src/connections/shares/mod.rs",
            "control/src/connections/limits.rs",
            "control/src/connections/stream_limits.rs",
            "control/src/pace.rs",
            "control/src/quota.rs",
            "control/src/app_state/quotas.rs",
        ],
    },
    Group {
        decides: "what an app, a web page or a peer reaches of a sidecar and a gateway",
        files: &[
            "model/src/host_names.rs",
            "proxy/src/web_pages.rs",
            "proxy/src/actor_paths.rs",
            "proxy/src/api_rules.rs",
            "proxy/src/tokens.rs",
            "proxy/src/gateway/insiders.rs",
            "proxy/src/gateway/route.rs",
            "proxy/src/gateway/greeting.rs",
            "proxy/src/gateway/loop_guard.rs",
            "proxy/src/inbound/policy.rs",
            "runtime/src/body_collector/shares.rs",
            "routing/src/egress.rs",
        ],
    },
    Group {
        decides: "which app hosts which actors, and whose state and reminders they are",
        files: &[
            "actors/src/placement/apps.rs",
            "actors/src/placement/grants.rs",
            "actors/src/placement/holdings.rs",
            "actors/src/placement/leases.rs",
            "actors/src/placement/shard.rs",
            "actors/src/placement/table.rs",
            "control/src/placement/realm.rs",
            "control/src/placement/record.rs",
            "control/src/key.rs",
            "state/src/key.rs",
            "control/src/reminders/key.rs",
            "control/src/reminders/decide.rs",
            "runtime/src/actors/owners.rs",
            "runtime/src/actors/names.rs",
        ],
    },
    Group {
        decides: "what is done with a store that was restored from a copy",
        files: &["control/src/restored.rs"],
    },
    Group {
        decides: "what a joined network may change, and how often",
        files: &[
            "control/src/peering/pace.rs",
            "control/src/peering/gateways.rs",
            "control/src/peering/admission.rs",
            "control/src/peering/intake.rs",
        ],
    },
    Group {
        decides: "which custom resources and objects of Dapr a network takes, and for which pods",
        files: &[
            "control/src/resources/known.rs",
            "inject/src/decision.rs",
            "inject/src/dapr.rs",
            "kube/src/join/plan.rs",
        ],
    },
    Group {
        decides: "which Services a network takes, and which pods each leads to",
        files: &["control/src/services/known.rs", "control/src/catalogue/cluster.rs"],
    },
    Group { decides: "who may open the files of secrets", files: &["net/src/secret_file.rs"] },
];
