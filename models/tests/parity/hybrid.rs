//! Qwen3.5: prompts read in chunks of any size, blocks of which any rows are accepted, the layouts of
//! its checkpoints, and faults that are refused by name.

use paceline_models::testing::bounds::assert_same;
use paceline_models::{Batch, KvStore, Quantize, Segment, SequenceId, Target, Wants, load_draft};
use serde_json::{Value, json};

use crate::changed::{Tensor, Tensors, changed, unchanged};
use crate::families::{refusal, set};
use crate::model::{Model, check_checkpoint, floats, golden, load, read, segment, store};

/// Checkpoints whose every operation MLX's CPU has in bfloat16.
const OF_MLX_OPERATIONS: [&str; 3] = ["qwen3_5-tiny", "qwen3_5-tiny-q4", "qwen3_5_moe-tiny-q4"];

/// One pass over `ids` from the sequence's committed rows on, of which the last `drafted` may be
/// rejected → the logits of the last row. Nothing is committed.
fn pass(model: &dyn Target, kv: &mut KvStore, ids: &[u32], drafted: usize) -> Vec<f32> {
    let start = kv.length(SequenceId(0)).expect("open") as usize;
    let one = Segment { drafted: drafted as i32, ..segment(0, start, ids.len()) };
    let wants = Wants { logit_rows: vec![one.length - 1], ..Wants::default() };
    let forward =
        model.forward(&Batch::text(ids.to_vec(), vec![one]), kv, &wants).expect("a forward");
    floats(forward.logits.as_ref().expect("wanted"))
}

fn commit(kv: &mut KvStore, rows: usize) {
    let length = kv.length(SequenceId(0)).expect("open") + rows as i32;
    kv.commit(SequenceId(0), length).expect("commits");
}

/// The logits of the last of `ids`, read in chunks of `chunk` ids.
fn in_chunks(model: &dyn Target, ids: &[u32], chunk: usize) -> Vec<f32> {
    let mut kv = store(model);
    kv.open(SequenceId(0)).expect("new");
    let mut last = vec![];
    for part in ids.chunks(chunk) {
        last = pass(model, &mut kv, part, 0);
        commit(&mut kv, part.len());
    }
    last
}

fn chunks_give_the_same(name: &str) {
    let (expected, model): (Model, _) = (read(&format!("{name}.json")), load(&golden(name)));
    let prompt = &expected.cases.last().expect("four cases").prompt;
    let whole = in_chunks(&*model, prompt, prompt.len());
    for chunk in [1, 7, 64, 100] {
        let what = format!("{name}, chunks of {chunk}");
        assert_same(&what, model.dtype(), &whole, &in_chunks(&*model, prompt, chunk));
    }
}

#[test]
fn chunks_of_any_size_give_the_same_bits() {
    OF_MLX_OPERATIONS.into_iter().for_each(chunks_give_the_same);
}

#[test]
fn chunks_of_any_size_give_the_same_bits_with_float_experts() {
    chunks_give_the_same("qwen3_5_moe-tiny");
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % end
    }

    fn ids(&mut self, count: u64, vocab: u64) -> Vec<u32> {
        (0..count).map(|_| self.below(vocab) as u32).collect()
    }
}

/// Sequences of random blocks, of each of which a random number of rows is accepted. Afterwards the
/// logits of one more row are those of a model that reads the accepted ids from the start.
fn random_blocks(name: &str, rounds: u64, seed: u64) {
    let model = load(&golden(name));
    let vocab = model.info().vocab as u64;
    for round in 0..rounds {
        let mut random = Random(seed + 7919 * round);
        let mut kv = store(&*model);
        kv.open(SequenceId(0)).expect("new");
        let count = 1 + random.below(9);
        let mut ids = random.ids(count, vocab);
        pass(&*model, &mut kv, &ids, 0);
        commit(&mut kv, ids.len());
        for _ in 0..1 + random.below(6) {
            let drafted = random.below(9);
            let block = random.ids(1 + drafted, vocab);
            pass(&*model, &mut kv, &block, drafted as usize);
            let kept = 1 + random.below(drafted + 1) as usize;
            commit(&mut kv, kept);
            ids.extend_from_slice(&block[..kept]);
        }
        let next = random.ids(1, vocab);
        let found = pass(&*model, &mut kv, &next, 0);
        ids.extend(&next);
        let expected = in_chunks(&*model, &ids, ids.len());
        let what = format!("{name}, round {round}, {} ids", ids.len());
        assert_same(&what, model.dtype(), &expected, &found);
    }
}

#[test]
fn any_accepted_blocks_give_the_bits_of_a_model_that_reads_them_from_the_start() {
    random_blocks("qwen3_5-tiny", 100, 0x5eed);
    random_blocks("qwen3_5_moe-tiny-q4", 30, 0x5eed);
}

#[test]
#[ignore = "soak: minutes; run by `make soak`"]
fn ten_thousand_accepted_blocks_give_the_bits_of_a_model_that_reads_them_from_the_start() {
    random_blocks("qwen3_5-tiny", 10_000, 0xfeed);
}

