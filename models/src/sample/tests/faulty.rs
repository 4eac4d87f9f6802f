//! Rows of which no token can be chosen: they end their own block and leave the others as they are.

use super::*;

const V: usize = 100;

const WARM: SamplingRule = SamplingRule { temperature: 0.8, ..SamplingRule::GREEDY };

/// Numbers that make a row faulty, at some of its ids.
const FAULTS: [(&str, f32); 2] = [("NaN", f32::NAN), ("infinity", f32::INFINITY)];

fn row(position: u32) -> Vec<f32> {
    (0..V as u32).map(|id| NoiseKey { seed: 77, sample: 0 }.noise(position, id) * 1.5).collect()
}

/// Every way that a choice is made: in the graph, and on the host with each report and processor.
fn rules() -> Vec<(&'static str, RowRule<'static>)> {
    let base = RowRule {
        noise: NoiseKey { seed: 3, sample: 1 },
        id_limit: V as u32 - 4,
        ..RowRule::greedy(&[5, 9, 5], 3)
    };
    let penalties = SamplingRule {
        repetition_penalty: 0.01,
        presence_penalty: -2.0,
        frequency_penalty: 2.0,
        top_p: 0.9,
        ..WARM
    };
    vec![
        ("greedy", base),
        ("greedy with a margin", RowRule { wants_margin: true, ..base }),
        ("greedy with log-probabilities", RowRule { logprobs: Some(3), ..base }),
        ("greedy with bans", RowRule { stop_ids: &[1, 2], min_tokens: 9, ..base }),
        ("sampled", RowRule { sampling: WARM, ..base }),
        (
            "sampled from few",
            RowRule { sampling: SamplingRule { top_k: 5, min_p: 0.1, ..WARM }, ..base },
        ),
        (
            "penalized",
            RowRule { sampling: penalties, bias: &[(7, 100.0)], logprobs: Some(2), ..base },
        ),
    ]
}

