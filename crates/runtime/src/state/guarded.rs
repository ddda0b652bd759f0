//! A state store under the Resiliency rules of its component.

use std::sync::Arc;

use tollway_routing::Rules;
use tollway_state::{
    Capability, Consistency, Delete, Entry, Set, StateError, StateStore, Transaction,
};

use crate::resiliency::ResiliencyState;

/// Makes the operations of another store as often as the rules have it.
pub(super) struct GuardedStore {
    inner: Arc<dyn StateStore>,
    resiliency: Arc<ResiliencyState>,
    rules: Rules,
    /// Dapr's name of it, for the metrics.
    target: String,
    /// The key of its one breaker.
    keys: [String; 1],
}

impl GuardedStore {
    /// The store itself where no rules are for its component.
    pub(super) fn wrap(
        component: &str,
        inner: Arc<dyn StateStore>,
        resiliency: Option<&Arc<ResiliencyState>>,
    ) -> Arc<dyn StateStore> {
        let rules = resiliency.and_then(|all| Some((all, all.of_store(component)?.clone())));
        let Some((resiliency, rules)) = rules else { return inner };
        Arc::new(Self {
            inner,
            resiliency: Arc::clone(resiliency),
            rules,
            target: format!("Statestore_{component}"),
            keys: [format!("state store `{component}`")],
        })
    }

    async fn run<T, F>(&self, attempt: impl FnMut() -> F + Send) -> Result<T, StateError>
    where
        T: Send,
        F: Future<Output = Result<T, StateError>> + Send,
    {
        self.resiliency.run(&self.rules, &self.target, &self.keys, true, attempt).await
    }
}

#[tonic::async_trait]
impl StateStore for GuardedStore {
    fn capabilities(&self) -> &'static [Capability] {
        self.inner.capabilities()
    }

    async fn get(&self, key: &str, consistency: Consistency) -> Result<Option<Entry>, StateError> {
        self.run(|| self.inner.get(key, consistency)).await
    }

    async fn bulk_get(&self, keys: &[String]) -> Result<Vec<Option<Entry>>, StateError> {
        self.run(|| self.inner.bulk_get(keys)).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<(), StateError> {
        self.run(|| self.inner.transact(transaction.clone())).await
    }

    async fn set(&self, set: Set) -> Result<(), StateError> {
        self.run(|| self.inner.set(set.clone())).await
    }

    async fn delete(&self, delete: Delete) -> Result<(), StateError> {
        self.run(|| self.inner.delete(delete.clone())).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use tokio::time::{Instant, sleep};
    use tollway_routing::{BreakerRule, Pauses, Resiliency, RetryRule};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A store that answers with these, the last one first; then it has nothing.
    #[derive(Default)]
    struct Scripted {
        answers: Mutex<Vec<StateError>>,
        takes: Duration,
    }

    #[tonic::async_trait]
    impl StateStore for Scripted {
        fn capabilities(&self) -> &'static [Capability] {
            &[]
        }

        async fn get(&self, _: &str, _: Consistency) -> Result<Option<Entry>, StateError> {
            sleep(self.takes).await;
            self.answers.lock().unwrap().pop().map_or(Ok(None), Err)
        }

        async fn bulk_get(&self, _: &[String]) -> Result<Vec<Option<Entry>>, StateError> {
            Ok(Vec::new())
        }

        async fn transact(&self, _: Transaction) -> Result<(), StateError> {
            self.answers.lock().unwrap().pop().map_or(Ok(()), Err)
        }
    }

    fn guarded(store: Scripted, rules: Rules) -> Arc<dyn StateStore> {
        let rules = Rules { breakers: 10, ..rules };
        let all =
            Resiliency { components: vec![("orders".to_owned(), rules)], ..Resiliency::default() };
        let state = ResiliencyState::new(Arc::new(all), None);
        GuardedStore::wrap("orders", Arc::new(store), Some(&state))
    }

    fn gone() -> StateError {
        StateError::Unreachable { address: "redis".to_owned(), source: "gone".into() }
    }

    fn forever() -> Option<RetryRule> {
        let pause = Pauses::Constant(5 * SECOND);
        Some(RetryRule { pause, retries: None, http: vec![429..=429], grpc: Vec::new() })
    }

    async fn read(store: &Arc<dyn StateStore>) -> Result<Option<Entry>, StateError> {
        store.get("k", Consistency::Eventual).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_gone_for_a_while_fails_no_operation() {
        let store = Scripted { answers: Mutex::new(vec![gone(), gone()]), ..Scripted::default() };
        let store = guarded(store, Rules { retry: forever(), ..Rules::default() });
        let began = Instant::now();
        assert!(read(&store).await.is_ok());
        assert_eq!(began.elapsed(), 10 * SECOND, "two pauses");
        assert!(store.transact(Transaction::default()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_of_another_is_answered_at_once() {
        let mismatch = StateError::EtagMismatch { key: "k".to_owned(), found: None };
        let store = Scripted { answers: Mutex::new(vec![mismatch]), ..Scripted::default() };
        let store = guarded(store, Rules { retry: forever(), ..Rules::default() });
        let began = Instant::now();
        let answer = store.transact(Transaction::default()).await;
        assert!(matches!(answer, Err(StateError::EtagMismatch { .. })), "{answer:?}");
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_fails_too_often_has_a_rest() {
        let answers = Mutex::new(vec![gone(), gone()]);
        let trip = "consecutiveFailures >= 2".parse().unwrap();
        let breaker = BreakerRule { trials: 1, interval: Duration::ZERO, rest: 5 * SECOND, trip };
        let rules = Rules { breaker: Some(breaker), ..Rules::default() };
        let store = guarded(Scripted { answers, ..Scripted::default() }, rules);
        for _ in 0..2 {
            assert!(matches!(read(&store).await, Err(StateError::Unreachable { .. })));
        }
        let open = read(&store).await.unwrap_err();
        assert!(matches!(open, StateError::CircuitOpen), "{open}");
        sleep(6 * SECOND).await;
        assert!(read(&store).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_has_its_time() {
        let store = Scripted { takes: 3 * SECOND, ..Scripted::default() };
        let store = guarded(store, Rules { timeout: Some(2 * SECOND), ..Rules::default() });
        let late = read(&store).await.unwrap_err();
        assert!(matches!(late, StateError::TookTooLong { after } if after == 2 * SECOND));
    }
}
