//! Whether the target computes on a GPU, as its worker says. This program reads memory with the
//! processor, whose bandwidth says nothing about a GPU.

use std::process::{Command, Stdio};

use paceline_client::Failure;
use paceline_client::own_service::settings::Settings;
use paceline_client::program::beside;
use paceline_proto::report::DeviceReport;

use crate::report::failed;

/// Asks the worker's program by these settings.
///
/// # Errors
/// The program is missing, or its answer is no report.
pub fn on_gpu(settings: &Settings) -> Result<bool, Failure> {
    let program = beside("paceline-target")?;
    let mut command = Command::new(&program);
    command.arg("--device").stdin(Stdio::null());
    command.envs(settings.files.iter().map(|(name, value)| (name, value)));
    let output = command
        .output()
        .map_err(|error| failed(format!("cannot start {}: {error}", program.display())))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim()));
    }
    let report: DeviceReport = serde_json::from_slice(&output.stdout)
        .map_err(|error| failed(format!("the worker's report is no JSON: {error}")))?;
    Ok(report.on_gpu)
}
