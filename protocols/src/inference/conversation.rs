//! Rules for a conversation: roles and the fields of each, parts, tools and their calls, the
//! template's variables.

use std::collections::HashSet;

use paceline_proto::limits;
use paceline_text::images::{Detail, EncodedImage, ImageSource};
use paceline_text::json::{JsonBudget, JsonInput};
use paceline_text::prompt::OWN_NAMES;
use paceline_text::prompt::conversation::{
    self, ContentPart, Conversation, Message, Role, Tool, ToolCall, ToolCallRule, merge, normalize,
};
use serde_json::{Map, Value};

use super::bounds::check_elements;
use super::error::{InferenceError, Result, quoted, refuse};
use super::input::{ContentPartInput, ConversationInput, MessageInput, ToolCallInput, ToolInput};

/// Longest tool name in bytes: as long as clients of the Messages protocol may send.
const MAX_TOOL_NAME: usize = 128;

/// Checks a conversation and puts it in the order that templates expect.
///
/// # Errors
/// The first field that cannot be served.
pub(super) fn check(input: ConversationInput) -> Result<Conversation> {
    let ConversationInput { messages, tools, calls, template_arguments, effort } = input;
    check_elements("tools", tools.len(), limits::MAX_TOOLS)?;
    check_tool_call_rule(&calls, &tools)?;
    check_lengths(&messages)?;
    if messages.is_empty() {
        return refuse("messages", "at least one message", "none");
    }
    let (mut images, mut json) = (Vec::new(), JsonBudget::default());
    let messages = messages
        .into_iter()
        .enumerate()
        .map(|(at, message)| checked_message(at, message, &mut images, &mut json));
    let messages: Vec<Message> = messages.collect::<Result<_, _>>()?;
    // All system messages become one, which has one name.
    let mut systems =
        messages.iter().enumerate().filter(|(_, message)| message.role == Role::System);
    if let Some((_, first)) = systems.next()
        && let Some((at, other)) = systems.find(|(_, message)| message.name != first.name)
    {
        let expected = format!(
            "the name of the first system message, {}, as they become one",
            quoted(&first.name)
        );
        return refuse(&format!("messages[{at}].name"), expected, quoted(&other.name));
    }
    // Images are numbered in the order of the prompt, so those of system messages come to the front
    // before the template is asked.
    let shows_images = |message: &Message| {
        message.role == Role::System
            && message.parts.iter().any(|part| matches!(part, ContentPart::Image(_)))
    };
    let mut messages = match messages.iter().any(shows_images) {
        true => normalize(messages),
        false => merge(messages),
    };
    let images = conversation::in_order(&mut messages, images);
    let (tools, arguments) =
        (offered(tools, &mut json)?, arguments(&template_arguments, &mut json)?);
    let json_bytes = json.bytes();
    Ok(Conversation { messages, tools, calls, arguments, effort, images, json_bytes })
}

/// Checks how many elements a conversation has. The strict codec of gRPC has checked the same.
fn check_lengths(messages: &[MessageInput]) -> Result<()> {
    check_elements("messages", messages.len(), limits::MAX_TURNS)?;
    let mut all = messages.len();
    for (at, message) in messages.iter().enumerate() {
        let field = |name: &str| format!("messages[{at}].{name}");
        check_elements(&field("content"), message.content.len(), limits::MAX_PARTS)?;
        check_elements(&field("tool_calls"), message.tool_calls.len(), limits::MAX_TOOLS)?;
        all += message.content.len() + message.tool_calls.len();
    }
    check_elements("messages", all, limits::MAX_ELEMENTS)
}

/// Checks that a tool that must be called is offered.
fn check_tool_call_rule(calls: &ToolCallRule, tools: &[ToolInput]) -> Result<()> {
    const FIELD: &str = "tool_choice";
    match calls {
        ToolCallRule::Required if tools.is_empty() => refuse(FIELD, "tools to choose from", "none"),
        ToolCallRule::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
            refuse(FIELD, "the name of one of the request's tools", quoted(name))
        }
        ToolCallRule::Auto | ToolCallRule::Required | ToolCallRule::Named(_) => Ok(()),
    }
}

