//! Reads scenarios, built-in ones and users' files; every error has its line and column.

use std::path::Path;

use anyhow::Result;
use serde::Deserialize;
use tollway_config::suggest;
use tollway_lab::scenario::{self, AnyScenario, BUILT_IN, FabricScenario, Scenario, ScenarioKind};
use tollway_lab::subject::Catalogue;
use tollway_model::ErrorCode;

use crate::failure::Failure;
use tollway_config::Mistakes;
use tollway_config::yaml;

/// A scenario and the text it was read from.
#[derive(Clone)]
pub(crate) struct Read {
    pub(crate) scenario: AnyScenario,
    pub(crate) text: String,
}

/// Reads a built-in scenario.
///
/// # Errors
/// Never for the names in [`BUILT_IN`], all of which a test reads.
pub(crate) fn built_in(name: &str, catalogue: &Catalogue) -> Result<Read> {
    match scenario::built_in(name) {
        Some(known) => parse(known.text, name, catalogue),
        None => Err(unknown(name).into()),
    }
}

/// Reads a built-in scenario, or else a file. A name in the form of a path is one.
pub(super) fn find(name: &str, catalogue: &Catalogue) -> Result<Read> {
    if scenario::built_in(name).is_some() {
        return built_in(name, catalogue);
    }
    let path = Path::new(name);
    let looks_like_file = name == "-" || name.contains(['/', '.']) || path.exists();
    if !looks_like_file {
        return Err(unknown(name).into());
    }
    parse(&yaml::read_file(path)?, name, catalogue)
}

/// Reads and checks a scenario of either kind; `source` names the text in errors.
pub(super) fn parse(text: &str, source: &str, catalogue: &Catalogue) -> Result<Read> {
    let scenario: AnyScenario = match kind_of(text) {
        ScenarioKind::Requests => yaml::parse::<Scenario>(text, source)?.into(),
        ScenarioKind::Fabric => yaml::parse::<FabricScenario>(text, source)?.into(),
    };
    let mistakes = scenario.check(catalogue);
    if mistakes.is_empty() {
        return Ok(Read { scenario, text: text.to_owned() });
    }
    let mistakes = mistakes.into_iter().map(|mistake| mistake.within(source)).collect();
    Err(Mistakes(mistakes).into())
}

/// The kind that a file's `schema` names; errors of the file are reported when it is read as that.
fn kind_of(text: &str) -> ScenarioKind {
    #[derive(Deserialize)]
    struct Envelope {
        schema: String,
    }
    let read: Result<Envelope, _> = yaml::parse(text, "");
    read.map_or(ScenarioKind::Requests, |envelope| ScenarioKind::of_schema(&envelope.schema))
}

