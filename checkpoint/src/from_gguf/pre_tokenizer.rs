//! How a byte-level vocabulary cuts a text into words: by the name in `tokenizer.ggml.pre`, the steps of
//! the publisher's tokenizer.json. Where llama.cpp's own steps differ, the publisher's count.

use serde_json::{Value, json};

/// The cuts that a name stands for.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    /// The text is put into NFC first.
    pub(super) composes: bool,
    steps: &'static [CutStep],
    /// A word that is a token becomes this token, whatever the merges would make of it.
    pub(super) ignores_merges: bool,
    /// Whether a text begins with the token for it, if the file does not say it.
    pub(super) adds_begin: bool,
}

#[derive(Debug)]
enum CutStep {
    /// Occurrences of an expression and the texts between them are words.
    Split(&'static str),
    /// Each digit is a word.
    Digits,
    /// GPT-2's expression.
    Gpt2,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Han characters, Hangul and what lies between them.
const CJK: &str = "[一-龥ࠀ-一가-\u{d7ff}]+";
/// Letters with a case. The publisher lists them one by one, without Georgian's newer ones.
const CASED: &str = r"\s?[\p{Lu}\p{Ll}\p{Lt}&&[^ა-ჿ]]+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

const PLAIN: PreTokenizer = PreTokenizer {
    names: &["gpt-2"],
    composes: false,
    steps: &[CutStep::Gpt2],
    ignores_merges: false,
    adds_begin: false,
};

/// The names that are known. Sources: tokenizer.json of the publishers; llama-vocab.cpp of llama.cpp for
/// the names, and for `default`, which no publisher has.
static KNOWN: [PreTokenizer; 13] = [
    PLAIN,
    PreTokenizer {
        names: &["default"],
        steps: &[
            CutStep::Split(r"[\p{P}\$\+<=>\^~\|]+"),
            CutStep::Split(GPT2),
            CutStep::Split(r"\p{N}+"),
            CutStep::Split("[0-9][0-9][0-9]"),
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen"],
        composes: true,
        steps: &[CutStep::Split(QWEN2)],
        ..PLAIN
    },
    PreTokenizer { names: &["qwen35"], composes: true, steps: &[CutStep::Split(QWEN35)], ..PLAIN },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3"],
        steps: &[CutStep::Split(LLAMA3)],
        ignores_merges: true,
        adds_begin: true,
        ..PLAIN
    },
    PreTokenizer { names: &["smaug-bpe", "dbrx"], steps: &[CutStep::Split(LLAMA3)], ..PLAIN },
    PreTokenizer {
        names: &["tekken"],
        steps: &[CutStep::Split(TEKKEN)],
        ignores_merges: true,
        adds_begin: true,
        ..PLAIN
    },
    PreTokenizer { names: &["gpt-4o"], steps: &[CutStep::Split(GPT4O)], ..PLAIN },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact"],
        steps: &[CutStep::Digits, CutStep::Gpt2],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        steps: &[
            CutStep::Split(r"[\r\n]"),
            CutStep::Split(CASED),
            CutStep::Split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            CutStep::Split(r"\s+$"),
            CutStep::Split(CJK),
            CutStep::Digits,
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        steps: &[
            CutStep::Split(r"[\r\n]"),
            CutStep::Split(r"\s?\p{L}+"),
            CutStep::Split(r"\s?\p{P}+"),
            CutStep::Split(CJK),
            CutStep::Digits,
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-v3"],
        steps: &[
            CutStep::Split(r"\p{N}{1,3}"),
            CutStep::Split("[一-龥぀-ゟ゠-ヿ]+"),
            CutStep::Split(DEEPSEEK_V3),
        ],
        ..PLAIN
    },
    PreTokenizer { names: &["stablelm2"], steps: &[CutStep::Split(QWEN2)], ..PLAIN },
];

impl PreTokenizer {
    /// The cuts of this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        KNOWN.iter().find(|known| known.names.contains(&name))
    }

    /// All names that are known.
    pub(super) fn names() -> String {
        KNOWN.iter().flat_map(|known| known.names).copied().collect::<Vec<_>>().join(", ")
    }

    /// The `pre_tokenizer` of tokenizer.json. The last step writes bytes as letters.
    pub(super) fn json(&self) -> Value {
        let split = |pattern: &str| {
            json!({
                "type": "Split",
                "pattern": { "Regex": pattern },
                "behavior": "Isolated",
                "invert": false,
            })
        };
        let cuts = self.steps.iter().filter_map(|step| match step {
            CutStep::Split(pattern) => Some(split(pattern)),
            CutStep::Digits => Some(json!({ "type": "Digits", "individual_digits": true })),
            CutStep::Gpt2 => None,
        });
        let by_gpt2 = self.steps.iter().any(|step| matches!(step, CutStep::Gpt2));
        let steps: Vec<Value> = cuts.chain([byte_level(by_gpt2)]).collect();
        json!({ "type": "Sequence", "pretokenizers": steps })
    }
}

/// The step that writes each byte as a letter. It may cut by GPT-2's expression first.
pub(super) fn byte_level(cuts: bool) -> Value {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": false,
        "use_regex": cuts,
    })
}
