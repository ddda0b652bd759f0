//! Identities at a control plane, step by step: what an attacker with a token has, and a newcomer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tollway_dial::{Tls, channel, dial};
use tollway_identity::{
    CertificateDer, Credentials, Expected, JoinToken, KeyExchange, KeyPair, TrustBundle,
    TrustBundles, bootstrap_config, client_config,
};
use tollway_model::{ServiceName, TrustDomain};
use tollway_tests::network::label;
use tollway_wire::v1;
use tollway_wire::v1::identity_client::IdentityClient;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

const ALPN: &[&[u8]] = &[b"h2"];
/// After that a connection or a certificate counts as refused.
const WITHIN: Duration = Duration::from_secs(5);

/// A workload with a certificate, and its network's control plane.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) control: SocketAddr,
    pub(crate) credentials: Credentials,
}

impl Member {
    /// Redeems a token for `service`, such as `evil.lowly.west`.
    pub(crate) async fn enrol(
        control: SocketAddr,
        token: &str,
        service: &str,
        instance: &str,
    ) -> Result<Self, Status> {
        let token: JoinToken = token.trim().parse().unwrap();
        let domain = TrustDomain::default_for(token.network());
        let expected = Expected::control(token.network(), &domain);
        let config = bootstrap_config(token.pin(), ALPN, KeyExchange::Hybrid).unwrap();
        let channel = open(control, &expected, config).await?;
        let service = ServiceName::parse_in(service, &label("default"), token.network()).unwrap();
        let credentials = issue(channel, &service, instance, token.to_string()).await?;
        Ok(Self { control, credentials })
    }

    /// A certificate by this one alone, for itself or for `service`.
    pub(crate) async fn renew(&self, service: Option<&ServiceName>) -> Result<Self, Status> {
        let channel = self.channel().await?;
        let instance = self.credentials.instance().unwrap().as_str().to_owned();
        let service = service.unwrap_or(self.credentials.service()).clone();
        let credentials = issue(channel, &service, &instance, String::new()).await?;
        Ok(Self { credentials, ..self.clone() })
    }

    pub(crate) async fn channel(&self) -> Result<Channel, Status> {
        open(self.control, &self.expected(), self.config()).await
    }

    /// What its connections show, and the name that they ask for.
    pub(crate) fn tls(&self) -> (Arc<ClientConfig>, String) {
        (self.config(), self.expected().server_name().unwrap().to_str().into_owned())
    }

    fn expected(&self) -> Expected {
        let own = self.credentials.spiffe_id();
        Expected::control(&self.credentials.service().network, &own.trust_domain)
    }

    fn config(&self) -> Arc<ClientConfig> {
        client_config(&self.credentials, &self.expected(), ALPN).unwrap()
    }
}

async fn open(
    control: SocketAddr,
    expected: &Expected,
    config: Arc<ClientConfig>,
) -> Result<Channel, Status> {
    let tls = Tls { config, name: expected.server_name().unwrap() };
    let no_connection = |error: String| Status::unavailable(error);
    let stream = dial(control, Some(tls), WITHIN).await;
    let stream = stream.map_err(|error| no_connection(error.to_string()))?;
    let endpoint = Endpoint::from_static("http://control.mesh");
    channel(endpoint, stream).await.map_err(|error| no_connection(error.to_string()))
}

async fn issue(
    channel: Channel,
    service: &ServiceName,
    instance: &str,
    token: String,
) -> Result<Credentials, Status> {
    let key = KeyPair::generate().unwrap();
    let request = v1::IssueRequest {
        csr: key.csr_der().unwrap(),
        service: Some(service.into()),
        instance: instance.into(),
        token,
        ttl_s: 0,
        pod_token: String::new(),
    };
    let mut client = IdentityClient::new(channel);
    let issued = tokio::time::timeout(WITHIN, client.issue(request)).await;
    let issued =
        issued.map_err(|_| Status::deadline_exceeded("no certificate in time"))??.into_inner();
    let trust = issued.trust.unwrap();
    let bundles = trust.bundles.iter().map(|bundle| {
        let roots = bundle.roots.iter().map(|root| CertificateDer::from(root.clone())).collect();
        let domain = TrustDomain::new(&bundle.trust_domain).unwrap();
        TrustBundle::new(label(&bundle.network), domain, roots).unwrap()
    });
    let bundles = TrustBundles::new(trust.revision, bundles.collect::<Vec<_>>()).unwrap();
    let chain = issued.chain.into_iter().map(CertificateDer::from).collect();
    Ok(Credentials::new(&key, chain, bundles).unwrap())
}

/// The name of an app of the attacked network.
pub(crate) fn of_west(app: &str) -> ServiceName {
    ServiceName { app: label(app), namespace: label("default"), network: label("west") }
}

/// The error code of a refusal, or its kind where it has none.
pub(crate) fn code(status: &Status) -> String {
    match tollway_wire::code_of(status) {
        Some(code) => code.word().to_owned(),
        None => format!("{:?}", status.code()),
    }
}
