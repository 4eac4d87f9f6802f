//! The plan of a seed: the requests, when each is sent, and how it ends; what the drafter does;
//! what is done to the worker meanwhile.

use std::path::{Path, PathBuf};

use paceline_proto::internal::v1::{Generation, PolicyForce, SamplingRule};
use paceline_proto::v1::{self, LogitBias, TokenLogprobs};
use paceline_vocabulary::link::ProposalKind;
use serde_json::Value;
use tempfile::TempDir;

use super::stage::{GREEDY, cases_of, demo, generation, golden, with_long_context};

/// Tokens of the longest stream.
pub const MOST: u32 = 24;
/// Requests of an interleaving.
pub const MOST_AT_ONCE: u64 = 16;

/// A target of the test, and the drafters that are played to it.
#[derive(Debug)]
pub struct Subject {
    /// The tests that run it have this in their names.
    pub name: &'static str,
    /// Name of a tiny checkpoint; `None` is the embedded target.
    checkpoint: Option<&'static str>,
    /// Numbers of a hidden row.
    pub hidden: u32,
    /// Ids of the vocabulary.
    pub vocab: u32,
    /// Layers whose hidden states the drafters read.
    pub feature_layers: &'static [u32],
    /// Positions of a place in the store that the longest prompts nearly fill. A sequence that grows
    /// beyond it needs more memory, and another one may be preempted.
    place: usize,
    /// Of the worker that has little memory: hardly more than the longest sequence takes.
    pub tight_bytes: u64,
    /// How its worker is told to multiply by quantized weights (`target.products`).
    pub products: &'static str,
}

/// The embedded target. 2 MiB of KV and 1 MiB of hidden states are the smallest place.
pub const DEMO: Subject = Subject {
    name: "interleavings_change_no_token",
    checkpoint: None,
    place: 256,
    hidden: 256,
    vocab: 4096,
    feature_layers: &[1, 3, 5, 6],
    tight_bytes: 6 << 20,
    products: "auto",
};

/// A tiny target with recurrent layers. Its smallest place has 128 KiB of KV, 24 KiB of states and
/// 64 KiB of hidden states, and the tape of a block 55 KiB.
pub const HYBRID: Subject = Subject {
    name: "interleavings_leave_states_alone",
    checkpoint: Some("qwen3_5-tiny"),
    place: 256,
    hidden: 32,
    vocab: 300,
    feature_layers: &[0, 2],
    tight_bytes: 450 << 10,
    products: "auto",
};

/// A tiny target with windows of 24 positions, of which a slot keeps 576, and with experts. Its
/// longest prompts go past these, so that rows of a window lie where older ones were.
pub const WINDOWED: Subject = Subject {
    name: "interleavings_keep_windows_and_experts_apart",
    checkpoint: Some("gemma4-tiny-moe"),
    place: 1024,
    hidden: 64,
    vocab: 192,
    feature_layers: &[0, 2],
    tight_bytes: 1_100 << 10,
    products: "auto",
};

/// As [`WINDOWED`], with weights of 4 bits, which are multiplied by rows of 8-bit integers.
pub const QUANTIZED: Subject = Subject {
    name: "interleavings_multiply_integers_alike",
    checkpoint: Some("gemma4-moe-q4"),
    vocab: 128,
    products: if cfg!(target_os = "linux") { "integer" } else { "auto" },
    ..WINDOWED
};

impl Subject {
    /// Directory of the checkpoint; a copy with a longer context if its prompts need one.
    pub fn dir(&self) -> Checkpoint {
        match self.checkpoint {
            None => Checkpoint::InRepository(demo()),
            Some(name) if self.place > 512 => Checkpoint::Copy(with_long_context(name)),
            Some(name) => Checkpoint::InRepository(golden(name)),
        }
    }

    /// Whether the stream of a prompt outgrows the subject's place.
    pub fn outgrows(&self, prompt: &[u32]) -> bool {
        prompt.len() > self.place - 20
    }

    /// The drafter of the worker's configuration, by whose layers hidden states are kept before one
    /// is linked.
    pub fn drafter(&self) -> String {
        if self.checkpoint.is_some() {
            return String::new();
        }
        demo().with_file_name("drafter").display().to_string()
    }

    /// Prompts, most of them short, and text that follows them.
    fn cases(&self) -> Vec<(Vec<u32>, Vec<u32>)> {
        if let Some(name) = self.checkpoint {
            let (greedy, ids) = (cases_of(name), self.vocab - 10);
            let prompt =
                |at: u32| (0..5 + 3 * at).map(|place| 4 + (place * 7 + 31 * at) % ids).collect();
            return (0..12)
                .map(|at: u32| (prompt(at), greedy[at as usize % greedy.len()].1.clone()))
                .collect();
        }
        let text = std::fs::read(demo().with_file_name("golden.json"))
            .expect("the golden file is in the repository");
        let golden: Value = serde_json::from_slice(&text).expect("JSON");
        let ids = |value: &Value| serde_json::from_value::<Vec<u32>>(value.clone()).expect("ids");
        let cases = golden["cases"].as_array().expect("cases").iter();
        cases.map(|case| (ids(&case["prompt"]), ids(&case["greedy"]))).collect()
    }
}

