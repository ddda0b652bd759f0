use super::*;

fn whole() -> CallTrace {
    CallTrace {
        reported_by: "sidecar web.default.west".to_owned(),
        caller: "spiffe://west.tollway/ns/default/web".to_owned(),
        name: Some("stock.shop.east".to_owned()),
        route: Some(RouteTaken {
            service: "stock.shop.west".to_owned(),
            route: "shop/stock".to_owned(),
            rule: "canary".to_owned(),
        }),
        failover: Some(NetworkTaken {
            called: "stock.shop.any".to_owned(),
            network: "east".to_owned(),
            priority: 1,
            by: "health".to_owned(),
        }),
        service: Some(Service {
            state: ServiceWord::JoinedNetwork,
            protocol: Some("http".to_owned()),
            ready_replicas: 2,
            ejected_replicas: 1,
            levels: vec![LevelShown { level: Level::Zone, healthy: 1, registered: 2, percent: 71 }],
            gateways: vec!["10.0.0.1:15443".to_owned()],
            remote_gateways: vec!["192.0.2.1:15443".to_owned()],
        }),
        fault: Some(Fault { delay_us: Some(5), is_aborted: false }),
        connection: Some(Connection {
            address: "10.0.0.1:15443".to_owned(),
            through_gateway: true,
            instance: Some("stock-1".to_owned()),
            callee: "spiffe://east.tollway/ns/shop/stock".to_owned(),
            level: Some(Level::Zone),
            is_new: true,
            tls: Some(Tls {
                version: "1.3".to_owned(),
                cipher: "TLS13_AES_128_GCM_SHA256".to_owned(),
                is_resumed: false,
            }),
        }),
        admission: Some(Admission::Allowed(ObjectName::new("shop", "allow-web").unwrap())),
        limit: Some(OverLimit { limit: LimitWord::Caller, is_shadow: true }),
        egress: Some(EgressTaken {
            host: "api.example:443".to_owned(),
            decision: EgressWord::ShadowRefused,
            egress: Some(ObjectName::new("shop", "api").unwrap()),
        }),
        attempts: 2,
        failed_attempts: vec![FailedAttempt {
            code: "ERR_RESET".to_owned(),
            address: None,
            instance: Some("stock-2".to_owned()),
        }],
        failure: Some(Failure {
            code: "ERR_TIMED_OUT".to_owned(),
            reported_by: "sidecar web.default.west".to_owned(),
            at: Stage::App,
        }),
        times_us: Times { total: 7, ..Times::default() },
    }
}

#[test]
fn a_trace_is_read_as_it_was_written() {
    for trace in [whole(), CallTrace::default()] {
        let text = serde_json::to_string(&trace).unwrap();
        assert!(text.is_ascii() && !text.contains('\n') && text.len() < CALL_TRACE_BYTES_LIMIT);
        assert_eq!(serde_json::from_str::<CallTrace>(&text).unwrap(), trace, "{text}");
    }
}

/// Scripts rely on these words.
#[test]
fn the_words_of_a_trace_stay() {
    let text = serde_json::to_value(whole()).unwrap();
    assert_eq!(text["route"]["route"], "shop/stock");
    assert_eq!(text["route"]["rule"], "canary");
    assert_eq!(text["service"]["state"], "joined_network");
    assert_eq!(text["connection"]["through_gateway"], true);
    assert_eq!(text["admission"]["verdict"], "allowed");
    assert_eq!(text["admission"]["policy"], "shop/allow-web");
    assert_eq!(text["failure"]["at"], "app");
    assert_eq!(text["connection"]["level"], "zone");
    assert_eq!(text["service"]["levels"][0]["level"], "zone");
    assert_eq!(text["limit"]["limit"], "caller");
    assert_eq!(text["egress"]["decision"], "shadow_refused");
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
    let (sidecar_us, app_us, admission) = (5, Some(30), Admission::Unprotected);
    let part = CalleePart { sidecar_us, app_us, admission, limit: None };
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
    times.add_part(&CalleePart { sidecar_us: u64::MAX, ..part.clone() });
    assert_eq!(times.network, Some(0));
    let mut unsent = Times { total: 9, ..Times::default() };
    unsent.add_part(&CalleePart { sidecar_us: 1, app_us: None, ..part });
    unsent.settle();
    assert_eq!((unsent.caller_sidecar, unsent.callee_sidecar), (9, None));
}

#[test]
fn the_code_of_a_failure_gives_its_stage() {
    let check =
        |code, from_callee, stage| assert_eq!(Stage::of(code, from_callee), stage, "{code}");
    check(ErrorCode::BadName, false, Stage::Name);
    check(ErrorCode::Overloaded, false, Stage::CallerSidecar);
    check(ErrorCode::Overloaded, true, Stage::Replica);
    check(ErrorCode::UnknownService, false, Stage::Service);
    check(ErrorCode::UnreachableNetwork, false, Stage::Network);
    check(ErrorCode::GatewayRefused, false, Stage::Gateway);
    check(ErrorCode::Unreachable, false, Stage::Replica);
    check(ErrorCode::ClosedEarly, false, Stage::Replica);
    check(ErrorCode::CertificateExpired, false, Stage::Replica);
    check(ErrorCode::PolicyDenied, true, Stage::Policy);
    check(ErrorCode::ClosedEarly, true, Stage::App);
    check(ErrorCode::AppUnreachable, true, Stage::App);
}
