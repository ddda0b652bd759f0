//! The TLS configuration of the control plane's present credentials, made once for each.

use std::sync::Arc;

use rustls::ServerConfig;
use tokio::sync::watch;
use tollway_identity::{Credentials, TlsError, control_server_config};

/// The protocol inside TLS.
pub(crate) const ALPN: &[&[u8]] = &[b"h2"];

pub(super) struct CurrentTls {
    credentials: watch::Receiver<Arc<Credentials>>,
    config: Option<Arc<ServerConfig>>,
}

impl CurrentTls {
    pub(super) fn new(credentials: watch::Receiver<Arc<Credentials>>) -> Self {
        Self { credentials, config: None }
    }

    pub(super) fn config(&mut self) -> Result<Arc<ServerConfig>, TlsError> {
        if let Some(config) = &self.config
            && !self.credentials.has_changed().unwrap_or(false)
        {
            return Ok(config.clone());
        }
        let credentials = self.credentials.borrow_and_update().clone();
        let config = control_server_config(&credentials, ALPN)?;
        self.config = Some(config.clone());
        Ok(config)
    }
}
