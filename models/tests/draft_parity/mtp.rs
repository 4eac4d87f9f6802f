//! Heads of Qwen3.5 that predict the token after the next.

use std::collections::BTreeMap;
use std::path::Path;

use half::bf16;
use mlx_rs::ops::quantize;
use paceline_models::{
    Array, DeviceChoice, DraftOptions, LoadError, Quantize, SequenceId, device, draft, load_draft,
    plan_draft,
};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;

use crate::chains::{self, Rule, part, prefill, propose};
use crate::pair::{Pair, floats, golden, read};
use crate::prompt;

/// A drafter and its target: the dense head lies in its target's checkpoint.
const DENSE: (&str, &str) = ("mtp-dense", "mtp-dense");
/// A head with experts, in a folder of its own.
const EXPERTS: (&str, &str) = ("mtp-moe", "mtp-moe-target");

#[test]
fn a_dense_head_in_the_targets_checkpoint_follows_the_reference() {
    chains::follow_reference("mtp-dense", "mtp-dense");
}

#[test]
fn a_head_with_experts_in_a_folder_of_its_own_follows_the_reference() {
    chains::follow_reference("mtp-moe", "mtp-moe-target");
}

#[test]
fn sessions_of_a_head_together_are_sessions_alone() {
    chains::sessions_together_are_sessions_alone(DENSE.0, DENSE.1);
}

#[test]
fn sessions_of_a_head_with_experts_together_are_sessions_alone() {
    chains::sessions_together_are_sessions_alone(EXPERTS.0, EXPERTS.1);
}

#[test]
fn how_the_context_of_a_head_was_cut_does_not_matter() {
    chains::how_the_context_was_cut_does_not_matter(DENSE.0, DENSE.1);
}

#[test]
fn how_the_context_of_a_head_with_experts_was_cut_does_not_matter() {
    chains::how_the_context_was_cut_does_not_matter(EXPERTS.0, EXPERTS.1);
}

#[test]
fn a_session_of_a_head_may_begin_in_the_middle() {
    chains::a_session_may_begin_in_the_middle(DENSE.0, DENSE.1);
}

#[test]
fn a_session_of_a_head_with_experts_may_begin_in_the_middle() {
    chains::a_session_may_begin_in_the_middle(EXPERTS.0, EXPERTS.1);
}

fn quantized_drafts_nearly_the_same((name, target): (&str, &str)) {
    let share = |quantize| chains::quantized_share(&golden(name), target, quantize);
    let found = [share(Quantize::Q8), share(Quantize::Q4)];
    eprintln!("{name}: share of equal drafts, 8 and 4 bits: {found:?}");
    assert!(found[0] >= 0.8 && found[1] >= 0.4, "{name}: {found:?}");
}

#[test]
fn quantized_heads_draft_nearly_the_same() {
    quantized_drafts_nearly_the_same(DENSE);
}

#[test]
fn quantized_heads_with_experts_draft_nearly_the_same() {
    quantized_drafts_nearly_the_same(EXPERTS);
}

#[test]
fn a_head_reads_its_own_tensors_and_both_ends_of_its_target() {
    for (name, target) in [DENSE, EXPERTS] {
        let plan = plan_draft(&golden(name), "mtp", Some(&golden(target)), Quantize::None)
            .expect("a plan");
        let info = &plan.info;
        assert_eq!((info.kind.as_str(), info.feature_layers.as_slice()), ("mtp", &[1][..]));
        assert_eq!((info.hidden, info.vocab, info.block), (64, Some(56), 4));
        assert!(info.token_ids && !info.embeddings && info.images, "{info:?}");
        let own = |tensor: &str| name != target || tensor.starts_with("mtp.");
        let ends = ["embed_tokens.weight", "language_model.norm.weight", "lm_head.weight"];
        let bytes = |of: &str, counts: &dyn Fn(&str) -> bool| -> usize {
            let all = tensors(&golden(of));
            all.iter().filter(|(name, _)| counts(name)).map(|(_, tensor)| tensor.bytes.len()).sum()
        };
        let head = bytes(name, &own);
        let around = bytes(target, &|tensor| ends.iter().any(|end| tensor.ends_with(end)));
        assert_eq!(info.weight_bytes, (head + around) as u64, "{name}");
        assert_eq!(plan.storage.disk_bytes(), info.weight_bytes, "{name}");
        assert_eq!(draft::feature_layers(&golden(name), "auto", None).expect("read"), [1]);
    }
}

