//! The one layer of an EAGLE-3 drafter, and what it reads of its target. Features → attention →
//! layer. R rows. Field names are the checkpoint's tensor names.

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::config::{Config, FeatureNorm};
use crate::error::Result;
use crate::kv::{AttentionParams, KvStore};
use crate::layers::{GatedMlp, HeadNorm, HeadRows, Linear, RmsNorm, RopeTables, last_rows};
use crate::load::{LoadError, Weights};
use crate::segment::QuerySegments;

/// The projection of the target's hidden states.
pub(super) struct Features {
    /// One for all layers together, one for each, or none.
    norms: Vec<RmsNorm>,
    fc: Linear,
}

impl Features {
    pub(super) fn load(weights: &mut Weights, config: &Config) -> Result<Self, LoadError> {
        let Config { hidden_size, target_hidden_size: each, rms_norm_eps, .. } = *config;
        let count = config.feature_layers.len() as i32;
        let mut norm = |name: String, size| RmsNorm::load(weights, &name, size, rms_norm_eps);
        let norms = match config.feature_norm {
            FeatureNorm::None => vec![],
            FeatureNorm::Whole => vec![norm("input_norm".into(), count * each)?],
            FeatureNorm::Each => {
                let norms = (0..count).map(|at| norm(format!("fc_norm.{at}"), each));
                norms.collect::<Result<_, _>>()?
            }
        };
        Ok(Self { norms, fc: Linear::load(weights, "fc", hidden_size, count * each, false)? })
    }

    /// Hidden states `[R, layers · target's hidden]` → `[R, hidden]`.
    pub(super) fn forward(&self, states: &Array) -> Result<Array> {
        let normed = match self.norms.as_slice() {
            [] => states.clone(),
            [whole] => whole.forward(states)?,
            each => {
                let parts = states.split_equal(each.len() as i32, 1)?;
                let parts = each.iter().zip(&parts).map(|(norm, part)| norm.forward(part));
                concatenate(&parts.collect::<Result<Vec<_>>>()?, 1)?
            }
        };
        self.fc.forward(&normed)
    }
}

struct Attention {
    q_proj: Linear,
    kv_proj: Linear,
    o_proj: Linear,
    /// q_norm and k_norm of a Qwen3 layer.
    head_norms: Option<[HeadNorm; 2]>,
    n_heads: i32,
    n_kv_heads: i32,
    head_dim: i32,
}

impl Attention {
    fn load(weights: &mut Weights, config: &Config) -> Result<Self, LoadError> {
        let Config { n_heads, n_kv_heads, head_dim, hidden_size, attention_bias: bias, .. } =
            *config;
        let name = |part: &str| format!("layers.0.self_attn.{part}");
        let [q, k, v, o] = ["q_proj", "k_proj", "v_proj", "o_proj"].map(name);
        let (wide, narrow) = (n_heads * head_dim, n_kv_heads * head_dim);
        // Embedding and hidden state side by side.
        let input = 2 * hidden_size;
        let mut norm = |part: &str, heads: i32| {
            HeadNorm::load(weights, &[(&name(part), heads)], head_dim, config.rms_norm_eps)
        };
        let head_norms = match config.head_norms {
            true => Some([norm("q_norm", n_heads)?, norm("k_norm", n_kv_heads)?]),
            false => None,
        };
        Ok(Self {
            q_proj: Linear::load(weights, &q, wide, input, bias)?,
            kv_proj: Linear::load_joined(weights, &[(&k, narrow), (&v, narrow)], input, bias)?,
            o_proj: Linear::load(weights, &o, hidden_size, wide, bias)?,
            head_norms,
            n_heads,
            n_kv_heads,
            head_dim,
        })
    }

    /// `x` `[R, 2 · hidden]`: writes the rows' keys and values. The last rows attend, as many as
    /// `rows` has queries → `[queries, hidden]`, `None` without queries.
    fn forward(
        &self,
        x: &Array,
        rows: &QuerySegments,
        rope: &RopeTables,
        kv: &mut KvStore,
    ) -> Result<Option<Array>> {
        let Self { n_heads, n_kv_heads, head_dim, .. } = *self;
        let both = self.kv_proj.forward(x)?.reshape(&[x.dim(0), 2 * n_kv_heads, head_dim])?;
        let keys = match &self.head_norms {
            Some([_, k_norm]) => k_norm.forward(&both, rope)?,
            None => rope.apply_to(&both, n_kv_heads)?,
        };
        let values = HeadRows::new(&both, n_kv_heads..2 * n_kv_heads);
        let count = rows.count();
        if count == 0 {
            kv.write(0, &keys, values, Some(&rows.queries), &rows.segments)?;
            return Ok(None);
        }
        let queries = self.q_proj.forward(&last_rows(x, count)?)?;
        let queries = queries.reshape(&[count, n_heads, head_dim])?;
        let rope = rope.last(count)?;
        let queries = match &self.head_norms {
            Some([q_norm, _]) => q_norm.forward(&queries, &rope)?,
            None => rope.apply_to(&queries, n_heads)?,
        };
        let params = AttentionParams {
            scale: (head_dim as f32).powf(-0.5),
            queries: Some(&rows.queries),
            ..AttentionParams::default()
        };
        let attended = kv.attend(0, &queries, &keys, values, params, &rows.segments)?;
        self.o_proj.forward(&attended).map(Some)
    }
}

/// The layer. Its input is an embedding and a hidden state, each with a norm of its own.
pub(super) struct Layer {
    input_layernorm: RmsNorm,
    hidden_norm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
    norm_before_residual: bool,
}

impl Layer {
    pub(super) fn load(weights: &mut Weights, config: &Config) -> Result<Self, LoadError> {
        let Config { hidden_size, intermediate_size, mlp_bias, rms_norm_eps, .. } = *config;
        let norm = |weights: &mut Weights, part: &str| {
            RmsNorm::load(weights, &format!("layers.0.{part}"), hidden_size, rms_norm_eps)
        };
        Ok(Self {
            input_layernorm: norm(weights, "input_layernorm")?,
            hidden_norm: norm(weights, "hidden_norm")?,
            self_attn: Attention::load(weights, config)?,
            post_attention_layernorm: norm(weights, "post_attention_layernorm")?,
            mlp: GatedMlp::load(weights, "layers.0.mlp", hidden_size, intermediate_size, mlp_bias)?,
            norm_before_residual: config.norm_before_residual,
        })
    }

    /// `embeddings` and `hidden` `[R, hidden]` → `[queries, hidden]`, before the final norm; `None`
    /// without queries.
    pub(super) fn forward(
        &self,
        embeddings: &Array,
        hidden: &Array,
        rows: &QuerySegments,
        rope: &RopeTables,
        kv: &mut KvStore,
    ) -> Result<Option<Array>> {
        let normed = self.hidden_norm.forward(hidden)?;
        let x = concatenate(&[&self.input_layernorm.forward(embeddings)?, &normed], 1)?;
        let Some(attended) = self.self_attn.forward(&x, rows, rope, kv)? else { return Ok(None) };
        let residual = if self.norm_before_residual { &normed } else { hidden };
        let x = last_rows(residual, attended.dim(0))?.add(&attended)?;
        Ok(Some(x.add(self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?)?))
    }
}
