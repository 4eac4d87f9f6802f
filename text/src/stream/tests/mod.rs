//! Answers of every family: what becomes text, reasoning and tool calls. Each answer is read with
//! its tags as added tokens and as characters, and in batches of all sizes.

mod formats;

use paceline_vocabulary::generation::FinishReason;
use proptest::prelude::*;
use serde_json::{Map, Value};

use super::parts::Parts;
use super::{AnswerPart, ConversationReading, ToolCallStart};
use crate::prompt::format::ToolCallFormat;
use crate::samples::answers::{Model, SampleAnswer, TAGS, offered, sample_answers};

fn shown(parts: &[AnswerPart]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for part in parts {
        match part {
            AnswerPart::Text(text) => out.push(format!("text {text}")),
            AnswerPart::Reasoning(text) => out.push(format!("thought {text}")),
            AnswerPart::ToolCallStart(ToolCallStart { index, id, name }) => {
                assert_eq!(id, &format!("c{index}"));
                out.push(format!("call {index} {name} "));
            }
            AnswerPart::ToolCallArguments(text) => out.last_mut().expect("a call").push_str(text),
            AnswerPart::ToolCallEnd => {
                let call = out.last_mut().expect("a call");
                let arguments = call.splitn(4, ' ').nth(3).expect("arguments");
                let parsed: Result<Map<String, Value>, _> = serde_json::from_str(arguments);
                assert!(parsed.is_ok(), "{arguments}");
                call.push('.');
            }
            AnswerPart::ToolCallCut => out.last_mut().expect("a call").push_str(" cut"),
            AnswerPart::MalformedToolCall(_) => out.push("fault".into()),
            AnswerPart::Warning(_) => {}
        }
    }
    out
}

#[track_caller]
fn check_as(
    calls: ToolCallFormat,
    tokens: bool,
    reading: &ConversationReading,
    answer: &str,
    expected: &[&str],
) {
    check_end(calls, tokens, reading, answer, FinishReason::Stop, expected);
}

#[track_caller]
fn check_end(
    calls: ToolCallFormat,
    tokens: bool,
    reading: &ConversationReading,
    answer: &str,
    reason: FinishReason,
    expected: &[&str],
) {
    let model = Model::new(calls, tokens);
    let ids = model.ids(answer);
    for size in [1, 2, 1000] {
        let parts = model.parts(&ids, reading.clone(), &[size], reason);
        assert_eq!(shown(&parts), expected, "{answer:?} tokens={tokens} size={size}");
    }
}

/// Checks an answer with tags as tokens and with tags as characters.
#[track_caller]
fn check(calls: ToolCallFormat, answer: &str, expected: &[&str]) {
    for tokens in [true, false] {
        check_as(calls, tokens, &offered(), answer, expected);
    }
}

#[test]
fn thoughts_are_told_from_the_answer() {
    for calls in [
        ToolCallFormat::None,
        ToolCallFormat::Hermes,
        ToolCallFormat::QwenXml,
        ToolCallFormat::Llama3,
    ] {
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
            check_as(ToolCallFormat::Hermes, tokens, &open, answer, expected);
        };
        check(
            "so <tool_call> is a tag\n</think>\n\n5",
            &["thought so <tool_call> is a tag", "text 5"],
        );
        check("only thoughts", &["thought only thoughts"]);
    }
}

/// A tag that is ordinary text for the tokenizer could be the answer's own text. It is a tag in
/// front of the answer alone, where every published template has it.
#[test]
fn a_tag_of_thoughts_in_ordinary_text_counts_in_front_of_the_answer_alone() {
    let check = |answer: &str, expected: &[&str]| {
        check_as(ToolCallFormat::Hermes, false, &offered(), answer, expected);
    };
    check("\n<think>a</think>b", &["thought a", "text b"]);
    for answer in ["a <think>b</think> c", "a</think>b", "</think>", "<thinking>a</thinking>"] {
        check(answer, &[&format!("text {answer}")]);
    }
    check("<think>a</think>b <think>c</think>", &["thought a", "text b <think>c</think>"]);
    check("<think>a <think> b</think>c", &["thought a <think> b", "text c"]);
}

