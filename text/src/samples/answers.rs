//! Models of each family for tests of answers: the demo's vocabulary with the family's tags, as
//! added tokens or as characters.

use std::sync::Arc;

use paceline_vocabulary::generation::{Done, Figures, FinishReason, TokenBatch};
use serde_json::{Map, Value, json};

use crate::prompt::Language;
use crate::prompt::conversation::Tool;
use crate::prompt::format::{AnswerFormat, AnswerTags, ToolCallFormat};
use crate::prompt::markup::Added;
use crate::stream::parts::Parts;
use crate::stream::{
    AnswerEvent, AnswerPart, Assembler, AssemblerSettings, ConversationReading, ElapsedTimes,
    OfferedTools,
};

/// Ids of tags that stand for added tokens: beyond the demo's vocabulary.
const FIRST_TAG: u32 = 5000;

/// Tags of all families.
pub const TAGS: [&str; 27] = [
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
    "[TOOL_CALLS]",
    "[CALL_ID]",
    "[ARGS]",
    "<function",
    "</function>",
    "<param",
    "</param>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
];

/// Tags of MiniCPM5, which its tokenizer marks as special.
const MINICPM: [&str; 4] = ["<function", "</function>", "<param", "</param>"];

const THINKS: bool = true;

/// A model whose answers have this format.
#[derive(Debug)]
pub struct Model {
    /// Tokenizer and template of the model.
    pub language: Arc<Language>,
    /// Whether its tokenizer has tags as added tokens.
    pub tokens: bool,
}

impl Model {
    /// The demo model with tags of this format.
    pub fn new(calls: ToolCallFormat, tokens: bool) -> Self {
        let mut language = super::language();
        let format = AnswerFormat::default().with_calls(calls);
        let thoughts = format.thoughts || (THINKS && calls != ToolCallFormat::Harmony);
        let format = AnswerFormat { thoughts, calls };
        let added = |(text, id): (&&str, u32)| {
            let special = text.contains(['|', '[']) || MINICPM.contains(text);
            Added { id, text: (*text).to_owned(), special }
        };
        let added: Vec<Added> = TAGS.iter().zip(FIRST_TAG..).map(added).collect();
        let known = if tokens { &added[..] } else { &[] };
        language.answer_tags = Arc::new(AnswerTags::of_added(format, known));
        Self { language: Arc::new(language), tokens }
    }

    /// The ids of an answer, in which tags of its format are tokens if the tokenizer has them.
    pub fn ids(&self, mut text: &str) -> Vec<u32> {
        let encode = |text: &str| self.language.tokens.encode(text, false).expect("encodes");
        let mut ids = Vec::new();
        while let Some((at, id, tag)) = TAGS
            .iter()
            .zip(FIRST_TAG..)
            .filter(|(_, id)| self.language.answer_tags.of_token(*id).is_some())
            .filter_map(|(tag, id)| text.find(tag).map(|at| (at, id, *tag)))
            .min()
            .filter(|_| self.tokens)
        {
            ids.extend(encode(&text[..at]));
            ids.push(id);
            text = &text[at + tag.len()..];
        }
        ids.extend(encode(text));
        ids
    }

    /// The parts of an answer whose batches have these numbers of ids, in turn.
    pub fn parts(
        &self,
        ids: &[u32],
        reading: ConversationReading,
        sizes: &[usize],
        reason: FinishReason,
    ) -> Vec<AnswerPart> {
        let events = self.events(ids, reading, sizes, &[], reason);
        let mut parts = Parts::default();
        events.into_iter().flat_map(|event| event.parts).for_each(|part| parts.push(part));
        parts.take()
    }

