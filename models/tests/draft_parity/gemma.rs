//! DFlash drafters whose target is a Gemma 4: six feature layers, windows that are causal
//! in the block, embeddings with a factor, and a head with a cap.
//! Values and provenance: `golden/`, remade by its gemma_draft.py.

use paceline_models::testing::bounds::assert_close;
use paceline_models::{Dtype, Quantize, draft, load_draft, plan_draft};
use safetensors::SafeTensors;
use serde::Deserialize;

use crate::pair::{Pair, floats, golden, prompt, read, worst};
use crate::tokens;
use crate::with_config;

const DFLASH: &str = "dflash-gemma4";
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
fn a_drafter_of_gemma_4_reads_six_layers_and_shares_the_cap_of_its_target() {
    let info = plan_draft(&golden(DFLASH), "auto", Some(&golden(TARGET)), Quantize::None);
    let info = info.expect("a plan").info;
    assert_eq!((info.kind.as_str(), info.logit_softcap), ("dflash", Some(9.0)));
    assert_eq!(info.feature_layers, [0, 1, 2, 3, 5, 6]);
    assert_eq!((info.hidden, info.vocab, info.target_layers), (32, Some(56), Some(7)));
    assert_eq!(draft::feature_layers(&golden(DFLASH), "auto").expect("read"), info.feature_layers);
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
