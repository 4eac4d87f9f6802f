//! A sequence's life: it begins, its answer ends, it ends; and what others learn from it.

use super::scopes::ScopeOfClass;
use super::similar_prompts::TokenSet;
use super::state::{SequenceState, SimilarSequence, expected_survival};
use super::survival::TrafficClass;
use super::{PAST_END_CLASS, Speculation, target_entropy};
use crate::{Request, Sequence, SequenceKey};

/// Tokens of a sequence whose entropy is read each: the first ones decide whether it drafts.
const FIRST_ENTROPY_TOKENS: u32 = 12;
/// Of the later tokens the entropy of one in so many is read.
const ENTROPY_INTERVAL: u32 = 8;
/// Cycles after which the drafts have shown a sequence's kind: entropy is learned from it, and it
/// needs no lessons of similar ones.
const KNOWN_CYCLES: u64 = 1;
/// Largest number of classes. Sequences of further classes count as the default one.
const MAX_CLASSES: usize = 32;

impl Speculation {
    /// The sequence of a request begins.
    pub fn open(&mut self, key: SequenceKey, request: &Request) {
        let class = self.class(&request.class);
        let scope = ScopeOfClass { class, scope: request.cache_scope.as_str().into() };
        let state = self.begin(key, scope, TokenSet::of(&request.prompt));
        self.states.insert(key, state);
    }

    /// The number of a class. A new label gets a new class.
    fn class(&mut self, class: &str) -> usize {
        let known = self.classes.iter().position(|(name, _)| name == class);
        known.unwrap_or_else(|| {
            if class.is_empty() || self.classes.len() >= MAX_CLASSES {
                return 0;
            }
            self.classes.push((class.to_owned(), TrafficClass::default()));
            self.classes.len() - 1
        })
    }

    fn begin(&mut self, key: SequenceKey, scope: ScopeOfClass, tokens: TokenSet) -> SequenceState {
        let memory = self.prompts.of(&scope);
        let ScopeOfClass { class, scope } = scope;
        let evidence = memory.of(&tokens);
        let mut similar = vec![];
        for (other, state) in
            self.states.iter_mut().filter(|(_, one)| one.class == class && one.scope == scope)
        {
            let similarity = memory.similarity(&tokens, &state.tokens);
            similar.push(SimilarSequence { key: *other, similarity });
            state.similar.push(SimilarSequence { key, similarity });
        }
        self.has_lessons |= !similar.is_empty();
        let of_class = &self.classes[class].1;
        SequenceState { similar, ..SequenceState::new(class, scope, tokens, evidence, of_class) }
    }

    /// The answer of a sequence ended, after `had` tokens, and the client ignores the end. The text
    /// that follows is another one: the class learns what the answer was, and the sequence
    /// continues in the class of texts after an end.
    pub fn continue_past_end(&mut self, key: SequenceKey, had: u32) {
        let Some(state) = self.states.remove(&key) else { return };
        let SequenceState { fed, considered, chosen, cycles_by_cause, .. } = state;
        let (tokens, scope, lost_us) =
            (state.tokens.clone(), state.scope.clone(), state.lost_us.max(0.0));
        self.learn(key, state);
        let scope = ScopeOfClass { class: self.class(PAST_END_CLASS), scope };
        let begun = self.begin(key, scope, tokens);
        self.states.insert(
            key,
            SequenceState {
                fed,
                considered,
                chosen,
                cycles_by_cause,
                lost_us,
                drifted_at: had,
                ..begun
            },
        );
    }

    /// A sequence ended: its class learns from it.
    pub fn close(&mut self, key: SequenceKey) {
        if let Some(state) = self.states.remove(&key) {
            self.learn(key, state);
        }
    }

    /// Learns from a text that ended.
    fn learn(&mut self, key: SequenceKey, state: SequenceState) {
        let drafts = &state.draft_belief;
        state.belief.end(&mut self.classes[state.class].1);
        if drafts.cycles() >= KNOWN_CYCLES {
            self.entropy.learn(drafts.kinds(), &state.entropy);
        }
        let teaches = state.teaches();
        for other in self.states.values_mut() {
            let Some(at) = other.similar.iter().position(|one| one.key == key) else { continue };
            let SimilarSequence { similarity, .. } = other.similar.swap_remove(at);
            if teaches {
                other.ended.add(similarity, drafts.kinds(), drafts.cycles());
            }
        }
        // A sequence that no decision could try teaches nothing about similar ones.
        if teaches && (state.considered || drafts.cycles() > 0) {
            let scope = ScopeOfClass { class: state.class, scope: state.scope };
            self.prompts.of(&scope).learn(state.tokens, drafts.kinds(), drafts.cycles());
        }
    }

    /// Updates the expectations of sequences from the drafts of similar ones.
    pub(super) fn share_lessons(&mut self) {
        if !std::mem::take(&mut self.has_lessons) {
            return;
        }
        let mut lessons = vec![];
        for (key, state) in &self.states {
            // Its own drafts are better evidence than those of similar sequences.
            if state.belief.cycles() > KNOWN_CYCLES {
                continue;
            }
            let mut evidence = state.ended;
            for SimilarSequence { key, similarity } in &state.similar {
                if let Some(other) = self.states.get(key).filter(|other| other.teaches()) {
                    let drafts = &other.draft_belief;
                    evidence.add(*similarity, drafts.kinds(), drafts.cycles());
                }
            }
            lessons.push((*key, evidence));
        }
        for (key, evidence) in lessons {
            let Some(state) = self.states.get_mut(&key) else { continue };
            let class = &self.classes[state.class].1;
            state.belief.set_prior(evidence.with(&class.mixture()));
            state.survival = expected_survival(&state.belief, class);
            state.new_evidence = true;
        }
    }

    /// Whether the entropy of a sequence's next tokens is of use, if it has `had` tokens.
    pub fn wants_entropy(&self, key: SequenceKey, sequence: &Sequence, had: u32) -> bool {
        let is_due = had < FIRST_ENTROPY_TOKENS || had.is_multiple_of(ENTROPY_INTERVAL);
        self.linked && is_due && sequence.permit.may_draft() && self.states.contains_key(&key)
    }

    /// Takes the entropy, in nats, of tokens that the target chose for a sequence.
    pub fn observe_entropy(&mut self, key: SequenceKey, nats: &[f32]) {
        let Some(state) = self.states.get_mut(&key) else { return };
        for nats in nats {
            let bin = target_entropy::bin(*nats);
            state.entropy[bin] += 1;
            state.belief.multiply(&self.entropy.likelihoods(bin));
        }
        state.new_evidence |= !nats.is_empty();
        state.survival = expected_survival(&state.belief, &self.classes[state.class].1);
    }
}
