//! Neighbours of the fabric where they travel as messages; packed ones are `model`'s.

use std::net::IpAddr;

use tollway_model::{Group, HostLocation, Mac, NeighbourKey, NeighbourRecord, Vni};

use crate::{ConvertError, v1};

/// Reads the name of a group.
///
/// # Errors
/// [`ConvertError::Group`].
pub fn neighbour_group(text: &str) -> Result<Group, ConvertError> {
    Group::new(text).map_err(|source| ConvertError::Group { field: "group", source })
}

/// Reads what names a neighbour.
///
/// # Errors
/// [`ConvertError`] for the first field that is wrong.
pub fn neighbour_key(stated: &v1::NeighbourKey) -> Result<NeighbourKey, ConvertError> {
    let vni = Vni::new(stated.vni).map_err(wrong("vni"))?;
    NeighbourKey::new(vni, ip("ip", &stated.ip)?).map_err(wrong("ip"))
}

/// Reads a neighbour, as of no revision yet.
///
/// # Errors
/// [`ConvertError`] for the first field that is wrong.
pub fn neighbour(stated: &v1::Neighbour) -> Result<NeighbourRecord, ConvertError> {
    let host_ip = ip("host_ip", &stated.host_ip)?;
    let location =
        HostLocation::new(mac("mac", &stated.mac)?, host_ip, mac("host_mac", &stated.host_mac)?);
    let location = Some(location.map_err(wrong("host_ip"))?);
    Ok(NeighbourRecord { key: required_key(stated)?, revision: 0, location })
}

/// Reads the key of the neighbour to delete; ignores the other fields.
///
/// # Errors
/// [`ConvertError`] for the first field that is wrong.
pub fn neighbour_to_delete(stated: &v1::Neighbour) -> Result<NeighbourRecord, ConvertError> {
    Ok(NeighbourRecord { key: required_key(stated)?, revision: 0, location: None })
}

fn required_key(stated: &v1::Neighbour) -> Result<NeighbourKey, ConvertError> {
    neighbour_key(stated.key.as_ref().ok_or(ConvertError::Missing { field: "key" })?)
}

fn ip(field: &'static str, octets: &[u8]) -> Result<IpAddr, ConvertError> {
    let wrong = || ConvertError::Ip { field, length: octets.len() };
    if let Ok(v4) = <[u8; 4]>::try_from(octets) {
        return Ok(v4.into());
    }
    <[u8; 16]>::try_from(octets).map(IpAddr::from).map_err(|_| wrong())
}

fn mac(field: &'static str, octets: &[u8]) -> Result<Mac, ConvertError> {
    let whole = <[u8; 6]>::try_from(octets)
        .map_err(|_| ConvertError::Mac { field, length: octets.len() })?;
    Mac::new(whole).map_err(wrong(field))
}

fn wrong(field: &'static str) -> impl Fn(tollway_model::neighbour::AddressError) -> ConvertError {
    move |source| ConvertError::Neighbour { field, source }
}

impl From<&NeighbourKey> for v1::NeighbourKey {
    fn from(key: &NeighbourKey) -> Self {
        Self { vni: key.vni().number(), ip: ip_octets(key.ip()) }
    }
}

impl From<&NeighbourRecord> for v1::Neighbour {
    /// A tombstone has a key only; the revision is left out.
    fn from(record: &NeighbourRecord) -> Self {
        let key = Some((&record.key).into());
        let Some(location) = &record.location else { return Self { key, ..Self::default() } };
        Self {
            key,
            mac: location.mac.octets().into(),
            host_ip: ip_octets(location.host_ip()),
            host_mac: location.host_mac.octets().into(),
        }
    }
}

fn ip_octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().into(),
        IpAddr::V6(v6) => v6.octets().into(),
    }
}

#[cfg(test)]
mod tests {
    use tollway_model::chain;

    use super::*;

    fn stated() -> v1::Neighbour {
        v1::Neighbour {
            key: Some(v1::NeighbourKey { vni: 7, ip: vec![10, 0, 0, 1] }),
            mac: vec![2, 0, 0, 0, 0, 1],
            host_ip: vec![0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9],
            host_mac: vec![2, 0, 0, 0, 0, 9],
        }
    }

    #[track_caller]
    fn check_refused(change: impl FnOnce(&mut v1::Neighbour), text: &str) {
        let mut wrong = stated();
        change(&mut wrong);
        assert_eq!(chain(&neighbour(&wrong).unwrap_err()), text);
    }

    #[test]
    fn a_neighbour_is_read_as_it_was_written() {
        let read = neighbour(&stated()).unwrap();
        assert_eq!(v1::Neighbour::from(&read), stated());
        assert_eq!(read.location.unwrap().host_ip().to_string(), "2001:db8::9");
        let gone = neighbour_to_delete(&stated()).unwrap();
        assert_eq!((gone.key, gone.location), (read.key, None));
        assert_eq!(v1::Neighbour::from(&gone).key, stated().key);
    }

    #[test]
    fn the_field_that_is_wrong_is_named() {
        check_refused(|wrong| wrong.key = None, "the field `key` is missing");
        check_refused(
            |wrong| wrong.mac.push(0),
            "the field `mac` holds a hardware address of 7 bytes; it must be 6",
        );
        check_refused(
            |wrong| wrong.host_ip.clear(),
            "the field `host_ip` holds an IP address of 0 bytes; it must be 4 or 16",
        );
        check_refused(
            |wrong| wrong.host_mac = vec![0; 6],
            "the field `host_mac` is not of a neighbour: 00:00:00:00:00:00 is nobody's hardware address",
        );
        check_refused(
            |wrong| wrong.key = Some(v1::NeighbourKey { vni: 1 << 24, ip: vec![10, 0, 0, 1] }),
            "the field `vni` is not of a neighbour: 16777216 is not a vni; it has 24 bits: 0 to 16777215",
        );
        assert_eq!(
            chain(&neighbour_group("a b").unwrap_err()),
            "the field `group` does not name a group: the name of a group is a label: `a b` holds the character ' '; a label has letters, digits, `-` and `_`",
        );
    }
}
