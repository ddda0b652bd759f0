//! Files of neighbours: JSON, one object a line, or CSV with a header, as spreadsheets and shells write
//! it: with a byte order mark, quotes (RFC 4180), or `;` or tabs for commas. A file is read whole before
//! anything of it is sent, so that one with a mistake changes nothing.

use std::borrow::Cow;
use std::fmt;
use std::io::{BufRead, Read as _};
use std::net::IpAddr;

use serde::Deserialize;
use thiserror::Error;
use tollway_model::neighbour::packed::{BATCH_RECORDS, pack};
use tollway_model::{HostLocation, Mac, NeighbourKey, NeighbourRecord, Vni, chain};

/// What editors of text write first in a file of UTF-8.
const BYTE_ORDER_MARK: char = '\u{feff}';
/// What PowerShell writes before the header.
const TYPE_LINE: &str = "#TYPE ";
/// What spreadsheets write before the header to name the delimiter.
const DELIMITER_LINE: &str = "sep=";
/// What is between values.
const DELIMITERS: [char; 3] = [',', ';', '\t'];
/// Longest line, in bytes.
const LINE_BYTES: u64 = 4096;
/// Mistakes of one file that are printed.
const MISTAKES_SHOWN: usize = 20;
/// Most neighbours of one file.
const FILE_NEIGHBOURS: usize = 10_000_000;

/// The columns of a neighbour, as they are called in files.
const COLUMNS: [&str; 5] = ["vni", "ip", "mac", "host_ip", "host_mac"];
/// How many of them name it.
const KEY_COLUMNS: usize = 2;

/// What a file is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    Write,
    /// Keys are enough; what else is there is left alone.
    Delete,
}

/// The neighbours of a file, packed in batches as they are sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) batches: Vec<Vec<u8>>,
    /// Of each neighbour.
    pub(super) lines: Vec<u32>,
}

/// What is wrong at one place.
#[derive(Debug, PartialEq, Eq)]
struct Mistake {
    line: u32,
    field: Option<&'static str>,
    what: String,
}

/// Why a file was not read.
#[derive(Debug, Error)]
pub(super) enum FileError {
    #[error("cannot read {file}")]
    Read { file: String, source: std::io::Error },
    #[error("{}", mistakes_text(file, mistakes, *more))]
    Mistakes { file: String, mistakes: Mistakes, more: usize },
    #[error("{file} has more than {FILE_NEIGHBOURS} neighbours; split it")]
    TooMany { file: String },
    #[error("there is no neighbour in {file}")]
    Empty { file: String },
}

/// The first mistakes of a file.
#[derive(Debug)]
pub(super) struct Mistakes(Vec<Mistake>);

fn mistakes_text(file: &str, mistakes: &Mistakes, more: usize) -> String {
    let mistakes_text: Vec<_> =
        mistakes.0.iter().map(|mistake| format!("{file}:{mistake}")).collect();
    let more = match more {
        0 => String::new(),
        more => format!("\nand {more} more mistakes"),
    };
    format!("{}{more}", mistakes_text.join("\n"))
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, field, what } = self;
        match field {
            Some(field) => write!(f, "{line}: the field `{field}`: {what}"),
            None => write!(f, "{line}: {what}"),
        }
    }
}

/// One line of JSON. A missing field is reported with the others that are wrong.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    vni: Option<u64>,
    #[serde(borrow)]
    ip: Option<Cow<'a, str>>,
    #[serde(borrow)]
    mac: Option<Cow<'a, str>>,
    #[serde(borrow)]
    host_ip: Option<Cow<'a, str>>,
    #[serde(borrow)]
    host_mac: Option<Cow<'a, str>>,
    /// As `list --json` has it; ignored.
    #[serde(rename = "revision")]
    _revision: Option<u64>,
}

/// How lines are read.
enum Format {
    Json,
    Csv(Csv),
}

/// How the lines of CSV are read.
struct Csv {
    delimiter: char,
    /// The place of each column.
    places: Vec<Option<usize>>,
}

