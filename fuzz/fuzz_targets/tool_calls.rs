//! Whatever a model writes, in the format of any family, its answer is read without a panic, each
//! complete tool call has a JSON object, and batches of any size give the same parts. The first
//! byte chooses the format and whether tags are tokens; the second one is the size of batches.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use paceline_text::prompt::format::ToolCallFormat;
use paceline_text::samples::answers::{Model, offered};
use paceline_text::stream::AnswerPart;
use paceline_vocabulary::generation::FinishReason;
use serde_json::{Map, Value};

const FORMATS: [ToolCallFormat; 10] = [
    ToolCallFormat::None,
    ToolCallFormat::Hermes,
    ToolCallFormat::QwenXml,
    ToolCallFormat::Llama3,
    ToolCallFormat::Gemma4,
    ToolCallFormat::Harmony,
    ToolCallFormat::MistralList,
    ToolCallFormat::MistralArgs,
    ToolCallFormat::MiniCpm,
    ToolCallFormat::Glm,
];

/// A model for each format, with tags as characters and as tokens.
static MODELS: LazyLock<Vec<[Model; 2]>> = LazyLock::new(|| {
    let both = |calls: &ToolCallFormat| [false, true].map(|tokens| Model::new(*calls, tokens));
    FORMATS.iter().map(both).collect()
});

fuzz_target!(|bytes: &[u8]| {
    let [kind, size, text @ ..] = bytes else { return };
    let model = &MODELS[usize::from(*kind) % FORMATS.len()][usize::from(*kind >= 128)];
    let ids = model.ids(&String::from_utf8_lossy(text));
    let parts = |size: usize| model.parts(&ids, offered(), &[size], FinishReason::Stop);
    let whole = parts(ids.len().max(1));
    assert_eq!(parts(1 + usize::from(*size)), whole);
    for pair in whole.windows(2) {
        if let [AnswerPart::ToolCallArguments(arguments), AnswerPart::ToolCallEnd] = pair {
            let parsed: Result<Map<String, Value>, _> = serde_json::from_str(arguments);
            assert!(parsed.is_ok(), "{arguments}");
        }
    }
});
