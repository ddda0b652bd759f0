//! Probes of a gateway: a ClientHello for `gateway.<network>.mesh` with a proof in it, and the answer,
//! a ServerHello, which only one who has the same secret can make.
//!
//! Both have the form of TLS, so that they pass where calls pass, other gateways included; nothing of
//! TLS follows. The answer is shorter than the question, costs its maker two hashes, and holds for this
//! question alone. Who has no secret gets none.

use aws_lc_rs::{constant_time, hmac, rand};
use tollway_model::{NetworkName, ProbeSecret};

use crate::authority::gateway_dns_san;

/// The length of an answer.
pub const PROBE_ANSWER: usize = RECORD_HEAD + MESSAGE_HEAD + 78;

const RECORD_HEAD: usize = 5;
const MESSAGE_HEAD: usize = 4;
/// What is before the random bytes of a hello: both heads and the version.
const BEFORE_RANDOM: usize = RECORD_HEAD + MESSAGE_HEAD + 2;
const RANDOM: usize = 32;
/// The session identifier: which secret, and the proof.
const SESSION: usize = 32;
const BEFORE_SESSION: usize = BEFORE_RANDOM + RANDOM + 1;
const ID: usize = 8;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
/// `TLS_AES_128_GCM_SHA256`.
const SUITE: [u8; 2] = [0x13, 0x01];
/// The extension `supported_versions` of a ServerHello: TLS 1.3.
const VERSION_CHOSEN: [u8; 6] = [0, 43, 0, 2, 3, 4];

const OF_SECRET: &[u8] = b"tollway gateway probe: secret of a network\0";
const OF_ID: &[u8] = b"tollway gateway probe: name of a secret\0";
const OF_QUESTION: &[u8] = b"tollway gateway probe: question\0";
const OF_SERVING: &[u8] = b"tollway gateway probe: answer, serving\0";
const OF_DRAINING: &[u8] = b"tollway gateway probe: answer, draining\0";

/// Which secret a question is made with. Not secret itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProbeId([u8; ID]);

/// What an answer states of the gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GatewayState {
    /// It takes connections.
    Serving,
    /// It ends soon, and should get no more.
    Draining,
}

/// A probe that is under way.
pub struct ProbeQuestion {
    secret: ProbeSecret,
    random: [u8; RANDOM],
    network: NetworkName,
}

/// What a gateway reads of a probe.
#[derive(Clone, Copy, Debug)]
pub struct ProbeHello {
    random: [u8; RANDOM],
    session: [u8; SESSION],
}

/// What a probe gets.
pub type ProbeAnswer = [u8; PROBE_ANSWER];

impl ProbeId {
    #[must_use]
    pub fn of(secret: &ProbeSecret) -> Self {
        Self(first(&mac(secret.as_bytes(), &[OF_ID])))
    }
}

impl ProbeQuestion {
    /// A new question for the gateways of `network`; `None` where the system gives no random bytes.
    #[must_use]
    pub fn new(secret: ProbeSecret, network: NetworkName) -> Option<Self> {
        let mut random = [0; RANDOM];
        rand::fill(&mut random).ok()?;
        Some(Self { secret, random, network })
    }

    /// What is sent: one record with a whole ClientHello.
    #[must_use]
    pub fn hello(&self) -> Vec<u8> {
        let name = gateway_dns_san(&self.network);
        let length = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
        let name_length = length(name.len());
        let server_name = [
            &[0, 0][..],
            &length(name.len() + 5),
            &length(name.len() + 3),
            &[0],
            &name_length,
            name.as_bytes(),
        ];
        // TLS 1.3; ECDSA over P-256 and Ed25519.
        let others: &[u8] = &[0, 43, 0, 3, 2, 3, 4, 0, 13, 0, 6, 0, 4, 4, 3, 8, 7];
        let extensions = [&server_name.concat()[..], others].concat();
        let body = [
            &[3, 3][..],
            &self.random,
            &[SESSION as u8],
            &ProbeId::of(&self.secret).0,
            &proof(&self.secret, &self.random),
            &[0, 2],
            &SUITE,
            &[1, 0],
            &length(extensions.len()),
            &extensions,
        ];
        record(CLIENT_HELLO, &body.concat())
    }

    /// What the gateway states; `None` if the answer is not of one who has the secret.
    #[must_use]
    pub fn read(&self, answer: &ProbeAnswer) -> Option<GatewayState> {
        let hello = ProbeHello { random: self.random, session: self.session() };
        let is_of = |state: &GatewayState| {
            let expected = hello.answer_of(&self.secret, *state);
            constant_time::verify_slices_are_equal(&expected, answer).is_ok()
        };
        [GatewayState::Serving, GatewayState::Draining].into_iter().find(is_of)
    }

    fn session(&self) -> [u8; SESSION] {
        let mut session = [0; SESSION];
        session[..ID].copy_from_slice(&ProbeId::of(&self.secret).0);
        session[ID..].copy_from_slice(&proof(&self.secret, &self.random));
        session
    }
}

impl ProbeHello {
    /// Reads a whole ClientHello; `None` for one that has not the form of a probe.
    #[must_use]
    pub fn read(hello: &[u8]) -> Option<Self> {
        let is_probe = hello.first() == Some(&HANDSHAKE)
            && hello.get(RECORD_HEAD) == Some(&CLIENT_HELLO)
            && hello.get(BEFORE_SESSION - 1).copied().map(usize::from) == Some(SESSION);
        if !is_probe {
            return None;
        }
        let random = hello.get(BEFORE_RANDOM..BEFORE_RANDOM + RANDOM)?.try_into().ok()?;
        let session = hello.get(BEFORE_SESSION..BEFORE_SESSION + SESSION)?.try_into().ok()?;
        Some(Self { random, session })
    }

