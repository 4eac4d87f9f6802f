//! Sizes and kinds of layers of a Gemma 4 checkpoint, from config.json.

use paceline_checkpoint::families::gemma4::{AttentionSizes, KINDS, LayerPlan, Layers, both_ways};

use crate::families::sizes;
use crate::kv::LayerKv;
use crate::layers::{ExpertSizes, NormWeight, Rope};
use crate::load::{ConfigJson, LoadError};

/// A checkpoint's config.
#[derive(Clone, Debug)]
pub(in crate::families) struct Config {
    pub(in crate::families) hidden: i32,
    pub(in crate::families) vocab: i32,
    pub(in crate::families) context: i32,
    pub(in crate::families) eps: f32,
    pub(in crate::families) tied: bool,
    pub(in crate::families) softcap: Option<f32>,
    /// By the number of the kind.
    pub(in crate::families) attention: [AttentionSizes; 2],
    pub(in crate::families) layers: Vec<LayerPlan>,
    pub(in crate::families) experts: Option<ExpertSizes>,
    /// Of per-layer embeddings their width in one layer, and the rows of their table; `None`
    /// without such.
    pub(in crate::families) per_layer: Option<[i32; 2]>,
    /// The id whose row of that table the rows of images get.
    pub(in crate::families) pad: Option<u32>,
    /// Whether rows of an image attend to one another both ways in sliding layers.
    pub(in crate::families) both_ways: bool,
    pub(in crate::families) form: LayerForm,
}

/// What the layers of this family and of Gemma 3 differ in.
#[derive(Clone, Copy, Debug)]
pub(in crate::families) struct LayerForm {
    pub(in crate::families) norms: NormWeight,
    /// Factor of the scores of queries and keys.
    pub(in crate::families) score_scale: f32,
    /// Whether heads of values have a norm without a weight.
    pub(in crate::families) norms_values: bool,
    /// Whether a layer's output is multiplied by a number of its own.
    pub(in crate::families) scales_layers: bool,
}

impl LayerForm {
    const GEMMA4: Self = Self {
        norms: NormWeight::Whole,
        score_scale: 1.0,
        norms_values: true,
        scales_layers: true,
    };
}

impl Config {
    /// # Errors
    /// A key is missing, out of range, or names what is not computed.
    pub(in crate::families) fn read(config: &ConfigJson) -> Result<Self, LoadError> {
        let plain = Self::plain(config, Layers::read(config)?, LayerForm::GEMMA4)?;
        Ok(Self {
            experts: experts(config)?,
            pad: pad(config)?,
            per_layer: per_layer(config)?,
            both_ways: both_ways(config)?,
            ..plain
        })
    }

    /// A model of these layers that has no experts, no per-layer embeddings and no images.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(in crate::families) fn plain(
        config: &ConfigJson,
        Layers { attention, layers }: Layers,
        form: LayerForm,
    ) -> Result<Self, LoadError> {
        config.check_word("hidden_activation", "gelu_pytorch_tanh")?;
        if config.optional("attention_bias")?.unwrap_or(false) {
            let what = "expected false: this version has no biases of this family".into();
            return Err(config.wrong("attention_bias", what).into());
        }
        let softcap: Option<f32> = config.optional("final_logit_softcapping")?;
        if let Some(cap) = softcap.filter(|cap| !(*cap > 0.0 && cap.is_finite())) {
            let what = format!("expected null or a number above 0, found {cap}");
            return Err(config.wrong("final_logit_softcapping", what).into());
        }
        Ok(Self {
            hidden: config.size("hidden_size")?,
            vocab: config.size("vocab_size")?,
            context: config.size("max_position_embeddings")?,
            eps: config.optional("rms_norm_eps")?.unwrap_or(1e-6),
            tied: config.optional("tie_word_embeddings")?.unwrap_or(true),
            softcap,
            attention,
            layers,
            experts: None,
            pad: None,
            per_layer: None,
            both_ways: false,
            form,
        })
    }

    /// The attention of a layer.
    pub(in crate::families) fn attention_of(&self, layer: &LayerPlan) -> AttentionSizes {
        self.attention[layer.kind]
    }

    /// Forms of all layers' keys and values.
    pub(in crate::families) fn kv_layers(&self) -> Vec<LayerKv> {
        let form = |layer: &LayerPlan| match layer.shares {
            Some(of) => LayerKv::Shared(of),
            None => LayerKv::Growing(self.attention_of(layer).kv_heads().into()),
        };
        self.layers.iter().map(form).collect()
    }

    /// The rotation of each kind.
    pub(in crate::families) fn ropes(&self, config: &ConfigJson) -> Result<Vec<Rope>, LoadError> {
        let rope =
            |kind: usize| Rope::load_kind(config, KINDS[kind], self.attention[kind].head_dim);
        (0..KINDS.len()).map(rope).collect()
    }
}

fn experts(config: &ConfigJson) -> Result<Option<ExpertSizes>, LoadError> {
    if !config.optional("enable_moe_block")?.unwrap_or(false) {
        return Ok(None);
    }
    sizes::experts(config, "top_k_experts", config.size("hidden_size")?, true).map(Some)
}

