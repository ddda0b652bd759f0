//! Header blocks to field lines, bounded while decoding.

use super::table::{DynamicTable, Name};
use super::{DEFAULT_TABLE_BYTES, LINE_OVERHEAD, huffman, integer, static_table};
use crate::Field;

/// The receiving half of a connection's compression state.
pub struct Decoder {
    table: DynamicTable,
    /// The most the peer's encoder may use, by our acknowledged SETTINGS.
    allowed_size: usize,
    /// The next block must begin by shrinking the table to the size allowed (RFC 7541 section
    /// 4.2).
    shrink_due: bool,
    /// Decoded Huffman strings of the line at hand.
    plain: Vec<u8>,
}

/// How much of a list is handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListLimits {
    /// Bytes of names and values, and 32 for each line.
    pub bytes: usize,
    pub lines: usize,
}

/// What a block contained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Decoded {
    /// As [`ListLimits::bytes`], over the whole list.
    pub bytes: usize,
    pub lines: usize,
    /// The list went over a limit: the lines from there on were not handed on.
    pub is_over_limit: bool,
}

/// The block is not valid; the connection's compression state is lost (COMPRESSION_ERROR).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.reason())]
pub enum DecodeError {
    Truncated,
    IntegerTooLarge,
    UnknownIndex,
    Huffman,
    SizeUpdateTooLarge,
    SizeUpdateMisplaced,
    SizeUpdateMissing,
}

impl DecodeError {
    /// What is wrong, for a GOAWAY's debug data.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Truncated => "a header block ends inside a field",
            Self::IntegerTooLarge => "an integer in a header block is too large",
            Self::UnknownIndex => "a header block names an index that no table has",
            Self::Huffman => "a Huffman string in a header block is malformed",
            Self::SizeUpdateTooLarge => "a header table size update is larger than allowed",
            Self::SizeUpdateMisplaced => "a header table size update stands behind a field",
            Self::SizeUpdateMissing => {
                "a header table size update is missing after SETTINGS shrank the table"
            }
        }
    }
}

impl Decoder {
    /// With the table size every connection starts with; see [`set_allowed_size`](Self::set_allowed_size).
    #[must_use]
    pub fn new() -> Self {
        Self {
            table: DynamicTable::new(DEFAULT_TABLE_BYTES),
            allowed_size: DEFAULT_TABLE_BYTES,
            shrink_due: false,
            plain: Vec::new(),
        }
    }

    /// Our SETTINGS_HEADER_TABLE_SIZE, once the peer has acknowledged it.
    pub fn set_allowed_size(&mut self, bytes: usize) {
        self.allowed_size = bytes;
        self.shrink_due = bytes < self.table.max_size();
    }

