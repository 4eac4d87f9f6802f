//! A target and a drafter with their stores, and one step of each: what the tests of drafting are
//! written in.

use std::path::{Path, PathBuf};

use mlx_rs::ops::{concatenate, indexing::TryIndexOp};
use mlx_rs::transforms::eval;
use paceline_models::sample::{Block, RowRule, propose};
pub use paceline_models::testing::bounds::floats;
use paceline_models::testing::bounds::{allowed, largest};
use paceline_models::{
    Array, Batch, BlockRequest, DeviceChoice, DraftBatch, DraftOptions, DraftPart, Drafter,
    FeatureLayers, KvStore, Proposal, Quantize, Segment, SequenceId, Target, TokenDraft, Wants,
    device, load_draft, load_target,
};
use paceline_vocabulary::link::ProposalKind;
use serde::Deserialize;

pub fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

pub fn demo(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../demo").join(name)
}

pub fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> T {
    let text = std::fs::read(path).expect("the golden file is in the repository");
    serde_json::from_slice(&text).expect("it has the fields named here")
}

/// Best id of each row (ties: lowest), and best minus second.
pub fn best(logits: &Array) -> Vec<(u32, f32)> {
    let row = |row: &[f32]| {
        let mut best = (0, f32::NEG_INFINITY);
        let mut second = f32::NEG_INFINITY;
        for (at, value) in row.iter().enumerate() {
            match *value > best.1 {
                true => (second, best) = (best.1, (at, *value)),
                false => second = second.max(*value),
            }
        }
        (best.0 as u32, best.1 - second)
    };
    floats(logits).chunks(logits.dim(1) as usize).map(row).collect()
}

pub fn ids(choices: &[(u32, f32)]) -> Vec<u32> {
    choices.iter().map(|choice| choice.0).collect()
}

