//! The certificate in a Secret, by an authority of its own: it is made when there is none, and renewed in time.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tollway_model::{KubeName, chain};
use tracing::info;

use crate::follow::{Seen, follow};
use crate::own_certificate::{OwnCertificate, Plan, Purpose, carry_out, plan};

/// The clock is asked again after this, whatever the plan is: it may have been set.
const LOOKED_AGAIN_AFTER: Duration = Duration::from_secs(3600);
/// After a failure.
pub(crate) const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The certificate of one Secret. Several processes may keep it.
pub(crate) struct SecretCertificate {
    secrets: Api<Secret>,
    at: KubeName,
    purpose: Purpose,
    seen: watch::Sender<Seen<Secret>>,
}

/// What is there now, and after how long to look again unless the Secret changes before.
pub(crate) struct Checked {
    /// `None` while there is none that is good.
    pub(crate) good: Option<OwnCertificate>,
    pub(crate) again: Duration,
}

impl SecretCertificate {
    pub(crate) fn new(client: Client, at: KubeName, purpose: Purpose) -> Self {
        let secrets = Api::namespaced(client, &at.namespace);
        Self { secrets, at, purpose, seen: watch::Sender::default() }
    }

    /// Follows the Secret until it is dropped.
    pub(crate) async fn follow(&self) {
        follow(self.secrets.clone(), &self.at.name, &self.seen).await;
    }

    /// Completes at each change of the Secret.
    pub(crate) fn changes(&self) -> watch::Receiver<Seen<Secret>> {
        self.seen.subscribe()
    }

    /// Makes what is due.
    ///
    /// # Errors
    /// Why there is no certificate.
    pub(crate) async fn check(&self) -> Result<Checked, String> {
        let now = SystemTime::now();
        let seen = self.seen.borrow().clone();
        let secret = match seen {
            Seen::Unknown => return Ok(Checked { good: None, again: LOOKED_AGAIN_AFTER }),
            Seen::Absent => {
                return Err(format!("the Secret {} is not there; the chart makes it", self.at));
            }
            Seen::There(secret) => secret,
        };
        let present = OwnCertificate::read(&secret.data.clone().unwrap_or_default());
        let plan = plan(present.as_ref(), &self.purpose, now);
        let made = carry_out(&plan, present.as_ref(), &self.purpose, now);
        let made = made.map_err(|error| format!("no certificate can be made: {error}"))?;
        match (plan, made) {
            (Plan::Keep { until }, _) => {
                let left = until.duration_since(now).unwrap_or_default();
                Ok(Checked { good: present, again: left.min(LOOKED_AGAIN_AFTER) })
            }
            (plan, Some(made)) => {
                let again = self.store(secret, &made, &plan).await?;
                Ok(Checked { good: None, again })
            }
            (_, None) => Ok(Checked { good: None, again: TRIED_AGAIN_AFTER }),
        }
    }

    /// Writes what was made, unless another process was first; the watch brings either.
    async fn store(
        &self,
        mut secret: Secret,
        made: &OwnCertificate,
        plan: &Plan,
    ) -> Result<Duration, String> {
        secret.data = Some(made.data());
        match self.secrets.replace(&self.at.name, &PostParams::default(), &secret).await {
            Ok(_) => {
                info!(?plan, secret = %self.at, "there is a new certificate");
                Ok(LOOKED_AGAIN_AFTER)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(TRIED_AGAIN_AFTER),
            Err(error) => Err(format!("the Secret cannot be updated: {}", chain(&error))),
        }
    }
}
