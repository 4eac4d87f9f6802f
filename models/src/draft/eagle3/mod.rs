//! EAGLE-3 drafter (arXiv 2503.01840) in the speculators layout: one layer that reads a token and
//! the hidden state that led to it. Vocabulary → drafter; next_token.rs has the rows that are read.
//! R rows. Field names are the checkpoint's tensor names. Source of the arithmetic: speculators 0.9,
//! `models/eagle3`.

mod config;
mod layer;

use std::path::Path;
#[cfg(target_os = "linux")]
use std::sync::Arc;

use mlx_rs::{Array, Dtype};

use config::Config;
use layer::{Features, Layer};

#[cfg(target_os = "linux")]
use super::next_token::Given;
use super::next_token::{NextToken, NextTokenModel, Scores};
use super::vocabulary::{BadOffset, RowsById};
use super::{Borrows, DraftFacts, DraftInfo, DrafterFiles, Kind, all_tensors};
#[cfg(target_os = "linux")]
use crate::error::ModelError;
use crate::error::Result;
use crate::kv::{GrowingKv, KvStore};
use crate::layers::{Embedding, Linear, RmsNorm, Rope, RopeTables, SectionOrder};
#[cfg(target_os = "linux")]
use crate::layers::{Program, Recorder, Tail};
use crate::load::{CheckpointError, LoadError, Weights};
use crate::segment::QuerySegments;

/// The ids that can be proposed, and the head that scores them.
struct DraftVocabulary {
    lm_head: Linear,
    /// `None`: the head has a row for each id.
    rows: Option<RowsById>,
}

impl DraftVocabulary {
    fn load(weights: &mut Weights, config: &Config) -> Result<Self, LoadError> {
        let Config { hidden_size, draft_vocab, vocab, .. } = *config;
        let rows = match weights.has("d2t") {
            true => {
                let offsets = weights.take_integers("d2t", &[draft_vocab])?;
                let wrong = |BadOffset { row, offset }| {
                    let what = format!(
                        "tensor d2t: expected ids below {vocab}, each once; row {row} has offset {offset}"
                    );
                    LoadError::from(CheckpointError::Config {
                        key: "draft_vocab_size".into(),
                        what,
                    })
                };
                Some(RowsById::of_offsets(&offsets, vocab).map_err(wrong)?)
            }
            false if draft_vocab == vocab => None,
            false => return Err(LoadError::from(CheckpointError::Missing { name: "d2t".into() })),
        };
        // It marks the ids that d2t names.
        weights.skip_tensor("t2d");
        let lm_head = Linear::load(weights, "lm_head", draft_vocab, hidden_size, false)?;
        Ok(Self { lm_head, rows })
    }
}

/// Tensor of the embedding. A checkpoint without it computes with its target's embedding.
const EMBEDDING: &str = "embed_tokens.weight";

/// How EAGLE-3 drafters are recognized and loaded.
pub(super) const KIND: Kind = Kind {
    name: "eagle3",
    is_config_of: Config::is_eagle3,
    info: |config, dir, weight_bytes| Ok(info(&Config::read(config)?, dir, weight_bytes)),
    of_target: None,
    own_tensors: all_tensors,
    borrows: |files| match files.has(EMBEDDING) {
        true => Borrows::Nothing,
        false => Borrows::Embedding,
    },
    floats: &[],
    load: |files| Ok(Box::new(NextToken::new(Eagle3::load(files)?))),
};

/// Inputs and proposals of a drafter with this config.
fn info(sizes: &Config, dir: &Path, weight_bytes: u64) -> DraftInfo {
    DraftInfo {
        hidden: sizes.target_hidden_size,
        block: sizes.block,
        feature_layers: sizes.feature_layers.clone(),
        vocab: Some(sizes.vocab),
        context: sizes.context,
        // Rows of images are read as the id that stands for them. What was seen is in the hidden states.
        images: true,
        ..DraftInfo::of_tokens(KIND.name, dir, weight_bytes)
    }
}

/// Refuses what this version would compute wrongly or cannot compute.
fn check_tensors(weights: &Weights<'_>, sizes: &Config) -> Result<(), LoadError> {
    let wrong = |key: &str, what: &str| {
        LoadError::from(CheckpointError::Config { key: key.into(), what: what.into() })
    };
    if !weights.has(EMBEDDING) && sizes.hidden_size != sizes.target_hidden_size {
        let what = "the checkpoint has no tensor embed_tokens.weight, and its layer is not as wide as \
                    the target's embedding: add the embedding that it was trained with";
        return Err(wrong("target_hidden_size", what));
    }
    if weights.is_float16("fc") || weights.dtype_of("fc.weight") == Dtype::Float16 {
        let what = "the checkpoint has fc in float16: hidden states have outliers that overflow \
                    there, and hardly a draft is accepted; convert from the original in bfloat16 or \
                    float32";
        return Err(wrong("dtype", what));
    }
    Ok(())
}

