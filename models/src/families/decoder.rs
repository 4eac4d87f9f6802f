//! The decoder that Llama, Mistral and Qwen share: sizes (sizes.rs) → layer → model. A family's file reads its
//! own keys and describes what differs in a [`DecoderSpec`]. A layer mixes rows by attention
//! (attention.rs) or by the gated delta rule (gated_delta.rs). Field names are the checkpoint's
//! tensor names. R rows of a batch.

use std::path::Path;
#[cfg(target_os = "linux")]
use std::sync::Arc;

use mlx_rs::{Array, Dtype};
use paceline_checkpoint::RecurrentSizes;
use paceline_checkpoint::families::Sizes;

use super::Target;
use super::attention::{Attention, AttentionSpec};
use super::gated_delta::GatedDelta;
use super::gemma4::{self, PerLayerInputs};
use super::graph::Graph;
use super::image_rows::{self, ImageRows};
#[cfg(target_os = "linux")]
use super::on_cpu;
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
use crate::sample::softcap;
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
        return Err(config.wrong("use_sliding_window", what).into());
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
            Self::Experts(experts) => experts.forward(x, x),
            Self::SharedExperts(experts) => experts.forward(x),
        }
    }

    fn apply<O: LayerOps>(&self, ops: &mut O, x: &O::Rows) -> Result<O::Rows> {
        match self {
            Self::Dense(mlp) => gated_mlp(ops, mlp, x),
            Self::Experts(experts) => ops.experts(experts, x, x),
            Self::SharedExperts(experts) => ops.shared_experts(experts, x),
        }
    }
}

/// Reads the second half of a layer: the layer's number, and the prefix of its tensor names.
pub(super) type LoadFeedForward<'a> =
    dyn Fn(&mut Weights, i32, &str) -> Result<FeedForward, LoadError> + 'a;

/// The second half of every layer of a family without experts: a gated block of this width.
pub(super) fn dense(hidden: i32, width: i32, bias: bool) -> Box<LoadFeedForward<'static>> {
    Box::new(move |weights, _, name| {
        Ok(FeedForward::Dense(GatedMlp::load(weights, name, hidden, width, bias)?))
    })
}

/// Parts of a decoder that are a family's own.
pub(super) struct DecoderSpec<'a> {
    /// `model_type`.
    pub(super) architecture: String,
    pub(super) layout: Layout,
    pub(super) sizes: Sizes,
    pub(super) attention: AttentionSpec,
    /// For each layer whether its heads rotate. Beyond the end: they do.
    pub(super) rotating: &'a [bool],
    /// For each layer the sizes of its states, if it has some instead of attention. Beyond the end:
    /// attention.
    pub(super) recurrent: &'a [Option<RecurrentSizes>],
    /// How norms are stored, but for those of states.
    pub(super) norms: NormWeight,
    /// Names of the norms of what the two halves of a layer give, before it is added to the rows;
    /// `None`: it is added as it is.
    pub(super) branch_norms: Option<[&'static str; 2]>,
    pub(super) feed_forward: &'a LoadFeedForward<'a>,
    pub(super) rope: Rope,
    pub(super) tower: Option<Box<dyn Vision>>,
}

/// The first half of a layer.
enum Mixer {
    Attention(Attention),
    Recurrent(GatedDelta),
}