/// One message of a conversation; its images are added to `images`.
fn checked_message(
    at: usize,
    message: MessageInput,
    images: &mut Vec<EncodedImage>,
    json: &mut JsonBudget,
) -> Result<Message> {
    let MessageInput { role: word, content, tool_calls, tool_call_id, name, reasoning } = message;
    let field = |name: &str| format!("messages[{at}].{name}");
    let role = Role::from_word(&word).ok_or_else(|| {
        InferenceError::invalid(
            &field("role"),
            "system, developer, user, assistant or tool",
            quoted(&word),
        )
    })?;
    let only = |name: &str, of: Role, empty: bool| match empty || role == of {
        true => Ok(()),
        false => refuse(
            &field(name),
            format!("nothing, as only {} turns have it", of.word()),
            format!("one of role {word}"),
        ),
    };
    only("tool_calls", Role::Assistant, tool_calls.is_empty())?;
    only("tool_call_id", Role::Tool, tool_call_id.is_empty())?;
    only("reasoning", Role::Assistant, reasoning.is_empty())?;
    if content.is_empty() && tool_calls.is_empty() {
        return refuse(&field("content"), "at least one part", "none");
    }
    let parts = content
        .into_iter()
        .enumerate()
        .map(|(place, part)| content_part(&field("content"), place, part, images));
    let parts = parts.collect();
    let calls = tool_calls
        .into_iter()
        .enumerate()
        .map(|(place, call)| tool_call(&format!("{}[{place}]", field("tool_calls")), call, json));
    Ok(Message {
        role,
        parts,
        calls: calls.collect::<Result<_, _>>()?,
        call_id: tool_call_id,
        name,
        reasoning,
    })
}

fn content_part(
    field: &str,
    place: usize,
    part: ContentPartInput,
    images: &mut Vec<EncodedImage>,
) -> ContentPart {
    let (source, detail) = match part {
        ContentPartInput::Text(text) => return ContentPart::Text(text),
        ContentPartInput::Image(file) => (ImageSource::File(file), Detail::Full),
        ContentPartInput::ImageUrl { url, detail } => (ImageSource::Address(url), detail),
    };
    images.push(EncodedImage { field: format!("{field}[{place}]"), source, detail });
    ContentPart::Image(images.len() - 1)
}

fn tool_call(field: &str, call: ToolCallInput, json: &mut JsonBudget) -> Result<ToolCall> {
    let ToolCallInput { id, name, arguments } = call;
    check_name(&format!("{field}.name"), &name)?;
    let arguments = json.tool_call_arguments(&format!("{field}.arguments"), &arguments)?;
    Ok(ToolCall { id, name, arguments })
}

fn offered(tools: Vec<ToolInput>, json: &mut JsonBudget) -> Result<Vec<Tool>> {
    let (mut offered, mut names) = (Vec::new(), HashSet::new());
    for (at, tool) in tools.into_iter().enumerate() {
        let ToolInput { name, description, parameters, strict, path: _ } = tool;
        let field = |name: &str| format!("tools[{at}].{name}");
        check_name(&field("name"), &name)?;
        if !names.insert(name.clone()) {
            return refuse(
                &field("name"),
                "a name of its own for each tool",
                format!("{} twice", quoted(&name)),
            );
        }
        let written = field("parameters");
        let mut parameters = json.object(&written, &parameters)?;
        match parameters.get("type") {
            None if parameters.is_empty() => {}
            // Arguments are always an object, and tools of other servers leave the type out.
            None | Some(Value::Null) => {
                parameters.insert("type".to_owned(), "object".into());
            }
            Some(Value::String(kind)) if kind == "object" => {}
            Some(other) => {
                return refuse(
                    &written,
                    "a JSON schema of type object",
                    quoted(&format!("type {other}")),
                );
            }
        }
        offered.push(Tool { name, description, parameters, strict });
    }
    Ok(offered)
}

fn check_name(field: &str, name: &str) -> Result<()> {
    let plain =
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
    if plain && !name.is_empty() && name.len() <= MAX_TOOL_NAME {
        return Ok(());
    }
    refuse(
        field,
        format!("1 to {MAX_TOOL_NAME} letters, digits, \"_\", \"-\" or \".\""),
        quoted(name),
    )
}

/// The variables a request sets.
fn arguments(given: &JsonInput, json: &mut JsonBudget) -> Result<Map<String, Value>> {
    const FIELD: &str = "template_arguments";
    let arguments = json.object(FIELD, given)?;
    match arguments.keys().find(|name| OWN_NAMES.contains(&name.as_str())) {
        Some(name) => refuse(FIELD, "no name that the service itself sets", quoted(name)),
        None => Ok(arguments),
    }
}

#[cfg(test)]
mod tests {
    use paceline_text::prompt::conversation::ToolCallArguments;
    use paceline_vocabulary::Reason;

    use super::*;

    fn message(role: &str, text: &str) -> MessageInput {
        let content = vec![ContentPartInput::Text(text.into())];
        MessageInput { role: role.into(), content, ..Default::default() }
    }

