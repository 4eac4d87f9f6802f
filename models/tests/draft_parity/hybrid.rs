//! DFlash, DFlash 2 and DSpark drafters whose target is a Qwen3.5: they read hidden states of layers
//! with states and of layers that attend, and borrow a head under the names of a wrapper.

use std::path::Path;

use paceline_models::{Quantize, draft, load_draft, plan_draft};
use safetensors::SafeTensors;

use crate::pair::golden;
use crate::tokens::{self, drafts_with_head_of};
use crate::{follow_reference, with_config};

/// The target: a layer with states and one that attends.
const TARGET: &str = "mtp-dense";
const OF_IDS: [&str; 2] = ["dflash2-qwen3_5", "dspark-qwen3_5"];

#[test]
fn a_dflash_drafter_of_a_hybrid_target_follows_the_reference() {
    follow_reference("dflash-qwen3_5");
}

#[test]
fn greedy_drafts_of_ids_for_a_hybrid_target_follow_the_reference() {
    OF_IDS.iter().for_each(|name| tokens::follow_reference(name, "greedy"));
}

#[test]
fn sampled_drafts_of_ids_for_a_hybrid_target_follow_the_reference_by_the_target_s_noise() {
    OF_IDS.iter().for_each(|name| tokens::follow_reference(name, "sampled"));
}

#[test]
fn drafters_of_a_hybrid_target_read_its_layers_and_borrow_its_head() {
    let target = golden(TARGET);
    for (name, kind, layers) in [
        ("dflash-qwen3_5", "dflash", &[0, 1][..]),
        ("dflash2-qwen3_5", "dflash2", &[1, 0]),
        ("dspark-qwen3_5", "dspark", &[0]),
    ] {
        let info =
            plan_draft(&golden(name), "auto", Some(&target), Quantize::None).expect("a plan").info;
        assert_eq!((info.kind.as_str(), info.feature_layers.as_slice()), (kind, layers));
        assert_eq!(
            (info.hidden, info.vocab, info.target_layers),
            (64, Some(56), Some(2)),
            "{name}"
        );
        assert_eq!(
            draft::feature_layers(&golden(name), "auto", None).expect("read"),
            layers,
            "{name}"
        );
        let own = std::fs::read(golden(name).join("model.safetensors")).expect("read");
        let own = SafeTensors::deserialize(&own).expect("a safetensors file");
        let own: usize = own.iter().map(|(_, tensor)| tensor.data().len()).sum();
        // The tied head, in bfloat16.
        let head = if kind == "dflash" { 0 } else { 56 * 64 * 2 };
        assert_eq!(info.weight_bytes, (own + head) as u64, "{name}");
    }
}

/// The target with its tensors under other names.
fn renamed(change: impl Fn(&str) -> String) -> tempfile::TempDir {
    let dir = with_config(TARGET, |_| {});
    let file = std::fs::read(golden(TARGET).join("model.safetensors")).expect("read");
    let tensors = SafeTensors::deserialize(&file).expect("a safetensors file");
    let named = tensors.iter().map(|(name, tensor)| (change(name), tensor));
    let file = safetensors::serialize(named, None).expect("serialized");
    std::fs::write(dir.path().join("model.safetensors"), file).expect("written");
    dir
}

#[test]
fn the_head_of_a_hybrid_target_is_found_in_every_layout() {
    let mlx = renamed(|name| name.replace("model.language_model.", "language_model.model."));
    let flat = renamed(|name| name.replace("model.language_model.", "model."));
    for name in OF_IDS {
        let draft = |target: &Path| drafts_with_head_of(name, target);
        let expected = draft(&golden(TARGET));
        assert!(!expected.is_empty(), "{name}");
        for other in [&mlx, &flat] {
            assert_eq!(draft(other.path()), expected, "{name}");
        }
    }
}

#[test]
fn a_drafter_of_another_hybrid_target_is_refused_by_its_size() {
    for name in OF_IDS {
        let other = golden("qwen3_5-tiny");
        let loaded =
            load_draft(&golden(name), "auto", Some(&other), Quantize::None, &mut |_, _| {});
        let found = loaded.err().map_or("loads".into(), |error| error.to_string());
        assert!(found.contains("hidden_size: expected the target's, 32, found 64"), "{found}");
    }
}
