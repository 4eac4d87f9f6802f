mod constraint;
mod faulty;

use super::*;

const V: i32 = 40;

/// A way to choose tokens.
#[derive(Clone, Debug)]
struct Way {
    sampling: SamplingRule,
    bias: Vec<(u32, f32)>,
    stop_ids: Vec<u32>,
    min_tokens: u32,
}

impl Way {
    fn of(sampling: SamplingRule) -> Self {
        Self { sampling, bias: vec![], stop_ids: vec![], min_tokens: 0 }
    }

    fn rule<'a>(&'a self, history: &'a [u32], prompt_len: usize) -> RowRule<'a> {
        RowRule {
            sampling: self.sampling,
            bias: &self.bias,
            stop_ids: &self.stop_ids,
            min_tokens: self.min_tokens,
            noise: NoiseKey { seed: 3, sample: 1 },
            id_limit: V as u32,
            ..RowRule::greedy(history, prompt_len)
        }
    }
}

/// Rows that depend on the place alone, so that a block can be compared with one row after another.
fn row(position: u32) -> Vec<f32> {
    (0..V as u32).map(|id| NoiseKey { seed: 77, sample: 0 }.noise(position, id) * 1.5).collect()
}

/// Every processor alone, and together.
fn ways() -> Vec<Way> {
    let warm = SamplingRule { temperature: 0.8, ..SamplingRule::GREEDY };
    let mut ways = [
        SamplingRule::GREEDY,
        SamplingRule { repetition_penalty: 1.3, ..SamplingRule::GREEDY },
        warm,
        SamplingRule { top_p: 0.9, repetition_penalty: 1.1, ..warm },
        SamplingRule { temperature: 1.5, top_k: 7, min_p: 0.05, repetition_penalty: 0.7, ..warm },
        SamplingRule { presence_penalty: 2.0, ..SamplingRule::GREEDY },
        SamplingRule { frequency_penalty: 1.5, ..warm },
        SamplingRule { presence_penalty: -2.0, frequency_penalty: -1.0, ..warm },
    ]
    .map(Way::of)
    .to_vec();
    let best = |position| {
        (0..V as u32)
            .max_by(|a, b| row(position)[*a as usize].total_cmp(&row(position)[*b as usize]))
    };
    let bests: Vec<u32> = (3..9).filter_map(best).collect();
    ways.push(Way { bias: vec![(7, 100.0)], ..Way::of(SamplingRule::GREEDY) });
    let mut forbidden: Vec<(u32, f32)> = bests.iter().map(|id| (*id, -100.0)).collect();
    forbidden.sort_by_key(|(id, _)| *id);
    forbidden.dedup_by_key(|(id, _)| *id);
    ways.push(Way { bias: forbidden, ..Way::of(SamplingRule::GREEDY) });
    ways.push(Way { stop_ids: bests.clone(), min_tokens: 3, ..Way::of(SamplingRule::GREEDY) });
    let all = SamplingRule {
        repetition_penalty: 1.1,
        presence_penalty: 0.5,
        frequency_penalty: 0.3,
        top_p: 0.95,
        ..warm
    };
    ways.push(Way {
        sampling: all,
        bias: vec![(2, 1.5), (9, -3.0)],
        stop_ids: bests,
        min_tokens: 4,
    });
    ways
}

/// The stream of one row after another.
fn stream(way: &Way, prompt: &[u32], length: usize) -> Vec<u32> {
    let mut ids = prompt.to_vec();
    for _ in 0..length {
        let logits = Array::from_slice(&row(ids.len() as u32), &[1, V]);
        let chosen = choose(&logits, &[way.rule(&ids, prompt.len())], &[]).expect("a choice");
        ids.push(chosen[0].token);
    }
    ids.split_off(prompt.len())
}