    fn conversation(
        messages: Vec<MessageInput>,
        tools: Vec<ToolInput>,
        template_arguments: &str,
    ) -> Result<Conversation, InferenceError> {
        let template_arguments = template_arguments.into();
        let calls = ToolCallRule::Auto;
        check(ConversationInput { messages, tools, calls, template_arguments, effort: None })
    }

    fn call(name: &str, arguments: &str) -> ToolCallInput {
        ToolCallInput { id: "c1".into(), name: name.into(), arguments: arguments.into() }
    }

    fn keys(arguments: &ToolCallArguments) -> Vec<&str> {
        match arguments {
            ToolCallArguments::Object(members) => members.keys().map(String::as_str).collect(),
            ToolCallArguments::Text(text) => panic!("{text:?} is no object"),
        }
    }

    fn tool(name: &str, parameters: &str) -> ToolInput {
        let (description, parameters) = ("d".into(), parameters.into());
        ToolInput { name: name.into(), description, parameters, ..Default::default() }
    }

    #[track_caller]
    fn refused(outcome: Result<Conversation, InferenceError>, field: &str, words: &[&str]) {
        let error = outcome.expect_err("refused");
        assert_eq!((error.kind, error.field.as_deref()), (Reason::InvalidArgument, Some(field)));
        for word in words {
            assert!(error.message.contains(word), "{word:?} in {error}");
        }
    }

    #[test]
    fn fields_of_another_role_are_refused() {
        let check = |message, field, words: &[&str]| {
            refused(conversation(vec![message], vec![], ""), field, words)
        };
        let with = |role: &str| message(role, "x");
        check(with("wizard"), "messages[0].role", &["developer", "\"wizard\""]);
        for role in ["system", "user", "tool"] {
            let calls = MessageInput { tool_calls: vec![call("f", "")], ..with(role) };
            check(calls, "messages[0].tool_calls", &["only assistant turns", role]);
            let thinks = MessageInput { reasoning: "hm".into(), ..with(role) };
            check(thinks, "messages[0].reasoning", &["only assistant turns", role]);
        }
        for role in ["developer", "user", "assistant"] {
            check(
                MessageInput { tool_call_id: "c".into(), ..with(role) },
                "messages[0].tool_call_id",
                &["only tool turns"],
            );
        }
        for role in ["system", "user", "assistant", "tool"] {
            check(
                MessageInput { content: vec![], ..with(role) },
                "messages[0].content",
                &["at least one part"],
            );
        }
        let tool_calls_only =
            MessageInput { content: vec![], tool_calls: vec![call("f", "")], ..with("assistant") };
        assert!(conversation(vec![tool_calls_only], vec![], "").is_ok());
        let named = |name: &str| MessageInput { name: name.into(), ..with("system") };
        let two = vec![named("a"), with("user"), named("b")];
        refused(conversation(two, vec![], ""), "messages[2].name", &["\"a\"", "\"b\""]);
    }

