//! The log of a store as values of etcd: its bytes in order, each time it is made durable one part
//! or, of more than [`PART_BYTES`], several. So what etcd holds is packed, and a write of thousands
//! of keys is one of its.
//!
//! A log has a number. Compaction writes the log with the next number; the store's `head` names the
//! current one.

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf as _, Bytes};

use super::client::{Client, KeyValue, RangeRequest, RequestOp, prefixed};
use super::{Etcd, WriteFault};

/// Longest part: etcd takes requests of 1.5 MiB.
const PART_BYTES: usize = 1 << 20;
/// Parts requested at once, at first and at most, and the bytes that they should have together.
const FIRST_ASKED: i64 = 3;
const MOST_ASKED: i64 = 1024;
const WANTED_BYTES: i64 = 4 << 20;

/// Where the logs of a store are.
#[derive(Debug)]
pub(crate) struct EtcdLocation {
    etcd: Arc<Etcd>,
    store: String,
    /// The number of its log; 0 before it is known.
    number: AtomicU64,
}

/// A log that is written.
#[derive(Debug)]
pub(crate) struct Parts {
    location: Arc<EtcdLocation>,
    number: u64,
    /// Where the next part goes.
    next: u64,
    /// Not durable yet.
    waiting: Vec<u8>,
}

impl EtcdLocation {
    pub(crate) fn new(etcd: Arc<Etcd>, store: &str) -> Self {
        Self { etcd, store: store.to_owned(), number: AtomicU64::new(0) }
    }

    pub(crate) fn url(&self) -> String {
        self.etcd.url(&self.store)
    }

    fn head(&self) -> String {
        self.etcd.key(&format!("{}/head", self.store))
    }

    fn log(&self, number: u64) -> String {
        self.etcd.key(&format!("{}/log/{number:016x}/", self.store))
    }

    fn part(&self, number: u64, part: u64) -> String {
        format!("{}{part:016x}", self.log(number))
    }

    /// The number of the store's log; `None` where there is no store.
    pub(crate) fn find(&self) -> io::Result<Option<u64>> {
        let head = RangeRequest { key: self.head(), ..RangeRequest::default() };
        let found = self.etcd.wait(self.etcd.client().range(head))?;
        let Some(head) = found.kvs.first() else { return Ok(None) };
        let number = std::str::from_utf8(&head.value).ok().and_then(|text| text.parse().ok());
        let number: u64 = number.ok_or_else(|| {
            io::Error::other(format!("what stands at {} is no number of a log", self.head()))
        })?;
        self.number.store(number, Ordering::Relaxed);
        Ok(Some(number))
    }

    fn write(&self, ops: Vec<RequestOp>) -> Result<(), WriteFault> {
        self.etcd.wait(self.etcd.write(ops))
    }

    /// Removes every log but one: what compactions that did not end have left.
    pub(crate) fn remove_others(&self, number: u64) -> io::Result<()> {
        let ops = vec![
            RequestOp::delete((self.log(0), self.log(number))),
            RequestOp::delete((self.log(number + 1), self.log(u64::MAX))),
        ];
        self.write(ops).map_err(WriteFault::into_error)
    }
}

impl Parts {
    /// Begins the log behind the one that the store has.
    pub(crate) fn begin(location: &Arc<EtcdLocation>) -> io::Result<Self> {
        let number = location.number.load(Ordering::Relaxed) + 1;
        let left = RequestOp::delete(prefixed(location.log(number)));
        location.write(vec![left]).map_err(WriteFault::into_error)?;
        Ok(Self { location: Arc::clone(location), number, next: 0, waiting: Vec::new() })
    }

    /// Adds bytes that are not durable before [`Self::sync`].
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
    }

    /// Makes durable what was appended. What fails is forgotten.
    pub(crate) fn sync(&mut self) -> Result<(), WriteFault> {
        let waiting = Bytes::from(std::mem::take(&mut self.waiting));
        for (part, start) in (self.next..).zip((0..waiting.len()).step_by(PART_BYTES)) {
            let bytes = waiting.slice(start..waiting.len().min(start + PART_BYTES));
            let put = RequestOp::put(self.location.part(self.number, part), bytes);
            self.location.write(vec![put])?;
        }
        self.next += waiting.len().div_ceil(PART_BYTES) as u64;
        Ok(())
    }

    /// Makes this log the store's, in place of another one.
    pub(crate) fn take_the_name(&mut self) -> Result<(), WriteFault> {
        self.sync()?;
        let former = self.location.number.load(Ordering::Relaxed);
        let mut ops = vec![RequestOp::put(self.location.head(), self.number.to_string())];
        if former > 0 {
            ops.push(RequestOp::delete(prefixed(self.location.log(former))));
        }
        self.location.write(ops)?;
        self.location.number.store(self.number, Ordering::Relaxed);
        Ok(())
    }

    /// Removes a log that is not the store's.
    pub(crate) fn abandon(self) {
        let ops = vec![RequestOp::delete(prefixed(self.location.log(self.number)))];
        // What stays behind is removed when the store opens.
        let _ = self.location.write(ops);
    }
}

