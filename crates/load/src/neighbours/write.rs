//! Rounds of writes: so many neighbours as fast as the control plane takes them, then a wait until
//! the agents have them, or until the next round is due, and again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tollway_model::Group;
use tollway_model::neighbour::packed::{BATCH_RECORDS, pack};
use tollway_net::monotonic_ns;
use tollway_record::neighbours::{Round, Stage, Write};
use tollway_wire::v1;
use tollway_wire::v1::neighbours_client::NeighboursClient;
use tonic::transport::Channel;

use super::{Followers, HELD_WITHIN, MAX_NEIGHBOURS, NeighbourLoadError, Population};
use crate::cost::process_cpu;
use tollway_echo::Stop;

/// What to write.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    pub group: Group,
    /// Neighbours of a round.
    pub entries: u32,
    pub rounds: u32,
    /// The number of the first round: rounds of other numbers have other neighbours.
    pub first_round: u32,
    /// Instead of writing new neighbours, rounds move those of the first one, of which there are
    /// so many, from host to host, one after the other.
    pub moved: Option<u32>,
    pub pace: Pace,
}

/// When a round begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// So long after the end of the one before.
    Pause(Duration),
    /// So long after every connected agent held the one before.
    Settled(Duration),
    /// So long after the beginning of the one before; at once, when that lasts longer. What a
    /// round that is late takes counts from when it was to begin.
    Every(Duration),
}

/// Writes rounds of neighbours. A round is over when its last write was answered; ended early by
/// `stop`, only the finished rounds are in the result. Neighbours are made and packed before a round. With
/// followers, a round has a stage `received` of the last of them, and the next one waits for that.
///
/// # Errors
/// [`NeighbourLoadError`].
pub async fn write_neighbours(
    client: &mut NeighboursClient<Channel>,
    options: &WriteOptions,
    followers: &mut Followers,
    stop: &Stop,
) -> Result<Vec<Round>, NeighbourLoadError> {
    let entries = u64::from(options.entries.max(options.moved.unwrap_or(0)));
    if entries > MAX_NEIGHBOURS {
        return Err(NeighbourLoadError::TooMany { entries });
    }
    let (mut rounds, began) = (Vec::new(), Instant::now());
    for number in 0..options.rounds {
        if stop.is_requested() {
            break;
        }
        let batches = batches(options, number);
        let due = match options.pace {
            Pace::Every(every) => Some(began + every * number),
            Pace::Pause(_) | Pace::Settled(_) => None,
        };
        if let Some(due) = due {
            tokio::time::sleep_until(due.into()).await;
        }
        let mut round = write_round(client, &options.group, batches, due).await?;
        if let Some(last_ns) = followers.hold(round.revision).await? {
            round.stages_us.insert(Stage::Received, round.since_us(last_ns));
        }
        if matches!(options.pace, Pace::Settled(_)) {
            wait_for_agents(client, &options.group, round.revision).await?;
        }
        rounds.push(round);
        if let Pace::Pause(pause) | Pace::Settled(pause) = options.pace {
            tokio::time::sleep(pause).await;
        }
    }
    Ok(rounds)
}

/// The neighbours of a round, as many as a request may have in each.
fn batches(options: &WriteOptions, number: u32) -> Vec<(u64, Bytes)> {
    let round = options.first_round;
    let first = u64::from(number) * u64::from(options.entries);
    let record = |index: u32| match options.moved {
        None => Population::of_round(round.wrapping_add(number)).record(index, 0),
        Some(moved) => {
            let (index, moved) = (first + u64::from(index), u64::from(moved.max(1)));
            // Less than `moved`; and every time that all were moved it is to another host.
            Population::of_round(round).record((index % moved) as u32, (index / moved) as u32 + 1)
        }
    };
    let indexes: Vec<u32> = (0..options.entries).collect();
    let batch = |indexes: &[u32]| {
        let mut packed = Vec::new();
        indexes.iter().for_each(|index| pack(&record(*index), &mut packed));
        (indexes.len() as u64, packed.into())
    };
    indexes.chunks(BATCH_RECORDS).map(batch).collect()
}

