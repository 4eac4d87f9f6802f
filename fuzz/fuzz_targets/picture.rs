//! Whatever a client sends as a picture is refused in words or becomes pixels of the size that its
//! prompt was made for. The same function and bounds as
//! `pictures::tests::changed_files_are_refused_or_served`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_gateway::pictures::decode::Bounds;
use paceline_gateway::pictures::processor::Processor;
use paceline_gateway::pictures::resize::Sizes;
use paceline_gateway::pictures::whole_way;

fuzz_target!(|file: &[u8]| {
    let processor = Processor {
        sizes: Sizes { factor: 32, min_pixels: 1024, max_pixels: 16_384 },
        patch: 16,
        merge: 2,
        scale: [1.0 / 127.5; 3],
        bias: [-1.0; 3],
        token: 77,
        placeholder: "<|image_pad|>".into(),
    };
    let bounds = Bounds { pixels: 1 << 20, bytes: 16 << 20 };
    match whole_way(file, bounds, &processor) {
        Ok(((rows, columns), pixels)) => {
            assert_eq!(pixels.len(), (rows * columns * 16 * 16 * 3) as usize)
        }
        Err(what) => assert!(!what.is_empty()),
    }
});