/// The weights of an EAGLE-3 drafter.
struct Eagle3 {
    facts: DraftFacts,
    /// Numbers of a row of the layer.
    #[cfg(target_os = "linux")]
    width: usize,
    norm_output: bool,
    rope: Rope,
    embed_tokens: Embedding,
    features: Features,
    layer: Layer,
    norm: RmsNorm,
    vocabulary: DraftVocabulary,
    /// All of it as functions of the processor, by what they are given.
    #[cfg(target_os = "linux")]
    programs: Option<[Arc<Program>; 2]>,
}

impl Eagle3 {
    fn load(files: DrafterFiles<'_>) -> Result<Self, LoadError> {
        let DrafterFiles { dir, config, weights, weight_bytes, quantize, embedding, .. } = files;
        let sizes = Config::read(config)?;
        let mut weights = weights.quantizing(quantize.bits());
        check_tensors(&weights, &sizes)?;
        let Config { hidden_size, vocab, .. } = sizes;
        let layer = config::layer_config(config)?;
        let rope = Rope::load(&layer, sizes.head_dim)?;
        let rope = rope.on_named_axes(&layer, SectionOrder::OneAfterAnother)?;
        let dtype = weights.dtype_of("fc.weight");
        let embed_tokens = match embedding {
            Some(of_target) => of_target,
            None => Embedding::load(&mut weights, "embed_tokens", vocab, hidden_size)?,
        };
        let features = Features::load(&mut weights, &sizes)?;
        let layer = Layer::load(&mut weights, &sizes)?;
        let norm = RmsNorm::load(&mut weights, "norm", hidden_size, sizes.rms_norm_eps)?;
        let vocabulary = DraftVocabulary::load(&mut weights, &sizes)?;
        #[cfg(target_os = "linux")]
        let rehearses = weights.rehearses();
        weights.finish()?;
        let Config { n_kv_heads: n_kv, head_dim, norm_output, .. } = sizes;
        let kv = GrowingKv { n_kv, key_dim: head_dim, value_dim: head_dim, window: None };
        let info = info(&sizes, dir, weight_bytes);
        let facts = DraftFacts { info, kv_layers: vec![kv.into()], dtype };
        let drafter = Self {
            facts,
            #[cfg(target_os = "linux")]
            width: hidden_size as usize,
            norm_output,
            rope,
            embed_tokens,
            features,
            layer,
            norm,
            vocabulary,
            #[cfg(target_os = "linux")]
            programs: None,
        };
        #[cfg(target_os = "linux")]
        let programs = if rehearses { None } else { drafter.recorded() };
        #[cfg(target_os = "linux")]
        let drafter = Self { programs, ..drafter };
        Ok(drafter)
    }

    /// The programs, if the processor computes the drafter in float32. A drafter that cannot be
    /// recorded runs as MLX's graph.
    #[cfg(target_os = "linux")]
    fn recorded(&self) -> Option<[Arc<Program>; 2]> {
        if self.facts.dtype != Dtype::Float32 || !crate::device::allows_nodes() {
            return None;
        }
        let record = |given| self.program_of(given).map(Arc::new);
        let programs =
            record(Given::TargetStates).and_then(|first| Ok([first, record(Given::OwnRows)?]));
        let unrecorded = |reason: &ModelError| {
            tracing::warn!(%reason, "the drafter runs as MLX's graph, which is slower");
        };
        programs.inspect_err(unrecorded).ok()
    }

    #[cfg(target_os = "linux")]
    fn program_of(&self, given: Given) -> Result<Program> {
        let (mut ops, embeddings) = Recorder::new(self.width);
        let hidden = match given {
            Given::TargetStates => {
                self.features.record(&mut ops, self.facts.info.feature_width() as usize)?
            }
            Given::OwnRows => ops.given(0..self.width),
        };
        let x = self.layer.record(&mut ops, &embeddings, &hidden)?;
        let tail = Tail {
            embedding: &self.embed_tokens,
            norm: &self.norm,
            head: Some(&self.vocabulary.lm_head),
            embedding_factor: 1.0,
            softcap: None,
            is_final_normed: self.norm_output,
        };
        ops.finish(x, &tail)
    }
}

impl NextTokenModel for Eagle3 {
    fn facts(&self) -> &DraftFacts {
        &self.facts
    }

    fn rope(&self) -> &Rope {
        &self.rope
    }

    fn features(&self, states: &Array) -> Result<Array> {
        self.features.forward(states)
    }

