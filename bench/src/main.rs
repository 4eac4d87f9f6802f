//! `paceline-bench`, which `paceline bench` runs, measures on the user's own model and machine. It
//! starts a service of its own and uses it like any client.
//!
//! - [`lanes`] · each lane, and with `--sweep` whether the routed one is as fast as the better one
//! - [`tables`] · `--tables` and `--roofline`: the target alone
//! - [`images`] · `--images`: images, and streams of text beside them
//! - [`report`] · the frame and the printer of all reports
//! - [`statistics`] · median and interval
//! - [`load`] · requests of which a fixed number runs at once
//! - [`args`] · the flags

mod args;
mod images;
mod lanes;
mod load;
mod report;
mod statistics;
mod tables;

use std::process::ExitCode;

use paceline_client::failure::BENCH;
use paceline_client::{Failure, Screen, program};

use self::args::BenchArgs;

fn main() -> ExitCode {
    match program::parse::<BenchArgs>(std::env::args_os()) {
        Ok(args) => program::run(async |screen| program::exit(run(&args, screen).await, screen)),
        Err(code) => code,
    }
}

/// Measures, and prints the report. With `--json` a failure is printed as an object too.
async fn run(args: &BenchArgs, screen: &mut Screen) -> Result<(), Failure> {
    let outcome = if args.images {
        images::bench(args, screen).await
    } else if args.tables || args.roofline {
        tables::bench(args, screen).await
    } else {
        lanes::bench(args, screen).await
    };
    program::show_object(outcome, args.json, screen)?.print(BENCH, screen)
}