/// Reads a file; `name` is for messages.
pub(super) fn read(
    name: &str,
    mut input: impl BufRead,
    purpose: Purpose,
) -> Result<Contents, FileError> {
    let failed = |source| FileError::Read { file: name.to_owned(), source };
    let (mut contents, mut mistakes, mut more) = (Contents::default(), Vec::new(), 0);
    let (mut format, mut number, mut text) = (None, 0_u32, Vec::new());
    let mut delimiter = None;
    loop {
        text.clear();
        let length =
            input.by_ref().take(LINE_BYTES).read_until(b'\n', &mut text).map_err(failed)?;
        if length == 0 {
            break;
        }
        number = number.saturating_add(1);
        let read = match (line(&text), &format) {
            (Err(what), _) => Err(Mistake { line: number, field: None, what }),
            (Ok(text), _) if text.trim().is_empty() => continue,
            (Ok(text), None) => match begin(text, &mut delimiter, purpose) {
                Ok(None) => continue,
                Ok(Some((begun, is_header))) => {
                    let record = (!is_header).then(|| record(&begun, text, purpose));
                    format = Some(begun);
                    match record {
                        None => continue,
                        Some(record) => record.map_err(|mistake| mistake.at(number)),
                    }
                }
                // A file without its header has no meaning.
                Err(mistake) => {
                    mistakes.push(mistake.at(number));
                    break;
                }
            },
            (Ok(text), Some(format)) => {
                record(format, text, purpose).map_err(|mistake| mistake.at(number))
            }
        };
        match read {
            Ok(record) => contents.add(&record, number),
            Err(mistake) if mistakes.len() < MISTAKES_SHOWN => mistakes.push(mistake),
            Err(_) => more += 1,
        }
        if length as u64 == LINE_BYTES && text.last() != Some(&b'\n') {
            // The rest of such a line would be read as lines of their own.
            break;
        }
        if contents.lines.len() > FILE_NEIGHBOURS {
            return Err(FileError::TooMany { file: name.to_owned() });
        }
    }
    let file = name.to_owned();
    if !mistakes.is_empty() {
        return Err(FileError::Mistakes { file, mistakes: Mistakes(mistakes), more });
    }
    if contents.lines.is_empty() {
        return Err(FileError::Empty { file });
    }
    Ok(contents)
}

impl Contents {
    fn add(&mut self, record: &NeighbourRecord, line: u32) {
        if self.lines.len().is_multiple_of(BATCH_RECORDS) {
            self.batches.push(Vec::new());
        }
        self.lines.push(line);
        if let Some(batch) = self.batches.last_mut() {
            pack(record, batch);
        }
    }
}

impl Mistake {
    fn of(what: impl Into<String>) -> Self {
        Self { line: 0, field: None, what: what.into() }
    }

    fn in_field(field: &'static str, what: impl Into<String>) -> Self {
        Self { line: 0, field: Some(field), what: what.into() }
    }

    fn at(self, line: u32) -> Self {
        Self { line, ..self }
    }
}

/// The text of a line, without its end.
fn line(bytes: &[u8]) -> Result<&str, String> {
    if bytes.len() as u64 == LINE_BYTES && bytes.last() != Some(&b'\n') {
        return Err(format!("the line has more than {LINE_BYTES} bytes"));
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err("the file is UTF-16; save it as UTF-8".to_owned());
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "the line is not UTF-8".to_owned())?;
    Ok(text.trim_matches([BYTE_ORDER_MARK, ' ', '\r', '\n']))
}

/// The values of a line of CSV (RFC 4180), without space around them.
fn values(text: &str, delimiter: char) -> Result<Vec<Cow<'_, str>>, Mistake> {
    let mut values = Vec::new();
    let mut rest = text;
    loop {
        let begun = rest.trim_start_matches(' ');
        let (value, behind) = match begun.strip_prefix('"') {
            Some(quoted) => quoted_value(quoted)?,
            None => {
                let end = begun.find(delimiter).unwrap_or(begun.len());
                (Cow::Borrowed(begun[..end].trim()), &begun[end..])
            }
        };
        values.push(value);
        let behind = behind.trim_start_matches(' ');
        match behind.strip_prefix(delimiter) {
            Some(more) => rest = more,
            None if behind.is_empty() => return Ok(values),
            None => {
                let number = values.len();
                return Err(Mistake::of(format!(
                    "behind the quote of value {number} is more text"
                )));
            }
        }
    }
}

