//! Which program this is.

use super::catalogue::names;
use super::page::Page;
use super::part::Part;

/// Puts the version of this build on the page.
pub fn add_build(page: &mut Page, part: Part) {
    let labels = [("part", part.word()), ("version", env!("CARGO_PKG_VERSION"))];
    page.family(&names::BUILD_INFO).sample(&labels, 1);
}
