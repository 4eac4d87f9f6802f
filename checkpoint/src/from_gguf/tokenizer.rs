//! The files of the tokenizer, made of the metadata of a GGUF file: tokenizer.json, tokenizer_config.json
//! and the ids of generation_config.json. Two kinds of vocabularies are known: byte-level ones with
//! merges (`gpt2`), and pieces with scores and bytes (`llama`).

use serde_json::{Map, Value, json};

use super::notes::Notes;
use super::pieces;
use super::pre_tokenizer::{PreTokenizer, byte_level};
use super::vocabulary::{GgufVocabulary, NamedToken, TokenKind};
use crate::error::{FormatError, shown};
use crate::gguf::{self, Metadata};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";
/// Stands for a space in pieces.
const SPACE: &str = "▁";

/// Files of the tokenizer, and the ids that config.json repeats.
#[derive(Debug)]
pub(super) struct TokenizerFiles {
    /// tokenizer.json.
    pub(super) tokenizer: Value,
    /// tokenizer_config.json.
    pub(super) settings: Value,
    /// generation_config.json.
    pub(super) generation: Value,
    /// Tokens that the vocabulary has.
    pub(super) tokens: usize,
}

/// What differs between the kinds of vocabularies.
struct Form {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    /// Steps that come before the tokens around a text.
    post_processor: Option<Value>,
    /// Keys of the model.
    model: Map<String, Value>,
    /// The tokens for begin and end, if the file names none.
    usual: [Option<usize>; 2],
    /// Whether a text begins with the token for it, if the file does not say it.
    adds_begin: bool,
    /// Whether the publisher has an added token of this kind and this text as a special one.
    is_special: fn(TokenKind, &str) -> bool,
}

impl TokenizerFiles {
    /// Makes the files.
    ///
    /// # Errors
    /// The kind of the vocabulary or the name of its cuts is not known, or the metadata contradicts
    /// itself.
    pub(super) fn of(metadata: &Metadata<'_>, notes: &mut Notes<'_>) -> Result<Self, FormatError> {
        let (vocabulary, form) = match metadata.text(MODEL)? {
            "gpt2" => {
                let vocabulary = GgufVocabulary::read(metadata, None)?;
                let form = byte_level_form(metadata, &vocabulary, notes)?;
                (vocabulary, form)
            }
            "llama" => {
                let vocabulary = GgufVocabulary::read(metadata, Some(SPACE))?;
                let form = pieces_form(metadata, &vocabulary)?;
                (vocabulary, form)
            }
            other => {
                let found = format!(
                    "{}, which is not served as GGUF; name the directory of the original model",
                    shown(other)
                );
                return Err(gguf::error(MODEL, "\"gpt2\" or \"llama\"", found));
            }
        };
        Self::assembled(metadata, &vocabulary, form, notes)
    }

    fn assembled(
        metadata: &Metadata<'_>,
        vocabulary: &GgufVocabulary<'_>,
        form: Form,
        notes: &mut Notes<'_>,
    ) -> Result<Self, FormatError> {
        let mut purposes = [None; 2];
        for (at, name) in ["bos", "eos"].into_iter().enumerate() {
            let usual = || form.usual[at].and_then(|id| vocabulary.token(id));
            purposes[at] = vocabulary.named(name)?.or_else(usual);
        }
        let [begin, end] = purposes;
        let stated = |key: &str| metadata.optional(key, Metadata::flag);
        let adds_begin = stated("tokenizer.ggml.add_bos_token")?.unwrap_or(form.adds_begin);
        let adds_end = stated("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
        let around = [begin.filter(|_| adds_begin), end.filter(|_| adds_end)];
        if adds_begin && begin.is_none() {
            notes.sentences.push(
                "the file names no token for the begin of a text, so a text begins without one"
                    .to_owned(),
            );
        }
        if end.is_none() {
            notes.sentences.push("the file names no token that ends a text".to_owned());
        }
        let ends = vocabulary.ends(end)?;
        let pad = vocabulary.named("padding")?;
        let text = |token: Option<NamedToken<'_>>| token.map(|token| token.text.to_owned());
        let settings = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": adds_begin,
            "add_eos_token": adds_end,
            "bos_token": text(begin),
            "eos_token": text(end),
            "pad_token": text(pad),
            "clean_up_tokenization_spaces": false,
            "chat_template": chat_template(metadata, notes)?,
        });
        let id = |token: Option<NamedToken<'_>>| token.map(|token| token.id);
        let generation = json!({
            "bos_token_id": id(begin),
            "eos_token_id": ends,
            "pad_token_id": id(pad),
            "do_sample": false,
        });
        let tokens = vocabulary.tokens.len();
        Ok(Self { tokenizer: tokenizer(vocabulary, form, around), settings, generation, tokens })
    }
}

