use serde_json::{Map, Value, json};

use super::*;
use crate::prompt::conversation::{Message, Role, Tool, ToolCall};

fn message(role: &str, parts: &[&str]) -> Message {
    Message::new(
        Role::from_word(role).expect("a role"),
        parts.iter().map(ToString::to_string).collect(),
    )
}

fn call(name: &str) -> ToolCall {
    ToolCall {
        id: "1".into(),
        name: name.into(),
        arguments: Map::from_iter([("path".to_owned(), "a.rs".into())]).into(),
    }
}

fn tool(name: &str) -> Tool {
    Tool { name: name.into(), description: String::new(), parameters: Map::new(), strict: false }
}

fn render(source: &str, messages: &[Message]) -> Result<String, String> {
    let template = Template::compile(source, None, Some("<end>".into()), &[]).expect("valid Jinja");
    let conversation = Conversation { messages: messages.to_vec(), ..Conversation::default() };
    template
        .render(&conversation)
        .map(|rendered| rendered.text)
        .map_err(|refused| format!("{refused:?}"))
}

fn no_tools(field: &str, advice: &'static str) -> RenderError {
    RenderError::NoTools { field: field.into(), advice }
}

#[test]
fn methods_and_tags_of_published_templates_work() {
    let line = |source: &str, expected: &str| {
        assert_eq!(
            render(source, &[message("user", &[" Hi <b> "])]).expect(source),
            expected,
            "{source}"
        );
    };
    line("{{ messages[0].content.strip() }}{{ eos_token }}", "Hi <b><end>");
    line(
        "{% for m in messages %}\n    {% if loop.first %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}\n",
        "user\n",
    );
    line("{{ messages[0] | tojson }}", r#"{"role": "user", "content": " Hi <b> "}"#);
    line("{{ messages[0].content.split(' ')[1] }}{{ 'x'.startswith('x') }}", "HiTrue");
    line("a {%- generation -%} b {%- endgeneration %} c", "ab c");
    line("{% if add_generation_prompt and not bos_token %}go{{ bos_token }}{% endif %}", "go");
    line(
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "1",
    );
    line("{% for m in messages %}{% if true %}{% break %}{% endif %}x{% endfor %}", "");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the date in a prompt is the wall clock's")]
fn strftime_now_gives_the_current_date() {
    let year = jiff::Zoned::now().year().to_string();
    let rendered =
        render("{{ strftime_now('%Y') }}", &[message("user", &["x"])]).expect("a format");
    assert!(
        rendered == year || rendered == (year.parse::<i32>().expect("a number") + 1).to_string()
    );
    assert!(render("{{ strftime_now('%!') }}", &[message("user", &["x"])]).is_err());
}

#[test]
fn a_templates_objection_reaches_the_client() {
    let source = "{{ raise_exception('roles must alternate') }}";
    let error = render(source, &[message("user", &["x"])]).expect_err("it objects");
    assert!(
        error.contains("refused the conversation: roles must alternate (line 1 of the template)"),
        "{error}"
    );
}

#[test]
fn work_and_output_are_bounded() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    assert!(render(endless, &[message("user", &["x"])]).expect_err("no end").contains("steps"));
    let large = "{% for a in range(99) %}{{ messages[0].content }}{% endfor %}";
    assert!(
        render(large, &[message("user", &[&"x".repeat(1 << 20)])])
            .expect_err("too large")
            .contains("4194304 bytes")
    );
}

#[test]
fn every_part_is_shown_in_the_form_that_the_template_takes() {
    let parts = message("user", &["one", "two"]);
    let both = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
                {% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}";
    assert_eq!(
        render(both, &[parts.clone(), message("user", &["three"])]).expect("fine"),
        "[one][two]three"
    );
    // As Qwen3's: a list becomes nothing.
    let text_only =
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}";
    assert_eq!(render(text_only, std::slice::from_ref(&parts)).expect("fine"), "one\ntwo");
    let list_only =
        "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}";
    assert_eq!(
        render(list_only, &[parts, message("user", &["three"])]).expect("fine"),
        "onetwothree"
    );
}