    fn embed(&self, ids: &Array) -> Result<Array> {
        self.embed_tokens.rows_of(ids)
    }

    fn proposed(&self) -> Option<&RowsById> {
        self.vocabulary.rows.as_ref()
    }

    #[cfg(target_os = "linux")]
    fn program(&self, given: Given) -> Option<&Arc<Program>> {
        let [of_states, of_rows] = self.programs.as_ref()?;
        Some(match given {
            Given::TargetStates => of_states,
            Given::OwnRows => of_rows,
        })
    }

    fn layer(
        &self,
        embeddings: &Array,
        hidden: &Array,
        rows: &QuerySegments,
        rope: &RopeTables,
        kv: &mut KvStore,
    ) -> Result<Option<Array>> {
        self.layer.forward(embeddings, hidden, rows, rope, kv)
    }

    fn scores(&self, output: &Array) -> Result<Scores> {
        let normed = self.norm.forward(output)?;
        let logits = self.vocabulary.lm_head.forward(&normed)?.as_dtype(Dtype::Float32)?;
        let hidden = if self.norm_output { normed } else { output.clone() };
        Ok(Scores { logits, hidden })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use crate::device::{DeviceChoice, choose};
    use crate::draft::{
        BlockRequest, DraftBatch, DraftOptions, DraftPart, Drafter, Proposal, load_draft,
    };
    use crate::families::PASSES;
    use crate::segment::SequenceId;

    use super::*;

    /// Rows of context and of a block; no rows of a block: none.
    type Part = (u64, i32, i32);

    /// The drafts of some steps, each of which reads its parts together.
    fn drafts(drafter: &dyn Drafter, kv: &mut KvStore, steps: &[Vec<Part>]) -> Vec<Vec<u32>> {
        let width = drafter.info().feature_width();
        let mut drafts = vec![];
        for (at, step) in steps.iter().enumerate() {
            let mut batch = DraftBatch::default();
            let mut states = vec![];
            for (sequence, context, block) in step {
                let sequence = SequenceId(*sequence);
                let position = kv.length(sequence).unwrap_or_else(|| {
                    kv.open(sequence).expect("new");
                    0
                });
                let id = |row: i32| (row * 7 + at as i32) as u32 % 40;
                batch.ids.extend((position..position + context).map(id));
                let numbers = (0..context * width).map(|n| ((n * 37 + position) as f32).sin());
                states.extend(numbers);
                let block = BlockRequest::greedy(*block, id(position + context));
                let (context, next_id) = (*context, Some(id(position + context)));
                batch.parts.push(DraftPart { sequence, position, context, next_id, block });
            }
            let rows = states.len() as i32 / width;
            batch.hidden_states = (rows > 0).then(|| Array::from_slice(&states, &[rows, width]));
            match drafter.propose(&batch, kv).expect("drafts") {
                Some(Proposal::Tokens(of_parts)) => {
                    drafts.extend(of_parts.into_iter().map(|draft| draft.ids));
                }
                None => {}
                Some(other) => panic!("expected tokens, found {other:?}"),
            }
        }
        drafts
    }

    #[test]
    fn the_programs_draft_what_mlx_s_graph_drafts() {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        let steps = [
            // A prompt, which the graph reads in both ways; cycles; a block of rows that were read.
            vec![(1, 40, 4)],
            vec![(1, 2, 4)],
            vec![(1, 3, 0)],
            vec![(1, 0, 3)],
            // Sessions together, whose blocks are of different lengths.
            vec![(2, 5, 2), (3, 1, 0), (4, 6, 4)],
            vec![(1, 1, 3), (2, 2, 4), (3, 1, 2), (4, 1, 2)],
        ];
        for name in ["eagle3-llama", "eagle3-qwen3"] {
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
            let drafter = load_draft(&dir, "auto", None, DraftOptions::default(), &mut |_, _| {});
            let drafter = drafter.expect("loads");
            let store =
                || KvStore::new(&drafter.kv_layers(), drafter.dtype(), 512).expect("a store");
            let [mut by_program, mut by_graph] = [store(), store()];
            by_graph.refuse_passes();
            let before = PASSES.get();
            let found = drafts(drafter.as_ref(), &mut by_program, &steps);
            // One for each step but the prompt's, and one for each draft after a step's first.
            assert_eq!(PASSES.get() - before, 5 + 2 + 1 + 2 + 2, "{name}");
            assert_eq!(found, drafts(drafter.as_ref(), &mut by_graph, &steps), "{name}");
            assert_eq!(PASSES.get() - before, 12, "{name}");
            let lengths: Vec<usize> = found.iter().map(Vec::len).collect();
            assert_eq!(lengths, [3, 3, 2, 1, 3, 2, 3, 1, 1], "{name}");
        }
    }
}
