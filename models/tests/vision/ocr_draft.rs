//! HunyuanOCR's drafter: plain DFlash whose positions are indices of tokens, although the target's
//! rows have four axes. Values and provenance: `golden/ocr_draft.py`.

use mlx_rs::transforms::eval;
use paceline_models::testing::bounds::{assert_close, is_half};
use paceline_models::{
    BlockRequest, DraftBatch, DraftPart, Dtype, FeatureLayers, KvStore, Proposal, Quantize,
    SequenceId, Wants, load_draft,
};
use serde::Deserialize;

use crate::scene::{Scene, floats, folder, load};
use crate::{known, sequence};

const TARGET: &str = "hunyuan_vl-tiny";
const DRAFTER: &str = "dflash-hunyuan_vl";

#[derive(Deserialize)]
struct Drafts {
    cases: Vec<DraftCase>,
}

#[derive(Deserialize)]
struct DraftCase {
    /// Place in the target's golden file.
    case: usize,
    bonus: u32,
    hidden: Vec<f32>,
    drafted: Vec<u32>,
}

#[test]
fn a_drafter_reads_rows_of_images_on_four_axes_by_their_indices() {
    let (model, golden) = load(TARGET);
    let text = std::fs::read(folder(DRAFTER).with_extension("json")).expect("in the repository");
    let drafts: Drafts = serde_json::from_slice(&text).expect("it has the fields named here");
    let target = folder(TARGET);
    let drafter =
        load_draft(&folder(DRAFTER), "auto", Some(&target), Quantize::None, &mut |_, _| {})
            .expect("loads");
    let info = drafter.info();
    let known = known(&*model, &golden);
    for DraftCase { case, bonus, hidden, drafted } in drafts.cases {
        let case = &golden.cases[case];
        let what = format!("images {:?}", case.images);
        let mut scene = Scene::new(&*model, vec![sequence(&*model, &golden, &known, case)]);
        let rows = case.prompt.len() as i32;
        let batch = scene.batch(&[(0, rows)]);
        let layers = info.feature_layers.clone();
        let features = FeatureLayers { layers, rows: (0..rows).collect() };
        let wants = Wants { hidden_states: Some(features), ..Wants::default() };
        let states = scene.run(&batch, &wants).hidden_states.expect("wanted");

        let room = info.context + info.block;
        let mut kv = KvStore::with_most_rows(&drafter.kv_layers(), drafter.dtype(), room, i32::MAX)
            .expect("made");
        kv.open(SequenceId(0)).expect("new");
        let mut block = vec![info.mask_id.expect("a mask token"); info.block as usize];
        block[0] = bonus;
        let part = DraftPart {
            sequence: SequenceId(0),
            position: 0,
            context: rows,
            next_id: None,
            block: BlockRequest::greedy(info.block, bonus),
        };
        let batch = DraftBatch {
            parts: vec![part],
            hidden_states: Some(states.side_by_side().expect("lazy")),
            embeddings: Some(model.embed(&block).expect("embeds")),
            ids: vec![],
            images: vec![],
        };
        let Some(Proposal::Hidden(found)) = drafter.propose(&batch, &mut kv).expect("drafts")
        else {
            panic!("expected hidden rows")
        };
        eval([&found]).expect("evaluates");
        let dtypes = [model.dtype(), drafter.dtype()];
        let dtype = dtypes.into_iter().find(|dtype| is_half(*dtype)).unwrap_or(Dtype::Float32);
        assert_close(&format!("{what}: hidden rows"), dtype, &hidden, &floats(&found), 1e-3);
        if dtype == Dtype::Float32 {
            let logits = floats(&model.head(&found).expect("a head"));
            let best = |row: &[f32]| {
                let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                row.iter().position(|logit| *logit == largest).expect("one of them") as u32
            };
            let ids: Vec<u32> = logits.chunks(model.info().vocab as usize).map(best).collect();
            assert_eq!(ids, drafted, "{what}");
        }
    }
}
