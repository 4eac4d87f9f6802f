//! Grammars of clients, from the message to the allowed ids.

mod bound;
mod closing;
mod closing_bounds;
pub(super) mod compile;
mod state;

pub(crate) use state::thoughtful;

use internal::grammar_part::Content;

use super::*;

fn message(content: Option<Content>) -> internal::Grammar {
    let part = internal::GrammarPart { field: "response_format".into(), lenient: false, content };
    internal::Grammar { frame: "start: @part_0".into(), parts: vec![part], end_ids: vec![2] }
}

fn refused(message: internal::Grammar) -> String {
    let status = GrammarSource::of_message(message, 10).expect_err("refused");
    assert_eq!(Reason::of(&status), Some(Reason::InvalidArgument));
    status.message().to_owned()
}

#[test]
fn each_field_that_is_missing_or_too_large_is_named() {
    let regex = |text: &str| message(Some(Content::Regex(text.into())));
    GrammarSource::of_message(regex("a*"), 10).expect("served");
    assert!(refused(message(None)).starts_with("response_format: expected a JSON schema"));
    let large = |most: usize| "a".repeat(most + 1);
    for (content, most) in [
        (Content::JsonSchema(large(MAX_SCHEMA_BYTES)), "262144"),
        (Content::Regex(large(MAX_REGEX_BYTES)), "16384"),
        (Content::Lark(large(MAX_LARK_BYTES)), "24576"),
    ] {
        assert!(refused(message(Some(content))).contains(&format!("at most {most} bytes")));
    }
    assert!(refused(regex(&"(".repeat(65))).contains("levels of brackets"));
    assert!(refused(internal::Grammar { end_ids: vec![], ..regex("a") }).contains("found 0"));
    assert!(refused(internal::Grammar { end_ids: vec![10], ..regex("a") }).contains("below 10"));
    let frame = "a".repeat(MAX_SCHEMA_BYTES + 1);
    assert!(refused(internal::Grammar { frame, ..regex("a") }).starts_with("grammar: "));
    let parts = vec![regex("a").parts.remove(0); MAX_PARTS + 1];
    assert!(refused(internal::Grammar { parts, ..regex("a") }).contains("1025 parts"));
    let schema = message(Some(Content::JsonSchema("a".repeat(200 << 10)))).parts.remove(0);
    let parts = vec![schema; 6];
    assert!(refused(internal::Grammar { parts, ..regex("a") }).contains("in all parts"));
}
