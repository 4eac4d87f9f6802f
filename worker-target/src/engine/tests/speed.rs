//! The engine's cost beside the model: one stream through the engine, against a bare loop of the
//! same calls, in one process. `cargo test --release -p paceline-target --lib -- --ignored
//! --nocapture one_stream`

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use paceline_models::sample::{RowRule, SamplingRule, choose};
use paceline_models::{Batch, Segment, SequenceId, Wants};
use paceline_process::config::WiredMemory;
use paceline_process::worker::{Inbox, Mail, Progress, Pulse, mailbox};
use paceline_system::Clock;
use paceline_system::clock::monotonic_ns;
use paceline_vocabulary::Millis;

use super::fixture;
use crate::cost_file::CostFile;
use crate::engine::{Engine, EngineCommand, EngineParts, LaneForm, WiredState};
use crate::page_store::PageStore;

const TOKENS: usize = 200;
const PROMPT: usize = 100;
/// On a machine with other load, one round differs from the next by a tenth.
const ROUNDS: usize = 27;
/// Least speed of the engine, as a share of the bare loop's.
const LEAST: f64 = 0.97;

/// The prompt of a round. No two have a page in common.
fn prompt(round: usize) -> Vec<u32> {
    (0..PROMPT).map(|at| ((at * 7 + round * 131 + at * at / 3) % 4000) as u32 + 4).collect()
}

/// Runs prompts as they arrive. Sends the ids, and the time of each step after the first, in ns.
fn bare(rounds: &Receiver<usize>, took: &SyncSender<(Vec<u32>, Vec<i64>)>) {
    let model = fixture::load();
    let mut kv = fixture::store(model.as_ref());
    let sequence = SequenceId(0);
    for round in rounds {
        let mut ids = prompt(round);
        kv.open(sequence).expect("it was freed");
        kv.reserve(sequence, (PROMPT + TOKENS) as i32).expect("a place");
        let mut ends_ns = vec![];
        let mut start = 0;
        while ids.len() < PROMPT + TOKENS {
            let length = (ids.len() - start) as i32;
            let segment = Segment { sequence, start: start as i32, length, drafted: 0 };
            let wants = Wants { logit_rows: vec![length - 1], ..Wants::default() };
            let forward = model
                .forward(&Batch::text(ids[start..].to_vec(), vec![segment]), &mut kv, &wants)
                .expect("a forward");
            let rule = RowRule::greedy(&ids, PROMPT);
            let chosen =
                choose(forward.logits.as_ref().expect("wanted"), &[rule], &[]).expect("a choice");
            kv.commit(sequence, ids.len() as i32).expect("commits");
            start = ids.len();
            ids.push(chosen[0].token);
            ends_ns.push(monotonic_ns());
        }
        kv.free(sequence);
        took.send((ids.split_off(PROMPT), steps(&ends_ns))).expect("the test waits");
    }
}

/// An engine as `run` makes it; see [`fixture::drafting`].
fn engine(inbox: Inbox<EngineCommand>, keeps_hidden: bool) {
    let model = fixture::load();
    let kv = fixture::store(model.as_ref());
    let (progress, clock) = (Arc::new(Progress::default()), Clock::start());
    let pulse = Pulse::start(progress.clone(), 1, Duration::from_secs(3600), || {});
    let drafting = fixture::drafting(model.as_ref(), keeps_hidden);
    let scheduler = fixture::scheduler(&kv, &drafting);
    let pages = PageStore::new(&kv, true);
    let cost_file = CostFile::none();
    let parts = EngineParts {
        model,
        kv,
        scheduler,
        drafting,
        pages,
        cost_file,
        wired: WiredState::new(WiredMemory::Off, |_| {}),
        lanes: LaneForm::Fast,
        progress,
        pulse,
        clock,
    };
    Engine::new(parts).run(inbox);
}

