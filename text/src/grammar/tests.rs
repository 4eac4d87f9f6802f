//! Frames of each family: compiled as the target compiles them, and held against answers.

use std::sync::Arc;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, regex_to_lark};
use paceline_vocabulary::generation::ThoughtBudget;
use serde_json::json;

use super::*;
use crate::prompt::conversation::ToolCallRule;
use crate::prompt::format::{AnswerFormat, ToolCallFormat};
use crate::prompt::markup::Added;

/// A family's tags as tokens from 256 on, or as characters.
struct Family {
    tags: AnswerTags,
    words: Vec<&'static str>,
    one_call: bool,
}

impl Family {
    fn new(calls: ToolCallFormat, thoughts: bool, words: &[&'static str]) -> Self {
        let added = (256..).zip(words).map(|(id, text)| Added {
            id,
            text: (*text).to_owned(),
            special: true,
        });
        let added: Vec<Added> = added.collect();
        let tags = AnswerTags::of_added(AnswerFormat { thoughts, calls }, &added);
        Self { tags, words: words.to_vec(), one_call: false }
    }

    fn env(&self) -> TokEnv {
        let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
        words.extend(self.words.iter().map(|word| [b"\xff", word.as_bytes()].concat()));
        let end = words.len() as u32;
        words.push(b"\xff<end>".to_vec());
        let trie = TokTrie::from(&TokRxInfo::new(end + 1, end), &words);
        Arc::new(ApproximateTokEnv::new(trie))
    }

    /// An answer as tokens: tags as the tokenizer has them, else bytes.
    fn tokens(&self, mut answer: &str) -> Vec<u32> {
        let mut ids = vec![];
        while let Some(byte) = answer.bytes().next() {
            match self.words.iter().position(|word| answer.starts_with(word)) {
                Some(at) => {
                    ids.push(256 + at as u32);
                    answer = &answer[self.words[at].len()..];
                }
                None if byte.is_ascii() => {
                    ids.push(u32::from(byte));
                    answer = &answer[1..];
                }
                None => panic!("answers of these tests are ASCII: {answer:?}"),
            }
        }
        ids
    }

    fn grammar(&self, form: AnswerForm, thought_is_open: bool) -> Result<Grammar, FieldError> {
        let thought = if thought_is_open { ThoughtRule::Open } else { ThoughtRule::Free };
        self.grammar_with(form, thought)
    }

    fn grammar_with(&self, form: AnswerForm, thought: ThoughtRule) -> Result<Grammar, FieldError> {
        let model = ModelAnswers { tags: &self.tags, thought, one_call: self.one_call };
        form.grammar(Some(model), &[0]).map(|grammar| grammar.expect("it is not free"))
    }

    /// Checks which answers a form allows as a whole.
    #[track_caller]
    fn check(&self, form: AnswerForm, thought_is_open: bool, good: &[&str], bad: &[&str]) {
        let thought = if thought_is_open { ThoughtRule::Open } else { ThoughtRule::Free };
        self.check_with(form, thought, good, bad);
    }

    #[track_caller]
    fn check_with(&self, form: AnswerForm, thought: ThoughtRule, good: &[&str], bad: &[&str]) {
        let grammar = self.grammar_with(form, thought).expect("a grammar");
        let mut matcher = compiled(&self.env(), &grammar);
        for (answer, expected) in
            good.iter().map(|good| (good, true)).chain(bad.iter().map(|bad| (bad, false)))
        {
            matcher.reset().expect("begins again");
            let ids = self.tokens(answer);
            let read = matcher.try_consume_tokens(&ids).expect("no error");
            let complete = read == ids.len() && matcher.is_accepting().expect("no error");
            let rest = answer.get(read..).unwrap_or_default();
            assert_eq!(complete, expected, "{answer:?}, from {rest:?}, in\n{}", grammar.frame);
        }
    }
}

fn compiled(env: &TokEnv, grammar: &Grammar) -> Matcher {
    let part = |(at, part): (usize, &GrammarPart)| {
        let made = match &part.content {
            TextForm::JsonSchema(text) => {
                let mut schema: Value = serde_json::from_str(text).expect("a schema");
                let style = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
                schema["x-guidance"] = style;
                GrammarWithLexer::from_json_schema(schema)
            }
            TextForm::Regex(text) => {
                GrammarWithLexer::from_lark(format!("start: /{}/", regex_to_lark(text, "")))
            }
            TextForm::Lark(text) => GrammarWithLexer::from_lark(text.clone()),
            TextForm::JsonObject => panic!("an object is a schema"),
        };
        GrammarWithLexer { name: Some(format!("part_{at}")), ..made }
    };
    let frame = GrammarWithLexer::from_lark(grammar.frame.clone());
    let parts = grammar.parts.iter().enumerate().map(part);
    let grammars = std::iter::once(frame).chain(parts).collect();
    let mut factory = ParserFactory::new_simple(env).expect("a compiler");
    factory.quiet();
    let parser = factory.create_parser(TopLevelGrammar { grammars, max_tokens: None });
    Matcher::new(Ok(parser.unwrap_or_else(|error| panic!("{error} in\n{}", grammar.frame))))
}

fn tool(name: &str, parameters: Value, strict: bool) -> CallableTool {
    let parameters = parameters.as_object().cloned().unwrap_or_default();
    CallableTool { name: name.into(), parameters, strict, field: "tools[0].parameters".into() }
}

/// One tool with an integer, and another one without arguments.
fn tools(strict: bool) -> Vec<CallableTool> {
    let properties = json!({"x": {"type": "integer"}});
    let schema = json!({"type": "object", "properties": properties, "required": ["x"], "additionalProperties": false});
    vec![tool("f", schema, strict), tool("g", json!({}), strict)]
}

fn calls(rule: ToolCallRule, strict: bool) -> AnswerForm {
    AnswerForm { text: None, calls: rule, tools: tools(strict) }
}

fn required() -> AnswerForm {
    calls(ToolCallRule::Required, false)
}

fn named(name: &str) -> AnswerForm {
    calls(ToolCallRule::Named(name.into()), false)
}

fn object() -> AnswerForm {
    AnswerForm { text: Some(TextForm::JsonObject), ..AnswerForm::default() }
}

#[test]
fn a_text_without_a_conversation_is_its_form_alone() {
    let none = Family::new(ToolCallFormat::None, false, &[]);
    let form = AnswerForm::of_text(Some(TextForm::Regex("[ab]+/?".into())));
    let grammar = form.grammar(None, &[7, 9]).expect("a grammar").expect("it is not free");
    assert_eq!((grammar.frame.as_str(), grammar.end_ids), ("start: @part_0\n", vec![7, 9]));
    none.check(object(), false, &["{}", r#"{"a": [1, {"b": null}]}"#], &["[]", "{}\n", "x"]);
    let lark = AnswerForm {
        text: Some(TextForm::Lark("start: \"a\"+ B\nB: /b/\n".into())),
        ..AnswerForm::default()
    };
    none.check(lark, false, &["aab"], &["b", "aa"]);
    assert_eq!(AnswerForm::default().grammar(None, &[]), Ok(None));
    let error = object().grammar(None, &[]).expect_err("nothing ends an answer");
    assert_eq!(error.field, "grammar");
}

#[test]
fn a_thought_before_an_answer_is_free() {
    let tagged = Family::new(ToolCallFormat::None, true, &["<think>", "</think>"]);
    let good = ["{}", "<think>so { </think>{}", "<think>\nso\n</think>\n\n{}"];
    tagged.check(object(), false, &good, &["so</think>{}", "<think>so{}", "</think>{}"]);
    tagged.check(object(), true, &["so</think>\n\n{}", "</think>{}"], &["{}", "so</think>x"]);
    let spelled = Family::new(ToolCallFormat::None, true, &[]);
    spelled.check(object(), false, &good, &["so</think>{}", "<think>so{}"]);
    spelled.check(object(), true, &["so < </think>\n\n{}"], &["{}", "so</think>x"]);
    let gemma = Family::new(ToolCallFormat::Gemma4, true, &["<|channel>", "<channel|>"]);
    gemma.check(object(), false, &["<|channel>thought\nso\n<channel|>{}", "{}"], &["thought{}"]);
}

#[test]
fn with_thinking_off_no_answer_has_a_thought() {
    let check = |family: &Family, form: AnswerForm, good: &[&str], bad: &[&str]| {
        family.check_with(form, ThoughtRule::None, good, bad);
    };
    let f = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
    let (beside, thought) = (format!("I call it. {f}\nDone."), format!("<think>hm</think>\n\n{f}"));
    for words in [&["<think>", "</think>", "<tool_call>", "</tool_call>"][..], &[]] {
        let plain = Family::new(ToolCallFormat::None, true, words);
        check(&plain, object(), &["{}"], &["<think>so</think>{}", "so</think>{}", "</think>{}"]);
        let hermes = Family::new(ToolCallFormat::Hermes, true, words);
        check(&hermes, required(), &[f], &[&thought]);
        check(
            &hermes,
            calls(ToolCallRule::Auto, true),
            &["hm", f, &beside],
            &[&thought, "<think>hm"],
        );
    }
    let gemma = Family::new(ToolCallFormat::Gemma4, true, &["<|channel>", "<channel|>"]);
    check(&gemma, object(), &["{}"], &["<|channel>thought\nso\n<channel|>{}"]);
    let words = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"];
    let harmony = Family::new(ToolCallFormat::Harmony, false, &words);
    let answer = "<|channel|>final<|message|>{}";
    let said = "<|channel|>commentary<|message|>I call.<|end|><|start|>assistant";
    let call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}";
    let thought = "<|channel|>analysis<|message|>so<|end|><|start|>assistant";
    check(&harmony, object(), &[answer], &[&format!("{thought}{answer}")]);
    check(&harmony, required(), &[call], &[&format!("{thought}{call}")]);
    let auto = calls(ToolCallRule::Auto, true);
    check(&harmony, auto, &[answer, &format!("{said}{call}")], &[&format!("{thought}{answer}")]);
}

#[test]
fn the_prompt_and_the_request_decide_about_a_thought() {
    use PromptThought::{Closed, None, Open};
    assert_eq!(ThoughtRule::of(None, false), ThoughtRule::Free);
    assert_eq!(ThoughtRule::of(None, true), ThoughtRule::None);
    assert_eq!(ThoughtRule::of(Closed, false), ThoughtRule::None);
    assert_eq!(ThoughtRule::of(Open, true), ThoughtRule::Open, "the template did not follow");
    for (arguments, is_off) in [
        (json!({}), false),
        (json!({"enable_thinking": false}), true),
        (json!({"thinking": false}), true),
        (json!({"reasoning_effort": "none"}), true),
        (json!({"enable_thinking": true, "reasoning_effort": "low"}), false),
    ] {
        let arguments = arguments.as_object().cloned().unwrap_or_default();
        let conversation = Conversation { arguments, ..Conversation::default() };
        assert_eq!(conversation.switches_thinking_off(), is_off, "{:?}", conversation.arguments);
    }
}

#[test]
fn a_thought_is_bounded_by_the_tokens_of_its_familys_tags() {
    let tokens = &crate::samples::language().tokens;
    let of = |family: &Family, thought| {
        let model = ModelAnswers { tags: &family.tags, thought, one_call: false };
        model.thought_budget(9, tokens)
    };
    let budget = |open_id, end: &[&[u32]], marks| {
        let end = end.iter().map(|ids| ids.to_vec()).collect();
        Some(ThoughtBudget { max_tokens: 9, open_id, end, marks })
    };
    let tagged = Family::new(ToolCallFormat::Hermes, true, &["<think>", "</think>"]);
    assert_eq!(of(&tagged, ThoughtRule::Free), budget(Some(256), &[&[257]], 1));
    assert_eq!(of(&tagged, ThoughtRule::Open), budget(None, &[&[257]], 1));
    assert_eq!(of(&tagged, ThoughtRule::None), None);
    let gemma = Family::new(ToolCallFormat::Gemma4, true, &["<|channel>", "<channel|>"]);
    assert_eq!(of(&gemma, ThoughtRule::Free), budget(Some(256), &[&[257]], 1));
    // Tags that are no tokens; a family without thoughts.
    for thoughts in [true, false] {
        let spelled = Family::new(ToolCallFormat::Hermes, thoughts, &[]);
        assert_eq!(of(&spelled, ThoughtRule::Free), None);
    }
    let words = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"];
    let harmony = Family::new(ToolCallFormat::Harmony, false, &words);
    let ids = |word: &str| tokens.encode(word, false).expect("encodes");
    let mut end = vec![vec![260], vec![256]];
    end.extend(ids("assistant").into_iter().map(|id| vec![id]));
    end.extend([vec![257], vec![ids("final")[0], ids("commentary")[0]]]);
    let bounded = ThoughtBudget { max_tokens: 9, open_id: Some(257), end, marks: 2 };
    assert_eq!(of(&harmony, ThoughtRule::Free), Some(bounded));
}

#[test]
fn hermes_tool_calls_have_the_names_and_arguments_of_the_tools() {
    let f = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
    let g = "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
    let both = format!("{f}\n{g}");
    let wrong = f.replace("\"f\"", "\"h\"");
    let unfit = f.replace('1', "\"1\"");
    let cut = f.replace("</tool_call>", "");
    for words in [&["<tool_call>", "</tool_call>", "<think>", "</think>"][..], &[]] {
        let family = Family::new(ToolCallFormat::Hermes, true, words);
        let thought = format!("<think>hm</think>\n\n{f}");
        let bad = ["", "hm", &wrong, &unfit, &cut, &format!("hm {f}")];
        family.check(required(), false, &[f, g, &both, &thought], &bad);
        family.check(named("g"), false, &[g], &[f, &both]);
        // Beside free text, only tool calls of strict tools are held to their schemas.
        let text = format!("I call it. {f}\n{g} Done.");
        let auto = calls(ToolCallRule::Auto, true);
        family.check(auto, false, &["", "hm { <tool", f, &text, &thought], &[&wrong, &unfit, &cut]);
        let mut mixed = calls(ToolCallRule::Auto, true);
        mixed.tools[0].strict = false;
        let grammar = family.grammar(mixed, false).expect("a grammar");
        assert_eq!(
            grammar.parts.iter().map(|part| part.lenient).collect::<Vec<_>>(),
            [true, false]
        );
        // A form of the text, or tool calls.
        let form =
            AnswerForm { text: Some(TextForm::JsonObject), ..calls(ToolCallRule::Auto, false) };
        family.check(form, false, &["{}", f, &both], &["hm", &format!("{{}}{f}")]);
        let form = AnswerForm { text: Some(TextForm::JsonObject), ..required() };
        family.check(form, false, &[f], &["{}"]);
    }
}

/// One tool call in each family that writes several.
fn calls_between_tags() -> [(ToolCallFormat, &'static [&'static str], &'static str); 3] {
    let hermes = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
    let xml =
        "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>";
    let words: &[&str] = &["<tool_call>", "</tool_call>"];
    let gemma: &[&str] = &["<|tool_call>", "<tool_call|>", "<|\"|>"];
    [
        (ToolCallFormat::Hermes, words, hermes),
        (ToolCallFormat::QwenXml, words, xml),
        (ToolCallFormat::Gemma4, gemma, "<|tool_call>call:f{x:1}<tool_call|>"),
    ]
}

#[test]
fn white_space_may_end_forced_tool_calls() {
    for (format, words, f) in calls_between_tags() {
        for words in [words, &[]] {
            let family = Family::new(format, false, words);
            let [line, lines, both] = [format!("{f}\n"), format!("{f}\n\n"), format!("{f}\n{f}\n")];
            let bad = [format!("{f}\nDone."), format!("{f} x"), format!("{f}\n\n\n\n\n\n")];
            let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
            family.check(required(), false, &[f, &line, &lines, &both], &bad);
        }
    }
}

#[test]
fn one_forced_tool_call_ends_the_answer_if_no_more_are_allowed() {
    for (format, words, f) in calls_between_tags() {
        for words in [words, &[]] {
            let family = Family { one_call: true, ..Family::new(format, false, words) };
            let bad = [format!("{f}{f}"), format!("{f}\n{f}")];
            let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
            family.check(required(), false, &[f], &bad);
        }
    }
}

#[test]
fn tagged_tool_calls_have_their_parameters_in_order() {
    let call = |inside: &str| format!("<tool_call>\n<function={inside}</function>\n</tool_call>");
    let parameter =
        |name: &str, value: &str| format!("<parameter={name}>\n{value}\n</parameter>\n");
    let schema = json!({
        "type": "object",
        "properties": {
            "x": {"type": "integer"}, "text": {"type": "string"},
            "unit": {"type": "string", "enum": ["m", "km"]}, "list": {"type": ["array", "null"]},
        },
        "required": ["x", "text"],
    });
    let form = |rule: ToolCallRule| AnswerForm {
        text: None,
        calls: rule,
        tools: vec![tool("f", schema.clone(), true)],
    };
    let least = call(&format!("f>\n{}{}", parameter("x", "3"), parameter("text", "a\n<b>\nc")));
    let most = call(&format!(
        "f>\n{}{}{}{}",
        parameter("x", "-7"),
        parameter("text", ""),
        parameter("unit", "km"),
        parameter("list", "[1, {\"a\": 2}]")
    ));
    let bad = [
        call(&format!("g>\n{}", parameter("x", "3"))),
        call(&format!("f>\n{}", parameter("x", "3"))),
        call(&format!("f>\n{}{}", parameter("x", "three"), parameter("text", "a"))),
        call(&format!("f>\n{}{}", parameter("text", "a"), parameter("x", "3"))),
        least.replace("</function>", &format!("{}</function>", parameter("unit", "cm"))),
        "<function=f>".to_owned(),
    ];
    let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
    for words in [&["<tool_call>", "</tool_call>"][..], &[]] {
        let family = Family::new(ToolCallFormat::QwenXml, false, words);
        family.check(form(ToolCallRule::Required), false, &[&least, &most], &bad);
        let text = format!("Now. {least}\n{most}");
        family.check(form(ToolCallRule::Auto), false, &["hm", &least, &text], &bad);
    }
    let family = Family::new(ToolCallFormat::QwenXml, false, &[]);
    let only = |property: Value, strict| AnswerForm {
        text: None,
        calls: ToolCallRule::Required,
        tools: vec![tool("f", json!({"type": "object", "properties": {"a": property}}), strict)],
    };
    for (property, word) in [
        (json!({"type": "string", "pattern": "^a"}), "pattern of a"),
        (json!({"type": "string", "minLength": 2}), "minLength of a"),
        (json!({"$ref": "#/$defs/x"}), "$ref of a"),
        (json!({"enum": [1, 2]}), "enum of a"),
    ] {
        let error = family.grammar(only(property.clone(), true), false).expect_err("refused");
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(error.field, "tools[0].parameters");
        let free = call(&format!("f>\n{}", parameter("a", "anything")));
        family.check(only(property, false), false, &[&free], &["hm"]);
    }
    let optional = json!({"anyOf": [{"type": "string"}, {"type": "null"}]});
    family.grammar(only(optional, true), false).expect("a text or null is a text");
    let whole = tool("f", json!({"type": "object", "oneOf": [{}]}), true);
    let form = AnswerForm { text: None, calls: ToolCallRule::Auto, tools: vec![whole] };
    assert!(family.grammar(form, false).expect_err("refused").to_string().contains("oneOf"));
}

#[test]
fn a_tool_call_of_llama_is_the_whole_answer() {
    let f = r#"{"name": "f", "parameters": {"x": 1}}"#;
    let g = r#"{"name": "g", "parameters": {}}"#;
    for words in [&["<|python_tag|>"][..], &[]] {
        let family = Family::new(ToolCallFormat::Llama3, false, words);
        family.check(required(), false, &[f, g], &["hm", "", &f.replace('1', "true")]);
        let good = [f, g, "", "hm {", "1. {\"name\": 2}"];
        let bad = [&f.replace('1', "true"), "{", " {\"name\"", "hm <|python_tag|>x"];
        family.check(calls(ToolCallRule::Auto, true), false, &good, &bad);
    }
}

#[test]
fn gemmas_tool_calls_have_the_names_of_the_tools_and_free_arguments() {
    let call = |inside: &str| format!("<|tool_call>call:{inside}<tool_call|>");
    let good = [
        call("f{x:1}"),
        call("g{}"),
        call("f{text:<|\"|>a { \" }<|\"|>,list:[1,{a:true,b:null}],n:-2.5e3}"),
    ];
    let good: Vec<&str> = good.iter().map(String::as_str).collect();
    let bad = [call("h{}"), call("f{x}"), call("f{x:one}"), call("f{x:[1}")];
    let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
    for words in [&["<|tool_call>", "<tool_call|>", "<|\"|>"][..], &[]] {
        let family = Family::new(ToolCallFormat::Gemma4, true, words);
        family.check(required(), false, &good, &bad);
    }
}

#[test]
fn gemmas_strict_tools_have_the_arguments_of_their_schemas_in_the_order_of_their_names() {
    let call = |inside: &str| format!("<|tool_call>call:{inside}<tool_call|>");
    let schema = json!({"type": "object", "required": ["b", "Unit"], "additionalProperties": false,
    "properties": {
        "b": {"type": "integer", "description": "how many"},
        "Unit": {"type": "string", "enum": ["C", "F"]},
        "a": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "z": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "boolean"}}}},
    }});
    let with = |tools| AnswerForm { text: None, calls: ToolCallRule::Required, tools };
    let good = [
        "f{b:3,Unit:<|\"|>C<|\"|>}",
        "f{a:<|\"|>x, \"y\"<|\"|>,b:-3,Unit:<|\"|>F<|\"|>}",
        "f{a:null,b:3,Unit:<|\"|>C<|\"|>,z:[]}",
        "f{b:3,Unit:<|\"|>C<|\"|>,z:[{k:true},{}]}",
    ]
    .map(call);
    let bad = [
        "f{}",
        "f{b:3}",
        "f{Unit:<|\"|>C<|\"|>,b:3}",
        "f{b:3.5,Unit:<|\"|>C<|\"|>}",
        "f{b:3,Unit:<|\"|>K<|\"|>}",
        "f{a:4,b:3,Unit:<|\"|>C<|\"|>}",
        "f{b:3,Unit:<|\"|>C<|\"|>,z:[{k:1}]}",
        "f{b:3,Unit:<|\"|>C<|\"|>,more:1}",
        "f{b:3,Unit:<|\"|>C<|\"|>,}",
    ]
    .map(call);
    let [good, bad] =
        [good.as_slice(), &bad].map(|all| all.iter().map(String::as_str).collect::<Vec<_>>());
    for words in [&["<|tool_call>", "<tool_call|>", "<|\"|>"][..], &[]] {
        let family = Family::new(ToolCallFormat::Gemma4, true, words);
        family.check(with(vec![tool("f", schema.clone(), true)]), false, &good, &bad);
        let auto = calls(ToolCallRule::Auto, true);
        let said = ["hm", &format!("hm {}", call("f{x:1}")), &call("g{}")];
        family.check(auto, false, &said, &[&call("f{x:true}"), &call("g{x:1}")]);
    }
    // Optional arguments alone: with none of them, and with any of them.
    let optional =
        json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}});
    let family =
        Family::new(ToolCallFormat::Gemma4, true, &["<|tool_call>", "<tool_call|>", "<|\"|>"]);
    let good = ["f{}", "f{a:null}", "f{b:null}", "f{a:null,b:null}"].map(call);
    let bad = ["f{,b:null}", "f{b:null,a:null}", "f{a:null b:null}"].map(call);
    let [good, bad] =
        [good.as_slice(), &bad].map(|all| all.iter().map(String::as_str).collect::<Vec<_>>());
    family.check(with(vec![tool("f", optional, true)]), false, &good, &bad);
}

