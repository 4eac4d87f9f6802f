//! Commands that a program of their own carries out: it takes the place of this one. So the command
//! line has no HTTP client, and knows no flag of these commands.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use paceline_client::Failure;
use paceline_client::program::beside;

/// Commands whose flags only their programs know.
const COMMANDS: [&str; 2] = ["bench", "pull"];

/// Runs the program with these words. Returns only if it cannot be started.
///
/// # Errors
/// The program is not beside this one, or the system does not start it.
pub fn run(name: &str, words: &[OsString]) -> Result<(), Failure> {
    let program = beside(name)?;
    let error = Command::new(&program).args(words).exec();
    Err(Failure::refused_here(format!("cannot start {}: {error}", program.display())))
}

/// Turns `help bench` into `bench --help`, which the program of the command answers.
pub fn ask_for_help(words: &mut [OsString]) {
    if let [_, help, command] = words
        && *help == *"help"
        && COMMANDS.iter().any(|name| *command == **name)
    {
        std::mem::swap(help, command);
        *command = "--help".into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_of_another_programs_command_is_asked_of_that_program() {
        let check = |line: &str, expected: &str| {
            let mut words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            ask_for_help(&mut words);
            assert_eq!(words.join(" ".as_ref()), *expected);
        };
        check("paceline help bench", "paceline bench --help");
        check("paceline help pull", "paceline pull --help");
        check("paceline help serve", "paceline help serve");
        check("paceline generate bench", "paceline generate bench");
    }
}