#[test]
fn tags_that_are_tokens_are_no_characters_and_without_tools_there_is_no_tool_call() {
    let answer = "a<think>b</think><tool_call>{\"name\": \"read\"}</tool_call>";
    let model = Model::new(ToolCallFormat::Hermes, true);
    // The characters of the tags, as the model spelled them.
    let ids = Model { tokens: false, ..model }.ids(answer);
    let model = Model::new(ToolCallFormat::Hermes, true);
    let parts = model.parts(&ids, offered(), &[1], FinishReason::Stop);
    assert_eq!(shown(&parts), [format!("text {answer}")]);
    let no_tools = ConversationReading::default();
    let call = "<tool_call>{\"name\": \"read\"}</tool_call>";
    for tokens in [true, false] {
        check_as(ToolCallFormat::Hermes, tokens, &no_tools, call, &[&format!("text {call}")]);
    }
}

/// Checks an answer that the limit of tokens cuts.
#[track_caller]
fn check_cut(calls: ToolCallFormat, answer: &str, expected: &[&str]) {
    for tokens in [true, false] {
        check_end(calls, tokens, &offered(), answer, FinishReason::Length, expected);
    }
}

/// Checks a cut answer with half a tag. A tokenizer that has the tag as a token makes no halves.
#[track_caller]
fn check_half(calls: ToolCallFormat, answer: &str, expected: &[&str]) {
    check_end(calls, false, &offered(), answer, FinishReason::Length, expected);
}

#[test]
fn a_tool_call_that_the_limit_cuts_is_sent_as_far_as_it_came() {
    let check =
        |answer: &str, expected: &[&str]| check_cut(ToolCallFormat::Hermes, answer, expected);
    let begun = "I look.\n<tool_call>\n{\"name\": \"read\"";
    check(begun, &["text I look.", "call 0 read  cut"]);
    check(&format!("{begun}, \"arg"), &["text I look.", "call 0 read  cut"]);
    check(
        &format!("{begun}, \"arguments\": {{\"n\": 12"),
        &["text I look.", "call 0 read {\"n\": 12 cut"],
    );
    // Its arguments are whole, and its object is not.
    let arguments = format!("{begun}, \"arguments\": {{\"n\": 1}}");
    check(&arguments, &["text I look.", "call 0 read {\"n\": 1} cut"]);
    // The tool call is whole, and half its closing tag came.
    let whole = format!("{arguments}}}\n</tool_c");
    check_half(ToolCallFormat::Hermes, &whole, &["text I look.", "call 0 read {\"n\": 1}."]);
    check(
        &format!("{arguments}}}\n</tool_call>\n<tool_call>\n{{\"name\": \"get-time\", "),
        &["text I look.", "call 0 read {\"n\": 1}.", "call 1 get-time  cut"],
    );
    let tagged = "<tool_call>\n<function=read>\n<parameter=";
    let check = |answer: &str, expected: &[&str]| {
        check_cut(ToolCallFormat::QwenXml, &format!("{tagged}{answer}"), expected);
    };
    check("text>\nab\n</para", &["call 0 read {\"text\": \"ab cut"]);
    check("n>\n12", &["call 0 read {\"n\": 12 cut"]);
    check("maybe>\na \"b\"", &["call 0 read {\"maybe\": \"a \\\"b\\\" cut"]);
    check("n>\n5\n</parameter>\n</func", &["call 0 read {\"n\": 5 cut"]);
    let whole = format!("{tagged}n>\n5\n</parameter>\n</function>\n</tool");
    check_half(ToolCallFormat::QwenXml, &whole, &["call 0 read {\"n\": 5}."]);
    check_cut(
        ToolCallFormat::Llama3,
        "{\"name\": \"read\", \"parameters\": {\"n\": 1",
        &["call 0 read {\"n\": 1 cut"],
    );
    let gemma = "<|tool_call>call:read{list:[<|\"|>x<|\"|>,1";
    check_cut(ToolCallFormat::Gemma4, gemma, &["call 0 read {\"list\":[\"x\",1 cut"]);
    check_cut(
        ToolCallFormat::Gemma4,
        &gemma[..gemma.len() - 7],
        &["call 0 read {\"list\":[\"x cut"],
    );
    let listed = "[TOOL_CALLS][{\"name\": \"read\", \"arguments\": {\"n\": 5";
    check_cut(ToolCallFormat::MistralList, listed, &["call 0 read {\"n\": 5 cut"]);
    let whole = format!("{listed}}}}}, ");
    check_cut(ToolCallFormat::MistralList, &whole, &["call 0 read {\"n\": 5}."]);
    let args = "[TOOL_CALLS]read[ARGS]{\"n\": 5";
    check_cut(ToolCallFormat::MistralArgs, args, &["call 0 read {\"n\": 5 cut"]);
    let minicpm = "<function name=\"read\"><param name=\"text\">ab &l";
    check_cut(ToolCallFormat::MiniCpm, minicpm, &["call 0 read {\"text\": \"ab  cut"]);
    let glm = "<tool_call>read<arg_key>n</arg_key><arg_value>12";
    check_cut(ToolCallFormat::Glm, glm, &["call 0 read {\"n\": 12 cut"]);
    let header = "<|channel|>commentary to=functions.read <|constrain|>json<|message|>";
    check_cut(ToolCallFormat::Harmony, header, &["call 0 read  cut"]);
    check_cut(
        ToolCallFormat::Harmony,
        &format!("{header}{{\"n\": 5"),
        &["call 0 read {\"n\": 5 cut"],
    );
    check_half(ToolCallFormat::Harmony, &format!("{header}{{}}<|ca"), &["call 0 read {}."]);
}

