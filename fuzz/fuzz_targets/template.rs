//! Whatever a model's chat template does with whatever conversation, it ends, within its bounds.
//! The input: the template, and behind NUL bytes turns, the first byte of each its role.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_gateway::prompt::Template;
use paceline_gateway::prompt::conversation::{Call, Conversation, Role, Tool, Turn, normalize};

/// As many bytes as a rendering may have.
const MAX_OUTPUT_BYTES: usize = 4 << 20;

fn conversation<'a>(parts: impl Iterator<Item = &'a str>) -> Conversation {
    let mut conversation = Conversation::default();
    for part in parts.take(64) {
        let mut letters = part.chars();
        let role = letters.next();
        let text = letters.as_str();
        let turn = |role| Turn::new(role, text.split('\x01').map(str::to_owned).collect());
        match role {
            Some('s') => conversation.turns.push(turn(Role::System)),
            Some('a') => conversation.turns.push(turn(Role::Assistant)),
            Some('t') => conversation.turns.push(turn(Role::Tool)),
            Some('c') => {
                let arguments = serde_json::from_str(text).unwrap_or_default();
                let call = Call { id: "c1".into(), name: "f".into(), arguments };
                conversation.turns.push(Turn { calls: vec![call], ..turn(Role::Assistant) });
            }
            Some('o') => {
                let parameters = serde_json::from_str(text).unwrap_or_default();
                conversation.tools.push(Tool {
                    name: "f".into(),
                    description: "d".into(),
                    parameters,
                });
            }
            Some('v') => conversation.arguments = serde_json::from_str(text).unwrap_or_default(),
            _ => conversation.turns.push(turn(Role::User)),
        }
    }
    conversation.turns = normalize(std::mem::take(&mut conversation.turns));
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
