//! Checkpoints and batches that drafters of token ids refuse, by their messages.

use std::path::Path;

use paceline_models::{
    BlockRequest, DraftBatch, DraftPart, Quantize, SequenceId, draft, load_draft, plan_draft,
};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::pair::{Pair, golden};
use crate::tokens::NAMES;
use crate::{prompt, with_config};

/// Error of loading a golden drafter with `change` made to its tensors: name, type, shape, bytes.
fn refusal(
    name: &str,
    target: Option<&Path>,
    change: impl Fn(&str, &TensorView<'_>) -> Option<(String, Dtype, Vec<u8>)>,
) -> String {
    let dir = with_config(name, |_| {});
    rewrite(&golden(name), dir.path(), change);
    says(dir.path(), target)
}

fn rewrite(
    from: &Path,
    to: &Path,
    change: impl Fn(&str, &TensorView<'_>) -> Option<(String, Dtype, Vec<u8>)>,
) {
    let bytes = std::fs::read(from.join("model.safetensors")).expect("read");
    let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let changed: Vec<_> = tensors
        .iter()
        .filter_map(|(name, view)| {
            let (name, dtype, bytes) = change(name, &view)?;
            Some((name, dtype, view.shape().to_vec(), bytes))
        })
        .collect();
    let views = changed.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("as many bytes"))
    });
    let file = safetensors::serialize(views, None).expect("serialized");
    std::fs::write(to.join("model.safetensors"), file).expect("written");
}

fn says(dir: &Path, target: Option<&Path>) -> String {
    load_draft(dir, "auto", target, Quantize::None, &mut |_, _| {})
        .err()
        .map_or("loads".into(), |error| paceline_vocabulary::chain(&error))
}

fn same(name: &str, view: &TensorView<'_>) -> Option<(String, Dtype, Vec<u8>)> {
    Some((name.to_owned(), view.dtype(), view.data().to_vec()))
}

#[test]
fn a_target_that_is_missing_or_another_one_is_named() {
    let fits = golden("dflash-target");
    for name in NAMES {
        assert_eq!(refusal(name, Some(&fits), same), "loads");
    }
    for name in ["dflash2-tiny", "dspark-deepseek"] {
        let error = refusal(name, None, same);
        assert!(error.contains("set target.model"), "{error}");
        let error = refusal(name, Some(&golden("qwen3-tiny")), same);
        assert!(error.contains("expected the target's, 64, found 32"), "{error}");
        let error = refusal(name, Some(&golden("qwen3-tiny-f16")), same);
        assert!(error.contains("expected the target's, 256, found 56"), "{error}");
        let (alone, whole) =
            (golden(name), plan_draft(&golden(name), "auto", Some(&fits), Quantize::None));
        let whole = whole.expect("a plan");
        let head = 4 * 56 * 32;
        assert_eq!(whole.info.weight_bytes, whole.storage.disk_bytes());
        let own = draft_bytes(&alone);
        assert_eq!(whole.info.weight_bytes, own + head, "the head counts");
        assert!(plan_draft(&alone, "auto", None, Quantize::None).is_err());
    }
    assert_eq!(refusal("dspark-speculators", None, same), "loads", "it has a head of its own");
}

fn draft_bytes(dir: &Path) -> u64 {
    let bytes = std::fs::read(dir.join("model.safetensors")).expect("read");
    let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    tensors.iter().map(|(_, view)| view.data().len() as u64).sum()
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let target = golden("dflash-target");
    let refused = |name: &str, from: &str, to: Option<&str>| {
        refusal(name, Some(&target), |tensor, view| {
            let (_, dtype, bytes) = same(tensor, view)?;
            let name = if tensor == from { to? } else { tensor };
            Some((name.to_owned(), dtype, bytes))
        })
    };
    let missing = |name: &str, tensor: &str| {
        let error = refused(name, tensor, None);
        assert!(error.contains(&format!("{tensor} is missing")), "{error}");
    };
    missing("dflash2-tiny", "layers.1.mlp_conv.base_kernel");
    missing("dflash2-tiny", "candidate_selector.successor_codebook");
    missing("dspark-deepseek", "markov_head.markov_w2.weight");
    missing("dspark-deepseek", "confidence_head.proj.bias");
    missing("dspark-speculators", "d2t");
    let unused = refused("dflash2-tiny", "norm.weight", Some("other.weight"));
    assert!(unused.contains("norm.weight is missing"), "{unused}");
    // Converted checkpoints name the codebooks as modules, and everything may lie under "model.".
    let codebook = "candidate_selector.predecessor_codebook";
    let named = format!("{codebook}.weight");
    assert_eq!(refused("dflash2-tiny", codebook, Some(&named)), "loads");
    let under = refusal("dspark-deepseek", Some(&target), |tensor, view| {
        let (_, dtype, bytes) = same(tensor, view)?;
        Some((format!("model.{tensor}"), dtype, bytes))
    });
    assert_eq!(under, "loads");
    // Another id for a row than any other's: twice the same, or beyond the vocabulary.
    for wrong in [1i64, 1 << 40] {
        let error = refusal("dspark-speculators", None, |tensor, view| {
            let (name, dtype, mut bytes) = same(tensor, view)?;
            if tensor == "d2t" {
                let first = i64::from_le_bytes(*bytes.first_chunk().expect("eight bytes"));
                bytes[8..16].copy_from_slice(&(first - 1).wrapping_add(wrong - 1).to_le_bytes());
            }
            Some((name, dtype, bytes))
        });
        assert!(error.contains("each once"), "{error}");
    }
}