#[test]
fn gemmas_strict_tools_with_other_schemas_are_refused_by_the_keyword() {
    let family = Family::new(ToolCallFormat::Gemma4, true, &[]);
    let refused = |parameters: Value, says: &str| {
        let form = AnswerForm {
            text: None,
            calls: ToolCallRule::Auto,
            tools: vec![tool("f", parameters, true)],
        };
        let error = family.grammar(form, false).expect_err("refused").to_string();
        assert!(error.contains(says), "{error}");
    };
    let of = |schema: Value| json!({"type": "object", "properties": {"a": schema}});
    refused(of(json!({"type": "string", "pattern": "x"})), "pattern");
    refused(of(json!({"$ref": "#/$defs/x"})), "$ref");
    refused(of(json!({"enum": [[1]]})), "lists or objects");
    refused(of(json!({"const": "a<|\"|>b"})), "the tag of quotes");
    refused(
        of(json!({"type": "object", "properties": {}, "additionalProperties": true})),
        "additionalProperties",
    );
    refused(json!({"type": "object", "properties": {"a b": {}}}), "the name a b");
    refused(json!({"type": "object", "required": ["a"]}), "the required argument a");
    let mut deep = json!({"type": "null"});
    for _ in 0..20 {
        deep = json!({"type": "array", "items": deep});
    }
    refused(of(deep), "16 times");
}

