//! Whether the target computes on a GPU, as its worker says. This program reads memory with the
//! processor, whose bandwidth says nothing about a GPU.

use std::process::{Command, Stdio};

use paceline_client::Failure;
use paceline_client::own_service::settings::Settings;
use paceline_client::program::beside;
use serde_json::Value;

use crate::report::failed;

/// Asks the worker's program by these settings, without loading a weight.
///
/// # Errors
/// The program is missing, or its answer has no device.
pub fn on_gpu(settings: &Settings) -> Result<bool, Failure> {
    let program = beside("paceline-target")?;
    let mut command = Command::new(&program);
    command.args(["--inspect", &settings.config.target.model]).stdin(Stdio::null());
    command.envs(settings.files.iter().map(|(name, value)| (name, value)));
    let output = command
        .output()
        .map_err(|error| failed(format!("cannot start {}: {error}", program.display())))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim()));
    }
    is_gpu(&output.stdout)
}

fn is_gpu(answer: &[u8]) -> Result<bool, Failure> {
    let object: Value = serde_json::from_slice(answer)
        .map_err(|error| failed(format!("the worker's answer is no JSON: {error}")))?;
    match object["machine"]["device"].as_str() {
        Some("gpu") => Ok(true),
        Some("cpu") => Ok(false),
        found => {
            Err(failed(format!("expected the device gpu or cpu of the worker, found {found:?}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_the_one_that_the_worker_names() {
        let read = |text: &str| is_gpu(text.as_bytes());
        assert_eq!(read(r#"{"machine": {"device": "gpu"}}"#).ok(), Some(true));
        assert_eq!(read(r#"{"machine": {"device": "cpu"}}"#).ok(), Some(false));
        for text in [r#"{"machine": {"device": "tpu"}}"#, "{}", "no JSON"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
