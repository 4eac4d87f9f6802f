//! `paceline ps`: the processes that run, a line each. `paceline status` shows more.

use paceline_client::args::ConfigArg;
use paceline_client::print::bytes;
use paceline_client::{Failure, Screen};
use paceline_proto::convert::service::ServiceStatus;

use crate::status::{aligned, ask, uptime};

/// Runs the command.
///
/// # Errors
/// No supervisor answers, or the configuration cannot be used.
pub async fn run(args: &ConfigArg, screen: &mut Screen) -> Result<(), Failure> {
    let status = ask(args.config.as_deref()).await?;
    screen.text(&table(&status))
}

/// A line for each process that runs.
fn table(status: &ServiceStatus) -> String {
    let head = ["MODEL", "PROCESS", "PID", "STATE", "MEMORY", "UP"].map(str::to_owned);
    let mut rows = vec![head];
    for (name, process) in status.processes() {
        let Some(pid) = process.pid else { continue };
        let held = match name {
            "target" => status.memory.target_bytes,
            "drafter" => status.memory.drafter_bytes,
            _ => 0,
        };
        rows.push([
            process.model.clone().unwrap_or_else(|| "-".to_owned()),
            name.to_owned(),
            pid.to_string(),
            process.state.word(),
            if held == 0 { "-".to_owned() } else { bytes(held) },
            uptime(process.uptime_s),
        ]);
    }
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use paceline_proto::v1::{MemoryStatus, ProcessState, ProcessStatus, StatusResponse};

    use super::*;

    #[test]
    fn each_process_that_runs_has_a_line() {
        let ready = |pid, model: &str| {
            let state = ProcessState::Ready.into();
            Some(ProcessStatus { state, pid, model: model.into(), ..ProcessStatus::default() })
        };
        let status = StatusResponse {
            gateway: ready(7, ""),
            target: ready(8, "/m"),
            drafter: ready(0, "/d"),
            memory: Some(MemoryStatus { target_bytes: 3 << 20, ..MemoryStatus::default() }),
            ..StatusResponse::default()
        };
        assert_eq!(
            table(&status.into()),
            "MODEL  PROCESS  PID  STATE  MEMORY   UP\n\
             -      gateway  7    ready  -        0 s\n\
             /m     target   8    ready  3.0 MiB  0 s\n"
        );
    }
}
