//! The text model of Qwen3-VL on text alone is Qwen3, bit by bit.

use std::path::Path;

use paceline_models::sample::{RowRule, choose};
use paceline_models::{Batch, KvStore, Positions, Segment, SequenceId, Target, Wants, load_target};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::scene::{floats, folder, load};

/// A Qwen3 of the text model's tensors, in `dir`.
fn write_text_model(name: &str, prefix: &str, head: &str, dir: &Path) {
    let bytes = std::fs::read(folder(name).join("model.safetensors")).expect("in the repository");
    let tensors = SafeTensors::deserialize(&bytes).expect("tensors");
    let renamed = tensors.tensors().into_iter().filter_map(|(name, tensor)| {
        let inside = name.strip_prefix(prefix).map(|rest| format!("model{rest}"));
        inside
            .or_else(|| name.strip_prefix(head).map(|rest| format!("lm_head{rest}")))
            .map(|name| (name, tensor))
    });
    safetensors::serialize_to_file(renamed, None, &dir.join("model.safetensors")).expect("written");
    let config = std::fs::read(folder(name).join("config.json")).expect("in the repository");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    let mut text = config["text_config"].clone();
    text["model_type"] = "qwen3".into();
    text["tie_word_embeddings"] = config["tie_word_embeddings"].clone();
    std::fs::write(dir.join("config.json"), text.to_string()).expect("written");
}

/// A prompt read in chunks, then ids one by one: the bits of all logits on the way.
fn go_on(model: &dyn Target, prompt: &[u32], three: bool) -> Vec<Vec<u32>> {
    let mut kv =
        KvStore::new(&model.kv_layers(), model.dtype(), model.info().context).expect("made");
    kv.open(SequenceId(0)).expect("new");
    let (mut ids, mut start, mut all) = (prompt.to_vec(), 0, vec![]);
    while ids.len() < prompt.len() + 12 {
        let length = (ids.len() - start).min(10);
        let segment = Segment {
            sequence: SequenceId(0),
            start: start as i32,
            length: length as i32,
            drafted: 0,
        };
        let mut batch = Batch::text(ids[start..start + length].to_vec(), vec![segment]);
        if let (true, Positions::One(positions)) = (three, &batch.positions) {
            batch.positions = Positions::Axes(vec![positions.clone(); 3]);
        }
        let wants = Wants { logit_rows: vec![length as i32 - 1], ..Wants::default() };
        let logits =
            model.forward(&batch, &mut kv, &wants).expect("a forward").logits.expect("wanted");
        all.push(floats(&logits).into_iter().map(f32::to_bits).collect());
        start += length;
        kv.commit(SequenceId(0), start as i32).expect("commits");
        if start == ids.len() {
            ids.push(choose(&logits, &[RowRule::greedy(&[], 0)], &[]).expect("a choice")[0].token);
        }
    }
    all
}

fn check(name: &str, prefix: &str, head: &str) {
    let (model, golden) = load(name);
    let dir = tempfile::tempdir().expect("a temporary directory");
    write_text_model(name, prefix, head, dir.path());
    let text = load_target(dir.path(), &mut |_, _| {}).expect("loads");
    assert_eq!(
        (text.info().architecture.as_str(), model.info().architecture.as_str()),
        ("qwen3", "qwen3_vl")
    );
    assert!(text.vision().is_none() && model.vision().is_some());
    let case = golden.cases.iter().find(|case| case.images.is_empty()).expect("one without images");
    let expected = go_on(&*text, &case.prompt, false);
    assert_eq!(go_on(&*model, &case.prompt, false), expected, "{name}");
    assert_eq!(go_on(&*model, &case.prompt, true), expected, "{name}, on three axes");
}

#[test]
fn text_alone_equals_qwen3() {
    check("qwen3-vl-tiny", "model.language_model", "lm_head");
}

#[test]
fn text_alone_equals_qwen3_in_the_layout_of_mlx() {
    check("qwen3-vl-tiny-mlx", "language_model.model", "language_model.lm_head");
}