/// The id of padding, if layers read ids.
fn pad(config: &ConfigJson) -> Result<Option<u32>, LoadError> {
    if per_layer(config)?.is_none() {
        return Ok(None);
    }
    let (pad, vocab) =
        (config.optional("pad_token_id")?.unwrap_or(0), config.size("vocab_size")? as u32);
    if pad < vocab {
        return Ok(Some(pad));
    }
    Err(config.wrong("pad_token_id", format!("expected an id below {vocab}, found {pad}")).into())
}

fn per_layer(config: &ConfigJson) -> Result<Option<[i32; 2]>, LoadError> {
    let key = "hidden_size_per_layer_input";
    match config.optional::<i64>(key)? {
        None | Some(0) => Ok(None),
        Some(_) => {
            let (width, vocab) = (config.size(key)?, config.size("vocab_size")?);
            let rows = config.size_or("vocab_size_per_layer_input", vocab)?;
            if rows < vocab {
                let what = format!("expected at least the vocabulary of {vocab}, found {rows}");
                return Err(config.wrong("vocab_size_per_layer_input", what).into());
            }
            Ok(Some([width, rows]))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn base() -> Value {
        json!({"model_type": "gemma4_text", "hidden_size": 64, "num_hidden_layers": 7,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "global_head_dim": 32, "intermediate_size": 96, "vocab_size": 300,
            "max_position_embeddings": 512, "sliding_window": 32})
    }

    #[test]
    fn the_model_without_towers_has_a_window_of_its_own_if_none_is_named() {
        let window = |changes: Value| read(changes).expect("reads").attention[0].window;
        let unnamed = |model_type: &str| json!({"model_type": model_type, "sliding_window": null});
        assert_eq!(window(unnamed("gemma4_text")), Some(512));
        assert_eq!(window(unnamed("gemma4_unified_text")), Some(1024));
        assert_eq!(window(unnamed("gemma4_unified")), Some(1024));
    }

    fn read(changes: Value) -> Result<Config, String> {
        Config::read(&ConfigJson::changed(base(), &changes)).map_err(|error| error.to_string())
    }

    #[test]
    fn without_kinds_every_sixth_layer_and_the_last_attend_to_all_rows() {
        let config = read(json!({})).expect("reads");
        let kinds: Vec<usize> = config.layers.iter().map(|layer| layer.kind).collect();
        assert_eq!(kinds, [0, 0, 0, 0, 0, 1, 1]);
        let window = |at: usize| config.attention_of(&config.layers[at]).window;
        assert_eq!((window(0), window(5)), (Some(32), None));
        assert_eq!((config.softcap, config.experts, config.per_layer), (None, None, None));
    }

    #[test]
    fn the_last_layers_share_with_the_last_of_their_kind_and_may_be_wider() {
        let kinds = ["sliding", "full", "sliding", "full", "sliding", "sliding", "full"];
        let kinds = kinds.map(|kind| format!("{kind}_attention"));
        let shared = json!({"layer_types": kinds, "num_kv_shared_layers": 3,
            "use_double_wide_mlp": true});
        let config = read(shared).expect("reads");
        let shares: Vec<_> = config.layers.iter().map(|layer| layer.shares).collect();
        assert_eq!(shares, [None, None, None, None, Some(2), Some(2), Some(3)]);
        assert_eq!((config.layers[3].intermediate, config.layers[4].intermediate), (96, 192));
        assert_eq!(config.kv_layers()[6], LayerKv::Shared(3));
    }

    #[test]
    fn keys_that_are_values_have_heads_of_their_own_number() {
        let config = read(json!({"attention_k_eq_v": true, "num_global_key_value_heads": 1}));
        let [sliding, full] = config.expect("reads").attention;
        assert_eq!((sliding.n_kv, sliding.k_eq_v, full.n_kv, full.k_eq_v), (2, false, 1, true));
        // Without it the other key has no meaning.
        let config = read(json!({"num_global_key_value_heads": 1})).expect("reads");
        assert_eq!(config.attention[1].n_kv, 2);
    }

    #[test]
    fn what_is_not_computed_is_refused_with_its_key() {
        let refused = [
            (json!({"hidden_activation": "silu"}), "hidden_activation"),
            (json!({"attention_bias": true}), "attention_bias"),
            (json!({"use_bidirectional_attention": "all"}), "use_bidirectional_attention"),
            (json!({"layer_types": ["full_attention"]}), "layer_types"),
            (json!({"num_kv_shared_layers": 7}), "num_kv_shared_layers"),
            (json!({"final_logit_softcapping": 0.0}), "final_logit_softcapping"),
            (json!({"num_hidden_layers": 100_000}), "num_hidden_layers"),
            (json!({"num_key_value_heads": 3}), "num_key_value_heads"),
            (json!({"hidden_size_per_layer_input": -1}), "hidden_size_per_layer_input"),
            (
                json!({"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 20}),
                "vocab_size_per_layer_input",
            ),
            (
                json!({"enable_moe_block": true, "moe_intermediate_size": 8, "num_experts": 2,
                    "top_k_experts": 3}),
                "top_k_experts",
            ),
        ];
        for (changes, key) in refused {
            let error = read(changes.clone()).expect_err("refused");
            assert!(error.contains(key), "{changes}: {error}");
        }
    }
}
