use super::*;

/// What a command line and an environment mean.
fn options_of(line: &str, variables: &[(&str, &str)]) -> Result<DaprdOptions, Refusal> {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let Ok(Parsed::Flags(given)) = parse(&words) else { panic!("{line} is not read") };
    let variable = |name: &str| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    DaprdOptions::of(&given, variable).map_err(|error| error.to_string())
}

fn web(line: &str) -> DaprdOptions {
    options_of(&format!("--app-id web {line}"), &[]).unwrap()
}

#[track_caller]
fn refused(line: &str, variables: &[(&str, &str)], part: &str) {
    let refusal = options_of(&format!("--app-id web {line}"), variables).unwrap_err();
    assert!(refusal.contains(part), "{line}: {refusal}");
}

#[test]
fn defaults_are_daprds_on_loopback() {
    let web = web("");
    let loopback = |port: u16| {
        let of = |ip: IpAddr| SocketAddr::new(ip, port);
        vec![of(Ipv4Addr::LOCALHOST.into()), of(Ipv6Addr::LOCALHOST.into())]
    };
    assert_eq!(web.http, loopback(3500));
    assert_eq!(web.grpc, loopback(50001));
    assert_eq!(web.metrics, Some("127.0.0.1:9090".parse().unwrap()));
    assert_eq!(web.inbound, "127.0.0.1:0".parse().unwrap());
    assert_eq!((web.public, web.advertise, web.control), (None, None, None));
    assert_eq!((web.drain, web.block), (Duration::from_secs(5), Duration::ZERO));
    assert_eq!((web.head_bytes, web.message_bytes), (None, MESSAGE_BYTES));
    assert!(web.app.is_none() && web.notes.is_empty() && web.idle.is_empty());
    assert_eq!(web.namespace.as_str(), "default");
}

#[test]
fn nothing_in_quotation_marks_names_no_placement_service() {
    let has_placement = |value: &str| {
        let words = ["--app-id", "web", "--placement-host-address", value].map(str::to_owned);
        let Ok(Parsed::Flags(given)) = parse(&words) else { panic!("{value} is not read") };
        DaprdOptions::of(&given, |_| None).unwrap().as_daprd.has_placement
    };
    for nothing in ["", " ", "       ", "''", "'      '", "'\"\"'", "\"\"", "\"   \""] {
        assert!(!has_placement(nothing), "{nothing}");
    }
    assert!(has_placement("localhost:50005") && has_placement("'a:1'"));
}

#[test]
fn the_app_follows_its_flags() {
    let app = |line: &str| web(&format!("--app-port 3000 {line}")).app.unwrap();
    let plain = app("--app-max-concurrency 0");
    assert_eq!((plain.host.as_str(), plain.port), ("127.0.0.1", 3000));
    assert_eq!((plain.max_concurrency, plain.health_check), (None, None));
    let scheme = |line: &str| app(line).scheme.to_string();
    assert_eq!(scheme("--app-protocol GRPC"), "grpc");
    assert_eq!(scheme("--app-protocol grpc --app-ssl"), "grpcs");
    assert_eq!(scheme("--app-ssl"), "https");
    assert_eq!(scheme("--app-protocol h2c --app-ssl"), "h2c");
    assert_eq!(app("--app-max-concurrency 3").max_concurrency, Some(3));
    assert!(app("--disable-init-endpoints subscribe").asks_actors);
    assert!(!app("--disable-init-endpoints subscribe,config").asks_actors);
    let check =
        app("--enable-app-health-check --app-health-check-path live --app-health-threshold 0");
    let check = check.health_check.unwrap();
    assert_eq!((check.path.as_str(), check.threshold), ("/live", 3));
    let times = (Duration::from_secs(5), Duration::from_millis(500));
    assert_eq!((check.interval, check.timeout), times);
}

#[test]
fn an_app_without_a_port_is_none() {
    for none in ["0", "-1", ""] {
        assert!(web(&format!("--app-port={none}")).app.is_none(), "{none}");
    }
}

#[test]
fn sizes_that_are_usual_change_nothing_and_larger_ones_have_a_bound() {
    let sizes = |line: &str| {
        let web = web(line);
        (web.head_bytes, web.message_bytes >> 20, web.notes.len())
    };
    assert_eq!(sizes("--read-buffer-size 8Ki --max-body-size 1Mi"), (None, 1, 0));
    assert_eq!(sizes("--max-body-size 2Mi"), (None, 2, 0));
    assert_eq!(sizes("--max-body-size 0"), (None, 4, 0));
    assert_eq!(sizes("--read-buffer-size 128Ki --max-body-size 16Mi"), (Some(128 << 10), 16, 0));
    assert_eq!(sizes("--read-buffer-size -1 --max-body-size -1"), (None, 4, 0));
    assert_eq!(sizes("--max-body-size 1Gi"), (None, 64, 1));
    // Both are deprecated, and noted as such.
    let old = "--dapr-http-read-buffer-size 100 --dapr-http-max-request-size 32";
    assert_eq!(sizes(old), (Some(100 << 10), 32, 2));
    refused("--read-buffer-size 1Mi", &[], "a head may have 524288 at most");
    refused("--max-body-size much", &[], "write a size such as 16Mi");
}

