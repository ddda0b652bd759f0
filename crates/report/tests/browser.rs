//! The report in a real browser, opened from disk: charts, keys, themes, widths, no complaint.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod fixtures;

use std::path::Path;

use serde_json::json;
use tollway_record::traffic::SeriesPoint;
use tollway_report::html;
use tollway_testkit::{Browser, TempDir, need_tool};

/// Every chart has come into view, and so can be read out.
const SCROLL_THROUGH: &str = "(async () => {
    for (const part of document.querySelectorAll('details')) part.open = true;
    for (const figure of document.querySelectorAll('figure.chart')) {
        figure.scrollIntoView();
        while (!figure.classList.contains('live')) await new Promise((go) => setTimeout(go, 10));
    }
})()";

#[test]
fn a_report_from_disk_draws_its_charts_and_complains_of_nothing() {
    let chromium = need_tool!("chromium");
    let dir = TempDir::new().unwrap();
    let mut record = fixtures::fabricated();
    let point = |t_s: f64| SeriesPoint {
        t_s,
        rps: 1_000.0,
        p50: Some(90.0),
        p99: Some(200.0),
        ..SeriesPoint::default()
    };
    record.rows[0].traffic.series = (1..=25).map(|second| point(second.into())).collect();
    let mut browser = opened(&chromium, &dir, &html(&record));

    browser.evaluate(SCROLL_THROUGH).unwrap();
    let live = browser.evaluate("document.querySelectorAll('figure.live svg').length").unwrap();
    assert_eq!(live, json!(14), "percentiles, spread, and two courses");
    let painted = "[...document.querySelectorAll('figure.live svg')].filter((svg) =>
        [...svg.querySelectorAll('[data-line] path')].some((path) => path.getTotalLength() > 50
        && getComputedStyle(path).stroke !== 'none')).length";
    assert_eq!(browser.evaluate(painted).unwrap(), json!(14), "a chart is empty");
    // At the place of the pointer there are a rule and a dot for each line.
    let pointed = "(() => {
        const svg = document.querySelector('.stage svg');
        const box = svg.getBoundingClientRect();
        const at = { clientX: box.left + box.width / 2, clientY: box.top + 50, bubbles: true };
        svg.dispatchEvent(new PointerEvent('pointermove', at));
        return svg.querySelectorAll('.cursor circle').length;
    })()";
    assert_eq!(browser.evaluate(pointed).unwrap(), json!(2));

    // Moving along a chart with the keyboard shows its figures.
    browser.evaluate("document.querySelector('.stage').focus()").unwrap();
    browser.press("End").unwrap();
    browser.press("ArrowLeft").unwrap();
    browser.until("/p99.*tollway/.test(document.querySelector('.readout').textContent)").unwrap();
    // A name hides its line.
    browser.click("button.key").unwrap();
    browser.until("document.querySelector('button.key').ariaPressed === 'false'").unwrap();
    browser.until("!/direct/.test(document.querySelector('.readout').textContent)").unwrap();
    let hidden = "document.querySelectorAll('.stage .hidden').length";
    assert!(browser.evaluate(hidden).unwrap().as_u64().unwrap() > 0);
    browser.click(".chart-buttons button").unwrap();
    assert_eq!(browser.errors().unwrap(), Vec::<String>::new());
}

#[test]
fn a_report_follows_the_theme_and_fits_a_telephone() {
    let chromium = need_tool!("chromium");
    let dir = TempDir::new().unwrap();
    let mut browser = opened(&chromium, &dir, &html(&fixtures::fabricated()));
    let paper = "getComputedStyle(document.body).backgroundColor";
    let light = browser.evaluate(paper).unwrap();
    browser.prefer_dark(true).unwrap();
    let dark = browser.evaluate(paper).unwrap();
    assert_ne!(light, dark);
    // The button goes through system, light, dark.
    browser.click("[data-theme-button]").unwrap();
    assert_eq!(browser.evaluate(paper).unwrap(), light);
    browser.click("[data-theme-button]").unwrap();
    browser.prefer_dark(false).unwrap();
    assert_eq!(browser.evaluate(paper).unwrap(), dark);

    for width in [400, 768, 1280] {
        browser.resize(width, 900).unwrap();
        browser.evaluate(SCROLL_THROUGH).unwrap();
        // Charts follow the window after the browser's resize event.
        browser.until(&format!("document.documentElement.scrollWidth === {width}")).unwrap();
    }
    assert_eq!(browser.errors().unwrap(), Vec::<String>::new());
}

#[test]
fn on_paper_a_report_is_light_and_has_nothing_to_click() {
    let chromium = need_tool!("chromium");
    let dir = TempDir::new().unwrap();
    let mut browser = opened(&chromium, &dir, &html(&fixtures::fabricated()));
    browser.evaluate("document.documentElement.dataset.theme = 'dark'").unwrap();
    browser.evaluate(SCROLL_THROUGH).unwrap();
    browser.evaluate("document.querySelectorAll('details')[0].open = false").unwrap();
    let shown = |selector: &str| {
        format!(
            "[...document.querySelectorAll('{selector}')].filter((one) => one.checkVisibility()).length"
        )
    };
    let controls = shown("button:not(.key), form, .under, details:not([open]) summary");
    assert!(browser.evaluate(&controls).unwrap().as_u64().unwrap() > 5);
    browser.on_paper(true).unwrap();
    assert_eq!(browser.evaluate(&controls).unwrap(), json!(0));
    let drawn = browser.evaluate(&shown("figure.chart svg.still")).unwrap();
    assert!(drawn.as_u64().unwrap() >= 6, "{drawn}");
    assert_eq!(browser.evaluate(&shown("figure.chart")).unwrap(), drawn);
    let paper = "getComputedStyle(document.body).backgroundColor";
    assert_eq!(browser.evaluate(paper).unwrap(), json!("rgb(255, 255, 255)"));
}

#[test]
fn hostile_names_run_nothing_and_break_no_layout() {
    let chromium = need_tool!("chromium");
    let dir = TempDir::new().unwrap();
    let mut record = fixtures::fabricated();
    let hostile = "</script><script>document.title = 'broken'</script><img src=x onerror=\"document.title = 'broken'\">";
    record.scenario = hostile.to_owned();
    record.rows[0].conditions.subject = hostile.to_owned();
    record.rows[1].conditions.subject = "long".repeat(2_500);
    record.subjects[0].name = "long".repeat(2_500);
    record.warnings = vec!["wide".repeat(2_500)];
    let mut browser = opened(&chromium, &dir, &html(&record));
    browser.resize(400, 900).unwrap();
    browser.evaluate(SCROLL_THROUGH).unwrap();
    assert_eq!(browser.evaluate("document.documentElement.scrollWidth").unwrap(), json!(400));
    assert_eq!(browser.evaluate("document.images.length").unwrap(), json!(0));
    let title = browser.evaluate("document.title").unwrap();
    assert!(title.as_str().unwrap().contains("</script>"), "{title}");
    assert_eq!(browser.errors().unwrap(), Vec::<String>::new());
}

fn opened(chromium: &Path, dir: &TempDir, page: &str) -> Browser {
    let file = dir.path().join("report.html");
    std::fs::write(&file, page).unwrap();
    let mut browser = Browser::start(chromium).unwrap();
    browser.resize(1280, 900).unwrap();
    browser.open(&format!("file://{}", file.display())).unwrap();
    browser
}