#[test]
fn ids_beyond_the_embedding_are_read_as_another_token() {
    let mut pair = chains::load("mtp-dense", "mtp-dense");
    pair.open(0);
    let (bonus, mut rows) = prefill(&mut pair, 0, &prompt(12, 1), Rule::greedy());
    rows.ids[3] = 4_000_000_000;
    let block = Rule::at(1000.0, 3).block(4, bonus);
    let one = part(0, 0, 12, bonus, block);
    let drafts = propose(&mut pair, &[one], &[rows]).expect("a forward");
    assert_eq!(drafts[0].ids.len(), 3);
    assert!(drafts[0].ids.iter().all(|id| *id < 56), "{drafts:?}");
    assert_eq!(pair.draft_kv.length(SequenceId(0)), Some(12));
}

pub struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

pub type Tensors = BTreeMap<String, Tensor>;

fn tensors(dir: &Path) -> Tensors {
    let file = std::fs::read(dir.join("model.safetensors")).expect("read");
    let stored = SafeTensors::deserialize(&file).expect("a safetensors file");
    let owned = |(name, view): (&str, TensorView<'_>)| {
        let (dtype, shape) = (view.dtype(), view.shape().to_vec());
        (name.to_owned(), Tensor { dtype, shape, bytes: view.data().to_vec() })
    };
    stored.iter().map(owned).collect()
}

/// A golden checkpoint with another config and other tensors.
pub fn changed(
    name: &str,
    config: impl Fn(&mut Value),
    change: impl Fn(&mut Tensors),
) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut values: Value = read(&golden(name).join("config.json"));
    config(&mut values);
    std::fs::write(dir.path().join("config.json"), values.to_string()).expect("written");
    let mut all = tensors(&golden(name));
    change(&mut all);
    let views = all.iter().map(|(name, tensor)| {
        let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes);
        (name, view.expect("as many bytes"))
    });
    let file = safetensors::serialize(views, None).expect("serialized");
    std::fs::write(dir.path().join("model.safetensors"), file).expect("written");
    dir
}

/// Error of loading the drafter in `dir` for this target, or "loads".
pub fn says(dir: &Path, kind: &str, target: Option<&Path>) -> String {
    let refused = load_draft(dir, kind, target, Quantize::None, &mut |_, _| {}).err();
    refused.map_or("loads".into(), |error: LoadError| paceline_vocabulary::chain(&error))
}

/// Only the head's tensors, each under another name; none for a name that is left out.
fn renamed(change: impl Fn(&str) -> String) -> impl Fn(&mut Tensors) {
    move |all| {
        let head = std::mem::take(all).into_iter().filter_map(|(name, tensor)| {
            let name = name.strip_prefix("mtp.")?;
            Some((change(name), tensor))
        });
        *all = head.collect();
    }
}

/// Adds 1 to the numbers of a tensor in bfloat16.
fn add_1(tensor: &mut Tensor) {
    let halves = tensor.bytes.as_chunks().0.iter();
    let numbers = halves.map(|two| bf16::from_le_bytes(*two).to_f32() + 1.0);
    tensor.bytes = numbers.flat_map(f32::to_le_bytes).collect();
    tensor.dtype = Dtype::F32;
}

/// Adds 1 to the norms, as a conversion to MLX does.
fn whole_norms(all: &mut Tensors) {
    all.values_mut().filter(|tensor| tensor.shape.len() == 1).for_each(add_1);
}

