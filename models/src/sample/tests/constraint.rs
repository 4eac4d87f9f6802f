//! Constraints: every way to choose, in plain steps and in blocks.

use std::sync::Arc;

use super::*;

const V: i32 = 70;

/// Allows ids whose distance to the sum of all ids before them is a multiple of `step`.
#[derive(Debug)]
struct Multiples {
    history: Vec<u32>,
    step: u32,
}

impl Multiples {
    fn allows(&self, path: &[u32], id: u32) -> bool {
        let sum: u32 = self.history.iter().chain(path).sum();
        (id + sum).is_multiple_of(self.step)
    }
}

impl Constraint for Multiples {
    fn allowed(&self, path: &[u32]) -> Arc<IdSet> {
        let ids: Vec<u32> = (0..V as u32).filter(|id| self.allows(path, *id)).collect();
        Arc::new(IdSet::of_ids(&ids))
    }
}

fn row(position: u32) -> Vec<f32> {
    (0..V as u32).map(|id| NoiseKey { seed: 77, sample: 0 }.noise(position, id) * 1.5).collect()
}

fn rows(first: u32, count: u32) -> Array {
    let cells: Vec<f32> = (first..first + count).flat_map(row).collect();
    Array::from_slice(&cells, &[count as i32, V])
}

fn ways() -> Vec<SamplingRule> {
    let warm = SamplingRule { temperature: 0.9, ..SamplingRule::GREEDY };
    vec![
        SamplingRule::GREEDY,
        SamplingRule { repetition_penalty: 1.4, presence_penalty: 0.5, ..SamplingRule::GREEDY },
        warm,
        SamplingRule { top_k: 3, ..warm },
        SamplingRule { top_p: 0.6, min_p: 0.1, frequency_penalty: 1.0, ..warm },
    ]
}

fn with<'a>(history: &'a [u32], sampling: SamplingRule, constraint: &'a Multiples) -> RowRule<'a> {
    RowRule {
        sampling,
        noise: NoiseKey { seed: 5, sample: 2 },
        id_limit: V as u32 - 2,
        logprobs: Some(4),
        constraint: Some(constraint),
        ..RowRule::greedy(history, 2)
    }
}

/// Ids chosen one after another, each with its row alone.
fn plain(sampling: SamplingRule, step: u32, count: usize) -> Vec<u32> {
    let mut ids = vec![4, 9];
    for _ in 0..count {
        let constraint = Multiples { history: ids.clone(), step };
        let rule = with(&ids, sampling, &constraint);
        let position = ids.len() as u32;
        let token = choose(&rows(position, 1), &[rule], &[]).expect("a choice")[0].token;
        assert!(constraint.allows(&[], token), "{sampling:?} chose {token}");
        ids.push(token);
    }
    ids.split_off(2)
}

#[test]
fn a_block_chooses_under_a_constraint_what_plain_steps_choose() {
    for (sampling, step) in ways().into_iter().flat_map(|way| [2, 5, 13].map(|step| (way, step))) {
        let expected = plain(sampling, step, 6);
        let history = [4, 9];
        let constraint = Multiples { history: history.to_vec(), step };
        for wrong_from in 0..=5 {
            let mut drafts = expected[..5].to_vec();
            // The constraint excludes the wrong draft and does not allow any path through it.
            if let Some(draft) = drafts.get_mut(wrong_from) {
                *draft += 1;
            }
            let block = Block { rule: with(&history, sampling, &constraint), drafted: 5 };
            let drafts = DraftedIds::OnHost(drafts);
            let verdict = verify(&rows(2, 6), &[block], &drafts, &[]).expect("choices").remove(0);
            let chosen: Vec<u32> = verdict.choices.iter().map(|choice| choice.token).collect();
            assert_eq!(chosen, expected[..=wrong_from], "{sampling:?} {step} {wrong_from}");
            assert!(!verdict.faulty);
        }
    }
}

#[test]
fn log_probabilities_are_of_allowed_ids_alone() {
    let history = [4, 9];
    let constraint = Multiples { history: history.to_vec(), step: 20 };
    let rule = with(&history, SamplingRule::GREEDY, &constraint);
    let block = Block { rule, drafted: 0 };
    let verdict =
        verify(&rows(2, 1), &[block], &DraftedIds::OnHost(vec![]), &[]).expect("choices").remove(0);
    let top = &verdict.logprobs[0].top;
    let ids: Vec<u32> = (0..V as u32 - 2).filter(|id| constraint.allows(&[], *id)).collect();
    assert_eq!(top.len(), ids.len().min(4));
    assert!(top.iter().all(|(id, _)| ids.contains(id)), "{top:?}");
    let mass: f64 = top.iter().map(|(_, of)| f64::from(*of).exp()).sum();
    assert!((mass - 1.0).abs() < 1e-5, "{mass}");
}

#[test]
fn drafts_of_the_host_follow_the_constraint() {
    for (sampling, step) in ways().into_iter().flat_map(|way| [2, 5].map(|step| (way, step))) {
        let history = [4, 9];
        let constraint = Multiples { history: history.to_vec(), step };
        let block = Block { rule: with(&history, sampling, &constraint), drafted: 4 };
        let drafts = propose(&rows(2, 4), &[block]).expect("drafts").on_host().expect("ids");
        for at in 0..4 {
            assert!(constraint.allows(&drafts[..at], drafts[at]), "{sampling:?}: {drafts:?}");
        }
    }
}

#[derive(Debug)]
struct Nothing;

impl Constraint for Nothing {
    fn allowed(&self, _: &[u32]) -> Arc<IdSet> {
        Arc::new(IdSet::default())
    }
}

#[test]
fn a_row_without_an_allowed_id_is_faulty_alone() {
    let history = [4, 9];
    for sampling in ways() {
        let rule = RowRule { sampling, constraint: Some(&Nothing), ..RowRule::greedy(&history, 2) };
        let free = Block { rule: RowRule::greedy(&history, 2), drafted: 0 };
        let blocks = [Block { rule, drafted: 0 }, free];
        let verdicts =
            verify(&rows(2, 2), &blocks, &DraftedIds::OnHost(vec![]), &[]).expect("verdicts");
        assert!(verdicts[0].faulty && verdicts[0].choices.is_empty());
        assert!(!verdicts[1].faulty && verdicts[1].choices.len() == 1);
    }
}

#[test]
fn the_mask_covers_words_that_are_full_empty_and_mixed() {
    let mut set = IdSet::of_words(vec![u32::MAX, 0, 0b101]);
    set.insert(97);
    set.insert(98);
    set.remove(98);
    set.remove(u32::MAX);
    let mut row = vec![1.0; 100];
    set.mask(&mut row);
    for (id, logit) in (0..).zip(row) {
        assert_eq!(logit == 1.0, set.contains(id), "{id}");
        assert_eq!(set.contains(id), id < 32 || id == 64 || id == 66 || id == 97, "{id}");
    }
    assert!(!set.contains(u32::MAX));
}
