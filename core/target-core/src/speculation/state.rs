//! What the controller keeps of one sequence.

use std::sync::Arc;

use super::similar_prompts::{Evidence, TokenSet};
use super::survival::{self, Belief, Survival, TrafficClass};
use super::target_entropy::EntropyHistogram;
use crate::SequenceKey;

/// Share of poor text in the expectation of a sequence's first drafts, as long as nothing is known
/// of the sequence itself. A class is a mean over texts that gain much and texts that lose, and
/// each of them is to be served well.
const CAUTION: f32 = 0.25;
/// Cycles of a sequence with this caution.
const CAUTIOUS_CYCLES: u64 = 3;

/// Why a sequence drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DraftCause {
    /// The client or the operator asked for it.
    Forced,
    /// Its class or similar prompts promise a gain.
    Prior,
    /// Its own drafts promise a gain.
    Benefit,
    /// A trial after a back-off.
    Probe,
}

/// A cycle whose draft was requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingCycle {
    pub(super) cause: DraftCause,
    /// The sequence's share of the expected time, in microseconds.
    pub(super) share_us: f64,
    /// Time of a token in plain steps, in microseconds.
    pub(super) token_us: f64,
}

/// Another running sequence of the same class and scope.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimilarSequence {
    pub(super) key: SequenceKey,
    /// Similarity of both prompts.
    pub(super) similarity: f64,
}

/// The state of one sequence.
#[derive(Clone, Debug)]
pub(super) struct SequenceState {
    /// Number of its traffic class.
    pub(super) class: usize,
    /// Cache scope of its request.
    pub(super) scope: Arc<str>,
    /// The tokens of its prompt.
    pub(super) tokens: TokenSet,
    /// Evidence of similar sequences that have ended.
    pub(super) ended: Evidence,
    /// Similar sequences that run.
    pub(super) similar: Vec<SimilarSequence>,
    pub(super) belief: Belief,
    /// The belief by drafts alone, which teaches what entropy means.
    pub(super) draft_belief: Belief,
    pub(super) entropy: EntropyHistogram,
    /// Evidence other than its own drafts arrived since the last decision.
    pub(super) new_evidence: bool,
    /// Expected survival of its next draft.
    pub(super) survival: Survival,
    /// It rests until it has so many tokens; `None`: it is open.
    pub(super) rests_until: Option<u32>,
    /// Tokens of the last back-off.
    pub(super) backoff: u32,
    /// Time that its cycles took beyond plain steps, in microseconds; negative if they gained.
    pub(super) lost_us: f64,
    /// The cycle under way.
    pub(super) cycle: Option<PendingCycle>,
    /// Length of its last draft.
    pub(super) length: usize,
    /// Blocks that were fully accepted since one was lengthened for it.
    pub(super) fully_accepted: u32,
    /// Cycles in a row that gained.
    pub(super) gains_in_row: u32,
    /// Tokens that it had when its belief drifted last.
    pub(super) drifted_at: u32,
    /// Its hidden states are sent to the drafter.
    pub(super) fed: bool,
    /// A decision considered it.
    pub(super) considered: bool,
    /// A decision chose it to draft, whether or not a draft came.
    pub(super) chosen: bool,
    /// It is too long to draft, for the drafter or by the policy.
    pub(super) beyond_context: bool,
    /// Its cycles by cause.
    pub(super) cycles_by_cause: [u32; 4],
}

impl SequenceState {
    /// The state of a sequence that begins. `evidence` is what became of similar prompts.
    pub(super) fn new(
        class: usize,
        scope: Arc<str>,
        tokens: TokenSet,
        evidence: Evidence,
        of_class: &TrafficClass,
    ) -> Self {
        let belief = Belief::new(evidence.with(&of_class.mixture()));
        let survival = expected_survival(&belief, of_class);
        Self {
            class,
            scope,
            tokens,
            ended: evidence,
            similar: vec![],
            draft_belief: Belief::new(of_class.mixture()),
            belief,
            entropy: EntropyHistogram::default(),
            new_evidence: false,
            survival,
            rests_until: None,
            backoff: 0,
            lost_us: 0.0,
            cycle: None,
            length: 0,
            fully_accepted: 0,
            gains_in_row: 0,
            drifted_at: 0,
            fed: false,
            considered: false,
            chosen: false,
            beyond_context: false,
            cycles_by_cause: [0; 4],
        }
    }

    /// Its cycles for this cause.
    pub(super) fn cycles(&self, cause: DraftCause) -> u32 {
        self.cycles_by_cause[cause as usize]
    }

    /// Whether similar sequences learn from it. A forced sequence teaches its class alone:
    /// benchmarks and self-tests ask the same prompt in every lane, and the routed lane is to be
    /// measured by what it learns itself.
    pub(super) fn teaches(&self) -> bool {
        self.cycles(DraftCause::Forced) == 0
    }
}

/// The expected survival of a sequence's next draft, with caution in its first cycles.
pub(super) fn expected_survival(belief: &Belief, class: &TrafficClass) -> Survival {
    let mut survival = belief.survival(class);
    if belief.cycles() < CAUTIOUS_CYCLES {
        let poor = &class.table()[survival::POOR_KIND];
        let caution = CAUTION * (1.0 - belief.distance_from(class)) as f32;
        survival
            .iter_mut()
            .zip(poor)
            .for_each(|(alive, poor)| *alive += caution * (poor.min(*alive) - *alive));
    }
    survival
}
