//! A chart on a page: caption, keys, the drawing, and the figures for the browser's chart.

use maud::{Markup, html};

use super::shell;
use crate::plot::{COLOURS, Plot, svg};

/// The chart; `id` is unique in the page.
pub(crate) fn figure(id: &str, plot: &Plot) -> Markup {
    html! {
        figure.chart id=(id) {
            figcaption {
                strong { (plot.title) }
                span.keys {
                    @for (name, colour) in plot.keys() {
                        span class=(key_class(colour)) { bdi { (name) } }
                    }
                }
            }
            (svg(id, plot))
            script.plot type="application/json" { (shell::data(plot)) }
        }
    }
}

fn key_class(colour: usize) -> String {
    let dashed = if colour >= COLOURS { " dashed" } else { "" };
    format!("key colour-{}{dashed}", colour % COLOURS)
}
