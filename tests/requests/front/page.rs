//! The metrics of a front: what is documented, and what Prometheus' linter accepts.

use tollway_testkit::need_tool;

use crate::front::world::{World, get};
use tollway_tests::metrics_page::{check_documented, check_lint};
use tollway_tests::scripted_app::Script;

#[test]
fn a_front_shows_what_is_documented() {
    let world = World::start(Script::new(), &[]);
    world.ask(world.files.client(), &get("/")).unwrap();
    let page = world.front.metrics().unwrap();
    check_documented("front", &page);
    let answered = "tollway_responses_total{direction=\"inbound\",status=\"2xx\"} 1";
    assert!(page.contains(answered), "{page}");
}

#[test]
fn the_linter_of_prometheus_finds_no_fault() {
    let promlint = need_tool!("promlint");
    let world = World::start(Script::new(), &[]);
    check_lint(&promlint, "front", &world.front.metrics().unwrap());
}
