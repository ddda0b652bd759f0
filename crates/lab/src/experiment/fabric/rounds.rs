//! Combines rounds and an agent's marks into a block of the record. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;
use tollway_record::Histogram;
use tollway_record::neighbours::{Round, Stage, median};
use tollway_record::record::FabricBlock;

/// A line of an agent's file of marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(super) struct Mark {
    pub(super) revision: u64,
    pub(super) is_listing: bool,
    sent_ns: u64,
    received_ns: u64,
    programmed_ns: u64,
    /// 0 when the neighbour was not found.
    readable_ns: u64,
}

/// Why a round has no times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RoundError {
    #[error("the agent has reported nothing of revision {revision}")]
    NoMark { revision: u64 },
    #[error(
        "the agent did not find what it had written up to revision {revision} in the kernel's table"
    )]
    NotThere { revision: u64 },
    #[error(
        "the agent has asked for its whole group at revision {revision}, though its journal was \
         current"
    )]
    ListedAgain { revision: u64 },
    #[error("there was no round")]
    NoRound,
}

/// Reads the lines that are whole.
///
/// # Errors
/// When a whole line is no mark.
pub(super) fn read_marks(text: &str) -> Result<Vec<Mark>, serde_json::Error> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(serde_json::from_str).collect()
}

/// Rounds of a list need no marks.
pub(super) fn of_lists(rounds: &[Round]) -> Result<FabricBlock, RoundError> {
    let stages: Vec<_> = rounds.iter().map(|round| round.stages_us.clone()).collect();
    block(&stages, &Histogram::new())
}

/// The round of an agent that restarted with its table, from the marks it wrote since.
pub(super) fn of_restart(began_ns: u64, marks: &[Mark]) -> Result<Round, RoundError> {
    let first = marks.first().ok_or(RoundError::NoRound)?;
    if first.is_listing {
        return Err(RoundError::ListedAgain { revision: first.revision });
    }
    let mut round = Round { began_ns, revision: first.revision, ..Round::default() };
    round.stages_us = [(Stage::Received, first.received_ns), (Stage::Total, first.readable_ns)]
        .map(|(stage, at_ns)| (stage, round.since_us(at_ns)))
        .into();
    Ok(round)
}

/// Rounds of a writer, and the marks of the agent that followed. The writer's times of other agents
/// count too: a stage is over when the last of them is there.
pub(super) fn of_writes(rounds: &[Round], marks: &[Mark]) -> Result<FabricBlock, RoundError> {
    let (mut stages, mut each) = (Vec::new(), Histogram::new());
    for round in rounds {
        let mark = mark_of(marks, round.revision)?;
        let mut of_round = round.stages_us.clone();
        let others_us = of_round.remove(&Stage::Received).unwrap_or_default();
        for (stage, at_ns) in [
            (Stage::Sent, mark.sent_ns),
            (Stage::Received, mark.received_ns),
            (Stage::Programmed, mark.programmed_ns),
            (Stage::Total, mark.readable_ns),
        ] {
            let is_of_all = matches!(stage, Stage::Received | Stage::Total);
            let least_us = if is_of_all { others_us } else { 0.0 };
            of_round.insert(stage, round.since_us(at_ns).max(least_us));
        }
        stages.push(of_round);
        for write in &round.writes {
            let readable_us = round.since_us(mark_of(marks, write.revision)?.readable_ns);
            let took_us = (readable_us - write.handed_us).max(0.0);
            each.record_n((took_us * 1e3) as u64, write.entries);
        }
    }
    block(&stages, &each)
}

/// The first mark that has a revision.
fn mark_of(marks: &[Mark], revision: u64) -> Result<&Mark, RoundError> {
    let at = marks.partition_point(|mark| mark.revision < revision);
    match marks.get(at) {
        None => Err(RoundError::NoMark { revision }),
        Some(mark) if mark.readable_ns == 0 => Err(RoundError::NotThere { revision }),
        Some(mark) => Ok(mark),
    }
}

fn block(rounds: &[BTreeMap<Stage, f64>], each: &Histogram) -> Result<FabricBlock, RoundError> {
    if rounds.is_empty() {
        return Err(RoundError::NoRound);
    }
    let mut totals = Histogram::new();
    for round in rounds {
        totals.record((round.get(&Stage::Total).copied().unwrap_or_default() * 1e3) as u64);
    }
    let middle = |stage: Stage| {
        let of: Vec<f64> = rounds.iter().filter_map(|round| round.get(&stage).copied()).collect();
        Some((stage, median(&of)?))
    };
    Ok(FabricBlock {
        rounds: rounds.len() as u64,
        stages_us: Stage::ALL.into_iter().filter_map(middle).collect(),
        round_histogram: totals.encode(),
        entry_histogram: if each.n() > 0 { each.encode() } else { Default::default() },
        ..FabricBlock::default()
    })
}

