//! The programs beside this one: whether they start, and of which version they are. A program whose
//! libraries are missing does not start.

use std::time::Duration;

use paceline_client::program::{complaint, output};
use tokio::time::timeout;

use super::Check;

/// Longest wait for a program. The longest work is to read the headers of a model's files.
pub(super) const LIMIT: Duration = Duration::from_secs(10);
/// Version of this program.
const OWN: &str = env!("CARGO_PKG_VERSION");
/// The programs that a service needs, which have versions, and the two that other commands start.
const PROGRAMS: [(&str, &str); 6] = [
    ("paceline-gateway", "--version"),
    ("paceline-supervisor", "--version"),
    ("paceline-target", "--version"),
    ("paceline-drafter", "--version"),
    ("paceline-bench", "--help"),
    ("paceline-pull", "--help"),
];

/// Starts each program once.
pub(super) async fn check() -> Vec<Check> {
    let mut found = vec![];
    for (name, flag) in PROGRAMS {
        found.extend(fault(name, flag, printed(name, flag).await));
    }
    if found.is_empty() {
        let fact = format!("paceline {OWN} and the {} programs beside it start", PROGRAMS.len());
        found.push(Check::ok("programs", fact));
    }
    found
}

/// What is wrong with a program by what it printed.
fn fault(name: &str, flag: &str, output: Result<String, String>) -> Option<Check> {
    let fact = match output {
        Err(why) => format!("{name} does not start: {why}"),
        Ok(text) => {
            let version = text.split_whitespace().last().filter(|_| flag == "--version");
            let other = version.filter(|version| *version != OWN)?;
            format!("expected {name} of version {OWN}, as paceline, found {other}")
        }
    };
    Some(Check::problem("programs", fact, "install Paceline anew, with its libraries"))
}

/// The output of a program beside this one, else why there is none.
async fn printed(name: &str, flag: &str) -> Result<String, String> {
    let output = match timeout(LIMIT, output(name, [flag], None)).await {
        Err(_) => return Err(format!("it did not end within {} s", LIMIT.as_secs())),
        Ok(output) => output.map_err(|failure| failure.message)?,
    };
    complaint(&output).map_or_else(|| Ok(String::from_utf8_lossy(&output.stdout).into_owned()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_another_version_and_one_that_does_not_start_are_problems() {
        let check = |flag, output: Result<&str, &str>, expected: Option<&str>| {
            let output = output.map(str::to_owned).map_err(str::to_owned);
            let found = fault("paceline-x", flag, output).map(|check| check.fact);
            assert_eq!(found.as_deref(), expected);
        };
        check("--version", Ok(&format!("paceline-x {OWN}\n")), None);
        check("--help", Ok("no version 9\n"), None);
        let other = format!("expected paceline-x of version {OWN}, as paceline, found 9.9.9");
        check("--version", Ok("paceline-x 9.9.9\n"), Some(&other));
        check("--help", Err("no libmlx.so"), Some("paceline-x does not start: no libmlx.so"));
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named() {
        let why = printed("paceline-nowhere", "").await.expect_err("not there");
        assert!(why.contains("paceline-nowhere beside this program"), "{why}");
    }
}