/// tokenizer.json.
fn tokenizer(
    vocabulary: &GgufVocabulary<'_>,
    form: Form,
    around: [Option<NamedToken<'_>>; 2],
) -> Value {
    let added = vocabulary.iter().filter_map(|(id, text, kind)| {
        if matches!(kind, TokenKind::Normal | TokenKind::Unused | TokenKind::Byte) {
            return None;
        }
        Some(json!({
            "id": id,
            "content": text,
            "single_word": false,
            "lstrip": false,
            "rstrip": false,
            "normalized": false,
            "special": (form.is_special)(kind, text),
        }))
    });
    let added: Vec<Value> = added.collect();
    let mut model = form.model;
    // Added tokens are among the others, so that each keeps its id.
    let vocab: Map<String, Value> =
        vocabulary.iter().map(|(id, text, _)| (text.to_owned(), id.into())).collect();
    model.insert("vocab".to_owned(), Value::Object(vocab));
    let steps = form.post_processor.into_iter().chain(template(around));
    let steps: Vec<Value> = steps.collect();
    let post_processor = match steps.as_slice() {
        [] => Value::Null,
        [one] => one.clone(),
        _ => json!({ "type": "Sequence", "processors": steps }),
    };
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": form.normalizer,
        "pre_tokenizer": form.pre_tokenizer,
        "post_processor": post_processor,
        "decoder": form.decoder,
        "model": model,
    })
}

/// Checks that each merge is of two tokens, and that the whole is one: `tokenizers` reads no others.
fn check_merges(merges: &[&str], vocabulary: &GgufVocabulary<'_>) -> Result<(), FormatError> {
    let ids = vocabulary.ids()?;
    let is_known = |(left, right): (&str, &str)| {
        let whole = [left, right].concat();
        [left, right, &whole].into_iter().all(|text| ids.contains_key(text))
    };
    let is_merge = |merge: &&&str| merge.split_once(' ').is_some_and(is_known);
    match merges.iter().find(|merge| !is_merge(merge)) {
        None => Ok(()),
        Some(merge) => {
            let expected = "two tokens with a space between them, whose texts together are a token";
            Err(gguf::error(MERGES, expected, shown(merge)))
        }
    }
}

/// A byte-level vocabulary with merges.
fn byte_level_form(
    metadata: &Metadata<'_>,
    vocabulary: &GgufVocabulary<'_>,
    notes: &mut Notes<'_>,
) -> Result<Form, FormatError> {
    let name = metadata.optional(PRE, Metadata::text)?;
    let pre = PreTokenizer::named(name.unwrap_or("default")).ok_or_else(|| {
        let found = format!(
            "{}, whose cuts are not known; name the directory of the original model",
            shown(name.unwrap_or_default())
        );
        gguf::error(PRE, format!("one of {}", PreTokenizer::names()), found)
    })?;
    if matches!(name, None | Some("default")) {
        notes.sentences.push(
            "the file does not say how its tokenizer cuts a text into words: the cuts that llama.cpp \
             calls default are assumed, and other tokens than the original's may result"
                .to_owned(),
        );
    }
    let merges = metadata.texts(MERGES)?;
    check_merges(&merges, vocabulary)?;
    let model = json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": null,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": false,
        "byte_fallback": false,
        "ignore_merges": pre.ignores_merges,
        "merges": merges,
    });
    Ok(Form {
        normalizer: if pre.composes { json!({ "type": "NFC" }) } else { Value::Null },
        pre_tokenizer: pre.json(),
        decoder: byte_level(false),
        post_processor: Some(byte_level(false)),
        model: keys(model),
        usual: [None; 2],
        adds_begin: pre.adds_begin,
        is_special: if pre.composes { is_special_of_qwen } else { |kind, _| !is_text(kind) },
    })
}

/// Whether added tokens of this kind are text.
fn is_text(kind: TokenKind) -> bool {
    kind == TokenKind::UserDefined
}

/// Qwen's marks of code are text: the converter of llama.cpp takes each `<|…|>` for a control token.
fn is_special_of_qwen(kind: TokenKind, text: &str) -> bool {
    let is_mark = text.starts_with("<|fim_") || matches!(text, "<|repo_name|>" | "<|file_sep|>");
    !is_text(kind) && !is_mark
}

/// Gemma's marks of images are no text: the converter takes them for tokens of the user.
fn is_special_piece(kind: TokenKind, text: &str) -> bool {
    !is_text(kind) || matches!(text, "<start_of_image>" | "<end_of_image>" | "<image_soft_token>")
}

