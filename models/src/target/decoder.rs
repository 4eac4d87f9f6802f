//! The decoder that Llama, Mistral and Qwen share: sizes (sizes.rs) → layer → model. A family's file reads its
//! own keys and describes what differs in a [`DecoderSpec`]. A layer mixes rows by attention
//! (attention.rs) or by the gated delta rule (gated_delta.rs). Field names are the checkpoint's
//! tensor names. R rows of a batch.

use std::path::Path;
#[cfg(target_os = "linux")]
use std::sync::Arc;

use mlx_rs::{Array, Dtype};
use paceline_blas::RecurrentSizes;

use super::attention::{Attention, AttentionSpec};
use super::gated_delta::GatedDelta;
use super::graph::Graph;
#[cfg(target_os = "linux")]
use super::on_cpu;
use super::sizes::Sizes;
use super::{Target, image_rows};
use crate::batch::{Batch, Forward, Wants};
use crate::error::{ModelError, Result};
use crate::hidden_states::HiddenStates;
use crate::info::TargetInfo;
use crate::kv::{KvStore, LayerKv};
use crate::layers::{
    Embedding, ExpertMlp, GatedMlp, LayerOps, Linear, NormWeight, RmsNorm, Rope, SharedExpertMlp,
    gated_mlp,
};
#[cfg(target_os = "linux")]
use crate::layers::{Program, Recorder, Tail};
use crate::load::{ConfigJson, Layout, LoadError, Weights};
use crate::vision::Vision;

/// An opened checkpoint of a target.
pub(crate) struct TargetFiles<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) config: &'a ConfigJson,
    pub(crate) weights: Weights<'a>,
    pub(crate) weight_bytes: u64,
}

/// Refuses a config that switches sliding windows on by `use_sliding_window`, as Qwen's do.
pub(super) fn refuse_sliding_window(config: &ConfigJson) -> Result<(), LoadError> {
    if config.optional::<bool>("use_sliding_window")?.unwrap_or(false) {
        let what = "expected false: this version has no sliding windows".into();
        return Err(config.wrong("use_sliding_window", what));
    }
    Ok(())
}

/// The second half of a layer.
pub(super) enum FeedForward {
    /// One block for all rows.
    Dense(GatedMlp),
    /// A few of many blocks for each row.
    Experts(ExpertMlp),
    /// A few of many, and one block for all rows.
    SharedExperts(SharedExpertMlp),
}

impl FeedForward {
    /// `x` `[R, hidden]` → the same shape. By MLX.
    pub(super) fn forward(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Dense(mlp) => mlp.forward(x),
            Self::Experts(experts) => experts.forward(x),
            Self::SharedExperts(experts) => experts.forward(x),
        }
    }

    fn apply<O: LayerOps>(&self, ops: &mut O, x: &O::Rows) -> Result<O::Rows> {
        match self {
            Self::Dense(mlp) => gated_mlp(ops, mlp, x),
            Self::Experts(experts) => ops.experts(experts, x),
            Self::SharedExperts(experts) => ops.shared_experts(experts, x),
        }
    }
}

/// Reads the second half of a layer: the layer's number, and the prefix of its tensor names.
pub(super) type LoadFeedForward<'a> =
    dyn Fn(&mut Weights, i32, &str) -> Result<FeedForward, LoadError> + 'a;

/// Parts of a decoder that are a family's own.
pub(super) struct DecoderSpec<'a> {
    /// `model_type`.
    pub(super) architecture: String,
    pub(super) layout: Layout,
    pub(super) sizes: Sizes,
    pub(super) attention: AttentionSpec,
    /// For each layer the sizes of its states, if it has some instead of attention. Beyond the end:
    /// attention.
    pub(super) recurrent: &'a [Option<RecurrentSizes>],
    /// How norms are stored, but for those of states.
    pub(super) norms: NormWeight,
    pub(super) feed_forward: &'a LoadFeedForward<'a>,
    pub(super) rope: Rope,
    pub(super) tower: Option<Box<dyn Vision>>,
}

/// The first half of a layer.
enum Mixer {
    Attention(Attention),
    Recurrent(GatedDelta),
}

struct Layer {
    input_layernorm: RmsNorm,
    mixer: Mixer,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

impl Layer {
    fn load(weights: &mut Weights, at: i32, spec: &DecoderSpec<'_>) -> Result<Self, LoadError> {
        let (name, sizes) = (format!("{}.layers.{at}", spec.layout.text), spec.sizes);
        let norm = |weights: &mut Weights, part: &str| {
            let name = format!("{name}.{part}");
            RmsNorm::load_stored(weights, &name, sizes.hidden_size, sizes.rms_norm_eps, spec.norms)
        };
        let mixer = |weights: &mut Weights| match spec.recurrent.get(at as usize) {
            Some(Some(states)) => {
                let name = format!("{name}.linear_attn");
                Ok(Mixer::Recurrent(GatedDelta::load(weights, &name, sizes, *states)?))
            }
            _ => {
                let (name, attention) = (format!("{name}.self_attn"), spec.attention);
                let attention = Attention::load(weights, &name, sizes, attention, spec.norms)?;
                Ok::<_, LoadError>(Mixer::Attention(attention))
            }
        };
        Ok(Self {
            input_layernorm: norm(weights, "input_layernorm")?,
            mixer: mixer(weights)?,
            post_attention_layernorm: norm(weights, "post_attention_layernorm")?,
            mlp: (spec.feed_forward)(weights, at, &format!("{name}.mlp"))?,
        })
    }