pub(super) struct Layer {
    input_layernorm: RmsNorm,
    mixer: Mixer,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
    /// Norms of what the two halves give.
    branch_norms: Option<[RmsNorm; 2]>,
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
                let name = format!("{name}.self_attn");
                let rotates = spec.rotating.get(at as usize).is_none_or(|rotates| *rotates);
                let attention = AttentionSpec { rotates, ..spec.attention };
                let attention = Attention::load(weights, &name, sizes, attention, spec.norms)?;
                Ok::<_, LoadError>(Mixer::Attention(attention))
            }
        };
        Ok(Self {
            input_layernorm: norm(weights, "input_layernorm")?,
            mixer: mixer(weights)?,
            post_attention_layernorm: norm(weights, "post_attention_layernorm")?,
            mlp: (spec.feed_forward)(weights, at, &format!("{name}.mlp"))?,
            branch_norms: match spec.branch_norms {
                Some([first, second]) => Some([norm(weights, first)?, norm(weights, second)?]),
                None => None,
            },
        })
    }

    /// The layer by its operations. `x` `[R, hidden]` → the same shape.
    fn apply<O: LayerOps>(&self, ops: &mut O, layer: usize, x: O::Rows) -> Result<O::Rows> {
        let normed = ops.norm(&self.input_layernorm, &x)?;
        let mixed = match &self.mixer {
            Mixer::Attention(attention) => attention.apply(ops, layer, &normed)?,
            Mixer::Recurrent(states) => states.apply(ops, layer, &normed)?,
        };
        let branch = |ops: &mut O, half: usize, branch: O::Rows| match &self.branch_norms {
            Some(norms) => ops.norm(&norms[half], &branch),
            None => Ok(branch),
        };
        let mixed = branch(ops, 0, mixed)?;
        let x = ops.add(&x, &mixed)?;
        let normed = ops.norm(&self.post_attention_layernorm, &x)?;
        let more = self.mlp.apply(ops, &normed)?;
        let more = branch(ops, 1, more)?;
        let x = ops.add(&x, &more)?;
        ops.end_layer(layer, x)
    }
}

/// A layer of any family.
pub(super) enum DecoderLayer {
    /// A norm before each half.
    PreNorm(Layer),
    Gemma(gemma4::Layer),
}

/// A model but for its head.
pub(super) struct DecoderParts {
    /// `model_type`.
    pub(super) architecture: String,
    pub(super) dtype: Dtype,
    pub(super) vocab: i32,
    pub(super) hidden: i32,
    pub(super) context: i32,
    /// Rotations, by the numbers that layers have of them.
    pub(super) ropes: Vec<Rope>,
    pub(super) embed_tokens: Embedding,
    /// Factor on the embedded rows.
    pub(super) embedding_factor: f32,
    pub(super) per_layer: Option<PerLayerInputs>,
    pub(super) kv_layers: Vec<LayerKv>,
    pub(super) layers: Vec<DecoderLayer>,
    pub(super) norm: RmsNorm,
    /// c of c · tanh(logit / c).
    pub(super) softcap: Option<f32>,
    pub(super) image_rows: ImageRows,
    pub(super) tower: Option<Box<dyn Vision>>,
}

/// A loaded model.
pub(super) struct Decoder {
    info: TargetInfo,
    parts: DecoderParts,
    /// `None`: tied to the embedding.
    lm_head: Option<Linear>,
    /// The layers as functions of the processor.
    #[cfg(target_os = "linux")]
    program: Option<Arc<Program>>,
}

impl Decoder {
    /// Reads a text model whose layers all attend, in the layout that transformers and mlx-lm share,
    /// or in mlx-vlm's.
    pub(super) fn load_text(
        architecture: &str,
        files: TargetFiles<'_>,
        sizes: Sizes,
        attention: AttentionSpec,
        feed_forward: &LoadFeedForward<'_>,
    ) -> Result<Self, LoadError> {
        Self::load_partly_rotating(architecture, files, sizes, attention, &[], feed_forward)
    }

