//! Limits of traffic policies, through real processes.

use std::time::Duration;

use tollway_tests::mesh::load::Load;
use tollway_tests::mesh::{AppProtocol, Network, counter};

const SERVICE: &str = "echo.default.east";

#[test]
fn each_of_three_callers_gets_what_its_limit_allows() {
    const PER_SECOND: u32 = 200;
    let time = Duration::from_secs(10);
    let network = Network::start("east", "127.0.1.2", &[]);
    let app = network.app("echo", "echo", AppProtocol::Http);
    let callers = ["web", "office", "audit"].map(|name| network.sidecar(name, &[]));
    callers.iter().for_each(|caller| caller.until_served(SERVICE));
    let policy = format!(
        "apiVersion: tollway/v1\nkind: TrafficPolicy\nmetadata: {{name: echo}}\n\
         spec: {{target: {{app: echo}}, rate: {{caller: {{requests: {PER_SECOND}, per: 1s}}}}}}\n"
    );
    network.apply(&policy);
    // The rate of 1,000 a second, of which each caller has a third.
    let loads = callers.each_ref().map(|caller| {
        let url = format!("http://{}/v1.0/invoke/{SERVICE}/method/echo", caller.http());
        Load::http(&url, 334, time)
    });
    let allowed = f64::from(PER_SECOND) * time.as_secs_f64();
    for load in loads {
        let traffic = load.result().traffic;
        let admitted = traffic.requests as f64;
        assert!((admitted / allowed - 1.0).abs() < 0.05, "{admitted} of {allowed}: {traffic:?}");
    }
    assert!(counter(&app.sidecar.process, "tollway_rate_limited_total") > 3000);
}
