//! Questions for names and their answers, as DNS has them on the wire (RFC 1035).
//!
//! Of a question only what it needs is read: the header and one name, which cannot be compressed. All
//! else is another server's, which gets the question as it came. Of that server's answer the addresses are
//! read.

use std::net::{IpAddr, Ipv4Addr};

use super::NAME_BYTES;

/// Bytes of a message: the most that its length over TCP can say.
pub const DNS_MESSAGE_BYTES: usize = 65_535;
/// How long an answer may be kept.
pub const ANSWER_TTL_S: u32 = 60;

const HEADER_LENGTH: usize = 12;
/// The name of an answer: that of the question, right behind the header.
const NAME_OF_QUESTION: [u8; 2] = [0xc0, HEADER_LENGTH as u8];
const LABEL_LENGTH: usize = 63;

const TYPE_A: u16 = 1;
const TYPE_CNAME: u16 = 5;
const TYPE_AAAA: u16 = 28;
const TYPE_ANY: u16 = 255;
const CLASS_IN: u16 = 1;
const CLASS_ANY: u16 = 255;

/// Bits of the third byte of a header.
const IS_ANSWER: u8 = 0x80;
const OPERATION: u8 = 0x78;
const IS_TRUNCATED: u8 = 0x02;
const WANTS_RECURSION: u8 = 0x01;
/// Of the fourth.
const HAS_RECURSION: u8 = 0x80;
const CODE: u8 = 0x0f;
/// Of the length of a label: a name goes on elsewhere in the message.
const IS_POINTER: u8 = 0xc0;

/// A question for one name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    /// As it was asked, without the root's dot.
    pub name: String,
    /// Which address the answer may have.
    pub wants: Option<Family>,
    /// Where it ends in its message.
    end: usize,
}

/// The form of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    Ipv4,
    /// That of IPv6 that stands for an address of IPv4, for sockets that take no other.
    Mapped,
}

/// What the answer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    Address(Ipv4Addr, Family),
    /// The name has nothing of the wanted kind.
    Nothing,
    NoSuchName,
    /// It cannot be answered now.
    Failed,
}

impl Answer {
    fn code(self) -> u8 {
        match self {
            Self::Address(..) | Self::Nothing => 0,
            Self::Failed => 2,
            Self::NoSuchName => 3,
        }
    }
}

/// The question of a message. `None` for what is not one question for a name of readable text.
#[must_use]
pub fn read_question(message: &[u8]) -> Option<Question> {
    let header = message.get(..HEADER_LENGTH)?;
    let is_question = header[2] & (IS_ANSWER | OPERATION | IS_TRUNCATED) == 0;
    let questions = u16::from_be_bytes([header[4], header[5]]);
    if !is_question || questions != 1 {
        return None;
    }
    let (name, at) = read_name(message)?;
    let [kind_high, kind_low, class_high, class_low] = *message.get(at..)?.first_chunk::<4>()?;
    let kind = u16::from_be_bytes([kind_high, kind_low]);
    let class = u16::from_be_bytes([class_high, class_low]);
    let wants = match kind {
        TYPE_A | TYPE_ANY => Some(Family::Ipv4),
        TYPE_AAAA => Some(Family::Mapped),
        _ => None,
    };
    let wants = wants.filter(|_| matches!(class, CLASS_IN | CLASS_ANY));
    Some(Question { name, wants, end: at + 4 })
}

/// The name that an answer is about, in small letters, and the addresses that it has for it, over other
/// names for it if it has such. `None` for what is no answer, or that cannot be read.
#[must_use]
pub fn read_addresses(answer: &[u8]) -> Option<(String, Vec<IpAddr>)> {
    let header = answer.get(..HEADER_LENGTH)?;
    let is_answer = header[2] & (IS_ANSWER | OPERATION) == IS_ANSWER && header[3] & CODE == 0;
    let questions = u16::from_be_bytes([header[4], header[5]]);
    if !is_answer || questions != 1 {
        return None;
    }
    let records = u16::from_be_bytes([header[6], header[7]]);
    let (asked, end) = read_name(answer)?;
    let asked = asked.to_ascii_lowercase();
    let mut wanted = asked.clone();
    let mut found = Vec::new();
    let mut at = end + 4;
    for _ in 0..records {
        let (owner, fixed) = expand_name(answer, at)?;
        let [a, b, c, d] = *answer.get(fixed..)?.first_chunk::<4>()?;
        let (kind, class) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let [high, low] = *answer.get(fixed + 8..)?.first_chunk::<2>()?;
        let begin = fixed + 10;
        at = begin + usize::from(u16::from_be_bytes([high, low]));
        let data = answer.get(begin..at)?;
        if owner != wanted || class != CLASS_IN {
            continue;
        }
        match kind {
            TYPE_A => found.extend(<[u8; 4]>::try_from(data).ok().map(IpAddr::from)),
            TYPE_AAAA => found.extend(<[u8; 16]>::try_from(data).ok().map(IpAddr::from)),
            TYPE_CNAME => wanted = expand_name(answer, begin)?.0,
            _ => {}
        }
    }
    Some((asked, found))
}

