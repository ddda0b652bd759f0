use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tollway_identity::public_config;
use tower::ServiceExt as _;

use super::*;

const SOON: Duration = Duration::from_secs(20);

/// A server with a certificate of its own for `localhost`, which answers what it reads; its address
/// and the roots that trust it.
async fn echo_over_tls() -> (SocketAddr, RootCertStore) {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(tcp).await {
                    let (mut read, mut write) = tokio::io::split(stream);
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                }
            });
        }
    });
    (address, roots)
}

fn tls(roots: RootCertStore) -> Tls {
    Tls::to("localhost", Arc::new(public_config(roots, &[], None).unwrap())).unwrap()
}

#[tokio::test]
async fn bytes_pass_in_the_clear_and_over_tls() {
    let (address, roots) = echo_over_tls().await;
    let mut stream = dial(address, Some(tls(roots)), SOON).await.unwrap();
    assert!(matches!(&stream, Either::Right(_)));
    stream.write_all(b"hello").await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"hello");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = dial(listener.local_addr().unwrap(), None, SOON).await.unwrap();
    let Either::Left(tcp) = stream else { panic!("TLS was not asked for") };
    assert!(tcp.nodelay().unwrap());
}

#[tokio::test]
async fn a_server_that_is_not_trusted_differs_from_one_that_is_away() {
    let (address, _) = echo_over_tls().await;
    let (_, other) = echo_over_tls().await;
    let refused = dial(address, Some(tls(other)), SOON).await.unwrap_err();
    assert!(matches!(refused, DialError::Tls(rustls::Error::InvalidCertificate(_))), "{refused:?}");
    let closed = tollway_testkit::free_address().unwrap();
    let away = io::Error::from(dial(closed, None, SOON).await.unwrap_err());
    assert_eq!(away.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn each_address_is_tried_and_the_error_names_all() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = listener.local_addr().unwrap();
    let closed = [(); 2].map(|()| tollway_testkit::free_address().unwrap());
    let dialled = dial(&[closed[0], here][..], None, SOON).await.unwrap();
    let Either::Left(tcp) = dialled else { panic!("TLS was not asked for") };
    assert_eq!(tcp.peer_addr().unwrap(), here);
    assert_eq!(reachable(&[closed[0], here][..], SOON).await.unwrap(), here);
    assert_eq!(reachable(&closed[..], SOON).await.unwrap(), closed[0]);
    assert_eq!(reachable_blocking("127.0.0.1", here.port(), SOON).unwrap(), here);
    let away = io::Error::from(dial(&closed[..], None, SOON).await.unwrap_err());
    assert_eq!(away.kind(), io::ErrorKind::ConnectionRefused);
    let text = away.to_string();
    assert!(closed.iter().all(|address| text.contains(&address.to_string())), "{text}");
}

#[tokio::test]
async fn a_connection_that_breaks_in_the_handshake_was_not_refused() {
    let (_, roots) = echo_over_tls().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let closing = async { drop(listener.accept().await.unwrap()) };
    let (dialled, ()) = tokio::join!(dial(address, Some(tls(roots)), SOON), closing);
    assert!(matches!(dialled.unwrap_err(), DialError::Connect(_)));
}

#[tokio::test]
async fn a_silent_server_costs_the_given_time() {
    let (_, roots) = echo_over_tls().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let dialled = dial(address, Some(tls(roots)), Duration::from_millis(20)).await;
    assert!(matches!(dialled, Err(DialError::Timeout { .. })), "{dialled:?}");
}

#[test]
fn a_name_that_no_certificate_can_have_is_refused() {
    let config = Arc::new(public_config(RootCertStore::empty(), &[], None).unwrap());
    let refused = Tls::to("a b", config).unwrap_err();
    assert_eq!(refused.to_string(), "`a b` is no name that a certificate can have");
}

#[tokio::test]
async fn a_channel_reports_the_end_of_its_connection_and_dials_no_other() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = dial(listener.local_addr().unwrap(), None, SOON).await.unwrap();
    let channel = channel(Endpoint::from_static("http://peer.mesh"), stream).await.unwrap();
    drop(listener.accept().await.unwrap());
    for _ in 0..2 {
        let request = http::Request::new(tonic::body::Body::empty());
        let answered = tokio::time::timeout(SOON, channel.clone().oneshot(request)).await;
        assert!(answered.unwrap().is_err());
    }
    let refused = listener.into_std().unwrap().accept().unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "it dialled again");
}

/// What a connection over TLS answers.
async fn echoed(stream: &mut Stream) -> [u8; 5] {
    stream.write_all(b"hello").await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn the_next_address_serves_where_one_refuses_is_silent_or_has_another_certificate() {
    let (address, roots) = echo_over_tls().await;
    let (other, _) = echo_over_tls().await;
    // Connections are accepted, and nothing is answered.
    let listens = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = listens.local_addr().unwrap();
    let refuses = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for (before, reason) in [
        (other.to_string(), Some("TLS is refused")),
        (silent.to_string(), None),
        (refuses.to_string(), Some("refused")),
        ("no-such-host.invalid:1".to_owned(), Some("")),
    ] {
        let targets: Targets = format!("{before},{address}").parse().unwrap();
        let tls = tls(roots.clone());
        let mut dialled = dial_any(&targets, &[], Some(&tls), SOON).await.unwrap();
        assert_eq!((dialled.address, &echoed(&mut dialled.stream).await), (address, b"hello"));
        if let Some(missed) = dialled.missed.first() {
            assert!(reason.is_some_and(|reason| missed.to_string().contains(reason)), "{missed}");
            assert_eq!(missed.at, before);
        }
    }
}

#[tokio::test]
async fn addresses_that_failed_lately_are_tried_last() {
    let listen = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listeners = [listen().await, listen().await, listen().await];
    let [a, b, c] = [0, 1, 2].map(|at: usize| listeners[at].local_addr().unwrap());
    let targets: Targets = format!("{a},{b},{c}").parse().unwrap();
    for (last, first) in
        [(vec![], a), (vec![a], b), (vec![b], a), (vec![a, b], c), (vec![c, b, a], c)]
    {
        let dialled = dial_any(&targets, &last, None, SOON).await.unwrap();
        assert_eq!(dialled.address, first, "{last:?}");
    }
}

#[tokio::test]
async fn the_error_names_each_address_and_name_with_its_reason() {
    let (other, roots) = (echo_over_tls().await.0, echo_over_tls().await.1);
    let listens = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = listens.local_addr().unwrap();
    let refuses = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let text = format!("{refuses},no-such-host.invalid:1,{other},{silent}");
    let targets: Targets = text.parse().unwrap();
    let within = Duration::from_secs(3);
    let failed = dial_any(&targets, &[], Some(&tls(roots)), within).await.unwrap_err();
    assert_eq!(failed.missed.len(), 4, "{failed}");
    for part in [
        &*format!("{refuses}: Connection refused"),
        "no-such-host.invalid:1: ",
        &format!("{other}: TLS is refused: "),
        &format!("{silent}: no connection within 3 s"),
    ] {
        assert!(failed.to_string().contains(part), "{part}: {failed}");
    }
}
