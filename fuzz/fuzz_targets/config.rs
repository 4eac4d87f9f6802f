//! Text of a configuration file or of the environment is refused with the name of its key, or is a
//! configuration. Writing that configuration and reading it again gives the same one. The input:
//! the file, and after NUL bytes variables as `NAME=value`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_process::Loaded;

fuzz_target!(|text: &str| {
    let mut parts = text.split('\0');
    let file = parts.next().unwrap_or_default();
    let variable = |part: &str| {
        part.split_once('=').map(|(name, value)| (format!("PACELINE_{name}"), value.to_owned()))
    };
    let environment: Vec<_> = parts.filter_map(variable).collect();
    match Loaded::from_text(file, &environment) {
        Ok(loaded) => {
            let again =
                Loaded::from_text(&toml::to_string(&loaded.config).expect("plain TOML"), &[])
                    .expect("its own form");
            assert_eq!(again.config, loaded.config);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