/// The name at `at` in small letters, with what it takes from elsewhere in the message, and where it ends.
fn expand_name(message: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut name = String::new();
    let mut end = None;
    // Each jump leads towards the beginning.
    let mut lowest = at;
    loop {
        let length = *message.get(at)?;
        match length & IS_POINTER {
            IS_POINTER => {
                let low = *message.get(at + 1)?;
                let to = usize::from(u16::from_be_bytes([length & !IS_POINTER, low]));
                end.get_or_insert(at + 2);
                if to >= lowest {
                    return None;
                }
                (at, lowest) = (to, to);
            }
            0 if length == 0 => return Some((name, end.unwrap_or(at + 1))),
            0 => {
                let label = message.get(at + 1..at + 1 + usize::from(length))?;
                if !name.is_empty() {
                    name.push('.');
                }
                let is_plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'.';
                if !label.iter().all(is_plain) || name.len() + label.len() > NAME_BYTES {
                    return None;
                }
                name.push_str(&std::str::from_utf8(label).ok()?.to_ascii_lowercase());
                at += 1 + label.len();
            }
            _ => return None,
        }
    }
}

/// The name behind the header, and where it ends.
fn read_name(message: &[u8]) -> Option<(String, usize)> {
    let mut name = String::new();
    let mut at = HEADER_LENGTH;
    loop {
        let length = usize::from(*message.get(at)?);
        at += 1;
        if length == 0 {
            return Some((name, at));
        }
        if length > LABEL_LENGTH {
            return None;
        }
        let label = message.get(at..at + length)?;
        at += length;
        if !label.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'.') {
            return None;
        }
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(std::str::from_utf8(label).ok()?);
        if name.len() > NAME_BYTES {
            return None;
        }
    }
}

/// The answer to the question of `message`.
#[must_use]
pub fn write_answer(message: &[u8], question: &Question, answer: Answer) -> Vec<u8> {
    let asked = message.get(HEADER_LENGTH..question.end).unwrap_or_default();
    let mut bytes =
        header(message, answer.code(), 1, u8::from(matches!(answer, Answer::Address(..))));
    bytes.extend_from_slice(asked);
    if let Answer::Address(address, family) = answer {
        let kind = if family == Family::Ipv4 { TYPE_A } else { TYPE_AAAA };
        bytes.extend_from_slice(&NAME_OF_QUESTION);
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&CLASS_IN.to_be_bytes());
        bytes.extend_from_slice(&ANSWER_TTL_S.to_be_bytes());
        if family == Family::Ipv4 {
            bytes.extend_from_slice(&4_u16.to_be_bytes());
            bytes.extend_from_slice(&address.octets());
        } else {
            bytes.extend_from_slice(&16_u16.to_be_bytes());
            bytes.extend_from_slice(&address.to_ipv6_mapped().octets());
        }
    }
    bytes
}

/// The answer to a message that no server has answered: that it failed. `None` for one without a
/// header, or that is an answer itself.
#[must_use]
pub fn write_failure(message: &[u8]) -> Option<Vec<u8>> {
    let is_question = message.get(..HEADER_LENGTH)?[2] & IS_ANSWER == 0;
    is_question.then(|| header(message, Answer::Failed.code(), 0, 0))
}

