//! What a web page can have a browser on this machine ask of a sidecar.

use tollway_identity::SharedToken;

use super::*;
use crate::tokens::Tokens;

const LISTENERS: [ListenerKind; 3] =
    [ListenerKind::HttpApi, ListenerKind::GrpcApi, ListenerKind::Outbound];

/// A sidecar whose runtime answers 200.
fn sidecar(token: Option<&str>) -> Running {
    let (network, web) = (Network::new("west"), service("web"));
    let credentials = network.credentials(&web, "w-1", &[]);
    let api = token.map(|token| SharedToken::new(token).unwrap());
    let tokens = Tokens { api, app: None };
    let config = Arc::new(LoopConfig { tokens, ..LoopConfig::of_test(web) });
    let around = Around::default();
    let sidecar = Http::sidecar(&config, credentials, Box::new(around.clone()));
    let running = Running::of(None, config, &LISTENERS, around, sidecar);
    running.send_egress(tollway_routing::EgressRules::default());
    running.run(ApiKind::Own, async |_| Ok(Response::new(Full::from("done"))));
    running
}

/// The status and the code of the answer to a request that a browser sends without asking before.
fn ask(address: SocketAddr, target: &str, host: &str, fields: &str) -> (u16, String) {
    let request = format!(
        "POST {target} HTTP/1.1\r\nhost: {host}\r\n{fields}content-type: text/plain\r\n\
         connection: close\r\ncontent-length: 2\r\n\r\n[]"
    );
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let code = answer.split("x-tollway-error: ").nth(1).and_then(|rest| rest.split('\r').next());
    (status, code.unwrap_or_default().to_owned())
}

const STATE: &str = "/v1.0/state/statestore";
const REBOUND: &str = "rebind.evil.example:3500";

/// The harm: a page of any site writes state and calls services in the name of the app.
#[test]
fn a_page_of_another_site_uses_no_port_of_the_app() {
    let sidecar = sidecar(None);
    let refused = (403, "ERR_CROSS_SITE".to_owned());
    for (address, target) in [
        (sidecar.addresses[0], STATE),
        (sidecar.addresses[0], "/v1.0/invoke/stock/method/buy"),
        (sidecar.addresses[1], STATE),
        (sidecar.addresses[2], "http://stock.default.west.mesh/buy"),
    ] {
        let host = match target.strip_prefix("http://") {
            Some(rest) => rest.split('/').next().unwrap(),
            None => "localhost:3500",
        };
        for fields in [
            "origin: https://evil.example\r\n",
            "origin: null\r\n",
            "origin: http://localhost:8080\r\n",
            "sec-fetch-site: cross-site\r\n",
            "Sec-Fetch-Site: same-site\r\n",
        ] {
            assert_eq!(ask(address, target, host, fields), refused, "{target} {fields}");
        }
    }
    for fields in ["", "sec-fetch-site: same-origin\r\norigin: http://localhost:3500\r\n"] {
        assert_eq!(ask(sidecar.addresses[0], STATE, "localhost:3500", fields).0, 200, "{fields}");
    }
}

/// The harm: a page whose name is led to this machine is of the sidecar's own origin to its browser, and
/// reads what it asks for.
#[test]
fn a_page_with_a_name_of_its_own_uses_no_port_of_the_app() {
    let sidecar = sidecar(None);
    let refused = (403, "ERR_HOST_NAME".to_owned());
    for address in &sidecar.addresses[..2] {
        let own = "origin: http://rebind.evil.example:3500\r\n";
        for fields in ["", own, "content-type: application/grpc\r\n"] {
            let (status, code) = ask(*address, STATE, REBOUND, fields);
            // A call of gRPC has its status in fields.
            assert_eq!((code.as_str(), status == 200), (&*refused.1, fields.contains("grpc")));
        }
    }
    let (_, code) = ask(sidecar.addresses[2], STATE, REBOUND, "");
    assert_eq!(code, "ERR_BAD_NAME", "no name of the mesh");
    for host in
        ["127.0.0.1:3500", "[::1]:3500", "web.localhost", "my-sidecar:3500", "a.b.west.mesh"]
    {
        assert_eq!(ask(sidecar.addresses[0], STATE, host, "").0, 200, "{host}");
    }
}

#[test]
fn a_token_is_asked_for_in_place_of_host_and_site() {
    let sidecar = sidecar(Some("sesame"));
    let shown = "dapr-api-token: sesame\r\norigin: https://shop.example\r\n";
    assert_eq!(ask(sidecar.addresses[0], STATE, REBOUND, shown).0, 200);
    let (status, code) = ask(sidecar.addresses[0], STATE, REBOUND, "origin: null\r\n");
    assert_eq!((status, code.as_str()), (401, "ERR_API_TOKEN"));
    // The outbound port takes no token.
    let target = "http://stock.default.west.mesh/buy";
    let (_, code) = ask(
        sidecar.addresses[2],
        target,
        "stock.default.west.mesh",
        "sec-fetch-site: cross-site\r\n",
    );
    assert_eq!(code, "ERR_CROSS_SITE");
}
