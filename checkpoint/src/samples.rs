//! A tiny GGUF file of the architecture `llama`, for tests.

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
        let mut pairs = vec![];
        let mut pair = |key: &str, kind: u32, bytes: Vec<u8>| {
            pairs.push((key.to_owned(), kind, bytes));
        };
        pair("general.architecture", 8, text("llama"));
        for (key, number) in [
            ("llama.block_count", 1),
            ("llama.context_length", 64),
            ("llama.embedding_length", 32),
            ("llama.feed_forward_length", 32),
            ("llama.attention.head_count", 2),
            ("llama.attention.head_count_kv", 1),
            ("llama.vocab_size", 6),
            ("tokenizer.ggml.bos_token_id", 1),
            ("tokenizer.ggml.eos_token_id", 2),
            ("tokenizer.ggml.unknown_token_id", 0),
            ("tokenizer.ggml.padding_token_id", 2),
        ] {
            pair(key, 4, u32::to_le_bytes(number).to_vec());
        }
        pair("llama.attention.layer_norm_rms_epsilon", 6, 1e-5_f32.to_le_bytes().to_vec());
        pair("llama.rope.freq_base", 6, 1e5_f32.to_le_bytes().to_vec());
        pair("tokenizer.ggml.model", 8, text("gpt2"));
        pair("tokenizer.ggml.pre", 8, text("smollm"));
        let tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab"].map(text);
        pair("tokenizer.ggml.tokens", 9, array(8, &tokens));
        let types = [3, 3, 3, 1, 1, 1].map(|kind| i32::to_le_bytes(kind).to_vec());
        pair("tokenizer.ggml.token_type", 9, array(5, &types));
        pair("tokenizer.ggml.merges", 9, array(8, &[text("a b")]));
        pair("tokenizer.chat_template", 8, text("{{ messages }}"));
        let mut tensors = vec![tensor("token_embd.weight", &[32, 6], 8)];
        for (name, rows) in [
            ("attn_q", 32),
            ("attn_k", 16),
            ("attn_v", 16),
            ("attn_output", 32),
            ("ffn_gate", 32),
            ("ffn_up", 32),
            ("ffn_down", 32),
        ] {
            tensors.push(tensor(&format!("blk.0.{name}.weight"), &[32, rows], 3));
        }
        for name in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"] {
            tensors.push(tensor(&format!("{name}.weight"), &[32], 0));
        }
        Self { version: 3, pairs, tensors }
    }

    /// Gives a key a text as its value.
    pub fn set_text(&mut self, key: &str, value: &str) {
        self.pairs.retain(|(other, ..)| other != key);
        self.pairs.push((key.to_owned(), 8, text(value)));
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