/// A checkpoint whose config and names are those of the text model alone.
fn check_text_model(name: &str, model_type: &str) {
    let flat = |config: &mut Value| {
        let mut text = config["text_config"].take();
        text["tie_word_embeddings"] = config["tie_word_embeddings"].take();
        *config = text;
        config["model_type"] = model_type.into();
    };
    let renamed = |tensors: &mut Tensors| {
        let all = std::mem::take(tensors);
        let rename = |name: String| name.replace("model.language_model.", "model.");
        tensors.extend(all.into_iter().map(|(name, tensor)| (rename(name), tensor)));
    };
    check_checkpoint(name, changed(name, flat, renamed).path());
}

#[test]
fn a_checkpoint_of_the_text_model_alone_is_the_same() {
    for model_type in ["qwen3_5_text", "qwen3_8_text"] {
        check_text_model("qwen3_5-tiny", model_type);
    }
}

#[test]
fn a_checkpoint_of_the_text_model_with_experts_alone_is_the_same() {
    for model_type in ["qwen3_5_moe_text", "qwen3_8_moe_text"] {
        check_text_model("qwen3_5_moe-tiny", model_type);
    }
}

#[test]
fn a_checkpoint_with_one_broken_tensor_is_refused_by_its_name() {
    let layer = "model.language_model.layers.0.linear_attn";
    let cut = |tensor: &mut Tensor| {
        let rows = tensor.shape[0];
        tensor.bytes.truncate(tensor.bytes.len() / rows * (rows - 1));
        tensor.shape[0] -= 1;
    };
    for part in ["in_proj_qkv.weight", "in_proj_a.weight", "conv1d.weight", "A_log", "norm.weight"]
    {
        let name = format!("{layer}.{part}");
        let cut = |tensors: &mut Tensors| cut(tensors.get_mut(&name).expect("it is there"));
        let found = refusal(changed("qwen3_5-tiny", |_| {}, cut).path());
        assert!(found.contains(&format!("tensor {name} has shape")), "{found}");
        let gone = |tensors: &mut Tensors| drop(tensors.remove(&name));
        let found = refusal(changed("qwen3_5-tiny", |_| {}, gone).path());
        assert!(found.contains(&format!("{name} is missing")), "{found}");
    }
    for more in ["model.language_model.layers.0.linear_attn.conv1d.bias", "model.visualx.weight"] {
        let add = |tensors: &mut Tensors| {
            let tensor =
                Tensor { dtype: safetensors::Dtype::F32, shape: vec![1], bytes: vec![0; 4] };
            tensors.insert(more.into(), tensor);
        };
        let found = refusal(changed("qwen3_5-tiny", |_| {}, add).path());
        assert!(found.contains(&format!("does not use, the first is {more}")), "{found}");
    }
    let experts = "model.language_model.layers.2.mlp.experts.gate_up_proj";
    let cut = |tensors: &mut Tensors| cut(tensors.get_mut(experts).expect("it is there"));
    let found = refusal(changed("qwen3_5_moe-tiny", |_| {}, cut).path());
    assert!(found.contains(&format!("tensor {experts} has shape")), "{found}");
}

#[test]
fn configs_that_are_not_computed_are_refused_by_name() {
    let refused = |key: &'static str, value: Value, says: &str| {
        let set = |config: &mut Value| config["text_config"][key] = value.clone();
        let found = refusal(changed("qwen3_5-tiny", set, unchanged).path());
        assert!(found.contains(says), "{found}");
    };
    let (linear, full) = ("linear_attention", "full_attention");
    refused("attn_output_gate", json!(false), "attn_output_gate: expected true");
    refused("layer_types", json!([linear, full]), "layer_types: expected 4, one for each layer");
    refused(
        "layer_types",
        json!([linear, full, "sliding_attention", full]),
        "layer_types: expected linear_attention or full_attention, found sliding_attention",
    );
    refused(
        "layer_types",
        json!([linear, linear, linear, linear]),
        "layer_types: expected a layer of full_attention",
    );
    refused(
        "linear_num_value_heads",
        json!(3),
        "linear_num_value_heads: expected a multiple of 2 key heads, found 3",
    );
    refused("linear_conv_kernel_dim", json!(9), "linear_conv_kernel_dim: expected 2 to 8, found 9");
    refused("linear_key_head_dim", json!(5000), "linear_num_key_heads: expected heads of at most");
    refused("linear_value_head_dim", Value::Null, "linear_value_head_dim");
    refused("full_attention_interval", json!(0), "full_attention_interval: expected 1");
    refused("rope_parameters", json!({ "partial_rotary_factor": 0.01 }), "partial_rotary_factor");
    let chosen = |config: &mut Value| config["text_config"]["num_experts_per_tok"] = json!(7);
    let found = refusal(changed("qwen3_5_moe-tiny", chosen, unchanged).path());
    assert!(found.contains("num_experts_per_tok: expected at most the 6 experts"), "{found}");
}

#[test]
fn a_model_with_states_is_refused_as_a_drafter() {
    let whole = set("architectures", json!(["Qwen3_5ForCausalLM"]));
    let dir = changed("qwen3_5-tiny", whole, unchanged);
    let drafter = load_draft(dir.path(), "model", None, Quantize::None, &mut |_, _| {});
    let found = drafter.err().map_or("loads".into(), |error| error.to_string());
    assert!(found.contains("model_type: expected a model whose layers all attend"), "{found}");
}