fn unknown(name: &str) -> Failure {
    let known: Vec<&str> = BUILT_IN.iter().map(|scenario| scenario.name).collect();
    let what = suggest::unknown("scenario", name, known);
    Failure::new(
        ErrorCode::BadConfiguration,
        format!("{what}; `tollway lab list` shows them all, and a file is given with its path"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        let error = parse(text, "my.yaml", &Catalogue::built_in()).err().unwrap();
        match error.downcast_ref::<Mistakes>() {
            Some(Mistakes(mistakes)) => mistakes.iter().map(|m| m.to_string() + "\n").collect(),
            _ => error.to_string(),
        }
    }

    const GOOD: &str = "schema: tollway.scenario/1\nname: mine\npurpose: to see\nnetworks:\n  \
        - {name: home, topology: same-network}\nsubjects: [direct, tollway]\ncases:\n  \
        - name: get\n    protocol: http1\n    arrival: closed\n    connections: 4\nlengths:\n  \
        quick: {blocks: 2, window_s: 1}\n  usual: {blocks: 3, window_s: 1}\n  \
        full: {blocks: 4, window_s: 1}\n";

    #[test]
    fn every_built_in_scenario_is_right() {
        for known in BUILT_IN {
            let read = built_in(known.name, &Catalogue::built_in());
            let read = read.unwrap_or_else(|_| panic!("{}", refusal(known.text)));
            assert_eq!(read.scenario.name(), known.name);
            assert!(read.scenario.purpose().len() <= 80, "{}", read.scenario.purpose());
        }
    }

    const FABRIC: &str = "schema: tollway.fabric-scenario/1\nname: mine\npurpose: to see\ncases:\n  \
        - {name: list, measure: list, entries: [1]}\nlengths:\n  \
        quick: {blocks: 1, most_entries: 9, block_entries: 9, most_rounds: 5}\n  \
        usual: {blocks: 1, most_entries: 9, block_entries: 9, most_rounds: 5}\n  \
        full: {blocks: 1, most_entries: 9, block_entries: 9, most_rounds: 5}\n";

    #[test]
    fn the_schema_names_the_kind() {
        assert_eq!(
            (kind_of(FABRIC), kind_of(GOOD)),
            (ScenarioKind::Fabric, ScenarioKind::Requests)
        );
        let parse = |text: &str| parse(text, "my.yaml", &Catalogue::built_in());
        let read = parse(FABRIC).unwrap().scenario;
        assert!(matches!(read, AnyScenario::Fabric(scenario) if scenario.cases.len() == 1));
        let wrong = FABRIC.replace("measure: list", "measure: lst");
        let error = parse(&wrong).err().unwrap().to_string();
        assert!(error.contains("unknown value `lst`; did you mean `list`?"), "{error}");
        let older = parse(&FABRIC.replace("scenario/1", "scenario/2"));
        let Some(Mistakes(mistakes)) = older.as_ref().err().and_then(|error| error.downcast_ref())
        else {
            panic!("it was not refused by its meaning")
        };
        let expected = "my.yaml:1:9: this version reads `tollway.fabric-scenario/1`";
        assert_eq!(mistakes[0].to_string(), expected);
    }

    #[test]
    fn a_right_file_is_read() {
        let read = parse(GOOD, "my.yaml", &Catalogue::built_in()).unwrap().scenario;
        let AnyScenario::Requests(scenario) = read else { panic!("it is of the fabric") };
        assert_eq!(scenario.cases[0].connections.value, 4);
    }

    #[test]
    fn mistakes_have_a_place_and_a_hint() {
        let check = |from: &str, to: &str, message: &str| {
            assert!(GOOD.contains(from), "{from}");
            assert_eq!(refusal(&GOOD.replacen(from, to, 1)).trim_end(), message);
        };
        check("name: mine", "nam: mine", "my.yaml:2:1: unknown field `nam`; did you mean `name`?");
        check("http1", "htp1", "my.yaml:9:15: unknown value `htp1`; did you mean `http1`?");
        check(
            "tollway]",
            "tolway]",
            "my.yaml:6:20: unknown subject `tolway`; did you mean `tollway`?",
        );
        check(
            "tollway]",
            "tollway:policies]",
            "my.yaml:6:20: unknown variant of tollway `policies`; did you mean `policy`?",
        );
        check(
            "connections: 4",
            "connections: 4\n    networks: [hom]",
            "my.yaml:12:16: unknown network `hom`; did you mean `home`?",
        );
        check(
            "connections: 4",
            "connections: 0",
            "my.yaml:11:18: `connections` is from 1 to 10000",
        );
        check(
            "arrival: closed",
            "arrival: {open: {rate_rps: -1}}",
            "my.yaml:10:32: a rate is above 0 and at most 10000000",
        );
        check(
            "arrival: closed",
            "arrival: {share_of_slowest: {case: get, share: 0.5}}",
            "my.yaml:10:40: unknown case in closed loop `get`; none is expected here",
        );
        check("blocks: 2", "blocks: 0", "my.yaml:13:10: `blocks` is from 1 to 1000");
    }

    #[test]
    fn several_mistakes_are_reported_at_once() {
        let text = GOOD.replace("connections: 4", "connections: 0").replace("tollway]", "x]");
        assert_eq!(refusal(&text).lines().count(), 2, "{}", refusal(&text));
    }
}