/// One stream through an engine: as [`bare`] answers, by the steps' own stamps.
fn through(mail: &Mail<EngineCommand>, round: usize) -> (Vec<u32>, Vec<i64>) {
    let (running, mut rx) =
        fixture::request(&format!("r{round}"), prompt(round), TOKENS as u32, SamplingRule::GREEDY);
    mail.try_send(EngineCommand::Run(Box::new(running))).expect("there is room");
    let (mut ids, mut took_ns, mut last_ns) = (vec![], vec![], None);
    while let Some(batch) = rx.blocking_recv() {
        let batch = batch.expect("served");
        // Tokens of several steps come in one message: each counts as a step of their mean.
        let count = batch.ids.len() as i64;
        if let Some(last_ns) = last_ns.filter(|_| count > 0) {
            took_ns.extend(vec![(batch.step_end_ns - last_ns) / count; batch.ids.len()]);
        }
        last_ns = Some(batch.step_end_ns);
        ids.extend(batch.ids);
    }
    (ids, took_ns)
}

/// Steps of a bare loop, each counted as the mean of its eight: about as many as a message of the
/// engine's has tokens.
fn steps(ends_ns: &[i64]) -> Vec<i64> {
    let eights = ends_ns.windows(9).step_by(8);
    eights.flat_map(|window| [(window[8] - window[0]) / 8; 8]).collect()
}

/// The step time that a fifth of all steps undercut: the cost of a step without other load.
fn undisturbed(mut steps: Vec<i64>) -> f64 {
    steps.sort_unstable();
    steps[steps.len() / 5] as f64
}

/// Figures of several rounds.
#[derive(Clone, Copy)]
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let median = figures[figures.len() / 2];
        Self { median, least: figures[0], most: figures[figures.len() - 1] }
    }
}

#[test]
#[ignore = "soak: a timed figure of a release build"]
fn one_stream_costs_hardly_more_than_a_bare_loop() {
    let thread = |name: &str, run: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().name(name.into()).spawn(run).expect("a thread")
    };
    let (rounds, prompts) = sync_channel(1);
    let (answer, took) = sync_channel(1);
    let mut threads = vec![thread("bare", Box::new(move || bare(&prompts, &answer)))];
    let mut mails = vec![];
    for keeps_hidden in [false, true] {
        let (mail, inbox) = mailbox(8).expect("a mailbox");
        threads.push(thread("engine", Box::new(move || engine(inbox, keeps_hidden))));
        mails.push(mail);
    }
    let mut ratios = [vec![], vec![]];
    let mut step_us = vec![];
    for round in 0..ROUNDS + 2 {
        rounds.send(round).expect("it runs");
        let (ids, bare_steps) = took.recv().expect("it answers");
        let runs: Vec<_> = mails.iter().map(|mail| through(mail, round)).collect();
        let bare_ns = undisturbed(bare_steps);
        for ((found, steps), ratios) in runs.into_iter().zip(&mut ratios) {
            assert_eq!(found, ids);
            // The first ones warm up.
            if round >= 2 {
                ratios.push(bare_ns / undisturbed(steps));
            }
        }
        if round >= 2 {
            step_us.push(bare_ns / 1e3);
        }
    }
    drop(rounds);
    mails.iter().for_each(|mail| {
        mail.try_send(EngineCommand::Stop { until: Millis(0) }).expect("there is room")
    });
    threads.into_iter().for_each(|thread| thread.join().expect("it ends well"));
    let Spread { median, least, most } = Spread::of(step_us);
    println!("bare step, us: median {median:.0}, {least:.0} to {most:.0}");
    for (what, ratios) in
        ["engine over bare loop", "the same with hidden states kept"].into_iter().zip(&ratios)
    {
        let Spread { median, least, most } = Spread::of(ratios.clone());
        println!("{what}: median {median:.3}, {least:.3} to {most:.3}, {} runs", ratios.len());
    }
    let median = Spread::of(ratios[0].clone()).median;
    assert!(median >= LEAST, "{median:.3} of the bare loop's speed");
}