#[test]
fn float16_is_refused_with_the_reason() {
    let target = golden("dflash-target");
    for name in ["dflash-full", "dflash2-tiny", "dspark-deepseek"] {
        let error = refusal(name, Some(&target), |tensor, view| {
            let (name, dtype, bytes) = same(tensor, view)?;
            if tensor != "fc.weight" {
                return Some((name, dtype, bytes));
            }
            let halves = bytes
                .as_chunks()
                .0
                .iter()
                .flat_map(|four| half::f16::from_f32(f32::from_le_bytes(*four)).to_le_bytes());
            Some((name, Dtype::F16, halves.collect()))
        });
        assert!(error.contains("fc.weight has type F16") && error.contains("overflow"), "{error}");
    }
}

#[test]
fn kinds_are_told_apart_by_their_configs() {
    let target = golden("dflash-target");
    for (name, kind) in NAMES.iter().zip(["dflash2", "dspark", "dspark", "dspark"]) {
        let found =
            plan_draft(&golden(name), "auto", Some(&target), Quantize::None).expect("a plan").info;
        assert_eq!((found.kind.as_str(), found.logit_softcap), (kind, None));
        assert!(draft::feature_layers(&golden(name), kind, None).is_ok());
        for other in ["dflash", "dflash2", "dspark"].into_iter().filter(|other| *other != kind) {
            let error =
                draft::feature_layers(&golden(name), other, None).expect_err("another kind");
            let error = paceline_vocabulary::chain(&error);
            assert!(error.contains("auto") || error.contains("drafter.kind"), "{error}");
        }
    }
    assert_eq!(
        draft::feature_layers(&golden("dspark-speculators"), "auto", None).expect("read"),
        [0, 2],
        "stored one higher"
    );
}

#[test]
fn a_bonus_token_beyond_the_vocabulary_is_refused() {
    for name in NAMES {
        let mut pair = Pair::golden(name);
        pair.open(0);
        let states = pair.prefill(0, &prompt(5, 1)).1;
        let mut propose = |bonus_id: u32| {
            let part = DraftPart {
                sequence: SequenceId(0),
                position: 0,
                context: 5,
                next_id: None,
                block: BlockRequest::greedy(3, bonus_id),
            };
            let embeddings = Some(pair.block(20, 3));
            let hidden_states = Some(states.clone());
            let batch = DraftBatch {
                parts: vec![part],
                hidden_states,
                embeddings,
                ..DraftBatch::default()
            };
            let result = pair.drafter.propose(&batch, &mut pair.draft_kv);
            (result.map(drop), pair.draft_kv.length(SequenceId(0)))
        };
        let (refused, length) = propose(56);
        let error = refused.expect_err("refused").to_string();
        assert!(error.contains("below 56, found 56"), "{error}");
        assert_eq!(length, Some(0), "the session is as before");
        assert!(propose(55).0.is_ok());
    }
}

#[test]
fn a_plan_of_a_drafter_refuses_what_loading_refuses() {
    for (name, target) in [
        ("dflash2-tiny", "dflash-target"),
        ("eagle3-llama", "dflash-target"),
        ("dspark-deepseek", "dflash-target"),
        ("assistant-dense", "gemma4-draft-target"),
        ("model-qwen3", "model-llama-target"),
    ] {
        let (dir, target) = (with_config(name, |_| {}), golden(target));
        // Without the last tensor of a layer's norms.
        let file = std::fs::read(golden(name).join("model.safetensors")).expect("read");
        let tensors = SafeTensors::deserialize(&file).expect("a safetensors file");
        let names = tensors.names();
        let left_out = names.iter().filter(|name| name.contains("norm")).max().expect("a norm");
        let left_out = (*left_out).to_owned();
        rewrite(&golden(name), dir.path(), |tensor, view| {
            same(tensor, view).filter(|_| tensor != left_out)
        });
        let plan = plan_draft(dir.path(), "auto", Some(&target), Quantize::None);
        let plan = plan.err().map(|error| paceline_vocabulary::chain(&error));
        let loaded = says(dir.path(), Some(&target));
        assert!(loaded.contains(&left_out), "{name}: {loaded}");
        assert_eq!(plan, Some(loaded), "{name}");
        assert!(plan_draft(&golden(name), "auto", Some(&target), Quantize::None).is_ok(), "{name}");
    }
}
