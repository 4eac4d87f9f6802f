//! Qwen3 dense (arXiv 2505.09388): config → attention → layer → model. Field names are the
//! checkpoint's tensor names. Also the text model of Qwen3-VL (`qwen3_vl.rs`): positions on three
//! axes, a tower beside it. R rows of a batch · H heads · D head_dim.

use std::path::Path;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};

use super::{Target, image_rows};
use crate::batch::{Batch, Forward, Wants};
use crate::error::{ModelError, Result};
use crate::hidden_states::HiddenStates;
use crate::info::TargetInfo;
use crate::kv::{AttentionParams, KvStore, LayerKv};
use crate::layers::{Embedding, GatedMlp, HeadNorm, Linear, RmsNorm, Rope, RopeTables};
use crate::load::{ConfigJson, LoadError, Weights};
use crate::segment::Segment;
use crate::vision::Vision;

/// Sizes of one checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) hidden_size: i32,
    pub(super) n_layers: i32,
    n_heads: i32,
    n_kv_heads: i32,
    pub(super) head_dim: i32,
    intermediate_size: i32,
    pub(super) vocab_size: i32,
    context: i32,
    rms_norm_eps: f32,
    tie_word_embeddings: bool,
    attention_bias: bool,
}

impl Config {
    pub(super) fn read(config: &ConfigJson) -> Result<Self, LoadError> {
        let refuse = |key: &str, what: String| Err(LoadError::Config { key: key.to_owned(), what });
        let (hidden_size, n_heads) =
            (config.size("hidden_size")?, config.size("num_attention_heads")?);
        let read = Self {
            hidden_size,
            n_layers: config.size("num_hidden_layers")?,
            n_heads,
            n_kv_heads: config.size_or("num_key_value_heads", n_heads)?,
            head_dim: config.size_or("head_dim", (hidden_size / n_heads).max(1))?,
            intermediate_size: config.size("intermediate_size")?,
            vocab_size: config.size("vocab_size")?,
            context: config.size("max_position_embeddings")?,
            rms_norm_eps: config.optional("rms_norm_eps")?.unwrap_or(1e-6),
            tie_word_embeddings: config.optional("tie_word_embeddings")?.unwrap_or(false),
            attention_bias: config.optional("attention_bias")?.unwrap_or(false),
        };
        if read.n_heads % read.n_kv_heads != 0 || read.head_dim % 2 != 0 {
            return refuse(
                "num_key_value_heads",
                format!(
                    "expected a divisor of {} heads and an even head_dim, found {} and {}",
                    read.n_heads, read.n_kv_heads, read.head_dim
                ),
            );
        }
        if config.optional::<bool>("use_sliding_window")?.unwrap_or(false) {
            return refuse(
                "use_sliding_window",
                "expected false: this version has no sliding windows".into(),
            );
        }
        let activation: String = config.optional("hidden_act")?.unwrap_or_else(|| "silu".into());
        if activation != "silu" {
            return refuse("hidden_act", format!("expected silu, found {activation}"));
        }
        Ok(read)
    }
}

struct Attention {
    qkv_proj: Linear,
    o_proj: Linear,
    /// q_norm for the query heads, k_norm for the key heads.
    qk_norm: HeadNorm,
    config: Config,
}

impl Attention {
    fn load(weights: &mut Weights, name: &str, config: &Config) -> Result<Self, LoadError> {
        let Config { n_heads, n_kv_heads, head_dim, hidden_size, attention_bias, .. } = *config;
        let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(|part| format!("{name}.{part}"));
        let (wide, narrow) = (n_heads * head_dim, n_kv_heads * head_dim);
        let [q_norm, k_norm] = ["q_norm", "k_norm"].map(|part| format!("{name}.{part}"));
        let qk_norm = HeadNorm::load(
            weights,
            &[(&q_norm, n_heads), (&k_norm, n_kv_heads)],
            head_dim,
            config.rms_norm_eps,
        )?;
        Ok(Self {
            qkv_proj: Linear::load_joined(
                weights,
                &[(&q, wide), (&k, narrow), (&v, narrow)],
                hidden_size,
                attention_bias,
            )?,
            o_proj: Linear::load(
                weights,
                &format!("{name}.o_proj"),
                hidden_size,
                wide,
                attention_bias,
            )?,
            qk_norm,
            config: config.clone(),
        })
    }

