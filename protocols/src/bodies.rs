//! From the bytes of a body to the checked request, for each protocol and without a service. The fuzz
//! target of bodies comes this way; handlers go it in [`super::exchange`].

use paceline_text::images::ReservedTokens;

use super::anthropic::decode::{Purpose, decode as messages};
use super::responses::decode::decode as responses;
use super::{json, ollama, openai};
use crate::inference::error::Result;
use crate::inference::request::{Request, check};

/// Path whose request a body has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// `/v1/chat/completions`
    ChatCompletions,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
    /// `/v1/messages/count_tokens`
    CountTokens,
    /// `/api/chat`
    OllamaChat,
    /// `/api/generate`
    OllamaGenerate,
}

impl BodyKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::ChatCompletions,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::CountTokens,
        Self::OllamaChat,
        Self::OllamaGenerate,
    ];

    /// The checked request in a body.
    ///
    /// # Errors
    /// The first field that is not served, by its name in the middle.
    pub fn request(self, bytes: &[u8]) -> Result<Request> {
        let input = match self {
            Self::ChatCompletions => openai::chat::input(json::decode(bytes, json::MAX_NUMBERS)?)?,
            Self::Completions => {
                let body = json::decode(bytes, openai::completions::MAX_NUMBERS)?;
                openai::completions::input(body)?
            }
            Self::Responses => responses(json::decode(bytes, json::MAX_NUMBERS)?)?.input,
            Self::Messages => {
                messages(json::decode(bytes, json::MAX_NUMBERS)?, Purpose::Answer)?.input
            }
            Self::CountTokens => {
                messages(json::decode(bytes, json::MAX_NUMBERS)?, Purpose::Count)?.input
            }
            Self::OllamaChat => {
                ollama::decode::chat(json::decode(bytes, json::MAX_NUMBERS)?)?.input
            }
            Self::OllamaGenerate => {
                ollama::decode::generate(json::decode(bytes, json::MAX_NUMBERS)?, || None)?.input
            }
        };
        check(input, ReservedTokens::new(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_body_is_checked_as_its_path_checks_it() {
        let turn = r#""messages":[{"role":"user","content":"hi"}]"#;
        let good = [
            format!("{{{turn}}}"),
            r#"{"prompt":[1,2]}"#.to_owned(),
            r#"{"input":"hi"}"#.to_owned(),
            format!(r#"{{"model":"m","max_tokens":5,{turn}}}"#),
            format!(r#"{{"model":"m",{turn}}}"#),
            format!(r#"{{"model":"m",{turn}}}"#),
            r#"{"model":"m","prompt":"hi"}"#.to_owned(),
        ];
        for (kind, body) in BodyKind::ALL.into_iter().zip(&good) {
            kind.request(body.as_bytes()).unwrap_or_else(|error| panic!("{kind:?}: {error:?}"));
            let unknown = body.replacen('{', r#"{"zq":1,"#, 1);
            let error = kind.request(unknown.as_bytes()).expect_err("refused");
            assert_eq!(error.field.as_deref(), Some("zq"), "{kind:?}");
        }
        assert!(BodyKind::Messages.request(good[4].as_bytes()).is_err(), "without max_tokens");
    }
}
