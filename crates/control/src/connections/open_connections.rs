//! The connections of peers with a certificate, so that they end when their peers are trusted no
//! more.

use std::collections::HashMap;
use std::future::Future as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::SystemTime;

use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tollway_identity::{CertificateDer, Credentials, Distrust, PeerIdentity, TrustBundles};
use tracing::warn;

/// Every such connection. The limit of authenticated connections bounds it.
#[derive(Default)]
pub(crate) struct OpenConnections(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    open: HashMap<u64, Open>,
}

struct Open {
    identity: Arc<PeerIdentity>,
    /// What its peer has shown, leaf first.
    certificates: Vec<CertificateDer<'static>>,
    /// Cancelled to end the connection.
    end: CancellationToken,
}

/// Stands for one connection until it is dropped.
pub(super) struct Stay {
    open_connections: Arc<OpenConnections>,
    number: u64,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Stay {
    /// Whether the connection has to end; wakes the task of `context` when it has to.
    pub(super) fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        matches!(self.ended.as_mut().poll(context), Poll::Ready(()))
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.open_connections.state().open.remove(&self.number);
    }
}

impl OpenConnections {
    pub(super) fn enter(
        self: &Arc<Self>,
        identity: Arc<PeerIdentity>,
        certificates: Vec<CertificateDer<'static>>,
    ) -> Stay {
        let end = CancellationToken::new();
        let ended = Box::pin(end.clone().cancelled_owned());
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.open.insert(number, Open { identity, certificates, end });
        drop(state);
        Stay { open_connections: self.clone(), number, ended }
    }

    /// How many connections have a peer for which `concerned` holds.
    pub(crate) fn count(&self, concerned: impl Fn(&PeerIdentity) -> bool) -> usize {
        self.state().open.values().filter(|open| concerned(&open.identity)).count()
    }

    /// Ends the connections of peers that `trust`, which follows `former`, does not accept, and logs each
    /// peer once.
    fn end_distrusted(&self, former: &TrustBundles, trust: &TrustBundles) {
        let without_roots = trust.without_roots_of(former);
        let judge = |open: &Open| {
            trust.judge(&open.identity)?;
            if without_roots.contains(&open.identity.spiffe.trust_domain) {
                trust.judge_chain(&open.identity, &open.certificates, SystemTime::now())?;
            }
            Ok::<_, Distrust>(())
        };
        let mut ended: HashMap<String, usize> = HashMap::new();
        for open in self.state().open.values() {
            if let Err(distrust) = judge(open)
                && !open.end.is_cancelled()
            {
                open.end.cancel();
                let PeerIdentity { spiffe, instance, .. } = &*open.identity;
                let instance = instance.as_ref().map_or("-", |instance| instance.as_str());
                *ended.entry(format!("{spiffe} (instance {instance}): {distrust}")).or_default() +=
                    1;
            }
        }
        for (peer, connections) in ended {
            warn!(peer, connections, "connections were ended");
        }
    }

    /// Follows the trust until the sender has gone.
    pub(crate) async fn follow(
        self: Arc<Self>,
        mut credentials: watch::Receiver<Arc<Credentials>>,
    ) {
        let mut former = credentials.borrow_and_update().clone();
        while credentials.changed().await.is_ok() {
            let present = credentials.borrow_and_update().clone();
            self.end_distrusted(former.bundles(), present.bundles());
            former = present;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
