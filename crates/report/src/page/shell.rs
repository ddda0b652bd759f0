//! The document around every page: style, scripts, and a policy under which nothing else runs
//! and nothing is fetched.

use std::sync::LazyLock;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Serialize;

/// uPlot's own style comes first, so that the page's may correct it.
pub(crate) const STYLE: &str = concat!(
    include_str!("../../assets/uplot/uPlot.min.css"),
    include_str!("../../assets/page.css")
);

const UPLOT: &str = include_str!("../../assets/uplot/uPlot.iife.min.js");
const PAGE: &str = include_str!("../../assets/page.js");
const CHARTS: &str = include_str!("../../assets/charts.js");

/// Hashes of the pages' style and scripts, for the policy.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let scripts: Vec<String> = [PAGE, UPLOT, CHARTS].iter().copied().map(hash).collect();
    format!(
        "default-src 'none'; style-src {}; script-src {}; base-uri 'none'",
        hash(STYLE),
        scripts.join(" ")
    )
});

/// One page of HTML.
pub(crate) struct Document {
    pub(crate) title: String,
    /// The page's content, header included.
    pub(crate) body: Markup,
    /// Whether the body has charts, and so needs what draws them.
    pub(crate) charts: bool,
}

impl Document {
    pub(crate) fn into_string(self) -> String {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="Content-Security-Policy"
                        content=(format!("{}; form-action 'none'", *POLICY));
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="referrer" content="no-referrer";
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                    script { (PreEscaped(PAGE)) }
                }
                body {
                    main { (self.body) }
                    @if self.charts {
                        script { (PreEscaped(UPLOT)) }
                        script { (PreEscaped(CHARTS)) }
                    }
                }
            }
        }
        .into_string()
    }
}

/// The buttons of every page; they need the page's script, which shows them.
pub(crate) fn tools(download: Option<&str>) -> Markup {
    html! {
        div.tools hidden {
            @if let Some(name) = download {
                button type="button" data-download=(name) { "Download JSON" }
            }
            button type="button" data-print="" { "Print" }
            button type="button" data-theme-button="" { "Theme: system" }
        }
    }
}

/// JSON that a script reads, such that no text in it can end or open a script element.
///
/// # Panics
/// Never: plots and records have string keys only.
pub(crate) fn data<T: Serialize>(value: &T) -> PreEscaped<String> {
    inert(&serde_json::to_string(value).expect("plain fields with string keys"))
}

/// JSON text such that no text in it can end or open a script element.
pub(crate) fn inert(json: &str) -> PreEscaped<String> {
    PreEscaped(json.replace('<', "\\u003c"))
}

fn hash(text: &str) -> String {
    let digest = digest::digest(&digest::SHA256, text.as_bytes());
    format!("'sha256-{}'", BASE64_STANDARD.encode(digest))
}