/// Reads a log from its first part to its last.
pub(crate) struct Reader {
    location: Arc<EtcdLocation>,
    number: u64,
    client: Client,
    /// The parts that were read: number and first byte.
    read: Vec<(u64, u64)>,
    /// What is at hand.
    parts: VecDeque<Bytes>,
    /// The next part to ask for, and its first byte.
    next: (u64, u64),
    asked: i64,
    is_over: bool,
}

impl Reader {
    pub(crate) fn new(location: &Arc<EtcdLocation>, number: u64) -> Self {
        Self {
            client: location.etcd.client(),
            location: Arc::clone(location),
            number,
            read: Vec::new(),
            parts: VecDeque::new(),
            next: (0, 0),
            asked: FIRST_ASKED,
            is_over: false,
        }
    }

    /// What can be written behind byte `end`: what was read after it is removed.
    pub(crate) fn into_parts(mut self, end: u64) -> io::Result<Parts> {
        io::copy(&mut self, &mut io::sink())?;
        let kept = self.read.partition_point(|(_, start)| *start < end);
        let (mut ops, mut next) = (Vec::new(), 0);
        if let Some(&(part, start)) = self.read[..kept].last() {
            next = part + 1;
            if self.read.get(kept).map_or(self.next.1, |(_, behind)| *behind) > end {
                let mut whole = Vec::new();
                self.seek(SeekFrom::Start(start))?;
                self.by_ref().take(end - start).read_to_end(&mut whole)?;
                ops.push(RequestOp::put(self.location.part(self.number, part), whole));
            }
        }
        let (rest, end) =
            (self.location.part(self.number, next), self.location.part(self.number, u64::MAX));
        ops.push(RequestOp::delete((rest, end)));
        self.location.write(ops).map_err(WriteFault::into_error)?;
        let (location, number) = (self.location, self.number);
        Ok(Parts { location, number, next, waiting: Vec::new() })
    }

    /// Asks for the next parts.
    fn fetch(&mut self) -> io::Result<()> {
        let (part, mut start) = self.next;
        let key = self.location.part(self.number, part);
        let range_end = self.location.part(self.number, u64::MAX);
        let request = RangeRequest { key, range_end, limit: self.asked };
        let found = match self.location.etcd.wait(self.client.range(request)) {
            Ok(found) => found,
            // Small parts were followed by large ones.
            Err(_) if self.asked > FIRST_ASKED => {
                self.asked = FIRST_ASKED;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        self.is_over = found.kvs.is_empty();
        let count = i64::try_from(found.kvs.len()).unwrap_or(i64::MAX);
        for value in found.kvs {
            let number = self.number_of(&value)?;
            self.read.push((number, start));
            self.next.0 = number + 1;
            let part = value.value;
            start += part.len() as u64;
            // What is read of an empty one would be taken for the end.
            if !part.is_empty() {
                self.parts.push_back(part);
            }
        }
        let bytes = i64::try_from(start - self.next.1).unwrap_or(i64::MAX);
        self.next.1 = start;
        let each = (bytes / count.max(1)).max(1);
        self.asked = (WANTED_BYTES / each).clamp(FIRST_ASKED, MOST_ASKED);
        Ok(())
    }

    fn number_of(&self, part: &KeyValue) -> io::Result<u64> {
        let log = self.location.log(self.number);
        let number = part.key.strip_prefix(log.as_bytes());
        let number = number.and_then(|rest| std::str::from_utf8(rest).ok());
        number.and_then(|text| u64::from_str_radix(text, 16).ok()).ok_or_else(|| {
            let key = String::from_utf8_lossy(&part.key).into_owned();
            io::Error::other(format!("{key} is no part of a log"))
        })
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(part) = self.parts.front_mut() {
                let count = part.len().min(buffer.len());
                part.split_to(count).copy_to_slice(&mut buffer[..count]);
                if part.is_empty() {
                    self.parts.pop_front();
                }
                return Ok(count);
            }
            if self.is_over {
                return Ok(0);
            }
            self.fetch()?;
        }
    }
}

impl Seek for Reader {
    /// To a byte that was read already.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let SeekFrom::Start(to) = to else { return Err(io::ErrorKind::Unsupported.into()) };
        let behind = self.read.partition_point(|(_, start)| *start <= to);
        self.next = behind.checked_sub(1).map_or((0, 0), |found| self.read[found]);
        self.read.truncate(behind.saturating_sub(1));
        self.parts.clear();
        self.is_over = false;
        let skipped = to - self.next.1;
        let found = io::copy(&mut self.by_ref().take(skipped), &mut io::sink())?;
        if found < skipped {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(to)
    }
}
