use super::*;

fn whole() -> Way {
    Way {
        told_by: "sidecar web.default.west".to_owned(),
        caller: "spiffe://west.tollway/ns/default/web".to_owned(),
        name: Some("stock.shop.east".to_owned()),
        service: Some(Service {
            state: ServiceWord::JoinedNetwork,
            protocol: Some("http".to_owned()),
            ready_replicas: 2,
            gateways: vec!["10.0.0.1:15443".to_owned()],
            gateways_beyond: vec!["192.0.2.1:15443".to_owned()],
        }),
        connection: Some(Connection {
            address: "10.0.0.1:15443".to_owned(),
            through_gateway: true,
            instance: Some("stock-1".to_owned()),
            callee: "spiffe://east.tollway/ns/shop/stock".to_owned(),
            is_new: true,
            tls: Some(Tls {
                version: "1.3".to_owned(),
                cipher: "TLS13_AES_128_GCM_SHA256".to_owned(),
                is_resumed: false,
            }),
        }),
        admission: Some(Admission::Allowed(PolicyName::new("shop", "allow-web").unwrap())),
        attempts: 2,
        failed_attempts: vec![FailedAttempt {
            code: "ERR_RESET".to_owned(),
            address: None,
            instance: Some("stock-2".to_owned()),
        }],
        failure: Some(Failure {
            code: "ERR_TIMED_OUT".to_owned(),
            told_by: "sidecar web.default.west".to_owned(),
            at: Place::App,
        }),
        times_us: Times { total: 7, ..Times::default() },
    }
}

#[test]
fn a_way_is_read_as_it_was_written() {
    for way in [whole(), Way::default()] {
        let text = serde_json::to_string(&way).unwrap();
        assert!(text.is_ascii() && !text.contains('\n') && text.len() < WAY_BYTES_LIMIT);
        assert_eq!(serde_json::from_str::<Way>(&text).unwrap(), way, "{text}");
    }
}

/// Scripts rely on these words.
#[test]
fn the_words_of_a_way_stay() {
    let text = serde_json::to_value(whole()).unwrap();
    assert_eq!(text["service"]["state"], "joined_network");
    assert_eq!(text["connection"]["through_gateway"], true);
    assert_eq!(text["admission"]["verdict"], "allowed");
    assert_eq!(text["admission"]["policy"], "shop/allow-web");
    assert_eq!(text["failure"]["at"], "app");
    let open = serde_json::to_value(Admission::NotRefused).unwrap();
    assert_eq!(open.to_string(), r#"{"verdict":"not_refused"}"#);
    assert!(text["times_us"].get("network").is_none(), "what did not happen is left out");
}

#[test]
fn a_policy_of_another_form_is_refused() {
    let read = |text: &str| serde_json::from_str::<Admission>(text);
    assert!(read(r#"{"verdict":"allowed","policy":"shop/a"}"#).is_ok());
    assert!(read(r#"{"verdict":"allowed","policy":"shop"}"#).is_err());
    assert!(read(r#"{"verdict":"allowed","policy":"shop/\u001b[2J"}"#).is_err());
}

#[test]
fn what_is_left_of_the_time_is_the_networks_and_the_sidecars() {
    let part = Part { sidecar_us: 5, app_us: Some(30), admission: Admission::Unprotected };
    let mut times = Times {
        total: 100,
        discovery: Some(10),
        connection: Some(20),
        round_trip: Some(60),
        ..Times::default()
    };
    times.add_part(&part);
    times.settle();
    assert_eq!((times.network, times.callee_sidecar, times.app), (Some(25), Some(5), Some(30)));
    assert_eq!(times.caller_sidecar, 10);
    // A peer that claims more than there was takes nothing from others.
    times.add_part(&Part { sidecar_us: u64::MAX, ..part });
    assert_eq!(times.network, Some(0));
    let mut unsent = Times { total: 9, ..Times::default() };
    unsent.add_part(&Part { sidecar_us: 1, app_us: None, admission: Admission::NotRefused });
    unsent.settle();
    assert_eq!((unsent.caller_sidecar, unsent.callee_sidecar), (9, None));
}

#[test]
fn a_failure_is_where_its_code_says() {
    let check = |code, from_afar, place| assert_eq!(Place::of(code, from_afar), place, "{code}");
    check(ErrorCode::BadName, false, Place::Name);
    check(ErrorCode::Overloaded, false, Place::CallerSidecar);
    check(ErrorCode::Overloaded, true, Place::Replica);
    check(ErrorCode::UnknownService, false, Place::Service);
    check(ErrorCode::UnreachableNetwork, false, Place::Network);
    check(ErrorCode::GatewayRefused, false, Place::Gateway);
    check(ErrorCode::Unreachable, false, Place::Replica);
    check(ErrorCode::ClosedEarly, false, Place::Replica);
    check(ErrorCode::CertificateExpired, false, Place::Replica);
    check(ErrorCode::PolicyDenied, true, Place::Policy);
    check(ErrorCode::ClosedEarly, true, Place::App);
    check(ErrorCode::AppUnreachable, true, Place::App);
}
