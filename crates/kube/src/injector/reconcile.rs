//! Keeps the certificate of the webhook good, in the Secret and where the API server reads it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::sync::{Mutex, watch};
use tollway_model::{KubeName, chain};
use tracing::{info, warn};

use super::server::route_of;
use super::{Shared, Which, unix_s};
use crate::follow::{Seen, follow};
use crate::own_certificate::{OwnCertificate, Purpose};
use crate::secret_certificate::{SecretCertificate, TRIED_AGAIN_AFTER};

/// Runs until it is dropped.
pub(super) async fn run(
    client: Client,
    (secret, webhook): (KubeName, String),
    service: &KubeName,
    shared: &Shared,
) {
    let purpose =
        Purpose { holder: "tollway-injector", names: names(service), is_of_clients: false };
    let reconciler = Reconciler {
        secret: SecretCertificate::new(client.clone(), secret, purpose),
        hooks: Api::all(client),
        hook: watch::Sender::default(),
        shared,
        shown: Mutex::default(),
    };
    tokio::join!(
        reconciler.secret.follow(),
        follow(reconciler.hooks.clone(), &webhook, &reconciler.hook),
        reconciler.keep(&webhook),
    );
}

/// Names by which the API server knows a Service.
fn names(service: &KubeName) -> Vec<String> {
    let KubeName { namespace, name } = service;
    vec![format!("{name}.{namespace}.svc"), format!("{name}.{namespace}.svc.cluster.local")]
}

/// A part of the webhook's paths that only replicas and the API server know, since the answers have what a
/// namespace has of Dapr.
fn path_secret(certificate: &OwnCertificate) -> String {
    certificate.secret_of("path of the webhook")
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
    secret: SecretCertificate,
    hooks: Api<MutatingWebhookConfiguration>,
    hook: watch::Sender<Seen<MutatingWebhookConfiguration>>,
    shared: &'a Shared,
    /// What is served with.
    shown: Mutex<Option<OwnCertificate>>,
}

impl Reconciler<'_> {
    async fn keep(&self, webhook: &str) {
        let (mut secrets, mut hooks) = (self.secret.changes(), self.hook.subscribe());
        loop {
            let wait = match self.check().await {
                Ok(wait) => wait,
                Err(error) => {
                    warn!(error, webhook, "the webhook's certificate cannot be kept");
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
    async fn check(&self) -> Result<Duration, String> {
        let checked = self.secret.check().await?;
        let Some(certificate) = checked.good else { return Ok(checked.again) };
        if !self.is_trusted(&certificate).await? {
            return Ok(TRIED_AGAIN_AFTER);
        }
        self.show(&certificate).await?;
        Ok(checked.again)
    }

    /// Has the API server trust the authorities. False while the configuration is not there.
    async fn is_trusted(&self, certificate: &OwnCertificate) -> Result<bool, String> {
        let Seen::There(hook) = self.hook.borrow().clone() else {
            warn!("the MutatingWebhookConfiguration is not there yet; the chart makes it");
            return Ok(false);
        };
        let bundle = ByteString(certificate.authorities.clone().into_bytes());
        let hooks = hook.webhooks.unwrap_or_default();
        let secret = path_secret(certificate);
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
    async fn show(&self, certificate: &OwnCertificate) -> Result<(), String> {
        let mut shown = self.shown.lock().await;
        if shown.as_ref() != Some(certificate) {
            self.shared.path_secret.send_replace(Some(path_secret(certificate)));
            self.shared.tls.send_replace(Some(Arc::new(server_config(certificate)?)));
            let ends = certificate.ends().map_or(0, unix_s);
            self.shared.certificate_ends.store(ends, Ordering::Relaxed);
            *shown = Some(certificate.clone());
        }
        Ok(())
    }
}

/// What a TLS server needs.
///
/// # Errors
/// What is wrong with them.
pub(crate) fn server_config(certificate: &OwnCertificate) -> Result<rustls::ServerConfig, String> {
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(certificate.certificate.as_bytes()).collect();
    let chain = chain.map_err(|error| format!("the certificate cannot be read: {error}"))?;
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes())
        .map_err(|error| format!("the key cannot be read: {error}"))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| format!("the certificate cannot be used: {error}"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
