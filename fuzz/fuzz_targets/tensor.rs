//! A tensor that passes lies inside the half, whatever a peer sends, and its bytes can be checked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_link::{tensor, wire};
use paceline_proto::internal::v1::TensorRef;
use prost::Message as _;

fuzz_target!(|bytes: &[u8]| {
    let half = 4096..8192;
    if let Ok(tensor) = TensorRef::decode(bytes)
        && let Ok(tensor) = wire::to_tensor(tensor)
        && let Ok(place) = tensor::check(&tensor, tensor.number, &half)
    {
        assert!(
            place.offset as u64 >= half.start && (place.offset + place.length) as u64 <= half.end
        );
        let numbers: Vec<u8> = bytes.iter().copied().cycle().take(place.length).collect();
        let _ = tensor::all_finite(&numbers, place.element);
    }
});
