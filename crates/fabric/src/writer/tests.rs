use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::Ipv4Addr;

use super::*;

/// A table with a capacity, which fails as configured.
#[derive(Default)]
struct Fake {
    entries: BTreeMap<Address, Neighbour>,
    capacity: usize,
    /// Errors of the next calls: after how many entries, and which.
    errors: RefCell<VecDeque<(usize, i32)>>,
    calls: usize,
}

impl Fake {
    fn error(&self) -> Option<(usize, i32)> {
        self.errors.borrow_mut().pop_front()
    }
}

fn stopped(done: usize, number: i32) -> Stopped {
    Stopped { done, source: io::Error::from_raw_os_error(number) }
}

impl Table for Fake {
    fn update(&mut self, keys: &[Address], values: &[Neighbour]) -> Result<(), Stopped> {
        self.calls += 1;
        let error = self.error();
        for (done, (key, value)) in keys.iter().zip(values).enumerate() {
            if let Some((after, number)) = error
                && after == done
            {
                return Err(stopped(done, number));
            }
            if !self.entries.contains_key(key) && self.entries.len() == self.capacity {
                return Err(stopped(done, libc::E2BIG));
            }
            self.entries.insert(*key, *value);
        }
        Ok(())
    }

    fn delete(&mut self, keys: &[Address]) -> Result<(), Stopped> {
        let error = self.error();
        for (done, key) in keys.iter().enumerate() {
            if let Some((after, number)) = error
                && after == done
            {
                return Err(stopped(done, number));
            }
            if self.entries.remove(key).is_none() {
                return Err(stopped(done, libc::ENOENT));
            }
        }
        Ok(())
    }

    fn look_up(&self, key: &Address) -> io::Result<Option<Neighbour>> {
        match self.error() {
            Some((_, number)) => Err(io::Error::from_raw_os_error(number)),
            None => Ok(self.entries.get(key).copied()),
        }
    }

    fn visit(&self, visit: &mut dyn FnMut(&Address, &Neighbour)) -> io::Result<()> {
        self.entries.iter().for_each(|(key, value)| visit(key, value));
        Ok(())
    }
}

/// Waits in no time, and notes for what.
#[derive(Default)]
struct Noting {
    waits: Vec<(Trouble, u32)>,
    overs: usize,
    gives_up_after: Option<usize>,
}

impl Patience for Noting {
    fn wait(&mut self, trouble: Trouble, attempt: u32) -> bool {
        self.waits.push((trouble, attempt));
        self.gives_up_after.is_none_or(|limit| self.waits.len() < limit)
    }

    fn over(&mut self) {
        self.overs += 1;
    }
}

fn key(number: u32) -> Address {
    Address::new(7, Ipv4Addr::from(number).into())
}

fn value(revision: u64) -> Neighbour {
    Neighbour::new([1; 6], Ipv4Addr::LOCALHOST.into(), [2; 6], revision)
}

fn puts(numbers: impl IntoIterator<Item = u32>) -> Changes {
    let mut changes = Changes::default();
    numbers.into_iter().for_each(|number| changes.put(key(number), value(number.into())));
    changes
}

fn removals(numbers: impl IntoIterator<Item = u32>) -> Changes {
    Changes { removed: numbers.into_iter().map(key).collect(), ..Changes::default() }
}

fn writer(capacity: usize) -> Writer<Fake> {
    Writer::new(Fake { capacity, ..Fake::default() })
}

fn numbers(writer: &Writer<Fake>) -> Vec<u64> {
    writer.table.entries.values().map(|value| value.revision).collect()
}

#[test]
fn batches_of_a_thousand_are_one_call_each() {
    let mut writer = writer(5000);
    writer.write(&mut puts(0..2500), &mut Noting::default()).unwrap();
    assert_eq!((writer.table.entries.len(), writer.table.calls), (2500, 3));
}

#[test]
fn what_the_kernel_refuses_goes_on_where_it_stopped() {
    let cases = [
        (libc::EBUSY, Trouble::Busy),
        (libc::ENOMEM, Trouble::Memory),
        (libc::EPERM, Trouble::Privilege),
        (libc::EINVAL, Trouble::Kernel(libc::EINVAL)),
    ];
    for (number, trouble) in cases {
        let mut writer = writer(5000);
        let mut patience = Noting::default();
        writer.table.errors = RefCell::new([(400, number), (0, number), (0, number)].into());
        writer.write(&mut puts(0..1000), &mut patience).unwrap();
        assert_eq!(writer.table.entries.len(), 1000);
        assert_eq!(patience.waits, [(trouble, 1), (trouble, 2), (trouble, 3)]);
        assert_eq!(patience.overs, 1);
    }
}

