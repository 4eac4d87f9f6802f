//! `paceline restart`: ends a process and returns when the process that was started in its place is
//! ready.

use std::path::Path;
use std::time::Duration;

use paceline_client::channel::{answered, operations};
use paceline_client::{Failure, Screen};
use paceline_proto::convert::service::ProcessReport;
use paceline_proto::v1::{self, ProcessState, RestartRequest};
use paceline_system::Clock;

use crate::args::{Process, RestartArgs};
use crate::drafter::{answer_timeout, limit, line, timeout_ms};
use crate::status;

/// Interval between two tries to reach the next supervisor.
const STATUS_POLL: Duration = Duration::from_millis(50);

/// Runs the command.
///
/// # Errors
/// No supervisor answers, the configuration cannot be used, or the order is not carried out in
/// time.
pub async fn run(args: &RestartArgs, screen: &mut Screen) -> Result<(), Failure> {
    screen.text(&carry_out(args).await?)
}

/// Restarts the process, and returns a line about it as it is then.
///
/// # Errors
/// As [`run`].
pub async fn carry_out(args: &RestartArgs) -> Result<String, Failure> {
    let (name, process) = match args.process {
        Process::Gateway => ("gateway", v1::Process::Gateway),
        Process::Target => ("target", v1::Process::Target),
        Process::Drafter => ("drafter", v1::Process::Drafter),
        Process::Supervisor => ("supervisor", v1::Process::Supervisor),
    };
    let clock = Clock::start();
    let config = args.wait.config.config.as_deref();
    let (mut client, place) = operations(config)?;
    let request = RestartRequest {
        process: process.into(),
        now: args.now,
        timeout_ms: timeout_ms(&args.wait),
        drain: args.drain,
    };
    let answer = answered(client.restart(request), answer_timeout(&args.wait), &place).await?;
    let restarted = match args.process {
        Process::Supervisor => successor(config, answer.term, &clock, limit(&args.wait)).await?,
        _ => answer.process.unwrap_or_default().into(),
    };
    Ok(line(name, &restarted))
}

/// Waits for a supervisor of a later term than `term` whose target serves.
async fn successor(
    config: Option<&Path>,
    term: u64,
    clock: &Clock,
    limit: Duration,
) -> Result<ProcessReport, Failure> {
    let mut last = "none answers".to_owned();
    loop {
        // The socket is removed and made again, so each try connects anew.
        if let Ok(status) = status::ask(config).await
            && status.term > term
        {
            match status.target.state {
                ProcessState::Ready => return Ok(status.supervisor),
                ProcessState::Failed => {
                    let reason = status.target.reason.unwrap_or_default();
                    let message =
                        format!("the next supervisor is there, its target is failed: {reason}");
                    return Err(Failure::said_no(message));
                }
                state => {
                    let (term, state) = (status.term, state.word());
                    last = format!("one of term {term} is there, its target is {state}");
                }
            }
        }
        if clock.now().0 >= limit.as_millis() as u64 {
            let message = format!(
                "no supervisor of a term after {term} with a ready target within {} s: {last}",
                limit.as_secs()
            );
            return Err(Failure::said_no(message));
        }
        tokio::time::sleep(STATUS_POLL).await;
    }
}
