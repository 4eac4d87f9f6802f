//! `paceline drain`: the service takes nothing new, and the command returns when nothing runs;
//! `--undo` takes requests again.

use paceline_client::channel::{answered, operations};
use paceline_client::{Failure, Screen};
use paceline_proto::v1::DrainRequest;

use crate::args::DrainArgs;
use crate::drafter::{answer_timeout, timeout_ms};

/// Runs the command.
///
/// # Errors
/// No supervisor answers, the configuration cannot be used, or requests run for longer than is
/// waited.
pub async fn run(args: &DrainArgs, screen: &mut Screen) -> Result<(), Failure> {
    screen.text(carry_out(args).await?)
}

/// Drains the service or undoes it, and returns a line about that.
///
/// # Errors
/// As [`run`].
pub async fn carry_out(args: &DrainArgs) -> Result<&'static str, Failure> {
    let (mut client, place) = operations(args.wait.config.config.as_deref())?;
    let order = client.drain(DrainRequest { undo: args.undo, timeout_ms: timeout_ms(&args.wait) });
    answered(order, answer_timeout(&args.wait), &place).await?;
    Ok(if args.undo {
        "requests are taken again\n"
    } else {
        "drained: nothing runs, and nothing new is taken\n"
    })
}
