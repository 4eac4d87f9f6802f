//! Whatever a client sends as an address holds a file, or is refused in words that repeat nothing
//! of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_gateway::pictures::address;

fuzz_target!(|url: &str| match address::open(url) {
    Ok(file) => assert!(file.len() <= url.len()),
    Err(what) => assert!(!what.is_empty() && what.len() < 200),
});
