//! Text of any length that is the same on each machine: reports of a port, sentence by sentence,
//! from lists of words. No two texts begin alike, and few sentences repeat. Pure.

use paceline_client::Failure;
use paceline_text::prompt::Tokens;

use crate::random::{below, next};
use crate::report::failed;

const WHO: [&str; 16] = [
    "The night crew",
    "A young harbour pilot",
    "The customs officer",
    "Our second engineer",
    "The crane driver",
    "An inspector from the city",
    "The warehouse clerk",
    "A visiting surveyor",
    "The tug's captain",
    "The railway foreman",
    "One of the electricians",
    "The office in Rotterdam",
    "A driver without papers",
    "The weather station",
    "The owner of the barge",
    "The deputy manager",
];
const DID: [&str; 16] = [
    "counted",
    "moved",
    "sealed",
    "photographed",
    "refused to accept",
    "asked about",
    "weighed",
    "returned",
    "repaired the labels of",
    "found water in",
    "opened",
    "signed for",
    "lost the list of",
    "insured",
    "could not find",
    "sold",
];
const WHAT: [&str; 24] = [
    "crates of copper wire",
    "barrels of olive oil",
    "bales of cotton",
    "spare wheels",
    "boxes of light bulbs",
    "sacks of coffee",
    "pallets of roof tiles",
    "rolls of paper",
    "bicycle frames",
    "drums of paint",
    "cases of medicine",
    "tractor parts",
    "bags of cement",
    "window panes",
    "cartons of tea",
    "steel beams",
    "batteries",
    "wooden doors",
    "baskets of oranges",
    "sewing machines",
    "tins of fish",
    "carpets",
    "glass bottles",
    "printed books",
];
const PLACE: [&str; 16] = [
    "in hall 3",
    "on the east dock",
    "beside the old customs house",
    "at the rail terminal",
    "behind the cold store",
    "on the lower deck",
    "near gate 12",
    "in the repair yard",
    "under the long crane",
    "in the bonded warehouse",
    "at the fuel pier",
    "in the open yard",
    "on the ferry ramp",
    "in the canteen's cellar",
    "at the north weighbridge",
    "in a rented shed",
];
const WHY: [&str; 16] = [
    "because the ramp was blocked",
    "although the papers were complete",
    "after the storm had passed",
    "while the scales were being tested",
    "before the ship could leave",
    "since no one had paid the fee",
    "as soon as the tide allowed it",
    "without telling the office",
    "when the power came back",
    "so that the train could be loaded",
    "as the contract demands",
    "until the rain stopped",
    "if the log book is right",
    "for the third time this year",
    "to the surprise of everybody present",
    "and wrote a short note about it",
];

/// Writes sentences.
struct Author {
    state: u64,
}

impl Author {
    fn pick(&mut self, words: &[&'static str]) -> &'static str {
        words[below(&mut self.state, words.len() as u32) as usize]
    }

    fn number(&mut self, least: u32, most: u32) -> u32 {
        least + below(&mut self.state, most - least + 1)
    }

    fn sentence(&mut self) -> String {
        let (day, hour, minute) = (self.number(1, 28), self.number(0, 23), self.number(0, 59));
        let (who, did, count) = (self.pick(&WHO), self.pick(&DID), self.number(2, 980));
        let (what, place, why) = (self.pick(&WHAT), self.pick(&PLACE), self.pick(&WHY));
        format!("Day {day}, {hour:02}:{minute:02}: {who} {did} {count} {what} {place}, {why}.\n")
    }
}

/// A text of at least `tokens` tokens, and at most a sentence more, as the tokenizer cuts each
/// sentence alone. The first words have a number of their own.
///
/// # Errors
/// The tokenizer's own.
pub fn document(tokenizer: &Tokens, seed: u64, tokens: usize) -> Result<String, Failure> {
    let mut author = Author { state: seed };
    let number = next(&mut author.state);
    let mut text = format!("{number:016x} is the number of this report.\n");
    let mut count = encode(tokenizer, &text)?.len();
    while count < tokens {
        let sentence = author.sentence();
        // A tokenizer without a token for a sentence must not keep this loop for ever.
        count += encode(tokenizer, &sentence)?.len().max(1);
        text.push_str(&sentence);
    }
    Ok(text)
}

/// The ids of such a text: exactly `tokens`.
///
/// # Errors
/// The tokenizer's own, or it gives fewer tokens for the whole text than for its sentences.
pub fn ids(tokenizer: &Tokens, seed: u64, tokens: usize) -> Result<Vec<u32>, Failure> {
    // A whole text may have some tokens less than its sentences.
    let text = document(tokenizer, seed, tokens + tokens / 8 + 16)?;
    let mut ids = encode(tokenizer, &text)?;
    if ids.len() < tokens {
        let found = ids.len();
        return Err(failed(format!(
            "expected at least {tokens} tokens of a made text, found {found}"
        )));
    }
    ids.truncate(tokens);
    Ok(ids)
}

fn encode(tokenizer: &Tokens, text: &str) -> Result<Vec<u32>, Failure> {
    let encoded = tokenizer.encode(text, false);
    encoded.map_err(|error| failed(format!("cannot tokenize a made text: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_text::checkpoint::Checkpoint;
    use std::collections::HashSet;
    use std::path::Path;

    fn tokenizer() -> Tokens {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target");
        let checkpoint = Checkpoint::read(&dir).expect("the embedded model");
        Tokens::new(checkpoint.tokenizer.tokenizer).expect("a vocabulary")
    }

    #[test]
    fn a_text_has_exactly_the_tokens_and_differs_from_its_first_page_on() {
        let tokenizer = tokenizer();
        let mut pages = HashSet::new();
        for seed in 0..8 {
            let ids = ids(&tokenizer, seed, 1_000).expect("made");
            assert_eq!(ids.len(), 1_000);
            assert!(pages.insert(ids[..64].to_vec()), "{seed}");
        }
        assert_eq!(ids(&tokenizer, 3, 50).expect("made"), ids(&tokenizer, 3, 50).expect("made"));
    }

    #[test]
    fn a_document_is_as_long_as_asked_and_hardly_repeats() {
        let tokenizer = tokenizer();
        let text = document(&tokenizer, 1, 3_000).expect("made");
        let tokens = tokenizer.encode(&text, false).expect("text").len();
        assert!((2_800..3_100).contains(&tokens), "{tokens}");
        let lines: HashSet<&str> = text.lines().collect();
        assert_eq!(lines.len(), text.lines().count());
    }
}