/// A tool call that the limit cuts before its name is left out, and also half a tag.
#[test]
fn a_tool_call_that_the_limit_cuts_before_its_name_is_left_out() {
    for (calls, opening) in [
        (ToolCallFormat::Hermes, "<tool_call>\n{\"arguments\": {\"n\": 1}, \"name\": \"re"),
        (ToolCallFormat::QwenXml, "<tool_call>\n<function=re"),
        (ToolCallFormat::Gemma4, "<|tool_call>call:re"),
        (ToolCallFormat::MistralList, "[TOOL_CALLS] [{\"id\": \"a1b2c3d4e\", \"name\": \"re"),
        (ToolCallFormat::MistralArgs, "[TOOL_CALLS]re"),
        (ToolCallFormat::MiniCpm, "<function name=\"re"),
        (ToolCallFormat::Glm, "<tool_call>re"),
    ] {
        for end in 1..=opening.len() {
            check_half(calls, &opening[..end], &[]);
            let answer = format!("I look.\n{}", &opening[..end]);
            let model = Model::new(calls, false);
            let ids = model.ids(&answer);
            let parts = model.parts(&ids, offered(), &[1], FinishReason::Length);
            let shown = shown(&parts);
            let text = ["text I look.".to_owned(), "text I look.\n".to_owned()];
            assert!(shown.len() == 1 && text.contains(&shown[0]), "{answer:?}: {shown:?}");
        }
    }
    for after_tag in ["", "\n{", "\n{\"na", "\n{\"name\": \"re"] {
        check_cut(ToolCallFormat::Hermes, &format!("a\n<tool_call>{after_tag}"), &["text a"]);
    }
    check_cut(ToolCallFormat::Gemma4, "a<|tool_call>call:re", &["text a"]);
    check_cut(ToolCallFormat::QwenXml, "a\n<function=re", &["text a"]);
    let header = "<|channel|>commentary to=functions.read <|constrain|>json<|mess";
    for end in ["<|channel|>".len(), 20, 40, header.len()] {
        check_cut(ToolCallFormat::Harmony, &header[..end], &[]);
    }
    check_cut(ToolCallFormat::Harmony, " to=functions.re", &[]);
    check_cut(ToolCallFormat::Harmony, "short", &["text short"]);
    // JSON that cannot become a tool call of an offered tool is an answer.
    let llama =
        |answer: &str, expected: &[&str]| check_cut(ToolCallFormat::Llama3, answer, expected);
    llama("{\"name\": \"re", &[]);
    llama("{\"type\": \"function\", \"na", &[]);
    llama("{\"name\": \"Ad", &["text {\"name\": \"Ad"]);
    llama("{\"tit", &["text {\"tit"]);
    // Half a tag of a thought.
    check_half(ToolCallFormat::Hermes, "<think>so</th", &["thought so"]);
    check_half(ToolCallFormat::None, "<thi", &[]);
    check_cut(ToolCallFormat::None, "a <thi", &["text a <thi"]);
}

