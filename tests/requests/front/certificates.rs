//! The choice of a certificate for a client.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::version;

use crate::front::world::{Files, Https, client_of};
use tollway_tests::pki::{Pair, Wanted};
use tollway_tests::scripted_app::{App, Script};

#[test]
fn clients_get_the_certificate_of_the_name_they_ask_for() {
    let files = Files::new();
    let app = App::start(Script::new());
    let wild = files.authority.server(&["*.wild.example"]);
    let exact = files.authority.server(&["exact.wild.example", "b.example"]);
    let write = |pair: &Pair, name| {
        let (certificate, key) = pair.write(files.folder(), name);
        [certificate, key].map(|path| path.display().to_string())
    };
    let (w, e) = (write(&wild, "w"), write(&exact, "e"));
    let options = ["--cert", &w[0], "--key", &w[1], "--cert", &e[0], "--key", &e[1]];
    let front = files.front(&format!("http://{}", app.address), &options);
    let address = front.port("front").unwrap();
    let shown = |name: &str| -> Result<CertificateDer<'static>, String> {
        let config = Arc::new(files.client());
        Https::connect(address, name, config).map(|client| client.shown())
    };
    assert_eq!(shown("a.example").unwrap(), files.pair.der());
    assert_eq!(shown("any.wild.example").unwrap(), wild.der());
    assert_eq!(shown("exact.wild.example").unwrap(), exact.der());
    assert_eq!(shown("b.example").unwrap(), exact.der());
    // No name: the address is one of the first certificate's.
    assert_eq!(shown("127.0.0.1").unwrap(), files.pair.der());
    // An unknown name: the first certificate, which does not have it.
    let unknown = shown("unknown.example").unwrap_err();
    assert!(unknown.contains("not valid for name"), "{unknown}");
}

#[test]
fn keys_of_each_kind_are_served() {
    let kinds = [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ED25519,
        &rcgen::PKCS_RSA_SHA256,
    ];
    let app = App::start(Script::new());
    for kind in kinds {
        let files = Files::new();
        let pair = files.authority.sign(&Wanted::server(&["a.example"]).keyed(kind));
        pair.write(files.folder(), "a");
        let front = files.front(&format!("http://{}", app.address), &[]);
        for versions in [[&version::TLS12], [&version::TLS13]] {
            let config = Arc::new(client_of(&files.authority.root, None, &versions));
            let address = front.port("front").unwrap();
            let client = Https::connect(address, "a.example", config).unwrap();
            assert_eq!(client.shown(), pair.der());
        }
    }
}