/// Drafts of several sessions of the dense head, as stored in `dir`.
fn drafts(dir: &Path) -> Vec<Vec<u32>> {
    drafts_of(&golden("mtp-dense"), dir)
}

/// Drafts of several sessions of the head in `dir` for this target.
pub fn drafts_of(target: &Path, dir: &Path) -> Vec<Vec<u32>> {
    let mut pair = Pair::load(target, dir, Quantize::None);
    let drafts = (0..4).map(|session| {
        pair.open(session);
        let prompt = prompt(20 + 7 * session as usize, session as u32);
        let (bonus, rows) = prefill(&mut pair, session, &prompt, Rule::greedy());
        let block = Rule::greedy().block(4, bonus);
        chains::draft(&mut pair, session, 0, &rows, block)
    });
    drafts.collect()
}

#[test]
fn a_head_drafts_the_same_in_every_layout() {
    let expected = drafts(&golden("mtp-dense"));
    let name = "mtp-dense";
    let as_it_is = |_: &mut Value| {};
    for prefix in ["mtp.", "model.mtp."] {
        let folder = changed(name, as_it_is, renamed(|part| format!("{prefix}{part}")));
        assert_eq!(drafts(folder.path()), expected, "{prefix}");
    }
    // Conversions to MLX, with the model and alone.
    for prefix in ["language_model.mtp.", ""] {
        let rename = renamed(|part| format!("{prefix}{part}"));
        let config = |config: &mut Value| config["model_type"] = "qwen3_5_mtp".into();
        let folder = changed(name, config, |all| {
            rename(all);
            whole_norms(all);
        });
        assert_eq!(drafts(folder.path()), expected, "{prefix:?}");
    }
    let rename = renamed(|part| match part.split_once('.').expect("a module and its part") {
        ("fc", rest) => format!("mtp_layers.0.input_proj.{rest}"),
        ("norm", rest) => format!("mtp_layers.0.final_layernorm.{rest}"),
        ("pre_fc_norm_hidden", rest) => format!("mtp_layers.0.hidden_layernorm.{rest}"),
        ("pre_fc_norm_embedding", rest) => format!("mtp_layers.0.token_layernorm.{rest}"),
        (_, rest) => format!("mtp_layers.{rest}"),
    });
    let speculators = |config: &mut Value| {
        let layer = config["text_config"].take();
        *config = serde_json::json!({
            "speculators_model_type": "mtp", "architectures": ["MTPDraftModel"],
            "transformer_layer_config": layer,
        });
    };
    assert_eq!(drafts(changed(name, speculators, rename).path()), expected);
}

#[test]
fn a_target_without_a_head_or_of_another_size_is_refused_with_what_to_do() {
    let target = golden("mtp-moe-target");
    let found = says(&target, "mtp", Some(&target));
    assert!(found.contains("the checkpoint has no tensors mtp.*"), "{found}");
    assert!(found.contains("drafter.model = \"lookup\" or a drafter of its own"), "{found}");
    assert!(plan_draft(&target, "mtp", Some(&target), Quantize::None).is_err());
    let other = golden("dflash-target");
    let found = says(&other, "mtp", Some(&other));
    assert!(found.contains("found \"qwen3\": no other family"), "{found}");
    let head = golden("mtp-moe");
    let found = says(&head, "auto", None);
    assert!(found.contains("final norm and output head; set target.model"), "{found}");
    let found = says(&head, "auto", Some(&golden("qwen3_5_moe-tiny")));
    assert!(found.contains("hidden_size: expected the target's, 32, found 64"), "{found}");
    let other = changed("mtp-dense", |config| config["model_type"] = "qwen3".into(), |_| {});
    let found = says(&head, "auto", Some(other.path()));
    assert!(found.contains("expected a target of qwen3_5"), "{found}");
    assert_eq!(says(&head, "auto", Some(&golden("mtp-moe-target"))), "loads");
}

