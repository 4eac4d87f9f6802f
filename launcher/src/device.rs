//! What the target worker says of the device, because it alone has the library that computes; and the
//! plan of a model there.

use std::path::PathBuf;

use paceline_checkpoint::plan::{CheckpointPlan, PlanOptions, ServedCheckpoint};
use paceline_client::Failure;
use paceline_client::program::{complaint, output};
use paceline_process::{Loaded, chain};
use paceline_proto::report::DeviceReport;

/// Asks by the settings of `loaded`. With a `model`, its directory, the worker also checks that it can
/// be loaded, and with a `drafter`, a directory or the name of the model's own head, whether that goes
/// with it.
///
/// # Errors
/// The worker's program is missing, or the model cannot be loaded.
pub async fn ask(
    loaded: &Loaded,
    model: Option<&str>,
    drafter: Option<&str>,
) -> Result<DeviceReport, Failure> {
    let flags = [("--model", model), ("--drafter", drafter)];
    let flags = flags.into_iter().filter_map(|(flag, value)| Some([flag, value?])).flatten();
    let output =
        output("paceline-target", ["--device"].into_iter().chain(flags), Some(loaded)).await?;
    if let Some(complaint) = complaint(&output) {
        return Err(Failure::refused_here(complaint));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Failure::refused_here(format!("the worker's report is no JSON: {error}")))
}

/// The plan of the model in `dir`. Its files are read on a thread of their own: a disk may be slow, and
/// a head that may be the embedding is long.
///
/// # Errors
/// The files are missing, broken, or of a family that is not served.
pub async fn plan_of(dir: PathBuf, options: PlanOptions) -> Result<CheckpointPlan, Failure> {
    let read = move || ServedCheckpoint::open(&dir, &options).and_then(|served| served.plan());
    let plan = tokio::task::spawn_blocking(read).await;
    let plan = plan.map_err(|error| Failure::refused_here(chain(&error)))?;
    plan.map_err(|error| Failure::refused_here(chain(&error)))
}
