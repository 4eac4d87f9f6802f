//! Steps on the demo target without the engine: whether a step prepares the graph of the next step,
//! and whether the next step uses it.

use std::cell::Cell;

use paceline_models::sample::SamplingRule;
use paceline_models::{Batch, Wants};
use paceline_target_core::{DrafterReadiness, Sequence};
use paceline_vocabulary::Millis;

use super::*;
use crate::engine::tests::fixture::{self, Outputs, WrappedTarget};

/// Counts forwards.
#[derive(Default)]
struct Counter {
    all: Cell<usize>,
    /// Those whose ids are not known yet: the graph of the next step, built while a step runs.
    ahead: Cell<usize>,
}

impl Outputs for Counter {
    fn forward(
        &self,
        batch: &Batch,
        _wants: &Wants,
        forward: Forward,
    ) -> Result<Forward, ModelError> {
        self.all.set(self.all.get() + 1);
        self.ahead.set(self.ahead.get() + usize::from(batch.pending.is_some()));
        Ok(forward)
    }
}

/// Requests that run together, one step after the other until all have ended.
struct Run {
    model: WrappedTarget<Counter>,
    kv: KvStore,
    scheduler: Scheduler,
    drafting: Drafting,
    running: HashMap<SequenceKey, RunningRequest>,
    answers: HashMap<SequenceKey, Vec<u32>>,
}

impl Run {
    fn new(requests: &[(u32, SamplingRule)]) -> Self {
        Self::of(fixture::load(), requests)
    }

    fn of(model: Box<dyn Target>, requests: &[(u32, SamplingRule)]) -> Self {
        let ids = model.info().vocab as u32 - 4;
        let model = WrappedTarget { model, outputs: Counter::default() };
        // The drafter of the fixture reads layers that the smaller target has not.
        let keeps_hidden = model.info().n_layers > 6;
        let (kv, drafting) = (fixture::store(&model), fixture::drafting(&model, keeps_hidden));
        let mut scheduler = fixture::scheduler(&kv, &drafting);
        let mut running = HashMap::new();
        for (at, (tokens, sampling)) in requests.iter().enumerate() {
            let prompt =
                (0..20 + at as u32).map(|place| 4 + (place * 7 + 131 * at as u32) % ids).collect();
            let (one, _) = fixture::request(&format!("r{at}"), prompt, *tokens, *sampling);
            running
                .insert(scheduler.add(one.request.scheduling.clone()).expect("there is room"), one);
        }
        let mut run = Self { model, kv, scheduler, drafting, running, answers: HashMap::new() };
        for key in run.scheduler.start(|_| 0).keys {
            run.kv.open(SequenceId(key.0)).expect("new");
            run.kv
                .reserve(SequenceId(key.0), run.scheduler.ledger().room_of(key) as i32)
                .expect("there is room");
        }
        run
    }

    /// Runs a step. Returns how many sequences it had, and whether all of them decoded.
    fn step(&mut self) -> (usize, bool) {
        let mut parts = self.scheduler.next_step(Millis(0), |_| 0).parts;
        parts.sort_by_key(|part| self.kv.order(SequenceId(part.key.0)));
        let inputs = StepInputs {
            scheduler: &self.scheduler,
            running: &self.running,
            features: &ImageFeatures::default(),
            form: ImageForm::Indexed,
            parts: &parts,
        };
        let outcome = super::run(&self.model, &mut self.kv, &mut self.drafting, inputs);
        let outcome = outcome.expect("a step");
        let decodes = parts.iter().all(|part| !part.prefill);
        for emission in self.scheduler.on_step(&parts, outcome.chosen, 1000) {
            self.answers
                .entry(emission.key)
                .or_default()
                .extend(emission.tokens.iter().map(|token| token.id));
            if emission.end.is_some() {
                self.kv.free(SequenceId(emission.key.0));
                self.drafting.close(emission.key);
            }
        }
        (parts.len(), decodes)
    }

    /// Forwards so far.
    fn forwards(&self) -> usize {
        self.model.outputs.all.get()
    }

    /// Outputs that the next step wants for a drafter that reads hidden states of these layers.
    fn wants(&mut self, feature_layers: &[usize]) -> Wants {
        let parts = self.scheduler.next_step(Millis(0), |_| 0).parts;
        let inputs = StepInputs {
            scheduler: &self.scheduler,
            running: &self.running,
            features: &ImageFeatures::default(),
            form: ImageForm::Indexed,
            parts: &parts,
        };
        StepRows::of(inputs, feature_layers).expect("rows of running sequences").wants
    }

    /// Reports cycles that lose, until the sequences are parked.
    fn park(&mut self) {
        let part = |(key, one): (SequenceKey, &Sequence)| {
            let start = one.committed;
            StepPart { key, start, rows: 1, chooses: true, prefill: false, drafted: 0 }
        };
        let parts: Vec<StepPart> = self.scheduler.iter().map(part).collect();
        let ready = DrafterReadiness { can_draft: true, ..DrafterReadiness::default() };
        for _ in 0..100 {
            if !self.scheduler.keeps_hidden_states(parts[0].key) {
                return;
            }
            self.scheduler.plan(false, |_, _| Some(ready));
            // Beside a draft: the time counts for the cycle and not as the cost of a step.
            self.scheduler.speculation.stepped(&parts, &[], 9_000.0, true);
        }
        panic!("expected cycles that lose to park the sequences, found hidden states wanted");
    }

    fn answers(mut self) -> Vec<Vec<u32>> {
        while !self.scheduler.is_empty() {
            self.step();
        }
        let mut answers: Vec<_> = self.answers.into_iter().collect();
        answers.sort_by_key(|(key, _)| key.0);
        answers.into_iter().map(|(_, ids)| ids).collect()
    }
}

