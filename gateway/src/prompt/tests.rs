//! Prompts of the demo model against the reference implementation's (demo/golden.json says how it
//! was made).

use serde::Deserialize;

use super::conversation::{Message, Role};
use super::*;

#[derive(Deserialize)]
struct Golden {
    stop_ids: Vec<u32>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    messages: Vec<GoldenMessage>,
    rendered: String,
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    text: String,
}

#[derive(Deserialize)]
struct GoldenMessage {
    role: String,
    content: String,
}

fn golden() -> Golden {
    let path = crate::demo::dir().join("../golden.json");
    serde_json::from_slice(&std::fs::read(path).expect("it is in the repository"))
        .expect("as described")
}

fn conversation(messages: &[GoldenMessage]) -> Conversation {
    let message = |golden: &GoldenMessage| {
        Message::new(Role::from_word(&golden.role).expect("a role"), vec![golden.content.clone()])
    };
    Conversation { messages: messages.iter().map(message).collect(), ..Conversation::default() }
}

#[tokio::test]
async fn prompts_equal_those_of_the_reference_implementation() {
    let prompter = Prompter::new(Arc::new(crate::demo::language()), 1);
    let golden = golden();
    assert_eq!(prompter.language().stop_ids, golden.stop_ids);
    assert!(golden.cases.len() >= 20);
    for case in golden.cases {
        let template = prompter.language().template.as_ref().expect("the demo model has one");
        assert_eq!(
            template.render(&conversation(&case.messages)).expect("renders").text,
            case.rendered
        );
        assert_eq!(
            prompter.ids(Source::Chat(conversation(&case.messages)), 4_095).await,
            Ok(case.prompt)
        );
        let mut text = crate::stream::Detokenizer::new(Arc::clone(prompter.language()));
        let streamed: String = case.greedy.iter().map(|id| text.push(*id)).collect();
        assert_eq!(streamed + &text.finish(), case.text);
    }
}

#[tokio::test]
async fn a_text_that_cannot_fit_is_refused_before_it_is_tokenized() {
    let prompter = Prompter::new(Arc::new(crate::demo::language()), 1);
    let text = |bytes: usize| "a".repeat(bytes);
    let chat = |text: String| {
        let message = GoldenMessage { role: "user".into(), content: text };
        Source::Chat(conversation(&[message]))
    };
    // The longest token has 15 bytes; a conversation has some around its text.
    let most = 100;
    assert_eq!(
        prompter.ids(Source::Text(text(1_501)), most).await,
        Err(PromptError::TooLong { at_least: 101 })
    );
    assert!(
        prompter.ids(Source::Text(text(1_500)), most).await.is_ok(),
        "it may have more, and is counted"
    );
    let refused = prompter.ids(chat(text(1_501)), most).await;
    assert!(matches!(refused, Err(PromptError::TooLong { at_least: 102.. })), "{refused:?}");
    assert!(prompter.ids(chat(text(1_000)), most).await.is_ok());
    // All seats taken: a text that cannot fit does not wait for one.
    let seats = [&prompter.short, &prompter.long]
        .map(|seats| Arc::clone(seats).try_acquire_owned().expect("free"));
    assert_eq!(
        prompter.ids(Source::Text(text(1 << 20)), most).await,
        Err(PromptError::TooLong { at_least: 69_906 })
    );
    drop(seats);
}

#[test]
fn a_broken_template_is_refused_and_a_missing_one_is_not() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for name in ["config.json", "tokenizer.json"] {
        std::fs::copy(crate::demo::dir().join(name), dir.path().join(name)).expect("copied");
    }
    let write = |text: &str| {
        std::fs::write(dir.path().join("tokenizer_config.json"), text).expect("writable")
    };
    write(r#"{"eos_token": "<|im_end|>", "chat_template": "{% if %}"}"#);
    let error = Language::read(dir.path()).expect_err("no Jinja").to_string();
    assert!(error.contains("tokenizer_config.json: the chat template"), "{error}");
    write("{}");
    let language = Language::read(dir.path()).expect("a template is no must");
    assert!(language.template.is_none());
    assert_eq!(
        make(&language, Source::Chat(Conversation::default()), 10),
        Err(PromptError::NoTemplate)
    );
}
