//! Whatever a model's chat template does with whatever conversation, it ends, within its bounds.
//! The input: the template, and after NUL bytes messages, the first byte of each its role.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_text::prompt::Template;
use paceline_text::prompt::conversation::{
    Conversation, Message, Role, Tool, ToolCall, ToolCallArguments, normalize,
};

/// As many bytes as a rendering may have.
const MAX_OUTPUT_BYTES: usize = 4 << 20;

fn conversation<'a>(parts: impl Iterator<Item = &'a str>) -> Conversation {
    let mut conversation = Conversation::default();
    for part in parts.take(64) {
        let mut characters = part.chars();
        let role = characters.next();
        let text = characters.as_str();
        let message = |role| Message::new(role, text.split('\x01').map(str::to_owned).collect());
        match role {
            Some('s') => conversation.messages.push(message(Role::System)),
            Some('a') => conversation.messages.push(message(Role::Assistant)),
            Some('t') => conversation.messages.push(message(Role::Tool)),
            Some('c') => {
                let object = serde_json::from_str(text).map(ToolCallArguments::Object);
                let arguments = object.unwrap_or_else(|_| ToolCallArguments::Text(text.to_owned()));
                let call = ToolCall { id: "c1".into(), name: "f".into(), arguments };
                conversation
                    .messages
                    .push(Message { calls: vec![call], ..message(Role::Assistant) });
            }
            Some('o') => {
                let parameters = serde_json::from_str(text).unwrap_or_default();
                conversation.tools.push(Tool {
                    name: "f".into(),
                    description: "d".into(),
                    parameters,
                    strict: false,
                });
            }
            Some('v') => conversation.arguments = serde_json::from_str(text).unwrap_or_default(),
            _ => conversation.messages.push(message(Role::User)),
        }
    }
    conversation.messages = normalize(std::mem::take(&mut conversation.messages));
    conversation
}

fuzz_target!(|text: &str| {
    let mut parts = text.split('\0');
    let Some(source) = parts.next() else { return };
    let Ok(template) = Template::compile(source, Some("<s>".into()), Some("</s>".into()), &[])
    else {
        return;
    };
    if let Ok(prompt) = template.render(&conversation(parts)) {
        assert!(prompt.text.len() <= MAX_OUTPUT_BYTES);
    }
});
