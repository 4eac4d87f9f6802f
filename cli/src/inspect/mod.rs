//! `paceline inspect`: what a model is and what it takes on this machine, or on one that is named. The
//! files of the model say it, on this machine or on a hub; the target worker adds what needs the library
//! that computes.

mod object;
mod text;

use std::path::Path;
use std::time::Duration;

use paceline_checkpoint::machine::Machine;
use paceline_checkpoint::plan::{CheckpointPlan, Fit};
use paceline_checkpoint::{ModelPlaces, ModelRef, name_of};
use paceline_client::own_service::settings::directory;
use paceline_client::program::output;
use paceline_client::{Failure, Screen};
use paceline_launcher::device;
use paceline_launcher::fetch::plan::ask;
use paceline_process::config::{LOOKUP, TARGET_HEAD};
use paceline_process::{Loaded, chain};
use paceline_proto::report::{DeviceReport, GatewayReport};
use serde_json::{Value, json};

use crate::args::InspectArgs;

pub use text::verdict;

/// Longest wait for the description of a model on a hub.
const HUB_TIMEOUT: Duration = Duration::from_secs(300);

/// Runs the command.
///
/// # Errors
/// The model is not there or cannot be read, or the worker's program is missing.
pub async fn run(args: &InspectArgs, screen: &mut Screen) -> Result<(), Failure> {
    let loaded = Loaded::find(args.show.config.config.as_deref())?;
    let object = match name_on_hub(&args.model) {
        Some(name) => of_hub(&name, args, &loaded).await?,
        None => of_directory(args, &loaded).await?,
    };
    let text = if args.show.json { format!("{object}\n") } else { text::text(&object) };
    screen.text(&text)?;
    served_here(&object)
}

/// The name of a model that is not on this machine, and that a hub may have.
fn name_on_hub(model: &str) -> Option<String> {
    let named = ModelRef::parse(model);
    let name = named.hub_name()?;
    ModelPlaces::of_user().locate(&named).is_err().then(|| name.to_string())
}

async fn of_directory(args: &InspectArgs, loaded: &Loaded) -> Result<Value, Failure> {
    let dir = directory("the model", &args.model)?;
    let lookup = args.drafter.as_deref() == Some(LOOKUP);
    let drafter = match args.drafter.as_deref().filter(|_| !lookup) {
        None => None,
        // The worker knows where the target is.
        Some(TARGET_HEAD) => Some(TARGET_HEAD.to_owned()),
        Some(name) => Some(directory("--drafter", name)?),
    };
    let mut object = described(&dir, drafter.as_deref(), args.machine.as_deref(), loaded).await?;
    let of_gateway = of_gateway(&dir, loaded).await;
    if object["model"]["vision"] == true {
        object["images"] = json!(of_gateway.as_ref().map(|report| &report.images));
    }
    if let Some(report) = of_gateway {
        object["template"] = json!({ "lacks": report.lacks });
    }
    if lookup {
        // It has no files to read, and goes with any model.
        object["drafter"] =
            json!({ "path": LOOKUP, "kind": LOOKUP, "memory_bytes": 0, "fits": true });
    }
    Ok(object)
}

/// A model that a hub has: by its config.json, the headers of its weights and their lengths.
async fn of_hub(name: &str, args: &InspectArgs, loaded: &Loaded) -> Result<Value, Failure> {
    if args.drafter.is_some() {
        let what = format!("--drafter: expected a model on this machine, found {name} on a hub");
        return Err(Failure::usage(format!("{what}; run `paceline pull {name}` first")));
    }
    let pull = ask(name, HUB_TIMEOUT).await.map_err(|mut failure| {
        // The name may have been meant as a path.
        failure.message += &format!("; a directory of this machine is written ./{name}");
        failure
    })?;
    let device = device::ask(loaded, None, None).await?;
    let (machine, device) = meant(args.machine.as_deref(), device)?;
    let plan = pull.of_target(&loaded.config.plan_options(&device));
    let plan = plan.map_err(|error| Failure::refused_here(chain(&error)))?;
    let unknown = || format!("{name} is a package, which says nothing of its model before a fetch");
    let plan = plan.ok_or_else(|| Failure::refused_here(unknown()))?;
    let mut object = with_plan(&plan, machine.as_ref(), &device, loaded);
    object["model"]["name"] = json!(name);
    object["fetch"] = json!({
        "hub": pull.hub,
        "files": pull.files.len(),
        "bytes": pull.fetch_bytes,
        "free_bytes": pull.free_bytes,
        "has_room": pull.has_room,
    });
    if !pull.has_room && machine.is_none() {
        object["machine"]["fits"] = json!(false);
        object["machine"]["reason"] = json!("there is no room on the disk for its files");
    }
    Ok(object)
}

/// The machine that `--machine` names, and the device that computes there.
fn meant(
    name: Option<&str>,
    device: DeviceReport,
) -> Result<(Option<Machine>, DeviceReport), Failure> {
    let machine = name.map(Machine::named).transpose();
    let machine = machine.map_err(|error| Failure::refused_here(error.to_string()))?;
    let Some(machine) = machine else { return Ok((None, device)) };
    // The machines that have names compute on their GPUs.
    let usable_bytes = Some(machine.usable_bytes);
    Ok((Some(machine), DeviceReport { on_gpu: true, usable_bytes, ..device }))
}

/// The description of the model in `dir`, and of a drafter beside it.
///
/// # Errors
/// The worker's program is missing, or the model cannot be loaded.
pub async fn described(
    dir: &str,
    drafter: Option<&str>,
    machine: Option<&str>,
    loaded: &Loaded,
) -> Result<Value, Failure> {
    let mut device = device::ask(loaded, Some(dir), drafter).await?;
    let of_drafter = device.drafter.take();
    let (machine, device) = meant(machine, device)?;
    let plan = device::plan_of(dir.into(), loaded.config.plan_options(&device)).await?;
    let mut object = with_plan(&plan, machine.as_ref(), &device, loaded);
    object["model"]["name"] = json!(name_of(Path::new(dir)));
    object["model"]["path"] = json!(dir);
    let of_drafter = drafter.zip(of_drafter);
    object["drafter"] =
        of_drafter.map_or(Value::Null, |(path, report)| object::of_drafter(path, &report));
    Ok(object)
}

/// The description without the model's name and place.
fn with_plan(
    plan: &CheckpointPlan,
    machine: Option<&Machine>,
    device: &DeviceReport,
    loaded: &Loaded,
) -> Value {
    let fit = Fit::new(plan, loaded.config.kv_memory(), device.usable_bytes);
    object::of_plan(plan, &fit, machine, device)
}

/// What the gateway says of the model in this directory; `None` if it is not there, or cannot tell.
async fn of_gateway(dir: &str, loaded: &Loaded) -> Option<GatewayReport> {
    let output = output("paceline-gateway", ["--check-model", dir], Some(loaded)).await.ok()?;
    output.status.success().then(|| serde_json::from_slice(&output.stdout).ok())?
}

/// Whether the model can be served here. The text has the reason.
fn served_here(object: &Value) -> Result<(), Failure> {
    match object["machine"]["fits"].as_bool() {
        Some(false) => Err(Failure::refused_here("")),
        _ => Ok(()),
    }
}