/// A value behind its opening quote, and what follows the closing one.
fn quoted_value(quoted: &str) -> Result<(Cow<'_, str>, &str), Mistake> {
    let mut from = 0;
    while let Some(at) = quoted[from..].find('"') {
        let end = from + at;
        if quoted[end + 1..].starts_with('"') {
            from = end + 2;
            continue;
        }
        let value = &quoted[..end];
        let value = match value.contains('"') {
            true => Cow::Owned(value.replace("\"\"", "\"").trim().to_owned()),
            false => Cow::Borrowed(value.trim()),
        };
        return Ok((value, &quoted[end + 1..]));
    }
    Err(Mistake::of("a quote is not closed on its line"))
}

/// The format by the first line, and whether it is a header; `None` if what follows begins the file.
fn begin(
    text: &str,
    named: &mut Option<char>,
    purpose: Purpose,
) -> Result<Option<(Format, bool)>, Mistake> {
    if text.starts_with('{') {
        return Ok(Some((Format::Json, false)));
    }
    if text.trim_start_matches('"').starts_with(TYPE_LINE) {
        return Ok(None);
    }
    if let Some(delimiter) = text.strip_prefix(DELIMITER_LINE).and_then(|rest| rest.chars().next())
    {
        *named = Some(delimiter);
        return Ok(None);
    }
    let used = DELIMITERS.into_iter().find(|delimiter| text.contains(*delimiter));
    let delimiter = named.or(used).unwrap_or(DELIMITERS[0]);
    let mut places = vec![None; COLUMNS.len()];
    for (place, name) in values(text, delimiter)?.iter().enumerate() {
        let is_column = |column: &&str| column.eq_ignore_ascii_case(name);
        let Some(column) = COLUMNS.iter().position(is_column) else {
            if name.eq_ignore_ascii_case("revision") {
                continue;
            }
            return Err(Mistake::of(format!(
                "`{name}` is no column; begin with a header such as `{}`, or write JSON, one object a line",
                COLUMNS.join(",")
            )));
        };
        if places[column].replace(place).is_some() {
            return Err(Mistake::of(format!("the column `{name}` is there twice")));
        }
    }
    let needed = match purpose {
        Purpose::Write => COLUMNS.len(),
        Purpose::Delete => KEY_COLUMNS,
    };
    match places[..needed].iter().position(Option::is_none) {
        Some(missing) => {
            Err(Mistake::of(format!("the header lacks the column `{}`", COLUMNS[missing])))
        }
        None => Ok(Some((Format::Csv(Csv { delimiter, places }), true))),
    }
}

/// Reads the neighbour of one line.
fn record(format: &Format, text: &str, purpose: Purpose) -> Result<NeighbourRecord, Mistake> {
    match format {
        Format::Json => {
            let line: Line<'_> = serde_json::from_str(text).map_err(|error| json(&error))?;
            let fields = [
                line.ip.as_deref(),
                line.mac.as_deref(),
                line.host_ip.as_deref(),
                line.host_mac.as_deref(),
            ];
            let vni = line.vni.ok_or_else(|| missing("vni"))?;
            let vni = u32::try_from(vni).ok().and_then(|vni| Vni::new(vni).ok());
            let wrong = tollway_model::neighbour::AddressError::Vni(line.vni.unwrap_or_default());
            neighbour(vni.ok_or_else(|| Mistake::in_field("vni", chain(&wrong)))?, fields, purpose)
        }
        Format::Csv(Csv { delimiter, places }) => {
            let values = values(text, *delimiter)?;
            let value = |column: usize| {
                let value = places[column].and_then(|place| values.get(place));
                value.map(|value| &**value).filter(|value| !value.is_empty())
            };
            let columns = places.iter().flatten().max().map_or(0, |last| last + 1);
            if values.len() < columns {
                let count = values.len();
                return Err(Mistake::of(format!("there are {count} values, the header has more")));
            }
            let text = value(0).ok_or_else(|| missing("vni"))?;
            let vni = text.parse().ok().and_then(|vni| Vni::new(vni).ok()).ok_or_else(|| {
                Mistake::in_field(
                    "vni",
                    format!("`{text}` is not a vni; write a number from 0 to 16777215"),
                )
            })?;
            neighbour(vni, [value(1), value(2), value(3), value(4)], purpose)
        }
    }
}

