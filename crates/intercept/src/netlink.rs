//! Messages to the kernel over netlink, and whether it took them.

use std::io;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Bytes of a message's header.
const HEADER_LENGTH: usize = 16;
/// Attributes and messages begin at multiples of this.
const ALIGNED: usize = 4;
/// The kernel answers at once; this is for one that does not.
const PATIENCE: Duration = Duration::from_secs(5);
const ANSWER_LENGTH: usize = 32 << 10;
/// The kind of a message with the outcome of another.
const OUTCOME: u16 = 2;

/// Flags of messages.
pub(crate) const REQUEST: u16 = 1;
const WANTS_OUTCOME: u16 = 4;
pub(crate) const CREATE: u16 = 0x400;
pub(crate) const APPEND: u16 = 0x800;
const NESTED: u16 = 0x8000;

/// Attributes, one behind the other.
#[derive(Clone, Default, Debug)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    pub(crate) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        // None here comes near 64 KiB.
        let length = u16::try_from(ALIGNED + value.len()).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(ALIGNED), 0);
        self
    }

    /// A number in network order, as netfilter has all of its numbers.
    pub(crate) fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat())
    }

    pub(crate) fn nested(self, kind: u16, value: &Self) -> Self {
        self.bytes(kind | NESTED, &value.0)
    }
}

/// A message, without its number.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    kind: u16,
    flags: u16,
    fixed: Vec<u8>,
    attributes: Attributes,
    wants_outcome: bool,
}

impl Message {
    /// `fixed` are the bytes in front of the attributes.
    pub(crate) fn new(kind: u16, flags: u16, fixed: &[u8], attributes: Attributes) -> Self {
        let flags = flags | REQUEST | WANTS_OUTCOME;
        Self { kind, flags, fixed: fixed.to_vec(), attributes, wants_outcome: true }
    }

    /// A message that begins or ends others, of which the kernel reports nothing.
    pub(crate) fn around(kind: u16, fixed: &[u8]) -> Self {
        let attributes = Attributes::default();
        Self { kind, flags: REQUEST, fixed: fixed.to_vec(), attributes, wants_outcome: false }
    }

    fn write(&self, out: &mut Vec<u8>, number: u32) {
        let length = HEADER_LENGTH + self.fixed.len() + self.attributes.0.len();
        out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
        out.extend_from_slice(&self.kind.to_ne_bytes());
        out.extend_from_slice(&self.flags.to_ne_bytes());
        out.extend_from_slice(&number.to_ne_bytes());
        out.extend_from_slice(&0_u32.to_ne_bytes());
        out.extend_from_slice(&self.fixed);
        out.extend_from_slice(&self.attributes.0);
        out.resize(out.len().next_multiple_of(ALIGNED), 0);
    }
}

/// Sends the messages as one, to this thread's network namespace, and waits until the kernel has taken
/// them all. `protocol` is the part of the kernel; `None` for the one of routes.
///
/// # Errors
/// The kernel's for the first message that it refuses.
pub(crate) fn send(protocol: Option<Protocol>, messages: &[Message]) -> io::Result<()> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        protocol,
    )?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    let mut bytes = Vec::new();
    for (number, message) in (1..).zip(messages) {
        message.write(&mut bytes, number);
    }
    rustix::net::send(&socket, &bytes, SendFlags::empty())?;
    let mut left = messages.iter().filter(|message| message.wants_outcome).count();
    let mut answer = vec![0; ANSWER_LENGTH];
    while left > 0 {
        let (length, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
        let taken = read_outcomes(&answer[..length.min(ANSWER_LENGTH)])?;
        if taken == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel sent no outcome"));
        }
        left = left.saturating_sub(taken);
    }
    Ok(())
}

/// How many messages the kernel has taken, by its answer.
fn read_outcomes(mut answer: &[u8]) -> io::Result<usize> {
    let mut taken = 0;
    while let Some((header, rest)) = answer.split_first_chunk::<HEADER_LENGTH>() {
        let [a, b, c, d, kind_a, kind_b, ..] = *header;
        let length = usize::try_from(u32::from_ne_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if u16::from_ne_bytes([kind_a, kind_b]) == OUTCOME {
            match rest.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)) {
                Some(0) => taken += 1,
                Some(error) => return Err(io::Error::from_raw_os_error(error.saturating_neg())),
                None => break,
            }
        }
        let next = length.next_multiple_of(ALIGNED).max(HEADER_LENGTH);
        answer = answer.get(next..).unwrap_or_default();
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(error: i32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let fixed = [error.to_ne_bytes(), [0; 4]].concat();
        Message::around(OUTCOME, &fixed).write(&mut bytes, 7);
        bytes
    }

    #[test]
    fn an_attribute_is_filled_up_to_the_next() {
        let inner = Attributes::default().text(1, "ab").number(2, 5);
        let Attributes(bytes) = Attributes::default().nested(3, &inner);
        let number = |value: u16| value.to_ne_bytes();
        let expected = [
            &number(20)[..],
            &number(3 | NESTED),
            &number(7),
            &number(1),
            &[b'a', b'b', 0, 0],
            &number(8),
            &number(2),
            &[0, 0, 0, 5],
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn the_first_refusal_is_the_outcome() {
        let taken = [outcome(0), outcome(0)].concat();
        assert_eq!(read_outcomes(&taken).unwrap(), 2);
        let refused = [outcome(0), outcome(-1)].concat();
        assert_eq!(read_outcomes(&refused).unwrap_err().raw_os_error(), Some(1));
    }

    #[test]
    fn bytes_that_are_no_answer_count_nothing() {
        for bytes in [&[][..], &[0; 15], &[0; 40], &[0xff; 64], &outcome(0)[..18]] {
            assert_eq!(read_outcomes(bytes).unwrap(), 0, "{bytes:?}");
        }
    }
}