pub fn worst(a: &Array, b: &Array) -> f32 {
    assert_eq!(a.shape(), b.shape());
    floats(a).iter().zip(floats(b)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Ids of the ring that the pairs were trained on.
pub fn prompt(length: usize, seed: u32) -> Vec<u32> {
    (0..length as u32).map(|at| 8 + (at * (seed % 5 + 1) + seed) % 48).collect()
}

pub struct Pair {
    pub target: Box<dyn Target>,
    pub drafter: Box<dyn Drafter>,
    pub target_kv: KvStore,
    pub draft_kv: KvStore,
    /// The largest logit of the target so far.
    largest: f32,
}

impl Pair {
    /// The margin below which another order of sums may choose another id: the reference's own, and
    /// in a type of 16 bits what the bounds of two logits allow.
    pub fn undecided(&self, reference: f32) -> f32 {
        reference.max(2.0 * allowed(self.target.dtype(), &[self.largest], 0.0))
    }

    pub fn load(target: &Path, drafter: &Path, quantize: Quantize) -> Self {
        Self::load_with(target, drafter, quantize.into())
    }

    pub fn load_with(target: &Path, drafter: &Path, options: DraftOptions) -> Self {
        device::choose(DeviceChoice::Cpu).expect("there is a CPU");
        let mut last = 0;
        let drafter =
            load_draft(drafter, "auto", Some(target), options, &mut |read, _| last = read)
                .expect("loads");
        let target = load_target(target, &mut |_, _| {}).expect("loads");
        assert_eq!(last, drafter.info().weight_bytes);
        let target_kv =
            KvStore::new(&target.kv_layers(), target.dtype(), target.info().context).expect("made");
        let room = drafter.info().context + drafter.info().block;
        let layers = drafter.kv_layers();
        let draft_kv =
            KvStore::with_most_rows(&layers, drafter.dtype(), room, i32::MAX).expect("made");
        Self { target, drafter, target_kv, draft_kv, largest: 0.0 }
    }

    /// A golden drafter, and the target that its golden file names.
    pub fn golden(name: &str) -> Self {
        #[derive(Deserialize)]
        struct Named {
            target: PathBuf,
        }
        let Named { target } = read(&golden(&format!("{name}.json")));
        let target = golden(&target.file_name().expect("a folder").to_string_lossy());
        Self::load(&target, &golden(name), Quantize::None)
    }

    /// The pair twice, of which both have read the same prompts, and the hidden states of these.
    /// Four sessions of 90 tokens.
    pub fn golden_twice(name: &str) -> (Self, Self, Vec<Array>) {
        let (mut one, mut other) = (Self::golden(name), Self::golden(name));
        let read = |session: u64| {
            one.open(session);
            other.open(session);
            one.prefill(session, &prompt(90, session as u32)).1
        };
        let states = (0..4).map(read).collect();
        (one, other, states)
    }

    pub fn open(&mut self, session: u64) {
        self.target_kv.open(SequenceId(session)).expect("new");
        self.draft_kv.open(SequenceId(session)).expect("new");
    }

    /// The target's choice behind each of `rows` at the session's end, and their states; nothing is
    /// committed, and all rows will be.
    pub fn target_rows(&mut self, session: u64, rows: &[u32]) -> (Vec<(u32, f32)>, Array) {
        self.verified_rows(session, rows, 0)
    }

    /// The result of [`Pair::target_rows`] for rows of which the last `drafted` need not be
    /// committed.
    pub fn verified_rows(
        &mut self,
        session: u64,
        rows: &[u32],
        drafted: usize,
    ) -> (Vec<(u32, f32)>, Array) {
        let (sequence, length) = (SequenceId(session), rows.len() as i32);
        let start = self.target_kv.length(sequence).expect("open");
        let segment = Segment { sequence, start, length, drafted: drafted as i32 };
        let all: Vec<i32> = (0..length).collect();
        let features =
            FeatureLayers { layers: self.drafter.info().feature_layers.clone(), rows: all.clone() };
        let wants = Wants { logit_rows: all, hidden_states: Some(features), ..Wants::default() };
        let forward = self.target.forward(
            &Batch::text(rows.to_vec(), vec![segment]),
            &mut self.target_kv,
            &wants,
        );
        let forward = forward.expect("a forward");
        let states = forward.hidden_states.expect("wanted").side_by_side().expect("lazy");
        eval([&states]).expect("evaluates");
        let logits = forward.logits.expect("wanted");
        self.largest = self.largest.max(largest(&floats(&logits)));
        (best(&logits), states)
    }

    /// Reads a prompt into the target: its choice behind the last row, and all states.
    pub fn prefill(&mut self, session: u64, prompt: &[u32]) -> (u32, Array) {
        let (choices, states) = self.target_rows(session, prompt);
        self.target_kv.commit(SequenceId(session), prompt.len() as i32).expect("commits");
        (choices[prompt.len() - 1].0, states)
    }

    /// The block's input rows: the bonus token and masks.
    pub fn block(&self, bonus: u32, rows: i32) -> Array {
        let mut block = vec![self.drafter.info().mask_id.expect("a mask token"); rows as usize];
        block[0] = bonus;
        self.target.embed(&block).expect("embeds")
    }

    pub fn draft_rows(
        &mut self,
        parts: &[DraftPart],
        states: &[Array],
        blocks: &[Array],
    ) -> Option<Array> {
        let joined = |arrays: &[Array]| {
            (!arrays.is_empty()).then(|| concatenate(arrays, 0).expect("joined"))
        };
        let batch = DraftBatch {
            parts: parts.to_vec(),
            hidden_states: joined(states),
            embeddings: joined(blocks),
            ids: vec![],
            images: vec![],
        };
        match self.drafter.propose(&batch, &mut self.draft_kv).expect("a forward") {
            None => None,
            Some(Proposal::Hidden(rows)) => Some(rows),
            Some(Proposal::Tokens(_)) => panic!("expected hidden rows"),
        }
    }

    /// One session's draft as token ids, those of hidden rows by the target's head.
    pub fn draft_ids(&mut self, part: DraftPart, states: &Array) -> Vec<u32> {
        if self.drafter.info().proposal == ProposalKind::Tokens {
            return self.draft_tokens(&[part], std::slice::from_ref(states)).swap_remove(0).ids;
        }
        let block = part.block.expect("a block");
        let rows = [self.block(block.bonus_id, block.rows)];
        let hidden = self.draft_rows(&[part], std::slice::from_ref(states), &rows);
        let cap = self.drafter.info().logit_softcap;
        let logits = self.target.draft_logits(&hidden.expect("a block was asked for"), cap);
        let rule = RowRule {
            sampling: block.sampling,
            noise: block.noise,
            position: (part.position + part.context + 1) as u32,
            ..RowRule::greedy(&[], 0)
        };
        let block = Block { rule, drafted: block.rows as usize - 1 };
        let drafted = propose(&logits.expect("a head"), &[block]).expect("drafts");
        drafted.on_host().expect("ids")
    }

    /// As [`Pair::draft_rows`], for a drafter that returns ids: the embeddings are those that the
    /// parts' blocks need.
    pub fn draft_tokens(&mut self, parts: &[DraftPart], states: &[Array]) -> Vec<TokenDraft> {
        let reads = self.drafter.info().embeddings;
        let blocks = parts.iter().filter_map(|part| part.block.filter(|_| reads));
        let blocks: Vec<Array> =
            blocks.map(|block| self.block(block.bonus_id, block.rows)).collect();
        let joined = |arrays: &[Array]| {
            (!arrays.is_empty()).then(|| concatenate(arrays, 0).expect("joined"))
        };
        let batch = DraftBatch {
            parts: parts.to_vec(),
            hidden_states: joined(states),
            embeddings: joined(&blocks),
            ids: vec![],
            images: vec![],
        };
        match self.drafter.propose(&batch, &mut self.draft_kv).expect("a forward") {
            None => vec![],
            Some(Proposal::Tokens(drafts)) => drafts,
            Some(Proposal::Hidden(_)) => panic!("expected token ids"),
        }
    }

    /// One session's context rows, and a block behind them.
    pub fn draft(&mut self, session: u64, position: i32, states: &Array, bonus: u32) -> Array {
        let block = self.drafter.info().block;
        let part = DraftPart {
            sequence: SequenceId(session),
            position,
            context: states.dim(0),
            next_id: None,
            block: BlockRequest::greedy(block, bonus),
        };
        let blocks = [self.block(bonus, block)];
        self.draft_rows(&[part], std::slice::from_ref(states), &blocks)
            .expect("a block was asked for")
    }

    /// Verifies `drafted` behind `bonus` and commits: how many were accepted, the next bonus token,
    /// the committed rows' states.
    pub fn verify(
        &mut self,
        session: u64,
        bonus: u32,
        drafted: &[u32],
    ) -> (usize, Vec<(u32, f32)>, Array) {
        let rows = [&[bonus], drafted].concat();
        let (chosen, states) = self.verified_rows(session, &rows, drafted.len());
        let accepted = drafted
            .iter()
            .zip(&chosen)
            .take_while(|(drafted, chosen)| **drafted == chosen.0)
            .count();
        let sequence = SequenceId(session);
        let length = self.target_kv.length(sequence).expect("open") + accepted as i32 + 1;
        self.target_kv.commit(sequence, length).expect("commits");
        (accepted, chosen, states.try_index((..accepted as i32 + 1, ..)).expect("rows"))
    }

    /// Decodes with drafts until `stop` or `most` ids: the ids behind the prompt, and cycles.
    pub fn generate(
        &mut self,
        session: u64,
        prompt: &[u32],
        stop: &[u32],
        most: usize,
    ) -> (Vec<u32>, usize) {
        self.open(session);
        let (mut bonus, mut states) = self.prefill(session, prompt);
        let (mut out, mut cycles, mut position) = (vec![bonus], 0, 0);
        while out.len() < most && !out.iter().any(|id| stop.contains(id)) {
            let hidden = self.draft(session, position, &states, bonus);
            position += states.dim(0);
            let drafted = ids(&best(&self.target.head(&hidden).expect("a head")));
            let (accepted, chosen, committed) = self.verify(session, bonus, &drafted);
            out.extend(ids(&chosen[..=accepted]));
            (bonus, states) = (chosen[accepted].0, committed);
            cycles += 1;
        }
        let end = out.iter().position(|id| stop.contains(id)).map_or(most, |at| at + 1).min(most);
        out.truncate(end);
        (out, cycles)
    }
}
