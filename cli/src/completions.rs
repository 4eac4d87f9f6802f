//! `paceline completions` and `paceline man`: texts made from the definitions of the commands.

use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;
use paceline_client::{Failure, Screen};

use crate::args::Cli;

/// Runs `paceline completions`.
///
/// # Errors
/// The output was closed.
pub fn run(shell: Shell, screen: &mut Screen) -> Result<(), Failure> {
    let mut text = vec![];
    clap_complete::generate(shell, &mut Cli::command(), "paceline", &mut text);
    screen.text(&String::from_utf8_lossy(&text))
}

/// Runs `paceline man`.
///
/// # Errors
/// The directory cannot be written, or the output was closed.
pub fn man(dir: Option<&Path>, screen: &mut Screen) -> Result<(), Failure> {
    let Some(dir) = dir else {
        let mut text = vec![];
        let written = clap_mangen::Man::new(Cli::command()).render(&mut text);
        written.expect("memory takes all");
        return screen.text(&String::from_utf8_lossy(&text));
    };
    clap_mangen::generate_to(Cli::command(), dir)
        .map_err(|error| Failure::usage(format!("cannot write into {}: {error}", dir.display())))
}
