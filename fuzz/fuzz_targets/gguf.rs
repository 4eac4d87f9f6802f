//! A GGUF file is refused with a reason, or becomes JSON files and tensors that lie in it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_checkpoint::from_gguf::{TextFiles, weights};
use paceline_checkpoint::gguf::Gguf;

fuzz_target!(|file: &[u8]| {
    let gguf = match Gguf::read(file) {
        Ok(gguf) => gguf,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    match weights(&gguf) {
        Ok(weights) => {
            assert!(weights.iter().all(|weight| weight.begin + weight.bytes <= file.len()));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Err(error) = TextFiles::of(&gguf, None) {
        assert!(!error.to_string().is_empty());
    }
});