/// Writes a round that begins now, or was to begin when it was due.
async fn write_round(
    client: &mut NeighboursClient<Channel>,
    group: &Group,
    batches: Vec<(u64, Bytes)>,
    due: Option<Instant>,
) -> Result<Round, NeighbourLoadError> {
    let entries: Vec<u64> = batches.iter().map(|(entries, _)| *entries).collect();
    let request = {
        let group = group.to_string();
        move |packed| v1::WriteNeighboursRequest {
            group: group.clone(),
            operation: v1::NeighbourOperation::Apply.into(),
            neighbours: Vec::new(),
            packed,
        }
    };
    let handed: Arc<Mutex<Vec<u64>>> = Arc::default();
    let note = {
        let handed = Arc::clone(&handed);
        move || handed.lock().unwrap_or_else(PoisonError::into_inner).push(monotonic_ns())
    };
    let late_ns = due.map_or(0, |due| due.elapsed().as_nanos() as u64);
    let (cpu, began_ns) = (process_cpu(), monotonic_ns() - late_ns);
    let mut answers = Vec::with_capacity(entries.len());
    match <[_; 1]>::try_from(batches) {
        Ok([(_, packed)]) => {
            note();
            answers.push(client.write_neighbours(request(packed)).await?.into_inner());
        }
        Err(batches) => {
            // Each is passed on when the connection requests it.
            let requests = batches.into_iter().map(move |(_, packed)| {
                note();
                request(packed)
            });
            let stream = client.write_neighbours_in_bulk(tokio_stream::iter(requests)).await?;
            let mut stream = stream.into_inner();
            while let Some(answer) = stream.message().await? {
                answers.push(answer);
            }
        }
    }
    let durable_ns = monotonic_ns();
    let cpu_us = process_cpu().saturating_sub(cpu).as_secs_f64() * 1e6;
    check(&answers, &entries)?;
    let handed = std::mem::take(&mut *handed.lock().unwrap_or_else(PoisonError::into_inner));
    let mut round = Round { began_ns, cpu_us, ..Round::default() };
    let parts = handed.iter().zip(&entries).zip(&answers);
    round.writes = parts
        .map(|((handed_ns, entries), answer)| Write {
            // One that was due is late from then on.
            handed_us: if due.is_some() { 0.0 } else { round.since_us(*handed_ns) },
            entries: *entries,
            revision: answer.revision,
        })
        .collect();
    round.revision = round.writes.iter().map(|write| write.revision).max().unwrap_or_default();
    let written_us = handed.last().map_or(0.0, |handed_ns| round.since_us(*handed_ns));
    let durable_us = round.since_us(durable_ns);
    round.stages_us = [(Stage::Written, written_us), (Stage::Durable, durable_us)].into();
    Ok(round)
}

/// Whether every change was answered and made.
fn check(
    answers: &[v1::WriteNeighboursResponse],
    entries: &[u64],
) -> Result<(), NeighbourLoadError> {
    if answers.len() < entries.len() {
        return Err(NeighbourLoadError::Ended { answered: answers.len(), sent: entries.len() });
    }
    let mut failures = answers.iter().flat_map(|answer| &answer.failures).peekable();
    let Some(first) = failures.peek().map(|failure| failure.text.clone()) else { return Ok(()) };
    Err(NeighbourLoadError::NotMade {
        count: failures.count(),
        entries: entries.iter().sum(),
        first,
    })
}

async fn wait_for_agents(
    client: &mut NeighboursClient<Channel>,
    group: &Group,
    revision: u64,
) -> Result<(), NeighbourLoadError> {
    let request = v1::GetFabricStatusRequest {
        group: group.to_string(),
        held_revision: revision,
        wait_ms: u32::try_from(HELD_WITHIN.as_millis()).unwrap_or(u32::MAX),
    };
    match client.get_fabric_status(request).await?.into_inner().is_held {
        true => Ok(()),
        false => Err(NeighbourLoadError::NotHeld { revision, limit: HELD_WITHIN }),
    }
}

#[cfg(test)]
mod tests {
    use tollway_model::neighbour::packed::unpack;

    use super::*;

    fn options(entries: u32, moved: Option<u32>) -> WriteOptions {
        let pace = Pace::Pause(Duration::ZERO);
        let group = Group::new("racks").unwrap();
        WriteOptions { group, entries, rounds: 1, first_round: 3, moved, pace }
    }

    #[test]
    fn moved_neighbours_are_those_of_the_first_round_in_turn() {
        let of = |number| {
            let batches = batches(&options(3, Some(5)), number);
            let records = batches.iter().flat_map(|(_, packed)| unpack(packed).unwrap());
            records.map(|record| (record.key, record.location)).collect::<Vec<_>>()
        };
        let there = Population::of_round(3);
        let expected = |numbers: [(u32, u32); 3]| {
            let record = |(number, moves)| there.record(number, moves);
            numbers.map(record).map(|record| (record.key, record.location)).to_vec()
        };
        assert_eq!(of(0), expected([(0, 1), (1, 1), (2, 1)]));
        assert_eq!(of(1), expected([(3, 1), (4, 1), (0, 2)]));
        assert_eq!(of(2), expected([(1, 2), (2, 2), (3, 2)]));
    }

    #[test]
    fn a_round_is_cut_into_requests() {
        let of = |entries| {
            let batches = batches(&options(entries, None), 0);
            batches
                .iter()
                .map(|(count, packed)| {
                    assert_eq!(unpack(packed).unwrap().len() as u64, *count);
                    *count
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(of(0), [0; 0]);
        assert_eq!(of(1), [1]);
        assert_eq!(of(2049), [1024, 1024, 1]);
    }

    #[test]
    fn what_was_not_made_is_an_error() {
        let answer = |texts: &[&str]| v1::WriteNeighboursResponse {
            failures: texts
                .iter()
                .map(|text| v1::NeighbourFailure { text: (*text).into(), ..Default::default() })
                .collect(),
            ..Default::default()
        };
        assert!(check(&[answer(&[]), answer(&[])], &[5, 5]).is_ok());
        let refused = check(&[answer(&[]), answer(&["full", "too"])], &[5, 5]).unwrap_err();
        assert!(
            refused.to_string().contains("2 of 10 changes, the first since: full"),
            "{refused}"
        );
        let ended = check(&[answer(&[])], &[5, 5]).unwrap_err().to_string();
        assert!(ended.contains("answered 1 of 2"), "{ended}");
    }
}