fn json(error: &serde_json::Error) -> Mistake {
    let text = error.to_string();
    // Each line is a text of its own, whose lines are all the first.
    let what = match text.split_once(" at line 1 column ") {
        // Named already, and the column would be where the reader noticed.
        Some((what, _)) if error.is_data() => what.to_owned(),
        Some((what, column)) => format!("{what} (column {column})"),
        None => text,
    };
    Mistake::of(what)
}

fn missing(field: &'static str) -> Mistake {
    Mistake::in_field(field, "it is missing")
}

/// Puts a neighbour together of its address, hardware address, host and the host's.
fn neighbour(
    vni: Vni,
    [ip, mac, host_ip, host_mac]: [Option<&str>; 4],
    purpose: Purpose,
) -> Result<NeighbourRecord, Mistake> {
    let key = NeighbourKey::new(vni, address("ip", ip)?);
    let key = key.map_err(|error| Mistake::in_field("ip", chain(&error)))?;
    if purpose == Purpose::Delete {
        return Ok(NeighbourRecord { key, revision: 0, location: None });
    }
    let (mac, host_mac) = (hardware("mac", mac)?, hardware("host_mac", host_mac)?);
    let location = HostLocation::new(mac, address("host_ip", host_ip)?, host_mac);
    let location = location.map_err(|error| Mistake::in_field("host_ip", chain(&error)))?;
    Ok(NeighbourRecord { key, revision: 0, location: Some(location) })
}

fn address(field: &'static str, text: Option<&str>) -> Result<IpAddr, Mistake> {
    let text = text.ok_or_else(|| missing(field))?;
    let wrong = || Mistake::in_field(field, format!("`{text}` is not an IP address"));
    text.parse().map_err(|_| wrong())
}

fn hardware(field: &'static str, text: Option<&str>) -> Result<Mac, Mistake> {
    let text = text.ok_or_else(|| missing(field))?;
    text.parse().map_err(|error| Mistake::in_field(field, chain(&error)))
}

#[cfg(test)]
mod tests {
    use tollway_model::neighbour::packed::unpack;

    use super::*;

    const JSON: &str = r#"{"vni":7,"ip":"10.0.0.1","mac":"02:00:00:00:00:01","host_ip":"192.0.2.1","host_mac":"02:00:00:00:00:09"}"#;

    #[track_caller]
    fn check_refused(text: &str, mistakes: &str) {
        let refused = read("f", text.as_bytes(), Purpose::Write).unwrap_err();
        assert_eq!(refused.to_string(), mistakes);
    }

    #[test]
    fn json_and_csv_are_read_to_the_same_batches() {
        let json = read("f", format!("\n{JSON}\n\n{JSON}").as_bytes(), Purpose::Write).unwrap();
        let csv = "host_mac, ip,vni,revision,mac,host_ip\n\
                   02:00:00:00:00:09,10.0.0.1,7,3,02:00:00:00:00:01,192.0.2.1\n\
                   02:00:00:00:00:09 , 10.0.0.1,7,,02:00:00:00:00:01,192.0.2.1\r\n";
        let csv = read("f", csv.as_bytes(), Purpose::Write).unwrap();
        assert_eq!(json.batches, csv.batches);
        assert_eq!((json.lines, csv.lines), (vec![2, 4], vec![2, 3]));
        let read = unpack(&json.batches[0]).unwrap();
        assert_eq!((read.len(), read[0].key.to_string()), (2, "vni 7, 10.0.0.1".to_owned()));
    }