#[test]
fn a_template_that_leaves_tools_out_refuses_them() {
    let mute = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
    let (template, user) =
        (Template::compile(mute, None, None, &[]).expect("valid Jinja"), message("user", &["x"]));
    assert!(!template.knows_tools());
    let of = |messages: &[Message], tools: &[Tool]| {
        let conversation = Conversation {
            messages: messages.to_vec(),
            tools: tools.to_vec(),
            ..Conversation::default()
        };
        template.render(&conversation).map(|rendered| rendered.text)
    };
    assert_eq!(
        of(std::slice::from_ref(&user), &[tool("read")]),
        Err(no_tools("tools", "send no tools"))
    );
    let calling = Message { calls: vec![call("read")], ..message("assistant", &["y"]) };
    assert_eq!(
        of(&[user.clone(), calling], &[]),
        Err(no_tools("messages.tool_calls", "send no tools"))
    );
    assert_eq!(of(&[user.clone(), message("tool", &["z"])], &[]), Ok("user:x;tool:z;".into()));

    let users =
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
    let answered = [user.clone(), message("tool", &["z"])];
    let refused = render(users, &answered).expect_err("an answer would be lost");
    assert!(refused.contains("messages.role"), "{refused}");

    // Only beside a system message.
    let some = "{% for m in messages %}{% if m.role == 'system' and tools %}{{ tools | tojson }}{% endif %}\
                {{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}";
    let template = Template::compile(some, None, None, &[]).expect("valid Jinja");
    let of = |messages: Vec<Message>| {
        template.render(&Conversation { messages, tools: vec![tool("read")], ..Default::default() })
    };
    assert!(
        of(vec![message("system", &["s"]), user.clone()])
            .is_ok_and(|rendered| rendered.text.contains("\"read\""))
    );
    assert!(of(vec![user]).is_err());
}

#[test]
fn a_request_sets_variables() {
    let source = "{{ messages[0].content }}{{ ' thinks' if enable_thinking is true }}{{ documents is none }}";
    let template = Template::compile(source, None, None, &[]).expect("valid Jinja");
    let with = |arguments: Value| {
        let arguments = arguments.as_object().expect("an object").clone();
        let messages = vec![message("user", &["x"])];
        template
            .render(&Conversation { messages, arguments, ..Default::default() })
            .expect("renders")
            .text
    };
    assert_eq!(with(json!({})), "xTrue");
    assert_eq!(with(json!({"enable_thinking": true, "documents": []})), "x thinksFalse");
}

#[test]
fn system_messages_stay_in_their_places_if_the_template_shows_them_there() {
    let said = [
        message("system", &["a"]),
        message("user", &["b"]),
        message("system", &["c"]),
        message("user", &["d"]),
    ];
    let every = "{% for m in messages %}[{{ m.role }} {{ m.content }}]{% endfor %}";
    assert_eq!(render(every, &said).as_deref(), Ok("[system a][user b][system c][user d]"));
    let front = "[system a\n\nc][user b\n\nd]";
    let refusing = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
        {{ raise_exception('in front') }}{% endif %}[{{ m.role }} {{ m.content }}]{% endfor %}";
    assert_eq!(render(refusing, &said).as_deref(), Ok(front));
    let skipping = "{% for m in messages %}{% if m.role != 'system' or loop.first %}\
        [{{ m.role }} {{ m.content }}]{% endif %}{% endfor %}";
    assert_eq!(render(skipping, &said).as_deref(), Ok(front), "nothing is left out");
}

/// Shows all messages with their roles.
const EVERY: &str = "{% for m in messages %}[{{ m.role }} {{ m.content }}]{% endfor %}";

/// The rendering of a question beside one tool.
fn with_tool(source: &str, messages: Vec<Message>) -> Result<String, RenderError> {
    let template = Template::compile(source, None, None, &[]).expect("valid Jinja");
    let tools = vec![tool("read")];
    template
        .render(&Conversation { messages, tools, ..Conversation::default() })
        .map(|rendered| rendered.text)
}

#[test]
fn a_template_may_ask_absent_tools_for_their_length() {
    // Qwen3-Coder's published template asks this way.
    let source = format!(
        "{{% if tools is iterable and tools | length > 0 %}}{{{{ tools | tojson }}}}{{% endif %}}{EVERY}"
    );
    assert_eq!(render(&source, &[message("user", &["x"])]).as_deref(), Ok("[user x]"));
    let shown = with_tool(&source, vec![message("user", &["x"])]).expect("it shows tools");
    assert!(shown.contains("\"read\"") && shown.ends_with("[user x]"), "{shown}");
    let lengths = format!("{{{{ missing | length }}}}{{{{ missing | count }}}}{EVERY}");
    assert_eq!(render(&lengths, &[message("user", &["x"])]).as_deref(), Ok("00[user x]"));
}