#[test]
fn harmony_has_an_answer_in_its_channel() {
    let words = [
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
    ];
    let thought = "<|channel|>analysis<|message|>so<|end|><|start|>assistant";
    let said = "<|channel|>commentary<|message|>I call.<|end|><|start|>assistant";
    let answer = "<|channel|>final<|message|>{}";
    let json = "<|channel|>final <|constrain|>json<|message|>{}";
    let f = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}";
    let family = Family::new(ToolCallFormat::Harmony, false, &words);
    let thoughtful = format!("{thought}{answer}");
    family.check(
        object(),
        false,
        &[answer, json, &thoughtful],
        &["{}", f, &answer.replace("{}", "x")],
    );
    family.check(
        required(),
        false,
        &[f, &format!("{thought}{f}")],
        &[answer, &f.replace("f ", "h ")],
    );
    let auto = calls(ToolCallRule::Auto, true);
    let free = "<|channel|>final<|message|>hm";
    let both = format!("{thought}{said}{f}");
    family.check(auto, false, &[free, f, &both], &["hm", &f.replace('1', "{}")]);
    let form = AnswerForm { text: Some(TextForm::JsonObject), ..calls(ToolCallRule::Auto, false) };
    family.check(form, false, &[answer, f], &[free]);
}

#[test]
fn a_structural_tag_of_a_router_holds_an_answer_in_its_channel() {
    let words = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>"];
    let family = Family::new(ToolCallFormat::Harmony, false, &words);
    let of = |tags: Value| {
        let tag = json!({"format": {"type": "triggered_tags", "tags": tags}});
        AnswerForm::of_structural_tag("tag", &tag.to_string()).expect("a tag")
    };
    let schema = json!({
        "type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
        "additionalProperties": false,
    });
    let content = json!({"type": "json_schema", "json_schema": schema});
    let thought = "<|channel|>analysis<|message|>so<|end|><|start|>assistant";
    let answer = "<|channel|>final<|message|>{\"x\": 1}";
    let call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}";
    let begin = "<|channel|>final<|constrain|>json<|message|>";
    let text = of(json!([{"begin": begin, "content": content, "end": ""}]));
    let thoughtful = format!("{thought}{answer}");
    let wrong = answer.replace('1', "true");
    family.check(text, false, &[answer, &thoughtful], &["{\"x\": 1}", call, &wrong]);
    let begin = "<|channel|>commentary to=functions.f<|constrain|>json<|message|>";
    let forced = of(json!([{"begin": begin, "content": content, "end": ""}]));
    let thoughtful = format!("{thought}{call}");
    let wrong = call.replace('1', "true");
    family.check(forced, false, &[call, &thoughtful], &[answer, &wrong]);
}

