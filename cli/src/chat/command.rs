//! The commands of a conversation, and what is no command.

use super::typing::ChatText;

/// A command, its argument, and its effect.
type Described = (&'static str, &'static str, &'static str);

/// All commands. `/quit` is another name of the last one.
pub const COMMANDS: [Described; 8] = [
    ("/help", "", "shows this list"),
    (
        "/set",
        "NAME=VALUE",
        "changes how answers are made; NAME= takes the default, /set alone shows all",
    ),
    ("/model", "NAME", "shows the served model; with a name asks for that one"),
    ("/image", "FILE", "shows an image with the next message"),
    ("/retry", "", "asks the last question again, in place of its answer"),
    ("/reset", "", "begins anew; what is set stays"),
    (
        "/save",
        "FILE",
        "writes the conversation as JSON; --force before FILE replaces one that is there",
    ),
    ("/bye", "", "ends the conversation"),
];

/// What a message asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatCommand<'a> {
    /// An answer of the model.
    Ask(&'a str),
    /// Nothing: the message is empty.
    Nothing,
    /// The list of commands.
    Help,
    /// A change of how answers are made, or what is set.
    Set(&'a str),
    /// A report about the model of this name; empty for the served one.
    Model(&'a str),
    /// An image with the next message.
    Image(&'a str),
    /// The last question again.
    Retry,
    /// A new conversation.
    Reset,
    /// The conversation as a file.
    Save {
        /// Path of the file.
        path: &'a str,
        /// Whether a file that is there is replaced.
        replaces: bool,
    },
    /// The end of the conversation.
    Leave,
    /// A command that there is not.
    Unknown(&'a str),
}

impl<'a> ChatCommand<'a> {
    /// The command in a message. At a terminal a message that begins as a command does is one, or a
    /// mistake; from a pipe it is a text if a text follows its first word.
    pub fn of(message: &'a ChatText, at_terminal: bool) -> Self {
        let text = message.text.trim();
        match text {
            "" => return Self::Nothing,
            _ if message.is_quoted => return Self::Ask(&message.text),
            _ if !text.starts_with('/') || text.contains('\n') => return Self::Ask(text),
            _ => {}
        }
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        match (word, rest) {
            ("/set", _) => Self::Set(rest),
            ("/model", _) => Self::Model(rest),
            ("/image", _) => Self::Image(rest),
            ("/save", _) => match rest.strip_prefix("--force") {
                Some(path) => Self::Save { path: path.trim(), replaces: true },
                None => Self::Save { path: rest, replaces: false },
            },
            ("/help", "") => Self::Help,
            ("/retry", "") => Self::Retry,
            ("/reset", "") => Self::Reset,
            ("/bye" | "/quit", "") => Self::Leave,
            // A path is no command: `/etc/hosts names what?`
            (_, "") => Self::Unknown(text),
            _ if at_terminal && !word[1..].contains('/') => Self::Unknown(text),
            _ => Self::Ask(text),
        }
    }
}

/// The list of commands.
pub fn help() -> String {
    let line = |(name, argument, effect): &Described| {
        format!("  {:16} {effect}\n", format!("{name} {argument}"))
    };
    let list: String = COMMANDS.iter().map(line).collect();
    format!(
        "{list}A line that ends with \\ goes on. A text between lines of \"\"\" is sent as it is. Ctrl-C ends an answer, Ctrl-D the conversation."
    )
}

/// What to answer to a command that there is not.
pub fn unknown(found: &str) -> String {
    let names = COMMANDS.map(|(name, _, _)| name).join(", ");
    format!("expected one of {names}, found {found}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ChatCommand::*;

    #[test]
    fn each_command_is_read_with_its_argument() {
        for (text, expected) in [
            ("  what is it? ", Ask("what is it?")),
            (" ", Nothing),
            ("/help", Help),
            ("/set", Set("")),
            ("/set system=Be  brief. ", Set("system=Be  brief.")),
            ("/model", Model("")),
            ("/model other", Model("other")),
            ("/image an image.png", Image("an image.png")),
            ("/retry ", Retry),
            ("/reset", Reset),
            ("/save", Save { path: "", replaces: false }),
            ("/save my chat.json", Save { path: "my chat.json", replaces: false }),
            ("/save --force my chat.json", Save { path: "my chat.json", replaces: true }),
            ("/bye", Leave),
            ("/quit", Leave),
        ] {
            for at_terminal in [false, true] {
                let message = ChatText { text: text.into(), is_quoted: false };
                assert_eq!(ChatCommand::of(&message, at_terminal), expected, "{text:?}");
            }
        }
        for (name, ..) in COMMANDS {
            let message = ChatText { text: name.into(), is_quoted: false };
            assert!(!matches!(ChatCommand::of(&message, true), Unknown(_) | Ask(_)), "{name}");
        }
    }

    #[test]
    fn quotes_lines_and_paths_are_no_commands_and_an_unknown_one_is_named_with_the_list() {
        for (text, is_quoted, expected) in [
            (" /help", true, Ask(" /help")),
            ("/help\nme", false, Ask("/help\nme")),
            ("/etc/hosts names what?", false, Ask("/etc/hosts names what?")),
            ("/sett top_k=1", false, Unknown("/sett top_k=1")),
            ("/reset it", false, Unknown("/reset it")),
            ("/helo", false, Unknown("/helo")),
        ] {
            let message = ChatText { text: text.into(), is_quoted };
            assert_eq!(ChatCommand::of(&message, true), expected, "{text:?}");
        }
        // From a pipe only a word alone is taken for one.
        let piped = ChatText { text: "/sett top_k=1".into(), is_quoted: false };
        assert_eq!(ChatCommand::of(&piped, false), Ask("/sett top_k=1"));
        let told = unknown("/helo");
        assert!(told.ends_with("found /helo") && told.contains("/help, /set,"), "{told}");
        for (name, ..) in COMMANDS {
            assert!(told.contains(name) && help().contains(name), "{name}");
        }
    }
}
