//! Comparisons as points with their 95 % intervals on a common scale: a table whose middle column
//! is drawn, so that it reads without the drawing and fits any width.

use maud::{Markup, html};
use tollway_record::record::{Comparison, Metric, Question, Verdict};

use crate::contents::{self, Contest, Differences, Pair};
use crate::figures;

mod scale;

use scale::Scale;

/// Lines of one drawing; the tables below have the rest.
const LINES_LIMIT: usize = 48;

/// What is drawn of a question, in this order.
const METRICS: &[(Metric, &str)] = &[
    (Metric::TimePerAnswer, "Time per answer at full load: 2 is half the rate"),
    (Metric::TimePerMegabyte, "Time per megabyte at full load: 2 is half the rate"),
    (Metric::TimePerPacket, "Time per packet at full load: 2 is half the rate"),
    (Metric::LatencyMean, "Mean response time"),
    (Metric::LatencyP50, "Median response time"),
    (Metric::LatencyP99, "p99 response time"),
    (Metric::MachineCpu, "CPU of the whole machine per request"),
];

/// Ratios of the pairs to their baseline, by metric; nothing without them. What the network adds is
/// not shown as a ratio.
///
/// `id` is unique in the page.
pub(crate) fn ratios(id: &str, contest: &Contest<'_>, differences: Differences) -> Markup {
    match drawn(id, contest, differences) {
        Some(drawn) => html! { section { h2 { (title(contest)) } (drawn) } },
        None => Markup::default(),
    }
}

/// As [`ratios`], to be opened.
pub(crate) fn folded(id: &str, contest: &Contest<'_>, differences: Differences) -> Markup {
    match drawn(id, contest, differences) {
        Some(drawn) => html! { details { summary { (title(contest)) } (drawn) } },
        None => Markup::default(),
    }
}

/// How many of the contests are drawn at once: those of the network and of Tollway, and the first
/// baseline of the others.
pub(crate) fn shown_first(contests: &[Contest<'_>]) -> usize {
    let others = contests.iter().position(|c| c.question == Question::AgainstBaseline);
    others.map_or(contests.len(), |first| first + 1)
}

fn title(contest: &Contest<'_>) -> String {
    match contest.question {
        Question::AddedByTollway => "With Tollway, compared".to_owned(),
        Question::AgainstBaseline | Question::AddedByNetwork => {
            format!("{}, compared", contest.title())
        }
    }
}

fn drawn(id: &str, contest: &Contest<'_>, differences: Differences) -> Option<Markup> {
    if contest.question == Question::AddedByNetwork {
        return None;
    }
    let found: Vec<Group<'_>> = METRICS
        .iter()
        .map(|(metric, name)| Group { name, lines: lines(contest, *metric, differences) })
        .filter(|group| !group.lines.is_empty())
        .collect();
    let ratios: Vec<[f64; 3]> =
        found.iter().flat_map(|group| group.lines.iter().map(|line| line.ratio)).collect();
    let scale = Scale::of_ratios(id, &ratios)?;
    Some(html! {
        p.note {
            "Ratio to " (contest.ratio_to()) ": point and 95 % interval, on a logarithmic scale. 1 \
             is the same, left of it is less. The band is what counts as the same; a hollow point \
             is undecided."
        }
        table.forest {
            caption.unseen { (title(contest)) ": ratios with 95 % intervals" }
            @for group in &found { (group.body(&scale)) }
            (axis(&scale))
        }
    })
}

/// What Tollway adds to the mean call of each path, in time; nothing without such. `id` is unique
/// in the page.
pub(crate) fn added(id: &str, contest: &Contest<'_>, differences: Differences) -> Markup {
    if contest.question != Question::AddedByTollway {
        return Markup::default();
    }
    let found = lines(contest, Metric::LatencyMean, differences);
    let differences: Vec<[f64; 3]> = found.iter().map(|line| line.difference).collect();
    let Some(scale) = Scale::of_differences(id, &differences) else { return Markup::default() };
    html! {
        section {
            h2 { "Added by Tollway to the mean response time" }
            p.note { "Point and 95 % interval; left of zero would be faster than without." }
            table.forest {
                caption.unseen { "Mean response time added by Tollway, with 95 % intervals" }
                tbody {
                    @for line in found.iter().take(LINES_LIMIT) {
                        tr {
                            th scope="row" { bdi { (line.name) } }
                            td.drawn { (scale.drawing(line.difference, None, line.verdict)) }
                            td.figure { (line.added()) }
                            td { (verdict_word(line.verdict)) }
                        }
                    }
                }
                (axis(&scale))
            }
        }
    }
}

struct Group<'a> {
    name: &'static str,
    lines: Vec<Line<'a>>,
}

