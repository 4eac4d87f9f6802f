//! `paceline key`: makes API keys. What is stored is the line with the digest; the key is shown
//! once and kept nowhere.

use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use paceline_client::{Failure, Screen};
use paceline_process::chain;
use paceline_process::keys::{KeyLine, MAX_KEY_BYTES};
use serde_json::json;

use crate::args::KeyCommand;

/// Prefix of every key, so that a leaked key is recognized.
const PREFIX: &str = "pl_";
/// Random bytes of a key.
const RANDOM: usize = 32;

/// Runs the command.
///
/// # Errors
/// The name or the key cannot be used.
pub fn run(command: &KeyCommand, screen: &mut Screen) -> Result<(), Failure> {
    let (line, key, as_object) = match command {
        KeyCommand::New(new) => {
            let key = make()?;
            (line(&new.name, &key)?, Some(key), new.json)
        }
        KeyCommand::Digest(digest) => (line(&digest.name, &read()?)?, None, false),
    };
    if let (Some(key), true) = (&key, as_object) {
        let object = json!({ "name": line.name, "key": key, "line": line.to_string() });
        return screen.text(&format!("{object}\n"));
    }
    screen.text(&format!("{line}\n"))?;
    if let Some(key) = key {
        screen.note(&format!("the key, shown this once: {key}"));
    }
    Ok(())
}

fn line(name: &str, key: &str) -> Result<KeyLine, Failure> {
    KeyLine::of(name, key).map_err(|error| Failure::usage(chain(&error)))
}

fn make() -> Result<String, Failure> {
    let mut bytes = [0; RANDOM];
    getrandom::fill(&mut bytes).map_err(|error| {
        Failure::refused_here(format!("the system gave no random numbers: {error}"))
    })?;
    Ok(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// The key on standard input: its first line.
fn read() -> Result<String, Failure> {
    let mut text = String::new();
    let most = MAX_KEY_BYTES as u64 + 2;
    let read = std::io::stdin().lock().take(most).read_to_string(&mut text);
    read.map_err(|error| Failure::usage(format!("the key on standard input: {error}")))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_process::keys;

    #[test]
    fn keys_are_long_random_and_fit_their_lines() {
        let (one, other) = (make().expect("random"), make().expect("random"));
        assert!(
            one != other && one.starts_with(PREFIX) && one.len() == PREFIX.len() + 43,
            "{}",
            one.len()
        );
        let text = line("alice", &one).expect("fine").to_string();
        let known = keys::parse(&text).expect("a line");
        assert!(known[0].digest == keys::digest(&one) && !text.contains(&one));
        assert_eq!(
            line("al ice", &one).expect_err("no name").exit,
            paceline_client::failure::USAGE
        );
    }
}
