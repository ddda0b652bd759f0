//! Packed neighbours, as users, agents and the control plane send them to each other.

use tollway_model::neighbour::packed::{
    BATCH_LIMIT_BYTES, BATCH_RECORDS, PackedError, pack_all, records, unpack,
};

/// Any bytes as one batch.
pub(crate) fn run(data: &[u8]) {
    match unpack(data) {
        Ok(read) => {
            assert!(read.len() <= BATCH_RECORDS && data.len() <= BATCH_LIMIT_BYTES);
            assert_eq!(pack_all(&read).concat(), data, "what was read is written otherwise");
            let mut seen = 0;
            for (record, packed) in read.iter().zip(records(data)) {
                let packed = packed.expect("all of it was read");
                assert_eq!(packed.revision(), record.revision);
                assert_eq!(packed.is_tombstone(), record.location.is_none());
                seen += packed.bytes().len();
            }
            assert_eq!(seen, data.len(), "records end elsewhere");
        }
        Err(PackedError::CutOff { record, found, wanted }) => {
            let whole: usize =
                records(data).map_while(Result::ok).map(|packed| packed.bytes().len()).sum();
            assert!(found < wanted && whole + found == data.len());
            assert!(unpack(&data[..whole]).is_ok_and(|read| read.len() == record));
        }
        Err(error) => assert!(error.to_string().len() <= 256, "{error}"),
    }
}
