//! What similar prompts taught, kept apart by traffic class and cache scope: a request learns from
//! the prompts of its own scope and of no other, so nothing that one client asked can be told from
//! how fast another client's request is answered (I9).

use std::sync::Arc;

use super::similar_prompts::Neighbours;

/// Scopes that are remembered at once, each with what its class taught it: some 75 KB each, 5 MB
/// together. The one that was used longest ago is forgotten for a new one, which costs its next
/// requests a few trials.
const MOST: usize = 64;

/// A cache scope within a traffic class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScopeOfClass {
    /// Number of the class.
    pub(super) class: usize,
    /// The cache scope of the request.
    pub(super) scope: Arc<str>,
}

/// Ended prompts of every scope.
#[derive(Clone, Debug, Default)]
pub(super) struct SimilarPrompts {
    /// The one that was used last stands last.
    scopes: Vec<(ScopeOfClass, Neighbours)>,
}

impl SimilarPrompts {
    /// The ended prompts of a scope; none yet of a new one.
    pub(super) fn of(&mut self, scope: &ScopeOfClass) -> &mut Neighbours {
        match self.scopes.iter().position(|(known, _)| known == scope) {
            Some(at) => self.scopes[at..].rotate_left(1),
            None => {
                if self.scopes.len() >= MOST {
                    self.scopes.remove(0);
                }
                self.scopes.push((scope.clone(), Neighbours::default()));
            }
        }
        let last = self.scopes.len() - 1;
        &mut self.scopes[last].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speculation::similar_prompts::{Evidence, Words};
    use crate::speculation::survival::KINDS;

    fn scope(class: usize, scope: &str) -> ScopeOfClass {
        ScopeOfClass { class, scope: scope.into() }
    }

    fn words() -> Words {
        Words::of(&[5, 6, 7, 8])
    }

    fn teach(prompts: &mut SimilarPrompts, scope: &ScopeOfClass) {
        prompts.of(scope).learn(
            words(),
            &std::array::from_fn(|kind| f64::from(u8::from(kind == KINDS - 1))),
            9,
        );
    }

    #[test]
    fn what_a_scope_taught_is_known_in_that_scope_and_class_alone() {
        let mut prompts = SimilarPrompts::default();
        teach(&mut prompts, &scope(0, "a"));
        assert_ne!(prompts.of(&scope(0, "a")).of(&words()), Evidence::default());
        for other in [scope(0, "b"), scope(0, ""), scope(1, "a")] {
            assert_eq!(prompts.of(&other).of(&words()), Evidence::default(), "{other:?}");
        }
    }

    #[test]
    fn the_scope_that_was_used_longest_ago_is_forgotten_first() {
        let mut prompts = SimilarPrompts::default();
        let all: Vec<ScopeOfClass> = (0..MOST).map(|at| scope(0, &at.to_string())).collect();
        all.iter().for_each(|one| teach(&mut prompts, one));
        prompts.of(&all[0]);
        teach(&mut prompts, &scope(0, "new"));
        assert_eq!(prompts.scopes.len(), MOST);
        let mut knows =
            |scope: &ScopeOfClass| prompts.of(scope).of(&words()) != Evidence::default();
        assert!(knows(&all[0]) && knows(&scope(0, "new")) && knows(&all[2]));
        assert!(!knows(&all[1]));
    }
}
