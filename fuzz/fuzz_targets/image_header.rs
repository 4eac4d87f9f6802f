//! Whatever a client sends as an image is refused in words, or its header says sizes and a memory
//! that can be counted with. Faster than `image`, as nothing is unpacked: this one finds its way
//! deeper into what a file says of itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_text::images::container;

fuzz_target!(|file: &[u8]| match container::read(file) {
    Ok(header) => {
        let upright = header.upright();
        assert_eq!(
            u64::from(upright.width) * u64::from(upright.height),
            u64::from(header.width) * u64::from(header.height)
        );
        // A decoder that runs gets the file without its metadata, and no more than there is.
        assert!(container::for_decoder(header.kind, file).len() <= file.len());
    }
    Err(problem) => assert!((1..300).contains(&problem.to_string().len())),
});
