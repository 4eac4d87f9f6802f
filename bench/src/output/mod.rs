//! The forms of a report: text, JSON, CSV, Markdown, and llama-bench's JSON.
//!
//! [`sheet`] rows and columns of a report, as CSV and Markdown │ [`llama_bench`] its speeds as
//! llama-bench writes them

pub mod llama_bench;
pub mod sheet;

use clap::ValueEnum;

/// The form of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReportForm {
    /// Tables and their explanations
    #[default]
    Text,
    /// One object with all figures of each run
    Json,
    /// A line for each row of the tables, medians and the ends of their intervals in columns
    Csv,
    /// Tables to be pasted into an issue
    Markdown,
    /// The array that `llama-bench -o json` writes; of --contexts and --tables
    LlamaBench,
}