#[test]
fn a_head_with_one_broken_tensor_is_refused_by_its_name() {
    let refusal = |change: &dyn Fn(&mut Tensors)| {
        let dir = changed("mtp-dense", |_| {}, change);
        says(dir.path(), "auto", Some(dir.path()))
    };
    assert_eq!(refusal(&|_| {}), "loads");
    for part in ["fc.weight", "norm.weight", "layers.0.self_attn.q_proj.weight"] {
        let name = format!("mtp.{part}");
        let gone = refusal(&|all| drop(all.remove(&name)));
        assert!(gone.contains(&format!("tensor {name} is missing")), "{gone}");
        let cut = refusal(&|all| {
            let tensor = all.get_mut(&name).expect("it is there");
            tensor.bytes.truncate(tensor.bytes.len() / tensor.shape[0] * (tensor.shape[0] - 1));
            tensor.shape[0] -= 1;
        });
        assert!(cut.contains(&format!("tensor {name} has shape")), "{cut}");
    }
    let more = refusal(&|all| {
        let tensor = Tensor { dtype: Dtype::F32, shape: vec![1], bytes: vec![0; 4] };
        all.insert("mtp.layers.1.norm.weight".into(), tensor);
    });
    assert!(more.contains("does not use, the first is mtp.layers.1.norm.weight"), "{more}");
    let norm = "model.language_model.norm.weight";
    let found = refusal(&|all| drop(all.remove(norm)));
    assert!(found.contains(&format!("tensor {norm} is missing")), "{found}");
}

/// The model around the head as a conversion to MLX writes it; the head as `change` leaves it.
fn in_mlx_layout(change: impl Fn(&mut Tensor)) -> tempfile::TempDir {
    changed(
        "mtp-dense",
        |_| {},
        |all| {
            for (name, mut tensor) in std::mem::take(all) {
                if name.starts_with("mtp.") {
                    change(&mut tensor);
                } else if name.ends_with("conv1d.weight") {
                    // The bytes stay where they are: one of the axes has the length 1.
                    tensor.shape.swap(1, 2);
                } else if name.ends_with("norm.weight") && !name.contains("linear_attn") {
                    add_1(&mut tensor);
                }
                all.insert(name.replace("model.language_model.", "language_model.model."), tensor);
            }
        },
    )
}

#[test]
fn a_head_of_transformers_beside_a_model_of_mlx_is_refused_by_name() {
    let mixed = in_mlx_layout(|_| {});
    let found = says(mixed.path(), "mtp", Some(mixed.path()));
    let name = "tensor mtp.layers.0.input_layernorm.weight: expected factors";
    assert!(found.contains(name) && found.contains("stored less 1"), "{found}");
    let whole = in_mlx_layout(|tensor| {
        if tensor.shape.len() == 1 {
            add_1(tensor);
        }
    });
    assert_eq!(drafts(whole.path()), drafts(&golden("mtp-dense")));
}

/// A head of 30 ids proposes these alone, and of these what the whole head proposes.
fn reduced_proposes_its_first_ids((name, target): (&str, &str)) {
    let mut whole = chains::load(name, target);
    let dir = |name: &str| golden(name);
    for quantize in [Quantize::None, Quantize::Q8] {
        let options = DraftOptions { quantize, draft_vocabulary: 30 };
        let mut pair = Pair::load_with(&dir(target), &dir(name), options);
        for session in 0..6 {
            whole.open(session + 10 * quantize as u64);
            pair.open(session);
            let (read, rule) = (prompt(12, session as u32), Rule::at(1000.0, session));
            let (bonus, rows) = prefill(&mut pair, session, &read, Rule::greedy());
            let drafted = chains::draft(&mut pair, session, 0, &rows, rule.block(4, bonus));
            assert!(drafted.iter().all(|id| *id < 30), "{name}: {drafted:?}");
            // Where the whole head proposes one of these ids first, so does the reduced one.
            let usual = Rule::greedy().block(2, bonus);
            let alone = session + 10 * quantize as u64;
            let expected = chains::draft(&mut whole, alone, 0, &rows, usual);
            pair.open(session + 20);
            let found = chains::draft(&mut pair, session + 20, 0, &rows, usual);
            assert!(quantize != Quantize::None || expected[0] >= 30 || found == expected);
        }
    }
}

