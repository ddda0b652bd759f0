use super::*;

fn name(text: &str) -> HostName {
    HostName::read(text).unwrap()
}

fn tls(plain_port: u16) -> Option<BeginTls> {
    Some(BeginTls { plain_port, authorities: None })
}

fn host(text: &str, port: impl Into<Option<u16>>, tls: Option<BeginTls>) -> EgressHost {
    EgressHost { host: text.parse().unwrap(), port: port.into(), tls }
}

fn egress(name: &str, mode: Mode, hosts: Vec<EgressHost>) -> Arc<Egress> {
    let name = ObjectName::new("shop", name).unwrap();
    Arc::new(Egress { name, mode, from: Vec::new(), hosts })
}

fn rules(by_default: EgressDefault, hosts: Vec<EgressHost>) -> EgressRules {
    EgressRules::new(by_default, vec![egress("e", Mode::Enforce, hosts)])
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// In a word: who allows it, with the port of TLS.
fn word(decision: &EgressDecision) -> String {
    let verdict = match &decision.verdict {
        Verdict::Allowed(by) => by.name.to_string(),
        Verdict::ByDefault => "default".to_owned(),
        Verdict::Refused => "refused".to_owned(),
    };
    let tls = decision.tls.as_ref().map_or(String::new(), |(port, _)| format!(" tls {port}"));
    format!("{verdict}{tls}{}", if decision.would_refuse { " shadow" } else { "" })
}

#[test]
fn identity_host_and_port_decide() {
    let hosts = || {
        vec![
            host("api.example", 443, None),
            host("*.example.org", None, None),
            host("10.1.0.0/16", 5432, None),
        ]
    };
    for (by_default, otherwise) in
        [(EgressDefault::Closed, "refused"), (EgressDefault::Open, "default")]
    {
        let rules = rules(by_default, hosts());
        let of_name = |text, port| word(&rules.decide_name(&name(text), port));
        assert_eq!(of_name("api.example", 443), "e");
        assert_eq!(of_name("api.example", 80), otherwise);
        assert_eq!(of_name("x.api.example", 443), otherwise);
        assert_eq!(of_name("a.b.example.org", 7), "e");
        assert_eq!(of_name("example.org", 7), otherwise);
        let of_address = |text| word(&rules.decide_address(at(text)));
        assert_eq!(of_address("10.1.2.3:5432"), "e");
        assert_eq!(of_address("[::ffff:10.1.2.3]:5432"), "e", "the same host");
        assert_eq!(of_address("10.1.2.3:5433"), otherwise);
        assert_eq!(of_address("10.2.2.3:5432"), otherwise);
    }
    let idle = EgressRules::default();
    assert!(idle.is_idle() && !rules(EgressDefault::Open, hosts()).is_idle());
    assert!(!EgressRules::new(EgressDefault::Closed, Vec::new()).is_idle());
}

#[test]
fn the_nearest_pattern_decides_whether_tls_is_begun() {
    let rules = EgressRules::new(
        EgressDefault::Closed,
        vec![
            egress("any", Mode::Enforce, vec![host("*", None, None)]),
            egress("end", Mode::Enforce, vec![host("*.example", 8443, tls(80))]),
            egress("nearer", Mode::Enforce, vec![host("*.plain.example", 80, None)]),
            egress("exact", Mode::Enforce, vec![host("a.plain.example", None, tls(80))]),
            egress("also", Mode::Enforce, vec![host("a.plain.example", 80, None)]),
        ],
    );
    let of = |text, port| word(&rules.decide_name(&name(text), port));
    assert_eq!(of("a.example", 80), "end tls 8443");
    assert_eq!(of("a.example", 8443), "end");
    assert_eq!(of("a.example", 81), "any");
    assert_eq!(of("b.plain.example", 80), "nearer");
    assert_eq!(of("a.plain.example", 80), "exact tls 443");
    assert_eq!(of("a.plain.example", 443), "exact");
    assert_eq!(of("other.net", 80), "any");
}

#[test]
fn a_connection_to_an_address_is_decided_by_the_names_that_stand_for_it() {
    let hosts = || {
        vec![
            host("api.example", 443, None),
            host("db.example", 5432, None),
            host("web.example", None, tls(80)),
            host("192.0.2.0/24", 22, None),
        ]
    };
    let closed = rules(EgressDefault::Closed, hosts());
    let open = rules(EgressDefault::Open, hosts());
    let of = |rules: &EgressRules, address: &str, names: &[&str]| {
        let names: Vec<_> = names.iter().map(|text| name(text)).collect();
        match rules.decide_connection(at(address), &names) {
            ConnectionDecision::Known(decision) => word(&decision),
            ConnectionDecision::ByFirstBytes => "bytes".to_owned(),
            ConnectionDecision::ByHttp => "http".to_owned(),
        }
    };
    assert_eq!(of(&closed, "192.0.2.7:22", &[]), "e");
    assert_eq!(of(&closed, "192.0.2.7:443", &[]), "refused");
    assert_eq!(of(&closed, "192.0.2.7:443", &["other.example"]), "refused");
    assert_eq!(of(&closed, "192.0.2.7:443", &["other.example", "api.example"]), "bytes");
    assert_eq!(of(&closed, "192.0.2.7:5432", &["db.example"]), "bytes");
    assert_eq!(of(&closed, "192.0.2.7:80", &["web.example"]), "http");
    assert_eq!(of(&open, "192.0.2.7:80", &["web.example"]), "http");
    assert_eq!(of(&open, "192.0.2.7:443", &["api.example"]), "default");
    assert_eq!(of(&open, "192.0.2.7:443", &[]), "default");
}

#[test]
fn a_name_that_no_answer_had_for_the_address_allows_nothing() {
    let closed = rules(
        EgressDefault::Closed,
        vec![host("api.example", 443, None), host("web.example", None, tls(80))],
    );
    let shown = |address: &str, names: &[&str], shown: &str| {
        let names: Vec<_> = names.iter().map(|text| name(text)).collect();
        let shown = if shown.is_empty() { Shown::Nothing } else { Shown::Host(name(shown)) };
        let (decision, of) = closed.decide_shown(at(address), &names, &shown);
        format!("{} {}", word(&decision), of.map_or("-".to_owned(), |name| name.to_string()))
    };
    let evil = "203.0.113.9";
    assert_eq!(shown(&format!("{evil}:443"), &[], "api.example"), "refused -");
    assert_eq!(shown(&format!("{evil}:443"), &["evil.example"], "api.example"), "refused -");
    // The address is shared, and another name of it is not allowed.
    let both = ["evil.example", "api.example"];
    assert_eq!(shown("192.0.2.7:443", &both, "api.example"), "e api.example");
    assert_eq!(shown("192.0.2.7:443", &both, "evil.example"), "refused evil.example");
    assert_eq!(shown("192.0.2.7:443", &both, "unknown.example"), "refused -");
    // Bytes that name no host go to an address of a name that is allowed.
    assert_eq!(shown("192.0.2.7:443", &both, ""), "e api.example");
    assert_eq!(shown("192.0.2.7:443", &["evil.example"], ""), "refused -");
    assert_eq!(shown("192.0.2.7:80", &["web.example"], ""), "e tls 443 web.example");
}

#[test]
fn tls_is_not_begun_for_one_of_several_names() {
    let hosts = vec![host("a.example", None, tls(80)), host("b.example", None, tls(80))];
    let names = [name("a.example"), name("b.example")];
    let of = |by_default| {
        let rules = rules(by_default, hosts.clone());
        word(&rules.decide_shown(at("192.0.2.7:80"), &names, &Shown::Nothing).0)
    };
    assert_eq!(of(EgressDefault::Closed), "refused");
    assert_eq!(of(EgressDefault::Open), "default");
}

#[test]
fn names_lead_neither_to_this_machine_nor_to_its_link() {
    let named = |hosts| rules(EgressDefault::Closed, hosts);
    let by_name = named(vec![host("*", None, None)]);
    for address in [
        "127.0.0.1:80",
        "169.254.169.254:80",
        "[::1]:80",
        "[::ffff:127.0.0.1]:80",
        "0.0.0.0:80",
        "[fe80::1]:80",
    ] {
        assert!(!by_name.may_be_behind_a_name(at(address)), "{address}");
        let decided = by_name.decide_connection(at(address), &[name("a.example")]);
        assert!(matches!(decided, ConnectionDecision::Known(of) if of.is_refused()), "{address}");
    }
    for address in ["10.0.0.1:80", "192.0.2.7:80", "[2001:db8::7]:80"] {
        assert!(by_name.may_be_behind_a_name(at(address)), "{address}");
    }
    let by_address = named(vec![host("169.254.169.254", 80, None)]);
    assert!(by_address.may_be_behind_a_name(at("169.254.169.254:80")));
    assert!(!by_address.may_be_behind_a_name(at("169.254.169.253:80")));
}

#[test]
fn what_is_in_shadow_mode_changes_nothing_else() {
    let shadow = egress("s", Mode::Shadow, vec![host("new.example", 443, tls(80))]);
    let known = egress("e", Mode::Enforce, vec![host("api.example", 443, None)]);
    let of = |by_default, egresses: &[&Arc<Egress>]| {
        let rules = EgressRules::new(by_default, egresses.iter().map(|e| Arc::clone(e)).collect());
        let texts = ["new.example", "api.example", "other.example"]
            .map(|text| word(&rules.decide_name(&name(text), 443)));
        let address = word(&rules.decide_address(at("192.0.2.7:443")));
        (texts.join(", "), address)
    };
    let stated = |names: &str, address: &str| (names.to_owned(), address.to_owned());
    let open = EgressDefault::Open;
    assert_eq!(
        of(open, &[&shadow, &known]),
        stated("default, e, default shadow", "default shadow")
    );
    assert_eq!(of(open, &[&known]), stated("default, e, default", "default"));
    let closed = EgressDefault::Closed;
    assert_eq!(of(closed, &[&shadow, &known]), stated("refused, e, refused", "refused"));
    let all = EgressDefault::Shadow;
    assert_eq!(of(all, &[&known]), stated("default shadow, e, default shadow", "default shadow"));
    // It begins no TLS.
    let rules = EgressRules::new(open, vec![shadow]);
    assert_eq!(word(&rules.decide_name(&name("new.example"), 80)), "default");
    let names = [name("new.example")];
    let decided = rules.decide_connection(at("192.0.2.7:443"), &names);
    assert!(matches!(decided, ConnectionDecision::Known(of) if word(&of) == "default"));
    let decided = rules.decide_connection(at("192.0.2.7:443"), &[]);
    assert!(matches!(decided, ConnectionDecision::Known(of) if word(&of) == "default shadow"));
}
