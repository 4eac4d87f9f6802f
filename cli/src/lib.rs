//! `paceline`: the command line. Its commands are clients of the service like any other. Not here:
//! `serve` and `service` (`paceline-launcher`), models, routing, the meaning of tokens, what
//! `paceline-bench` needs as well (`paceline-client`).
//!
//! - [`args`] · commands and flags
//! - [`messages`], [`piped`], [`harmless`] · conversations from JSON, text of standard input, texts from outside
//! - [`gateway_http`] · what the gateway has on HTTP alone
//! - [`generate`], [`chat`], [`ask_once`] (`run`), [`selftest`] · requests, one command each
//! - [`status`], [`ps`], [`logs`], [`top`], [`events`], [`routes`], [`doctor`], [`diagnose`] · reports, one command each
//! - [`drafter`], [`target`], [`policy`], [`restart`], [`drain`], [`stop`] · orders, one command each
//! - [`config`] · settings and their sources
//! - [`launch`] · starts a coding agent with the served model
//! - [`key`] · makes API keys
//! - [`models`] with [`known_models`], [`rm`], [`inspect`] · checkpoints, one command each
//! - [`other_program`] · `bench` and `pull`, which programs of their own carry out
//! - [`completions`] · completions of shells and pages of the manual

pub mod args;
pub mod ask_once;
pub mod chat;
pub mod completions;
pub mod config;
pub mod diagnose;
pub mod doctor;
pub mod drafter;
pub mod drain;
pub mod events;
mod gateway_http;
pub mod generate;
mod harmless;
pub mod inspect;
pub mod key;
pub mod known_models;
pub mod launch;
pub mod logs;
pub mod messages;
pub mod models;
pub mod other_program;
pub mod piped;
pub mod policy;
pub mod ps;
pub mod restart;
pub mod rm;
pub mod routes;
pub mod selftest;
pub mod status;
pub mod step_costs;
pub mod stop;
pub mod target;
pub mod top;

use std::ffi::OsString;
use std::process::ExitCode;

use args::{Cli, Command};
use paceline_client::{Screen, program};
use paceline_launcher::{serve, service};

/// Reads the command line, runs the command and returns its exit code.
pub fn main(mut words: Vec<OsString>) -> ExitCode {
    other_program::ask_for_help(&mut words);
    match program::parse::<Cli>(words) {
        Ok(cli) => program::run(async |screen| run(cli.command, screen).await),
        Err(code) => code,
    }
}

async fn run(command: Command, screen: &mut Screen) -> ExitCode {
    let outcome = match command {
        Command::Serve(args) => match serve::run(&args, screen).await {
            Ok(exit) => return exit.into(),
            Err(failure) => Err(failure),
        },
        Command::Generate(args) => generate::run(&args, screen).await,
        Command::Chat(args) => chat::run(&args, screen).await,
        Command::Launch(args) => launch::run(&args, screen).await,
        Command::Status(args) => status::run(&args, screen).await,
        Command::Ps(args) => ps::run(&args, screen).await,
        Command::Stop(args) => stop::run(&args, screen).await,
        Command::Logs(args) => logs::run(&args),
        Command::Run(args) => match ask_once::with_model(*args) {
            Ok(args) => ask_once::run(&args, screen).await,
            Err(failure) => Err(failure),
        },
        Command::Top(args) => top::run(&args, screen).await,
        Command::Config(args) => config::run(&args, screen).await,
        Command::Service(args) => service::run(&args, screen).await,
        Command::Doctor(args) => doctor::run(&args, screen).await,
        Command::Diagnose(args) => diagnose::run(&args, screen).await,
        Command::Drafter(args) => drafter::run(&args, screen).await,
        Command::Target(args) => target::run(&args, screen).await,
        Command::Policy(args) => policy::run(&args, screen).await,
        Command::Routes(args) => routes::run(&args, screen).await,
        Command::Events(args) => events::run(&args, screen).await,
        Command::Restart(args) => restart::run(&args, screen).await,
        Command::Drain(args) => drain::run(&args, screen).await,
        Command::Key(args) => key::run(&args, screen),
        Command::Pull(args) => other_program::run("paceline-pull", &args.words),
        Command::Models(args) => models::run(&args, screen).await,
        Command::Rm(args) => rm::run(&args, screen).await,
        Command::Inspect(args) => inspect::run(&args, screen).await,
        Command::Completions { shell } => completions::run(shell, screen),
        Command::Man { dir } => completions::man(dir.as_deref(), screen),
        Command::Selftest(args) => selftest::run(&args, screen).await,
        Command::Bench(args) => other_program::run("paceline-bench", &args.words),
    };
    program::exit(outcome, screen)
}
