//! `paceline-target --inspect DIR`: what a model is and what it takes here, as one JSON object on
//! standard output. Reads headers and configurations, and no weight. `paceline inspect` shows it.

use std::io::Write as _;
use std::path::Path;

use paceline_checkpoint::name_of;
use paceline_link::handshake;
use paceline_models::load::{CheckpointPlan, FormatUse, StoragePlan};
use paceline_models::{
    DraftPlan, LoadError, ModelError, ProductsError, Quantize, device, plan_draft, plan_target_on,
    products,
};
use paceline_process::config::{Config, ConfigError, DrafterQuantize, MTP, TARGET_HEAD};
use paceline_process::{Loaded, chain};
use paceline_system::start;
use paceline_system::{Exit, platform};
use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::Hello;
use serde_json::{Value, json};

use crate::fit::{Fit, kv_store};
use crate::load::{device_choice, load_options, products_choice};
use crate::machine::{Machine, UnknownMachine};

/// Lengths of sequences of which the number that fits is shown, in positions: a short chat, and a
/// long prompt.
const SEQUENCE_LENGTHS: [i32; 2] = [256, 4_096];

/// Why a model cannot be described.
#[derive(Debug, thiserror::Error)]
enum InspectError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Device(#[from] paceline_models::DeviceError),
    #[error(transparent)]
    Products(#[from] ProductsError),
    #[error(transparent)]
    Model(#[from] LoadError),
    #[error("cannot plan the KV store")]
    Store(#[from] ModelError),
    #[error(transparent)]
    Machine(#[from] UnknownMachine),
}

/// What is described.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inspected<'a> {
    /// The model's directory.
    pub(crate) dir: &'a Path,
    /// A drafter that may go with it.
    pub(crate) drafter: Option<&'a Path>,
    /// Name of the machine that is meant; `None` is this one.
    pub(crate) machine: Option<&'a str>,
}

/// Prints the description, or why there is none.
pub(crate) fn run(inspected: &Inspected<'_>, config: Option<&Path>) -> Exit {
    start::settle();
    match describe(inspected, config) {
        Ok(object) => {
            // A reader that is gone needs no answer.
            let _ = writeln!(std::io::stdout(), "{object}");
            Exit::Asked
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{}", chain(&error));
            Exit::Unavailable
        }
    }
}

fn describe(inspected: &Inspected<'_>, config: Option<&Path>) -> Result<Value, InspectError> {
    let Inspected { dir, drafter, machine } = *inspected;
    let Loaded { config, .. } = Loaded::find(config)?;
    let machine = machine.map(Machine::named).transpose()?;
    // The machines that have names compute on their GPUs.
    let on_gpu = device::choose(device_choice(&config))? || machine.is_some();
    products::choose(products_choice(&config))?;
    let plan = plan_target_on(dir, load_options(&config), on_gpu)?;
    let usable = match &machine {
        Some(machine) => Some(machine.usable_bytes),
        None => platform::available_memory().map(device::usable_memory),
    };
    let fit = Fit::new(&plan, &config, usable)?;
    let refusal = fit.check().err().map(|error| error.to_string());
    let hello = plan.hello(dir, handshake::VERSION, config.target.max_sequences);
    Ok(json!({
        "model": model_object(dir, &plan),
        "formats": formats(&plan.storage),
        "kv": kv_object(&plan, &fit)?,
        "machine": {
            "device": if on_gpu { "gpu" } else { "cpu" },
            "products": plan.products.word(),
            "instructions": products::instructions().filter(|_| !on_gpu),
            "usable_bytes": usable,
            "fits": refusal.is_none(),
            "reason": refusal,
            "named": machine.map(|machine| named_object(&machine, &plan)),
        },
        "drafter": drafter.map(|drafter| drafter_object(drafter, dir, &config, &hello)),
    }))
}

/// What is known of a machine that was named, and the most tokens a second that its memory lets one
/// stream have at its beginning.
fn named_object(machine: &Machine, plan: &CheckpointPlan) -> Value {
    json!({
        "name": machine.name,
        "memory_bytes": machine.memory_bytes,
        "bandwidth_bytes_s": machine.bandwidth,
        "gpu_generation": machine.generation,
        "token_bytes": plan.token_bytes,
        "most_tokens_s": machine.most_tokens_s(plan.token_bytes),
    })
}

fn model_object(dir: &Path, plan: &CheckpointPlan) -> Value {
    json!({
        "name": name_of(dir),
        "path": dir.display().to_string(),
        "family": plan.family,
        "parameters": plan.storage.parameters(),
        "disk_bytes": plan.storage.disk_bytes(),
        "memory_bytes": plan.storage.memory_bytes(),
        "layers": plan.n_layers,
        "hidden_size": plan.hidden,
        "vocabulary": plan.vocab,
        "context": plan.context,
        "vision": plan.has_vision,
        "notes": plan.notes,
    })
}

fn kv_object(plan: &CheckpointPlan, fit: &Fit) -> Result<Value, ModelError> {
    let store = kv_store(plan)?;
    let position_bytes = store.row_bytes();
    let classes = store.class_bytes();
    let longest = classes.last().map(|(_, bytes)| *bytes);
    let positions = |bytes: u64| bytes.checked_div(position_bytes);
    let sequences = |bytes: u64| bytes.checked_div(longest?);
    // How many sequences of some lengths fit: short ones are bounded by their states.
    let fitting = |positions: i32| {
        let (_, bytes) = classes.iter().find(|(longest, _)| *longest >= positions)?;
        fit.kv_budget?.checked_div(*bytes)
    };
    let fits = |bytes: u64| fit.kv_budget.is_some_and(|budget| bytes <= budget);
    let longest_context = classes.iter().rev().find(|(_, bytes)| fits(*bytes));
    let by_length: Vec<Value> = SEQUENCE_LENGTHS
        .iter()
        .filter_map(|length| Some(json!({ "positions": length, "sequences": fitting(*length)? })))
        .collect();
    Ok(json!({
        "position_bytes": position_bytes,
        "state_bytes": store.state_bytes(),
        "window_bytes": store.window_bytes(),
        "budget_sequences": by_length,
        "shortest_sequence_bytes": fit.shortest,
        "longest_sequence_bytes": longest,
        "budget_bytes": fit.kv_budget,
        "budget_context": fit.kv_budget.map(|_| longest_context.map_or(0, |(longest, _)| *longest)),
        "budget_positions": fit.kv_budget.and_then(positions),
        "budget_longest_sequences": fit.kv_budget.and_then(sequences),
    }))
}

/// The formats of a checkpoint's tensors. All but the first name the tensors that have them.
fn formats(storage: &StoragePlan) -> Vec<Value> {
    let object = |(at, used): (usize, &FormatUse)| {
        let FormatUse { format, tensors, parameters, disk_bytes, memory_bytes, paths } = used;
        json!({
            "format": format,
            "tensors": tensors,
            "parameters": parameters,
            "disk_bytes": disk_bytes,
            "memory_bytes": memory_bytes,
            "default": at == 0,
            "paths": paths,
        })
    };
    storage.formats.iter().enumerate().map(object).collect()
}

/// Whether a drafter goes with the target in `target`: the check of the link's handshake. A drafter
/// that cannot be read does not fit, which is no error of the target. `drafter` is a directory, or
/// the name of the target's own head.
fn drafter_object(drafter: &Path, target: &Path, config: &Config, hello: &Hello) -> Value {
    let path = drafter.display().to_string();
    let (dir, kind) = match drafter == Path::new(TARGET_HEAD) {
        true => (target, MTP),
        false => (drafter, config.drafter.kind.as_str()),
    };
    let quantize = match config.drafter.quantize {
        DrafterQuantize::None => Quantize::None,
        DrafterQuantize::Q8 => Quantize::Q8,
        DrafterQuantize::Q4 => Quantize::Q4,
    };
    let planned = plan_draft(dir, kind, Some(target), quantize).and_then(|plan| {
        let welcome = plan.info.welcome(hello.version, TensorType::F32, String::new())?;
        Ok((plan, welcome))
    });
    let (DraftPlan { info, storage }, welcome) = match planned {
        Ok(planned) => planned,
        Err(error) => return json!({ "path": path, "fits": false, "reason": chain(&error) }),
    };
    let reason = handshake::check_welcome(hello, &welcome).err();
    json!({
        "path": path,
        "kind": info.kind,
        "block": info.block,
        "parameters": storage.parameters(),
        "disk_bytes": storage.disk_bytes(),
        "memory_bytes": storage.memory_bytes(),
        "fits": reason.is_none(),
        "reason": reason.map(|reason| reason.to_string()),
    })
}