impl Group<'_> {
    fn body(&self, scale: &Scale) -> Markup {
        html! {
            tbody {
                tr.metric { th scope="rowgroup" colspan="4" { (self.name) } }
                @for line in self.lines.iter().take(LINES_LIMIT) {
                    @let margin = 1.0 + line.comparison.margin_pct / 100.0;
                    @let (ratio, range) = line.ratio_text();
                    tr {
                        th scope="row" { bdi { (line.name) } }
                        td.drawn {
                            (scale.drawing(line.ratio, Some([1.0 / margin, margin]), line.verdict))
                        }
                        td.figure { (ratio) " " span.range { (range) } }
                        td { (verdict_word(line.verdict)) }
                    }
                }
                @if self.lines.len() > LINES_LIMIT {
                    tr {
                        th colspan="4" {
                            (self.lines.len() - LINES_LIMIT) " more are in the tables below"
                        }
                    }
                }
            }
        }
    }
}

/// One comparison; its ranges are low end, estimate, high end.
struct Line<'a> {
    name: String,
    comparison: &'a Comparison,
    verdict: Verdict,
    ratio: [f64; 3],
    difference: [f64; 3],
}

impl Line<'_> {
    fn ratio_text(&self) -> (String, String) {
        figures::ratio_with(self.ratio[1], self.comparison.ratio_ci95)
    }

    fn added(&self) -> Markup {
        let comparison = self.comparison;
        let (added, range) =
            figures::difference_with(comparison.difference_us, comparison.difference_ci95_us);
        html! { (added) " " span.range { (range) } }
    }
}

/// The pairs of which that can be drawn; those without an interval are points.
fn lines<'a>(contest: &Contest<'a>, metric: Metric, differences: Differences) -> Vec<Line<'a>> {
    let named = contest.names_subjects();
    // At full load response times follow from the rate and the connections.
    let of_its_own = |pair: &&Pair<'_>| {
        let follows = matches!(
            metric,
            Metric::LatencyMean | Metric::LatencyP50 | Metric::LatencyP90 | Metric::LatencyP99
        );
        pair.full_load().is_none() || !follows
    };
    let pairs = contest.pairs.iter().filter(of_its_own);
    pairs.filter_map(|pair| line(pair, metric, named, differences)).collect()
}

fn line<'a>(
    pair: &Pair<'a>,
    metric: Metric,
    named: bool,
    differences: Differences,
) -> Option<Line<'a>> {
    let comparison = pair.find(metric)?;
    let ratio = comparison.ratio?;
    let [lo, hi] = comparison.ratio_ci95.unwrap_or([ratio; 2]);
    let us = comparison.difference_us;
    let [lo_us, hi_us] = comparison.difference_ci95_us.unwrap_or([us; 2]);
    let drawn = ratio > 0.0 && hi.is_finite() && us.is_finite();
    drawn.then(|| Line {
        name: name_of(pair, named, differences),
        comparison,
        verdict: comparison.verdict,
        ratio: [lo, ratio, hi],
        difference: [lo_us, us, hi_us],
    })
}

fn name_of(pair: &Pair<'_>, named: bool, differences: Differences) -> String {
    let conditions = &pair.row.conditions;
    let words = differences.words(pair.row);
    let parts = [
        named.then(|| pair.label()),
        differences.path.then(|| contents::path_short(conditions.topology).to_owned()),
        Some(contents::protocol(conditions.protocol).to_owned()),
        Some(words).filter(|words| !words.is_empty()),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

fn verdict_word(verdict: Verdict) -> Markup {
    let class = match verdict {
        Verdict::Undecided => "doubt",
        Verdict::Same => "faint",
        Verdict::Faster | Verdict::Slower => "strong",
    };
    html! { span class=(class) { (verdict) } }
}

fn axis(scale: &Scale) -> Markup {
    html! {
        tbody.axis aria-hidden="true" {
            tr {
                th {}
                td.drawn {
                    svg.interval {
                        (scale.rules())
                        @for (index, (tick, name)) in scale.ticks.iter().enumerate() {
                            text class=(scale.tick_class(index)) x=(scale.percent(*tick)) y="12"
                                text-anchor="middle" { (name) }
                        }
                    }
                }
                td colspan="2" {}
            }
        }
    }
}
