use super::*;

fn host(text: &str) -> EgressHost {
    EgressHost { host: text.parse().unwrap(), port: None, tls: None }
}

fn egress(namespace: &str, from: &[&str]) -> Egress {
    Egress {
        name: ObjectName::new(namespace, "e").unwrap(),
        mode: Mode::Enforce,
        from: from.iter().map(|text| text.parse().unwrap()).collect(),
        hosts: vec![host("api.example")],
    }
}

fn service(text: &str) -> ServiceName {
    let label = |text: &str| Label::new(text).unwrap();
    ServiceName::parse_in(text, &label("shop"), &label("west")).unwrap()
}

#[test]
fn patterns_are_printed_as_they_are_written() {
    for text in
        ["*", "api.example", "*.example.org", "10.1.0.0/16", "fd00::/8", "xn--bcher-kva.example"]
    {
        assert_eq!(text.parse::<HostPattern>().unwrap().to_string(), text);
    }
    let read = |text: &str| text.parse::<HostPattern>().unwrap().to_string();
    assert_eq!(read("API.Example."), "api.example");
    assert_eq!(read("192.0.2.7"), "192.0.2.7/32");
    for text in ["web", "web.shop", "*.shop", "*.*"] {
        assert_eq!(text.parse::<AppPattern>().unwrap().to_string(), text);
    }
}

#[test]
fn what_names_no_host_is_refused() {
    for text in [
        "",
        ".",
        "a..b",
        "*x.example",
        "a.*.b",
        "a b",
        "http://a",
        "10.1.0.0/33",
        "1.2.3",
        "0x7f.0x1",
    ] {
        assert!(text.parse::<HostPattern>().is_err(), "{text}");
    }
    for text in ["stock.mesh", "*.MESH", "mesh."] {
        let refused = text.parse::<HostPattern>().unwrap_err();
        assert_eq!(refused, HostError::Mesh(text.to_owned()));
    }
    let long = format!("{}.example", "a".repeat(64));
    assert_eq!(HostName::read(&long), None);
    assert_eq!(HostName::read(&"a.".repeat(128)), None);
    assert!(HostName::read(&"a.".repeat(127)).is_some());
}

#[test]
fn names_that_programs_take_for_addresses_are_none() {
    for text in ["127.1", "2130706433", "0x7f000001", "a.0x1", "1.2.3.4", "[::1]", "::1"] {
        assert_eq!(HostName::read(text), None, "{text}");
    }
    for text in ["a", "1.example", "0x.example", "_dmarc.example", "x1"] {
        assert!(HostName::read(text).is_some(), "{text}");
    }
}

#[test]
fn a_pattern_of_an_end_does_not_match_the_end_itself() {
    let matches = |pattern: &str, name: &str| {
        let name = HostName::read(name).unwrap();
        pattern.parse::<HostPattern>().unwrap().matches_name(&name)
    };
    assert!(
        matches("*.example.org", "a.example.org") && matches("*.example.org", "b.a.EXAMPLE.org")
    );
    assert!(!matches("*.example.org", "example.org"));
    assert!(!matches("*.example.org", "badexample.org"));
    assert!(matches("api.example", "API.example.") && !matches("api.example", "x.api.example"));
    assert!(matches("*", "anything.example") && !matches("0.0.0.0/0", "anything.example"));
    let range: HostPattern = "10.1.0.0/16".parse().unwrap();
    assert!(range.matches_address([10, 1, 2, 3].into()));
    assert!(!range.matches_address([10, 2, 2, 3].into()));
    assert!(!HostPattern::AnyName.matches_address([10, 1, 2, 3].into()));
}

#[test]
fn an_egress_holds_for_apps_of_its_namespace_alone() {
    let all = egress("shop", &[]);
    assert!(all.holds_for(&service("web")) && !all.holds_for(&service("web.other")));
    let some = egress("shop", &["web", "job.shop"]);
    assert_eq!(some.check(), Ok(()));
    assert!(some.holds_for(&service("web")) && some.holds_for(&service("job")));
    assert!(!some.holds_for(&service("stock")) && !some.holds_for(&service("web.other")));
    let network = egress("tollway", &["*.shop", "web.*"]);
    assert_eq!(network.check(), Ok(()));
    assert!(network.holds_for(&service("stock")) && network.holds_for(&service("web.other")));
    assert!(!network.holds_for(&service("stock.other")));
    assert!(egress("tollway", &[]).holds_for(&service("stock.other")));
}

#[test]
fn apps_of_other_namespaces_are_refused() {
    let refused = egress("shop", &["web.other"]).check().unwrap_err();
    assert!(refused.to_string().contains("its own namespace `shop`"), "{refused}");
    assert!(egress("shop", &["*.*"]).check().is_err());
    let refused = egress("tollway", &["web"]).check().unwrap_err();
    assert!(refused.to_string().contains("write web.NAMESPACE"), "{refused}");
    assert!("a.b.c".parse::<AppPattern>().is_err() && "".parse::<AppPattern>().is_err());
}

#[test]
fn tls_leads_from_the_plain_port_to_the_hosts() {
    let tls = BeginTls { plain_port: PLAIN_PORT, authorities: None };
    let begun = EgressHost { tls: Some(tls.clone()), ..host("api.example") };
    assert_eq!((begun.tls_from(80), begun.tls_from(443)), (Some(&tls), None));
    assert!(begun.allows_port(443) && !begun.allows_port(80) && !begun.allows_port(8080));
    let same = BeginTls { plain_port: 8443, authorities: None };
    let begun = EgressHost { port: Some(8443), tls: Some(same), ..host("api.example") };
    assert!(begun.tls_from(8443).is_some() && !begun.allows_port(8443));
    let plain = EgressHost { port: Some(5432), ..host("db.example") };
    assert!(plain.allows_port(5432) && !plain.allows_port(80) && host("a").allows_port(7));
}

#[test]
fn what_cannot_hold_is_refused() {
    let with = |hosts: Vec<EgressHost>| Egress { hosts, ..egress("shop", &[]) }.check();
    assert_eq!(with(Vec::new()), Err(EgressError::NoHosts));
    let full = vec![host("a"); EGRESS_HOSTS_LIMIT];
    assert_eq!(with(full.clone()), Ok(()));
    let over = [full, vec![host("a")]].concat();
    assert_eq!(with(over), Err(EgressError::TooManyHosts { count: EGRESS_HOSTS_LIMIT + 1 }));
    let tls = |plain_port, authorities: Option<&str>| {
        Some(BeginTls { plain_port, authorities: authorities.map(Into::into) })
    };
    let range = EgressHost { tls: tls(80, None), ..host("10.0.0.0/8") };
    assert!(matches!(with(vec![range]), Err(EgressError::TlsOfRange { .. })));
    let port = EgressHost { tls: tls(0, None), ..host("a") };
    assert!(matches!(with(vec![port]), Err(EgressError::Port { .. })));
    let port = EgressHost { port: Some(0), ..host("a") };
    assert!(matches!(with(vec![port]), Err(EgressError::Port { .. })));
    let authority = EgressHost { tls: tls(80, Some("/etc/ca.pem")), ..host("a") };
    assert!(matches!(with(vec![authority]), Err(EgressError::NoAuthority { .. })));
    let apps = vec!["web".parse().unwrap(); EGRESS_APPS_LIMIT + 1];
    let refused = Egress { from: apps, ..egress("shop", &[]) }.check();
    assert_eq!(refused, Err(EgressError::TooManyApps { count: EGRESS_APPS_LIMIT + 1 }));
}