#[test]
fn a_verified_block_gives_the_tokens_of_single_rows() {
    let prompt = [5, 9, 5];
    for way in ways() {
        let tokens = stream(&way, &prompt, 8);
        for wrong_at in 0..=6 {
            let mut drafts = tokens[..6].to_vec();
            if let Some(draft) = drafts.get_mut(wrong_at) {
                *draft = (*draft + 1) % V as u32;
            }
            let rows: Vec<f32> = (0..7).flat_map(|at| row(3 + at)).collect();
            let logits = Array::from_slice(&rows, &[7, V]);
            for reports in [false, true] {
                let base = way.rule(&prompt, prompt.len());
                let rule =
                    RowRule { wants_margin: reports, logprobs: reports.then_some(3), ..base };
                for drafts in [
                    DraftedIds::OnHost(drafts.clone()),
                    DraftedIds::InGraph(Array::from_slice(&drafts, &[6])),
                ] {
                    let verdicts = verify(&logits, &[Block { rule, drafted: 6 }], &drafts, &[])
                        .expect("choices");
                    let chosen: Vec<u32> =
                        verdicts[0].choices.iter().map(|choice| choice.token).collect();
                    assert_eq!(chosen, tokens[..=wrong_at.min(6)], "{way:?} wrong at {wrong_at}");
                    assert_eq!(verdicts[0].logprobs.len(), if reports { chosen.len() } else { 0 });
                    let mut ids = prompt.to_vec();
                    for (logprobs, token) in verdicts[0].logprobs.iter().zip(&chosen) {
                        let rule = RowRule { logprobs: Some(3), ..way.rule(&ids, prompt.len()) };
                        let logits = Array::from_slice(&row(ids.len() as u32), &[1, V]);
                        let alone = verify(
                            &logits,
                            &[Block { rule, drafted: 0 }],
                            &DraftedIds::OnHost(vec![]),
                            &[],
                        )
                        .expect("a choice");
                        assert_eq!(alone[0].logprobs, std::slice::from_ref(logprobs), "{way:?}");
                        ids.push(*token);
                    }
                }
            }
        }
    }
}

#[test]
fn penalties_bias_and_bans_change_their_logits_alone() {
    let prompt = [5, 9, 5];
    let plain = stream(&Way::of(SamplingRule::GREEDY), &prompt, 12);
    let forced = Way { bias: vec![(7, 100.0)], ..Way::of(SamplingRule::GREEDY) };
    assert_eq!(stream(&forced, &prompt, 5), [7; 5]);
    // Two ids of prompt, then what was generated: only that counts.
    let rule = |way: &Way, history: &[u32], row: &[f32]| {
        let rule = RowRule { id_limit: row.len() as u32, ..way.rule(history, 2) };
        choose(&Array::from_slice(row, &[1, row.len() as i32]), &[rule], &[]).expect("a choice")[0]
            .token
    };
    let presence = Way::of(SamplingRule { presence_penalty: 1.0, ..SamplingRule::GREEDY });
    assert_eq!(rule(&presence, &[0, 0], &[2.0, 1.5]), 0);
    assert_eq!(rule(&presence, &[0, 0, 0], &[2.0, 1.5]), 1);
    assert_eq!(rule(&presence, &[0, 0, 0, 0, 0], &[2.6, 1.5]), 0, "once, however often");
    let frequency = Way::of(SamplingRule { frequency_penalty: 0.5, ..SamplingRule::GREEDY });
    assert_eq!(rule(&frequency, &[1, 1, 0], &[2.1, 1.5]), 0);
    assert_eq!(rule(&frequency, &[1, 1, 0, 0], &[2.1, 1.5]), 1);
    let late = Way { stop_ids: plain.clone(), min_tokens: 4, ..Way::of(SamplingRule::GREEDY) };
    let found = stream(&late, &prompt, 8);
    assert!(found[..4].iter().all(|id| !plain.contains(id)), "{found:?} {plain:?}");
    assert_eq!(found[4..], plain[4..8], "nothing is barred any more");
    // All barred: an error, and no token.
    let all =
        Way { stop_ids: (0..V as u32).collect(), min_tokens: 1, ..Way::of(SamplingRule::GREEDY) };
    let logits = Array::from_slice(&row(3), &[1, V]);
    assert!(choose(&logits, &[all.rule(&prompt, 3)], &[]).is_err());
}