    /// The events of an answer that ends for this reason.
    pub fn events(
        &self,
        ids: &[u32],
        reading: ConversationReading,
        sizes: &[usize],
        stop: &[&str],
        reason: FinishReason,
    ) -> Vec<AnswerEvent> {
        let settings = AssemblerSettings {
            reading: Some(reading),
            stop: stop.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        let mut assembler = Assembler::new(settings, Arc::clone(&self.language));
        let (mut at, mut events) = (0, Vec::new());
        for size in sizes.iter().cycle() {
            let end = (at + size).min(ids.len());
            let figures = Figures::default();
            let done = Done { finish_reason: Some(reason), figures };
            let batch = TokenBatch {
                first_index: u32::try_from(at).expect("few"),
                ids: ids[at..end].to_vec(),
                done: (end == ids.len()).then_some(done),
                so_far: Some(figures),
                ..Default::default()
            };
            at = end;
            events.extend(assembler.take(batch, ElapsedTimes::default()).expect("follows"));
            if events.last().is_some_and(|event| event.last.is_some()) {
                return events;
            }
        }
        events
    }
}

/// How an answer is read if two tools are offered.
pub fn offered() -> ConversationReading {
    let properties = json!({"text": {"type": "string"}, "n": {"type": "integer"}, "flag": {"type": "boolean"},
        "list": {"type": "array"}, "maybe": {"type": ["string", "null"]}});
    let parameters = json!({"type": "object", "properties": properties});
    let parameters: Map<String, Value> = parameters.as_object().cloned().unwrap_or_default();
    let tool = |name: &str| Tool {
        name: name.into(),
        description: String::new(),
        parameters: parameters.clone(),
        strict: false,
    };
    let tools = Some(Arc::new(OfferedTools::new(&[tool("read"), tool("get-time")])));
    ConversationReading { tools, call_ids: "c".into(), ..Default::default() }
}

/// An answer of a family with a thought, text around tool calls, and two calls. Its text has no
/// sign that a family's markup has.
#[derive(Debug)]
pub struct SampleAnswer {
    /// The format of its tool calls.
    pub calls: ToolCallFormat,
    /// All that the model writes.
    pub answer: String,
    /// Text that a client gets, without thoughts and tool calls.
    pub text: &'static str,
}

/// Answers of all families that write tool calls.
pub fn sample_answers() -> Vec<SampleAnswer> {
    // Longer than 60 lines: a list, one answer of each family.
    let hermes = |name: &str, arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    let tagged = |name: &str, inside: &str| {
        format!("<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>")
    };
    let parameter =
        |name: &str, value: &str| format!("<parameter={name}>\n{value}\n</parameter>\n");
    let parameters =
        parameter("text", "a \"é🦀\"") + &parameter("n", "12") + &parameter("maybe", "b");
    let arguments = "{\"text\": \"a \\\"é🦀\\\"\", \"n\": 12, \"flag\": true}";
    let around = |first: &str, second: &str, thought: &str| {
        format!("{thought}I look.\n{first}\n{second}\nDone.")
    };
    let thought = "<think>\nso\n</think>\n\n";
    let text = "I look.\n\nDone.";
    let llama = format!("{{\"name\": \"read\", \"parameters\": {arguments}}}");
    let gemma = [
        "<|tool_call>call:read{text:<|\"|>a \"é🦀\"<|\"|>,list:[1,{a:true}],n:-12}<tool_call|>",
        "<|tool_call>call:get-time{}<tool_call|>",
    ];
    let call = "<|channel|>commentary to=functions.read <|constrain|>json<|message|>";
    let harmony = format!(
        "<|channel|>analysis<|message|>so<|end|><|start|>assistant\
         <|channel|>commentary<|message|>I look.<|end|><|start|>assistant\
         {call}{arguments}<|call|><|start|>assistant{call}{{}}<|call|>"
    );
    let mistral = |name: &str, more: &str, arguments: &str| {
        format!("[TOOL_CALLS]{name}{more}[ARGS]{arguments}")
    };
    let listed = format!(
        "[TOOL_CALLS] [{{\"name\": \"read\", \"arguments\": {arguments}, \"id\": \"a1b2c3d4e\"}}, \
         {{\"name\": \"get-time\", \"arguments\": {{}}}}]"
    );
    let minicpm = [
        "<function name=\"read\"><param name=\"text\"><![CDATA[a \"é🦀\"]]></param>\
         <param name=\"n\">12</param><param name=\"maybe\">b</param></function>",
        "<function name=\"get-time\"></function>",
    ];
    let glm = [
        "<tool_call>read\n<arg_key>text</arg_key>\n<arg_value>a \"é🦀\"</arg_value>\n\
         <arg_key>n</arg_key>\n<arg_value>12</arg_value>\n</tool_call>",
        "<tool_call>get-time</tool_call>",
    ];
    vec![
        SampleAnswer {
            calls: ToolCallFormat::Hermes,
            answer: around(&hermes("read", arguments), &hermes("get-time", "{}"), thought),
            text,
        },
        SampleAnswer {
            calls: ToolCallFormat::QwenXml,
            answer: around(&tagged("read", &parameters), &tagged("get-time", ""), thought),
            text,
        },
        SampleAnswer {
            calls: ToolCallFormat::Llama3,
            answer: format!("{llama}; {llama}"),
            text: "",
        },
        SampleAnswer {
            calls: ToolCallFormat::Gemma4,
            answer: around(gemma[0], gemma[1], "<|channel>thought\nso\n<channel|>"),
            text,
        },
        SampleAnswer { calls: ToolCallFormat::Harmony, answer: harmony, text: "I look." },
        SampleAnswer {
            calls: ToolCallFormat::MistralList,
            answer: format!("{thought}I look.{listed}"),
            text: "I look.",
        },
        SampleAnswer {
            calls: ToolCallFormat::MistralArgs,
            answer: around(
                &mistral("read", "[CALL_ID]a1b2c3d4e", arguments),
                &mistral("get-time", "", "{}"),
                thought,
            ),
            text,
        },
        SampleAnswer {
            calls: ToolCallFormat::MiniCpm,
            answer: around(minicpm[0], minicpm[1], thought),
            text,
        },
        SampleAnswer { calls: ToolCallFormat::Glm, answer: around(glm[0], glm[1], thought), text },
    ]
}
