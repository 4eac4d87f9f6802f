//! Prompts that no cache has: random ids, different for each run, shape and prompt. Pure and
//! deterministic.

use crate::random::below;

/// The use of a prompt. No two uses have the same ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptPlace {
    /// Number of the run; the warm-up has a number of its own.
    pub run: usize,
    /// Number of the shape.
    pub shape: usize,
    /// Number of the prompt in it.
    pub prompt: usize,
}

/// Random ids of the vocabulary. They mean nothing, but their prefill costs as much as that of any
/// text.
pub fn prompt(place: PromptPlace, tokens: usize, vocab: u32) -> Vec<u32> {
    // Seeds of neighbouring uses differ in many bits; the mixing below does the rest.
    let PromptPlace { run, shape, prompt } = place;
    let mut state = ((run as u64) << 40) | ((shape as u64) << 20) | prompt as u64;
    (0..tokens).map(|_| below(&mut state, vocab)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The cache finds whole pages.
    const PAGE: usize = 64;

    #[test]
    fn each_prompt_of_a_table_has_its_own_ids_every_time() {
        let mut pages = HashSet::new();
        for run in 0..5 {
            for shape in 0..9 {
                for index in 0..24 {
                    let place = PromptPlace { run, shape, prompt: index };
                    let ids = prompt(place, 256, 4_096);
                    assert_eq!(ids, prompt(place, 256, 4_096));
                    assert!(ids.chunks(PAGE).all(|page| pages.insert(page.to_vec())), "{place:?}");
                }
            }
        }
    }

    #[test]
    fn ids_cover_the_vocabulary_and_stay_within_it() {
        let place = PromptPlace { run: 1, shape: 2, prompt: 3 };
        let ids = prompt(place, 10_000, 100);
        assert!(ids.iter().all(|id| *id < 100));
        assert!(
            (0..100)
                .all(|id| (60..=150).contains(&ids.iter().filter(|other| **other == id).count()))
        );
        assert_eq!(prompt(place, 3, 1), [0, 0, 0]);
        assert!(prompt(place, 100, u32::MAX).iter().any(|id| *id > u32::MAX / 2));
    }
}