/// Checks forced, named and free tool calls of a format: `f` with a text and an integer, and `g`
/// without arguments. All of the tools are strict.
#[track_caller]
fn check_calls(calls: ToolCallFormat, words: &[&'static str], f: &str, g: &str, bad: &[&str]) {
    let properties = json!({"x": {"type": "integer"}, "text": {"type": "string"},
        "unit": {"type": "string", "enum": ["m", "<k&m>"]}});
    let schema = json!({"type": "object", "properties": properties, "required": ["x"]});
    let form = |rule: ToolCallRule| AnswerForm {
        text: None,
        calls: rule,
        tools: vec![tool("f", schema.clone(), true), tool("g", json!({}), true)],
    };
    for words in [words, &[]] {
        let family = Family::new(calls, false, words);
        let bad: Vec<&str> = bad.iter().copied().chain(["", "hm"]).collect();
        family.check(form(ToolCallRule::Required), false, &[f, g], &bad);
        family.check(form(ToolCallRule::Named("g".into())), false, &[g], &[f]);
        let text = format!("Now. {f}");
        family.check(form(ToolCallRule::Auto), false, &["hm", f, g, &text], &bad[..bad.len() - 2]);
    }
}

#[test]
fn forced_calls_of_mistral_are_a_list_or_a_name_with_arguments() {
    let words = ["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"];
    let object = |name: &str, arguments: &str, more: &str| {
        format!("{{\"name\": \"{name}\", \"arguments\": {arguments}{more}}}")
    };
    let (f, g) = (object("f", "{\"x\": 1}", ", \"id\": \"a1B2c3D4e\""), object("g", "{}", ""));
    let list = |inside: &str| format!("[TOOL_CALLS][{inside}]");
    let bad = [
        list(&f.replace('1', "\"1\"")),
        list(&f.replace("\"f\"", "\"h\"")),
        list(&f.replace("a1B2c3D4e", "a-")),
        list(&f)[..list(&f).len() - 1].to_owned(),
    ];
    let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
    let both = list(&format!("{f}, {g}"));
    check_calls(ToolCallFormat::MistralList, &words, &both, &format!("[TOOL_CALLS] [{g}]"), &bad);
    let f = "[TOOL_CALLS]f[ARGS]{\"x\": 1, \"text\": \"a\"}";
    let g = "[TOOL_CALLS]g[CALL_ID]a1B2c3D4e[ARGS]{}";
    let bad =
        ["[TOOL_CALLS]h[ARGS]{}", "[TOOL_CALLS]f[ARGS]{\"x\": true}", "[TOOL_CALLS]f{\"x\": 1}"];
    check_calls(ToolCallFormat::MistralArgs, &words, &format!("{f}{g}"), g, &bad);
}

#[test]
fn forced_calls_of_minicpm_have_a_tag_for_each_parameter() {
    let words = ["<function", "</function>", "<param", "</param>"];
    let call = |name: &str, inside: &str| format!("<function name=\"{name}\">{inside}</function>");
    let param = |name: &str, value: &str| format!("<param name=\"{name}\">{value}</param>");
    let unit = param("unit", "<![CDATA[<k&m>]]>");
    let f = call("f", &(param("x", "-1") + &param("text", "<![CDATA[a\n<b> & c]]>") + &unit));
    let f = format!("{f}\n{}", call("f", &(param("x", "1") + &param("text", "a b"))));
    let bad = [
        call("h", ""),
        call("f", ""),
        call("f", &param("x", "one")),
        call("f", &(param("x", "1") + &param("text", "a & b"))),
        call("f", &(param("x", "1") + &param("unit", "cm"))),
        call("f", &param("y", "1")),
    ];
    let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
    check_calls(ToolCallFormat::MiniCpm, &words, &f, &call("g", ""), &bad);
}

#[test]
fn forced_calls_of_glm_have_a_key_and_a_value_for_each_argument() {
    let words =
        ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"];
    for line in ["", "\n"] {
        let call =
            |name: &str, inside: &str| format!("<tool_call>{name}{line}{inside}</tool_call>");
        let argument = |name: &str, value: &str| {
            format!("<arg_key>{name}</arg_key>{line}<arg_value>{value}</arg_value>{line}")
        };
        let f = call(
            "f",
            &(argument("x", "-1") + &argument("text", "a\n<b>") + &argument("unit", "m")),
        );
        let f = format!("{f}\n{}", call("g", ""));
        let bad = [
            call("h", ""),
            call("f", ""),
            call("f", &argument("x", "one")),
            call("f", &(argument("x", "1") + &argument("unit", "cm"))),
            call("f", &argument("y", "1")),
        ];
        let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
        check_calls(ToolCallFormat::Glm, &words, &f, &call("g", ""), &bad);
    }
}

#[test]
fn a_model_without_a_format_of_tool_calls_is_not_forced() {
    let family = Family::new(ToolCallFormat::None, false, &[]);
    let error = family.grammar(required(), false).expect_err("refused");
    assert_eq!(error.field, "tool_choice");
    let error = family.grammar(calls(ToolCallRule::Auto, true), false).expect_err("refused");
    assert_eq!(error.field, "tools[0].parameters");
    let form = AnswerForm { text: Some(TextForm::JsonObject), ..calls(ToolCallRule::Auto, false) };
    family.check(form, false, &["{}"], &["hm"]);
}

#[test]
fn free_answers_have_no_grammar() {
    assert!(calls(ToolCallRule::Auto, false).is_free() && AnswerForm::default().is_free());
    assert!(
        !calls(ToolCallRule::Auto, true).is_free() && !required().is_free() && !object().is_free()
    );
    let tags = AnswerTags::of_added(AnswerFormat::default(), &[]);
    let thought = ThoughtRule::Free;
    let model = ModelAnswers { tags: &tags, thought, one_call: false };
    assert_eq!(calls(ToolCallRule::Auto, false).grammar(Some(model), &[]), Ok(None));
}