    /// As [`Self::load_text`], with layers whose heads do not rotate: `rotating` says which do.
    pub(super) fn load_partly_rotating(
        architecture: &str,
        files: TargetFiles<'_>,
        sizes: Sizes,
        attention: AttentionSpec,
        rotating: &[bool],
        feed_forward: &LoadFeedForward<'_>,
    ) -> Result<Self, LoadError> {
        let TargetFiles { dir, config, weights, weight_bytes } = files;
        let spec = DecoderSpec {
            architecture: architecture.into(),
            layout: Layout::of(weights.files(), &Layout::TEXT_ALONE)?,
            sizes,
            attention,
            rotating,
            recurrent: &[],
            norms: NormWeight::Whole,
            branch_norms: None,
            feed_forward,
            rope: Rope::load(config, sizes.head_dim)?,
            tower: None,
        };
        Self::load(dir, weights, weight_bytes, spec)
    }

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
        let kv_layer = |layer: &Layer| match &layer.mixer {
            Mixer::Attention(_) => LayerKv::Growing(sizes.kv_heads().into()),
            Mixer::Recurrent(states) => LayerKv::Recurrent(states.sizes()),
        };
        let DecoderSpec { rope, tower, layout, architecture, .. } = spec;
        let parts = DecoderParts {
            architecture,
            dtype,
            vocab: sizes.vocab_size,
            hidden,
            context: sizes.context,
            ropes: vec![rope],
            embed_tokens,
            embedding_factor: 1.0,
            per_layer: None,
            kv_layers: layers.iter().map(kv_layer).collect(),
            layers: layers.into_iter().map(DecoderLayer::PreNorm).collect(),
            norm,
            softcap: None,
            image_rows: ImageRows::default(),
            tower,
        };
        Self::assemble(dir, weights, weight_bytes, parts, layout, sizes.tie_word_embeddings)
    }

    /// Reads the head, which may be tied to the embedding, and refuses files with other tensors.
    pub(super) fn assemble(
        dir: &Path,
        mut weights: Weights,
        weight_bytes: u64,
        parts: DecoderParts,
        layout: Layout,
        tied: bool,
    ) -> Result<Self, LoadError> {
        let (vocab, hidden) = (parts.vocab, parts.hidden);
        #[cfg(target_os = "linux")]
        let rehearses = weights.rehearses();
        // A tied head that is still there differs from the embedding: see `Tensors::settle_head`.
        let lm_head = if tied && !weights.has(&format!("{}.weight", layout.head)) {
            None
        } else {
            Some(Linear::load(&mut weights, layout.head, vocab, hidden, false)?)
        };
        let products = weights.products();
        weights.finish()?;
        let info = TargetInfo {
            path: dir.to_path_buf(),
            architecture: parts.architecture.clone(),
            vocab,
            hidden,
            n_layers: parts.layers.len(),
            context: parts.context,
            weight_bytes,
            products,
        };
        let decoder = Self {
            info,
            parts,
            lm_head,
            #[cfg(target_os = "linux")]
            program: None,
        };
        #[cfg(target_os = "linux")]
        let program = if rehearses { None } else { decoder.recorded() };
        #[cfg(target_os = "linux")]
        let decoder = Self { program, ..decoder };
        Ok(decoder)
    }

    /// All layers by their operations. `x` `[R, hidden]` → the same shape.
    fn apply<O: LayerOps>(&self, ops: &mut O, mut x: O::Rows) -> Result<O::Rows> {
        let inputs = match &self.parts.per_layer {
            Some(per_layer) => Some(per_layer.apply(ops, &x)?),
            None => None,
        };
        for (at, layer) in self.parts.layers.iter().enumerate() {
            x = match layer {
                DecoderLayer::PreNorm(layer) => layer.apply(ops, at, x)?,
                DecoderLayer::Gemma(layer) => layer.apply(ops, at, x, inputs.as_ref())?,
            };
        }
        Ok(x)
    }

    /// Rows of ids `[R]` → `[R, hidden]`.
    fn embedded(&self, ids: &Array) -> Result<Array> {
        let rows = self.parts.embed_tokens.rows_of(ids)?;
        match self.parts.embedding_factor {
            1.0 => Ok(rows),
            factor => Ok(rows.multiply(Array::from_f32(factor).as_dtype(rows.dtype())?)?),
        }
    }

    /// The layers recorded as a program, if the processor computes the model in float32. A model
    /// that cannot be recorded runs as MLX's graph.
    #[cfg(target_os = "linux")]
    fn recorded(&self) -> Option<Arc<Program>> {
        let parts = &self.parts;
        if parts.dtype != Dtype::Float32 || !crate::device::allows_nodes() {
            return None;
        }
        let record = || {
            let (mut recorder, x) = Recorder::new(parts.hidden as usize);
            let x = self.apply(&mut recorder, x)?;
            let tail = Tail {
                embedding: &parts.embed_tokens,
                norm: &parts.norm,
                head: self.lm_head.as_ref(),
                embedding_factor: parts.embedding_factor,
                softcap: parts.softcap,
                is_final_normed: true,
            };
            recorder.finish(x, &tail)
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
            let x = self.embedded(&batch.id_array()?)?;
            let x = image_rows::place(x, &batch.overrides)?;
            additions = image_rows::additions(&x, &batch.overrides)?;
            embedded = Some(x);
        }
        let rotations = self.parts.ropes.iter().map(|rope| rope.numbers(&batch.positions));
        let rotations = rotations.collect::<Result<Vec<_>>>()?;
        let images = self.parts.image_rows.spans(&batch.overrides)?;
        on_cpu::Pass { program, batch, wants, rotations, embedded, additions, images }.forward(kv)
    }

    /// Refuses hidden states of layers that the model has not.
    fn check_features(&self, wants: &Wants) -> Result<()> {
        let wanted = wants.hidden_states.as_ref().map_or(&[][..], |wanted| &wanted.layers);
        if wanted.iter().all(|layer| *layer < self.info.n_layers) {
            return Ok(());
        }
        let layers = self.info.n_layers;
        Err(ModelError::Batch(format!("expected feature layers below {layers}, found {wanted:?}")))
    }
}

