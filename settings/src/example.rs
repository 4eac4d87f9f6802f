//! `paceline.example.toml`, made of the table. `scripts/check-settings.py` compares
//! `docs/settings.md` with that file.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;

use crate::declare::Declared;
use crate::table::DECLARED;
use crate::{
    DrafterConfig, DrainConfig, GatewayConfig, KvConfig, LimitsConfig, LogConfig, RoutingConfig,
    SupervisorConfig, TargetConfig,
};

const HEAD: &str = "\
# Every setting, at its default. Copy what you change to ./paceline.toml or ~/.config/paceline/paceline.toml.
# Each key can be set by environment instead: PACELINE_ROUTING__FORCE=plain. An empty value is a value. What wins: flags of
# `paceline serve`, the environment, `paceline config set` (kept in paceline.settings.toml beside this file), this file.
";
/// The section whose keys are names of API keys.
const CLASSES: &str = "\n[classes]                       # API key name = traffic class label; a name that is not here is of the class \"default\"\n";

#[derive(Default, Serialize)]
struct Defaults {
    gateway: GatewayConfig,
    supervisor: SupervisorConfig,
    target: TargetConfig,
    drafter: DrafterConfig,
    routing: RoutingConfig,
    kv: KvConfig,
    limits: LimitsConfig,
    drain: DrainConfig,
    log: LogConfig,
}

fn file() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../paceline.example.toml").into()
}

/// The text of the file.
fn example() -> String {
    let defaults = toml::Table::try_from(Defaults::default()).expect("the defaults are plain TOML");
    let (mut text, mut last) = (HEAD.to_owned(), "");
    for Declared { key, text: comment, .. } in DECLARED {
        let (section, word) = key.split_once('.').expect("each key is in a section");
        if section != last {
            if last == "drafter" {
                text.push_str(CLASSES);
            }
            // Writing to a string does not fail.
            let _ = writeln!(text, "\n[{section}]");
            last = section;
        }
        let default = match *key {
            // A name would mean this model alone, without one that stands in for it.
            "target.model" => "\"\"".to_owned(),
            _ => defaults[section][word].to_string(),
        };
        let mut line = format!("{word} = {default}");
        for part in comment.lines() {
            let _ = writeln!(text, "{line:32}# {part}");
            line.clear();
        }
    }
    text
}

#[test]
fn the_example_file_is_what_the_table_declares() {
    let (found, expected) = (std::fs::read_to_string(file()).expect("it is there"), example());
    let other = expected.lines().zip(found.lines()).find(|(expected, found)| expected != found);
    let command = "cargo test -p paceline-settings -- --ignored write_the_example_file && \
                   python3 -B scripts/check-settings.py --write";
    assert!(found == expected, "{other:?}; write the file: {command}");
}

#[test]
#[ignore = "by hand: writes paceline.example.toml"]
fn write_the_example_file() {
    std::fs::write(file(), example()).expect("written");
}
