//! Embeddings of bonus tokens for a drafter that takes them.

use paceline_models::sample::SamplingRule;

use super::prompt;
use super::test_drafter::Drafts;
use super::test_engine::{TestEngine, TestRequest};

/// A drafter may be late on a busy machine, and is then asked for few drafts. A run in which it was is
/// repeated, this many times at most.
const RUNS: usize = 20;
/// The mask row of the link, and a first token that is chosen before the link is up.
const WITHOUT_CYCLES: usize = 2;

/// Ids that are embedded apart from a step's graph while a drafter of hidden rows is asked for drafts.
fn embedded(engine: &mut TestEngine, sampling: SamplingRule) -> usize {
    engine.faults.lock().expect("not poisoned").embedded = 0;
    let link = engine.link(Drafts::Rows, vec![]);
    let request = TestRequest { prompt: prompt(3), sampling, margins: false, logprobs: None };
    let answers = engine.ask(&[request], None);
    assert!(answers[0].end.is_ok(), "{answers:?}");
    drop(link);
    engine.faults.lock().expect("not poisoned").embedded
}

#[test]
fn a_greedy_bonus_token_is_embedded_by_the_graph_that_chooses_it() {
    let mut engine = TestEngine::open();
    let warm = SamplingRule { temperature: 0.8, ..SamplingRule::GREEDY };
    let asked = (0..RUNS).any(|_| {
        let greedy = embedded(&mut engine, SamplingRule::GREEDY);
        assert!(greedy <= WITHOUT_CYCLES, "{greedy} ids were embedded apart");
        // A token that the host chooses is embedded once it is chosen. So drafts were asked for.
        embedded(&mut engine, warm) > 2 * WITHOUT_CYCLES
    });
    assert!(asked, "expected drafts to be asked for in one of {RUNS} runs");
}