    #[test]
    fn csv_of_spreadsheets_and_shells_is_read_as_csv_of_ours() {
        let ours = "vni,ip,mac,host_ip,host_mac\n\
                    7,10.0.0.1,02:00:00:00:00:01,192.0.2.1,02:00:00:00:00:09\n";
        let expected = read("f", ours.as_bytes(), Purpose::Write).unwrap();
        let quoted = ours.replace('\n', "\"\n\"").replace(',', "\",\"");
        let quoted = format!("\"{}", quoted.trim_end_matches('"'));
        for text in [
            format!("\u{feff}{}", ours.replace('\n', "\r\n")),
            format!("\u{feff}{quoted}"),
            quoted.replace(',', " , "),
            format!("#TYPE System.Management.Automation.PSCustomObject\n{quoted}"),
            format!("\"#TYPE X\"\n{quoted}"),
            ours.replace(',', ";"),
            ours.replace(',', "\t"),
            format!("sep=;\r\n{}", ours.replace(',', ";")),
            ours.replace("vni,ip", "VNI,Ip"),
        ] {
            let found = read("f", text.as_bytes(), Purpose::Write);
            assert_eq!(found.map(|found| found.batches).unwrap(), expected.batches, "{text}");
        }
        let json = format!("\u{feff}{JSON}");
        assert_eq!(read("f", json.as_bytes(), Purpose::Write).unwrap().batches, expected.batches);
        let rest = ",10.0.0.1,02:00:00:00:00:01,192.0.2.1,02:00:00:00:00:09";
        let header = "vni,ip,mac,host_ip,host_mac";
        check_refused(&format!("{header}\n\"7{rest}"), "f:2: a quote is not closed on its line");
        check_refused(
            &format!("{header}\n\"7\"x{rest}"),
            "f:2: behind the quote of value 1 is more text",
        );
        check_refused(
            &format!("{header}\n\"7\"\"\"{rest}"),
            "f:2: the field `vni`: `7\"` is not a vni; write a number from 0 to 16777215",
        );
        let utf16: Vec<u8> = [0xff, 0xfe].into_iter().chain(b"v\0n\0".iter().copied()).collect();
        let refused = read("f", &utf16[..], Purpose::Write).unwrap_err().to_string();
        assert_eq!(refused, "f:1: the file is UTF-16; save it as UTF-8");
    }

    #[test]
    fn a_file_is_sent_in_batches() {
        let text = format!("{JSON}\n").repeat(BATCH_RECORDS + 1);
        let contents = read("f", text.as_bytes(), Purpose::Write).unwrap();
        let sizes: Vec<_> =
            contents.batches.iter().map(|batch| unpack(batch).unwrap().len()).collect();
        assert_eq!(sizes, [BATCH_RECORDS, 1]);
    }

    #[test]
    fn keys_are_enough_to_delete() {
        let contents = read("f", "vni,ip\n7,10.0.0.1\n".as_bytes(), Purpose::Delete).unwrap();
        assert_eq!(unpack(&contents.batches[0]).unwrap()[0].location, None);
        check_refused("vni,ip\n7,10.0.0.1\n", "f:1: the header lacks the column `mac`");
    }

    #[test]
    fn mistakes_are_reported_with_line_and_field() {
        let wrong = JSON.replace("10.0.0.1", "10.0.0").replace("02:00:00:00:00:01", "02");
        let group = JSON.replace("02:00:00:00:00:09", "ff:ff:ff:ff:ff:ff");
        let unknown = JSON.replace("\"mac\"", "\"mc\"");
        check_refused(
            &[JSON, &wrong, &group, "", &unknown, "{}"].join("\n"),
            "f:2: the field `ip`: `10.0.0` is not an IP address\n\
             f:3: the field `host_mac`: ff:ff:ff:ff:ff:ff is a group or broadcast address; a neighbour and its host have one of their own\n\
             f:5: unknown field `mc`, expected one of `vni`, `ip`, `mac`, `host_ip`, `host_mac`, `revision`\n\
             f:6: the field `vni`: it is missing",
        );
        check_refused(
            "vni,ip,mac,host_ip,host_mac\n7,10.0.0.1,,1.1.1.1,02:00:00:00:00:01\n99999999,,,,\n7\n",
            "f:2: the field `mac`: it is missing\n\
             f:3: the field `vni`: `99999999` is not a vni; write a number from 0 to 16777215\n\
             f:4: there are 1 values, the header has more",
        );
        check_refused(
            "address\n",
            "f:1: `address` is no column; begin with a header such as `vni,ip,mac,host_ip,host_mac`, or write JSON, one object a line",
        );
        check_refused("ip,ip\n", "f:1: the column `ip` is there twice");
        check_refused("\n", "there is no neighbour in f");
    }

    #[test]
    fn very_many_mistakes_are_counted() {
        let text = format!("{JSON}\n{}", "{}\n".repeat(25));
        let refused = read("f", text.as_bytes(), Purpose::Write).unwrap_err().to_string();
        assert_eq!(refused.lines().count(), MISTAKES_SHOWN + 1);
        assert!(refused.ends_with("\nand 5 more mistakes"), "{refused}");
        let long = " ".repeat(5000);
        check_refused(&long, "f:1: the line has more than 4096 bytes");
    }
}
