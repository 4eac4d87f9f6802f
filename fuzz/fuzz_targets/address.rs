//! Whatever a client sends as an address holds a file, or is refused in words that repeat nothing
//! of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_text::images::address;

fuzz_target!(|url: &str| match address::open(url) {
    Ok(file) => assert!(file.len() <= url.len()),
    Err(problem) => assert!((1..200).contains(&problem.to_string().len())),
});