#[test]
fn a_reduced_head_proposes_its_first_ids_and_special_tokens_alone() {
    reduced_proposes_its_first_ids(DENSE);
}

#[test]
fn a_reduced_head_with_experts_proposes_its_first_ids_and_special_tokens_alone() {
    reduced_proposes_its_first_ids(EXPERTS);
}

/// The head with experts as a conversion quantizes it: by default to 4 bits, the projection to 8, the
/// router not.
fn quantized_folder() -> tempfile::TempDir {
    let config = |config: &mut Value| {
        config["quantization"] = serde_json::json!({
            "group_size": 64, "bits": 4, "fc": { "group_size": 64, "bits": 8 },
            "layers.0.mlp.gate": false,
        });
    };
    changed("mtp-moe", config, |all| {
        for (name, tensor) in std::mem::take(all) {
            let Some(module) = name.strip_suffix(".weight").filter(|module| {
                let whole_groups = tensor.shape.last().is_some_and(|inputs| inputs % 64 == 0);
                tensor.shape.len() > 1 && whole_groups && *module != "layers.0.mlp.gate"
            }) else {
                all.insert(name, tensor);
                continue;
            };
            let numbers = tensor.bytes.as_chunks().0.iter();
            let numbers: Vec<f32> = numbers.map(|two| bf16::from_le_bytes(*two).to_f32()).collect();
            let shape: Vec<i32> = tensor.shape.iter().map(|length| *length as i32).collect();
            let bits = if module == "fc" { 8 } else { 4 };
            let matrix = Array::from_slice(&numbers, &shape);
            let (packed, scales, biases) = quantize(&matrix, 64, bits).expect("quantized");
            let of = |array: &Array| array.shape().iter().map(|length| *length as usize).collect();
            let words = packed.try_as_slice::<u32>().expect("words");
            let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let packed = Tensor { dtype: Dtype::U32, shape: of(&packed), bytes };
            all.insert(format!("{module}.weight"), packed);
            for (part, array) in [("scales", scales), ("biases", biases)] {
                let bytes = floats(&array).iter().flat_map(|number| number.to_le_bytes()).collect();
                let tensor = Tensor { dtype: Dtype::F32, shape: of(&array), bytes };
                all.insert(format!("{module}.{part}"), tensor);
            }
        }
    })
}

#[test]
fn a_head_that_is_stored_quantized_drafts_nearly_the_same() {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    let (folder, target) = (quantized_folder(), golden("mtp-moe-target"));
    let plan = plan_draft(folder.path(), "auto", Some(&target), Quantize::None).expect("a plan");
    let formats: Vec<_> = plan.storage.formats.iter().map(|used| used.format.as_str()).collect();
    for format in ["affine, 4 bits, groups of 64", "affine, 8 bits, groups of 64", "bfloat16"] {
        assert!(formats.contains(&format), "{formats:?}");
    }
    let mut exact = chains::load("mtp-moe", "mtp-moe-target");
    let mut pair = Pair::load(&target, folder.path(), Quantize::None);
    let (mut same, mut all) = (0, 0);
    for session in 0..8 {
        exact.open(session);
        pair.open(session);
        let read = prompt(30 + session as usize, session as u32);
        let (bonus, rows) = prefill(&mut exact, session, &read, Rule::greedy());
        let block = Rule::greedy().block(4, bonus);
        let expected = chains::draft(&mut exact, session, 0, &rows, block);
        let found = chains::draft(&mut pair, session, 0, &rows, block);
        same += expected.iter().zip(&found).filter(|(a, b)| a == b).count();
        all += expected.len();
    }
    assert!(same * 10 >= all * 7, "{same} of {all}");
}
