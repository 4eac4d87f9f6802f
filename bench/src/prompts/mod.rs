//! Prompts of the lanes: the embedded kinds, a long kind, a Chinese kind, and the user's own.
//!
//! [`made`] writes texts of a length; a file of the user's own is read by [`own_prompts`]

pub mod made;

use std::path::Path;

use paceline_client::prompts::{self, Prompt};
use paceline_client::{Failure, message, own_prompts};
use paceline_process::chain;
use paceline_proto::v1::StatusResponse;
use paceline_text::checkpoint::Checkpoint;
use paceline_text::prompt::Tokens;

use crate::report::failed;

/// A kind of prompts that has a text of [`LONG_TOKENS`] in each.
const LONG: &str = "long";
/// A kind of prompts in Chinese.
const CHINESE: &str = "chinese";
/// Tokens of a long prompt's text: that of an article, or of a file of code with its question.
pub const LONG_TOKENS: usize = 6_000;
/// Different long prompts.
const LONG_PROMPTS: usize = 8;
/// Prompts in Chinese, one in each line.
const CHINESE_PROMPTS: &str = include_str!("chinese.txt");

/// Least number of requests of a measurement, and of requests one after the other in each stream.
/// In a single request a pause of the machine would be half the figure, and the start of a request
/// would count too much.
const REQUESTS: usize = 8;
const IN_TURN: usize = 2;
/// The same of long prompts, whose prefill alone is long enough.
const LONG_REQUESTS: usize = 2;

/// A kind of prompts that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// One of the embedded kinds.
    Embedded(String),
    /// Long texts with a question.
    Long,
    /// Prompts in Chinese.
    Chinese,
    /// The user's own of one kind.
    Own(Vec<Prompt>),
}

/// The prompts of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptSet {
    /// Name of the kind.
    pub kind: String,
    prompts: Vec<Prompt>,
    use_of: UseOfPrompts,
}

/// The prompts of a set that a measurement sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UseOfPrompts {
    /// Enough of them to keep all streams busy.
    Enough,
    /// At least this number of requests.
    AtLeast(usize),
    /// All of them.
    All,
}

/// The tokenizer of the served model.
///
/// # Errors
/// Its files cannot be read.
pub fn tokenizer(status: &StatusResponse) -> Result<Tokens, Failure> {
    let dir = status.target.as_ref().map_or("", |target| &target.model);
    let cannot = |cause: String| failed(format!("cannot read the tokenizer of {dir:?}: {cause}"));
    let checkpoint = Checkpoint::read(Path::new(dir)).map_err(|error| cannot(chain(&error)))?;
    Tokens::new(checkpoint.tokenizer.tokenizer).map_err(|error| cannot(chain(&error)))
}

impl Kind {
    /// The kinds that the words name; without words the embedded kinds.
    ///
    /// # Errors
    /// There is no such kind.
    pub fn of_words(words: &[String]) -> Result<Vec<Self>, Failure> {
        let embedded = prompts::kinds();
        let known: Vec<&str> = embedded.iter().map(String::as_str).chain([LONG, CHINESE]).collect();
        if let Some(word) = words.iter().find(|word| !known.contains(&word.as_str())) {
            let known = known.join(",");
            return Err(Failure::usage(format!(
                "--kinds: expected some of {known}, found {word:?}"
            )));
        }
        let wanted = |word: &str| match words.is_empty() {
            true => embedded.iter().any(|kind| kind == word),
            false => words.iter().any(|wanted| wanted == word),
        };
        let kind = |word: &str| match word {
            LONG => Self::Long,
            CHINESE => Self::Chinese,
            embedded => Self::Embedded(embedded.to_owned()),
        };
        Ok(known.into_iter().filter(|word| wanted(word)).map(kind).collect())
    }

    /// Name of the kind.
    pub fn word(&self) -> &str {
        match self {
            Self::Embedded(kind) => kind,
            Self::Long => LONG,
            Self::Chinese => CHINESE,
            Self::Own(prompts) => prompts.first().map_or(own_prompts::OWN, |prompt| &prompt.kind),
        }
    }

    /// The prompts of the kind; `long` are those of [`Kind::Long`].
    pub fn set(&self, long: &[Prompt]) -> PromptSet {
        let (prompts, use_of) = match self {
            Self::Embedded(kind) => (prompts::longest(kind, usize::MAX), UseOfPrompts::Enough),
            Self::Chinese => (chinese(), UseOfPrompts::Enough),
            Self::Long => (long.to_vec(), UseOfPrompts::AtLeast(LONG_REQUESTS)),
            Self::Own(prompts) => (prompts.clone(), UseOfPrompts::All),
        };
        PromptSet { kind: self.word().to_owned(), prompts, use_of }
    }
}

