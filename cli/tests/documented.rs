//! Each command line of ours that the documents have is one that the program accepts. The lines are
//! those of `tests/commands.toml`; `scripts/check-commands.py` proves that it has all of the
//! documents. `tests/documented.rs` does the same for the flags of `bench` and `pull`, which are
//! programs of their own.

use clap::Parser as _;
use clap::error::ErrorKind;
use paceline_cli::args::Cli;

/// Stands for each `*` of the list: a number is also a name and a path.
const VALUE: &str = "7";

/// The commands of the list: what stands in quotation marks before `=`.
fn listed() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/commands.toml");
    let text = std::fs::read_to_string(path).expect("the list is there");
    let command = |line: &str| {
        let quote = line.chars().next().filter(|sign| ['\'', '"'].contains(sign))?;
        line[1..].split(quote).next().map(str::to_owned)
    };
    text.lines().filter_map(command).collect()
}

/// The words of a command without assignments before it; `None` if it is of another program.
fn ours(command: &str) -> Option<Vec<String>> {
    let assigned = |word: &&str| {
        word.split('=').next().is_some_and(|name| {
            word.contains('=') && name.chars().all(|sign| sign.is_ascii_uppercase() || sign == '_')
        })
    };
    let words: Vec<String> =
        command.split(' ').skip_while(assigned).map(|word| word.replace('*', VALUE)).collect();
    (words.first().map(String::as_str) == Some("paceline")).then_some(words)
}

#[test]
fn every_documented_command_line_is_accepted() {
    let (mut accepted, mut refused) = (0, vec![]);
    for command in listed() {
        let Some(words) = ours(&command) else { continue };
        match Cli::try_parse_from(words) {
            Ok(_) => accepted += 1,
            Err(error)
                if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
            {
                accepted += 1
            }
            Err(error) => refused.push(format!("{command}\n{error}")),
        }
    }
    assert!(
        refused.is_empty(),
        "expected that tests/commands.toml has only commands that are there; a * stands for {VALUE}, so a value of a \
         fixed set (such as plain of --route) has to stand in the list itself. Refused:\n{}",
        refused.join("\n")
    );
    assert!(accepted > 20, "expected the commands of all documents, found {accepted}");
}

#[test]
fn a_command_that_is_not_there_would_be_refused() {
    for command in
        ["paceline status --yaml", "X=* paceline drafter trade --model *", "paceline policy set *"]
    {
        let words = ours(command).expect("it is of our program");
        assert!(Cli::try_parse_from(words).is_err(), "{command}");
    }
    assert_eq!(ours("make test"), None);
}
