//! `log.prompts`: prompts and answers in the log, as the model reads and writes them, with the tokens
//! of templates. Without that setting no text of a request is logged (I9), and there is no
//! [`TextLog`].

use std::sync::Arc;

use paceline_text::prompt::Language;
use paceline_vocabulary::generation::Generation;

/// Most tokens of a prompt or an answer that are logged: its beginning. As text that is some 64 KiB,
/// of a log of 8 MiB.
const MOST_TOKENS: usize = 16_384;

/// The texts of a request. Its answers are logged when this is dropped, however the request ends.
#[derive(Debug)]
pub(super) struct TextLog {
    request_id: String,
    language: Arc<Language>,
    answers: Vec<AnswerIds>,
}

/// The beginning of an answer, and its length.
#[derive(Clone, Debug, Default)]
struct AnswerIds {
    ids: Vec<u32>,
    tokens: usize,
}

impl TextLog {
    /// Logs the prompt of a request with `samples` samples.
    pub(super) fn begin(generation: &Generation, samples: usize, language: &Arc<Language>) -> Self {
        let ids = &generation.prompt_ids;
        let log = Self {
            request_id: generation.request_id.to_string(),
            language: Arc::clone(language),
            answers: vec![AnswerIds::default(); samples],
        };
        let prompt = log.text(&ids[..ids.len().min(MOST_TOKENS)]);
        let (request_id, tokens) = (&log.request_id, ids.len());
        tracing::info!(request_id, tokens, prompt, "prompt");
        log
    }

    /// Tokens of the answer of a sample came.
    pub(super) fn add(&mut self, sample: usize, ids: &[u32]) {
        let Some(answer) = self.answers.get_mut(sample) else { return };
        let room = MOST_TOKENS - answer.ids.len();
        answer.ids.extend(&ids[..ids.len().min(room)]);
        answer.tokens += ids.len();
    }

    /// Text of these tokens in one line: control characters are escaped.
    fn text(&self, ids: &[u32]) -> String {
        match self.language.tokens.decode(ids) {
            Ok(text) => text.escape_debug().to_string(),
            Err(error) => format!("(no text: {error})"),
        }
    }
}

impl Drop for TextLog {
    fn drop(&mut self) {
        for (sample, answer) in self.answers.iter().enumerate() {
            let (request_id, tokens) = (&self.request_id, answer.tokens);
            let answer = self.text(&answer.ids);
            tracing::info!(request_id, sample, tokens, answer, "answer");
        }
    }
}
