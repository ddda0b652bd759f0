//! Reminders of one host against a store in memory, by a clock that the tests advance.

use super::super::testing::{
    MemoryReminders, ScriptedApp, TestHost, actor, all_shards, give_back, grant, types,
};
use super::*;
use tollway_actors::placement::SHARDS;

use crate::actors::app::{AppSide, TurnKind};
use crate::actors::clock::Clock;

struct World {
    reminders: Arc<Reminders>,
    store: Arc<MemoryReminders>,
    test: TestHost,
    app: Arc<ScriptedApp>,
}

impl World {
    /// A host with all shards, whose reminders are not read yet.
    fn new() -> Self {
        let test = TestHost::granted(types(None));
        let store = Arc::new(MemoryReminders::default());
        let used: Arc<dyn ReminderStore> = Arc::clone(&store) as Arc<dyn ReminderStore>;
        let reminders = Reminders::new(Arc::clone(&test.host), used, None);
        Self { reminders, store, test, app: Arc::new(ScriptedApp::echo()) }
    }

    /// Reads what the host was granted, and runs what is due.
    async fn follow(&mut self) {
        let (_, empty) = mpsc::unbounded_channel();
        let granted = std::mem::replace(&mut self.test.granted, empty);
        tokio::spawn(Arc::clone(&self.reminders).follow(granted));
        let what = |name, event| TurnKind::Reminder { name, event };
        let app: Arc<dyn AppSide> = Arc::clone(&self.app) as Arc<dyn AppSide>;
        let alarms = Arc::clone(self.reminders.alarms());
        tokio::spawn(alarms.run(Arc::clone(&self.test.host), app, what));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    fn names(&self) -> Vec<String> {
        let found = self.reminders.of_type("Cart");
        found.into_iter().map(|((actor, name), _)| format!("{} {name}", actor.id)).collect()
    }
}

fn terms(due_time: &str, period: &str) -> ReminderTerms {
    ReminderTerms {
        terms: Terms::new(due_time, period, ""),
        data: Some(Data(Bytes::from_static(b"{\"a\":1}"))),
        policy: FailurePolicy::default(),
        overwrite: true,
    }
}

fn stored(id: &str, name: &str, version: u64) -> Reminder {
    let terms = Terms::new("1h", "", "");
    let schedule = terms.read(Clock::tokio().wall()).unwrap();
    let policy = FailurePolicy::default();
    let registration = Registration { terms, schedule, data: b"7".to_vec(), policy };
    Reminder { actor_id: id.to_owned(), name: name.to_owned(), version, registration }
}

fn problem(refused: Refused) -> Problem {
    match refused {
        Refused::Problem(problem) => problem,
        Refused::Elsewhere => panic!("it is said to be elsewhere"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_reminder_is_stored_before_it_is_due_here() {
    let mut world = World::new();
    world.reminders.put(&actor("1"), "n", terms("2s", "")).await.ok().unwrap();
    assert_eq!(world.store.len(), 1);
    let [ReminderChange::Put { key, epoch, registration, if_absent }] = &world.store.changes()[..]
    else {
        panic!("one change")
    };
    assert_eq!((key.actor_id.as_str(), key.name.as_str(), *epoch), ("1", "n", Epoch(1)));
    assert_eq!((&registration.data[..], *if_absent), (&b"{\"a\":1}"[..], false));
    world.follow().await;
    tokio::time::sleep(Duration::from_millis(2010)).await;
    assert_eq!(world.app.turns().len(), 1);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(world.store.len(), 0, "it has fired for the last time");
}

#[tokio::test(start_paused = true)]
async fn a_reminder_that_is_there_stays_where_it_may_not_be_replaced() {
    let world = World::new();
    world.reminders.put(&actor("1"), "n", terms("1h", "")).await.ok().unwrap();
    let second = ReminderTerms { overwrite: false, ..terms("2h", "") };
    let refused = world.reminders.put(&actor("1"), "n", second).await.err().unwrap();
    assert_eq!(problem(refused).code, ErrorCode::ActorReminderExists);
    let alarm = world.reminders.get(&actor("1"), "n").await.ok().unwrap().unwrap();
    assert_eq!(alarm.event.due_time, "1h");
    world.reminders.put(&actor("1"), "n", terms("3h", "")).await.ok().unwrap();
    let alarm = world.reminders.get(&actor("1"), "n").await.ok().unwrap().unwrap();
    assert_eq!(alarm.event.due_time, "3h");
}

#[tokio::test(start_paused = true)]
async fn a_host_under_a_former_grant_sends_requests_elsewhere() {
    let world = World::new();
    *world.store.epoch.lock().unwrap() = Epoch(2);
    let put = world.reminders.put(&actor("1"), "n", terms("1h", "")).await;
    assert!(matches!(put, Err(Refused::Elsewhere)));
    let delete = world.reminders.delete(&actor("1"), "n").await;
    assert!(matches!(delete, Err(Refused::Elsewhere)));
    assert!(world.names().is_empty());
}

#[tokio::test(start_paused = true)]
async fn without_the_shard_every_request_goes_elsewhere() {
    let world = World::new();
    world.test.host.obey(&give_back());
    tokio::time::sleep(Duration::from_millis(10)).await;
    let reminders = &world.reminders;
    assert!(matches!(
        reminders.put(&actor("1"), "n", terms("1h", "")).await,
        Err(Refused::Elsewhere)
    ));
    assert!(matches!(reminders.get(&actor("1"), "n").await, Err(Refused::Elsewhere)));
    assert!(matches!(reminders.of(&actor("1")).await, Err(Refused::Elsewhere)));
    assert!(matches!(reminders.delete(&actor("1"), "n").await, Err(Refused::Elsewhere)));
    assert!(matches!(reminders.delete_of(&actor("1")).await, Err(Refused::Elsewhere)));
    assert!(world.store.changes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_cannot_be_is_refused_before_it_is_stored() {
    let world = World::new();
    let large = Data(Bytes::from(vec![b'1'; REMINDER_DATA_BYTES + 1]));
    let large = ReminderTerms { data: Some(large), ..terms("1h", "") };
    let refused = problem(world.reminders.put(&actor("1"), "n", large).await.err().unwrap());
    assert_eq!(refused.code, ErrorCode::ActorReminderCreate);
    assert!(refused.text.contains("they may have"), "{}", refused.text);
    let soon = world.reminders.put(&actor("1"), "n", terms("soon", "")).await;
    assert_eq!(problem(soon.err().unwrap()).code, ErrorCode::ActorReminderCreate);
    assert!(world.store.changes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_an_error_and_nothing_fires() {
    let world = World::new();
    *world.store.unwritable.lock().unwrap() = Some("no disk".to_owned());
    let put = world.reminders.put(&actor("1"), "n", terms("1s", "")).await.err().unwrap();
    assert_eq!(problem(put).text, "error creating actor reminder: no disk");
    let delete = world.reminders.delete(&actor("1"), "n").await.err().unwrap();
    assert_eq!(problem(delete).text, "error deleting actor reminder: no disk");
    assert_eq!(world.reminders.alarms().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_new_host_reads_the_reminders_of_its_shards() {
    let mut world = World::new();
    world.store.put(stored("1", "a", 1));
    world.store.put(stored("2", "b", 1));
    world.follow().await;
    let alarm = world.reminders.get(&actor("1"), "a").await.ok().unwrap().unwrap();
    assert_eq!((alarm.event.due_time.as_str(), alarm.version), ("1h", 1));
    assert_eq!(alarm.event.data, Some(Data(Bytes::from_static(b"7"))));
    let mut names = world.names();
    names.sort_unstable();
    assert_eq!(names, ["1 a", "2 b"]);
    assert!(world.reminders.get(&actor("1"), "b").await.ok().unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_until_the_reminders_are_read() {
    let mut world = World::new();
    world.store.put(stored("1", "a", 1));
    *world.store.unreadable.lock().unwrap() = Some("away".to_owned());
    world.follow().await;
    let reminders = Arc::clone(&world.reminders);
    let asked = tokio::spawn(async move { reminders.of(&actor("1")).await.map(|all| all.len()) });
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert!(!asked.is_finished());
    *world.store.unreadable.lock().unwrap() = None;
    assert!(matches!(asked.await.unwrap(), Ok(1)));
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_is_lost_before_its_reminders_are_read_is_elsewhere() {
    let mut world = World::new();
    *world.store.unreadable.lock().unwrap() = Some("away".to_owned());
    world.follow().await;
    let began = tokio::time::Instant::now();
    assert!(matches!(world.reminders.get(&actor("1"), "a").await, Err(Refused::Elsewhere)));
    assert!(began.elapsed() <= READ_WITHIN, "the lease ends before the wait does");
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_is_granted_anew_is_read_anew() {
    let mut world = World::new();
    world.store.put(stored("1", "a", 1));
    world.follow().await;
    assert_eq!(world.names(), ["1 a"]);
    world.store.put(stored("1", "b", 1));
    world.reminders.alarms().forget(&actor("1"));
    world.test.host.obey(&grant(2));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(world.names(), ["1 a", "1 b"]);
}

#[tokio::test(start_paused = true)]
async fn reminders_are_deleted_one_by_one_by_actor_and_by_type() {
    let mut world = World::new();
    for (id, name) in [("1", "a"), ("1", "b"), ("2", "a"), ("3", "a")] {
        world.store.put(stored(id, name, 1));
    }
    world.follow().await;
    world.reminders.delete(&actor("1"), "a").await.ok().unwrap();
    world.reminders.delete(&actor("1"), "missing").await.ok().unwrap();
    assert_eq!((world.store.len(), world.names().len()), (3, 3));
    world.reminders.delete_of(&actor("1")).await.ok().unwrap();
    assert_eq!((world.store.len(), world.names().len()), (2, 2));
    world.reminders.delete_of_type("Cart").await.ok().unwrap();
    assert_eq!((world.store.len(), world.names().len()), (0, 0));
    let Some(ReminderChange::DeleteOfShards { grants, .. }) = world.store.changes().pop() else {
        panic!("shards are deleted at once")
    };
    assert_eq!(grants, [(Epoch(1), all_shards())]);
}

#[tokio::test(start_paused = true)]
async fn the_outcome_of_a_fire_is_stored_again_and_again_until_it_is_taken() {
    let mut world = World::new();
    world.reminders.put(&actor("1"), "n", terms("100ms", "R2/PT1H")).await.ok().unwrap();
    world.follow().await;
    *world.store.unwritable.lock().unwrap() = Some("away".to_owned());
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(world.store.changes().len(), 1);
    *world.store.unwritable.lock().unwrap() = None;
    tokio::time::sleep(RECORD_AGAIN).await;
    let Some(ReminderChange::Advance { epoch, version, firings, .. }) = world.store.changes().pop()
    else {
        panic!("the reminder is advanced")
    };
    assert_eq!((epoch, version, firings.map(u32::from)), (Epoch(1), 1, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_fire_whose_outcome_is_fenced_ends_the_alarm_here() {
    let mut world = World::new();
    world.reminders.put(&actor("1"), "n", terms("100ms", "1h")).await.ok().unwrap();
    world.follow().await;
    *world.store.epoch.lock().unwrap() = Epoch(2);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(world.app.turns().len(), 1);
    assert_eq!(world.reminders.alarms().len(), 0, "another host has it");
}

/// The harm: a host ends in good order right after a reminder has fired there, and the next host fires it
/// again.
#[tokio::test(start_paused = true)]
async fn a_shard_is_given_back_when_the_outcomes_of_its_reminders_are_stored() {
    let mut world = World::new();
    world.reminders.put(&actor("1"), "n", terms("100ms", "R2/PT1H")).await.ok().unwrap();
    world.follow().await;
    *world.store.unwritable.lock().unwrap() = Some("away".to_owned());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(world.app.turns().len(), 1);
    world.test.host.obey(&give_back());
    tokio::time::sleep(RECORD_AGAIN / 2).await;
    let mine = Shard::of("1");
    let mut back = Vec::new();
    let mut drain = |world: &mut World| {
        while let Ok(given) = world.test.given_back.try_recv() {
            back.push(given.shard);
        }
        back.clone()
    };
    let others = drain(&mut world);
    assert!(others.len() == SHARDS - 1 && !others.contains(&mine), "the others do not wait");
    assert!(!world.test.host.holds_nothing(), "so the host does not leave");
    *world.store.unwritable.lock().unwrap() = None;
    tokio::time::sleep(RECORD_AGAIN).await;
    assert!(drain(&mut world).contains(&mine) && world.test.host.holds_nothing());
    let last = world.store.changes().pop();
    assert!(
        matches!(last, Some(ReminderChange::Advance { epoch: Epoch(1), .. })),
        "it is stored under the grant: {last:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_shard_does_not_wait_for_ever_for_outcomes_that_cannot_be_stored() {
    let mut world = World::new();
    world.reminders.put(&actor("1"), "n", terms("100ms", "1h")).await.ok().unwrap();
    world.follow().await;
    *world.store.unwritable.lock().unwrap() = Some("away".to_owned());
    tokio::time::sleep(Duration::from_millis(200)).await;
    world.test.host.obey(&give_back());
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let mut back = 0;
    while world.test.given_back.try_recv().is_ok() {
        back += 1;
    }
    assert_eq!((back, world.test.host.holds_nothing()), (SHARDS, true));
}