/// Whether `answer` can be one to `question`: it has its number, and is an answer.
#[must_use]
pub fn is_answer_to(answer: &[u8], question: &[u8]) -> bool {
    match (answer.get(..HEADER_LENGTH), question.get(..HEADER_LENGTH)) {
        (Some(answer), Some(question)) => {
            answer[..2] == question[..2] && answer[2] & IS_ANSWER != 0
        }
        _ => false,
    }
}

fn header(message: &[u8], code: u8, questions: u8, answers: u8) -> Vec<u8> {
    let head = message.first_chunk::<3>().copied().unwrap_or_default();
    let flags = IS_ANSWER | (head[2] & (OPERATION | WANTS_RECURSION));
    vec![head[0], head[1], flags, HAS_RECURSION | code, 0, questions, 0, answers, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As a resolver asks.
    fn question(name: &str, kind: u16) -> Vec<u8> {
        let mut bytes = vec![0x12, 0x34, WANTS_RECURSION, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.').filter(|label| !label.is_empty()) {
            bytes.push(u8::try_from(label.len()).unwrap());
            bytes.extend_from_slice(label.as_bytes());
        }
        bytes.push(0);
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&CLASS_IN.to_be_bytes());
        bytes
    }

    #[test]
    fn a_question_is_read_and_answered() {
        let message = question("Stock.shop.mesh", TYPE_A);
        let read = read_question(&message).unwrap();
        assert_eq!((read.name.as_str(), read.wants), ("Stock.shop.mesh", Some(Family::Ipv4)));
        let address = Ipv4Addr::new(240, 1, 2, 3);
        let answer = write_answer(&message, &read, Answer::Address(address, Family::Ipv4));
        assert_eq!(answer[..4], [0x12, 0x34, 0x81, 0x80]);
        assert_eq!(answer[4..12], [0, 1, 0, 1, 0, 0, 0, 0]);
        let asked = message.len();
        assert_eq!(answer[12..asked], message[12..]);
        assert_eq!(answer[asked..], [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 240, 1, 2, 3]);
        assert!(is_answer_to(&answer, &message));
        assert!(!is_answer_to(&message, &message));
    }

    #[test]
    fn a_program_that_takes_addresses_of_ipv6_alone_gets_one() {
        let message = question("stock.mesh", TYPE_AAAA);
        let read = read_question(&message).unwrap();
        let wants = read.wants.unwrap();
        let address = Ipv4Addr::new(240, 1, 2, 3);
        let answer = write_answer(&message, &read, Answer::Address(address, wants));
        let expected = ("stock.mesh".to_owned(), vec![address.to_ipv6_mapped().into()]);
        assert_eq!(read_addresses(&answer), Some(expected));
    }

    #[test]
    fn what_follows_the_question_is_not_in_the_answer() {
        let mut message = question("a.mesh", 16);
        let asked = message.len();
        // EDNS: one further record.
        message[11] = 1;
        message.extend_from_slice(&[0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0]);
        let read = read_question(&message).unwrap();
        assert_eq!(read.wants, None);
        let answer = write_answer(&message, &read, Answer::Nothing);
        assert_eq!((answer.len(), answer[3], answer[7], answer[11]), (asked, 0x80, 0, 0));
        let answer = write_answer(&message, &read, Answer::NoSuchName);
        assert_eq!(answer[3], 0x83);
    }

    #[test]
    fn what_is_no_question_for_one_name_is_not_read() {
        let good = question("a.mesh", TYPE_A);
        for (at, byte, why) in [
            (2, 0x80, "an answer"),
            (2, 0x28, "an update"),
            (2, 0x02, "truncated"),
            (5, 0, "no question"),
            (5, 2, "two questions"),
            (12, 0xc0, "a pointer"),
            (12, 64, "a label that is too long"),
            (13, b'.', "a dot within a label"),
            (13, 0xff, "no text"),
            (13, b' ', "a blank"),
        ] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(read_question(&bad), None, "{why}");
        }
        for length in 0..good.len() {
            assert_eq!(read_question(&good[..length]), None, "{length} bytes");
        }
        let long = vec!["a".repeat(63); 4].join(".");
        assert_eq!(read_question(&question(&long, TYPE_A)), None, "255 bytes");
        assert!(read_question(&question(&long[..253], TYPE_A)).is_some());
        assert_eq!(read_question(&question("", TYPE_A)).unwrap().name, "", "the root");
    }

    #[test]
    fn a_failure_answers_what_cannot_be_read() {
        let mut message = question("a.mesh", TYPE_A);
        message[12] = 0xc0;
        let failure = write_failure(&message).unwrap();
        assert_eq!(failure, [0x12, 0x34, 0x81, 0x82, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(is_answer_to(&failure, &message));
        assert_eq!(write_failure(&failure), None, "an answer is not answered");
        assert_eq!(write_failure(&message[..11]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(message in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Some(question) = read_question(&message) {
                prop_assert!(question.name.len() <= NAME_BYTES);
                prop_assert!(question.end <= message.len());
                let answer = write_answer(&message, &question, Answer::NoSuchName);
                prop_assert_eq!(answer.len(), question.end);
            }
            let _ = write_failure(&message);
        }

        #[test]
        fn a_name_is_read_as_it_was_asked(labels in proptest::collection::vec("[a-zA-Z0-9_-]{1,20}", 1..6)) {
            let name = labels.join(".");
            prop_assert_eq!(read_question(&question(&name, TYPE_A)).unwrap().name, name);
        }
    }

    /// A record whose owner is written as `owner`.
    fn record(owner: &[u8], kind: u16, data: &[u8]) -> Vec<u8> {
        let mut bytes = owner.to_vec();
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&CLASS_IN.to_be_bytes());
        bytes.extend_from_slice(&[0, 0, 0, 60]);
        bytes.extend_from_slice(&u16::try_from(data.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    /// An answer to the question for `a.example`.
    fn answered(code: u8, records: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0, 7, IS_ANSWER, HAS_RECURSION | code, 0, 1, 0];
        bytes.push(u8::try_from(records.len()).unwrap());
        bytes.extend_from_slice(&[0, 0, 0, 0]);
        bytes.extend_from_slice(b"\x01A\x07example\0\0\x01\0\x01");
        records.iter().for_each(|record| bytes.extend_from_slice(record));
        bytes
    }

    #[test]
    fn addresses_of_an_answer_are_those_of_the_name_that_was_asked_for() {
        let v6 = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
        let read = |records: &[Vec<u8>]| {
            let (name, addresses) = read_addresses(&answered(0, records)).unwrap();
            assert_eq!(name, "a.example");
            let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            texts.join(" ")
        };
        let direct = record(&NAME_OF_QUESTION, TYPE_A, &[192, 0, 2, 7]);
        assert_eq!(
            read(&[direct.clone(), record(&NAME_OF_QUESTION, TYPE_AAAA, &v6)]),
            "192.0.2.7 2001:db8::7"
        );
        // `a.example` is `b.example`: a label, and the rest of the question.
        let other = b"\x01b\xc0\x0e";
        let cname = record(&NAME_OF_QUESTION, TYPE_CNAME, other);
        assert_eq!(
            read(&[cname, record(b"\x01B\x07example\0", TYPE_A, &[192, 0, 2, 8])]),
            "192.0.2.8"
        );
        // What is said of another name is not believed.
        assert_eq!(read(&[record(other, TYPE_A, &[192, 0, 2, 9])]), "");
        assert_eq!(read(&[record(other, TYPE_A, &[192, 0, 2, 9]), direct]), "192.0.2.7");
    }

    #[test]
    fn what_is_no_answer_with_addresses_has_none() {
        let direct = record(&NAME_OF_QUESTION, TYPE_A, &[192, 0, 2, 7]);
        assert_eq!(read_addresses(&answered(3, std::slice::from_ref(&direct))), None);
        let whole = answered(0, std::slice::from_ref(&direct));
        assert!(read_addresses(&whole).is_some());
        for length in 0..whole.len() {
            assert_eq!(read_addresses(&whole[..length]), None, "{length}");
        }
        let mut question = whole;
        question[2] = 0;
        assert_eq!(read_addresses(&question), None);
        let short = answered(0, &[record(&NAME_OF_QUESTION, TYPE_A, &[1])]);
        assert_eq!(read_addresses(&short), Some(("a.example".to_owned(), Vec::new())));
        // A name that leads to itself, and one that leads on.
        for pointer in [27_u8, 40] {
            let circle = record(&[IS_POINTER, pointer], TYPE_A, &[192, 0, 2, 7]);
            assert_eq!(read_addresses(&answered(0, &[circle])), None);
        }
    }
}