#[test]
fn a_plain_step_runs_the_graph_that_the_step_before_prepared() {
    let mut run = Run::new(&[
        (30, SamplingRule::GREEDY),
        (30, SamplingRule::GREEDY),
        (20, SamplingRule::GREEDY),
    ]);
    let (mut steps, mut made, mut plain) = (0, 0, 0);
    while !run.scheduler.is_empty() {
        let was_staged = run.kv.has_staged();
        let before = run.forwards();
        let (sequences, decodes) = run.step();
        let now = run.forwards() - before;
        (steps, made, plain) = (steps + 1, made + now, plain + usize::from(decodes));
        // None for itself, where there was one, and one for the next unless a sequence has its last
        // token.
        assert_eq!(
            now,
            usize::from(!was_staged) + usize::from(run.kv.has_staged()),
            "step {steps} of {sequences}"
        );
    }
    assert_eq!(plain, 29, "all decode together");
    assert_eq!(made, steps, "no graph was made in vain");
    let tokens: usize = run.answers.values().map(Vec::len).sum();
    assert_eq!(tokens, 80);
}

/// Requests whose tokens the graph chooses, and such whose tokens the host chooses.
fn mixed() -> [(u32, SamplingRule); 3] {
    let warm = SamplingRule { temperature: 0.8, ..SamplingRule::GREEDY };
    let penalized =
        SamplingRule { top_p: 0.9, repetition_penalty: 1.2, frequency_penalty: 0.3, ..warm };
    [(40, SamplingRule::GREEDY), (25, warm), (33, penalized)]
}

#[test]
fn steps_that_choose_on_the_host_prepare_the_next_graph_while_they_run() {
    let warm = SamplingRule { temperature: 0.8, ..SamplingRule::GREEDY };
    for requests in [vec![(30, warm)], vec![(30, SamplingRule::GREEDY), (30, warm)]] {
        let mut run = Run::new(&requests);
        let (mut steps, mut taken) = (0, 0);
        while !run.scheduler.is_empty() {
            let was_staged = run.kv.has_staged();
            let (all, ahead) = (run.forwards(), run.model.outputs.ahead.get());
            run.step();
            let ahead = run.model.outputs.ahead.get() - ahead;
            assert_eq!(run.forwards() - all - ahead, usize::from(!was_staged), "step {steps}");
            assert_eq!(ahead, usize::from(run.kv.has_staged()), "step {steps}");
            (steps, taken) = (steps + 1, taken + usize::from(was_staged));
        }
        assert_eq!(run.forwards(), steps, "no graph was made in vain");
        assert_eq!(taken, 28, "all of 29 plain steps but the first one were prepared");
    }
}

#[test]
fn prepared_steps_choose_the_tokens_of_steps_that_were_not() {
    for load in [fixture::load, fixture::load_hybrid] {
        let prepared = Run::of(load(), &mixed()).answers();
        let mut run = Run::of(load(), &mixed());
        while !run.scheduler.is_empty() {
            // Drops what the step before has prepared.
            assert!(run.kv.take_staged::<()>(|()| true).is_none());
            run.step();
        }
        assert_eq!(prepared, run.answers());
        assert!(prepared.iter().map(Vec::len).eq([40, 25, 33]));
    }
}

#[test]
fn a_target_with_states_runs_prepared_steps_and_answers_as_alone() {
    let requests = [
        (40, SamplingRule::GREEDY),
        (25, SamplingRule::GREEDY),
        (33, SamplingRule { temperature: 0.8, ..SamplingRule::GREEDY }),
    ];
    let of = |requests| Run::of(fixture::load_hybrid(), requests);
    let together = of(&requests).answers();
    let mut greedy = of(&requests[..2]);
    let mut prepared = 0;
    while !greedy.scheduler.is_empty() {
        prepared += usize::from(greedy.kv.has_staged());
        greedy.step();
    }
    assert!(prepared > 20, "{prepared}");
    assert_eq!(together[..2], greedy.answers()[..]);
    assert_eq!(together[..1], of(&requests[..1]).answers()[..]);
}

#[test]
fn answers_equal_those_of_requests_that_run_alone() {
    let requests = [
        (40, SamplingRule::GREEDY),
        (25, SamplingRule::GREEDY),
        (33, SamplingRule { temperature: 0.8, ..SamplingRule::GREEDY }),
    ];
    let together = Run::new(&requests).answers();
    let greedy = Run::new(&requests[..2]).answers();
    assert_eq!(together[..2], greedy[..]);
    assert!(together.iter().map(Vec::len).eq([40, 25, 33]));
}

#[test]
fn a_parked_step_wants_what_a_step_without_a_drafter_wants() {
    let requests = [(60, SamplingRule::GREEDY), (40, SamplingRule::GREEDY)];
    let mut run = Run::new(&requests);
    for _ in 0..4 {
        run.step();
    }
    run.scheduler.speculation.set_linked(true, false);
    let layers = run.drafting.feature_layers().to_vec();
    assert!(!layers.is_empty() && run.wants(&layers).hidden_states.is_some());
    run.park();
    let without = run.wants(&[]);
    assert!(without.hidden_states.is_none() && run.wants(&layers) == without);
    let collected = |run: &Run| {
        run.running.keys().map(|key| run.drafting.window(*key).expect("there").end()).max()
    };
    let before = collected(&run);
    for _ in 0..4 {
        run.step();
    }
    assert_eq!(collected(&run), before, "no hidden state is copied");
    assert_eq!(run.answers(), Run::new(&requests).answers());
}
