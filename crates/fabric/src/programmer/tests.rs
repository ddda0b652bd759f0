use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Mutex;

use super::*;
use crate::batch::Stopped;
use crate::layout::{Address, Neighbour};

/// A table that the test can read, which refuses everything while it is set to.
#[derive(Clone, Default)]
struct Shared {
    entries: Arc<Mutex<BTreeMap<Address, Neighbour>>>,
    refuses: Arc<Mutex<Option<i32>>>,
}

impl Shared {
    fn refuse(&self, number: Option<i32>) {
        *self.refuses.lock().unwrap() = number;
    }

    fn revisions(&self) -> Vec<u64> {
        self.entries.lock().unwrap().values().map(|value| value.revision).collect()
    }
}

impl Table for Shared {
    fn update(&mut self, keys: &[Address], values: &[Neighbour]) -> Result<(), Stopped> {
        if let Some(number) = *self.refuses.lock().unwrap() {
            return Err(Stopped { done: 0, source: io::Error::from_raw_os_error(number) });
        }
        let mut entries = self.entries.lock().unwrap();
        keys.iter().zip(values).for_each(|(key, value)| _ = entries.insert(*key, *value));
        Ok(())
    }

    fn delete(&mut self, keys: &[Address]) -> Result<(), Stopped> {
        let mut entries = self.entries.lock().unwrap();
        for (done, key) in keys.iter().enumerate() {
            if entries.remove(key).is_none() {
                let source = io::Error::from_raw_os_error(libc::ENOENT);
                return Err(Stopped { done, source });
            }
        }
        Ok(())
    }

    fn look_up(&self, key: &Address) -> io::Result<Option<Neighbour>> {
        Ok(self.entries.lock().unwrap().get(key).copied())
    }

    fn visit(&self, visit: &mut dyn FnMut(&Address, &Neighbour)) -> io::Result<()> {
        self.entries.lock().unwrap().iter().for_each(|(key, value)| visit(key, value));
        Ok(())
    }
}

fn puts(revisions: impl IntoIterator<Item = u32>) -> Order {
    let mut changes = Changes::default();
    for number in revisions {
        let key = Address::new(7, Ipv4Addr::from(number).into());
        let host = Ipv4Addr::LOCALHOST.into();
        changes.put(key, Neighbour::new([1; 6], host, [2; 6], number.into()));
    }
    Order::Write(changes)
}

async fn reach(progress: &mut watch::Receiver<Progress>, through: u64) -> Progress {
    progress.wait_for(|progress| progress.through == through).await.unwrap().clone()
}

#[tokio::test]
async fn orders_are_carried_out_in_order_and_reported() {
    let table = Shared::default();
    let programmer = Programmer::start(table.clone(), Found::default()).unwrap();
    let mut progress = programmer.progress();
    programmer.order(Order::BeginListing { compare: false, epoch: 0 }).await.unwrap();
    programmer.order(puts(1..=5)).await.unwrap();
    programmer.order(Order::EndListing(5)).await.unwrap();
    let reported = reach(&mut progress, 5).await;
    assert_eq!(
        (reported.written, reported.listings, reported.whole_through, reported.entries),
        (5, 1, 5, 5)
    );
    programmer.order(Order::BeginListing { compare: true, epoch: 0 }).await.unwrap();
    table.entries.lock().unwrap().pop_first();
    programmer.order(puts([1, 3, 5, 7])).await.unwrap();
    programmer.order(Order::EndListing(9)).await.unwrap();
    let reported = reach(&mut progress, 9).await;
    assert_eq!(table.revisions(), [1, 3, 5, 7]);
    assert_eq!(reported.repaired, 4, "one was gone, one is new, two are too many");
}

#[tokio::test]
async fn entries_are_counted_as_they_come_and_go() {
    let programmer = Programmer::start(Shared::default(), Found::default()).unwrap();
    let mut progress = programmer.progress();
    programmer.order(puts(1..=9)).await.unwrap();
    programmer.order(puts(5..=12)).await.unwrap();
    let gone = [2, 3, 77].map(|number| Address::new(7, Ipv4Addr::from(number).into()));
    let removed = Changes { removed: gone.into(), ..Changes::default() };
    programmer.order(Order::Write(removed)).await.unwrap();
    programmer.order(Order::Through(12)).await.unwrap();
    assert_eq!(reach(&mut progress, 12).await.entries, 10);
}

#[tokio::test]
async fn revisions_of_another_table_do_not_count() {
    let found = Found { through: 900, is_whole: true, ..Found::default() };
    let programmer = Programmer::start(Shared::default(), found).unwrap();
    let mut progress = programmer.progress();
    programmer.order(Order::BeginListing { compare: false, epoch: 1 }).await.unwrap();
    let reported = progress.wait_for(|progress| progress.epoch == 1).await.unwrap().clone();
    assert_eq!((reported.through, reported.whole_through, reported.is_whole), (0, 0, false));
    programmer.order(Order::EndListing(4)).await.unwrap();
    assert_eq!(reach(&mut progress, 4).await.whole_through, 4);
}

#[tokio::test]
async fn lasting_trouble_is_reported_and_loses_no_entry() {
    let table = Shared::default();
    let programmer = Programmer::start(table.clone(), Found::default()).unwrap();
    let mut progress = programmer.progress();
    table.refuse(Some(libc::EPERM));
    programmer.order(puts(1..=5)).await.unwrap();
    programmer.order(Order::Through(5)).await.unwrap();
    let reported = progress.wait_for(|progress| progress.trouble.is_some()).await.unwrap().clone();
    assert_eq!(reported.trouble.unwrap().trouble, Trouble::Privilege);
    assert_eq!(reported.through, 0, "what is not in the table is not said to be");
    table.refuse(None);
    let reported = reach(&mut progress, 5).await;
    assert_eq!((reported.trouble, table.revisions()), (None, vec![1, 2, 3, 4, 5]));
}

#[tokio::test]
async fn orders_wait_while_the_table_is_stuck() {
    let table = Shared::default();
    let programmer = Programmer::start(table.clone(), Found::default()).unwrap();
    table.refuse(Some(libc::ENOMEM));
    let mut taken = 0;
    while taken < 100 {
        let order = programmer.order(puts([taken]));
        if tokio::time::timeout(Duration::from_millis(200), order).await.is_err() {
            break;
        }
        taken += 1;
    }
    assert!((1..=u32::try_from(QUEUE).unwrap() + 2).contains(&taken), "{taken}");
    // It ends though the kernel never gives in.
    drop(programmer);
    assert_eq!(table.revisions(), [0; 0]);
}
