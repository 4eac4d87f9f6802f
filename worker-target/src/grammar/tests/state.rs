//! A sequence's place in its grammar, in plain steps and along drafted paths.

use std::path::Path;

use paceline_models::sample::Constraint;
use serde_json::{Value, json};

use super::super::compile::{compile, factory};
use super::super::vocabulary::Vocabulary;
use super::compile::{END, schema, source};
use super::*;

/// Every byte is a token; then come the id that ends answers, and two tags.
pub(super) fn byte_vocabulary() -> Vocabulary {
    let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    words.push(b"\xff<end>".to_vec());
    words.push(b"\xff<think>".to_vec());
    words.push(b"\xff</think>".to_vec());
    Vocabulary::of_words(words)
}

/// 49,152 tokens, as many as SmolLM2 has: bytes, tags, and texts of two to four characters, signs
/// of JSON among them.
pub(super) fn made_up_vocabulary() -> Vocabulary {
    let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    words.extend([b"\xff<end>".to_vec(), b"\xff<think>".to_vec(), b"\xff</think>".to_vec()]);
    let characters = b" etaoinshrdlu0123456789_.\",:{}[]\\";
    let pairs = (b' '..=b'~').flat_map(|one| (b' '..=b'~').map(move |two| vec![one, two]));
    let threes = characters.iter().flat_map(move |one| {
        characters
            .iter()
            .flat_map(move |two| characters.iter().map(move |three| vec![*one, *two, *three]))
    });
    words.extend(pairs.chain(threes.filter(|word| word[0] != b' ')));
    let words_of = |word: &Vec<u8>| word.iter().all(u8::is_ascii_lowercase);
    let fours: Vec<Vec<u8>> =
        words.iter().filter(|word| word.len() == 3 && words_of(word)).cloned().collect();
    words.extend(
        fours.iter().flat_map(|word| b"estd ".map(|character| [&word[..], &[character]].concat())),
    );
    words.truncate(49_152);
    assert_eq!(words.len(), 49_152);
    Vocabulary::of_words(words)
}

/// The demo target's tokens.
fn demo_vocabulary() -> Vocabulary {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target/tokenizer.json");
    Vocabulary::read(&path, 4096).expect("a tokenizer")
}

/// The demo tokenizer's `<|im_end|>`.
const DEMO_END: u32 = 2;

fn state(vocabulary: &Vocabulary, source: &GrammarSource, end_id: u32) -> GrammarState {
    let factory = factory(vocabulary).expect("a compiler");
    let parser = compile(&factory, source).unwrap_or_else(|error| panic!("{}", error.error));
    GrammarState::new(parser, vocabulary.end, vec![end_id])
}

/// A random walk through a grammar, which prefers what ends an answer.
pub(super) struct Walk {
    seed: u64,
}

impl Walk {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1 }
    }

    /// A number below `below` (splitmix64).
    fn below(&mut self, below: usize) -> usize {
        self.seed = self.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.seed ^ (self.seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((mixed ^ (mixed >> 27)) % below.max(1) as u64) as usize
    }

    /// One of the allowed ids below `vocab`; `None` if there are none.
    fn choose(&mut self, state: &GrammarState, vocab: u32) -> Option<u32> {
        let allowed = state.allowed(&[]);
        let ids: Vec<u32> = (0..vocab).filter(|id| allowed.contains(*id)).collect();
        ids.get(self.below(ids.len())).copied()
    }

    /// Bytes of an answer; `None` if it is not complete after `most` of them.
    pub(super) fn run(mut self, state: &GrammarState, most: usize) -> Option<Vec<u8>> {
        let mut ids = vec![];
        while ids.len() < most {
            state.follow(&ids);
            let allowed = state.allowed(&[]);
            let closing = b"\"}],0".iter().map(|byte| u32::from(*byte));
            let mut closing = std::iter::once(END).chain(closing);
            let closes = closing.find(|id| allowed.contains(*id));
            let is_late = ids.len() > 40 || self.below(2) == 0;
            let id = match closes.filter(|_| is_late) {
                Some(id) => id,
                None => self.choose(state, END + 1)?,
            };
            if id == END {
                return Some(ids.into_iter().map(|id| id as u8).collect());
            }
            ids.push(id);
        }
        None
    }
}

/// The beginning of an answer that has a thought between the tags, and then an object.
pub(crate) fn thoughtful() -> GrammarState {
    let thought = "TEXT: /(?s:.*)/\nstart: <[257]> TEXT <[258]> @part_0\n";
    let source = GrammarSource { frame: thought.into(), ..schema(&json!({"type": "object"})) };
    state(&byte_vocabulary(), &source, END)
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn person() -> GrammarSource {
    schema(&json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": false,
    }))
}