impl Target for Decoder {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn kv_layers(&self) -> Vec<LayerKv> {
        self.parts.kv_layers.clone()
    }

    fn dtype(&self) -> Dtype {
        self.parts.dtype
    }

    fn forward(&self, batch: &Batch, kv: &mut KvStore, wants: &Wants) -> Result<Forward> {
        batch.check(&self.info)?;
        let batch = &*self.parts.image_rows.with_pads(batch);
        #[cfg(target_os = "linux")]
        if let Some(program) = self.program.as_ref().filter(|_| kv.takes_passes()) {
            return self.run_program(program, batch, kv, wants);
        }
        self.check_features(wants)?;
        let images = self.parts.image_rows.spans(&batch.overrides)?;
        let ids = batch.id_array()?;
        let x = image_rows::place(self.embedded(&ids)?, &batch.overrides)?;
        let ropes = self.parts.ropes.iter();
        let ropes = ropes.map(|rope| rope.tables(&batch.positions, self.parts.dtype));
        let (wanted, rows) = wants
            .hidden_states
            .as_ref()
            .map_or((&[][..], &[][..]), |wanted| (&wanted.layers, &wanted.rows));
        let some = rows.len() < batch.ids.len();
        let mut graph = Graph {
            ids: &ids,
            ropes: &ropes.collect::<Result<Vec<_>>>()?,
            kv,
            segments: &batch.segments,
            images: &images,
            additions: &image_rows::additions(&x, &batch.overrides)?,
            wanted,
            wanted_rows: some.then(|| Array::from_slice(rows, &[rows.len() as i32])),
            features: vec![None; wanted.len()],
            dtype: self.parts.dtype,
        };
        let x = self.apply(&mut graph, x)?;
        let layers = graph.features.into_iter().flatten().collect();
        let rows = 0..rows.len() as i32;
        let hidden_states =
            wants.hidden_states.as_ref().map(|_| HiddenStates { layers, rows: rows.collect() });
        // The norm is per row, so only rows that are wanted are normed.
        let normed =
            |rows: &[i32]| -> Result<Array> { self.parts.norm.forward(&take_rows(&x, rows)?) };
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
        let vocab = self.info.vocab;
        match ids.iter().find(|id| **id >= vocab as u32) {
            None => self.embedded(&Array::from_slice(ids, &[ids.len() as i32])),
            Some(id) => Err(ModelError::Batch(format!("expected ids below {vocab}, found {id}"))),
        }
    }

    fn embed_chosen(&self, ids: &Array) -> Result<Array> {
        self.embedded(ids)
    }

    fn vision(&self) -> Option<&dyn Vision> {
        self.parts.tower.as_deref()
    }

    fn head(&self, hidden: &Array) -> Result<Array> {
        let logits = match &self.lm_head {
            Some(head) => head.forward(hidden)?,
            None => self.parts.embed_tokens.as_head(hidden)?,
        };
        let logits = logits.as_dtype(Dtype::Float32)?;
        match self.parts.softcap {
            None => Ok(logits),
            Some(cap) => softcap(&logits, cap),
        }
    }

    fn caps_logits(&self) -> bool {
        self.parts.softcap.is_some()
    }
}

/// Rows of `x` `[R, …]`; all of them without a copy.
fn take_rows(x: &Array, rows: &[i32]) -> Result<Array> {
    if rows.len() as i32 == x.dim(0) {
        return Ok(x.clone());
    }
    Ok(x.take_axis(Array::from_slice(rows, &[rows.len() as i32]), 0)?)
}
