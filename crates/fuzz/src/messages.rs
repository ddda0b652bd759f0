//! Messages between the parts, after protobuf: what each conversion takes, it writes alike.

use prost::Message;
use tollway_wire::v1;

/// An error names a field and repeats its value.
const ERROR_BYTES: usize = 4096;

/// The first byte chooses the message, the rest is its encoding.
pub(crate) fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 10 {
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
        _ => read(rest, |m: v1::Reminder| {
            let read = tollway_wire::reminder(m)?;
            assert_eq!(tollway_wire::reminder(read.clone().into()).as_ref(), Ok(&read));
            Ok(())
        }),
    }
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