#[cfg(test)]
mod tests {
    use tollway_record::neighbours::Write;

    use super::*;

    fn mark(revision: u64, readable_ns: u64) -> Mark {
        Mark {
            revision,
            sent_ns: readable_ns - 3_000,
            received_ns: readable_ns - 2_000,
            programmed_ns: readable_ns - 1_000,
            readable_ns,
            ..Mark::default()
        }
    }

    fn round() -> Round {
        let write = |handed_us, entries, revision| Write { handed_us, entries, revision };
        Round {
            began_ns: 1_000_000,
            stages_us: [(Stage::Written, 20.0), (Stage::Durable, 30.0)].into(),
            revision: 9,
            writes: vec![write(10.0, 100, 7), write(20.0, 1, 9)],
            ..Round::default()
        }
    }

    #[test]
    fn a_write_is_readable_with_the_first_mark_that_has_it() {
        // Revisions 7 and 8 came together.
        let marks =
            [mark(5, 1_000_000), mark(8, 1_050_000), mark(9, 1_070_000), mark(9, 2_000_000)];
        let block = of_writes(&[round()], &marks).unwrap();
        let stages: Vec<_> = block.stages_us.into_iter().collect();
        let expected = [20.0, 30.0, 67.0, 68.0, 69.0, 70.0];
        assert_eq!(stages, Stage::ALL.into_iter().zip(expected).collect::<Vec<_>>());
        let each = block.entry_histogram.decode().unwrap();
        // As text it has steps of 64 ns.
        let near = |found: Option<u64>, ns: u64| found.is_some_and(|found| found.abs_diff(ns) < 64);
        assert!(each.n() == 101 && near(each.min_ns(), 40_000) && near(each.max_ns(), 50_000));
    }

    #[test]
    fn a_round_is_over_when_the_last_agent_has_it() {
        let mut with_others = round();
        let marks = [mark(7, 1_050_000), mark(9, 1_070_000)];
        for (others_us, expected) in [(50.0, [68.0, 69.0, 70.0]), (90.0, [90.0, 69.0, 90.0])] {
            with_others.stages_us.insert(Stage::Received, others_us);
            let block = of_writes(std::slice::from_ref(&with_others), &marks).unwrap();
            let found = [Stage::Received, Stage::Programmed, Stage::Total];
            assert_eq!(found.map(|stage| block.stages_us[&stage]), expected);
        }
    }

    #[test]
    fn missing_marks_and_rounds_are_errors() {
        let marks = [mark(8, 1_050_000)];
        assert_eq!(of_writes(&[round()], &marks), Err(RoundError::NoMark { revision: 9 }));
        let lost = [Mark { readable_ns: 0, ..mark(9, 1_050_000) }];
        assert_eq!(of_writes(&[round()], &lost), Err(RoundError::NotThere { revision: 9 }));
        assert_eq!(of_lists(&[]), Err(RoundError::NoRound));
    }

    #[test]
    fn an_agent_that_lists_again_has_not_just_begun_again() {
        let round = of_restart(1_000_000, &[mark(9, 1_070_000), mark(9, 2_000_000)]).unwrap();
        assert_eq!(round.revision, 9);
        assert_eq!(round.stages_us, [(Stage::Received, 68.0), (Stage::Total, 70.0)].into());
        let listed = [Mark { is_listing: true, ..mark(9, 1_070_000) }];
        let expected = Err(RoundError::ListedAgain { revision: 9 });
        assert_eq!(of_restart(1_000_000, &listed).map(drop), expected);
        assert_eq!(of_restart(1_000_000, &[]).map(drop), Err(RoundError::NoRound));
    }

    #[test]
    fn a_line_that_is_not_whole_is_not_read() {
        let line = "{\"revision\":3,\"is_listing\":true,\"entries\":0,\"asked_ns\":1,\"sent_ns\":2,\
                    \"received_ns\":3,\"programmed_ns\":4,\"readable_ns\":5}\n";
        let marks = read_marks(&format!("{line}{{\"revi")).unwrap();
        assert_eq!((marks.len(), marks[0].revision, marks[0].is_listing), (1, 3, true));
        assert!(read_marks("no\n").is_err());
    }
}
