//! The TLS configuration of the control plane's present credentials, made once for each.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use tokio::sync::{Notify, watch};
use tollway_identity::{Credentials, TlsError, control_server_config};

/// The protocol inside TLS.
pub(crate) const ALPN: &[&[u8]] = &[b"h2"];

/// Longest wait for a renewal of credentials that have ended. It needs nothing from elsewhere.
const RENEWAL_WAIT: Duration = Duration::from_secs(2);

pub(super) struct CurrentTls {
    credentials: watch::Receiver<Arc<Credentials>>,
    /// Has them renewed.
    ended: Arc<Notify>,
    /// How long certificates of peers may have ended.
    grace: Duration,
    config: Option<Arc<ServerConfig>>,
}

impl CurrentTls {
    pub(super) fn new(
        credentials: watch::Receiver<Arc<Credentials>>,
        ended: Arc<Notify>,
        grace: Duration,
    ) -> Self {
        Self { credentials, ended, grace, config: None }
    }

    /// The configuration for a connection that has just come. A certificate that has ended, as after a
    /// jump of the clock, is renewed first.
    pub(super) async fn config(&mut self) -> Result<Arc<ServerConfig>, TlsError> {
        let is_good = |own: &Arc<Credentials>| own.not_after() > SystemTime::now();
        if !is_good(&self.credentials.borrow()) {
            self.config = None;
            self.ended.notify_one();
            let renewed = self.credentials.wait_for(is_good);
            let _ = tokio::time::timeout(RENEWAL_WAIT, renewed).await;
        }
        if let Some(config) = &self.config
            && !self.credentials.has_changed().unwrap_or(false)
        {
            return Ok(config.clone());
        }
        let credentials = self.credentials.borrow_and_update().clone();
        let config = control_server_config(&credentials, ALPN, self.grace)?;
        self.config = Some(config.clone());
        Ok(config)
    }
}