#[test]
fn log_probabilities_ignore_top_k_top_p_and_min_p() {
    let way = Way::of(SamplingRule { temperature: 0.5, top_k: 1, ..SamplingRule::GREEDY });
    let of = |way: &Way, row: &[f32], count| {
        let rule =
            RowRule { id_limit: row.len() as u32, logprobs: Some(count), ..way.rule(&[], 0) };
        let logits = Array::from_slice(row, &[1, row.len() as i32]);
        let mut verdicts =
            verify(&logits, &[Block { rule, drafted: 0 }], &DraftedIds::OnHost(vec![]), &[])
                .expect("a choice");
        verdicts.remove(0).logprobs.remove(0)
    };
    // Softmax of (0, 2, 2): top-k 1 takes nothing away from it.
    let found = of(&way, &[0.0, 1.0, 1.0], 2);
    let expected = -(2.0f64 + (-2.0f64).exp()).ln();
    assert!((f64::from(found.chosen) - expected).abs() < 1e-6);
    assert_eq!(
        found.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
        [1, 2],
        "equal ones by lower id"
    );
    // At temperature 0 as if it were 1; none asked for is the chosen one's alone; more than there
    // are, as many as there are.
    let greedy = Way::of(SamplingRule::GREEDY);
    let found = of(&greedy, &[0.0, 1.0], 0);
    assert!(
        (f64::from(found.chosen) + (1.0 + (-1.0f64).exp()).ln()).abs() < 1e-6
            && found.top.is_empty()
    );
    assert_eq!(of(&greedy, &[0.0, 1.0], 20).top.len(), 2);
    assert_eq!(of(&greedy, &[f32::NEG_INFINITY, 1.0], 20).top, [(1, 0.0)]);
    // As cold as can be: still numbers.
    let cold = Way::of(SamplingRule { temperature: 1e-40, ..SamplingRule::GREEDY });
    let found = of(&cold, &[0.0, 1.0], 2);
    assert!(found.chosen == 0.0 && found.top == [(1, 0.0), (0, f32::MIN)], "{found:?}");
}

#[test]
fn greedy_and_sampled_blocks_share_a_verification() {
    let prompt = [1, 2, 3];
    let ways = ways();
    let all: Vec<Vec<u32>> = ways.iter().map(|way| stream(way, &prompt, 4)).collect();
    let (mut rows, mut blocks, mut drafts) = (vec![], vec![], vec![]);
    for (at, (way, tokens)) in ways.iter().zip(&all).enumerate() {
        let drafted = at % 3;
        (0..=drafted as u32).for_each(|at| rows.extend(row(3 + at)));
        drafts.extend_from_slice(&tokens[..drafted]);
        blocks.push(Block { rule: way.rule(&prompt, prompt.len()), drafted });
    }
    let logits = Array::from_slice(&rows, &[rows.len() as i32 / V, V]);
    let verdicts = verify(&logits, &blocks, &DraftedIds::OnHost(drafts), &[]).expect("choices");
    for ((verdict, block), tokens) in verdicts.iter().zip(&blocks).zip(&all) {
        let chosen: Vec<u32> = verdict.choices.iter().map(|choice| choice.token).collect();
        assert_eq!(chosen, tokens[..=block.drafted]);
    }
    assert!(verify(&logits, &blocks, &DraftedIds::OnHost(vec![1]), &[]).is_err(), "too few drafts");
}

#[test]
fn a_perfect_draft_is_proposed_as_it_would_be_chosen() {
    let prompt = [5, 9, 5];
    for way in ways() {
        let tokens = stream(&way, &prompt, 6);
        let rows: Vec<f32> = (0..6).flat_map(|at| row(3 + at)).collect();
        let block = Block { rule: way.rule(&prompt, prompt.len()), drafted: 6 };
        let drafts = propose(&Array::from_slice(&rows, &[6, V]), &[block]).expect("drafts");
        if let Some(array) = drafts.in_graph() {
            array.eval().expect("computes");
        }
        assert_eq!(drafts.ids().expect("computed"), tokens, "{way:?}");
    }
}