    #[test]
    fn tools_and_tool_calls_are_checked() {
        let check = |tools, field, words: &[&str]| {
            refused(conversation(vec![message("user", "x")], tools, ""), field, words)
        };
        check(vec![tool("", "")], "tools[0].name", &["1 to 128"]);
        check(vec![tool("a b", "")], "tools[0].name", &["\"a b\""]);
        check(vec![tool(&"a".repeat(129), "")], "tools[0].name", &["1 to 128"]);
        check(vec![tool("a", ""), tool("a", "")], "tools[1].name", &["\"a\" twice"]);
        check(vec![tool("a", "[]")], "tools[0].parameters", &["a JSON object", "[]"]);
        check(vec![tool("a", "{")], "tools[0].parameters", &["a JSON object", "EOF"]);
        check(
            vec![tool("a", r#"{"type": "string"}"#)],
            "tools[0].parameters",
            &["type object", "string"],
        );
        let typeless =
            conversation(vec![message("user", "x")], vec![tool("a", r#"{"properties": {}}"#)], "");
        let parameters = &typeless.expect("an object").tools[0].parameters;
        assert_eq!(parameters.get("type"), Some(&Value::from("object")));
        let with = |call| MessageInput { tool_calls: vec![call], ..message("assistant", "x") };
        let check = |call, field, words: &[&str]| {
            refused(conversation(vec![with(call)], vec![], ""), field, words)
        };
        check(call("", "{}"), "messages[0].tool_calls[0].name", &["1 to 128"]);
    }

    #[test]
    fn arguments_of_earlier_tool_calls_need_not_be_json() {
        for text in ["{\"item\": \"bri", "3", "null"] {
            let called =
                MessageInput { tool_calls: vec![call("f", text)], ..message("assistant", "x") };
            let checked = conversation(vec![called], vec![], "").expect("shown as it is");
            let arguments = &checked.messages[0].calls[0].arguments;
            assert_eq!(*arguments, ToolCallArguments::Text(text.to_owned()));
        }
    }

    #[test]
    fn lists_of_a_conversation_have_the_bounds_of_the_contract() {
        let turns = |count: usize| vec![message("user", "x"); count];
        let parts = |count: usize| {
            let content = vec![ContentPartInput::Text("x".into()); count];
            vec![MessageInput { content, ..message("user", "x") }]
        };
        let calls = |count: usize| {
            let tool_calls = vec![call("f", "{}"); count];
            vec![MessageInput { tool_calls, ..message("assistant", "x") }]
        };
        let tools = |count: usize| (0..count).map(|at| tool(&format!("f{at}"), "")).collect();
        for messages in [turns(1 << 14), parts(1 << 12), calls(1 << 10)] {
            assert!(conversation(messages, tools(1 << 10), "").is_ok());
        }
        let many = |messages| conversation(messages, vec![], "");
        refused(many(turns(20_000)), "messages", &["at most 16384", "20000"]);
        refused(many(parts(5_000)), "messages[0].content", &["at most 4096", "5000"]);
        refused(many(calls(1_100)), "messages[0].tool_calls", &["at most 1024", "1100"]);
        refused(conversation(turns(1), tools(30_000), ""), "tools", &["at most 1024", "30000"]);
        let many_parts = vec![parts(4_096); 17].concat();
        refused(many(many_parts), "messages", &["at most 65536"]);
    }

    #[test]
    fn json_of_all_fields_has_one_budget() {
        let half = format!("{{\"type\": \"object\", \"a\": \"{}\"}}", "x".repeat(600 << 10));
        let with = |call_arguments: &str, parameters: &str, template_arguments: &str| {
            let called = MessageInput {
                tool_calls: vec![call("f", call_arguments)],
                ..message("assistant", "x")
            };
            conversation(
                vec![message("user", "x"), called],
                vec![tool("f", parameters)],
                template_arguments,
            )
        };
        assert_eq!(with("", &half, "{}").expect("within").json_bytes, half.len() + 2);
        refused(
            with(&half, &half, ""),
            "tools[0].parameters",
            &["at most 1048576 bytes", &(2 * half.len()).to_string()],
        );
        refused(with(&half, "", &half), "template_arguments", &["at most 1048576 bytes"]);
        let zeros = format!("{{\"a\":[{}0]}}", "0,".repeat(500_000));
        refused(with("", &zeros, ""), "tools[0].parameters", &["at most 65536 JSON values"]);
    }

    #[test]
    fn template_arguments_are_an_object_of_other_names() {
        let with = |text: &str| conversation(vec![message("user", "x")], vec![], text);
        let found = with(r#"{"enable_thinking": false, "z": 1, "a": 2}"#).expect("fine").arguments;
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            ["enable_thinking", "z", "a"],
            "in their order"
        );
        for name in OWN_NAMES {
            refused(with(&format!("{{\"x\": 1, {name:?}: []}}")), "template_arguments", &[name]);
        }
        refused(with("enable_thinking=false"), "template_arguments", &["a JSON object"]);
        refused(with("[1]"), "template_arguments", &["a JSON object"]);
    }

    #[test]
    fn every_field_of_messages_and_tools_is_kept() {
        let assistant = MessageInput {
            role: "assistant".into(),
            tool_calls: vec![call("read", r#"{"path": "a", "line": 3}"#)],
            reasoning: "hm".into(),
            ..Default::default()
        };
        let answer = MessageInput {
            tool_call_id: "c1".into(),
            name: "read".into(),
            ..message("tool", "text")
        };
        let tools = vec![tool("read", r#"{"type": "object", "properties": {}}"#)];
        let messages = vec![message("user", "x"), assistant, answer, message("developer", "s")];
        let found = conversation(messages, tools, "").expect("fine");
        let roles: Vec<_> = found.messages.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool, Role::System]);
        let (asked, answered) = (&found.messages[1], &found.messages[2]);
        assert_eq!(
            (asked.reasoning.as_str(), asked.calls[0].name.as_str(), asked.calls[0].id.as_str()),
            ("hm", "read", "c1")
        );
        assert_eq!(keys(&asked.calls[0].arguments), ["path", "line"]);
        assert_eq!((answered.call_id.as_str(), answered.name.as_str()), ("c1", "read"));
        assert_eq!(
            (found.tools[0].name.as_str(), found.tools[0].description.as_str()),
            ("read", "d")
        );
    }
}
