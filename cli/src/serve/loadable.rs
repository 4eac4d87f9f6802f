//! Whether the model can be loaded, asked before a port opens. A person at a terminal reads the
//! reason at once, and in one line. Under a service manager the service starts all the same: its
//! status has the reason, and what is tried again.

use std::path::Path;
use std::time::Duration;

use paceline_client::program::beside;
use paceline_client::{Failure, Screen};
use paceline_process::Loaded;
use paceline_system::Exit;
use serde_json::Value;

use super::refusal::{Refusal, refuse};
use crate::inspect::described;

/// Longest wait for the reading of the headers of the model's files: the load itself reports what a
/// slower disk has.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);

/// Refuses a model that `paceline inspect` refuses, if a person reads the refusal.
pub(super) async fn check(loaded: &Loaded, model: &Path, screen: &Screen) -> Result<(), Refusal> {
    let (true, Some(dir)) = (screen.shows_transient(), model.to_str()) else { return Ok(()) };
    if beside("paceline-target").is_err() {
        // A missing program is reported by name elsewhere.
        return Ok(());
    }
    let described = described(dir, None, None, loaded);
    // A slow disk is no fault.
    let Ok(described) = tokio::time::timeout(CHECK_TIMEOUT, described).await else { return Ok(()) };
    match fault(described) {
        Some(fault) => {
            let model = model.display();
            Err(refuse(Exit::Config, format!("the model {model} cannot be served: {fault}")))
        }
        None => Ok(()),
    }
}

/// Why the model cannot be loaded, in one line.
fn fault(described: Result<Value, Failure>) -> Option<String> {
    match described {
        Err(failure) => Some(failure.message.split_whitespace().collect::<Vec<_>>().join(" ")),
        Ok(object) => {
            let machine = &object["machine"];
            let reason = machine["reason"].as_str().unwrap_or("too large");
            (machine["fits"] == false).then(|| format!("it does not fit: {reason}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_is_one_line_and_a_model_that_fits_has_none() {
        let fits = |fits: bool, reason: Option<&str>| {
            Ok(json!({ "machine": { "fits": fits, "reason": reason } }))
        };
        for (described, expected) in [
            (
                Err(Failure::refused_here("cannot read\n  config.json\n")),
                Some("cannot read config.json"),
            ),
            (fits(true, None), None),
            (fits(false, Some("78.0 GiB")), Some("it does not fit: 78.0 GiB")),
        ] {
            assert_eq!(fault(described).as_deref(), expected);
        }
    }
}
