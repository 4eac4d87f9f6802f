//! The header of a checkpoint's weights is refused with a reason, or names tensors that lie in the
//! file one after another and are as long as their shapes require.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_checkpoint::header;

fuzz_target!(|file: &[u8]| {
    let Some((size, rest)) = file.split_first_chunk::<8>() else { return };
    let length = match header::length(*size, file.len() as u64) {
        Ok(length) => length,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let (head, data) = rest.split_at(length);
    match header::parse(head, data.len() as u64) {
        Ok(metadata) => {
            let mut ends = 0;
            let mut tensors: Vec<_> =
                metadata.tensors().into_values().map(|info| info.data_offsets).collect();
            tensors.sort_unstable();
            for (begin, end) in tensors {
                assert!(begin == ends && end >= begin);
                ends = end;
            }
            assert_eq!(ends, data.len());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
