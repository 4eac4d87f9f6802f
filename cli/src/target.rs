//! `paceline target swap`: has the target serve another checkpoint, and returns when it is loaded.

use std::time::Duration;

use paceline_client::channel::{answered, operations};
use paceline_client::{Failure, Screen};
use paceline_proto::v1::SwapTargetRequest;

use crate::args::{TargetCommand, TargetSwapArgs};
use crate::drafter::{absolute_directory, line};

/// Time that running requests get if none is named, as the supervisor has it.
const DRAIN: Duration = Duration::from_secs(30);
/// Longest time for the checks, the end of the earlier target and the load. The order stands after
/// it.
const LOAD: Duration = Duration::from_secs(1_800);
/// Additional wait for the answer.
const GRACE: Duration = Duration::from_secs(5);

/// Runs the command.
///
/// # Errors
/// No supervisor answers, the model cannot be loaded, or it does not fit the machine.
pub async fn run(command: &TargetCommand, screen: &mut Screen) -> Result<(), Failure> {
    let TargetCommand::Swap(TargetSwapArgs { model, timeout, config }) = command;
    let (mut client, place) = operations(config.config.as_deref())?;
    let drain = timeout.map_or(DRAIN, |seconds| Duration::from_secs(seconds.into()));
    let wait = drain + LOAD;
    let request = SwapTargetRequest {
        model: absolute_directory(model)?,
        drain_ms: timeout.map(|seconds| seconds.saturating_mul(1_000)),
        timeout_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
    };
    let answer = answered(client.swap_target(request), wait + GRACE, &place).await?;
    screen.text(&line("target", &answer.target.unwrap_or_default().into()))
}
