//! The memories of ended prompts, one for each traffic class and cache scope. A request learns from
//! the prompts of its own scope and of no other. So the speed of one client's answer does not show
//! what another client asked (I9).

use std::sync::Arc;

use super::similar_prompts::PromptMemory;

/// Scopes that are remembered at once. A memory takes about 75 KB, so all of them take 5 MB. A new
/// scope evicts the least recently used one, whose next requests then need a few more trials.
const MAX_SCOPES: usize = 64;

/// A cache scope within a traffic class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScopeOfClass {
    /// Number of the class.
    pub(super) class: usize,
    /// The cache scope of the request.
    pub(super) scope: Arc<str>,
}

/// The memories of all scopes.
#[derive(Clone, Debug, Default)]
pub(super) struct PromptMemories {
    /// Ordered by use; the most recently used one is the last.
    scopes: Vec<(ScopeOfClass, PromptMemory)>,
}

impl PromptMemories {
    /// The memory of a scope. A new scope gets an empty one.
    pub(super) fn of(&mut self, scope: &ScopeOfClass) -> &mut PromptMemory {
        match self.scopes.iter().position(|(known, _)| known == scope) {
            Some(at) => self.scopes[at..].rotate_left(1),
            None => {
                if self.scopes.len() >= MAX_SCOPES {
                    self.scopes.remove(0);
                }
                self.scopes.push((scope.clone(), PromptMemory::default()));
            }
        }
        let last = self.scopes.len() - 1;
        &mut self.scopes[last].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speculation::similar_prompts::{Evidence, TokenSet};
    use crate::speculation::survival::KINDS;

    fn scope(class: usize, scope: &str) -> ScopeOfClass {
        ScopeOfClass { class, scope: scope.into() }
    }

    fn tokens() -> TokenSet {
        TokenSet::of(&[5, 6, 7, 8])
    }

    fn teach(prompts: &mut PromptMemories, scope: &ScopeOfClass) {
        prompts.of(scope).learn(
            tokens(),
            &std::array::from_fn(|kind| f64::from(u8::from(kind == KINDS - 1))),
            9,
        );
    }

    #[test]
    fn a_scope_learns_from_its_own_prompts_alone() {
        let mut prompts = PromptMemories::default();
        teach(&mut prompts, &scope(0, "a"));
        assert_ne!(prompts.of(&scope(0, "a")).of(&tokens()), Evidence::default());
        for other in [scope(0, "b"), scope(0, ""), scope(1, "a")] {
            assert_eq!(prompts.of(&other).of(&tokens()), Evidence::default(), "{other:?}");
        }
    }

    #[test]
    fn the_least_recently_used_scope_is_forgotten_first() {
        let mut prompts = PromptMemories::default();
        let all: Vec<ScopeOfClass> = (0..MAX_SCOPES).map(|at| scope(0, &at.to_string())).collect();
        all.iter().for_each(|one| teach(&mut prompts, one));
        prompts.of(&all[0]);
        teach(&mut prompts, &scope(0, "new"));
        assert_eq!(prompts.scopes.len(), MAX_SCOPES);
        let mut knows =
            |scope: &ScopeOfClass| prompts.of(scope).of(&tokens()) != Evidence::default();
        assert!(knows(&all[0]) && knows(&scope(0, "new")) && knows(&all[2]));
        assert!(!knows(&all[1]));
    }
}
