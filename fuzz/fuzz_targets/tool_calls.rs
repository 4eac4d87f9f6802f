//! Whatever a model writes, in the format of any family, its answer is read without a panic, each
//! call that is complete has a JSON object, and batches of any size give the same parts. The first
//! byte chooses the format and whether tags are tokens; the second one is the size of batches.
#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use paceline_gateway::prompt::Language;
use paceline_gateway::prompt::conversation::Tool;
use paceline_gateway::prompt::format::{AnswerFormat, AnswerTags, CallFormat};
use paceline_gateway::prompt::markup::Added;
use paceline_gateway::stream::{
    AnswerPart, Assembler, AssemblerSettings, ConversationReading, Done, ElapsedTimes,
    OfferedTools, TokenBatch,
};
use serde_json::{Map, Value, json};

const FORMATS: [CallFormat; 6] = [
    CallFormat::None,
    CallFormat::Hermes,
    CallFormat::QwenXml,
    CallFormat::Llama3,
    CallFormat::Gemma4,
    CallFormat::Harmony,
];

/// Ids of tags that stand for added tokens: beyond the demo's vocabulary.
const FIRST_TAG: u32 = 5_000;

const TAGS: [&str; 16] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<|channel>",
    "<channel|>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
    "<|call|>",
];

/// A language for each format, with tags as letters and as tokens.
static LANGUAGES: LazyLock<Vec<[Arc<Language>; 2]>> = LazyLock::new(|| {
    let both = |calls: &CallFormat| [false, true].map(|tokens| Arc::new(language(*calls, tokens)));
    FORMATS.iter().map(both).collect()
});

fn language(calls: CallFormat, tokens: bool) -> Language {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target");
    let mut language = Language::read(&demo).expect("it is in the repository");
    let format = AnswerFormat::default().with_calls(calls);
    let thoughts = format.thoughts || calls != CallFormat::Harmony;
    let added = |(text, id): (&&str, u32)| {
        let special = text.contains('|');
        Added { id, text: (*text).to_owned(), special }
    };
    let added: Vec<Added> = TAGS.iter().zip(FIRST_TAG..).map(added).collect();
    let known = if tokens { &added[..] } else { &[] };
    language.answer_tags = Arc::new(AnswerTags::of_added(AnswerFormat { thoughts, calls }, known));
    language
}

/// The ids of an answer, in which tags are tokens if the tokenizer has them.
fn ids(language: &Language, mut text: &str, tokens: bool) -> Vec<u32> {
    let encode = |text: &str| language.tokens.encode(text, false).expect("encodes");
    let mut ids = vec![];
    let next = |text: &str| {
        let tags = TAGS.iter().zip(FIRST_TAG..);
        tags.filter_map(|(tag, id)| text.find(tag).map(|at| (at, id, tag.len()))).min()
    };
    while let Some((at, id, length)) = next(text).filter(|_| tokens) {
        ids.extend(encode(&text[..at]));
        ids.push(id);
        text = &text[at + length..];
    }
    ids.extend(encode(text));
    ids
}

fn reading() -> ConversationReading {
    let properties = json!({"text": {"type": "string"}, "n": {"type": "integer"},
        "list": {"type": "array"}, "maybe": {"type": ["string", "null"]}});
    let parameters = json!({"type": "object", "properties": properties});
    let parameters: Map<String, Value> = parameters.as_object().cloned().unwrap_or_default();
    let tool = Tool { name: "read".into(), description: String::new(), parameters, strict: false };
    let tools = Some(Arc::new(OfferedTools::new(&[tool])));
    ConversationReading { tools, thought_is_open: false, call_ids: "c".into() }
}

/// Adds a part to those before it, as a reader of the stream does.
fn join(parts: &mut Vec<AnswerPart>, next: AnswerPart) {
    match (parts.last_mut(), next) {
        (Some(AnswerPart::Text(before)), AnswerPart::Text(next))
        | (Some(AnswerPart::Reasoning(before)), AnswerPart::Reasoning(next))
        | (Some(AnswerPart::CallArguments(before)), AnswerPart::CallArguments(next)) => {
            before.push_str(&next);
        }
        (_, next) => parts.push(next),
    }
}

fn parts(language: &Arc<Language>, ids: &[u32], size: usize) -> Vec<AnswerPart> {
    let settings = AssemblerSettings { reading: Some(reading()), ..Default::default() };
    let mut assembler = Assembler::new(settings, Arc::clone(language));
    let (mut parts, mut at) = (vec![], 0);
    loop {
        let end = (at + size).min(ids.len());
        let batch = TokenBatch {
            first_index: at as u32,
            ids: ids[at..end].to_vec(),
            done: (end == ids.len()).then(Done::default),
            ..Default::default()
        };
        let event = assembler.take(batch, ElapsedTimes::default()).expect("it follows");
        event.into_iter().flat_map(|event| event.parts).for_each(|part| join(&mut parts, part));
        at = end;
        if at == ids.len() {
            return parts;
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let [kind, size, text @ ..] = bytes else { return };
    let tokens = *kind >= 128;
    let language = &LANGUAGES[usize::from(*kind) % FORMATS.len()][usize::from(tokens)];
    let ids = ids(language, &String::from_utf8_lossy(text), tokens);
    let whole = parts(language, &ids, ids.len().max(1));
    assert_eq!(parts(language, &ids, 1 + usize::from(*size)), whole);
    for pair in whole.windows(2) {
        if let [AnswerPart::CallArguments(arguments), AnswerPart::CallEnd] = pair {
            let parsed: Result<Map<String, Value>, _> = serde_json::from_str(arguments);
            assert!(parsed.is_ok(), "{arguments}");
        }
    }
});
