//! Messages between the parts, after protobuf: what each conversion takes, it writes alike.

use prost::Message;
use tollway_identity::{Revocations, TrustBundle};
use tollway_wire::v1;

/// An error names a field and repeats its value.
const ERROR_BYTES: usize = 4096;

/// The first byte chooses the message, the rest is its encoding.
pub(crate) fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 19 {
        0 => read(rest, |m: v1::Workload| {
            let read = tollway_wire::workload(&m)?;
            assert_eq!(tollway_wire::workload(&(&read).into()).as_ref(), Ok(&read));
            Ok(())
        }),
        1 => read(rest, |m: v1::ServiceUpdate| {
            let read = tollway_wire::service_update(&m)?;
            assert_eq!(tollway_wire::service_update(&(&read).into()).as_ref(), Ok(&read));
            Ok(())
        }),
        2 => read(rest, |m: v1::NetworkUpdate| {
            let read = tollway_wire::network_update(&m)?;
            assert_eq!(tollway_wire::network_update(&(&read).into()).as_ref(), Ok(&read));
            Ok(())
        }),
        3 => read(rest, |m: v1::Policies| {
            let read = tollway_wire::policies(&m)?;
            let policies = read.iter().map(Into::into).collect();
            assert_eq!(tollway_wire::policies(&v1::Policies { policies }).as_ref(), Ok(&read));
            Ok(())
        }),
        4 => read(rest, |m: v1::Enter| tollway_wire::held(&m.types).map(drop)),
        5 => read(rest, |m: v1::HostResponse| {
            let Some(order) = tollway_wire::order(&m)? else { return Ok(()) };
            let again = tollway_wire::order(&(&order).into());
            assert_eq!(again.as_ref().ok().and_then(Option::as_ref), Some(&order));
            Ok(())
        }),
        6 => read(rest, |m: v1::Owners| tollway_wire::read_owners(&m).map(drop)),
        7 => read(rest, |m: v1::ReminderChange| {
            let read = tollway_wire::reminder_change(m)?;
            assert_eq!(tollway_wire::reminder_change(read.clone().into()).as_ref(), Ok(&read));
            Ok(())
        }),
        9 => read(rest, |m: v1::Object| {
            let read = tollway_wire::object(&m)?;
            assert_eq!(tollway_wire::object(&(&read).into()).as_ref(), Ok(&read));
            Ok(())
        }),
        10 => read(rest, |m: v1::ReminderResult| tollway_wire::reminder_result(m).map(drop)),
        11 => read(rest, |m: v1::ServiceName| {
            let read = tollway_wire::called_name(Some(&m))?;
            let again = v1::ServiceName::from(&read);
            assert_eq!(tollway_wire::called_name(Some(&again)).as_ref(), Ok(&read));
            Ok(())
        }),
        12 => read(rest, trust),
        13 => read(rest, |m: v1::WatchResponse| {
            let Some((by_default, egresses)) = tollway_wire::egress_rules(&m)? else {
                return Ok(());
            };
            let egress = v1::EgressRules {
                by_default: v1::EgressDefault::from(by_default).into(),
                egresses: egresses.iter().map(|egress| (&**egress).into()).collect(),
            };
            let again = v1::WatchResponse { egress: Some(egress), ..Default::default() };
            assert_eq!(tollway_wire::egress_rules(&again), Ok(Some((by_default, egresses))));
            Ok(())
        }),
        14 => read(rest, |m: v1::WatchResponse| {
            let Some(parts) = tollway_wire::own_traffic(&m)? else { return Ok(()) };
            let traffic = Some((&parts).into());
            let again = v1::WatchResponse { traffic, ..Default::default() };
            assert_eq!(tollway_wire::own_traffic(&again), Ok(Some(parts)));
            Ok(())
        }),
        15 => read(rest, |m: v1::Gateways| {
            let limit = tollway_wire::GATEWAYS_PER_NETWORK_LIMIT;
            let read = tollway_wire::addresses(&m.addresses, "addresses", limit)?;
            let again: Vec<_> = read.iter().copied().map(Into::into).collect();
            assert_eq!(tollway_wire::addresses(&again, "addresses", limit), Ok(read));
            Ok(())
        }),
        16 => read(rest, |m: v1::Neighbour| {
            let _ = tollway_wire::neighbour_to_delete(&m);
            tollway_wire::neighbour(&m).map(drop)
        }),
        17 => {
            if let Ok(request) = v1::WriteStateRequest::decode(rest) {
                write_state(&request);
            }
        }
        _ => read(rest, |m: v1::Reminder| {
            let read = tollway_wire::reminder(m)?;
            assert_eq!(tollway_wire::reminder(read.clone().into()).as_ref(), Ok(&read));
            Ok(())
        }),
    }
}

/// Roots and revoked identities of a network.
fn trust(m: v1::TrustBundle) -> Result<(), tollway_wire::ConvertError> {
    let network = tollway_wire::network_name(&m.network)?;
    let trust_domain = tollway_wire::trust_domain(&m.trust_domain)?;
    let revoked = tollway_wire::revocations(&m.revoked)?;
    let again: Vec<_> = revoked.iter().map(Into::into).collect();
    assert_eq!(tollway_wire::revocations(&again).as_ref(), Ok(&revoked));
    let roots = m.roots.into_iter().map(Into::into).collect();
    if let Ok(bundle) = TrustBundle::new(network, trust_domain, roots) {
        let _ = bundle.with_revoked(Revocations::new(revoked));
    }
    Ok(())
}

/// A write of state that passes has each key once, and no part of it is too large.
fn write_state(request: &v1::WriteStateRequest) {
    if let Err(error) = tollway_wire::check_state_write(request) {
        let longest = tollway_wire::STATE_KEY_BYTES + ERROR_BYTES;
        return assert!(error.to_string().len() <= longest, "{error}");
    }
    assert!(request.changes.len() <= tollway_wire::STATE_CHANGES);
    let mut keys: Vec<&str> = request.changes.iter().map(|change| &*change.key).collect();
    keys.extend(request.fence.as_ref().map(|fence| &*fence.key));
    assert!(keys.iter().all(|key| key.len() <= tollway_wire::STATE_KEY_BYTES));
    let count = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), count, "a key is there twice");
    let values = request.changes.iter().filter_map(|change| change.value.as_ref());
    assert!(values.map(Vec::len).all(|bytes| bytes <= tollway_wire::STATE_VALUE_BYTES));
}

fn read<M: Message + Default>(
    data: &[u8],
    convert: impl FnOnce(M) -> Result<(), tollway_wire::ConvertError>,
) {
    let Ok(message) = M::decode(data) else { return };
    if let Err(error) = convert(message) {
        assert!(error.to_string().len() <= ERROR_BYTES + data.len() * 4, "{error}");
    }
}