#[test]
fn a_pattern_excludes_a_character_in_its_escaped_form_too() {
    let vocabulary = byte_vocabulary();
    for (pattern, excluded, other) in [("^[^\"]*$", b'"', b'\\'), ("^(a|[^\\\\\n])*$", b'\\', b'"')]
    {
        let text = json!({"type": "string", "pattern": pattern});
        let nested = json!({"type": "array", "items": text, "minItems": 1});
        for (schema, begin) in [(schema(&text), "\"a\\"), (schema(&nested), "[\"a\\")] {
            let state = state(&vocabulary, &schema, END);
            state.follow(&bytes(begin));
            let allowed = state.allowed(&[]);
            let allows = |byte: u8| allowed.contains(u32::from(byte));
            assert!(!allows(excluded) && allows(other) && allows(b't'), "{pattern} in {begin}");
        }
    }
}

#[test]
fn an_answer_ends_where_it_is_complete_and_nowhere_else() {
    let vocabulary = byte_vocabulary();
    let state = state(&vocabulary, &person(), END);
    let text = bytes(r#"{"name": "é", "age": 7}"#);
    for at in 0..text.len() {
        state.follow(&text[..at]);
        let allowed = state.allowed(&[]);
        assert!(allowed.contains(text[at]) && !allowed.contains(END), "{at}");
    }
    state.follow(&text);
    let allowed = state.allowed(&[]);
    let ids: Vec<u32> = (0..vocabulary.end + 1).filter(|id| allowed.contains(*id)).collect();
    assert_eq!(ids, [END], "nothing but the end is legal");
    // A regular expression that may end or go on.
    let digits = source(PartContent::Regex("[0-9]+".into()));
    let digits = self::state(&vocabulary, &digits, END);
    digits.follow(&bytes("12"));
    let allowed = digits.allowed(&[]);
    assert!(allowed.contains(END) && allowed.contains(u32::from(b'3')));
    assert!(!allowed.contains(u32::from(b'a')) && !allowed.contains(vocabulary.end));
}

#[test]
fn a_path_gives_the_sets_of_plain_steps_and_changes_nothing() {
    let vocabulary = demo_vocabulary();
    for seed in 0..20 {
        let state = state(&vocabulary, &person(), DEMO_END);
        let mut walk = Walk::new(seed);
        let (mut ids, mut sets) = (vec![], vec![]);
        for _ in 0..24 {
            state.follow(&ids);
            sets.push(state.allowed(&[]));
            match walk.choose(&state, 4096) {
                Some(DEMO_END) | None => break,
                Some(id) => ids.push(id),
            }
        }
        // A new state that goes ahead and returns: any place first, any length of the path.
        let other = self::state(&vocabulary, &person(), DEMO_END);
        for _ in 0..40 {
            let settled = walk.below(sets.len());
            let ahead = walk.below(sets.len() - settled);
            other.follow(&ids[..settled]);
            assert_eq!(other.allowed(&ids[settled..settled + ahead]), sets[settled + ahead]);
            assert_eq!(other.allowed(&[]), sets[settled], "the path was left");
        }
        assert_eq!((state.failure(), other.failure()), (None, None));
    }
}

#[test]
fn drafts_are_counted_up_to_the_first_that_is_not_allowed() {
    let vocabulary = byte_vocabulary();
    let state = state(&vocabulary, &person(), END);
    state.follow(&bytes(r#"{"name": "#));
    let allowed = |drafts: &[u32]| state.allowed_drafts(drafts);
    assert_eq!(allowed(&bytes(r#""x", "age"#)), 9);
    assert_eq!(allowed(&bytes(r#""x", "old"#)), 6);
    assert_eq!(allowed(&bytes("7")), 0);
    assert_eq!(allowed(&[]), 0);
    assert_eq!(allowed(&[END]), 0);
    let mut whole = bytes(r#""x", "age": 7}"#);
    whole.push(END);
    assert_eq!(allowed(&whole), whole.len(), "the end after a complete answer");
    whole.insert(3, END);
    assert_eq!(allowed(&whole), 3, "the end in the middle of it");
    whole.insert(1, 999);
    assert_eq!(allowed(&whole), 1, "an id of no token");
    // All that left the place as it was.
    assert!(state.allowed(&[]).contains(u32::from(b'"')));
    assert_eq!(state.failure(), None);
}

#[test]
fn a_path_that_is_not_allowed_has_an_empty_set_and_fails_nothing() {
    let vocabulary = byte_vocabulary();
    let state = state(&vocabulary, &person(), END);
    state.follow(&bytes("{"));
    assert_eq!(*state.allowed(&bytes("7")), Default::default());
    assert!(state.allowed(&[END]).contains(END), "rows after the end are dropped");
    assert!(state.allowed(&bytes("\"name")).contains(u32::from(b'"')));
    assert_eq!(state.failure(), None);
}

#[test]
fn a_sequence_that_left_its_grammar_fails_with_the_reason() {
    let vocabulary = byte_vocabulary();
    let state = state(&vocabulary, &person(), END);
    state.follow(&bytes("[1]"));
    assert!(state.failure().expect("failed").contains("does not follow"));
    assert_eq!(*state.allowed(&[]), Default::default());
    assert_eq!(state.allowed_drafts(&bytes("{")), 0);
}

#[test]
fn a_tag_is_a_token_and_no_text() {
    const THINK: u32 = 257;
    const ANSWER: u32 = 258;
    let vocabulary = byte_vocabulary();
    let mut grammar = person();
    grammar.frame =
        "start: thought? @part_0\nthought: <[257]> TEXT <[258]> GAP?\nTEXT: /(?s:.*)/\nGAP: /\\n\\n?/\n"
            .into();
    let state = state(&vocabulary, &grammar, END);
    let allowed = state.allowed(&[]);
    assert!(allowed.contains(THINK) && allowed.contains(u32::from(b'{')));
    assert!(!allowed.contains(ANSWER) && !allowed.contains(END));
    let mut ids = vec![THINK];
    ids.extend(bytes("so </think> {"));
    state.follow(&ids);
    let allowed = state.allowed(&[]);
    assert!(allowed.contains(ANSWER) && allowed.contains(u32::from(b'x')));
    assert!(!allowed.contains(THINK) && !allowed.contains(END));
    // Along a path through the tag, and back before it.
    let mut path = vec![ANSWER];
    path.extend(bytes("\n\n{\"name"));
    assert!(state.allowed(&path).contains(u32::from(b'"')));
    assert_eq!(state.allowed_drafts(&path), path.len());
    assert_eq!(state.allowed(&[]), allowed);
    ids.extend(&path);
    state.follow(&ids);
    state.follow(&ids[..3]);
    assert!(state.allowed(&[]).contains(ANSWER));
    assert_eq!(state.failure(), None);
}

#[test]
fn ids_beyond_the_tokenizer_are_never_allowed() {
    let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    words.resize(300, vec![]);
    let vocabulary = Vocabulary::of_words(words);
    let grammar = source(PartContent::Regex("(?s:.*)".into()));
    let state = state(&vocabulary, &grammar, 13);
    for text in ["", "a", "ab\n"] {
        state.follow(&bytes(text));
        let allowed = state.allowed(&[]);
        assert!((256..400).all(|id| !allowed.contains(id)), "{text:?}");
        // Byte 13 ends this answer, so that it is no text.
        assert!(allowed.contains(13) && allowed.contains(u32::from(b'a')));
    }
}

/// 152 thousand tokens: all texts of one to three characters of 53, as bytes.
fn large_vocabulary() -> Vocabulary {
    let characters: Vec<u8> = (b'a'..=b'z').chain(b'A'..=b'Z').chain([b' ']).collect();
    let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    words.push(b"\xff<end>".to_vec());
    for a in &characters {
        for b in &characters {
            words.push(vec![*a, *b]);
            words.extend(characters.iter().map(|c| vec![*a, *b, *c]));
        }
    }
    words.truncate(152_000);
    Vocabulary::of_words(words)
}

#[test]
#[ignore = "soak: a timed figure"]
fn a_mask_of_152_thousand_tokens_takes_less_than_a_millisecond() {
    let vocabulary = large_vocabulary();
    let steps: Value = json!({"type": "object", "properties": {
        "steps": {"type": "array", "items": {"type": "object", "properties": {
            "explanation": {"type": "string"}, "output": {"type": "string", "maxLength": 80},
        }, "required": ["explanation", "output"], "additionalProperties": false}},
        "answer": {"type": "number"}}, "required": ["steps", "answer"], "additionalProperties": false});
    let state = state(&vocabulary, &schema(&steps), END);
    let text = r#"{"steps": [{"explanation": "We add both sides", "output": "then x is two"}], "answer": 2.5}"#;
    let ids = bytes(text);
    let mut times = vec![];
    for at in 0..ids.len() {
        state.follow(&ids[..at]);
        let before = paceline_system::clock::monotonic_ns();
        assert!(state.allowed(&[]).contains(ids[at]), "{at}");
        times.push((paceline_system::clock::monotonic_ns() - before) / 1000);
    }
    times.sort_unstable();
    let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
    println!("a mask of 152,000 tokens: median {median} us, longest {most} us");
    assert!(median < 1_000, "{median} us");
}
