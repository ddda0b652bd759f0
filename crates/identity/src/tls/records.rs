//! TLS records as a gateway reads them, which decrypts nothing: where a ClientHello ends, what is random
//! of it, and whether what answers it speaks TLS. Pure.

/// Bytes of a record before its payload; the last two are the payload's length.
const RECORD_HEAD: usize = 5;
/// Type and length of a message of the handshake.
const MESSAGE_HEAD: usize = 4;
/// Largest payload of a record that is not encrypted.
const PAYLOAD_MAX: usize = 1 << 14;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const SERVER_HELLO: u8 = 2;
/// The bytes of an alert: level and description.
const ALERT_BYTES: usize = 2;
const ALERT_RECORD: usize = RECORD_HEAD + ALERT_BYTES;
/// From the length of a ServerHello on: its length, and the version that all of them state.
const SERVER_HELLO_HEAD: usize = RECORD_HEAD + MESSAGE_HEAD + 2;

/// Type, length and version of the message, and what is random of it.
const BEFORE_RANDOM: usize = 6;
const RANDOM: usize = 32;
const WITH_RANDOM: usize = BEFORE_RANDOM + RANDOM;

/// What distinguishes one hello from all others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HelloRandom([u8; RANDOM]);

impl HelloRandom {
    /// Of a ClientHello as it comes on the wire, over any number of records. `None` if it is not
    /// there yet.
    #[must_use]
    pub fn of(records: &[u8]) -> Option<Self> {
        let mut message = Vec::with_capacity(WITH_RANDOM);
        let mut rest = records;
        loop {
            let (head, payload) = rest.split_at_checked(RECORD_HEAD)?;
            let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
            message.extend(payload.iter().take(length.min(WITH_RANDOM)));
            if let Some(random) = message.get(BEFORE_RANDOM..WITH_RANDOM) {
                return random.try_into().ok().map(Self);
            }
            rest = payload.get(length..)?;
        }
    }
}

/// Bytes of a ClientHello with the heads of its records; `None` if it has not come whole.
#[must_use]
pub fn client_hello_bytes(records: &[u8]) -> Option<usize> {
    let mut message = Vec::with_capacity(MESSAGE_HEAD);
    let (mut payloads, mut at) = (0, 0);
    loop {
        let (head, rest) = records.get(at..)?.split_at_checked(RECORD_HEAD)?;
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        let payload = rest.get(..length)?;
        let missing = MESSAGE_HEAD - message.len();
        message.extend(payload.iter().take(missing));
        payloads += length;
        at += RECORD_HEAD + length;
        if let [_, high, middle, low] = message[..] {
            let whole = u32::from_be_bytes([0, high, middle, low]) as usize;
            if payloads >= MESSAGE_HEAD + whole {
                return Some(at);
            }
        }
    }
}

/// What a callee's first bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstRecord {
    /// More bytes decide.
    Partial,
    ServerHello,
    /// An alert of so many bytes, with the head of its record.
    Alert(usize),
    NotTls,
}

