//! DFlash and DSpark drafters whose target is a Gemma 4: six feature layers, windows that are
//! causal in the block, embeddings with a factor, a head with a cap, and a drafter with Gemma's
//! layers. Values and provenance: `golden/`, remade by its gemma_draft.py.

use paceline_models::testing::bounds::assert_close;
use paceline_models::{
    Array, DraftPart, Dtype, KvStore, Quantize, SequenceId, draft, load_draft, plan_draft,
};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde::Deserialize;

use crate::pair::{Pair, floats, golden, prompt, read, worst};
use crate::tokens::{self, cold};
use crate::with_config;

const DFLASH: &str = "dflash-gemma4";
const DSPARK: &str = "dspark-gemma4";
const TARGET: &str = "gemma4-draft-target";

#[derive(Deserialize)]
struct Reference {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    ids: Vec<u32>,
    first_hidden: Vec<f32>,
}

#[test]
fn greedy_blocks_for_gemma_4_follow_the_reference() {
    tokens::follow_reference(DFLASH, "greedy");
}

#[test]
fn sampled_blocks_for_gemma_4_follow_the_reference() {
    tokens::follow_reference(DFLASH, "sampled");
}

#[test]
fn hidden_rows_for_gemma_4_are_those_of_the_reference() {
    let reference: Reference = read(&golden(&format!("{DFLASH}.json")));
    let mut pair = Pair::golden(DFLASH);
    for (session, case) in (0..).zip(&reference.cases) {
        pair.open(session);
        let (_, states) = pair.prefill(session, &case.prompt);
        let found = floats(&pair.draft(session, 0, &states, case.ids[0]));
        let what = format!("prompt of {}: hidden rows", case.prompt.len());
        assert_close(&what, Dtype::Float32, &case.first_hidden, &found, 1e-3);
    }
}

#[test]
fn a_dspark_drafter_of_gemma_4_is_read_as_published() {
    let plan = plan_draft(&golden(DSPARK), "auto", None, Quantize::None).expect("a plan");
    assert_eq!((plan.info.kind.as_str(), plan.info.block), ("dspark", 8));
    assert_eq!(plan.info.feature_layers, [1, 3, 5]);
    let dir = with_config(DSPARK, |config| config["num_kv_shared_layers"] = 1.into());
    let refused = plan_draft(dir.path(), "auto", None, Quantize::None).expect_err("refused");
    assert!(refused.to_string().contains("num_kv_shared_layers: expected none"), "{refused}");
}

#[test]
fn a_drafter_of_gemma_4_reads_six_layers_and_shares_the_cap_of_its_target() {
    let info = plan_draft(&golden(DFLASH), "auto", Some(&golden(TARGET)), Quantize::None);
    let info = info.expect("a plan").info;
    assert_eq!((info.kind.as_str(), info.logit_softcap), ("dflash", Some(9.0)));
    assert_eq!(info.feature_layers, [0, 1, 2, 3, 5, 6]);
    assert_eq!((info.hidden, info.vocab, info.target_layers), (32, Some(56), Some(7)));
    assert_eq!(
        draft::feature_layers(&golden(DFLASH), "auto", None).expect("read"),
        info.feature_layers
    );
    let forms = Pair::golden(DFLASH).drafter.kv_layers();
    let windows: Vec<_> = forms.iter().map(|form| form.growing().expect("grows").window).collect();
    assert_eq!(windows, [Some(11), Some(11), None]);
}

#[test]
fn logits_of_drafts_are_capped_once() {
    let mut pair = Pair::golden(DFLASH);
    pair.open(0);
    let (bonus, states) = pair.prefill(0, &prompt(40, 1));
    let hidden = pair.draft(0, 0, &states, bonus);
    let logits = |pair: &Pair, cap| pair.target.draft_logits(&hidden, cap).expect("a head");
    let of_head = pair.target.head(&hidden).expect("a head");
    assert!(floats(&of_head).iter().all(|logit| logit.abs() <= 9.0));
    assert_eq!(worst(&logits(&pair, Some(9.0)), &of_head), 0.0, "the head has capped them");
    // A head without a cap leaves it to the drafter's.
    let plain = Pair::golden("dflash-full");
    let (free, capped) = (logits(&plain, None), logits(&plain, Some(1.0)));
    assert!(floats(&free).iter().any(|logit| logit.abs() > 1.0));
    assert!(floats(&capped).iter().all(|logit| logit.abs() <= 1.0));
}

