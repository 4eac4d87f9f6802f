//! A report of a measurement: one JSON object with all figures, or tables with explanations.

use serde::Serialize;

use crate::failure::Failure;
use crate::screen::Screen;

/// All figures of a measurement.
pub trait Report: Serialize {
    /// The tables and their explanations.
    fn text(&self) -> String;

    /// Reasons why the command fails; empty if there is none.
    fn failures(&self) -> Vec<String>;

    /// The report as it is printed.
    fn printed(&self, json: bool) -> PrintedReport {
        let object = || serde_json::to_string(self).expect("a report is plain JSON") + "\n";
        PrintedReport { text: if json { object() } else { self.text() }, failures: self.failures() }
    }
}

/// A report as it is printed, and its reasons to fail.
pub struct PrintedReport {
    text: String,
    failures: Vec<String>,
}

impl PrintedReport {
    /// A report in the form `text`.
    pub fn new(text: String, failures: Vec<String>) -> Self {
        Self { text, failures }
    }

    /// Prints it.
    ///
    /// # Errors
    /// The output is closed, or `command` fails for the report's reasons.
    pub fn print(self, command: &str, screen: &mut Screen) -> Result<(), Failure> {
        screen.text(&self.text)?;
        match self.failures.as_slice() {
            [] => Ok(()),
            failures => Err(Failure::measuring(command, failures.join("; "))),
        }
    }
}
