//! Prompts that a model fills in the middle: markers around the text before and after the gap.
//!
//! A family's markers are tokens of its tokenizer. A tokenizer without them has no such prompt.

use super::tokens::Tokens;

/// The markers of a family. Its prompt is `begin`, the first text, `between`, the second text, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Markers {
    begin: &'static str,
    between: &'static str,
    /// Empty if the answer follows the second text.
    end: &'static str,
    /// Whether the first text is the one after the gap.
    after_first: bool,
}

/// Sources: Qwen2.5-Coder's model card, which CodeGemma's form equals; StarCoder's model card, whose
/// form Granite has; DeepSeek-Coder's model card; mistral-common, `encode_fim`.
const FAMILIES: [Markers; 4] = [
    Markers::in_order(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]),
    Markers::in_order(["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]),
    Markers::in_order(["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"]),
    Markers { begin: "[SUFFIX]", between: "[PREFIX]", end: "", after_first: true },
];

/// Further tokens with which these families end what they fill in. Each is written only between
/// files or texts.
const ENDS: [&str; 8] = [
    "<|endoftext|>",
    "<|fim_pad|>",
    "<fim_pad>",
    "<|file_sep|>",
    "<file_sep>",
    "<|file_separator|>",
    "<|repo_name|>",
    "<reponame>",
];

impl Markers {
    const fn in_order([begin, between, end]: [&'static str; 3]) -> Self {
        Self { begin, between, end, after_first: false }
    }

    fn all(&self) -> impl Iterator<Item = &'static str> {
        [self.begin, self.between, self.end].into_iter().filter(|marker| !marker.is_empty())
    }
}

/// How a model fills in the middle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infill {
    markers: Markers,
    stop_ids: Vec<u32>,
}

impl Infill {
    /// That of the model with this tokenizer; `None` if the tokenizer has no markers.
    pub fn of(tokens: &Tokens) -> Option<Self> {
        let added = tokens.added();
        let id = |text: &str| added.iter().find(|token| token.text == text).map(|token| token.id);
        let markers =
            FAMILIES.into_iter().find(|family| family.all().all(|marker| id(marker).is_some()))?;
        let stop_ids = markers.all().chain(ENDS).filter_map(id).collect();
        Some(Self { markers, stop_ids })
    }

    /// The prompt whose answer stands between these texts.
    pub fn prompt(&self, before: &str, after: &str) -> String {
        let Markers { begin, between, end, after_first } = self.markers;
        let (first, second) = if after_first { (after, before) } else { (before, after) };
        [begin, first, between, second, end].concat()
    }

    /// Ids that end the answer besides those of the model.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }
}

#[cfg(test)]
mod tests {
    use crate::samples::infill;

    #[test]
    fn each_family_has_its_markers_in_their_order() {
        let prompt = |added: &[&str]| infill(added).map(|infill| infill.prompt("a", "b"));
        for (added, expected) in [
            (
                &["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"][..],
                "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
            ),
            (
                &["<fim_prefix>", "<fim_middle>", "<fim_suffix>"],
                "<fim_prefix>a<fim_suffix>b<fim_middle>",
            ),
            (
                &["<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>"],
                "<｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>",
            ),
            (&["[PREFIX]", "[MIDDLE]", "[SUFFIX]"], "[SUFFIX]b[PREFIX]a"),
        ] {
            assert_eq!(prompt(added).as_deref(), Some(expected));
        }
        assert_eq!(prompt(&["<|fim_prefix|>", "<|fim_middle|>", "<|im_end|>"]), None);
    }

    #[test]
    fn a_marker_and_the_end_of_a_file_end_what_is_filled_in() {
        let added = ["<|endoftext|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_middle|>", "x"];
        let added = [&added[..], &["<|fim_suffix|>", "<|fim_pad|>"]].concat();
        let mut ids = infill(&added).expect("markers").stop_ids().to_vec();
        ids.sort_unstable();
        assert_eq!(ids, [0, 2, 3, 5, 6]);
    }
}
