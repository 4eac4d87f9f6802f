//! A body of a client over HTTP is refused with a reason, or is a request within the bounds of its
//! elements. The first byte chooses the protocol.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_protocols::bodies::BodyKind;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, body)) = bytes.split_first() else { return };
    let kind = BodyKind::ALL[usize::from(*kind) % BodyKind::ALL.len()];
    if let Err(error) = kind.request(body) {
        assert!(!error.message.is_empty());
        // An error quotes a client's value in a few words, however long the value is.
        assert!(error.message.len() < 4_096, "{}", error.message.len());
    }
});
