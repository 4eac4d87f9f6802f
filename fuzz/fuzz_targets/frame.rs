//! Whatever comes over the socket is a frame, an incomplete frame or a fault; what was understood
//! is written the same way.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_link::frame;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Some((found, used))) = frame::decode(rest) {
        let mut again = vec![];
        frame::encode(found, &mut again).expect("no longer than it was");
        assert_eq!(again.len(), used);
        rest = &rest[used..];
    }
});