    /// `x` `[R, hidden]` → `[R, hidden]`: queries and keys are normed per head, then turned by
    /// their positions.
    fn forward(
        &self,
        layer: usize,
        x: &Array,
        rope: &RopeTables,
        kv: &mut KvStore,
        segments: &[Segment],
    ) -> Result<Array> {
        let Config { n_heads, n_kv_heads, head_dim, .. } = self.config;
        let qkv =
            self.qkv_proj.forward(x)?.reshape(&[x.dim(0), n_heads + 2 * n_kv_heads, head_dim])?;
        let qk = self.qk_norm.forward(&qkv, rope)?;
        let (queries, keys) =
            (qk.try_index((.., ..n_heads, ..))?, qk.try_index((.., n_heads.., ..))?);
        let values = qkv.try_index((.., n_heads + n_kv_heads.., ..))?;
        let params =
            AttentionParams { scale: (head_dim as f32).powf(-0.5), ..AttentionParams::default() };
        self.o_proj.forward(&kv.attend(layer, &queries, &keys, &values, params, segments)?)
    }
}

struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
}

impl Layer {
    fn load(weights: &mut Weights, name: &str, config: &Config) -> Result<Self, LoadError> {
        let norm = |weights: &mut Weights, part: &str| {
            RmsNorm::load(
                weights,
                &format!("{name}.{part}"),
                config.hidden_size,
                config.rms_norm_eps,
            )
        };
        Ok(Self {
            input_layernorm: norm(weights, "input_layernorm")?,
            self_attn: Attention::load(weights, &format!("{name}.self_attn"), config)?,
            post_attention_layernorm: norm(weights, "post_attention_layernorm")?,
            mlp: GatedMlp::load(
                weights,
                &format!("{name}.mlp"),
                config.hidden_size,
                config.intermediate_size,
            )?,
        })
    }

    fn forward(
        &self,
        layer: usize,
        x: &Array,
        rope: &RopeTables,
        kv: &mut KvStore,
        segments: &[Segment],
    ) -> Result<Array> {
        let attended =
            self.self_attn.forward(layer, &self.input_layernorm.forward(x)?, rope, kv, segments)?;
        let x = x.add(&attended)?;
        Ok(x.add(self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?)?)
    }
}

/// What a family of checkpoints calls its tensors, and what it has beside the text model.
pub(super) struct FamilySpec {
    /// `model_type`.
    pub(super) architecture: &'static str,
    /// Prefix of the text model's tensor names.
    pub(super) text: &'static str,
    /// Name of the output head.
    pub(super) head: &'static str,
    pub(super) rope: Rope,
    pub(super) tower: Option<Box<dyn Vision>>,
}

/// A loaded Qwen3.
pub(super) struct Qwen3 {
    info: TargetInfo,
    config: Config,
    dtype: Dtype,
    rope: Rope,
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    /// `None`: tied to the embedding.
    lm_head: Option<Linear>,
    tower: Option<Box<dyn Vision>>,
}

impl Qwen3 {
    pub(super) fn load(
        dir: &Path,
        config: &ConfigJson,
        weights: Weights,
        weight_bytes: u64,
    ) -> Result<Self, LoadError> {
        let sizes = Config::read(config)?;
        let rope = Rope::load(config, sizes.head_dim)?;
        let family =
            FamilySpec { architecture: "qwen3", text: "model", head: "lm_head", rope, tower: None };
        Self::load_family(dir, sizes, weights, weight_bytes, family)
    }

