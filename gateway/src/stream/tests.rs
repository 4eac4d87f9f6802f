//! Answers of every family: what becomes text, reasoning and calls. Each answer is read with its
//! tags as added tokens and as letters, and in batches of all sizes.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::parts::Parts;
use super::{
    AnswerEvent, AnswerPart, Assembler, AssemblerSettings, CallStart, ConversationReading, Done,
    ElapsedTimes, Figures, FinishReason, OfferedTools, TokenBatch,
};
use crate::prompt::Language;
use crate::prompt::conversation::Tool;
use crate::prompt::format::{AnswerFormat, AnswerTags, CallFormat};
use crate::prompt::markup::Added;

/// Ids of tags that stand for added tokens: beyond the demo's vocabulary.
const FIRST_TAG: u32 = 5000;

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

const THINKS: bool = true;

/// A model whose answers have this format.
struct Model {
    language: Arc<Language>,
    /// Whether its tokenizer has tags as added tokens.
    tokens: bool,
}

impl Model {
    fn new(calls: CallFormat, tokens: bool) -> Self {
        let mut language = crate::demo::language();
        let format = AnswerFormat::default().with_calls(calls);
        let thoughts = format.thoughts || (THINKS && calls != CallFormat::Harmony);
        let format = AnswerFormat { thoughts, calls };
        let added = |(text, id): (&&str, u32)| {
            let special = text.contains('|');
            Added { id, text: (*text).to_owned(), special }
        };
        let added: Vec<Added> = TAGS.iter().zip(FIRST_TAG..).map(added).collect();
        let known = if tokens { &added[..] } else { &[] };
        language.answer_tags = Arc::new(AnswerTags::of_added(format, known));
        Self { language: Arc::new(language), tokens }
    }