fn run(rows: &[Vec<f32>], blocks: &[Block<'_>], drafts: &[u32]) -> Vec<VerifiedBlock> {
    let logits = Array::from_slice(&rows.concat(), &[rows.len() as i32, V as i32]);
    verify(&logits, blocks, &DraftedIds::OnHost(drafts.to_vec()), &[])
        .expect("a verdict for each block")
}

fn tokens(verdict: &VerifiedBlock) -> Vec<u32> {
    verdict.choices.iter().map(|choice| choice.token).collect()
}

#[test]
fn a_faulty_row_ends_its_own_block_and_no_other() {
    let blocks: Vec<Block<'_>> =
        rules().into_iter().map(|(_, rule)| Block { rule, drafted: 0 }).collect();
    let sound: Vec<Vec<f32>> = (0..blocks.len() as u32).map(|at| row(at + 3)).collect();
    let alone: Vec<VerifiedBlock> = sound
        .iter()
        .zip(&blocks)
        .map(|(row, block)| run(std::slice::from_ref(row), &[*block], &[]).remove(0))
        .collect();
    for (what, fault) in FAULTS {
        for id in [0, 1, 40, V - 5] {
            for (poisoned, (name, _)) in rules().into_iter().enumerate() {
                let mut rows = sound.clone();
                rows[poisoned][id] = fault;
                for (at, verdict) in run(&rows, &blocks, &[]).into_iter().enumerate() {
                    let expected = match at == poisoned {
                        true => VerifiedBlock { faulty: true, ..VerifiedBlock::default() },
                        false => alone[at].clone(),
                    };
                    assert_eq!(verdict, expected, "{what} at id {id} of \"{name}\": block {at}");
                }
            }
        }
    }
}

#[test]
fn a_nan_in_the_padding_of_the_vocabulary_is_no_fault() {
    for (_, fault) in FAULTS {
        for (name, rule) in rules() {
            let mut padded = row(3);
            padded[V - 4..].fill(fault);
            let block = [Block { rule, drafted: 0 }];
            let (found, expected) = (run(&[padded], &block, &[]), run(&[row(3)], &block, &[]));
            assert_eq!(found, expected, "{name}");
        }
    }
}

#[test]
fn a_row_without_an_allowed_finite_logit_is_faulty_and_single_bans_are_not() {
    for (name, rule) in rules() {
        let block = [Block { rule, drafted: 0 }];
        let banned = vec![f32::NEG_INFINITY; V];
        assert!(run(std::slice::from_ref(&banned), &block, &[])[0].faulty, "{name}");
        let mut one = banned;
        one[33] = -2.0;
        let verdict = run(&[one], &block, &[]).remove(0);
        assert_eq!((tokens(&verdict), verdict.faulty), (vec![33], false), "{name}");
    }
}

#[test]
fn a_penalty_or_bias_that_overflows_is_a_fault_and_never_an_arbitrary_id() {
    // Logits that no model gives: with them the legal extremes overflow.
    let mut huge = vec![0.0; V];
    huge[5] = 3.0e38;
    let base = RowRule::greedy(&[5, 9, 5], 3);
    for sampling in [SamplingRule::GREEDY, WARM] {
        let rule =
            RowRule { sampling: SamplingRule { repetition_penalty: 0.01, ..sampling }, ..base };
        assert!(run(&[huge.clone()], &[Block { rule, drafted: 0 }], &[])[0].faulty, "{sampling:?}");
        // The same penalty on logits such as models have.
        assert!(!run(&[row(3)], &[Block { rule, drafted: 0 }], &[])[0].faulty, "{sampling:?}");
    }
}

#[test]
fn a_verified_block_keeps_the_tokens_before_its_faulty_row() {
    for (name, rule) in rules() {
        // What is chosen, row by row, with what was chosen before in the history.
        let mut history = rule.history.to_vec();
        let mut chosen = vec![];
        for at in 0..5 {
            let rule = RowRule { history: &history, position: rule.position + at, ..rule };
            let token = tokens(&run(&[row(at + 3)], &[Block { rule, drafted: 0 }], &[])[0])[0];
            chosen.push(token);
            history.push(token);
        }
        let beside = Block { rule: RowRule::greedy(&[], 0), drafted: 1 };
        for faulty_at in 0..5 {
            for wrong_at in 0..=4 {
                let mut rows: Vec<Vec<f32>> = (0..5).map(|at| row(at + 3)).collect();
                rows[faulty_at].fill(f32::NAN);
                let mut drafts = chosen[..4].to_vec();
                if let Some(draft) = drafts.get_mut(wrong_at) {
                    *draft = (*draft + 1) % (V as u32 - 4);
                }
                // Behind it another block, whose rows and drafts are its own.
                rows.extend([row(20), row(21)]);
                drafts.push(0);
                let verdicts = run(&rows, &[Block { rule, drafted: 4 }, beside], &drafts);
                let (kept, faulty) = match faulty_at <= wrong_at {
                    true => (faulty_at, true),
                    // Behind a draft that is not accepted no row is read.
                    false => (wrong_at + 1, false),
                };
                let what = format!("{name}: faulty at {faulty_at}, wrong at {wrong_at}");
                assert_eq!(
                    (tokens(&verdicts[0]), verdicts[0].faulty),
                    (chosen[..kept].to_vec(), faulty),
                    "{what}"
                );
                assert_eq!(
                    verdicts[0].logprobs.len(),
                    if rule.logprobs.is_some() { kept } else { 0 },
                    "{what}"
                );
                let best = |row: Vec<f32>| {
                    (0..V).max_by(|a, b| row[*a].total_cmp(&row[*b])).expect("not empty") as u32
                };
                assert_eq!(tokens(&verdicts[1])[0], best(row(20)), "{what}");
            }
        }
    }
}

#[test]
fn drafts_from_nan_rows_are_ids_of_the_vocabulary() {
    let wide = 3000;
    let limit = 2990;
    for (what, fault) in FAULTS.into_iter().chain([("minus infinity", f32::NEG_INFINITY)]) {
        // All of it, the greater part, and single ids.
        for every in [1, 2, 700] {
            let rows: Vec<f32> = (0..3)
                .flat_map(|at| (0..wide).map(move |id| (at, id)))
                .map(|(at, id)| {
                    if id % every == 0 {
                        fault
                    } else {
                        NoiseKey { seed: 8, sample: 0 }.noise(at, id)
                    }
                })
                .collect();
            let logits = Array::from_slice(&rows, &[3, wide as i32]);
            for (name, rule) in rules() {
                let rule = RowRule { id_limit: limit, ..rule };
                let drafts = propose(&logits, &[Block { rule, drafted: 3 }]).expect("drafts");
                let ids = drafts.on_host().expect("computed");
                assert!(
                    ids.len() == 3 && ids.iter().all(|id| *id < limit),
                    "{what}, every {every}, {name}: {ids:?}"
                );
            }
        }
    }
}

#[test]
fn the_lowest_temperatures_choose_like_greedy_in_steps_drafts_and_log_probabilities() {
    // The least number above 0, the least normal one, and some that overflow a quotient with usual
    // logits.
    for temperature in [f32::from_bits(1), 1e-45, 1e-40, f32::MIN_POSITIVE, 1e-37, 1e-30] {
        for (top_k, top_p, min_p) in
            [(0, 1.0, 0.0), (3, 1.0, 0.0), (0, f32::MIN_POSITIVE, 0.0), (2, 0.5, 1.0)]
        {
            for shift in [0.0, -50.0] {
                // The best logit is above, at and below 0.
                let best = row(3).into_iter().fold(f32::NEG_INFINITY, f32::max);
                for shift in [shift, -best] {
                    let logits: Vec<f32> = row(3).into_iter().map(|logit| logit + shift).collect();
                    let greedy = RowRule { logprobs: Some(3), ..RowRule::greedy(&[], 0) };
                    let sampling =
                        SamplingRule { temperature, top_k, top_p, min_p, ..SamplingRule::GREEDY };
                    let cold = RowRule { sampling, wants_margin: true, ..greedy };
                    let expected = tokens(
                        &run(
                            std::slice::from_ref(&logits),
                            &[Block { rule: greedy, drafted: 0 }],
                            &[],
                        )[0],
                    );
                    let verdict = run(
                        std::slice::from_ref(&logits),
                        &[Block { rule: cold, drafted: 0 }],
                        &[],
                    )
                    .remove(0);
                    let what = format!("{sampling:?}, shifted by {shift}");
                    assert_eq!(
                        (tokens(&verdict), verdict.faulty),
                        (expected.clone(), false),
                        "{what}"
                    );
                    assert!(!verdict.choices[0].margin.is_nan(), "{what}");
                    let logprobs = &verdict.logprobs[0];
                    assert!(
                        logprobs.chosen == 0.0 && logprobs.top.iter().all(|(_, of)| of.is_finite()),
                        "{what}: {logprobs:?}"
                    );
                    let drafts = propose(
                        &Array::from_slice(&logits, &[1, V as i32]),
                        &[Block { rule: cold, drafted: 1 }],
                    );
                    assert_eq!(
                        drafts.expect("drafts").on_host().expect("computed"),
                        expected,
                        "{what}"
                    );
                }
            }
        }
    }
}

#[test]
fn extremes_of_every_parameter_that_the_ranges_allow_give_a_token() {
    let ends = |least: f32, most: f32| [least, most];
    for temperature in [0.0, f32::from_bits(1), 100.0] {
        for repetition_penalty in ends(SamplingRule::LEAST_REPETITION_PENALTY, 10.0) {
            for presence_penalty in ends(-2.0, 2.0) {
                for frequency_penalty in ends(-2.0, 2.0) {
                    for bias in ends(-100.0, 100.0) {
                        for (top_p, min_p, top_a) in
                            [(f32::from_bits(1), 1.0, 1.0), (1.0, 0.0, 0.0), (1.0, 0.0, 1.0)]
                        {
                            let sampling = SamplingRule {
                                temperature,
                                repetition_penalty,
                                presence_penalty,
                                frequency_penalty,
                                top_p,
                                min_p,
                                top_a,
                                top_k: 0,
                            };
                            assert_eq!(sampling.check(), Ok(()));
                            // A history that has the ids many thousand times.
                            let history: Vec<u32> = (0..40_000).map(|at| at % 7).collect();
                            let bias: Vec<(u32, f32)> =
                                (0..V as u32).map(|id| (id, bias)).collect();
                            let rule = RowRule {
                                sampling,
                                bias: &bias,
                                logprobs: Some(20),
                                ..RowRule::greedy(&history, 10)
                            };
                            let verdict =
                                run(&[row(3)], &[Block { rule, drafted: 0 }], &[]).remove(0);
                            assert!(!verdict.faulty && verdict.choices.len() == 1, "{sampling:?}");
                            let finite =
                                verdict.logprobs[0].top.iter().all(|(_, of)| of.is_finite());
                            assert!(
                                finite && verdict.logprobs[0].chosen.is_finite(),
                                "{sampling:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_repetition_penalty_out_of_its_range_is_named() {
    for value in [f32::NAN, 0.0, 1e-39, 0.009_999, 10.001, f32::INFINITY, -1.0] {
        let wrong =
            SamplingRule { repetition_penalty: value, ..WARM }.check().expect_err("out of range");
        assert_eq!(wrong.name, "repetition_penalty");
        assert!(wrong.expected.contains("from 0.01 to 10"), "{wrong:?}");
        assert_eq!(wrong.found.to_bits(), value.to_bits());
    }
    for value in [0.01, 1.0, 10.0] {
        assert_eq!(SamplingRule { repetition_penalty: value, ..WARM }.check(), Ok(()));
    }
}