/// A checkpoint's directory.
pub enum Checkpoint {
    InRepository(PathBuf),
    Copy(TempDir),
}

impl Checkpoint {
    pub fn path(&self) -> &Path {
        match self {
            Self::InRepository(path) => path,
            Self::Copy(dir) => dir.path(),
        }
    }
}

/// SplitMix64.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (word ^ (word >> 31)) % sides
    }

    pub fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.roll(choices.len() as u64) as usize]
    }
}

/// A request and what it gives alone.
pub struct Solo {
    pub request: Generation,
    pub ids: Vec<u32>,
    pub margins: Vec<f32>,
    /// Whether its stream outgrows the subject's place.
    pub is_long: bool,
    /// Of those that ask for them.
    pub logprobs: Vec<TokenLogprobs>,
}

/// Every way to choose tokens. Prompts have a few tokens, or common first pages, or have
/// streams that outgrow the smallest place.
pub fn requests(subject: &Subject) -> Vec<Generation> {
    let cases = subject.cases();
    let talk: Vec<u32> = cases
        .iter()
        .flat_map(|(prompt, answer)| [prompt.clone(), answer.clone()].concat())
        .collect();
    let short = cases.iter().map(|(prompt, _)| prompt).filter(|prompt| prompt.len() < 40);
    let mut prompts: Vec<Vec<u32>> = vec![];
    for (at, prompt) in short.enumerate() {
        let begun = |length: usize, from: usize| -> Vec<u32> {
            let talk = talk.iter().cycle().skip(from).take(length - prompt.len());
            talk.chain(prompt).copied().collect()
        };
        prompts.push(match at % 4 {
            0 | 1 => prompt.clone(),
            2 => begun(100 + 7 * at, 0),
            _ => begun(subject.place - 2 - at, 0),
        });
    }
    let warm = SamplingRule { temperature: 0.8, top_p: 0.95, repetition_penalty: 1.1, ..GREEDY };
    let often: Vec<u32> = cases.iter().filter_map(|(_, answer)| answer.get(1)).copied().collect();
    let biased = |bias: f32| {
        let mut ids: Vec<u32> = often.iter().take(6).copied().collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().map(|token_id| LogitBias { token_id, bias }).collect()
    };
    let samplings = [
        GREEDY,
        warm.clone(),
        GREEDY,
        SamplingRule { temperature: 1.2, top_k: 20, ..GREEDY },
        SamplingRule { repetition_penalty: 1.3, ..GREEDY },
        SamplingRule { min_p: 0.05, ..warm.clone() },
        SamplingRule { temperature: 1.0, top_p: 0.9, ..GREEDY },
        SamplingRule { presence_penalty: 1.0, frequency_penalty: 0.3, ..GREEDY },
        SamplingRule { presence_penalty: -0.5, logit_bias: biased(2.0), ..warm.clone() },
        SamplingRule { frequency_penalty: 0.4, logit_bias: biased(-100.0), ..warm },
        // With min_tokens, below.
        GREEDY,
    ];
    let request = |at: usize| {
        let waits = at % samplings.len() == samplings.len() - 1;
        Generation {
            sampling: Some(samplings[at % samplings.len()].clone()),
            seed: 77 + at as u64,
            sample_index: at as u32 % 3,
            min_tokens: if waits { 6 } else { 0 },
            stop_token_ids: if waits { often.clone() } else { vec![] },
            logprobs: (at % 2 == 1).then_some(3),
            last_turn: at
                .is_multiple_of(3)
                .then(|| prompts[at % prompts.len()].len() as u32 * 2 / 3),
            ..generation("solo", &prompts[at % prompts.len()], MOST)
        }
    };
    (0..2 * prompts.len()).map(request).collect()
}

/// How a request ends, if not by its last token.
#[derive(Clone, Copy, Debug)]
pub enum Leaves {
    Never,
    /// The client goes away after this many tokens.
    HangsUp(u32),
    /// The client goes away when this many tokens have come in all, whether or not any of its own
    /// has.
    Before(u64),
    Cancelled(u32),
    /// The deadline is this many ms away.
    Deadline(u64),
    /// A token of its own stream is its stop token.
    Stops(u32),
}

/// Behaviour of a drafter when it is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mood {
    /// Proposes what will be chosen, as far as it knows the stream.
    Right,
    /// The first ids right, then others.
    HalfRight,
    Lies,
    /// Leaves every second want out.
    Forgets,
    /// Answers nothing.
    Silent,
    /// Proposes an id that the vocabulary has not, for which it is ejected.
    BreaksARule,
    /// Goes away with drafts under way.
    Dies,
}