#[test]
fn the_best_candidates_of_a_large_vocabulary_are_enough() {
    let wide = 5000;
    let rows: Vec<f32> = (0..4)
        .flat_map(|at| (0..wide).map(move |id| NoiseKey { seed: 8, sample: 0 }.noise(at, id) * 2.0))
        .collect();
    let logits = Array::from_slice(&rows, &[4, wide as i32]);
    let warm = SamplingRule { temperature: 0.6, top_p: 0.95, ..SamplingRule::GREEDY };
    let warm = Way::of(warm);
    let base = RowRule { id_limit: 4990, ..warm.rule(&[1, 2], 2) };
    let drafts = propose(&logits, &[Block { rule: base, drafted: 4 }]).expect("drafts");
    let expected: Vec<u32> = (0..4)
        .map(|at| {
            let row = &rows[at * wide as usize..(at + 1) * wide as usize];
            let rule = RowRule { position: 2 + at as u32, ..base };
            row::choose(&row[..4990], &rule).expect("a choice").token
        })
        .collect();
    // What a bias raises is found although it is not among the best.
    let forced = Way { bias: vec![(4321, 100.0)], ..warm.clone() };
    let rule = RowRule { id_limit: 4990, ..forced.rule(&[1, 2], 2) };
    let found = propose(&logits, &[Block { rule, drafted: 2 }, Block { rule: base, drafted: 2 }])
        .expect("drafts");
    assert_eq!(found.ids().expect("on the host")[..2], [4321; 2]);
    let same =
        drafts.ids().expect("on the host").iter().zip(&expected).filter(|(a, b)| a == b).count();
    assert!(same >= 3, "{same} of 4: {drafts:?} {expected:?}");
}

#[test]
fn each_id_of_the_history_is_penalized_once() {
    let penalized = Way::of(SamplingRule { repetition_penalty: 2.0, ..SamplingRule::GREEDY });
    // 3.0 / 2 < 2.0; -1.0 · 2 < -1.5.
    let pick = |row: &[f32], history: &[u32]| {
        let rule = RowRule { id_limit: row.len() as u32, ..penalized.rule(history, history.len()) };
        choose(&Array::from_slice(row, &[1, row.len() as i32]), &[rule], &[]).expect("a choice")[0]
            .token
    };
    assert_eq!(pick(&[3.0, 2.0], &[0]), 1);
    assert_eq!(pick(&[5.0, 2.0], &[0, 0, 0]), 0);
    assert_eq!(pick(&[-1.0, -1.5], &[0]), 1);
    assert_eq!(pick(&[3.0, 2.0], &[1, 900]), 0);
}

#[test]
fn a_selection_serves_only_blocks_that_ask_for_what_it_computed() {
    let logits =
        Array::from_slice(&(0..2 * V).map(|at| (at * 7 % 11) as f32).collect::<Vec<_>>(), &[2, V]);
    let greedy = Way::of(SamplingRule::GREEDY);
    let warm = Way::of(SamplingRule { temperature: 0.8, ..SamplingRule::GREEDY });
    fn block(way: &Way) -> Block<'_> {
        Block { rule: way.rule(&[1, 2], 1), drafted: 0 }
    }
    let asked = [block(&greedy), block(&greedy)];
    let selection = TokenSelection::of(&logits, &asked).expect("made");
    assert!(selection.ids().expect("lazy").is_some() && selection.serve(&asked));
    let limited = Block { rule: RowRule { id_limit: 30, ..asked[1].rule }, drafted: 0 };
    let others = [
        vec![asked[0]],
        vec![asked[0], asked[0], asked[1]],
        vec![asked[0], limited],
        vec![asked[0], block(&warm)],
        vec![asked[0], Block { rule: RowRule { wants_margin: true, ..asked[1].rule }, drafted: 0 }],
    ];
    for other in &others {
        assert!(!selection.serve(other), "{other:?}");
    }
    let both = [asked[0], block(&warm)];
    let mixed = TokenSelection::of(&logits, &both).expect("made");
    assert!(mixed.ids().expect("lazy").is_none(), "not all of them are chosen in the graph");
    let on_host = TokenSelection::of(&logits, &[both[1]; 2]).expect("made");
    for (selection, of_graph, of_both, of_host) in [
        (&selection, true, false, false),
        (&mixed, true, true, true),
        (&on_host, false, false, true),
    ] {
        let served = [&asked, &both, &[both[1]; 2]].map(|blocks| selection.serve(blocks));
        assert_eq!(served, [of_graph, of_both, of_host]);
    }
    assert!(!mixed.serve(&[limited, both[1]]), "another limit");
}
