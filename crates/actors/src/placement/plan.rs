//! The assignment of shards to members.

use std::collections::BTreeMap;

use crate::placement::shard::{SHARDS, Shard};

/// Plans who should hold each shard: every member as many as any other, but for one, and nothing
/// changes hands that need not. `holders` are those of now, by the shard's number; who is not
/// among `members` (each once, in order) keeps nothing. `None` everywhere without members.
///
/// # Panics
/// Unless there is a holder, or none, for each of the [`SHARDS`].
#[must_use]
pub fn plan<H: Ord + Clone>(holders: &[Option<H>], members: &[H]) -> Vec<Option<H>> {
    assert_eq!(holders.len(), SHARDS, "a holder or none for each shard");
    if members.is_empty() {
        return vec![None; SHARDS];
    }
    let mut room = quotas(holders, members);
    let mut planned = vec![None; SHARDS];
    for (place, holder) in planned.iter_mut().zip(holders) {
        let Some(holder) = holder else { continue };
        if let Some(left) = room.get_mut(holder).filter(|left| **left > 0) {
            *left -= 1;
            *place = Some(holder.clone());
        }
    }
    let mut takers = members.iter().filter(|member| room[member] > 0).collect::<Vec<_>>();
    let mut turn = 0;
    for shard in Shard::all() {
        let place = &mut planned[shard.number()];
        if place.is_some() {
            continue;
        }
        // In turns, so that neighbours among the free shards go to different hosts.
        turn %= takers.len();
        let taker = takers[turn];
        *place = Some(taker.clone());
        let left = room.get_mut(taker).expect("each member has a quota");
        *left -= 1;
        if *left == 0 {
            takers.remove(turn);
        } else {
            turn += 1;
        }
    }
    planned
}

/// How many shards each member should have. If some get one more, those with the most now get it,
/// since they would have to give one away otherwise.
fn quotas<H: Ord + Clone>(holders: &[Option<H>], members: &[H]) -> BTreeMap<H, usize> {
    let mut held: BTreeMap<&H, usize> = members.iter().map(|member| (member, 0)).collect();
    for holder in holders.iter().flatten() {
        if let Some(count) = held.get_mut(holder) {
            *count += 1;
        }
    }
    let mut members: Vec<(&H, usize)> = held.into_iter().collect();
    members.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(other.0)));
    let (each, more) = (SHARDS / members.len(), SHARDS % members.len());
    let quota = |(place, (member, _)): (usize, &(&H, usize))| {
        ((*member).clone(), each + usize::from(place < more))
    };
    members.iter().enumerate().map(quota).collect()
}
