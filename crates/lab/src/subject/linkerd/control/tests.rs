use clap::Parser;
use tollway_identity::{CertificateDer, KeyPair, peer_identity};
use tonic::Code;

use super::super::answers::Workload;
use super::*;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    control: LinkerdControlArgs,
}

/// A control plane of `west` with the workloads `client` and `echo`, whose tokens are their names.
fn certifier(dir: &Path) -> Result<Certifier, LinkerdControlError> {
    let network = NetworkName::new("west").unwrap();
    let domain = TrustDomain::default_for(&network);
    let pem = Authority::create(&domain, &network, SystemTime::now()).unwrap().to_pem();
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let workload =
        |app: &str| Workload { app: app.to_owned(), token_file: write(app, &format!("{app}'s")) };
    let knowledge =
        Knowledge { workloads: vec![workload("client"), workload("echo")], ..Knowledge::default() };
    let args = LinkerdControlArgs {
        network: "west".into(),
        root: write("root.pem", &pem.certificate),
        root_key: write("root.key", &pem.key),
        knowledge: dir.join("knowledge.json"),
        ports_file: dir.join("ports.json"),
    };
    Certifier::open(&args, &knowledge)
}

fn request(app: &str, token: &str) -> CertifyRequest {
    CertifyRequest {
        identity: format!("{app}.default.west.mesh"),
        token: token.into(),
        certificate_signing_request: KeyPair::generate().unwrap().csr_der().unwrap(),
    }
}

#[test]
fn a_known_workload_gets_a_certificate_of_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let certifier = certifier(dir.path()).unwrap();
    let now = SystemTime::now();
    let answer = certifier.certify(request("client", "client's"), now).unwrap();
    let leaf = CertificateDer::from(answer.leaf_certificate);
    let identity = peer_identity(std::slice::from_ref(&leaf)).unwrap();
    assert_eq!(identity.spiffe.to_string(), "spiffe://west.tollway/ns/default/client");
    assert!(identity.dns_names.iter().any(|name| name == "client.default.west.mesh"));
    let until = SystemTime::try_from(answer.valid_until.unwrap()).unwrap();
    assert!(until > now + Duration::from_secs(24 * 3600));
}

#[test]
fn others_get_none() {
    let dir = tempfile::tempdir().unwrap();
    let certifier = certifier(dir.path()).unwrap();
    let refused =
        |request: CertifyRequest| certifier.certify(request, SystemTime::now()).unwrap_err().code();
    assert_eq!(refused(request("client", "echo's")), Code::PermissionDenied);
    assert_eq!(refused(request("client", "")), Code::PermissionDenied);
    assert_eq!(refused(request("nobody", "client's")), Code::FailedPrecondition);
    let broken =
        CertifyRequest { certificate_signing_request: vec![1, 2], ..request("echo", "echo's") };
    assert_eq!(refused(broken), Code::InvalidArgument);
}

#[test]
fn a_key_of_another_authority_is_refused() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    certifier(one.path()).unwrap();
    certifier(other.path()).unwrap();
    let args = LinkerdControlArgs {
        network: "west".into(),
        root: one.path().join("root.pem"),
        root_key: other.path().join("root.key"),
        knowledge: PathBuf::new(),
        ports_file: PathBuf::new(),
    };
    let opened = Certifier::open(&args, &Knowledge::default());
    assert!(matches!(opened, Err(LinkerdControlError::Authority(_))));
}

#[test]
fn arguments_survive_the_command_line() {
    let args = LinkerdControlArgs {
        network: "west".into(),
        root: "/x/root.pem".into(),
        root_key: "/x/root.key".into(),
        knowledge: "/x/knowledge.json".into(),
        ports_file: "/x/ports.json".into(),
    };
    let words = std::iter::once("linkerd-control".to_owned()).chain(args.to_args());
    assert_eq!(Cli::try_parse_from(words).unwrap().control, args);
}