    /// The layer by its operations. `x` `[R, hidden]` → the same shape.
    fn apply<O: LayerOps>(&self, ops: &mut O, layer: usize, x: O::Rows) -> Result<O::Rows> {
        let normed = ops.norm(&self.input_layernorm, &x)?;
        let mixed = match &self.mixer {
            Mixer::Attention(attention) => attention.apply(ops, layer, &normed)?,
            Mixer::Recurrent(states) => states.apply(ops, layer, &normed)?,
        };
        let x = ops.add(&x, &mixed)?;
        let normed = ops.norm(&self.post_attention_layernorm, &x)?;
        let more = self.mlp.apply(ops, &normed)?;
        let x = ops.add(&x, &more)?;
        ops.end_layer(layer, x)
    }
}

/// A loaded model.
pub(super) struct Decoder {
    info: TargetInfo,
    sizes: Sizes,
    dtype: Dtype,
    rope: Rope,
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    /// `None`: tied to the embedding.
    lm_head: Option<Linear>,
    tower: Option<Box<dyn Vision>>,
    /// The layers as functions of the processor.
    #[cfg(target_os = "linux")]
    program: Option<Arc<Program>>,
}

impl Decoder {
    /// Reads every tensor that `spec` describes, and refuses files with others.
    pub(super) fn load(
        dir: &Path,
        mut weights: Weights,
        weight_bytes: u64,
        spec: DecoderSpec<'_>,
    ) -> Result<Self, LoadError> {
        let (sizes, text) = (spec.sizes, spec.layout.text);
        let embed_tokens = format!("{text}.embed_tokens");
        let dtype = weights.dtype_of(&format!("{embed_tokens}.weight"));
        let embed_tokens =
            Embedding::load(&mut weights, &embed_tokens, sizes.vocab_size, sizes.hidden_size)?;
        let layers = (0..sizes.n_layers).map(|at| Layer::load(&mut weights, at, &spec));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let norm = format!("{text}.norm");
        let (hidden, eps) = (sizes.hidden_size, sizes.rms_norm_eps);
        let norm = RmsNorm::load_stored(&mut weights, &norm, hidden, eps, spec.norms)?;
        let lm_head = Self::load_head(&mut weights, &spec)?;
        weights.finish()?;
        let info = TargetInfo {
            path: dir.to_path_buf(),
            architecture: spec.architecture,
            vocab: sizes.vocab_size,
            hidden: sizes.hidden_size,
            n_layers: layers.len(),
            context: sizes.context,
            weight_bytes,
        };
        let DecoderSpec { rope, tower, .. } = spec;
        let decoder = Self {
            info,
            sizes,
            dtype,
            rope,
            embed_tokens,
            layers,
            norm,
            lm_head,
            tower,
            #[cfg(target_os = "linux")]
            program: None,
        };
        #[cfg(target_os = "linux")]
        let decoder = Self { program: decoder.recorded(), ..decoder };
        Ok(decoder)
    }

    /// All layers by their operations. `x` `[R, hidden]` → the same shape.
    fn apply<O: LayerOps>(&self, ops: &mut O, mut x: O::Rows) -> Result<O::Rows> {
        for (at, layer) in self.layers.iter().enumerate() {
            x = layer.apply(ops, at, x)?;
        }
        Ok(x)
    }

    /// The layers recorded as a program, if the processor computes the model in float32. A model
    /// that cannot be recorded runs as MLX's graph.
    #[cfg(target_os = "linux")]
    fn recorded(&self) -> Option<Arc<Program>> {
        if self.dtype != Dtype::Float32 || !crate::device::allows_nodes() {
            return None;
        }
        let record = || {
            let (hidden, turning) = (self.sizes.hidden_size as usize, self.rope.turning());
            let (mut recorder, x) = Recorder::new(hidden, turning);
            let x = self.apply(&mut recorder, x)?;
            let (embedding, head) = (&self.embed_tokens, self.lm_head.as_ref());
            recorder.finish(x, &Tail { embedding, norm: &self.norm, head })
        };
        let reason = match record() {
            Ok(program) => return Some(Arc::new(program)),
            Err(reason) => reason,
        };
        tracing::warn!(%reason, "the model runs layer by layer as MLX's graph, which is slower");
        None
    }

