//! A chart on a page: caption, legend, the drawing, and the figures that its script reads out.

use maud::{Markup, html};

use super::shell;
use crate::plot::{COLOURS, Key, Plot, svg};

/// The chart; `id` is unique in the page.
pub(crate) fn figure(id: &str, plot: &Plot) -> Markup {
    html! {
        figure.chart id=(id) {
            figcaption {
                strong { (plot.title) }
                span.keys {
                    @for key in plot.keys() {
                        span class=(key_class(&key)) { bdi { (key.name) } }
                    }
                }
            }
            div.stage { (svg(id, plot)) }
            script.plot type="application/json" { (shell::data(plot)) }
        }
    }
}

fn key_class(key: &Key<'_>) -> String {
    let dashed = if key.colour >= COLOURS { " dashed" } else { "" };
    let thin = if key.thin { " thin" } else { "" };
    format!("key colour-{}{dashed}{thin}", key.colour % COLOURS)
}
