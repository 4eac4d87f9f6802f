//! The program `paceline-bench`, which `paceline bench` runs, measures on the user's own model and machine. It
//! starts a service of its own and uses it like any client.
//!
//! Benchmarks:
//! - [`lanes`] · each lane, and with `--sweep` whether the routed one is as fast as the better one
//! - [`contexts`] · `--contexts`: each lane by length of the prompt
//! - [`conversation`] · `--clean` and `--session`: turns that the prefix cache has or has not
//! - [`burst`] · `--burst`: the speed of one stream after many requests at once
//! - [`tables`] · `--tables` and `--roofline`: the target alone
//! - [`images`] · `--images`: images, and streams of text beside them
//!
//! What they share, each module without those above it:
//! - [`experiment`] · the frame: a plan, its cells, how a cell is measured, what is kept of it
//! - [`report`] · the frame of all reports, and [`output`], their forms
//! - [`service`] · the service that is measured, its drafter and its peak of memory
//! - [`prompts`] · kinds of prompts, made texts, the user's own
//! - [`same`] · equal tokens in all modes
//! - [`requests`] · times of requests; [`load`] · a fixed number of them at once
//! - [`progress`] · the line of progress
//! - [`mode`] · how requests are served; [`statistics`] · median and interval; [`random`] numbers
//! - [`checkpoint`] · facts of a model's files
//! - [`args`] · the flags

mod args;
mod burst;
mod contexts;
mod conversation;
mod experiment;
mod images;
mod lanes;
mod load;
mod mode;
mod output;
mod progress;
mod prompts;
mod random;
mod report;
mod requests;
mod same;
mod service;
mod statistics;
mod tables;

use std::ffi::OsString;
use std::process::ExitCode;

use paceline_client::failure::BENCH;
use paceline_client::own_service::report::PrintedReport;
use paceline_client::{Failure, Screen, program};

use self::args::BenchArgs;
use self::output::ReportForm;

/// Reads the command line of `paceline-bench`, measures, and returns the exit code.
pub fn main(words: Vec<OsString>) -> ExitCode {
    match program::parse::<BenchArgs>(words) {
        Ok(args) => program::run(async |screen| program::exit(run(&args, screen).await, screen)),
        Err(code) => code,
    }
}

/// Measures, and prints the report. With `--json` a failure is printed as an object too.
async fn run(args: &BenchArgs, screen: &mut Screen) -> Result<(), Failure> {
    let outcome = report(args, screen).await;
    program::show_object(outcome, args.output() == ReportForm::Json, screen)?.print(BENCH, screen)
}

async fn report(args: &BenchArgs, screen: &mut Screen) -> Result<PrintedReport, Failure> {
    args.check()?;
    match args {
        BenchArgs { images: true, .. } => images::bench(args, screen).await,
        BenchArgs { tables: true, .. } | BenchArgs { roofline: true, .. } => {
            tables::bench(args, screen).await
        }
        BenchArgs { clean: true, .. } | BenchArgs { session: true, .. } => {
            conversation::bench(args, screen).await
        }
        _ if !args.contexts.is_empty() => contexts::bench(args, screen).await,
        _ if !args.burst.is_empty() => burst::bench(args, screen).await,
        _ => lanes::bench(args, screen).await,
    }
}
