use super::*;

const V: i32 = 40;

fn rule(sampling: Sampling, history: &[u32]) -> RowRule<'_> {
    RowRule {
        history,
        sampling,
        noise: NoiseKey { seed: 3, sample: 1 },
        position: history.len() as u32,
        id_limit: V as u32,
        mask: None,
        wants_margin: false,
        wants_surprise: false,
    }
}

/// Rows that depend on the place alone, so that a block can be compared with one row after another.
fn row(position: u32) -> Vec<f32> {
    (0..V as u32).map(|id| NoiseKey { seed: 77, sample: 0 }.noise(position, id) * 1.5).collect()
}

fn samplings() -> [Sampling; 5] {
    let warm = Sampling { temperature: 0.8, ..Sampling::GREEDY };
    [
        Sampling::GREEDY,
        Sampling { repetition_penalty: 1.3, ..Sampling::GREEDY },
        warm,
        Sampling { top_p: 0.9, repetition_penalty: 1.1, ..warm },
        Sampling { temperature: 1.5, top_k: 7, min_p: 0.05, repetition_penalty: 0.7, ..warm },
    ]
}

/// The stream of one row after another.
fn stream(sampling: Sampling, prompt: &[u32], length: usize) -> Vec<u32> {
    let mut ids = prompt.to_vec();
    for _ in 0..length {
        let logits = Array::from_slice(&row(ids.len() as u32), &[1, V]);
        let chosen = choose(&logits, &[rule(sampling, &ids)], &[]).expect("a choice");
        ids.push(chosen[0].token);
    }
    ids.split_off(prompt.len())
}

#[test]
fn a_verified_block_gives_the_tokens_of_single_rows() {
    let prompt = [5, 9, 5];
    for sampling in samplings() {
        let tokens = stream(sampling, &prompt, 8);
        for wrong_at in 0..=6 {
            let mut drafts = tokens[..6].to_vec();
            if let Some(draft) = drafts.get_mut(wrong_at) {
                *draft = (*draft + 1) % V as u32;
            }
            let rows: Vec<f32> = (0..7).flat_map(|at| row(3 + at)).collect();
            let logits = Array::from_slice(&rows, &[7, V]);
            for margin in [false, true] {
                let block = Block { rule: RowRule { wants_margin: margin, ..rule(sampling, &prompt) }, drafted: 6 };
                for drafts in [Drafts::OnHost(drafts.clone()), Drafts::InGraph(Array::from_slice(&drafts, &[6]))] {
                    let verdicts = verify(&logits, &[block], &drafts, &[]).expect("choices");
                    let chosen: Vec<u32> = verdicts[0].choices.iter().map(|choice| choice.token).collect();
                    assert_eq!(chosen, tokens[..=wrong_at.min(6)], "{sampling:?} wrong at {wrong_at}");
                }
            }
        }
    }
}

/// −ln of the largest probability, in float64.
fn surprise(row: &[f32]) -> f64 {
    let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    row.iter().map(|logit| (f64::from(*logit) - max).exp()).sum::<f64>().ln()
}

#[test]
fn blocks_of_all_kinds_go_together() {
    let prompt = [1, 2, 3];
    let all: Vec<Vec<u32>> = samplings().iter().map(|sampling| stream(*sampling, &prompt, 4)).collect();
    let (mut rows, mut blocks, mut drafts) = (vec![], vec![], vec![]);
    for (at, (sampling, tokens)) in samplings().iter().zip(&all).enumerate() {
        let drafted = at % 3;
        (0..=drafted as u32).for_each(|at| rows.extend(row(3 + at)));
        drafts.extend_from_slice(&tokens[..drafted]);
        let rule = RowRule { wants_surprise: at % 2 == 1, ..rule(*sampling, &prompt) };
        blocks.push(Block { rule, drafted });
    }
    let logits = Array::from_slice(&rows, &[rows.len() as i32 / V, V]);
    let verdicts = verify(&logits, &blocks, &Drafts::OnHost(drafts), &[]).expect("choices");
    for ((verdict, block), tokens) in verdicts.iter().zip(&blocks).zip(&all) {
        let chosen: Vec<u32> = verdict.choices.iter().map(|choice| choice.token).collect();
        assert_eq!(chosen, tokens[..=block.drafted]);
        let expected: Vec<f64> = (0..=block.drafted as u32).map(|at| surprise(&row(3 + at))).collect();
        let expected = if block.rule.wants_surprise { expected } else { vec![] };
        assert_eq!(verdict.surprises.len(), expected.len());
        let near = |(found, expected): (&f32, &f64)| (f64::from(*found) - expected).abs() < 1e-5 * expected.max(1.0);
        assert!(verdict.surprises.iter().zip(&expected).all(near), "{:?} {expected:?}", verdict.surprises);
    }
    assert!(verify(&logits, &blocks, &Drafts::OnHost(vec![1]), &[]).is_err(), "too few drafts");
}

#[test]
fn a_perfect_draft_is_proposed_as_it_would_be_chosen() {
    let prompt = [5, 9, 5];
    for sampling in samplings() {
        let tokens = stream(sampling, &prompt, 6);
        let rows: Vec<f32> = (0..6).flat_map(|at| row(3 + at)).collect();
        let block = Block { rule: rule(sampling, &prompt), drafted: 6 };
        let drafts = propose(&Array::from_slice(&rows, &[6, V]), &[block]).expect("drafts");
        if let Some(array) = drafts.array() {
            array.eval().expect("computes");
        }
        assert_eq!(drafts.ids().expect("computed"), tokens, "{sampling:?}");
    }
}

#[test]
fn the_best_candidates_of_a_large_vocabulary_are_enough() {
    let wide = 5000;
    let rows: Vec<f32> =
        (0..4).flat_map(|at| (0..wide).map(move |id| NoiseKey { seed: 8, sample: 0 }.noise(at, id) * 2.0)).collect();
    let logits = Array::from_slice(&rows, &[4, wide as i32]);
    let warm = Sampling { temperature: 0.6, top_p: 0.95, ..Sampling::GREEDY };
    let base = RowRule { id_limit: 4990, ..rule(warm, &[1, 2]) };
    let drafts = propose(&logits, &[Block { rule: base, drafted: 4 }]).expect("drafts");
    let expected: Vec<u32> = (0..4)
        .map(|at| {
            let row = &rows[at * wide as usize..(at + 1) * wide as usize];
            let rule = RowRule { position: 2 + at as u32, ..base };
            row::choose(&row[..4990], &rule).expect("a choice").token
        })
        .collect();
    let same = drafts.ids().expect("on the host").iter().zip(&expected).filter(|(a, b)| a == b).count();
    assert!(same >= 3, "{same} of 4: {drafts:?} {expected:?}");
}

#[test]
fn each_id_of_the_history_is_penalized_once() {
    let penalized = Sampling { repetition_penalty: 2.0, ..Sampling::GREEDY };
    // 3.0 / 2 < 2.0; -1.0 · 2 < -1.5.
    let pick = |row: &[f32], history: &[u32]| {
        let rule = RowRule { id_limit: row.len() as u32, ..rule(penalized, history) };
        choose(&Array::from_slice(row, &[1, row.len() as i32]), &[rule], &[]).expect("a choice")[0].token
    };
    assert_eq!(pick(&[3.0, 2.0], &[0]), 1);
    assert_eq!(pick(&[5.0, 2.0], &[0, 0, 0]), 0);
    assert_eq!(pick(&[-1.0, -1.5], &[0]), 1);
    assert_eq!(pick(&[3.0, 2.0], &[1, 900]), 0);
}