#[test]
fn the_bonus_token_s_row_has_the_factor_of_the_target() {
    // The root of the hidden size, 32, is no number of 16 bits, and the table is in float32.
    let pair = Pair::golden(DFLASH);
    let file = std::fs::read(golden(TARGET).join("model.safetensors")).expect("read");
    let tensors = SafeTensors::deserialize(&file).expect("a safetensors file");
    let table = tensors.tensor("model.embed_tokens.weight").expect("a table");
    let row = |id: usize| -> Vec<f32> {
        let bytes = &table.data()[id * 32 * 4..(id + 1) * 32 * 4];
        bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().expect("four"))).collect()
    };
    let found = floats(&pair.block(20, 2));
    let expected: Vec<f32> = row(20).into_iter().chain(row(3)).map(|x| x * 32f32.sqrt()).collect();
    assert_close("embeddings", pair.target.dtype(), &expected, &found, 1e-6);
}

/// Drafts of the drafter in `dir` after a prompt.
fn drafts(dir: &std::path::Path) -> Vec<u32> {
    let mut pair = Pair::load(&golden(TARGET), dir, Quantize::None);
    pair.open(0);
    let states = pair.prefill(0, &prompt(30, 1)).1;
    let block = Some(cold().block(8, 20));
    let part =
        DraftPart { sequence: SequenceId(0), position: 0, context: 30, next_id: None, block };
    pair.draft_tokens(&[part], std::slice::from_ref(&states)).swap_remove(0).ids
}

#[test]
fn values_with_a_projection_of_their_own_are_read() {
    let dir = with_config(DSPARK, |config| config["attention_k_eq_v"] = false.into());
    let file = std::fs::read(golden(DSPARK).join("model.safetensors")).expect("read");
    let tensors = SafeTensors::deserialize(&file).expect("a safetensors file");
    let values = tensors.iter().filter(|(name, _)| name.contains("k_proj"));
    let values = values.map(|(name, view)| (name.replace("k_proj", "v_proj"), view));
    let own = tensors.iter().map(|(name, view)| (name.to_owned(), view));
    let all: Vec<_> = own.chain(values).collect();
    let file = safetensors::serialize(all, None).expect("serialized");
    std::fs::write(dir.path().join("model.safetensors"), file).expect("written");
    let found = drafts(dir.path());
    assert!(!found.is_empty());
    assert_eq!(found, drafts(&golden(DSPARK)));
}

#[test]
fn heads_of_a_drafter_may_be_named_layer_by_layer() {
    let dir = with_config(DSPARK, |config| {
        let all = config.as_object_mut().expect("an object");
        let (head_dim, n_kv) =
            (all.remove("global_head_dim"), all.remove("num_global_key_value_heads"));
        let heads = serde_json::json!({"head_dim": head_dim, "num_key_value_heads": n_kv});
        let layers = config["num_hidden_layers"].as_u64().expect("a number");
        let layers = (0..layers).map(|layer| (layer.to_string(), heads.clone()));
        config["per_layer_config"] = layers.collect::<serde_json::Map<_, _>>().into();
    });
    assert_eq!(drafts(dir.path()), drafts(&golden(DSPARK)));
}

#[test]
fn a_target_s_head_that_differs_from_its_embedding_is_borrowed() {
    let target = with_config("dflash-target", |_| {});
    let borrowed = |tied: Option<bool>, head: Option<u8>| {
        let file = std::fs::read(golden("dflash-target").join("model.safetensors")).expect("read");
        let tensors = SafeTensors::deserialize(&file).expect("a safetensors file");
        let table = tensors.tensor("model.embed_tokens.weight").expect("there");
        let other: Vec<u8> = table.data().iter().map(|byte| byte ^ head.unwrap_or(0)).collect();
        let view = TensorView::new(table.dtype(), table.shape().to_vec(), &other).expect("fits");
        let own = tensors.iter().filter(|(name, _)| *name != "lm_head.weight");
        let own = own.map(|(name, view)| (name.to_owned(), view));
        let all: Vec<_> = own.chain(head.map(|_| ("lm_head.weight".to_owned(), view))).collect();
        let file = safetensors::serialize(all, None).expect("serialized");
        std::fs::write(target.path().join("model.safetensors"), file).expect("written");
        let config = with_config("dflash-target", |config| {
            config["tie_word_embeddings"] = tied.into();
        });
        let config = config.path().join("config.json");
        std::fs::copy(config, target.path().join("config.json")).expect("copied");
        let plan = plan_draft(&golden("dflash2-tiny"), "auto", Some(target.path()), Quantize::None);
        let storage = plan.expect("a plan").storage;
        let paths = storage.formats.iter().flat_map(|used| used.paths.keys().cloned());
        paths.filter(|path| path.contains("embed_tokens") || path.contains("lm_head")).collect()
    };
    let names: [Vec<String>; 3] =
        [(Some(true), Some(1)), (Some(true), Some(0)), (Some(false), Some(0))]
            .map(|(tied, head)| borrowed(tied, head));
    assert_eq!(names, [["lm_head.weight"], ["model.embed_tokens.weight"], ["lm_head.weight"]]);
}