#[test]
fn removals_go_on_past_what_is_not_there_and_after_trouble() {
    let mut writer = writer(100);
    let mut patience = Noting::default();
    writer.write(&mut puts((0..20).filter(|number| number % 3 != 0)), &mut patience).unwrap();
    writer.table.errors = RefCell::new([(0, libc::EBUSY)].into());
    writer.write(&mut removals(0..19), &mut patience).unwrap();
    assert_eq!(numbers(&writer), [19]);
    assert_eq!(patience.waits, [(Trouble::Busy, 1)]);
}

#[test]
fn full_table_takes_changes_of_what_is_in_it_and_the_rest_once_there_is_room() {
    let mut writer = writer(10);
    let mut patience = Noting::default();
    writer.write(&mut puts(0..15), &mut patience).unwrap();
    assert_eq!((writer.table.entries.len(), writer.waiting()), (10, 5));
    let mut changed = Changes::default();
    changed.put(key(3), value(103));
    changed.put(key(12), value(112));
    writer.write(&mut changed, &mut patience).unwrap();
    assert_eq!(writer.table.entries[&key(3)].revision, 103);
    assert_eq!(writer.waiting(), 5);
    writer.write(&mut removals([0, 1, 14]), &mut patience).unwrap();
    assert_eq!(writer.waiting(), 2);
    writer.write(&mut removals([2, 4]), &mut patience).unwrap();
    assert_eq!((writer.waiting(), writer.has_left_out()), (0, false));
    let expected: Vec<u64> = vec![103, 5, 6, 7, 8, 9, 10, 11, 112, 13];
    assert_eq!(numbers(&writer), expected, "nothing was lost, and the newest won");
    assert_eq!(patience.waits, [], "a full table is no reason to wait");
}

#[test]
fn beyond_the_bound_of_those_that_wait_the_table_is_known_to_lack_some() {
    let mut writer = writer(1);
    let many = u32::try_from(MAX_WAITING).unwrap() + 1;
    writer.write(&mut puts(0..many), &mut Noting::default()).unwrap();
    assert_eq!((writer.waiting(), writer.has_left_out()), (MAX_WAITING, false));
    writer.write(&mut puts([many]), &mut Noting::default()).unwrap();
    assert_eq!((writer.waiting(), writer.has_left_out()), (MAX_WAITING, true));
    writer.begin_round(2);
    assert!(!writer.has_left_out());
}

#[test]
fn sweep_removes_what_the_round_did_not_bring() {
    let mut writer = writer(100_000);
    let mut patience = Noting::default();
    writer.begin_round(1);
    writer.write(&mut puts(0..40_000), &mut patience).unwrap();
    writer.begin_round(2);
    writer.write(&mut puts((0..40_000).filter(|number| number % 4 == 0)), &mut patience).unwrap();
    assert_eq!(writer.sweep(&mut patience), Ok(30_000));
    assert!(numbers(&writer).iter().all(|number| number % 4 == 0));
    assert_eq!(writer.sweep(&mut patience), Ok(0));
}

#[test]
fn a_comparison_counts_the_different_entries() {
    let mut writer = writer(100);
    let mut patience = Noting::default();
    writer.begin_round(1);
    writer.write(&mut puts(0..10), &mut patience).unwrap();
    writer.table.entries.remove(&key(3));
    writer.table.entries.get_mut(&key(4)).unwrap().mac = [9; 6];
    writer.begin_round(2);
    let mut compare = || writer.compare_and_write(&mut puts(0..10), &mut patience).unwrap();
    assert_eq!([compare().different, compare().different], [2, 0]);
}

#[test]
fn a_write_stops_when_its_patience_ends() {
    let mut writer = writer(100);
    let mut patience = Noting { gives_up_after: Some(2), ..Noting::default() };
    writer.table.errors = RefCell::new(std::iter::repeat_n((0, libc::EPERM), 9).collect());
    assert_eq!(writer.write(&mut puts(0..10), &mut patience), Err(GaveUp));
    assert_eq!(patience.waits.len(), 2);
}