    /// Decodes one whole block and calls `line` for each field line until a limit is reached. The
    /// rest is still decoded, since the table must stay synchronous, but costs no memory.
    ///
    /// # Errors
    /// The connection cannot go on.
    pub fn decode(
        &mut self,
        block: &[u8],
        limits: ListLimits,
        mut line: impl FnMut(Field<'_>),
    ) -> Result<Decoded, DecodeError> {
        let mut rest = block;
        self.size_updates(&mut rest)?;
        let mut list = List { limits, decoded: Decoded::default() };
        while let Some((&first, tail)) = rest.split_first() {
            rest = tail;
            match first {
                0x80.. => {
                    let index = integer::decode(first, 7, &mut rest)?;
                    let (name, value) = lookup(&self.table, index)?;
                    list.add(Field { name, value, sensitive: false }, &mut line);
                }
                0x40.. => self.literal(first, 6, &mut rest, &mut list, &mut line)?,
                0x20.. => return Err(DecodeError::SizeUpdateMisplaced),
                _ => self.literal(first, 4, &mut rest, &mut list, &mut line)?,
            }
        }
        Ok(list.decoded)
    }

    #[cfg(test)]
    pub(super) fn table(&self) -> &DynamicTable {
        &self.table
    }

    fn size_updates(&mut self, rest: &mut &[u8]) -> Result<(), DecodeError> {
        while let Some((&first, mut tail)) = rest.split_first()
            && first & 0xe0 == 0x20
        {
            let size = integer::decode(first, 5, &mut tail)?;
            if size > self.allowed_size {
                return Err(DecodeError::SizeUpdateTooLarge);
            }
            self.table.set_max_size(size);
            self.shrink_due = false;
            *rest = tail;
        }
        if self.shrink_due { Err(DecodeError::SizeUpdateMissing) } else { Ok(()) }
    }

    /// A literal field line whose name index has a prefix of `bits`: 6 with incremental
    /// indexing, 4 without or never.
    fn literal(
        &mut self,
        first: u8,
        bits: u32,
        rest: &mut &[u8],
        list: &mut List,
        line: &mut impl FnMut(Field<'_>),
    ) -> Result<(), DecodeError> {
        self.plain.clear();
        let index = integer::decode(first, bits, rest)?;
        let name_literal = if index == 0 { Some(string(rest, &mut self.plain)?) } else { None };
        let value_literal = string(rest, &mut self.plain)?;

        let name = match name_literal {
            Some(literal) => literal.resolve(&self.plain),
            None => lookup(&self.table, index)?.0,
        };
        let value = value_literal.resolve(&self.plain);
        list.add(Field { name, value, sensitive: bits == 4 && first & 0x10 != 0 }, line);
        if bits == 6 {
            let name = match (name_literal, index.checked_sub(static_table::LEN + 1)) {
                (None, Some(dynamic)) => Name::Indexed(dynamic),
                (None, None) => Name::Bytes(static_table::entry(index).map_or(b"", |e| e.0)),
                (Some(literal), _) => Name::Bytes(literal.resolve(&self.plain)),
            };
            self.table.insert(name, value, 0);
        }
        Ok(())
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

/// The list so far, and what is left of its limits.
struct List {
    limits: ListLimits,
    decoded: Decoded,
}

impl List {
    fn add(&mut self, field: Field<'_>, line: &mut impl FnMut(Field<'_>)) {
        self.decoded.lines += 1;
        self.decoded.bytes += field.name.len() + field.value.len() + LINE_OVERHEAD;
        self.decoded.is_over_limit |=
            self.decoded.bytes > self.limits.bytes || self.decoded.lines > self.limits.lines;
        if !self.decoded.is_over_limit {
            line(field);
        }
    }
}

/// A string literal: in the block, or decoded into the scratch buffer.
#[derive(Clone, Copy)]
enum Literal<'a> {
    Raw(&'a [u8]),
    Decoded { start: usize, end: usize },
}

impl<'a> Literal<'a> {
    fn resolve(self, plain: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Raw(bytes) => bytes,
            Self::Decoded { start, end } => &plain[start..end],
        }
    }
}

fn string<'a>(rest: &mut &'a [u8], plain: &mut Vec<u8>) -> Result<Literal<'a>, DecodeError> {
    let (&first, tail) = rest.split_first().ok_or(DecodeError::Truncated)?;
    *rest = tail;
    let len = integer::decode(first, 7, rest)?;
    let (coded, tail) = rest.split_at_checked(len).ok_or(DecodeError::Truncated)?;
    *rest = tail;
    if first & 0x80 == 0 {
        return Ok(Literal::Raw(coded));
    }
    let start = plain.len();
    huffman::decode(coded, plain)?;
    Ok(Literal::Decoded { start, end: plain.len() })
}

fn lookup(table: &DynamicTable, index: usize) -> Result<(&[u8], &[u8]), DecodeError> {
    match index.checked_sub(static_table::LEN + 1) {
        Some(dynamic) => table.get(dynamic),
        None => static_table::entry(index),
    }
    .ok_or(DecodeError::UnknownIndex)
}
