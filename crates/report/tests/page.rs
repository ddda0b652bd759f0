//! The HTML report: well-formed, self-contained, safe with hostile text.

mod fixtures;

use tollway_report::html;

#[test]
fn writes_page() {
    let page = html(&fixtures::fabricated());
    std::fs::write(concat!(env!("CARGO_TARGET_TMPDIR"), "/fixture.html"), page).unwrap();
    println!("{}", tollway_report::terminal(&fixtures::fabricated(), 112, false));
}
