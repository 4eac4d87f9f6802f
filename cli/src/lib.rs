//! `paceline`: the command line. Its commands are clients of the service like any other; `serve` is
//! the parent process of gateway and supervisor. Not here: models, routing, the meaning of tokens.
//!
//! - [`args`] · commands and flags
//! - [`messages`] · conversations from JSON
//! - [`client`] · the connection to the service
//! - [`generate`], [`chat`], [`bench`], [`selftest`] · requests, one command each
//! - [`status`], [`events`], [`routes`] · reports, one command each
//! - [`drafter`], [`policy`], [`restart`], [`drain`] · orders, one command each
//! - [`key`] · makes API keys
//! - [`pull`], [`models`], [`inspect`] · checkpoints, one command each
//! - [`answer`] · a stream of responses as one answer
//! - [`serve`] · the parent process
//! - [`failure`] · why a command failed, and its exit code
//! - [`screen`] · the only module that prints

pub mod answer;
pub mod args;
pub mod bench;
pub mod chat;
pub mod client;
pub mod drafter;
pub mod drain;
pub mod events;
pub mod failure;
pub mod generate;
pub mod inspect;
pub mod key;
pub mod later;
pub mod messages;
pub mod models;
pub mod policy;
pub mod pull;
pub mod restart;
pub mod routes;
pub mod screen;
pub mod selftest;
pub mod serve;
pub mod status;
pub mod step_costs;

use std::process::ExitCode;

use args::{Cli, Command};
use clap::Parser as _;
use failure::Failure;
use screen::Screen;

/// Reads the command line, runs the command and returns its exit code.
pub fn main(words: impl IntoIterator<Item = std::ffi::OsString>) -> ExitCode {
    let command = match Cli::try_parse_from(words) {
        Ok(cli) => cli.command,
        Err(error) => {
            // Help and version are answers, not errors. A closed terminal is no failure.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { failure::USAGE } else { 0 });
        }
    };
    paceline_process::lifecycle::settle();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            Screen::standard().complain(&format!("cannot start: {error}"));
            return paceline_process::Exit::Bug.into();
        }
    };
    let mut screen = Screen::standard();
    let code = runtime.block_on(run(command, &mut screen));
    // A thread may still wait for a line of standard input; it ends with the process.
    runtime.shutdown_background();
    code
}

async fn run(command: Command, screen: &mut Screen) -> ExitCode {
    let outcome = match command {
        Command::Serve(args) => return serve::run(&args, screen).await.into(),
        Command::Generate(args) => generate::run(&args, screen).await,
        Command::Chat(args) => chat::run(&args, screen).await,
        Command::Status(args) => status::run(&args, screen).await,
        Command::Drafter(args) => drafter::run(&args, screen).await,
        Command::Policy(args) => policy::run(&args, screen).await,
        Command::Routes(args) => routes::run(&args, screen).await,
        Command::Events(args) => events::run(&args, screen).await,
        Command::Restart(args) => restart::run(&args, screen).await,
        Command::Drain(args) => drain::run(&args, screen).await,
        Command::Key(args) => key::run(&args, screen),
        Command::Pull(args) => pull::run(&args),
        Command::Models(args) => models::run(&args, screen),
        Command::Inspect(args) => inspect::run(&args, screen),
        Command::Selftest(args) => selftest::run(&args, screen).await,
        Command::Bench(args) => bench::run(&args, screen).await,
        other => Err(later::refuse(&other)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure, screen),
    }
}

fn report(failure: &Failure, screen: &mut Screen) -> ExitCode {
    if !failure.message.is_empty() {
        screen.complain(&failure.to_string());
    }
    ExitCode::from(failure.exit)
}
