//! `paceline chat` as a person has it: in a terminal, by keys.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use paceline_tests::pty::Pty;
use paceline_tests::{Stack, chat, repository};
use serde_json::{Value, json};

const QUESTION: &str = "List three fruits.";
const LEFT: &str = "\x1b[D";
const UP: &str = "\x1b[A";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

/// A person in a conversation.
struct Person(Pty);

impl Person {
    /// Begins a conversation, with a cache directory of this stack's own.
    fn begin(stack: &Stack, line: &str) -> Self {
        let mut command = stack.shell(&format!("exec {line}"));
        command.env("HOME", stack.path("home")).env("XDG_CACHE_HOME", stack.path("home/.cache"));
        let person = Self(Pty::start(command, 160, 200));
        person.0.wait_for("the first prompt", |screen| prompts(screen) == 1);
        person
    }

    /// Presses keys and Enter, and waits until the next line can be typed. Returns what was shown
    /// between both.
    fn enter(&mut self, keys: &str) -> String {
        self.until_next_prompt(|terminal| terminal.press(&format!("{keys}\r")))
    }

    /// Does something, and waits until the next line can be typed. Returns what was shown between
    /// both.
    fn until_next_prompt(&mut self, act: impl FnOnce(&mut Pty)) -> String {
        let before = prompts(&self.0.shown());
        act(&mut self.0);
        let screen = self.0.wait_for("the next prompt", |screen| prompts(screen) == before + 1);
        let lines = screen.trim_end().lines().rev().skip(1);
        let lines: Vec<&str> = lines.take_while(|line| !line.starts_with('>')).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// The messages of the conversation, saved in this file.
    fn saved(&mut self, path: &Path) -> Vec<Value> {
        let told = self.enter(&format!("/save --force {}", path.display()));
        assert!(told.contains("the conversation is in "), "{told}");
        let mut text: Value =
            serde_json::from_str(&std::fs::read_to_string(path).expect("saved")).expect("JSON");
        serde_json::from_value(text["messages"].take()).expect("a list")
    }

    /// Leaves by Ctrl-D.
    fn leave(mut self) {
        self.0.press(CTRL_D);
        assert_eq!(self.0.ended().code(), Some(0));
    }
}

/// Prompts on the screen.
fn prompts(screen: &str) -> usize {
    screen.lines().filter(|line| line.starts_with('>')).count()
}

fn history(stack: &Stack) -> PathBuf {
    let cache = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
    stack.path("home").join(cache).join("paceline/chat_history")
}

/// What the user said.
fn said(messages: &[Value]) -> Vec<&Value> {
    let of_user = messages.iter().filter(|message| message["role"] == "user");
    of_user.map(|message| &message["content"]).collect()
}

#[test]
fn keys_edit_lines_and_commands_change_the_conversation() {
    let stack = Stack::ready("drafter.model = \"\"\n");
    let mut person = Person::begin(&stack, "paceline chat");
    person.0.wait_text("4096 tokens of context, no images. /help shows the commands");
    let expected = stack.ask(chat(QUESTION)).expect("served").text;
    let shown = person.enter(&format!("List three frits.{}u", LEFT.repeat(4)));
    assert!(shown.starts_with(&expected), "{shown}");
    assert!(shown.contains(" tokens, first after ") && shown.contains(" plain ("), "{shown}");

    // Several lines are one message, typed or pasted, also if all keys come at once.
    assert_eq!(person.enter("/set max_tokens=4"), "max_tokens=4");
    person.enter("one\\\rtwo");
    person.enter("\x1b[200~three \\\rfour\x1b[201~");
    person.enter("\"\"\"\r  /bye\r\"\"\"");
    let saved = stack.path("a chat.json");
    let messages = person.saved(&saved);
    assert_eq!(said(&messages), [QUESTION, "one\ntwo", "three \\\nfour", "  /bye"]);
    assert_eq!((messages.len(), &messages[1]["content"]), (8, &json!(expected)));
    let told = person.enter(&format!("/save {}", saved.display()));
    assert!(told.contains("is there already"), "{told}");

    // The same question with another seed is answered otherwise, without a temperature never.
    let told = person.enter("/set temperature=warm");
    assert!(told.contains("temperature: expected a number, found warm"), "{told}");
    person.enter("/reset");
    for setting in ["max_tokens=24", "temperature=1.5", "seed=1"] {
        person.enter(&format!("/set {setting}"));
    }
    person.enter(QUESTION);
    let first = person.saved(&saved);
    person.enter("/set seed=2");
    person.enter("/retry");
    let second = person.saved(&saved);
    assert_eq!((first.len(), second.len()), (2, 2), "a new answer takes the place of the last one");
    assert_ne!(first, second);
    person.enter("/set seed=");
    person.enter("/set temperature=0");
    person.enter("/retry");
    let greedy = person.saved(&saved);
    assert_eq!(
        greedy[1]["content"],
        stack.ask(chat(QUESTION).max_tokens(24)).expect("served").text
    );
    person.enter("/retry");
    assert_eq!(person.saved(&saved), greedy);
    person.enter("/reset");
    person.enter(QUESTION);
    assert_eq!(person.saved(&saved), greedy);

    let told = person.enter("/helo me");
    assert!(told.contains("/help, /set, /model") && told.ends_with("found /helo me"), "{told}");
    let told = person.enter("/model other");
    assert!(told.contains("NOT_FOUND") && told.contains("other"), "{told}");
    assert!(person.enter("/model").ends_with("4096 tokens of context, no images"));
    person.leave();
    stack.stop();
}

#[test]
fn ctrl_c_ends_an_answer_and_typed_lines_are_there_again_in_the_next_run() {
    let stack = Stack::ready("drafter.model = \"\"\n");
    let mut person = Person::begin(&stack, "paceline chat");
    person.enter("/set ignore_eos=true");
    person.0.press("Tell a long story.\r");
    person.0.wait_for("the answer to begin", |screen| {
        screen.split("story.").nth(1).is_some_and(|answer| !answer.trim().is_empty())
    });
    let told = person.until_next_prompt(|terminal| terminal.signal(Signal::SIGINT));
    assert!(told.ends_with("stopped; what was said stays in the conversation"), "{told}");
    let told = person.until_next_prompt(|terminal| terminal.press(&format!("half{CTRL_C}")));
    assert_eq!(told, "Ctrl-D or /bye ends the conversation");
    for setting in ["ignore_eos=", "max_tokens=4"] {
        person.enter(&format!("/set {setting}"));
    }
    person.enter(QUESTION);
    let messages = person.saved(&stack.path("chat.json"));
    assert_eq!(said(&messages), ["Tell a long story.", QUESTION]);
    let begun = messages[1]["content"].as_str().expect("a text");
    assert!(!begun.is_empty() && messages.len() == 4, "{messages:?}");
    person.enter(QUESTION);
    person.leave();
    let file = history(&stack);
    assert_eq!(std::fs::metadata(&file).expect("kept").permissions().mode() & 0o777, 0o600);

    let mut again = Person::begin(&stack, "paceline chat");
    again.0.press(UP);
    again.0.wait_text(&format!("> {QUESTION}"));
    // The editor's modes are undone by each end.
    again.0.signal(Signal::SIGTERM);
    assert_eq!(again.0.ended().code(), Some(130));

    let kept = std::fs::read_to_string(&file).expect("kept");
    let mut private = Person::begin(&stack, "paceline chat --no-history");
    private.0.press(UP);
    private.enter("/set max_tokens=3");
    assert!(!private.0.shown().contains(QUESTION), "{}", private.0.shown());
    private.leave();
    assert_eq!(std::fs::read_to_string(&file).expect("kept"), kept);
    stack.stop();
}

#[test]
fn a_terminal_without_an_editor_has_lines_commands_and_ctrl_c() {
    let stack = Stack::ready("drafter.model = \"\"\n");
    let mut person = Person::begin(&stack, "env TERM=dumb paceline chat");
    person.enter("/set max_tokens=4");
    person.0.press("one\\\r");
    person.0.wait_text(". ");
    person.enter("two");
    let told = person.until_next_prompt(|terminal| terminal.signal(Signal::SIGINT));
    assert_eq!(told, "Ctrl-D or /bye ends the conversation");
    let messages = person.saved(&stack.path("chat.json"));
    assert_eq!(said(&messages), ["one\ntwo"]);
    person.leave();
    assert!(!history(&stack).exists(), "it is the editor's");
    stack.stop();
}

#[test]
fn an_image_goes_with_the_next_message_and_into_the_saved_conversation() {
    let stack = Stack::ready("target.model = \"demo-vision\"\ndrafter.model = \"\"\n");
    let mut person = Person::begin(&stack, "paceline chat");
    person.0.wait_text("images after an answer. /help");
    let told = person.enter("/image demo/vision/images/lar\t");
    assert!(told.ends_with(" bytes) goes with the next message"), "{told}");
    let described = person.enter("Describe the picture.");
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("there");
    let expected = readme.split("\n# ").nth(1).and_then(|text| text.lines().next());
    let expected = expected.expect("the picture is described there");
    let saved = stack.path("chat.json");
    let mut messages = person.saved(&saved);
    assert_eq!(messages[1]["content"], expected, "{described}");
    person.enter("/retry");
    assert_eq!(person.saved(&saved), messages);
    person.leave();

    // A program reads the file: without the answer it gets the answer.
    messages.pop();
    std::fs::write(&saved, Value::from(messages).to_string()).expect("written");
    let file = saved.display().to_string();
    let output = stack.paceline(&["generate", "--messages", &file], "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{expected}\n"), "{output:?}");
    stack.stop();
}
