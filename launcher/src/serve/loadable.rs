//! Whether the model can be loaded, asked before a port opens. A person at a terminal reads the
//! reason at once, and in one line. Under a service manager the service starts all the same: its
//! status has the reason, and what is tried again.

use std::path::Path;
use std::time::Duration;

use super::refusal::{Refusal, refuse};
use crate::device;
use paceline_checkpoint::plan::Fit;
use paceline_client::program::beside;
use paceline_client::{Failure, Screen};
use paceline_process::Loaded;
use paceline_vocabulary::Exit;

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
    // A slow disk is no fault.
    let fault = tokio::time::timeout(CHECK_TIMEOUT, fault(loaded, dir)).await.unwrap_or_default();
    match fault {
        Some(fault) => {
            let model = model.display();
            Err(refuse(Exit::Config, format!("the model {model} cannot be served: {fault}")))
        }
        None => Ok(()),
    }
}

/// Why the model cannot be loaded, in one line.
async fn fault(loaded: &Loaded, dir: &str) -> Option<String> {
    let fit = match fit(loaded, dir).await {
        Ok(fit) => fit,
        Err(failure) => return Some(in_one_line(&failure.message)),
    };
    let refused = fit.check().err()?;
    Some(refused.to_string())
}

/// What the model takes here, and what there is.
///
/// # Errors
/// It cannot be loaded.
async fn fit(loaded: &Loaded, dir: &str) -> Result<Fit, Failure> {
    let device = device::ask(loaded, Some(dir), None).await?;
    let plan = device::plan_of(dir.into(), loaded.config.plan_options(&device)).await?;
    Ok(Fit::new(&plan, loaded.config.kv_memory(), device.usable_bytes))
}

fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_one_line() {
        assert_eq!(in_one_line("cannot read\n  config.json\n"), "cannot read config.json");
    }
}
