//! The connection to a Redis server: made again by itself when it ends.

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo,
    TlsCertificates,
};

use super::failure;
use crate::component::RedisSettings;
use crate::error::StateError;

/// Attempts to connect again after a connection has ended, before a request fails.
const ATTEMPTS: usize = 3;

pub(super) async fn connect(settings: &RedisSettings) -> Result<ConnectionManager, StateError> {
    let client = client(settings).map_err(|error| StateError::Setting {
        what: format!("the settings for Redis at {} are no use: {error}", settings.address()),
    })?;
    let config = ConnectionManagerConfig::new()
        .set_number_of_retries(ATTEMPTS)
        .set_connection_timeout(Some(settings.dial_timeout))
        .set_response_timeout(Some(settings.timeout));
    let connected = ConnectionManager::new_with_config(client, config).await;
    connected.map_err(|error| failure(&settings.address(), settings.dial_timeout, error))
}

fn client(settings: &RedisSettings) -> redis::RedisResult<Client> {
    let mut redis = RedisConnectionInfo::default().set_db(settings.database);
    if let Some(username) = &settings.username {
        redis = redis.set_username(username);
    }
    if let Some(password) = &settings.password {
        redis = redis.set_password(password);
    }
    let (host, port) = (settings.host.clone(), settings.port);
    if !settings.tls {
        let info = ConnectionAddr::Tcp(host, port).into_connection_info()?;
        return Client::open(info.set_redis_settings(redis));
    }
    let address = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
    let info = address.into_connection_info()?.set_redis_settings(redis);
    let client_tls = settings.client_pair.as_ref().map(|(certificate, key)| ClientTlsConfig {
        client_cert: certificate.clone().into_bytes(),
        client_key: key.clone().into_bytes(),
    });
    Client::build_with_tls(info, TlsCertificates { client_tls, root_cert: None })
}