    /// The secret that it names.
    #[must_use]
    pub fn id(&self) -> ProbeId {
        ProbeId(first(&self.session))
    }

    /// The answer to one who has the secret; `None` for others.
    #[must_use]
    pub fn answer(&self, secret: &ProbeSecret, state: GatewayState) -> Option<ProbeAnswer> {
        let proof = proof(secret, &self.random);
        constant_time::verify_slices_are_equal(&proof, &self.session[ID..]).ok()?;
        Some(self.answer_of(secret, state))
    }

    fn answer_of(&self, secret: &ProbeSecret, state: GatewayState) -> ProbeAnswer {
        let of = match state {
            GatewayState::Serving => OF_SERVING,
            GatewayState::Draining => OF_DRAINING,
        };
        let proof = mac(secret.as_bytes(), &[of, &self.random]);
        let extensions = [&[0, VERSION_CHOSEN.len() as u8][..], &VERSION_CHOSEN].concat();
        let body =
            [&[3, 3][..], &proof, &[SESSION as u8], &self.session, &SUITE, &[0], &extensions];
        let mut answer = [0; PROBE_ANSWER];
        for (to, from) in answer.iter_mut().zip(record(SERVER_HELLO, &body.concat())) {
            *to = from;
        }
        answer
    }
}

/// The secret with which `of` probes, made of a key that stays.
pub(crate) fn derive(key: &[u8], of: &NetworkName, joined_at_unix_s: u64) -> ProbeSecret {
    let name = of.to_lower();
    ProbeSecret::new(mac(key, &[OF_SECRET, &joined_at_unix_s.to_be_bytes(), name.as_bytes()]))
}

fn proof(secret: &ProbeSecret, random: &[u8; RANDOM]) -> [u8; SESSION - ID] {
    first(&mac(secret.as_bytes(), &[OF_QUESTION, random]))
}

/// HMAC with SHA-256.
fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
    for part in parts {
        context.update(part);
    }
    first(context.sign().as_ref())
}

fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
}

/// One record with one message of the handshake.
fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    // Names are bounded, so that a probe has a few hundred bytes at most.
    let length = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
    let (whole, message) = (length(body.len() + MESSAGE_HEAD), length(body.len()));
    [&[HANDSHAKE, 3, 3][..], &whole, &[kind, 0], &message, body].concat()
}

#[cfg(test)]
mod tests {
    use tollway_model::Label;

    use super::*;
    use crate::tls::{ServerNameRead, ServerNameReader};

    fn secret(byte: u8) -> ProbeSecret {
        ProbeSecret::new([byte; 32])
    }

    fn question(secret: ProbeSecret) -> ProbeQuestion {
        ProbeQuestion::new(secret, Label::new("East").unwrap()).unwrap()
    }

    #[test]
    fn who_has_the_secret_gets_an_answer_that_is_shorter_and_reads_it() {
        let asked = question(secret(1));
        let hello = asked.hello();
        let read = ProbeHello::read(&hello).unwrap();
        assert_eq!(read.id(), ProbeId::of(&secret(1)));
        for state in [GatewayState::Serving, GatewayState::Draining] {
            let answer = read.answer(&secret(1), state).unwrap();
            assert!(answer.len() < hello.len(), "{} {}", answer.len(), hello.len());
            assert_eq!(asked.read(&answer), Some(state));
            // The whole record is there, and no more.
            assert_eq!(usize::from(u16::from_be_bytes([answer[3], answer[4]])), answer.len() - 5);
        }
    }

    #[test]
    fn nothing_is_answered_without_the_secret_and_no_answer_serves_twice() {
        let (asked, later) = (question(secret(1)), question(secret(1)));
        let read = ProbeHello::read(&asked.hello()).unwrap();
        assert_eq!(read.answer(&secret(2), GatewayState::Serving), None);
        let answer = read.answer(&secret(1), GatewayState::Serving).unwrap();
        assert_eq!(later.read(&answer), None, "it was given to another question");
        for at in 0..answer.len() {
            let mut changed = answer;
            changed[at] ^= 1;
            assert_eq!(asked.read(&changed), None, "byte {at}");
        }
        // A proof that is changed anywhere is none.
        for at in BEFORE_RANDOM..BEFORE_SESSION + SESSION {
            let mut changed = asked.hello();
            changed[at] ^= 1;
            let answered = ProbeHello::read(&changed)
                .filter(|read| read.id() == ProbeId::of(&secret(1)))
                .and_then(|read| read.answer(&secret(1), GatewayState::Serving));
            assert_eq!(answered, None, "byte {at}");
        }
    }

    #[test]
    fn a_probe_is_a_client_hello_with_the_name_of_the_gateways() {
        let mut hello = question(secret(1)).hello();
        assert_eq!(
            ServerNameReader::default().take(&hello),
            ServerNameRead::Named("gateway.east.mesh".to_owned())
        );
        for end in 0..BEFORE_SESSION + SESSION {
            assert!(ProbeHello::read(&hello[..end]).is_none(), "{end}");
        }
        hello[0] = 23;
        assert!(ProbeHello::read(&hello).is_none());
    }

    #[test]
    fn each_network_has_a_secret_of_its_own_for_each_time_that_it_is_joined() {
        let name = |text| Label::new(text).unwrap();
        let of = derive(b"key", &name("west"), 1);
        assert_eq!(of, derive(b"key", &name("WEST"), 1));
        for other in [
            derive(b"key", &name("north"), 1),
            derive(b"key", &name("west"), 2),
            derive(b"other key", &name("west"), 1),
        ] {
            assert_ne!(of, other);
        }
    }
}
