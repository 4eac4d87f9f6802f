//! Greedy answers of reference implementations, from files that a script beside each of them made.

use std::path::Path;

use serde_json::Value;

use crate::Answer;
use crate::ask::{Ask, continue_text, conversation, messages};
use crate::prompts::reference;

/// Margins in logits below this decide nothing between two implementations.
const NEAR_TIE: f64 = 1e-3;

/// An answer of a reference implementation, and the request for it.
#[derive(Clone, Debug)]
pub struct ReferenceCase {
    /// What it is about.
    pub name: String,
    /// The request, for the plain lane.
    pub ask: Ask,
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Token ids of the answer.
    pub ids: Vec<u32>,
    margins: Vec<f64>,
    text: String,
}

/// The answers in a file, of `tokens` tokens each unless they end before: to `messages`, or to the text that
/// `continue` has.
///
/// # Panics
/// The file is not there, or has no such answers.
pub fn reference_cases(path: &Path, tokens: u32) -> Vec<ReferenceCase> {
    let json = std::fs::read(path).expect("the file of references");
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    let case = |case: &Value| {
        let ask = match case["continue"].as_str() {
            Some(prompt) => continue_text(prompt),
            None => conversation(messages(&case["messages"])),
        };
        ReferenceCase {
            name: text(&case["name"]),
            ask: reference(ask.max_tokens(tokens)),
            prompt: ids(&case["prompt"]),
            ids: ids(&case["greedy"]),
            margins: list(&case["margins"]).iter().flat_map(Value::as_f64).collect(),
            text: text(&case["text"]),
        }
    };
    list(&json["cases"]).iter().map(case).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn ids(value: &Value) -> Vec<u32> {
    list(value).iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn text(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}

impl ReferenceCase {
    /// Compares an answer with the reference's, up to the first near-tie at which they part. Returns whether
    /// there was one.
    ///
    /// # Panics
    /// They part where the choice was decided.
    pub fn check(&self, answer: &Answer) -> bool {
        let name = &self.name;
        assert_eq!(answer.usage().prompt_tokens as usize, self.prompt.len(), "{name}");
        let longest = self.ids.len().max(answer.ids.len());
        let parted = (0..longest).find(|at| self.ids.get(*at) != answer.ids.get(*at));
        let Some(at) = parted else {
            assert_eq!(answer.text, self.text, "{name}");
            return false;
        };
        let margin = self.margins.get(at).copied().unwrap_or(f64::INFINITY);
        let (expected, found) = (self.ids.get(at), answer.ids.get(at));
        assert!(
            margin < NEAR_TIE,
            "{name}: expected {expected:?} as token {at} with margin {margin}, found {found:?}"
        );
        true
    }
}
