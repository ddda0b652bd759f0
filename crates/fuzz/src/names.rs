//! Names as peers send them: labels, services, host names, SPIFFE IDs.

use tollway_model::{Label, NameError, ServiceName, SpiffeId, TrustDomain};

/// An error repeats what was given, and says what is wrong with it.
const ERROR_BYTES: usize = 512;

/// The same text as each kind of name.
pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let bound = text.len() * 4 + ERROR_BYTES;
    let home = ServiceName {
        app: Label::new("me").expect("a label"),
        namespace: Label::new("default").expect("a label"),
        network: Label::new("west").expect("a label"),
    };
    match Label::new(text) {
        Ok(label) => {
            assert_eq!(label.as_str(), text);
            assert_eq!(label, Label::new(&text.to_ascii_uppercase()).expect("case does not count"));
        }
        Err(error) => assert!(error.to_string().len() <= bound, "{error}"),
    }
    match SpiffeId::parse(text) {
        Ok(id) => {
            assert_eq!(id.to_string(), text, "one identity has one form");
            assert!(TrustDomain::new(id.trust_domain.as_str()).is_ok());
        }
        Err(error) => assert!(error.to_string().len() <= bound, "{error}"),
    }
    match ServiceName::parse(text, &home) {
        Ok(name) => check_service(&name, &home),
        Err(error) => assert!(error.to_string().len() <= bound, "{error}"),
    }
    if let Ok(name) = ServiceName::parse_host(text, &home) {
        check_service(&name, &home);
    }
    if let Ok(name) = ServiceName::parse_dns_san(text) {
        check_service(&name, &home);
    }
}

/// A name, and the server name of its certificate, read back as they are.
fn check_service(name: &ServiceName, home: &ServiceName) {
    assert_eq!(ServiceName::parse(&name.to_string(), home).as_ref(), Ok(name));
    let proven = ServiceName::parse_dns_san(&name.dns_san());
    // A service of any network is called, and nothing proves to be it.
    let is_any = name.is_in_any_network();
    assert_eq!(proven.as_ref(), if is_any { Err(&NameError::AnyNetwork) } else { Ok(name) });
}
