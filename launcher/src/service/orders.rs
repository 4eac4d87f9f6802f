//! Orders to the service manager, as commands that are found in `PATH`.

use std::fmt;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use paceline_client::Failure;

/// Longest excerpt of a command's complaint in an error, in characters.
const MOST_COMPLAINT: usize = 2_000;

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    words: Vec<String>,
    may_fail: bool,
}

impl Order {
    /// A command that has to succeed.
    pub fn new(words: &[&str]) -> Self {
        Self { words: words.iter().map(|word| (*word).to_owned()).collect(), may_fail: false }
    }

    /// Shows the last lines of files, and with `follow` what is written next.
    pub fn tail(files: &[PathBuf], follow: bool, lines: u32) -> Self {
        let lines = lines.to_string();
        let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        let mut words = vec!["tail", "-n", &lines];
        // By name: a log that is full is renamed.
        words.extend(follow.then_some("-F"));
        words.extend(files.iter().map(String::as_str));
        Self::new(&words)
    }

    /// The command, whose failure means that there was nothing to do.
    pub fn may_fail(mut self) -> Self {
        self.may_fail = true;
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).stdin(Stdio::null());
        command
    }

    fn cannot_run(&self, error: &std::io::Error) -> Failure {
        Failure::refused_here(format!(
            "cannot run `{self}`: {error}; expected {} in $PATH",
            self.words[0]
        ))
    }

    /// Carries it out; its standard output. `None` if it failed.
    ///
    /// # Errors
    /// The program is not there.
    pub async fn answer(&self) -> Result<Option<String>, Failure> {
        let output = tokio::process::Command::from(self.command()).output().await;
        let output = output.map_err(|error| self.cannot_run(&error))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(output.status.success().then_some(text))
    }

    /// Carries it out.
    ///
    /// # Errors
    /// It fails, and may not.
    pub async fn carry_out(&self) -> Result<(), Failure> {
        let output = tokio::process::Command::from(self.command()).output().await;
        let output = output.map_err(|error| self.cannot_run(&error))?;
        if output.status.success() || self.may_fail {
            return Ok(());
        }
        let complaint = String::from_utf8_lossy(&output.stderr);
        let complaint: String = complaint.trim().chars().take(MOST_COMPLAINT).collect();
        Err(Failure::refused_here(format!("`{self}` failed ({}): {complaint}", output.status)))
    }

    /// Becomes this command. Returns only if it cannot be started.
    pub fn become_it(&self) -> Failure {
        let error = self.command().exec();
        self.cannot_run(&error)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = self.words.iter().map(|word| match word.contains(' ') {
            true => format!("'{word}'"),
            false => word.clone(),
        });
        f.write_str(&quoted.collect::<Vec<_>>().join(" "))
    }
}

/// Carries out all, in order.
///
/// # Errors
/// One fails, and may not; the later ones are not carried out then.
pub async fn carry_out(orders: &[Order]) -> Result<(), Failure> {
    for order in orders {
        order.carry_out().await?;
    }
    Ok(())
}
