//! Tool calls of a grammar in each format.

use super::*;

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
fn calls_between_tags() -> [(ToolCallFormat, &'static [&'static str], &'static str); 5] {
    let hermes = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
    let xml =
        "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>";
    let words: &[&str] = &["<tool_call>", "</tool_call>"];
    let gemma: &[&str] = &["<|tool_call>", "<tool_call|>", "<|\"|>"];
    let minicpm: &[&str] = &["<function", "</function>", "<param", "</param>"];
    let minicpm_call = "<function name=\"f\"><param name=\"x\">1</param></function>";
    let glm: &[&str] =
        &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"];
    let glm_call = "<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>";
    [
        (ToolCallFormat::Hermes, words, hermes),
        (ToolCallFormat::QwenXml, words, xml),
        (ToolCallFormat::Gemma4, gemma, "<|tool_call>call:f{x:1}<tool_call|>"),
        (ToolCallFormat::MiniCpm, minicpm, minicpm_call),
        (ToolCallFormat::Glm, glm, glm_call),
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
fn forced_calls_of_mistral_may_end_in_white_space_and_may_be_one() {
    let words = ["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"];
    let object = "{\"name\": \"f\", \"arguments\": {\"x\": 1}}";
    let list = [format!("[TOOL_CALLS][{object}]"), format!("[TOOL_CALLS][{object}, {object}]")];
    let f = "[TOOL_CALLS]f[ARGS]{\"x\": 1}";
    let args = [f.to_owned(), f.repeat(2)];
    for (format, [one, two]) in
        [(ToolCallFormat::MistralList, list), (ToolCallFormat::MistralArgs, args)]
    {
        let [line, said] = [format!("{two}\n"), format!("{one}\nDone.")];
        let several = Family::new(format, false, &words);
        several.check(required(), false, &[&one, &two, &line], &[&said]);
        let alone = Family { one_call: true, ..Family::new(format, false, &words) };
        alone.check(required(), false, &[&one], &[&two]);
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