pub const MOODS: [Mood; 10] = {
    use Mood::{BreaksARule, Dies, Forgets, HalfRight, Lies, Right, Silent};
    [Right, Right, Right, HalfRight, HalfRight, Lies, Forgets, Silent, BreaksARule, Dies]
};

/// Events of a plan, each at its number of tokens.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// Every second request gets another permit.
    Permits(v1::Lane, v1::RouteReason),
    Policy(PolicyForce),
    Mood(Mood),
    /// Another drafter is linked.
    Attach(ProposalKind),
}

#[derive(Debug)]
pub struct Planned {
    /// Index of the request, and how many tokens of it.
    pub solo: usize,
    pub tokens: u32,
    pub scope: &'static str,
    pub margins: bool,
    pub lane: v1::Lane,
    pub reason: v1::RouteReason,
    /// Tokens of all requests together before this one begins.
    pub joins: u64,
    pub leaves: Leaves,
}

#[derive(Debug)]
pub struct Plan {
    /// On the worker that has little memory, which is to run out.
    pub tight: bool,
    pub mood: Mood,
    pub requests: Vec<Planned>,
    pub events: Vec<(u64, Event)>,
}

pub fn lane(dice: &mut Dice) -> (v1::Lane, v1::RouteReason) {
    let lane = dice.of(&[v1::Lane::Plain, v1::Lane::Speculative, v1::Lane::Speculative]);
    (lane, dice.of(&[v1::RouteReason::Forced, v1::RouteReason::Forced, v1::RouteReason::Prior]))
}

/// All of an interleaving that does not depend on the machine.
pub fn plan(seed: u64, solos: &[Solo]) -> Plan {
    // More than 60 lines: draws in one order, which the seed must repeat.
    let mut dice = Dice(seed);
    let tight = dice.one_in(6);
    // Half of the others are sixteen requests that come at once.
    let all_at_once = !tight && dice.one_in(2);
    let count = 1 + match () {
        () if tight => 1 + dice.roll(4),
        () if all_at_once => MOST_AT_ONCE - 1,
        () => dice.roll(MOST_AT_ONCE).min(dice.roll(MOST_AT_ONCE)),
    };
    let beginning = dice.roll(solos.len() as u64);
    let is_long = |solo: &usize| solos[*solo].is_long;
    let long: Vec<usize> = (0..solos.len()).filter(is_long).collect();
    let (mut requests, mut all) = (vec![], 0);
    for _ in 0..count {
        let solo = match dice.roll(4) {
            // Those that outgrow their place are the ones that are preempted.
            0..3 if tight => dice.of(&long),
            // Something in common with the first.
            0..2 => ((beginning + 4 * dice.roll(4)) % solos.len() as u64) as usize,
            _ => dice.roll(solos.len() as u64) as usize,
        };
        let tokens = match () {
            () if is_long(&solo) && tight => MOST,
            () if all_at_once => MOST - dice.roll(9) as u32,
            () => 2 + dice.roll(9) as u32,
        };
        let at = dice.roll(u64::from(tokens)) as u32;
        let joins = if tight || all_at_once { 0 } else { dice.roll(all + 1) / 2 };
        let leaves = match dice.roll(if tight || all_at_once { 32 } else { 10 }) {
            0 => Leaves::HangsUp(at + 1),
            1 => Leaves::Before(joins + dice.roll(8)),
            2 => Leaves::Cancelled(at),
            3 => Leaves::Deadline(dice.roll(60)),
            // Where stop ids are barred at first, another one would change the stream.
            4 if solos[solo].request.min_tokens == 0 => Leaves::Stops(at),
            _ => Leaves::Never,
        };
        let (lane, reason) = lane(&mut dice);
        let (scope, margins) = (dice.of(&["", "", "one"]), dice.one_in(3));
        requests.push(Planned { solo, tokens, scope, margins, lane, reason, joins, leaves });
        all += u64::from(tokens);
    }
    let mut events = vec![];
    for _ in 0..dice.roll(4) {
        let event = match dice.roll(8) {
            0..3 => {
                let (lane, reason) = lane(&mut dice);
                Event::Permits(lane, reason)
            }
            3 => Event::Policy(dice.of(&[
                PolicyForce::Auto,
                PolicyForce::Plain,
                PolicyForce::Speculative,
            ])),
            4..7 => Event::Mood(dice.of(&MOODS)),
            _ => Event::Attach(dice.of(&[
                ProposalKind::Tokens,
                ProposalKind::Tokens,
                ProposalKind::Hidden,
            ])),
        };
        events.push((dice.roll(all), event));
    }
    events.sort_by_key(|(at, _)| *at);
    Plan { tight, mood: dice.of(&MOODS), requests, events }
}