#[test]
fn line_breaks_around_tool_calls_are_kept_between_texts_alone() {
    let call = "<tool_call>\n{\"name\": \"read\", \"arguments\": {}}\n</tool_call>";
    let hermes = |answer: &str, expected: &[&str]| check(ToolCallFormat::Hermes, answer, expected);
    let (first, second) = ("call 0 read {}.", "call 1 read {}.");
    hermes(&format!("I look.\n{call}\nDone."), &["text I look.", first, "text \n\nDone."]);
    hermes(&format!("I look.{call}\n\nDone.\n"), &["text I look.", first, "text \n\nDone.\n"]);
    hermes(&format!("I look.\n{call}Done."), &["text I look.", first, "text \nDone."]);
    // Separators of tool calls are no text.
    hermes(
        &format!("I look.\n{call}\n{call}\nDone."),
        &["text I look.", first, second, "text \n\nDone."],
    );
    hermes(
        &format!("I look.\n{call}\nYes.\n\n{call}\nDone."),
        &["text I look.", first, "text \n\nYes.", second, "text \n\n\nDone."],
    );
    hermes(&format!("I look.\n\n{call}\n{call}\n"), &["text I look.", first, second]);
    hermes(&format!("\n{call}\n{call}\n\nDone."), &[first, second, "text Done."]);
    let thinking = format!("I look.\n{call}\n<think>so</think>\n\nDone.");
    let expected = ["text I look.", first, "thought so", "text \nDone."];
    check_as(ToolCallFormat::Hermes, true, &offered(), &thinking, &expected);
    // A tool call that is none is text with what stood before it.
    hermes(
        &format!("I look.\n{call}\n<tool_call>oops</tool_call>"),
        &["text I look.", first, "text \n\n", "fault", "text <tool_call>oops</tool_call>"],
    );
    let tagged = "<tool_call>\n<function=read>\n</function>\n</tool_call>";
    let shown = ["text I look.", first, "text \n\nDone."];
    check(ToolCallFormat::QwenXml, &format!("I look.\n{tagged}\nDone."), &shown);
    let gemma = "<|tool_call>call:read{}<tool_call|>";
    check(ToolCallFormat::Gemma4, &format!("I look.\n{gemma}\nDone."), &shown);
    let llama = "{\"name\": \"read\", \"parameters\": {}}";
    check(
        ToolCallFormat::Llama3,
        &format!("{llama}\n{llama}\nDone."),
        &[first, second, "text Done."],
    );
}

#[test]
fn tokens_of_thoughts_are_counted_with_their_tags_whatever_the_batches() {
    let usage =
        |calls: ToolCallFormat, reading: &ConversationReading, answer: &str, size: usize| {
            let model = Model::new(calls, true);
            let ids = model.ids(answer);
            let events = model.events(&ids, reading.clone(), &[size], &[], FinishReason::Stop);
            let end = events.into_iter().rev().find_map(|event| event.last).expect("an end");
            (end.usage.reasoning_tokens as usize, end.usage.completion_tokens as usize)
        };
    let model = Model::new(ToolCallFormat::Hermes, true);
    let (thought, text) = ("so it is", "\n\nIt is 5.");
    let thoughts = model.ids(thought).len();
    let open = ConversationReading { thought_is_open: true, ..offered() };
    for size in [1, 2, 5, 1000] {
        let whole = format!("<think>{thought}</think>{text}");
        let all = model.ids(&whole).len();
        assert_eq!(usage(ToolCallFormat::Hermes, &offered(), &whole, size), (thoughts + 2, all));
        let rest = &whole["<think>".len()..];
        assert_eq!(usage(ToolCallFormat::Hermes, &open, rest, size), (thoughts + 1, all - 1));
        assert_eq!(usage(ToolCallFormat::Hermes, &offered(), text, size).0, 0);
        let harmony = format!(
            "<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant<|channel|>final<|message|>5"
        );
        assert_eq!(usage(ToolCallFormat::Harmony, &offered(), &harmony, size).0, thoughts + 2);
    }
}

#[test]
fn an_answer_with_one_tool_call_ends_where_the_call_does() {
    let one = ConversationReading { one_call: true, ..offered() };
    for SampleAnswer { calls, answer, .. } in sample_answers() {
        let model = Model::new(calls, true);
        let other = answer.replacen("read", "nope", 1);
        let second = if calls == ToolCallFormat::Harmony { "read" } else { "get-time" };
        for (answer, ended) in [(&answer, "read"), (&other, second)] {
            // Text that is no call begins here, and what follows belongs to it.
            let are_text = [ToolCallFormat::Llama3, ToolCallFormat::MistralList];
            if are_text.contains(&calls) && *answer == other {
                continue;
            }
            let ids = model.ids(answer);
            for size in [1, 3, 1000] {
                let reason = FinishReason::Length;
                let events = model.events(&ids, one.clone(), &[size], &[], reason);
                let parts: Vec<AnswerPart> =
                    events.iter().flat_map(|event| event.parts.clone()).collect();
                let start = parts.iter().rev().find_map(|part| match part {
                    AnswerPart::ToolCallStart(start) => Some(start.name.as_str()),
                    _ => None,
                });
                assert_eq!((start, parts.last()), (Some(ended), Some(&AnswerPart::ToolCallEnd)));
                let end = events.last().and_then(|event| event.last.as_ref()).expect("an end");
                assert_eq!(end.finish_reason, Some(FinishReason::Stop), "{calls:?}");
                assert_eq!(end.stop, "");
                let read: usize = events.iter().map(|event| event.token_ids.len()).sum();
                assert_eq!(end.usage.completion_tokens as usize, read);
                assert!(read < ids.len() || *answer == other, "{calls:?}: nothing was left out");
            }
        }
    }
}

