//! When a session renews its certificate before its time.

use tokio::time::{advance, timeout};
use tollway_identity::{Authority, IssueRequest, KeyPair, TrustBundle, TrustBundles};
use tollway_model::{Label, TrustDomain};
use tollway_wire::v1::identity_server::{Identity, IdentityServer};
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use super::super::control_at::ControlAt;
use super::*;

/// Longer than anything takes that needs no time of the clock.
const MOMENT: Duration = Duration::from_millis(1);

/// A control plane that is asked for certificates, and gives none.
struct Asked(mpsc::UnboundedSender<()>);

#[tonic::async_trait]
impl Identity for Asked {
    async fn issue(
        &self,
        _: Request<v1::IssueRequest>,
    ) -> Result<Response<v1::IssueResponse>, Status> {
        self.0.send(()).unwrap();
        Err(Status::unavailable("a test"))
    }

    async fn check(
        &self,
        _: Request<v1::CheckRequest>,
    ) -> Result<Response<v1::CheckResponse>, Status> {
        Err(Status::unimplemented("a test"))
    }
}

/// The channel to it, and its requests as they come.
async fn control_plane() -> (Channel, mpsc::UnboundedReceiver<()>) {
    let (near, far) = tokio::io::duplex(1 << 16);
    let (sender, asked) = mpsc::unbounded_channel();
    let served = Server::builder().add_service(IdentityServer::new(Asked(sender)));
    let incoming = tokio_stream::iter([Ok::<_, std::io::Error>(far)]);
    let incoming = tokio_stream::StreamExt::chain(incoming, tokio_stream::pending());
    tokio::spawn(served.serve_with_incoming(incoming));
    let endpoint = Endpoint::from_static("http://control.mesh");
    (tollway_dial::channel(endpoint, near).await.unwrap(), asked)
}

/// Credentials that are valid for a day from now on.
fn credentials() -> Credentials {
    let network = Label::new("west").unwrap();
    let domain = TrustDomain::default_for(&network);
    let authority = Authority::create(&domain, &network, SystemTime::now()).unwrap();
    let key = KeyPair::generate().unwrap();
    let request = IssueRequest {
        csr_der: key.csr_der().unwrap(),
        service: ServiceName::parse_in("web", &Label::new("default").unwrap(), &network).unwrap(),
        instance: Label::new("w-1").unwrap(),
        ttl: Duration::from_secs(24 * 3600),
    };
    let issued = authority.issue(&request, SystemTime::now()).unwrap();
    let root = vec![authority.root_der().clone()];
    let bundle = TrustBundle::new(network, domain, root).unwrap();
    Credentials::new(&key, issued.chain, TrustBundles::new(1, [bundle]).unwrap()).unwrap()
}

fn shared(credentials: Credentials) -> Shared {
    let control = watch::Sender::new("127.0.0.1:1".parse().unwrap());
    let control_at = ControlAt::new(control.subscribe());
    Shared::new(control, control_at, credentials)
}

/// The harm: a peer whose clock is ahead has a certificate renewed again and again; or one that has ended
/// is not renewed when a peer refuses it.
#[tokio::test(start_paused = true)]
async fn a_certificate_that_is_refused_is_renewed_unless_it_is_new() {
    let (channel, mut asked) = control_plane().await;
    let credentials = credentials();
    let who = Enrolment::of_test(&credentials);
    let shared = Arc::new(shared(credentials));
    let of_task = Arc::clone(&shared);
    tokio::spawn(async move { renew(&who, &of_task, channel).await });
    let mut is_asked = async || timeout(MOMENT, asked.recv()).await.is_ok();
    assert!(!is_asked().await, "its time has not come");
    for _ in 0..2 {
        shared.refused.notify_one();
        assert!(!is_asked().await, "it is new");
    }
    // What is refused in the last moment counts no later.
    advance(REFUSED_TOO_SOON - 4 * MOMENT).await;
    shared.refused.notify_one();
    assert!(!is_asked().await, "it is new still");
    advance(2 * REFUSED_TOO_SOON).await;
    assert!(!is_asked().await, "it was not refused since");
    shared.refused.notify_one();
    assert!(is_asked().await, "it is refused, and not renewed");
}
