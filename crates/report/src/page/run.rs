//! The page of a single load run.

use maud::{Markup, html};

use super::{figure, tables};
use crate::contents;
use crate::document::{Document, RunFile};
use crate::plot::{self, Climb, Sample};

/// Colours of response and service times.
const RESPONSE: usize = 1;
const SERVICE: usize = 2;

/// The report of a run, under `tools`.
pub(crate) fn body(file: &RunFile, tools: Markup) -> Markup {
    let run = &file.run;
    html! {
        header {
            div.top {
                p.eyebrow {
                    span.brand { "Tollway" }
                    span { (file.kind.word()) }
                    time datetime=(run.started_at) { (contents::shown_time(&run.started_at)) }
                }
                (tools)
            }
            h1 { bdi { (title(file)) } }
            @for sentence in contents::run_headline(file) {
                p.verdict { (tables::unbroken(&sentence)) }
            }
        }
        (charts(file))
        (tables::titled(&contents::run_table(file)))
        (tables::titled(&contents::run_errors(&run.traffic)))
        (tables::titled(&contents::run_trials(run)))
        section {
            h2 { "How it was measured" }
            (tables::facts(&contents::run_facts(file)))
        }
    }
}

/// What a run is called on its page.
pub(crate) fn title(file: &RunFile) -> String {
    let label = if file.label.is_empty() { &file.run.target } else { &file.label };
    if label.is_empty() { "A load run".to_owned() } else { contents::clipped(label) }
}

fn charts(file: &RunFile) -> Markup {
    let run = &file.run;
    let samples = match samples(file) {
        Ok(samples) => samples,
        Err(error) => return html! { p.doubt { "No curve: " (error) "." } },
    };
    let percentiles = plot::percentiles(&samples);
    let distribution = plot::distribution(&samples);
    let groups = Document::part_of(file);
    let courses = plot::courses(&[groups.course("", RESPONSE)], &[]);
    let steps = run.steps.iter();
    let rungs =
        steps.filter_map(|step| Some((step.traffic.requested_rps?, step.traffic.latency_us)));
    let climb = Climb { name: String::new(), colour: RESPONSE, rungs: rungs.collect() };
    let ladder = plot::ladder("With more load", &[climb]);
    let titled = [("r", ladder), ("p", percentiles), ("d", distribution)];
    let plots = titled.into_iter().filter_map(|(id, plot)| Some((id.to_owned(), plot?)));
    let courses = courses.into_iter().enumerate().map(|(at, plot)| (format!("t{at}"), plot));
    let passed = run.throughput.as_ref().map(plot::throughput).unwrap_or_default();
    let passed = passed.into_iter().enumerate().map(|(at, plot)| (format!("b{at}"), plot));
    let plots: Vec<_> = plots.chain(passed).chain(courses).collect();
    if plots.is_empty() {
        return Markup::default();
    }
    html! {
        section {
            div.charts {
                @for (id, plot) in &plots { (figure(&format!("chart-{id}"), plot)) }
            }
            p.note { "Dashed where fewer than 100 samples lie beyond." }
        }
    }
}

/// Response times, and service times where they are others.
fn samples(file: &RunFile) -> Result<Vec<Sample>, tollway_record::HistogramError> {
    let traffic = &file.run.traffic;
    let sample = |name: &str, colour, whole| {
        let name = name.to_owned();
        Sample { name, colour, whole, parts: Vec::new() }
    };
    if file.from_send {
        return Ok(vec![sample("service time", SERVICE, traffic.latencies()?)]);
    }
    let response = traffic.latencies()?;
    let service = traffic.services()?;
    let mut samples = vec![sample("response time", RESPONSE, response)];
    let other = traffic.service_us != traffic.latency_us;
    samples.extend((other && service.n() > 0).then(|| sample("service time", SERVICE, service)));
    Ok(samples)
}
