//! The embedded prompts as requests, and what two answers may differ in.

use std::path::Path;

use paceline_proto::v1::RouteWish;
use serde_json::Value;

use crate::ask::{Answer, Ask, conversation, messages};
use crate::repository;

/// Margins below this decide nothing where the order of sums may differ (I1).
pub(crate) const NEAR_TIE: f32 = 1e-4;

/// An embedded prompt.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// json, arithmetic, code, table, facts or prose.
    pub kind: String,
    /// Asks it greedily, for up to 128 tokens.
    pub ask: Ask,
}

/// All embedded prompts: 40 of each of 6 kinds.
pub fn prompts() -> Vec<Prompt> {
    let text = std::fs::read_to_string(repository().join("demo/prompts.jsonl")).unwrap();
    let prompt = |line: &str| {
        let prompt: Value = serde_json::from_str(line).unwrap();
        let kind = prompt["kind"].as_str().unwrap().to_owned();
        Prompt { kind, ask: conversation(messages(&prompt["messages"])).max_tokens(128) }
    };
    text.lines().map(prompt).collect()
}

/// `count` prompts of each kind, kinds in turn.
pub fn some_of_each(count: usize) -> Vec<Prompt> {
    let all = prompts();
    let kinds = ["json", "arithmetic", "code", "table", "facts", "prose"];
    let nth = |at: usize, kind: &str| {
        all.iter().filter(|prompt| prompt.kind == kind).nth(at).unwrap().clone()
    };
    (0..count)
        .flat_map(|at| kinds.iter().map(move |kind| (at, *kind)))
        .map(|(at, kind)| nth(at, kind))
        .collect()
}

impl Prompt {
    /// Greedy, or with temperature, top-p and penalty and this seed.
    pub fn sampled(&self, seed: Option<u64>) -> Ask {
        match seed {
            None => self.ask.clone(),
            Some(seed) => self.ask.clone().sampled(0.8, 0.95, seed).penalty(1.1),
        }
    }
}

/// The plain lane, with margins: what other runs are held against.
pub fn reference(ask: Ask) -> Ask {
    ask.route(RouteWish::Plain).with_margins()
}

/// Whether two runs may differ nowhere: on Linux the CPU's rows have the same bits in any batch and
/// any chunk (`cpu`). Accelerate and GPUs sum in an order that depends on the batch.
pub(crate) fn bit_equal() -> bool {
    cfg!(target_os = "linux") && !Path::new("/dev/nvidiactl").exists()
}

/// Counts a near-tie where two answers part, on machines that have such; any other difference
/// fails.
///
/// # Panics
/// They differ where the reference's choice was decided, or at all where rows are bit-equal.
pub fn same_but_near_ties(reference: &Answer, other: &Answer, what: &str, near_ties: &mut u32) {
    if let Some(at) = (0..reference.ids.len().max(other.ids.len()))
        .find(|at| reference.ids.get(*at) != other.ids.get(*at))
    {
        let margin = reference.margins.get(at).copied().unwrap_or(f32::INFINITY);
        let ids = (reference.ids.get(at), other.ids.get(at));
        assert!(
            !bit_equal() && margin < NEAR_TIE,
            "{what}: differs at token {at}, {ids:?}, with margin {margin}"
        );
        *near_ties += 1;
    }
}

/// A small generator of its own: rounds are the same on every machine.
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// A number below `sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}