#[test]
fn others_reach_it_at_the_address_of_the_host() {
    let listeners = |line: &str, host: &str| {
        let variables = [("DAPR_HOST_IP", host), ("NAMESPACE", "shop")];
        let web = options_of(&format!("--app-id web {line}"), &variables).unwrap();
        assert_eq!(web.namespace.as_str(), "shop");
        let text = |address: SocketAddr| address.to_string();
        (text(web.inbound), web.advertise.map(text))
    };
    let here = || Some("10.0.0.7:0".to_owned());
    assert_eq!(listeners("", "10.0.0.7"), ("127.0.0.1:0".to_owned(), None));
    let elsewhere = "--control-plane-address control:15010";
    assert_eq!(listeners(elsewhere, "10.0.0.7"), ("0.0.0.0:0".to_owned(), here()));
    let fixed = "--dapr-internal-grpc-listen-address 10.0.0.7 --dapr-internal-grpc-port 50002";
    assert_eq!(listeners(fixed, ""), ("10.0.0.7:50002".to_owned(), None));
    refused(elsewhere, &[], "say where they can in DAPR_HOST_IP");
    refused("", &[("DAPR_HOST_IP", "here")], "DAPR_HOST_IP is no IP address");
    refused("", &[("NAMESPACE", "a.b")], "NAMESPACE: ");
}

#[test]
fn the_apis_listen_at_the_given_addresses() {
    let http = |line: &str| web(line).http.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(http("--dapr-listen-addresses 0.0.0.0"), ["0.0.0.0:3500"]);
    let both = "--dapr-listen-addresses localhost,[::1] --dapr-http-port 0";
    assert_eq!(http(both), ["127.0.0.1:0", "[::1]:0"]);
    let public = "--dapr-public-port 3501 --dapr-public-listen-address 10.0.0.7";
    assert_eq!(web(public).public, Some("10.0.0.7:3501".parse().unwrap()));
    assert_eq!(web("--enable-metrics=false").metrics, None);
    refused("--dapr-listen-addresses host", &[], "--dapr-listen-addresses is no IP address");
    refused("--metrics-port 70000", &[], "error parsing metrics-port flag");
}

#[test]
fn what_has_no_effect_is_named_and_what_would_be_missed_refused() {
    let web = web("--placement-host-address a:1 --enable-mtls --components-path /c --app-ssl");
    assert_eq!(web.idle.len(), 2, "{:?}", web.idle);
    assert!(web.idle[1].starts_with("--placement-host-address has no effect: "), "{:?}", web.idle);
    assert_eq!(web.notes.len(), 2, "{:?}", web.notes);
    assert_eq!(web.resources, [PathBuf::from("/c")]);
    refused("--mode kubernetes", &[], "--mode=kubernetes");
    refused("--mode other", &[], "invalid mode `other`");
    refused("--app-port 3500", &[], "conflicts with 'app-port'");
    refused("--log-level loud", &[], "undefined log level: loud");
}

#[test]
fn a18_a_limit_below_the_default_holds_for_bodies_that_stream() {
    let limit = |line: &str| options_of(line, &[]).unwrap().as_daprd.body_bytes;
    assert_eq!(limit("--app-id web"), None);
    assert_eq!(limit("--app-id web --max-body-size 4Mi"), None);
    assert_eq!(limit("--app-id web --max-body-size 64Ki"), Some(64 << 10));
    assert_eq!(limit("--app-id web --dapr-http-max-request-size 1"), Some(1 << 20));
    assert_eq!(limit("--app-id web --max-body-size -1"), None);
}

#[test]
fn a9_origins_that_are_allowed_may_use_the_api_and_read_its_answers() {
    let given = |line: &str| {
        let web = options_of(line, &[]).unwrap();
        (web.web_pages.origins, web.as_daprd.cors)
    };
    assert_eq!(given("--app-id web"), (Vec::new(), None));
    assert_eq!(given("--app-id web --allowed-origins *"), (vec!["*".into()], Some(Cors::Any)));
    let list = vec!["https://a.example".to_owned(), "http://b".to_owned()];
    let line = "--app-id web --allowed-origins https://a.example,http://b";
    assert_eq!(given(line), (list.clone(), Some(Cors::List(list))));
}

#[test]
fn a16_variables_of_opentelemetry_name_the_process() {
    let resource =
        |variables: &[(&str, &str)]| options_of("--app-id web", variables).unwrap().trace_resource;
    assert_eq!(resource(&[]), []);
    let text = "service.namespace=production,k8s.pod.name=pod%2D123,broken,service.name=other";
    let named = [("OTEL_SERVICE_NAME", "mine"), ("OTEL_RESOURCE_ATTRIBUTES", text)];
    let pairs = [
        ("service.namespace", "production"),
        ("k8s.pod.name", "pod-123"),
        ("service.name", "mine"),
    ];
    let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(resource(&named), pairs);
}