    /// The ids of an answer, in which tags are tokens if the tokenizer has them.
    fn ids(&self, mut text: &str) -> Vec<u32> {
        let encode = |text: &str| self.language.tokens.encode(text, false).expect("encodes");
        let mut ids = Vec::new();
        while let Some((at, id, tag)) = TAGS
            .iter()
            .zip(FIRST_TAG..)
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

    /// The parts of an answer whose batches have so many ids, in turn.
    fn parts(&self, ids: &[u32], reading: ConversationReading, sizes: &[usize]) -> Vec<AnswerPart> {
        let events = self.events(ids, reading, sizes, &[]);
        let mut parts = Parts::default();
        events.into_iter().flat_map(|event| event.parts).for_each(|part| parts.push(part));
        parts.take()
    }

    fn events(
        &self,
        ids: &[u32],
        reading: ConversationReading,
        sizes: &[usize],
        stop: &[&str],
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
            let done = Done { finish_reason: Some(FinishReason::Stop), figures };
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

fn offered() -> ConversationReading {
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
    ConversationReading { tools, thought_is_open: false, call_ids: "c".into() }
}

fn shown(parts: &[AnswerPart]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for part in parts {
        match part {
            AnswerPart::Text(text) => out.push(format!("text {text}")),
            AnswerPart::Reasoning(text) => out.push(format!("thought {text}")),
            AnswerPart::CallStart(CallStart { index, id, name }) => {
                assert_eq!(id, &format!("c{index}"));
                out.push(format!("call {index} {name} "));
            }
            AnswerPart::CallArguments(text) => out.last_mut().expect("a call").push_str(text),
            AnswerPart::CallEnd => {
                let call = out.last_mut().expect("a call");
                let arguments = call.splitn(4, ' ').nth(3).expect("arguments");
                let parsed: Result<Map<String, Value>, _> = serde_json::from_str(arguments);
                assert!(parsed.is_ok(), "{arguments}");
                call.push('.');
            }
            AnswerPart::MalformedCall(_) => out.push("fault".into()),
        }
    }
    out
}

#[track_caller]
fn check_as(
    calls: CallFormat,
    tokens: bool,
    reading: &ConversationReading,
    answer: &str,
    expected: &[&str],
) {
    let model = Model::new(calls, tokens);
    let ids = model.ids(answer);
    for size in [1, 2, 1000] {
        let parts = model.parts(&ids, reading.clone(), &[size]);
        assert_eq!(shown(&parts), expected, "{answer:?} tokens={tokens} size={size}");
    }
}

/// The same with tags as tokens and as letters.
#[track_caller]
fn check(calls: CallFormat, answer: &str, expected: &[&str]) {
    for tokens in [true, false] {
        check_as(calls, tokens, &offered(), answer, expected);
    }
}

#[test]
fn thoughts_are_told_from_the_answer() {
    for calls in [CallFormat::None, CallFormat::Hermes, CallFormat::QwenXml, CallFormat::Llama3] {
        check(
            calls,
            "<think>\nso\n\nand so\n</think>\n\nIt is 5.",
            &["thought so\n\nand so", "text It is 5."],
        );
        check(calls, "<think>\n\n</think>\n\nIt is 5.\n", &["text It is 5.\n"]);
        check(calls, "It is </think> 5 < 6.\n\nYes", &["text It is </think> 5 < 6.\n\nYes"]);
        check(calls, "<think>cut o", &["thought cut o"]);
    }
    let open = ConversationReading { thought_is_open: true, ..offered() };
    for tokens in [true, false] {
        let check = |answer: &str, expected: &[&str]| {
            check_as(CallFormat::Hermes, tokens, &open, answer, expected);
        };
        check(
            "so <tool_call> is a tag\n</think>\n\n5",
            &["thought so <tool_call> is a tag", "text 5"],
        );
        check("only thoughts", &["thought only thoughts"]);
    }
}

#[test]
fn tags_that_are_tokens_are_no_letters_and_without_tools_there_is_no_call() {
    let answer = "a<think>b</think><tool_call>{\"name\": \"read\"}</tool_call>";
    let model = Model::new(CallFormat::Hermes, true);
    // The letters of the tags, as the model spelled them.
    let ids = Model { tokens: false, ..model }.ids(answer);
    let model = Model::new(CallFormat::Hermes, true);
    let parts = model.parts(&ids, offered(), &[1]);
    assert_eq!(shown(&parts), [format!("text {answer}")]);
    let no_tools = ConversationReading::default();
    let call = "<tool_call>{\"name\": \"read\"}</tool_call>";
    for tokens in [true, false] {
        check_as(CallFormat::Hermes, tokens, &no_tools, call, &[&format!("text {call}")]);
    }
}

#[test]
fn hermes_calls_are_json_between_tags() {
    let check = |answer: &str, expected: &[&str]| check(CallFormat::Hermes, answer, expected);
    let call = "<tool_call>\n{\"name\": \"read\", \"arguments\": {\"text\": \"a</tool_call>\\n\", \"n\": [1.0, null]}}\n</tool_call>";
    let read = "call 0 read {\"text\": \"a</tool_call>\\n\", \"n\": [1.0, null]}.";
    check(call, &[read]);
    check(&format!("<think>\nfiles\n</think>\n\n{call}"), &["thought files", read]);
    check(&format!("Let me see.\n\n{call}\n"), &["text Let me see.", read]);
    let next = "<tool_call>{\"arguments\": {}, \"name\": \"get-time\"}</tool_call>";
    check(&format!("{call}\n{next}"), &[read, "call 1 get-time {}."]);
    check(&format!("{next}\n\nDone."), &["call 0 get-time {}.", "text Done."]);
    check("<tool_call>{\"name\": \"other.tool\"}</tool_call>", &["call 0 other.tool {}."]);
    check(
        "<tool_call>{\"name\": \"read\", \"arguments\": \"{\\\"n\\\": 1}\"}",
        &["call 0 read {\"n\": 1}."],
    );
    // A call without its closing tag is complete, one without its last brace is not.
    check("<tool_call>{\"name\": \"read\", \"arguments\": {}}", &["call 0 read {}."]);
    check(
        "a\n<tool_call>{\"name\": \"read\", \"arguments\": {\"te",
        &[
            "text a",
            "call 0 read {\"te",
            "fault",
            "text \n<tool_call>{\"name\": \"read\", \"arguments\": {\"te",
        ],
    );
    check(
        &format!("<tool_call>not JSON</tool_call>\n{next}"),
        &["fault", "text <tool_call>not JSON</tool_call>", "call 0 get-time {}."],
    );
    for wrong in [
        "{\"name\": \"a b\"}",
        "{\"other\": 1, \"name\": \"f\"}",
        "{\"arguments\": {}}",
        "{\"name\": 5}",
        "{\"arguments\": {}, \"arguments\": {}}",
        "[1]",
        "",
    ] {
        let answer = format!("a<tool_call>{wrong}</tool_call>b");
        check(&answer, &["text a", "fault", &format!("text {}", &answer[1..])]);
    }
}

#[test]
fn qwen_calls_are_tags_with_values_by_the_schema() {
    let check = |answer: &str, expected: &[&str]| check(CallFormat::QwenXml, answer, expected);
    let parameter =
        |name: &str, value: &str| format!("<parameter={name}>\n{value}\n</parameter>\n");
    let call = |parameters: &str| {
        format!("<tool_call>\n<function=read>\n{parameters}</function>\n</tool_call>")
    };
    let text = parameter("text", "a \"b\"\n\n<c> </tool_call> \\ é\n");
    check(
        &call(
            &(text
                + &parameter("n", "5")
                + &parameter("flag", "True")
                + &parameter("list", "[1, \"x\"]")),
        ),
        &[
            "call 0 read {\"text\": \"a \\\"b\\\"\\n\\n<c> </tool_call> \\\\ é\\n\", \"n\": 5, \"flag\": true, \"list\": [1, \"x\"]}.",
        ],
    );
    check(
        &call(&(parameter("n", "five") + &parameter("maybe", "None") + &parameter("else", "7"))),
        &["call 0 read {\"n\": \"five\", \"maybe\": null, \"else\": \"7\"}."],
    );
    check(&format!("{}\n{}", call(""), call("")), &["call 0 read {}.", "call 1 read {}."]);
    // Some answers leave the outer tag out.
    check("Now.\n<function=read>\n</function>", &["text Now.", "call 0 read {}."]);
    check("Write <function=read> here.", &["text Write <function=read> here."]);
    check(
        &call(&(parameter("n", "1") + &parameter("n", "2"))),
        &[
            "call 0 read {\"n\": 1",
            "fault",
            &format!("text {}", call(&(parameter("n", "1") + &parameter("n", "2")))),
        ],
    );
    let cut = "<tool_call>\n<function=read>\n<parameter=text>\nab\n</para";
    check(cut, &["call 0 read {\"text\": \"ab", "fault", &format!("text {cut}")]);
}

#[test]
fn llama_calls_are_the_whole_answer() {
    let check = |answer: &str, expected: &[&str]| check(CallFormat::Llama3, answer, expected);
    let call = "{\"name\": \"read\", \"parameters\": {\"n\": 5}}";
    check(call, &["call 0 read {\"n\": 5}."]);
    check(&format!("<|python_tag|>{call}"), &["call 0 read {\"n\": 5}."]);
    check("{\"type\": \"function\", \"name\": \"read\", \"parameters\": {}}", &["call 0 read {}."]);
    check(&format!("{call}; {call}"), &["call 0 read {\"n\": 5}.", "call 1 read {\"n\": 5}."]);
    // JSON that is the answer, and a call inside of text.
    let json = "{\"name\": \"Ada\", \"born\": 1815}";
    check(json, &[&format!("text {json}")]);
    check("{\"a\": [1, 2]} ; b", &["text {\"a\": [1, 2]} ; b"]);
    check(&format!("See {call}"), &[&format!("text See {call}")]);
    check("<|python_tag|>print(1)", &["fault", "text <|python_tag|>print(1)"]);
    let cut = "{\"name\": \"read\", \"parameters\": {\"n\"";
    check(cut, &["call 0 read {\"n\"", "fault", &format!("text {cut}")]);
}

#[test]
fn gemma_calls_have_keys_without_quotes() {
    let check = |answer: &str, expected: &[&str]| check(CallFormat::Gemma4, answer, expected);
    let call = "<|tool_call>call:read{flag:true,list:[1,<|\"|>x<|\"|>,{}],n:-2.5,sub:{a:None},text:<|\"|>a \"b\"\n} é<|\"|>}<tool_call|>";
    let read = "call 0 read {\"flag\":true,\"list\":[1,\"x\",{}],\"n\":-2.5,\"sub\":{\"a\":null},\"text\":\"a \\\"b\\\"\\n} é\"}.";
    check(call, &[read]);
    check(
        &format!(
            "<|channel>thought\nso\n<channel|>Now.{call}<|tool_call>call:get-time{{}}<tool_call|>"
        ),
        &["thought so", "text Now.", read, "call 1 get-time {}."],
    );
    check("<|channel>thought\n<channel|>Hi", &["text Hi"]);
    check("<|channel>thinking<channel|>Hi", &["thought thinking", "text Hi"]);
    check(
        "<|tool_call>call:read{<|\"|>a b<|\"|>:1, \"c\": \"d\\n\"}<tool_call|>",
        &["call 0 read {\"a b\":1,\"c\":\"d\\n\"}."],
    );
    for wrong in
        ["read{}", "call:read{n:five}", "call:read{n:1,}", "call:read{n:1}}", "call:re ad{}"]
    {
        let answer = format!("<|tool_call>{wrong}<tool_call|>");
        let model = Model::new(CallFormat::Gemma4, true);
        let parts = shown(&model.parts(&model.ids(&answer), offered(), &[1]));
        let text = format!("text {answer}");
        assert_eq!(parts[parts.len() - 2..], ["fault".to_owned(), text], "{wrong}");
    }
}

#[test]
fn harmony_messages_go_by_their_channel_and_recipient() {
    let check = |answer: &str, expected: &[&str]| check(CallFormat::Harmony, answer, expected);
    let thought = "<|channel|>analysis<|message|>so\n<|end|>";
    let call = "<|start|>assistant<|channel|>commentary to=functions.read <|constrain|>json<|message|>{\"n\": 5}<|call|>";
    check(
        &format!("{thought}<|start|>assistant<|channel|>final<|message|>It is 5."),
        &["thought so\n", "text It is 5."],
    );
    check(&format!("{thought}{call}"), &["thought so\n", "call 0 read {\"n\": 5}."]);
    check(
        " to=functions.get-time<|channel|>commentary json<|message|>{}<|call|>",
        &["call 0 get-time {}."],
    );
    check(
        &format!("<|channel|>commentary<|message|>First I read.<|end|>{call}"),
        &["text First I read.", "call 0 read {\"n\": 5}."],
    );
    check("no header\nat all", &["text no header\nat all"]);
    check("short", &["text short"]);
    let built_in = "<|channel|>analysis to=python code<|message|>1 + 1<|call|>";
    check(built_in, &["fault", "text <|channel|>analysis to=python code<|message|>1 + 1"]);
    let cut = &call["<|start|>assistant".len()..call.len() - "}<|call|>".len()];
    check(cut, &["call 0 read {\"n\": ", "fault", &format!("text {cut}")]);
    check("<|channel|>unknown<|message|>a", &["text <|channel|>unknown<|message|>a"]);
}

#[test]
fn arguments_are_sent_as_they_come() {
    let model = Model::new(CallFormat::QwenXml, true);
    let answer = "<tool_call><function=read><parameter=text>one two three four five";
    let mut seen = String::new();
    for event in model.events(&model.ids(answer), offered(), &[1], &[]) {
        if event.last.is_none() {
            for part in event.parts {
                if let AnswerPart::CallArguments(text) = part {
                    seen.push_str(&text);
                }
            }
        }
    }
    assert!(seen.starts_with("{\"text\": \"one two three"), "{seen}");
}

#[test]
fn a_stop_string_is_looked_for_in_the_text_alone() {
    let model = Model::new(CallFormat::Hermes, true);
    let answer = "<think>a END b</think>c E<tool_call>{\"name\": \"read\", \"arguments\": {\"text\": \"END\"}}</tool_call>ND d END e";
    let events = model.events(&model.ids(answer), offered(), &[3], &["END"]);
    let end = events.last().and_then(|event| event.last.clone()).expect("an end");
    assert_eq!(end.stop, "END");
    let mut parts = Parts::default();
    events.into_iter().flat_map(|event| event.parts).for_each(|part| parts.push(part));
    let expected =
        ["thought a END b", "text c E", "call 0 read {\"text\": \"END\"}.", "text ND d "];
    assert_eq!(shown(&parts.take()), expected);
}

/// Pieces of answers of all families, in any order. A word stands once in an answer.
fn fragments() -> impl Strategy<Value = Vec<&'static str>> {
    let fragments = [
        &TAGS[..],
        &[
            "WORD", "WORD", "WORD", " ", "\n", "{", "}", "\"", ":", ",", ";", "<", "é🦀",
            "{\"name\": \"read\", \"arguments\": {\"text\": \"WORD\"}}",
            "{\"name\": \"read\", \"parameters\": {\"WORD\": 1}}",
            "\"name\": \"read\"",
            "\"arguments\": {}",
            "<function=read>",
            "<parameter=text>\nWORD\n</parameter>\n",
            "</function>",
            "<parameter=",
            "call:read{text:",
            "call:read{}",
            "<|\"|>WORD<|\"|>",
            "<|channel>thought\n",
            "<|start|>assistant",
            "<|channel|>analysis<|message|>",
            "<|channel|>final<|message|>",
            "<|channel|>commentary to=functions.read <|constrain|>json<|message|>{\"text\": \"WORD\"}<|call|>",
        ][..],
    ]
    .concat();
    proptest::collection::vec(proptest::sample::select(fragments), 0..12)
}

#[test]
fn batches_do_not_matter_and_nothing_is_lost() {
    let formats = [
        CallFormat::None,
        CallFormat::Hermes,
        CallFormat::QwenXml,
        CallFormat::Llama3,
        CallFormat::Gemma4,
        CallFormat::Harmony,
    ];
    let models: Vec<Model> = [true, false]
        .into_iter()
        .flat_map(|tokens| formats.map(|format| Model::new(format, tokens)))
        .collect();
    let mut config = ProptestConfig::with_cases(1500);
    config.rng_seed = proptest::test_runner::RngSeed::Fixed(29);
    proptest!(config, |(fragments in fragments(), model in 0..models.len(), sizes in proptest::collection::vec(1_usize..6, 1..5), tools: bool, thought_is_open: bool)| {
        let model = &models[model];
        let mut words = Vec::new();
        let mut answer = String::new();
        for fragment in fragments {
            let word = format!("w{}x", words.len());
            if fragment.contains("WORD") {
                words.push(word.clone());
            }
            answer.push_str(&fragment.replace("WORD", &word));
        }
        let ids = model.ids(&answer);
        let tools = offered().tools.filter(|_| tools);
        let reading = ConversationReading { tools, thought_is_open, call_ids: "c".into() };
        let parts = model.parts(&ids, reading.clone(), &[usize::MAX >> 1]);
        prop_assert_eq!(&model.parts(&ids, reading, &sizes), &parts, "{}", answer);
        // Calls that end have arguments that are JSON, which `shown` checks.
        let seen = shown(&parts).concat();
        for word in words {
            prop_assert!(seen.contains(&word), "{} of {:?} is not in {:?}", word, answer, parts);
        }
        let void = parts.iter().filter(|part| matches!(part, AnswerPart::CallStart(_))).count()
            - parts.iter().filter(|part| matches!(part, AnswerPart::CallEnd)).count();
        let faults = parts.iter().filter(|part| matches!(part, AnswerPart::MalformedCall(_))).count();
        prop_assert!(void <= faults, "{:?}", parts);
    });
}
