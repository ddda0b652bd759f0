//! What is around every page: style, scripts, and a policy under which nothing else runs
//! and nothing is fetched.

use std::sync::LazyLock;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde::Serialize;

/// The style of every page.
pub(crate) const STYLE: &str = include_str!("../../assets/page.css");

const PAGE: &str = include_str!("../../assets/page.js");
const CHARTS: &str = include_str!("../../assets/charts.js");

const LIST: &str = include_str!("../../assets/list.js");

/// What a page from disk may do: nothing but its own style and scripts.
static FILE_POLICY: LazyLock<String> =
    LazyLock::new(|| format!("{}; form-action 'none'", policy(&[PAGE, CHARTS])));

/// What a served page may do: the same, and ask its own server for another page.
static SERVED_POLICY: LazyLock<String> = LazyLock::new(|| {
    let own = policy(&[PAGE, CHARTS, LIST]);
    format!("{own}; img-src data:; form-action 'self'; frame-ancestors 'none'")
});

fn policy(scripts: &[&str]) -> String {
    let scripts: Vec<String> = scripts.iter().copied().map(hash).collect();
    let (style, scripts) = (hash(STYLE), scripts.join(" "));
    format!("default-src 'none'; style-src {style}; script-src {scripts}; base-uri 'none'")
}

/// The policy of served pages, for their header.
pub(crate) fn served_policy() -> &'static str {
    &SERVED_POLICY
}

/// One page of HTML.
pub(crate) struct Page {
    title: String,
    /// The page's content, header included.
    body: Markup,
    /// Where the policy is part of the page: a page from disk has no headers.
    from_disk: bool,
    scripts: &'static [&'static str],
}

impl Page {
    /// A page that opens from disk, with charts.
    pub(crate) fn on_disk(title: &str, body: Markup) -> Self {
        Self { title: title.to_owned(), body, from_disk: true, scripts: &[CHARTS] }
    }

    /// A page of the server, which sends the policy; without charts.
    pub(crate) fn served(title: &str, body: Markup) -> Self {
        Self { title: title.to_owned(), body, from_disk: false, scripts: &[] }
    }

    pub(crate) fn with_charts(self) -> Self {
        Self { scripts: &[CHARTS], ..self }
    }

    /// With what moves in the list of results.
    pub(crate) fn with_list(self) -> Self {
        Self { scripts: &[LIST], ..self }
    }

    pub(crate) fn into_string(self) -> String {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    @if self.from_disk {
                        meta http-equiv="Content-Security-Policy" content=(*FILE_POLICY);
                    }
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="referrer" content="no-referrer";
                    @if !self.from_disk {
                        // Nothing, or the browser would ask the server for one.
                        link rel="icon" href="data:,";
                    }
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                    script { (PreEscaped(PAGE)) }
                }
                body {
                    main { (self.body) }
                    @for script in self.scripts { script { (PreEscaped(script)) } }
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
