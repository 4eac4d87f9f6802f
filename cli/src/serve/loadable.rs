//! Whether the model can be loaded, asked before a port opens. A person at a terminal reads the
//! reason at once, and in one line. Under a service manager the service starts all the same: its
//! status has the reason, and what is tried again.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use paceline_client::Screen;
use paceline_client::program::output;
use paceline_process::Loaded;
use paceline_system::Exit;
use serde_json::Value;

use super::refusal::{Refusal, refuse};

/// Longest wait for the worker that reads the headers of the model's files: the load itself reports
/// what a slower disk has.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);

/// Refuses a model that `paceline inspect` refuses, if a person reads the refusal.
pub(super) async fn check(loaded: &Loaded, model: &Path, screen: &Screen) -> Result<(), Refusal> {
    if !screen.shows_transient() {
        return Ok(());
    }
    let words = ["--inspect".as_ref(), model.as_os_str()];
    let inspected = output("paceline-target", words, Some(loaded));
    match tokio::time::timeout(CHECK_TIMEOUT, inspected).await.map(|output| fault(&output.ok()?)) {
        Ok(Some(fault)) => {
            let model = model.display();
            Err(refuse(Exit::Config, format!("the model {model} cannot be served: {fault}")))
        }
        // A missing program is reported by name elsewhere.
        _ => Ok(()),
    }
}

/// Why the model cannot be loaded, in one line.
fn fault(inspected: &Output) -> Option<String> {
    if !inspected.status.success() {
        let words = String::from_utf8_lossy(&inspected.stderr);
        return Some(words.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    let object: Value = serde_json::from_slice(&inspected.stdout).ok()?;
    let machine = &object["machine"];
    (machine["fits"] == false)
        .then(|| format!("it does not fit: {}", machine["reason"].as_str().unwrap_or("too large")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn a_refusal_is_one_line_and_a_model_that_fits_has_none() {
        let output = |code: i32, stdout: &str, stderr: &str| Output {
            status: ExitStatus::from_raw(code << 8),
            stdout: stdout.into(),
            stderr: stderr.into(),
        };
        let cases = [
            (output(1, "", "cannot read\n  config.json\n"), Some("cannot read config.json")),
            (output(0, r#"{"machine": {"fits": true, "reason": null}}"#, ""), None),
            (
                output(0, r#"{"machine": {"fits": false, "reason": "78.0 GiB"}}"#, ""),
                Some("it does not fit: 78.0 GiB"),
            ),
        ];
        for (inspected, expected) in cases {
            assert_eq!(fault(&inspected).as_deref(), expected);
        }
    }
}