#[test]
fn the_embedding_of_a_gemma_4_is_its_head_unless_the_config_denies_it() {
    // A drafter of another kind with the same sizes, because Gemma's has a head of its own.
    let load = |tied: Option<bool>| {
        let target = with_config(TARGET, |config| config["tie_word_embeddings"] = tied.into());
        let drafter = golden("dflash2-tiny");
        let loaded =
            load_draft(&drafter, "auto", Some(target.path()), Quantize::None, &mut |_, _| {});
        loaded.err().map_or("loads".into(), |error| error.to_string())
    };
    assert_eq!(load(None), "loads");
    assert_eq!(load(Some(true)), "loads");
    assert!(load(Some(false)).contains("lm_head.weight is missing"), "{}", load(Some(false)));
}

/// Four sessions' hidden rows after a context of 90 rows in pieces of 16, drafted a few times on
/// the way.
fn rows_in_pieces(pair: &mut Pair, states: &[Array]) -> Vec<Array> {
    let mut all = vec![];
    for (session, states) in (0..).zip(states) {
        for (at, from) in (0..90).step_by(15).enumerate() {
            let piece = crate::some_rows(states, from..from + 15);
            all.push(pair.draft(session, from, &piece, 8 + at as u32));
        }
    }
    all
}

/// A copy of a session of 75 rows goes on as the session did.
fn check_restored(pair: &mut Pair, states: &Array) {
    (10..12).for_each(|session| pair.draft_kv.open(SequenceId(session)).expect("new"));
    for from in (0..75).step_by(15) {
        pair.draft(10, from, &crate::some_rows(states, from..from + 15), 20);
    }
    let rows = pair.draft_kv.copy_out(SequenceId(10), 0, 64, 1).expect("copied");
    let end = pair.draft_kv.keep_states(SequenceId(10), 64).expect("the window is there");
    let last = crate::some_rows(states, 64..75);
    pair.draft_kv.commit(SequenceId(10), 64).expect("dropped");
    let expected = pair.draft(10, 64, &last, 30);
    let pieces: Vec<_> = rows.iter().collect();
    pair.draft_kv.copy_in(SequenceId(11), &pieces, Some(&end), 64, 100).expect("restored");
    let found = pair.draft(11, 64, &last, 30);
    assert!(worst(&expected, &found) < 1e-4, "{}", worst(&expected, &found));
}

#[test]
fn sessions_keep_the_window_alone_of_sliding_layers_and_draft_the_same() {
    // Of the last one all layers slide: of a session nothing but windows is kept.
    let sliding = with_config("dflash-sliding", |config| {
        config["layer_types"] = vec!["sliding_attention"; 3].into();
    });
    for name in ["dflash-sliding", DFLASH, "sliding alone"] {
        let (mut whole, mut windowed, states) = match name {
            "sliding alone" => {
                let of = |dir: &std::path::Path| {
                    Pair::load(&golden("dflash-target"), dir, Quantize::None)
                };
                let (mut whole, windowed) = (of(sliding.path()), of(sliding.path()));
                let read = |session| {
                    whole.open(session);
                    whole.prefill(session, &prompt(90, session as u32)).1
                };
                let states = (0..4).map(read).collect();
                (whole, windowed, states)
            }
            _ => Pair::golden_twice(name),
        };
        // A piece and a block: 15 and 8 rows.
        let (layers, dtype) = (windowed.drafter.kv_layers(), windowed.drafter.dtype());
        windowed.draft_kv = KvStore::with_most_rows(&layers, dtype, 512, 23).expect("made");
        assert!(windowed.draft_kv.kept_bytes() > 0, "{name}");
        (0..4).for_each(|session| windowed.draft_kv.open(SequenceId(session)).expect("new"));
        let expected = rows_in_pieces(&mut whole, &states);
        let found = rows_in_pieces(&mut windowed, &states);
        check_restored(&mut windowed, &states[0]);
        for (expected, found) in expected.iter().zip(&found) {
            let off = worst(expected, found);
            assert!(off < 1e-4, "{name}: worst difference {off}");
        }
    }
}