#[test]
fn a_variable_that_is_read_before_its_assignment_is_a_variable_of_requests() {
    let own = format!("{{% set tools = tools or [] %}}{EVERY}{{{{ tools | tojson }}}}");
    let shown = with_tool(&own, vec![message("user", &["x"])]).expect("it shows tools");
    assert!(shown.contains("\"read\""), "{shown}");
    let switch = "{% set enable_thinking = enable_thinking | default(false) %}\
        {{ messages[0].content }}{{ ' thinks' if enable_thinking }}";
    let template = Template::compile(switch, None, None, &[]).expect("valid Jinja");
    let messages = vec![message("user", &["x"])];
    let effort = Some(crate::prompt::conversation::Effort::High);
    let rendered = template.render(&Conversation { messages, effort, ..Conversation::default() });
    assert_eq!(rendered.expect("renders").text, "x thinks");
    // Assigned first, or a name of another object: no request can set it.
    for source in [
        "{% set tools = [] %}{{ tools | tojson }}",
        "{% for tools in messages %}{{ tools.content }}{% endfor %}",
        "{{ messages[0].tools }}",
        "{% macro f(tools) %}{{ tools }}{% endmacro %}{{ f(1) }}",
    ] {
        let source = format!("{source}{EVERY}");
        let template = Template::compile(&source, None, None, &[]).expect("valid Jinja");
        assert!(!template.engine.uses("tools"), "{source}");
    }
}

#[test]
fn line_breaks_of_a_template_are_line_feeds() {
    let source = "a\r\nb\rc\n{% if true %}\r\nd{% endif %}{{ messages[0].content }}";
    assert_eq!(render(source, &[message("user", &["x\r\ny"])]).as_deref(), Ok("a\nb\nc\ndx\r\ny"));
}

#[test]
fn a_thought_has_the_names_that_the_reference_gives_it() {
    let thinking = Message { reasoning: "so".into(), ..message("assistant", &["y"]) };
    let shown = |source: &str| render(source, &[message("user", &["x"]), thinking.clone()]);
    assert_eq!(
        shown("{{ messages[1].thinking }}|{{ messages[1].reasoning_content }}").as_deref(),
        Ok("so|so")
    );
    assert_eq!(
        shown("{{ messages[1] | tojson }}{{ messages[0] | tojson }}").as_deref(),
        Ok("{\"thinking\": \"so\", \"role\": \"assistant\", \"content\": \"y\", \
            \"reasoning_content\": \"so\"}{\"role\": \"user\", \"content\": \"x\"}")
    );
    assert_eq!(shown("{{ messages[1].reasoning }}").as_deref(), Ok("so"));
}

#[test]
fn a_thought_beside_text_and_calls_has_its_older_name_unless_the_template_objects() {
    // LFM2.5's template reads this name alone.
    let reading = "{% for m in messages %}[{{ m.role }} {{ m.content }} {{ m.thinking }}\
        {{ m.tool_calls | tojson if m.tool_calls }}]{% endfor %}{{ tools | tojson if tools }}";
    let calling = Message {
        calls: vec![call("read")],
        reasoning: "so".into(),
        ..message("assistant", &["y"])
    };
    let said = vec![message("user", &["x"]), calling];
    let shown = render(reading, &said).expect("renders");
    assert!(shown.contains("[assistant y so"), "{shown}");
    // gpt-oss' template refuses both. The text and the call count.
    let objecting = format!(
        "{{% for m in messages %}}{{% if m.tool_calls and m.content and m.thinking %}}\
        {{{{ raise_exception('one of both') }}}}{{% endif %}}{{% endfor %}}{reading}"
    );
    let shown = render(&objecting, &said).expect("renders");
    assert!(shown.contains("[assistant y [{"), "{shown}");
}

#[test]
fn a_line_break_after_raw_stays() {
    let source = "<u>{% raw %}\n{{ x }}{% endraw %}\n{{ messages[0].content }}\
        {%- raw -%}\n y{% endraw %}{% raw %}\n{% endraw %}";
    assert_eq!(render(source, &[message("user", &["x"])]).as_deref(), Ok("<u>\n{{ x }}xy\n"));
}

#[test]
fn calls_that_a_template_shows_beside_tools_are_served_beside_tools() {
    let source = "{% for m in messages %}[{{ m.role }} {{ m.content }}]\
        {% if tools and m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{% endfor %}\
        {{ tools | tojson if tools }}";
    let calling = Message { calls: vec![call("read")], ..message("assistant", &[""]) };
    let messages = vec![message("user", &["x"]), calling, message("tool", &["z"])];
    let shown = with_tool(source, messages.clone()).expect("it shows calls beside tools");
    assert!(shown.contains("a.rs"), "{shown}");
    // Without tools the call would be left out.
    let refused = render(source, &messages).expect_err("a call would be lost");
    assert!(refused.contains("tool_calls") && refused.contains("send its tools"), "{refused}");
}

