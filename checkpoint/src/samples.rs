//! Tiny GGUF files, for tests: of the architecture `llama` with the types of SmolLM2's file, and of each
//! architecture that is served.

/// A GGUF file in parts, which a test may change.
#[derive(Clone, Debug)]
pub struct SampleGguf {
    /// Version of the format.
    pub version: u32,
    /// Key, number of the type, and bytes of each value.
    pub pairs: Vec<(String, u32, Vec<u8>)>,
    /// Tensors in the order in which the file has them.
    pub tensors: Vec<SampleTensor>,
}

/// A tensor of a [`SampleGguf`].
#[derive(Clone, Debug)]
pub struct SampleTensor {
    /// Name of the tensor.
    pub name: String,
    /// Dimensions from the innermost on.
    pub dimensions: Vec<u64>,
    /// Number of the type.
    pub kind: u32,
    /// Bytes of the blocks, row after row.
    pub data: Vec<u8>,
}

/// Multiple at which the data and each tensor begin.
const ALIGNMENT: usize = 32;

/// Roles of the matrices of a layer, and their rows.
const LAYER: [(&str, u64); 7] = [
    ("attn_q", 32),
    ("attn_k", 16),
    ("attn_v", 16),
    ("attn_output", 32),
    ("ffn_gate", 32),
    ("ffn_up", 32),
    ("ffn_down", 32),
];

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn array(kind: u32, items: &[Vec<u8>]) -> Vec<u8> {
    let head = [&kind.to_le_bytes()[..], &(items.len() as u64).to_le_bytes()].concat();
    [head, items.concat()].concat()
}

