//! Checkpoints as transformers 5.23 and mlx-vlm save them: the golden ones with other keys and other
//! names of tensors. What a plan refuses is what loading refuses.

use std::path::Path;

use paceline_models::{DeviceChoice, LoadOptions, device, load_target, plan_target};
use serde_json::{Value, json};

use crate::changed::{Tensor, Tensors, changed, unchanged};
use crate::families::{refusal, set};
use crate::model::{check_checkpoint, golden, load};

/// The part of a config with the keys of the text model.
fn text(config: &mut Value) -> &mut Value {
    match config.get("text_config").is_some() {
        true => &mut config["text_config"],
        false => config,
    }
}

fn take(config: &mut Value, key: &str) -> Value {
    config.as_object_mut().expect("an object").remove(key).unwrap_or_default()
}

fn plan(dir: &Path) -> Result<paceline_models::load::CheckpointPlan, String> {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    plan_target(dir, LoadOptions::default()).map_err(|error| paceline_vocabulary::chain(&error))
}

/// The number of experts under its newer name.
fn local_experts(config: &mut Value) {
    let text = text(config);
    text["num_local_experts"] = take(text, "num_experts");
}

#[test]
fn experts_may_be_counted_as_local_ones() {
    let dir = changed("qwen3-moe-tiny", local_experts, unchanged);
    check_checkpoint("qwen3-moe-tiny", dir.path());
    let [as_before, found] = [&golden("qwen3-moe-tiny"), dir.path()].map(|dir| plan(dir));
    assert_eq!(found.expect("a plan").token_bytes, as_before.expect("a plan").token_bytes);
    for name in ["qwen3-vl-moe-tiny", "qwen3_5_moe-tiny", "gemma4-tiny-moe"] {
        load(changed(name, local_experts, unchanged).path());
    }
    let both = |config: &mut Value| config["num_local_experts"] = 5.into();
    load(changed("qwen3-moe-tiny", both, unchanged).path());
    let none = |config: &mut Value| {
        local_experts(config);
        config["num_local_experts"] = 0.into();
    };
    let found = refusal(changed("qwen3-moe-tiny", none, unchanged).path());
    assert!(found.contains("num_local_experts: expected 1 to"), "{found}");
}