/// Reads the beginning of a callee's first record.
#[must_use]
pub fn first_record(bytes: &[u8]) -> FirstRecord {
    let is = |at: usize, expected: fn(u8) -> bool| bytes.get(at).is_none_or(|byte| expected(*byte));
    let length = bytes.get(3..RECORD_HEAD).map(|b| usize::from(u16::from_be_bytes([b[0], b[1]])));
    if !is(1, |major| major == 3) || !is(2, |minor| minor <= 4) {
        return FirstRecord::NotTls;
    }
    let (is_right, needed, record) = match bytes.first() {
        None => return FirstRecord::Partial,
        Some(&ALERT) => (
            length.is_none_or(|length| length == ALERT_BYTES)
                && is(RECORD_HEAD, |level| matches!(level, 1 | 2)),
            ALERT_RECORD,
            FirstRecord::Alert(ALERT_RECORD),
        ),
        Some(&HANDSHAKE) => (
            length.is_none_or(|length| (MESSAGE_HEAD + 2..=PAYLOAD_MAX).contains(&length))
                && is(RECORD_HEAD, |kind| kind == SERVER_HELLO)
                && is(RECORD_HEAD + 1, |high| high == 0)
                && is(SERVER_HELLO_HEAD - 2, |major| major == 3)
                && is(SERVER_HELLO_HEAD - 1, |minor| minor == 3),
            SERVER_HELLO_HEAD,
            FirstRecord::ServerHello,
        ),
        Some(_) => return FirstRecord::NotTls,
    };
    match (is_right, bytes.len() >= needed) {
        (false, _) => FirstRecord::NotTls,
        (true, false) => FirstRecord::Partial,
        (true, true) => record,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ClientHello of this many bytes, in records of at most that many.
    fn hello(bytes: usize, record: usize) -> Vec<u8> {
        let length = u32::try_from(bytes - MESSAGE_HEAD).unwrap().to_be_bytes();
        let mut message = vec![1, length[1], length[2], length[3]];
        message.resize(bytes, 0xab);
        let mut records = Vec::new();
        for payload in message.chunks(record) {
            let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
            records.extend([HANDSHAKE, 3, 1, length[0], length[1]]);
            records.extend(payload);
        }
        records
    }

    #[test]
    fn a_client_hello_ends_with_its_last_record() {
        for record in [1, 3, 5, 100, 1_000] {
            let hello = hello(517, record);
            let mut more = hello.clone();
            more.extend(b"\r\nSET owned yes\r\n");
            assert_eq!(client_hello_bytes(&more), Some(hello.len()), "records of {record}");
            assert_eq!(client_hello_bytes(&hello[..hello.len() - 1]), None);
        }
        assert_eq!(client_hello_bytes(b""), None);
    }

    #[test]
    fn only_a_server_hello_or_an_alert_is_an_answer() {
        let server_hello = [22, 3, 3, 0, 90, 2, 0, 0, 86, 3, 3, 1, 2, 3];
        let alert = [21, 3, 3, 0, 2, 2, 112];
        for cut in 0..server_hello.len() {
            let expected = if cut < SERVER_HELLO_HEAD {
                FirstRecord::Partial
            } else {
                FirstRecord::ServerHello
            };
            assert_eq!(first_record(&server_hello[..cut]), expected, "{cut}");
        }
        for cut in 0..alert.len() {
            assert_eq!(first_record(&alert[..cut]), FirstRecord::Partial, "{cut}");
        }
        assert_eq!(first_record(&[&alert[..], b"more"].concat()), FirstRecord::Alert(7));
        for other in [
            &b"-ERR unknown command"[..],
            b"+OK",
            b"220 mail.example ESMTP",
            b"HTTP/1.1 400 Bad Request",
            b"\0",
            &[0x15, b'x'],
            &[22, 2, 0],
            &[22, 3, 9],
            // A ClientHello: what echoes.
            &[22, 3, 1, 2, 0, 1],
            // A record too short or too long for a ServerHello.
            &[22, 3, 3, 0, 4],
            &[22, 3, 3, 0x40, 1],
            // A message of another version, or longer than one can be.
            &[22, 3, 3, 0, 90, 2, 0, 0, 86, 2],
            &[22, 3, 3, 0, 90, 2, 1],
            // Application data, and an alert that is encrypted or none.
            &[23, 3, 3],
            &[21, 3, 3, 0, 19],
            &[21, 3, 3, 0, 2, 7],
        ] {
            assert_eq!(first_record(other), FirstRecord::NotTls, "{other:?}");
        }
        // The shortest record in which one may begin.
        assert_eq!(first_record(&[22, 3, 3, 0, 6]), FirstRecord::Partial);
        assert_eq!(first_record(&[22, 3, 3, 0, 5]), FirstRecord::NotTls);
    }

    /// A message that begins as a ClientHello does, in records of `each` bytes.
    fn records(random: [u8; RANDOM], each: usize) -> Vec<u8> {
        let message = [&[1, 0, 0, 200, 3, 3][..], &random, &[0; 100]].concat();
        let of = |piece: &[u8]| {
            let length = u16::try_from(piece.len()).unwrap().to_be_bytes();
            [&[22, 3, 1][..], &length, piece].concat()
        };
        message.chunks(each).flat_map(of).collect()
    }

    #[test]
    fn what_is_random_of_a_hello_is_found_in_any_records() {
        let random: [u8; RANDOM] = std::array::from_fn(|at| u8::try_from(at).unwrap());
        for each in [1, 5, 6, 7, 37, 38, 39, 1000] {
            let bytes = records(random, each);
            assert_eq!(HelloRandom::of(&bytes), Some(HelloRandom(random)), "records of {each}");
            let last = 5 * 38_usize.div_ceil(each) + 38;
            assert!(HelloRandom::of(&bytes[..last]).is_some(), "records of {each}");
            for end in 0..last {
                assert_eq!(HelloRandom::of(&bytes[..end]), None, "{end} of records of {each}");
            }
        }
        // Records without content are stepped over, and end where the bytes do.
        let empty = [22, 3, 1, 0, 0].repeat(1000);
        assert_eq!(HelloRandom::of(&empty), None);
        let after_empty = [empty, records(random, 50)].concat();
        assert_eq!(HelloRandom::of(&after_empty), Some(HelloRandom(random)));
    }
}
