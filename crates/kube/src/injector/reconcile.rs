//! Keeps the certificate of the webhook good, in the Secret and where the API server reads it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{Mutex, watch};
use tollway_model::{KubeName, chain};
use tracing::{info, warn};

use super::certificate::{Plan, WebhookCredentials, carry_out, plan, server_config};
use super::server::route_of;
use super::{Shared, Which, unix_s};
use crate::follow::{Seen, follow};

/// The clock is asked again after this, whatever the plan is: it may have been set.
const LOOKED_AGAIN_AFTER: Duration = Duration::from_secs(3600);
/// After a failure.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Runs until it is dropped.
pub(super) async fn run(
    client: Client,
    (secret, webhook): (KubeName, String),
    service: &KubeName,
    shared: &Shared,
) {
    let reconciler = Reconciler {
        secrets: Api::namespaced(client.clone(), &secret.namespace),
        hooks: Api::all(client),
        names: names(service),
        secret: watch::Sender::default(),
        hook: watch::Sender::default(),
        shared,
        shown: Mutex::default(),
    };
    tokio::join!(
        follow(reconciler.secrets.clone(), &secret.name, &reconciler.secret),
        follow(reconciler.hooks.clone(), &webhook, &reconciler.hook),
        reconciler.keep(&secret, &webhook),
    );
}

/// Names by which the API server knows a Service.
fn names(service: &KubeName) -> Vec<String> {
    let KubeName { namespace, name } = service;
    vec![format!("{name}.{namespace}.svc"), format!("{name}.{namespace}.svc.cluster.local")]
}

/// The path of one of the webhooks of the chart.
fn path_of(webhook: &str, secret: &str) -> String {
    let which = match webhook.split_once('.').map(|(which, _)| which) {
        Some("namespaces") => Which::MarkedNamespace,
        Some("captured") => Which::CapturedNamespace,
        Some(_) | None => Which::MarkedPod,
    };
    format!("/{secret}{}", route_of(which))
}

struct Reconciler<'a> {
    secrets: Api<Secret>,
    hooks: Api<MutatingWebhookConfiguration>,
    names: Vec<String>,
    secret: watch::Sender<Seen<Secret>>,
    hook: watch::Sender<Seen<MutatingWebhookConfiguration>>,
    shared: &'a Shared,
    /// What is served with.
    shown: Mutex<Option<WebhookCredentials>>,
}

impl Reconciler<'_> {
    async fn keep(&self, secret: &KubeName, webhook: &str) {
        let (mut secrets, mut hooks) = (self.secret.subscribe(), self.hook.subscribe());
        loop {
            let wait = match self.look().await {
                Ok(wait) => wait,
                Err(error) => {
                    warn!(error, %secret, webhook, "the webhook's certificate cannot be kept");
                    TRIED_AGAIN_AFTER
                }
            };
            tokio::select! {
                _ = secrets.changed() => {}
                _ = hooks.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Does what is to be done now. Returns after how long to look again.
    async fn look(&self) -> Result<Duration, String> {
        let now = SystemTime::now();
        let secret = self.secret.borrow().clone();
        let secret = match secret {
            Seen::Unknown => return Ok(LOOKED_AGAIN_AFTER),
            Seen::Absent => return Err("the Secret is not there; the chart makes it".to_owned()),
            Seen::There(secret) => secret,
        };
        let credentials = WebhookCredentials::read(&secret.data.clone().unwrap_or_default());
        let plan = plan(credentials.as_ref(), &self.names, now);
        let made = carry_out(&plan, credentials.as_ref(), &self.names, now);
        let made = made.map_err(|error| format!("no certificate can be made: {error}"))?;
        if let Some(made) = made {
            return self.store(secret, &made, &plan).await;
        }
        let Some(credentials) = credentials else { return Ok(TRIED_AGAIN_AFTER) };
        if !self.is_trusted(&credentials).await? {
            return Ok(TRIED_AGAIN_AFTER);
        }
        self.show(&credentials).await?;
        let Plan::Keep { until } = plan else { return Ok(TRIED_AGAIN_AFTER) };
        let left = until.duration_since(now).unwrap_or_default();
        Ok(left.min(LOOKED_AGAIN_AFTER))
    }

    /// Writes what was made, unless another replica was first; the watch brings either.
    async fn store(
        &self,
        mut secret: Secret,
        made: &WebhookCredentials,
        plan: &Plan,
    ) -> Result<Duration, String> {
        let name = secret.metadata.name.clone().unwrap_or_default();
        secret.data = Some(made.data());
        match self.secrets.replace(&name, &PostParams::default(), &secret).await {
            Ok(_) => {
                info!(?plan, "the webhook has a new certificate");
                Ok(LOOKED_AGAIN_AFTER)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(TRIED_AGAIN_AFTER),
            Err(error) => Err(format!("the Secret cannot be updated: {}", chain(&error))),
        }
    }

    /// Has the API server trust the authorities. False while the configuration is not there.
    async fn is_trusted(&self, credentials: &WebhookCredentials) -> Result<bool, String> {
        let Seen::There(hook) = self.hook.borrow().clone() else {
            warn!("the MutatingWebhookConfiguration is not there yet; the chart makes it");
            return Ok(false);
        };
        let bundle = ByteString(credentials.authorities.clone().into_bytes());
        let hooks = hook.webhooks.unwrap_or_default();
        let secret = credentials.path_secret();
        let wanted = hooks.iter().map(|hook| (hook, path_of(&hook.name, &secret)));
        let strangers = wanted.filter(|(hook, path)| {
            let config = &hook.client_config;
            let seen = config.service.as_ref().and_then(|service| service.path.as_ref());
            config.ca_bundle.as_ref() != Some(&bundle) || seen != Some(path)
        });
        let changes: Vec<_> = strangers
            .map(|(hook, path)| {
                let config = json!({"caBundle": bundle, "service": {"path": path}});
                json!({"name": hook.name, "clientConfig": config})
            })
            .collect();
        if changes.is_empty() {
            return Ok(true);
        }
        let name = hook.metadata.name.unwrap_or_default();
        let change = Patch::Strategic(json!({"webhooks": changes}));
        let patched = self.hooks.patch(&name, &PatchParams::default(), &change).await;
        patched.map_err(|error| {
            format!("the MutatingWebhookConfiguration cannot be patched: {}", chain(&error))
        })?;
        info!(webhook = name, "the API server knows the webhook's authority");
        Ok(true)
    }

    /// Serves with the certificate from now on.
    async fn show(&self, credentials: &WebhookCredentials) -> Result<(), String> {
        let mut shown = self.shown.lock().await;
        if shown.as_ref() != Some(credentials) {
            self.shared.path_secret.send_replace(Some(credentials.path_secret()));
            self.shared.tls.send_replace(Some(Arc::new(server_config(credentials)?)));
            let ends = credentials.ends().map_or(0, unix_s);
            self.shared.certificate_ends.store(ends, Ordering::Relaxed);
            *shown = Some(credentials.clone());
        }
        Ok(())
    }
}
