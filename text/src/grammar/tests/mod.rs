//! Frames of each family: compiled as the target compiles them, and held against answers.

mod tool_calls;

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