    /// A pass as one node of the processor.
    #[cfg(target_os = "linux")]
    fn run_program(
        &self,
        program: &Arc<Program>,
        batch: &Batch,
        kv: &mut KvStore,
        wants: &Wants,
    ) -> Result<Forward> {
        self.check_features(wants)?;
        let (mut embedded, mut additions) = (None, vec![]);
        if !batch.overrides.is_empty() {
            let x = self.embed_tokens.rows_of(&batch.id_array()?)?;
            let x = image_rows::place(x, &batch.overrides)?;
            additions = image_rows::additions(&x, &batch.overrides)?;
            embedded = Some(x);
        }
        let rotation = self.rope.numbers(&batch.positions)?;
        on_cpu::Pass { program, batch, wants, rotation, embedded, additions }.forward(kv)
    }

    /// Refuses hidden states of layers that the model has not.
    fn check_features(&self, wants: &Wants) -> Result<()> {
        let wanted = wants.hidden_states.as_ref().map_or(&[][..], |wanted| &wanted.layers);
        if wanted.iter().all(|layer| *layer < self.layers.len()) {
            return Ok(());
        }
        let layers = self.layers.len();
        Err(ModelError::Batch(format!("expected feature layers below {layers}, found {wanted:?}")))
    }

    fn load_head(
        weights: &mut Weights,
        spec: &DecoderSpec<'_>,
    ) -> Result<Option<Linear>, LoadError> {
        let Sizes { vocab_size, hidden_size, tie_word_embeddings, .. } = spec.sizes;
        if tie_word_embeddings {
            // Some exporters write the tied head out as well.
            weights.skip(spec.layout.head);
            return Ok(None);
        }
        Linear::load(weights, spec.layout.head, vocab_size, hidden_size, false).map(Some)
    }
}

impl Target for Decoder {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn kv_layers(&self) -> Vec<LayerKv> {
        let layer = |layer: &Layer| match &layer.mixer {
            Mixer::Attention(_) => LayerKv::Growing(self.sizes.growing()),
            Mixer::Recurrent(states) => LayerKv::Recurrent(states.sizes()),
        };
        self.layers.iter().map(layer).collect()
    }

    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn forward(&self, batch: &Batch, kv: &mut KvStore, wants: &Wants) -> Result<Forward> {
        batch.check(&self.info)?;
        #[cfg(target_os = "linux")]
        if let Some(program) = self.program.as_ref().filter(|_| kv.takes_passes()) {
            return self.run_program(program, batch, kv, wants);
        }
        self.check_features(wants)?;
        let x =
            image_rows::place(self.embed_tokens.rows_of(&batch.id_array()?)?, &batch.overrides)?;
        let (wanted, rows) = wants
            .hidden_states
            .as_ref()
            .map_or((&[][..], &[][..]), |wanted| (&wanted.layers, &wanted.rows));
        let some = rows.len() < batch.ids.len();
        let mut graph = Graph {
            rope: &self.rope.tables(&batch.positions, self.dtype)?,
            kv,
            segments: &batch.segments,
            additions: &image_rows::additions(&x, &batch.overrides)?,
            wanted,
            wanted_rows: some.then(|| Array::from_slice(rows, &[rows.len() as i32])),
            features: vec![None; wanted.len()],
            dtype: self.dtype,
        };
        let x = self.apply(&mut graph, x)?;
        let layers = graph.features.into_iter().flatten().collect();
        let rows = 0..rows.len() as i32;
        let hidden_states =
            wants.hidden_states.as_ref().map(|_| HiddenStates { layers, rows: rows.collect() });
        // The norm is per row, so only rows that are wanted are normed.
        let normed = |rows: &[i32]| -> Result<Array> { self.norm.forward(&take_rows(&x, rows)?) };
        let logits = if wants.logit_rows.is_empty() {
            None
        } else {
            Some(self.head(&normed(&wants.logit_rows)?)?)
        };
        let final_hidden =
            if wants.final_hidden.is_empty() { None } else { Some(normed(&wants.final_hidden)?) };
        Ok(Forward { logits, hidden_states, final_hidden })
    }

    fn embed(&self, ids: &[u32]) -> Result<Array> {
        match ids.iter().find(|id| **id >= self.sizes.vocab_size as u32) {
            None => self.embed_tokens.rows(ids),
            Some(id) => Err(ModelError::Batch(format!(
                "expected ids below {}, found {id}",
                self.sizes.vocab_size
            ))),
        }
    }

    fn embed_chosen(&self, ids: &Array) -> Result<Array> {
        self.embed_tokens.rows_of(ids)
    }

    fn vision(&self) -> Option<&dyn Vision> {
        self.tower.as_deref()
    }

    fn head(&self, hidden: &Array) -> Result<Array> {
        let logits = match &self.lm_head {
            Some(head) => head.forward(hidden)?,
            None => self.embed_tokens.as_head(hidden)?,
        };
        Ok(logits.as_dtype(Dtype::Float32)?)
    }
}

/// Rows of `x` `[R, …]`; all of them without a copy.
fn take_rows(x: &Array, rows: &[i32]) -> Result<Array> {
    if rows.len() as i32 == x.dim(0) {
        return Ok(x.clone());
    }
    Ok(x.take_axis(Array::from_slice(rows, &[rows.len() as i32]), 0)?)
}
