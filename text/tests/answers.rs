//! Round trip of an assistant's message: the text that a family's template writes is read back as
//! that message, with the thought, the text, and the tool calls with their arguments.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_text::checkpoint::{Checkpoint, TemplateFile};
use paceline_text::prompt::Language;
use paceline_text::prompt::conversation::{Conversation, Message, Role, Tool, ToolCall};
use paceline_text::prompt::format::{PromptThought, ToolCallFormat};
use paceline_text::stream::{
    AnswerPart, Assembler, AssemblerSettings, ConversationReading, ElapsedTimes, OfferedTools,
};
use paceline_vocabulary::generation::{Done, TokenBatch};
use serde_json::{Map, Value, json};

fn language(template: &str) -> Language {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let path: PathBuf = tests.join(template);
    let source = std::fs::read_to_string(&path).expect("in the repository");
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target");
    let checkpoint = Checkpoint::read(&demo).expect("in the repository");
    let template = Some(TemplateFile { path, source, with_tools: None });
    Language::new(Checkpoint { template, ..checkpoint }).expect("valid")
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

fn tools() -> Vec<Tool> {
    let types = json!({"text": {"type": "string"}, "n": {"type": "integer"}, "flag": {"type": "boolean"},
        "list": {"type": "array"}, "sub": {"type": "object"}});
    let tool = |name: &str, properties: &Value| Tool {
        name: name.into(),
        description: "d".into(),
        parameters: object(json!({"type": "object", "properties": properties})),
        strict: false,
    };
    vec![tool("read_file", &types), tool("get-time", &json!({}))]
}

fn conversation(messages: Vec<Message>, thinks: bool) -> Conversation {
    let arguments = if thinks { object(json!({"enable_thinking": true})) } else { Map::new() };
    Conversation { messages, tools: tools(), arguments, ..Conversation::default() }
}

fn text_of(language: &Language, conversation: &Conversation) -> String {
    let template = language.template.as_ref().expect("it has one");
    template.render(conversation).expect("it takes tools").text
}

/// The assistant's turn as the template writes it, and whether the prompt before it opens a
/// thought.
fn turn(language: &Language, said: &Message, end: &str, thinks: bool) -> (String, bool) {
    let question = || Message::new(Role::User, vec!["Which?".into()]);
    let prompt = text_of(language, &conversation(vec![question()], thinks));
    let mut answer = Message::new(Role::Tool, vec!["a".into()]);
    answer.name = "read_file".into();
    let whole = text_of(language, &conversation(vec![question(), said.clone(), answer], thinks));
    let turn = whole.strip_prefix(&prompt).unwrap_or_else(|| panic!("{prompt:?} in {whole:?}"));
    let (turn, _) = turn.split_once(end).expect("the turn ends");
    let ids = language.tokens.encode(&prompt, false).expect("encodes");
    (
        turn.to_owned(),
        language.answer_tags.thought_at_end(&ids, &language.tokens) == PromptThought::Open,
    )
}

fn read(language: Language, turn: &str, thought_is_open: bool) -> Message {
    let ids = language.tokens.encode(turn, false).expect("encodes");
    let tools = Some(Arc::new(OfferedTools::new(&tools())));
    let call_ids = "c".into();
    let reading = ConversationReading { tools, thought_is_open, call_ids, ..Default::default() };
    let settings = AssemblerSettings { reading: Some(reading), ..Default::default() };
    let mut assembler = Assembler::new(settings, Arc::new(language));
    let batch = TokenBatch { ids, done: Some(Done::default()), ..Default::default() };
    let event = assembler.take(batch, ElapsedTimes::default()).expect("whole").expect("an event");
    let mut message = Message::new(Role::Assistant, vec![event.text()]);
    let mut arguments = String::new();
    for part in event.parts {
        match part {
            AnswerPart::Text(_) => {}
            AnswerPart::Reasoning(text) => message.reasoning.push_str(&text),
            AnswerPart::ToolCallStart(start) => {
                let (id, name) = (String::new(), start.name);
                message.calls.push(ToolCall { id, name, arguments: Map::new().into() });
            }
            AnswerPart::ToolCallArguments(text) => arguments.push_str(&text),
            AnswerPart::ToolCallEnd => {
                let call = message.calls.last_mut().expect("it began");
                let members: Map<String, Value> =
                    serde_json::from_str(&std::mem::take(&mut arguments)).expect("an object");
                call.arguments = members.into();
            }
            AnswerPart::ToolCallCut => panic!("it ended by itself: {turn:?}"),
            AnswerPart::MalformedToolCall(fault) => panic!("{}: {turn:?}", fault.warning),
            AnswerPart::Warning(warning) => panic!("{warning}: {turn:?}"),
        }
    }
    message
}

fn call(name: &str, arguments: Value) -> ToolCall {
    ToolCall { id: String::new(), name: name.into(), arguments: object(arguments).into() }
}

fn said(thought: &str, text: &str, calls: Vec<ToolCall>) -> Message {
    let message = Message::new(Role::Assistant, vec![text.into()]);
    Message { reasoning: thought.into(), calls, ..message }
}

#[track_caller]
fn check(template: &str, format: ToolCallFormat, end: &str, thinks: bool, messages: Vec<Message>) {
    for message in messages {
        let language = language(template);
        assert_eq!(language.answer_tags.format().calls, format, "{template}");
        let (turn, open) = turn(&language, &message, end, thinks);
        assert_eq!(read(language, &turn, open), message, "{turn:?}");
    }
}

fn arguments() -> Value {
    json!({"flag": true, "list": [1, "x", {"y": null}], "n": -5, "sub": {"a": [], "b": "c, d"},
        "text": "two\nlines \"and\" <tags> é\\"})
}

#[test]
fn hermes_templates_and_answers_agree() {
    let calls = || vec![call("read_file", arguments()), call("get-time", json!({}))];
    let messages = vec![
        said("so\n\nand so", "I read it.", calls()),
        said("so", "", calls()),
        said("so", "Here it is.", vec![]),
    ];
    check("templates/qwen3.jinja", ToolCallFormat::Hermes, "<|im_end|>", true, messages);
}

#[test]
fn qwen_xml_templates_and_answers_agree() {
    let calls = || vec![call("read_file", arguments()), call("get-time", json!({}))];
    let messages = vec![said("so", "I read it.", calls()), said("so", "", calls())];
    check("templates/qwen3_5.jinja", ToolCallFormat::QwenXml, "<|im_end|>", true, messages);
    let message = said("", "It is 5.", calls());
    // Without thinking the prompt has an empty thought, which later turns have as well.
    check("templates/qwen3_5.jinja", ToolCallFormat::QwenXml, "<|im_end|>", false, vec![message]);
}

#[test]
fn llama_templates_and_answers_agree() {
    let messages = vec![said("", "", vec![call("read_file", arguments())])];
    check("templates/llama3_1.jinja", ToolCallFormat::Llama3, "<|eot_id|>", false, messages);
}

#[test]
fn gemma_templates_and_answers_agree() {
    let plain =
        json!({"flag": true, "list": [1, "x", {}], "n": -5, "text": "two\nlines \"and\" {b}, é\\"});
    let calls = || vec![call("read_file", plain.clone()), call("get-time", json!({}))];
    let messages = vec![
        said("so\n\nand so", "I read it.", calls()),
        said("", "", calls()),
        said("so", "5", vec![]),
    ];
    check("answers/gemma4.jinja", ToolCallFormat::Gemma4, "<turn|>", false, messages);
}

#[test]
fn harmony_templates_and_answers_agree() {
    let calls = || vec![call("read_file", arguments())];
    let messages = vec![
        said("so\n\nand so", "I read it.", calls()),
        said("", "", calls()),
        said("so", "5", vec![]),
    ];
    let end = "<|start|>functions";
    check("answers/harmony.jinja", ToolCallFormat::Harmony, end, false, messages);
}

#[test]
fn mistral_templates_and_answers_agree_also_with_ids_of_other_lengths() {
    let calls = || vec![call("read_file", arguments()), call("get-time", json!({}))];
    let list = vec![said("", "", calls()), said("", "It is 5.", vec![])];
    check("answers/mistral_list.jinja", ToolCallFormat::MistralList, "</s>", false, list);
    let args = vec![said("", "I read it.", calls()), said("", "", calls())];
    check("answers/mistral_args.jinja", ToolCallFormat::MistralArgs, "</s>", false, args);
    for template in ["answers/mistral_list.jinja", "answers/mistral_args.jinja"] {
        let mut asked = said("", "", calls());
        asked.calls[0].id = "call_0123456789abcdef_0_0".into();
        asked.calls[1].id = "a1B2c3D4e".into();
        let answer = |id: &str| {
            let message = Message::new(Role::Tool, vec!["a".into()]);
            Message { call_id: id.into(), name: "read_file".into(), ..message }
        };
        let answers = [answer("call_0123456789abcdef_0_0"), answer("a1B2c3D4e")];
        let question = Message::new(Role::User, vec!["Which?".into()]);
        let messages = [vec![question, asked], answers.to_vec()].concat();
        let text = text_of(&language(template), &conversation(messages, false));
        assert!(!text.contains("call_0123456789abcdef_0_0"), "{text}");
        assert_eq!(text.matches("a1B2c3D4e").count(), 2, "an id of nine characters stays: {text}");
    }
}

#[test]
fn minicpm_templates_and_answers_agree() {
    let calls = || vec![call("read_file", arguments()), call("get-time", json!({}))];
    let marked = call("read_file", json!({"text": "a &amp; ]] </param> b"}));
    let messages = vec![
        said("so\n\nand so", "I read it.", calls()),
        said("", "", calls()),
        said("", "", vec![marked]),
    ];
    check("answers/minicpm5.jinja", ToolCallFormat::MiniCpm, "<|im_end|>", false, messages);
}

#[test]
fn glm_templates_and_answers_agree() {
    let calls = || vec![call("read_file", arguments()), call("get-time", json!({}))];
    let messages = vec![said("so", "I read it.", calls()), said("", "", calls())];
    check("answers/glm.jinja", ToolCallFormat::Glm, "<|observation|>", false, messages);
}

#[test]
fn tools_without_a_format_that_is_read_are_told() {
    assert!(language("templates/plain.jinja").leaves_tool_calls_unread(), "a form of its own");
    let read = language("answers/glm.jinja");
    assert!(!read.leaves_tool_calls_unread());
    assert!(read.with_tool_call_format(ToolCallFormat::None).leaves_tool_calls_unread());
    assert!(!language("templates/words.jinja").leaves_tool_calls_unread(), "it knows no tools");
}