impl PromptSet {
    /// The prompts of one measurement with this number of requests at once, the same in each mode
    /// and run. Their number is a multiple of the requests at once. Prompts repeat if there are not
    /// enough different ones.
    pub fn of_cell(&self, streams: usize) -> Vec<Prompt> {
        let there = self.prompts.len();
        let turns = match self.use_of {
            UseOfPrompts::Enough => {
                let turns = REQUESTS.div_ceil(streams).max(IN_TURN);
                turns.min(there / streams).max(1)
            }
            UseOfPrompts::AtLeast(requests) => requests.div_ceil(streams),
            UseOfPrompts::All => there.div_ceil(streams),
        };
        self.prompts.iter().cycle().take(streams * turns).cloned().collect()
    }

    /// Short prompts for the untimed requests before a measurement, one for each stream.
    pub fn warming(&self, streams: usize) -> Vec<Prompt> {
        let prompts = match self.use_of {
            UseOfPrompts::Enough => self.prompts.clone(),
            // A long prefill would take as long as the measurement, and warms no better.
            UseOfPrompts::AtLeast(_) | UseOfPrompts::All => prompts::embedded(usize::MAX),
        };
        prompts.into_iter().cycle().take(streams).collect()
    }
}

fn chinese() -> Vec<Prompt> {
    CHINESE_PROMPTS.lines().enumerate().map(|(index, text)| prompt(CHINESE, index, text)).collect()
}

/// The prompts of [`Kind::Long`], each with a text of this number of tokens.
///
/// # Errors
/// The tokenizer's own.
pub fn long(tokenizer: &Tokens, tokens: usize) -> Result<Vec<Prompt>, Failure> {
    let one = |index| {
        let text = made::document(tokenizer, index as u64, tokens)?;
        let question =
            "Summarize this report: who did what most often, and which entries need a reply?";
        Ok(prompt(LONG, index, format!("{text}\n{question}")))
    };
    (0..LONG_PROMPTS).map(one).collect()
}

fn prompt(kind: &str, index: usize, text: impl Into<String>) -> Prompt {
    let messages = vec![message::text("user", text)];
    Prompt { kind: kind.to_owned(), index, messages, max_tokens: u32::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer() -> Tokens {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target");
        let checkpoint = Checkpoint::read(&dir).expect("the embedded model");
        Tokens::new(checkpoint.tokenizer.tokenizer).expect("a vocabulary")
    }

    fn set(word: &str) -> PromptSet {
        let kinds = Kind::of_words(&[word.to_owned()]).expect("known");
        kinds[0].set(&long(&tokenizer(), 4_000).expect("made"))
    }

    #[test]
    fn a_cell_has_enough_prompts_to_keep_all_streams_busy() {
        for kind in ["facts", "chinese"] {
            let set = set(kind);
            for (streams, requests) in
                [(1, 8), (2, 8), (4, 8), (5, 10), (6, 12), (16, 32), (32, 32)]
            {
                let prompts = set.of_cell(streams);
                assert_eq!(prompts.len(), requests, "{kind} {streams}");
                assert!((0..requests).all(|at| !prompts[..at].contains(&prompts[at])));
            }
        }
    }

    #[test]
    fn long_prompts_are_few_and_warm_with_short_ones() {
        let set = set("long");
        assert_eq!((set.of_cell(1).len(), set.of_cell(8).len()), (2, 8));
        let text = format!("{:?}", set.of_cell(1)[0].messages);
        let tokens = tokenizer().encode(&text, false).expect("text").len();
        assert!((3_900..4_500).contains(&tokens), "{tokens}");
        assert_eq!(set.warming(3).iter().filter(|prompt| prompt.kind == LONG).count(), 0);
        assert_eq!(set.warming(3).len(), 3);
    }

    #[test]
    fn own_prompts_are_all_sent_and_repeat_to_fill_the_streams() {
        let own = (0..3).map(|index| prompt(own_prompts::OWN, index, "a")).collect();
        let set = Kind::Own(own).set(&[]);
        let indices =
            |streams| set.of_cell(streams).iter().map(|prompt| prompt.index).collect::<Vec<_>>();
        assert_eq!((indices(1), indices(2)), (vec![0, 1, 2], vec![0, 1, 2, 0]));
        assert_eq!(indices(5), [0, 1, 2, 0, 1]);
    }

    #[test]
    fn unknown_kinds_are_named_with_the_known_ones() {
        let failure = Kind::of_words(&["json".into(), "verse".into()]).expect_err("unknown");
        assert!(
            failure.message.contains("verse")
                && failure.message.contains("arithmetic,code,table,facts,prose,long,chinese"),
            "{failure}"
        );
        let words = |words: &[&str]| -> Vec<String> {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            Kind::of_words(&words)
                .expect("known")
                .iter()
                .map(|kind| kind.word().to_owned())
                .collect()
        };
        assert_eq!(words(&[]).len(), 6, "the embedded kinds alone");
        assert_eq!(words(&["chinese", "prose", "json"]), ["json", "prose", "chinese"]);
    }
}