/// A vocabulary of pieces with scores.
fn pieces_form(
    metadata: &Metadata<'_>,
    vocabulary: &GgufVocabulary<'_>,
) -> Result<Form, FormatError> {
    const STRIPS: &str = "tokenizer.ggml.remove_extra_whitespaces";
    if metadata.optional(STRIPS, Metadata::flag)? == Some(true) {
        return Err(gguf::error(STRIPS, "false: spaces stay as they are", true));
    }
    // Refuses a text that is two tokens.
    vocabulary.ids()?;
    let scores = metadata.floats("tokenizer.ggml.scores")?;
    let prefix = metadata.optional("tokenizer.ggml.add_space_prefix", Metadata::flag)?;
    let has_prefix = prefix.unwrap_or(true);
    let of_kind = || vocabulary.iter().find(|(_, _, kind)| *kind == TokenKind::Unknown);
    let unknown = vocabulary.named("unknown")?.map(|token| token.text);
    let unknown = unknown.or_else(|| of_kind().map(|(_, text, _)| text));
    let model = json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": unknown,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": true,
        "byte_fallback": true,
        "ignore_merges": false,
        "merges": pieces::merges(vocabulary, &scores)?,
    });
    let replace = |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
    let spaces = replace(" ", SPACE);
    let mut decoders =
        vec![replace(SPACE, " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
    let (normalizer, pre_tokenizer) = match has_prefix {
        true => {
            decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
            let prepend = json!({ "type": "Prepend", "prepend": SPACE });
            (json!({ "type": "Sequence", "normalizers": [prepend, spaces] }), Value::Null)
        }
        // As Gemma has it. After the normalizer there is no space to cut at.
        false => {
            let split = json!({
                "type": "Split",
                "pattern": { "String": " " },
                "behavior": "MergedWithPrevious",
                "invert": false,
            });
            (spaces, split)
        }
    };
    Ok(Form {
        normalizer,
        pre_tokenizer,
        decoder: json!({ "type": "Sequence", "decoders": decoders }),
        post_processor: None,
        model: keys(model),
        usual: [Some(1), Some(2)],
        adds_begin: true,
        is_special: is_special_piece,
    })
}

fn keys(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(keys) => keys,
        _ => Map::new(),
    }
}

/// The step that puts tokens before and after a text, if there are some.
fn template([begin, end]: [Option<NamedToken<'_>>; 2]) -> Option<Value> {
    if begin.is_none() && end.is_none() {
        return None;
    }
    let special = |token: NamedToken<'_>, sequence: u32| json!({ "SpecialToken": { "id": token.text, "type_id": sequence } });
    let around = |name: &str, sequence: u32| -> Vec<Value> {
        let text = json!({ "Sequence": { "id": name, "type_id": sequence } });
        let token = |token: Option<NamedToken<'_>>| token.map(|token| special(token, sequence));
        [token(begin), Some(text), token(end)].into_iter().flatten().collect()
    };
    let tokens: Map<String, Value> = [begin, end]
        .into_iter()
        .flatten()
        .map(|NamedToken { id, text }| {
            (text.to_owned(), json!({ "id": text, "ids": [id], "tokens": [text] }))
        })
        .collect();
    let pair = [around("A", 0), around("B", 1)].concat();
    Some(json!({
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": pair,
        "special_tokens": tokens,
    }))
}

/// The chat template: a text, a list of named ones, or null. One is named `default`: text/ needs it.
fn chat_template(metadata: &Metadata<'_>, notes: &mut Notes<'_>) -> Result<Value, FormatError> {
    const DEFAULT: &str = "tokenizer.chat_template";
    let default = metadata.optional(DEFAULT, Metadata::text)?;
    let names = metadata.optional("tokenizer.chat_templates", Metadata::texts)?.unwrap_or_default();
    let mut named: Vec<(&str, &str)> = default.map(|text| ("default", text)).into_iter().collect();
    for name in names.into_iter().filter(|name| *name != "default") {
        named.push((name, metadata.text(&format!("{DEFAULT}.{name}"))?));
    }
    if let Some(first) = named.first_mut().filter(|_| default.is_none()) {
        notes.sentences.push(format!(
            "the file has no default chat template: the one named {} is it",
            shown(first.0)
        ));
        first.0 = "default";
    }
    Ok(match named.as_slice() {
        [] => Value::Null,
        [(_, text)] => (*text).into(),
        _ => named
            .iter()
            .map(|(name, template)| json!({ "name": name, "template": template }))
            .collect(),
    })
}
