//! Bulk beside small requests: a transfer that the network holds up holds up nothing else.

use std::cell::RefCell;

use tollway_net::memory::Hold;

use super::*;

#[test]
fn a_transfer_that_is_held_up_holds_up_no_small_request() {
    let (network, stock, web) = (Network::new("west"), service("stock"), service("web"));
    let app = Some(AppTarget::at(start_app(), AppProtocol::Http));
    let credentials = network.credentials(&stock, "s-1", &[]);
    let callee = Running::start(stock.clone(), credentials, &[ListenerKind::Inbound], app, None);
    let lines = Rc::<RefCell<Vec<Hold>>>::default();
    let taken = Rc::clone(&lines);
    let address = sim::forward(callee.addresses[0], Duration::ZERO, move |line| {
        taken.borrow_mut().push(line)
    });
    let open = || lines.borrow().iter().filter(|line| line.is_open()).count();
    let credentials = network.credentials(&web, "w-1", &[]);
    let caller = Running::start(web, credentials, &[ListenerKind::HttpApi], None, None);
    caller.send_state(
        &stock,
        ServiceState::Local {
            unready: [].into(),
            endpoints: [Endpoint::new(label("s-1"), address)].into(),
            protocol: AppProtocol::Http,
            trust_domain: network.trust_domain,
        },
    );
    let get =
        |path: &str| format!("GET /v1.0/invoke/stock/method{path} HTTP/1.1\r\nhost: a\r\n\r\n");

    let mut bulk = connect(caller.addresses[0]);
    bulk.write_all(get("/large/4").as_bytes()).unwrap();
    let (mut received, mut buffer) = (0, vec![0; 1 << 20]);
    while received < 1_000_000 {
        received += bulk.read(&mut buffer).unwrap();
    }
    lines.borrow()[0].hold(true);
    let mut small = connect(caller.addresses[0]);
    for _ in 0..50 {
        let answer = talk(&mut small, get("/small").as_bytes(), b"\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    assert_eq!(open(), 2, "one connection each");
    assert_eq!(caller.metrics.bulk_bodies.value(), 1, "small ones do not count");

    lines.borrow()[0].hold(false);
    while received < 4_000_000 {
        received += bulk.read(&mut buffer).unwrap();
    }
    advance(patient().bulk_pause + 3 * SWEEP);
    assert_eq!(open(), 1, "one connection is enough again");
    let answer = talk(&mut small, get("/small").as_bytes(), b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(caller.metrics.dials.value(), 2);
}
