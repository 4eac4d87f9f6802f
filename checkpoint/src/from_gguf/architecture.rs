//! The architectures of GGUF files that are served, and their keys in the metadata.

use crate::error::{FormatError, shown};
use crate::gguf::{self, Metadata};

const ARCHITECTURE: &str = "general.architecture";

/// A kind of models in GGUF.
#[derive(Debug)]
struct GgufArchitecture {
    /// Its name in GGUF, with which its keys begin.
    name: &'static str,
    /// The `model_type` of its config.json.
    model_type: &'static str,
    /// The class of transformers that computes it.
    class: &'static str,
    /// Modules of a layer beside [`COMMON`], as GGUF and as Hugging Face name them.
    modules: &'static [(&'static str, &'static str)],
}

/// Modules that a layer of each architecture has.
const COMMON: [(&str, &str); 5] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
];
const DENSE: [(&str, &str); 4] = [
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
const HEAD_NORMS: [(&str, &str); 2] =
    [("attn_q_norm", "self_attn.q_norm"), ("attn_k_norm", "self_attn.k_norm")];
const DENSE_WITH_HEAD_NORMS: [(&str, &str); 6] =
    [DENSE[0], DENSE[1], DENSE[2], DENSE[3], HEAD_NORMS[0], HEAD_NORMS[1]];

static KINDS: [GgufArchitecture; 6] = [
    GgufArchitecture {
        name: "llama",
        model_type: "llama",
        class: "LlamaForCausalLM",
        modules: &DENSE,
    },
    GgufArchitecture {
        name: "qwen2",
        model_type: "qwen2",
        class: "Qwen2ForCausalLM",
        modules: &DENSE,
    },
    GgufArchitecture {
        name: "qwen3",
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        modules: &DENSE_WITH_HEAD_NORMS,
    },
    GgufArchitecture {
        name: "qwen3moe",
        model_type: "qwen3_moe",
        class: "Qwen3MoeForCausalLM",
        modules: &[
            HEAD_NORMS[0],
            HEAD_NORMS[1],
            ("ffn_norm", "post_attention_layernorm"),
            ("ffn_gate_inp", "mlp.gate"),
            ("ffn_gate_exps", "mlp.switch_mlp.gate_proj"),
            ("ffn_up_exps", "mlp.switch_mlp.up_proj"),
            ("ffn_down_exps", "mlp.switch_mlp.down_proj"),
        ],
    },
    GgufArchitecture {
        name: "gemma3",
        model_type: "gemma3_text",
        class: "Gemma3ForCausalLM",
        modules: &[
            HEAD_NORMS[0],
            HEAD_NORMS[1],
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
            DENSE[1],
            DENSE[2],
            DENSE[3],
        ],
    },
    GgufArchitecture {
        name: "smollm3",
        model_type: "smollm3",
        class: "SmolLM3ForCausalLM",
        modules: &DENSE,
    },
];

/// The architecture of a file, with the metadata that has its keys.
#[derive(Debug)]
pub(super) struct Architecture<'a> {
    /// Its name in GGUF.
    pub(super) name: &'static str,
    kind: &'static GgufArchitecture,
    pub(super) metadata: &'a Metadata<'a>,
}

impl<'a> Architecture<'a> {
    /// The architecture that a file names.
    ///
    /// # Errors
    /// It names none, or one that is not served.
    pub(super) fn of(metadata: &'a Metadata<'a>) -> Result<Self, FormatError> {
        let name = metadata.text(ARCHITECTURE)?;
        let kind = KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| {
            let known: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
            let found = format!(
                "{}, which is not served as GGUF; name the directory of the original model or of \
                 its MLX conversion",
                shown(name)
            );
            gguf::error(ARCHITECTURE, format!("one of {}", known.join(", ")), found)
        })?;
        Ok(Self { name: kind.name, kind, metadata })
    }

    /// The `model_type` of its config.json.
    pub(super) fn model_type(&self) -> &'static str {
        self.kind.model_type
    }

    /// The class of transformers that computes it.
    pub(super) fn class(&self) -> &'static str {
        self.kind.class
    }

    /// The module of a layer with this role, as Hugging Face names it.
    pub(super) fn module(&self, role: &str) -> Option<&'static str> {
        let mut modules = COMMON.iter().chain(self.kind.modules);
        modules.find(|(known, _)| *known == role).map(|(_, module)| *module)
    }

    /// Whether the converter interleaved the halves of the heads of queries and keys.
    pub(super) fn is_interleaved(&self) -> bool {
        matches!(self.name, "llama" | "smollm3")
    }

    /// Whether the converter added 1 to each norm.
    pub(super) fn adds_one_to_norms(&self) -> bool {
        self.name == "gemma3"
    }

    /// A key of the architecture.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.name)
    }

    /// The number under a key of the architecture.
    pub(super) fn count(&self, name: &str) -> Result<u64, FormatError> {
        self.metadata.count(&self.key(name))
    }

    /// What `read` takes from a key of the architecture that need not be there.
    pub(super) fn optional<T>(
        &self,
        name: &str,
        read: impl Fn(&Metadata<'a>, &str) -> Result<T, FormatError>,
    ) -> Result<Option<T>, FormatError> {
        self.metadata.optional(&self.key(name), read)
    }

    /// Heads of queries.
    pub(super) fn heads(&self) -> Result<u64, FormatError> {
        self.for_all_layers("attention.head_count")
    }

    /// Heads of keys and values.
    pub(super) fn kv_heads(&self) -> Result<u64, FormatError> {
        const NAME: &str = "attention.head_count_kv";
        if self.metadata.has(&self.key(NAME)) { self.for_all_layers(NAME) } else { self.heads() }
    }

    /// The number under a key that has one number, or the same one for each layer.
    pub(super) fn for_all_layers(&self, name: &str) -> Result<u64, FormatError> {
        let key = self.key(name);
        match self.metadata.count_or_counts(&key)?.as_slice() {
            [first, others @ ..] if *first > 0 && others.iter().all(|other| other == first) => {
                Ok(*first)
            }
            found => {
                let found = format!("{:?}", found.iter().take(8).collect::<Vec<_>>());
                Err(gguf::error(&key, "one number above 0 for all layers", found))
            }
        }
    }
}
