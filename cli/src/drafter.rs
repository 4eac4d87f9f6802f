//! `paceline drafter start|stop|swap`: sends an order to the supervisor. Returns when it is carried
//! out, or with the reason why it is not.

use std::path::absolute;
use std::time::Duration;

use paceline_checkpoint::{ModelNotFound, ModelPlaces, ModelRef};
use paceline_client::channel::{answered, operations};
use paceline_client::print::process_model;
use paceline_client::{Failure, Screen};
use paceline_process::chain;
use paceline_process::config::WITHOUT_DIRECTORY;
use paceline_proto::convert::service::ProcessReport;
use paceline_proto::v1::{StartDrafterRequest, StopDrafterRequest, SwapDrafterRequest};

use crate::args::{DrafterCommand, WaitArgs};

/// Default wait of the service.
pub const WAIT: Duration = Duration::from_secs(120);
/// Additional wait for its answer.
const GRACE: Duration = Duration::from_secs(5);

/// Runs the command.
///
/// # Errors
/// No supervisor answers, the configuration cannot be used, or the order is not carried out.
pub async fn run(command: &DrafterCommand, screen: &mut Screen) -> Result<(), Failure> {
    screen.text(&carry_out(command).await?)
}

/// Carries out the order, and returns a line about the drafter as it is then.
///
/// # Errors
/// As [`run`].
pub async fn carry_out(command: &DrafterCommand) -> Result<String, Failure> {
    let (wait, model) = match command {
        DrafterCommand::Start(change) | DrafterCommand::Swap(change) => {
            (&change.wait, directory(change.model.as_deref())?)
        }
        DrafterCommand::Stop(wait) => (wait, String::new()),
    };
    let (mut client, place) = operations(wait.config.config.as_deref())?;
    let timeout_ms = timeout_ms(wait);
    let order = async {
        match command {
            DrafterCommand::Start(_) => {
                client.start_drafter(StartDrafterRequest { model, timeout_ms }).await
            }
            DrafterCommand::Stop(_) => client.stop_drafter(StopDrafterRequest { timeout_ms }).await,
            DrafterCommand::Swap(_) => {
                client.swap_drafter(SwapDrafterRequest { model, timeout_ms }).await
            }
        }
    };
    let drafter = answered(order, answer_timeout(wait), &place).await?.drafter.unwrap_or_default();
    Ok(line("drafter", &drafter.into()))
}

/// The wait for an answer to an order, for which the service waits itself.
pub fn answer_timeout(wait: &WaitArgs) -> Duration {
    limit(wait) + GRACE
}

/// The wait of an order.
pub fn limit(wait: &WaitArgs) -> Duration {
    wait.timeout.map_or(WAIT, |seconds| Duration::from_secs(seconds.into()))
}

/// The absolute directory of the model: the service has another working directory. Empty if none is
/// named. Drafters without a directory of their own keep their names. Whether a directory exists is
/// the service's to check.
fn directory(model: Option<&str>) -> Result<String, Failure> {
    match model {
        None => Ok(String::new()),
        Some(name) if WITHOUT_DIRECTORY.contains(&name) => Ok(name.to_owned()),
        Some(model) => absolute_directory(model),
    }
}

/// The absolute directory of a model that `--model` names, whether it exists or not.
///
/// # Errors
/// The model was not pulled, or the path is not UTF-8.
pub fn absolute_directory(model: &str) -> Result<String, Failure> {
    let bad = |what: String| Failure::usage(format!("--model: {what}"));
    let model = ModelRef::parse(model);
    let dir = match ModelPlaces::of_user().locate(&model) {
        Ok(dir) => dir,
        Err(ModelNotFound::Directory(dir)) => {
            absolute(&dir).map_err(|cause| bad(cause.to_string()))?
        }
        Err(ModelNotFound::Word(dir)) => absolute(&dir).map_err(|cause| bad(cause.to_string()))?,
        Err(error) => return Err(bad(chain(&error))),
    };
    dir.into_os_string()
        .into_string()
        .map_err(|dir| bad(format!("expected a path in UTF-8, found {dir:?}")))
}

/// The wait in milliseconds, as the order has it; 0 means the default.
pub fn timeout_ms(wait: &WaitArgs) -> u32 {
    wait.timeout.map_or(0, |seconds| seconds.saturating_mul(1_000))
}

/// A line about a process as it is now.
pub fn line(name: &str, process: &ProcessReport) -> String {
    let model = process_model(process);
    let model = if model.is_empty() { model } else { format!(": {model}") };
    format!("{name} {}{model}\n", process.state.word())
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_proto::v1::ProcessState;

    #[test]
    fn directories_are_made_absolute_and_seconds_milliseconds() {
        assert_eq!(directory(Some("/tmp")).ok().as_deref(), Some("/tmp"));
        // The tests run in the folder of the crate.
        let own = directory(Some("./src")).expect("there");
        assert!(own.starts_with('/') && own.ends_with("/src"), "{own}");
        assert_eq!(directory(None).expect("none"), "");
        assert_eq!(directory(Some("/nowhere/d")).ok().as_deref(), Some("/nowhere/d"));
        assert!(directory(Some("d")).is_ok_and(|dir| dir.starts_with('/') && dir.ends_with("/d")));
        let refused = directory(Some("no-such/model")).expect_err("not pulled").message;
        assert!(refused.contains("--model") && refused.contains("paceline pull no-such/model"));
        assert_eq!(timeout_ms(&WaitArgs::default()), 0);
        assert_eq!(timeout_ms(&WaitArgs { timeout: Some(5), ..Default::default() }), 5_000);
    }

    #[test]
    fn the_end_is_one_line() {
        let ready = ProcessReport {
            state: ProcessState::Ready,
            model: Some("/models/d".into()),
            weight_bytes: 3 << 20,
            ..Default::default()
        };
        assert_eq!(line("drafter", &ready), "drafter ready: /models/d (3.0 MiB)\n");
        let absent = ProcessReport { state: ProcessState::Absent, ..Default::default() };
        assert_eq!(line("drafter", &absent), "drafter absent\n");
    }
}
