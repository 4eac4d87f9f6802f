//! Any bytes on the socket are a frame, an incomplete frame or a fault. A message that was decoded
//! is encoded to as many bytes, also after it went through the workers' types.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_link::{Frame, frame};

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Some((found, used))) = frame::decode(rest) {
        let mut again = vec![];
        frame::encode(found.clone(), &mut again).expect("no longer than it was");
        assert_eq!(again.len(), used);
        if let Ok(checked) = Frame::try_from(found) {
            let mut again = vec![];
            frame::encode(checked.into(), &mut again).expect("no longer than it was");
            assert_eq!(again.len(), used);
        }
        rest = &rest[used..];
    }
});