impl SampleGguf {
    /// A model of one layer with 6 tokens, 32 channels, two heads and one KV head.
    pub fn llama() -> Self {
        let mut sample = Self::without_tensors("llama");
        sample.set_count("llama.vocab_size", 6);
        sample.set_count("tokenizer.ggml.unknown_token_id", 0);
        sample.set_count("tokenizer.ggml.padding_token_id", 2);
        sample.set_text("tokenizer.ggml.pre", "smollm");
        sample.set_text("tokenizer.chat_template", "{{ messages }}");
        sample.add("token_embd.weight", &[32, 6], 8);
        for (name, rows) in LAYER {
            sample.add(&format!("blk.0.{name}.weight"), &[32, rows], 3);
        }
        for name in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"] {
            sample.add(&format!("{name}.weight"), &[32], 0);
        }
        sample
    }

    /// A model of this architecture, of two layers that are as large as those of [`SampleGguf::llama`].
    /// Matrices are Q8_0.
    ///
    /// # Panics
    /// The architecture is not served.
    pub fn of(architecture: &str) -> Self {
        let mut sample = Self::without_tensors(architecture);
        sample.set_count(&format!("{architecture}.block_count"), 2);
        sample.add("token_embd.weight", &[32, 6], 8);
        sample.add("output_norm.weight", &[32], 0);
        for layer in 0..2 {
            for (name, rows) in LAYER {
                let is_expert = architecture == "qwen3moe" && name.starts_with("ffn");
                match is_expert {
                    false => sample.add(&format!("blk.{layer}.{name}.weight"), &[32, rows], 8),
                    true => sample.add(&format!("blk.{layer}.{name}_exps.weight"), &[32, 32, 4], 8),
                }
            }
            let vectors: &[(&str, u64)] = match architecture {
                "llama" | "smollm3" => &[],
                "qwen2" => &[("attn_q.bias", 32), ("attn_k.bias", 16), ("attn_v.bias", 16)],
                "qwen3" | "qwen3moe" => &[("attn_q_norm.weight", 16), ("attn_k_norm.weight", 16)],
                "gemma3" => &[
                    ("attn_q_norm.weight", 16),
                    ("attn_k_norm.weight", 16),
                    ("post_attention_norm.weight", 32),
                    ("post_ffw_norm.weight", 32),
                ],
                other => panic!("no sample of {other}"),
            };
            let norms = [("attn_norm.weight", 32), ("ffn_norm.weight", 32)];
            for (name, length) in norms.iter().chain(vectors) {
                sample.add(&format!("blk.{layer}.{name}"), &[*length], 0);
            }
            if architecture == "qwen3moe" {
                sample.add(&format!("blk.{layer}.ffn_gate_inp.weight"), &[32, 4], 0);
            }
        }
        match architecture {
            "llama" => sample.set_text("tokenizer.ggml.pre", "smollm"),
            "smollm3" => sample.set_text("tokenizer.ggml.pre", "llama-bpe"),
            "gemma3" => {
                sample.set_count("gemma3.attention.sliding_window", 16);
                sample.set_text("tokenizer.ggml.model", "llama");
                sample.set_floats("tokenizer.ggml.scores", &[0.0, 0.0, 0.0, -1.0, -2.0, -0.5]);
            }
            _ => sample.set_text("tokenizer.ggml.pre", "qwen2"),
        }
        if architecture == "qwen3moe" {
            for (key, count) in
                [("expert_count", 4), ("expert_used_count", 2), ("expert_feed_forward_length", 32)]
            {
                sample.set_count(&format!("qwen3moe.{key}"), count);
            }
        }
        sample
    }

    /// The metadata that all samples have.
    fn without_tensors(architecture: &str) -> Self {
        let mut sample = Self { version: 3, pairs: vec![], tensors: vec![] };
        sample.set_text("general.architecture", architecture);
        for (key, number) in [
            ("block_count", 1),
            ("context_length", 64),
            ("embedding_length", 32),
            ("feed_forward_length", 32),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
        ] {
            sample.set_count(&format!("{architecture}.{key}"), number);
        }
        sample.set_float(&format!("{architecture}.attention.layer_norm_rms_epsilon"), 1e-5);
        sample.set_float(&format!("{architecture}.rope.freq_base"), 1e5);
        sample.set_text("tokenizer.ggml.model", "gpt2");
        let tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab"];
        sample.set_tokens(&tokens, &[3, 3, 3, 1, 1, 1]);
        sample.set_texts("tokenizer.ggml.merges", &["a b"]);
        sample.set_count("tokenizer.ggml.bos_token_id", 1);
        sample.set_count("tokenizer.ggml.eos_token_id", 2);
        sample
    }

    /// Adds a tensor with other bytes in each block, and small scales and offsets.
    pub fn add(&mut self, name: &str, dimensions: &[u64], kind: u32) {
        self.tensors.push(tensor(name, dimensions, kind));
    }

    /// Takes a key away.
    pub fn unset(&mut self, key: &str) {
        self.pairs.retain(|(other, ..)| other != key);
    }

    /// Gives the model these tokens, of these kinds.
    pub fn set_tokens(&mut self, tokens: &[&str], kinds: &[i32]) {
        self.set_texts("tokenizer.ggml.tokens", tokens);
        let kinds: Vec<_> = kinds.iter().map(|kind| kind.to_le_bytes().to_vec()).collect();
        self.set("tokenizer.ggml.token_type", 9, array(5, &kinds));
    }

    fn set(&mut self, key: &str, kind: u32, bytes: Vec<u8>) {
        self.unset(key);
        self.pairs.push((key.to_owned(), kind, bytes));
    }

    /// Gives a key a whole number as its value.
    pub fn set_count(&mut self, key: &str, value: u32) {
        self.set(key, 4, value.to_le_bytes().to_vec());
    }

    /// Gives a key a number as its value.
    pub fn set_float(&mut self, key: &str, value: f32) {
        self.set(key, 6, value.to_le_bytes().to_vec());
    }

    /// Gives a key a truth value.
    pub fn set_flag(&mut self, key: &str, value: bool) {
        self.set(key, 7, vec![value.into()]);
    }

    /// Gives a key a list of texts as its value.
    pub fn set_texts(&mut self, key: &str, values: &[&str]) {
        let items: Vec<_> = values.iter().map(|value| text(value)).collect();
        self.set(key, 9, array(8, &items));
    }

    /// Gives a key a list of numbers as its value.
    pub fn set_floats(&mut self, key: &str, values: &[f32]) {
        let items: Vec<_> = values.iter().map(|value| value.to_le_bytes().to_vec()).collect();
        self.set(key, 9, array(6, &items));
    }

    /// Gives a key a text as its value.
    pub fn set_text(&mut self, key: &str, value: &str) {
        self.set(key, 8, text(value));
    }

    /// Bytes of the GGUF file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut file = [&b"GGUF"[..], &self.version.to_le_bytes()].concat();
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, kind, bytes) in &self.pairs {
            file.extend([text(key), kind.to_le_bytes().to_vec(), bytes.clone()].concat());
        }
        let mut data = vec![];
        for SampleTensor { name, dimensions, kind, data: blocks } in &self.tensors {
            file.extend(text(name));
            file.extend((dimensions.len() as u32).to_le_bytes());
            file.extend(dimensions.iter().flat_map(|length| length.to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend((data.len() as u64).to_le_bytes());
            data.extend(blocks);
            data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
        }
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        [file, data].concat()
    }
}

/// A tensor with other bytes in each block, and small scales and offsets.
fn tensor(name: &str, dimensions: &[u64], kind: u32) -> SampleTensor {
    let values: u64 = dimensions.iter().product();
    let (block_values, block_bytes, halves) = match kind {
        3 => (32, 20, 2),
        8 => (32, 34, 1),
        _ => (1, 4, 0),
    };
    let mut data = vec![];
    for block in 0..values / block_values {
        let mut bytes: Vec<u8> = (0..block_bytes).map(|at| (block * 7 + at * 13) as u8).collect();
        for half in 0..halves {
            // Between 2^-9 and 2^-7 in float16.
            let number = 0x1800 + (block as u16 % 0x400) + half * 0x400;
            bytes[usize::from(half) * 2..][..2].copy_from_slice(&number.to_le_bytes());
        }
        data.extend(bytes);
    }
    SampleTensor { name: name.to_owned(), dimensions: dimensions.to_vec(), kind, data }
}