#[test]
fn an_answer_to_tools_begins_with_a_warning_if_calls_are_not_read() {
    let parts = |calls: ToolCallFormat, reading: ConversationReading, answer: &str| {
        let model = Model::new(calls, true);
        model.parts(&model.ids(answer), reading, &[1], FinishReason::Stop)
    };
    for answer in ["", "f(1)"] {
        let unread = parts(ToolCallFormat::None, offered(), answer);
        let [AnswerPart::Warning(warning), rest @ ..] = &unread[..] else { panic!("{unread:?}") };
        assert!(warning.contains("not known") && shown(rest).concat().ends_with(answer));
        let no_tools = parts(ToolCallFormat::None, ConversationReading::default(), answer);
        let read = parts(ToolCallFormat::Hermes, offered(), answer);
        assert_eq!((shown(&no_tools), no_tools), (shown(&read), read));
    }
}

#[test]
fn arguments_are_sent_as_they_come() {
    let model = Model::new(ToolCallFormat::QwenXml, true);
    let answer = "<tool_call><function=read><parameter=text>one two three four five";
    let mut seen = String::new();
    for event in model.events(&model.ids(answer), offered(), &[1], &[], FinishReason::Stop) {
        if event.last.is_none() {
            for part in event.parts {
                if let AnswerPart::ToolCallArguments(text) = part {
                    seen.push_str(&text);
                }
            }
        }
    }
    assert!(seen.starts_with("{\"text\": \"one two three"), "{seen}");
}

#[test]
fn a_stop_string_is_looked_for_in_the_text_alone() {
    let model = Model::new(ToolCallFormat::Hermes, true);
    let answer = "<think>a END b</think>c E<tool_call>{\"name\": \"read\", \"arguments\": {\"text\": \"END\"}}</tool_call>ND d END e";
    let events = model.events(&model.ids(answer), offered(), &[3], &["END"], FinishReason::Stop);
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
            "[", "]",
            "read[ARGS]{\"text\": \"WORD\"}",
            "read[CALL_ID]a1b2c3d4e[ARGS]",
            "<function name=\"read\">",
            "<param name=\"text\">WORD</param>",
            "<param name=\"list\">['WORD', 1",
            "<![CDATA[WORD]]>",
            "<tool_call>read\n",
            "<arg_key>text</arg_key>",
            "<arg_value>WORD</arg_value>",
        ][..],
    ]
    .concat();
    proptest::collection::vec(proptest::sample::select(fragments), 0..12)
}

#[test]
fn batches_do_not_matter_and_nothing_is_lost() {
    let formats = [
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
    let models: Vec<Model> = [true, false]
        .into_iter()
        .flat_map(|tokens| formats.map(|format| Model::new(format, tokens)))
        .collect();
    let mut config = ProptestConfig::with_cases(2500);
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
        let reading = ConversationReading { tools, thought_is_open, ..offered() };
        let parts = model.parts(&ids, reading.clone(), &[usize::MAX >> 1], FinishReason::Stop);
        prop_assert_eq!(&model.parts(&ids, reading, &sizes, FinishReason::Stop), &parts, "{}", answer);
        // Tool calls that end have arguments that are JSON, which `shown` checks.
        let seen = shown(&parts).concat();
        for word in words {
            prop_assert!(seen.contains(&word), "{} of {:?} is not in {:?}", word, answer, parts);
        }
        let void = parts.iter().filter(|part| matches!(part, AnswerPart::ToolCallStart(_))).count()
            - parts.iter().filter(|part| matches!(part, AnswerPart::ToolCallEnd)).count();
        let faults = parts.iter().filter(|part| matches!(part, AnswerPart::MalformedToolCall(_))).count();
        prop_assert!(void <= faults, "{:?}", parts);
    });
}
