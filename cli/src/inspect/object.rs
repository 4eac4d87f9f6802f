//! The description of a model as one JSON object.

use paceline_checkpoint::machine::Machine;
use paceline_checkpoint::plan::{CheckpointPlan, Fit, FormatUse, StoragePlan};
use paceline_proto::report::{DeviceReport, DrafterReport};
use serde_json::{Value, json};

/// Lengths of sequences of which the number that fits is shown, in positions: a short chat, and a
/// long prompt.
const SEQUENCE_LENGTHS: [i32; 2] = [256, 4_096];

/// What a model takes on a device, or on a machine that is named.
pub(super) fn of_plan(
    plan: &CheckpointPlan,
    fit: &Fit,
    machine: Option<&Machine>,
    device: &DeviceReport,
) -> Value {
    let refusal = fit.check().err().map(|error| error.to_string());
    json!({
        "model": model(plan),
        "formats": formats(&plan.storage),
        "kv": kv(plan, fit),
        "machine": {
            "device": if device.on_gpu { "gpu" } else { "cpu" },
            "products": plan.products.word(),
            "instructions": device.instructions.as_ref().filter(|_| !device.on_gpu),
            "usable_bytes": fit.usable,
            "fits": refusal.is_none(),
            "reason": refusal,
            "named": machine.map(|machine| named(machine, plan)),
        },
        "drafter": Value::Null,
    })
}

/// A drafter beside a model.
pub(super) fn of_drafter(path: &str, report: &DrafterReport) -> Value {
    let mut object = serde_json::to_value(report).unwrap_or_default();
    object["path"] = json!(path);
    object
}

/// What is known of a machine that was named, and the most tokens a second that its memory lets one
/// stream have at its beginning.
fn named(machine: &Machine, plan: &CheckpointPlan) -> Value {
    json!({
        "name": machine.name,
        "memory_bytes": machine.memory_bytes,
        "bandwidth_bytes_s": machine.bandwidth,
        "gpu_generation": machine.generation,
        "token_bytes": plan.token_bytes,
        "most_tokens_s": machine.most_tokens_s(plan.token_bytes),
    })
}

fn model(plan: &CheckpointPlan) -> Value {
    json!({
        "name": Value::Null,
        "path": Value::Null,
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

fn kv(plan: &CheckpointPlan, fit: &Fit) -> Value {
    let sizes = plan.kv_sizes();
    let classes = sizes.class_bytes();
    let longest = classes.last().map(|(_, bytes)| *bytes);
    let positions = |bytes: u64| bytes.checked_div(sizes.row_bytes());
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
    json!({
        "position_bytes": sizes.row_bytes(),
        "state_bytes": sizes.state_bytes(),
        "window_bytes": sizes.window_bytes(),
        "budget_sequences": by_length,
        "shortest_sequence_bytes": fit.shortest,
        "longest_sequence_bytes": longest,
        "budget_bytes": fit.kv_budget,
        "budget_context": fit.kv_budget.map(|_| longest_context.map_or(0, |(longest, _)| *longest)),
        "budget_positions": fit.kv_budget.and_then(positions),
        "budget_longest_sequences": fit.kv_budget.and_then(sequences),
    })
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