    pub(super) fn load_family(
        dir: &Path,
        sizes: Config,
        mut weights: Weights,
        weight_bytes: u64,
        family: FamilySpec,
    ) -> Result<Self, LoadError> {
        let FamilySpec { architecture, text, head, rope, tower } = family;
        let embed_tokens = format!("{text}.embed_tokens");
        let dtype = weights.dtype_of(&format!("{embed_tokens}.weight"));
        let embed_tokens =
            Embedding::load(&mut weights, &embed_tokens, sizes.vocab_size, sizes.hidden_size)?;
        let layers = (0..sizes.n_layers)
            .map(|at| Layer::load(&mut weights, &format!("{text}.layers.{at}"), &sizes));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let norm = RmsNorm::load(
            &mut weights,
            &format!("{text}.norm"),
            sizes.hidden_size,
            sizes.rms_norm_eps,
        )?;
        let lm_head = match sizes.tie_word_embeddings {
            true => {
                // Some exporters write the tied head out as well.
                let weight = format!("{head}.weight");
                if weights.has(&weight) {
                    weights.take(&weight, &[sizes.vocab_size, sizes.hidden_size])?;
                }
                None
            }
            false => {
                Some(Linear::load(&mut weights, head, sizes.vocab_size, sizes.hidden_size, false)?)
            }
        };
        weights.finish()?;
        let info = TargetInfo {
            path: dir.to_path_buf(),
            architecture: architecture.into(),
            vocab: sizes.vocab_size,
            hidden: sizes.hidden_size,
            n_layers: layers.len(),
            context: sizes.context,
            weight_bytes,
        };
        Ok(Self { info, config: sizes, dtype, rope, embed_tokens, layers, norm, lm_head, tower })
    }
}

impl Target for Qwen3 {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn kv_layers(&self) -> Vec<LayerKv> {
        let Config { n_kv_heads, head_dim, .. } = self.config;
        vec![
            LayerKv { n_kv: n_kv_heads, key_dim: head_dim, value_dim: head_dim, window: None };
            self.layers.len()
        ]
    }

    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn forward(&self, batch: &Batch, kv: &mut KvStore, wants: &Wants) -> Result<Forward> {
        batch.check(&self.info)?;
        let mut x =
            image_rows::place(self.embed_tokens.rows_of(&batch.id_array()?)?, &batch.overrides)?;
        let additions = image_rows::additions(&x, &batch.overrides)?;
        let rope = self.rope.tables(&batch.positions, self.dtype)?;
        let feature_layers =
            wants.hidden_states.as_ref().map_or(&[][..], |wanted| wanted.layers.as_slice());
        let mut features = vec![None; feature_layers.len()];
        for (at, layer) in self.layers.iter().enumerate() {
            x = layer.forward(at, &x, &rope, kv, &batch.segments)?;
            for (feature, wanted) in features.iter_mut().zip(feature_layers) {
                if *wanted == at {
                    *feature = Some(x.clone());
                }
            }
            // Hidden states are taken before the additions: transformers records a layer's own
            // output, before the model adds to it, and drafters are trained on what it records.
            // (vLLM takes them after the addition. The two differ at an image's rows alone.)
            for (_, addition) in additions.iter().filter(|(layer, _)| *layer == at) {
                x = x.add(addition)?;
            }
        }
        let hidden_states = match &wants.hidden_states {
            None => None,
            Some(wanted) => {
                let all: Option<Vec<Array>> = features.into_iter().collect();
                let missing = || {
                    ModelError::Batch(format!(
                        "expected feature layers below {}, found {:?}",
                        self.layers.len(),
                        wanted.layers
                    ))
                };
                Some(HiddenStates { layers: all.ok_or_else(missing)?, rows: wanted.rows.clone() })
            }
        };
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
        match ids.iter().find(|id| **id >= self.config.vocab_size as u32) {
            None => self.embed_tokens.rows(ids),
            Some(id) => Err(ModelError::Batch(format!(
                "expected ids below {}, found {id}",
                self.config.vocab_size
            ))),
        }
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