#[test]
fn tools_that_a_template_shows_beside_calls_are_served_beside_calls() {
    let source = "{% for m in messages %}[{{ m.role }} {{ m.content }}]\
        {% if tools and m.tool_calls %}{{ tools | tojson }}{{ m.tool_calls | tojson }}{% endif %}\
        {% endfor %}";
    let calling = Message { calls: vec![call("read")], ..message("assistant", &[""]) };
    let question = message("user", &["x"]);
    let shown = with_tool(source, vec![question.clone(), calling]).expect("both are shown");
    assert!(shown.contains(r#""function": {"name": "read"}"#) && shown.contains("a.rs"), "{shown}");
    assert_eq!(with_tool(source, vec![question]), Err(no_tools("tools[0]", "send no tools")));
}

#[test]
fn a_call_without_text_has_no_content_if_the_template_needs_that() {
    // As the R1 distillations know calls.
    let source = "{% for m in messages %}{% if m.role == 'assistant' and m['content'] is none %}\
        {% for c in m.tool_calls %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}\
        {% endfor %}{% elif m.role == 'assistant' %}[said {{ m.content }}]\
        {% else %}[{{ m.role }} {{ m.content }}]{% endif %}{% endfor %}{{ tools | tojson if tools }}";
    let calling = Message { calls: vec![call("read")], ..message("assistant", &[""]) };
    let messages = vec![
        message("user", &["x"]),
        calling,
        message("tool", &["z"]),
        message("assistant", &["y"]),
    ];
    let shown = with_tool(source, messages.clone()).expect("the call is shown");
    assert!(shown.starts_with("[user x]<call>read{\"path\": \"a.rs\"}[tool z][said y]"), "{shown}");
    // Beside text the template shows the text alone, so the call becomes a message of its own.
    let both = Message { calls: vec![call("read")], ..message("assistant", &["so"]) };
    let shown = with_tool(source, vec![message("user", &["x"]), both]).expect("both are shown");
    assert!(shown.starts_with("[user x][said so]<call>read{\"path\": \"a.rs\"}"), "{shown}");
}

#[test]
fn a_template_that_objects_to_a_content_of_none_gets_a_text() {
    let source = "{% for m in messages %}{{ '[' + m.role + ' ' + m.content + ']' }}{% endfor %}\
        {{ tools | tojson if tools }}";
    let calling = Message { calls: vec![call("read")], ..message("assistant", &[""]) };
    let refused = with_tool(source, vec![message("user", &["x"]), calling]);
    assert_eq!(refused, Err(no_tools("messages.tool_calls", "send no tools")));
}

#[test]
fn a_panic_of_the_engine_is_a_refusal_of_the_template() {
    // minijinja 3.0.5 divides by the number of arguments.
    let source = "{% for m in messages %}{{ loop.cycle() }}{{ m.content }}{% endfor %}";
    let error = Template::compile(source, None, None, &[]).expect_err("the engine panics");
    assert!(error.to_string().contains("the engine panics"), "{error}");
}

#[test]
fn what_the_engine_lacks_is_named_in_every_branch() {
    let lacks =
        |source: &str| Template::compile(source, None, None, &[]).expect("valid Jinja").lacks();
    let later = "{{ messages[0].content }}{% if messages | length > 1 %}\
        {{ messages[1].content | fromjson | wordwrap }}{% if 1 is prime %}{{ now() }}{% endif %}\
        {{ 'a'.encode() }}{% endif %}";
    assert_eq!(
        lacks(later),
        ["filter fromjson", "filter wordwrap", "function now", "method encode", "test prime"]
    );
    let served = "{% macro f(x) %}{{ x | upper | tojson }}{{ caller() if caller }}{% endmacro %}\
        {% set ns = namespace(a=1) %}{{ f(1) }}{{ range(2) | list }}{{ dict(a=1).items() | list }}\
        {{ strftime_now('%Y') }}{{ '%s' % ns.a }}{{ messages[0].content.strip() }}\
        {% for m in messages %}{{ loop.changed(m.role) }}{{ raise_exception('x') if m is none }}\
        {% endfor %}{{ [1] | selectattr('a', 'equalto', 1) | list | length is divisibleby 2 }}";
    assert_eq!(lacks(served), [""; 0]);
}
