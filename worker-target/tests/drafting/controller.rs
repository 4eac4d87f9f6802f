//! The speculation controller with drafts that are always right or always wrong, and policies.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use paceline_link::End;
use paceline_proto::internal::v1::{LinkPhase, Policy, PolicyForce};
use paceline_proto::v1;
use paceline_vocabulary::link::{Feed, ProposalKind};

use super::Stage;
use super::stage::BOUND;
use super::stage::drafter::{Known, VOCAB, attach, oracle, propose_ids, welcome};

#[test]
fn wrong_drafts_send_a_sequence_to_the_plain_lane_and_save_the_drafter_work() {
    let mut stage = Stage::new();
    stage.reason = v1::RouteReason::Prior;
    let shown = Arc::new(AtomicU64::new(0));
    let rows = shown.clone();
    // Ids that this model never chooses in these streams.
    let all: Vec<u32> = stage.plain.concat();
    let never = (4..VOCAB).find(|id| !all.contains(id)).expect("an id that is not chosen");
    let wrong = move |end: &mut End, feed: &Feed| {
        rows.fetch_add(
            feed.contexts.iter().map(|context| u64::from(context.rows)).sum(),
            Ordering::Relaxed,
        );
        propose_ids(end, feed, |request| vec![never; request.block as usize - 1])
    };
    attach(&stage.worker, 1, Some(welcome(1, ProposalKind::Tokens)), Box::new(wrong));
    stage.until(1, LinkPhase::Up);
    let (request, plain) = (stage.requests[0].clone(), stage.plain[0].clone());
    let (mut cycles, mut tokens) = (0, 0);
    for _ in 0..12 {
        let (route, speculation) = stage.one(&request, &plain);
        assert_ne!(route.reason(), v1::RouteReason::Forced);
        cycles += speculation.cycles;
        tokens += plain.len() as u64;
    }
    assert!(
        cycles > 0 && cycles * 8 < tokens,
        "{cycles} cycles for {tokens} tokens, none of which was drafted"
    );
    // The drafter reads the rows that its few drafts need, which are not all.
    let all_rows = 12 * (request.prompt_ids.len() + plain.len()) as u64;
    assert!(
        shown.load(Ordering::Relaxed) * 4 < all_rows * 3,
        "{} of {all_rows} rows",
        shown.load(Ordering::Relaxed)
    );
}

#[test]
fn right_drafts_are_requested_and_the_figures_report_it() {
    let mut stage = Stage::new();
    stage.reason = v1::RouteReason::Prior;
    let known: Known = Arc::new(Mutex::new(vec![
        [stage.requests[0].prompt_ids.clone(), stage.plain[0].clone()].concat(),
    ]));
    attach(&stage.worker, 1, Some(welcome(1, ProposalKind::Tokens)), oracle(known));
    stage.until(1, LinkPhase::Up);
    let (request, plain) = (stage.requests[0].clone(), stage.plain[0].clone());
    let served: Vec<_> = (0..12).map(|_| stage.one(&request, &plain)).collect();
    let (route, speculation) = served[11];
    assert_eq!(
        (route.lane(), route.reason()),
        (v1::Lane::Speculative, v1::RouteReason::Benefit),
        "{served:?}"
    );
    assert!(speculation.accepted as usize * 2 > plain.len(), "{served:?}");
    // A heartbeat after the last answer has all figures.
    let seen = async {
        loop {
            let beat = stage.beats.message().await.expect("beats").expect("goes on");
            if beat.figures.as_ref().is_some_and(|figures| !figures.classes.is_empty()) {
                return beat;
            }
        }
    };
    let beat = stage
        .runtime
        .block_on(async { tokio::time::timeout(BOUND, seen).await })
        .expect("figures in time");
    let figures = beat.figures.expect("there");
    assert!(
        figures.step.expect("measured").observations > 10
            && figures.draft.expect("measured").observations > 0
    );
    assert_eq!(figures.classes[0].class, "default");
    assert!(figures.classes[0].survival[0] > 0.5);
    assert!(
        figures.by_sequences[0].steps > 10
            && figures.by_sequences.iter().all(|range| range.gain >= 1.0)
    );
    let (times, memory) = (beat.step_times.expect("there"), beat.memory.expect("there"));
    assert!(times.decode_p99_us > 0 && times.prefill_p99_us > 0, "{times:?}");
    assert!(memory.active_bytes > 0 && memory.limit_bytes > memory.active_bytes, "{memory:?}");
}

#[test]
fn a_policy_holds_at_once_and_an_older_one_is_dropped() {
    let mut stage = Stage::new();
    attach(
        &stage.worker,
        1,
        Some(welcome(1, ProposalKind::Tokens)),
        Box::new(|end, feed| propose_ids(end, feed, |_| vec![1])),
    );
    stage.until(1, LinkPhase::Up);
    let (request, plain) = (stage.requests[0].clone(), stage.plain[0].clone());
    let policy = |epoch, force: PolicyForce| {
        Some(Policy {
            epoch,
            force: force.into(),
            max_concurrent: None,
            max_context: None,
            kv_pressure: 0.85,
        })
    };
    let cycles = |stage: &Stage| stage.one(&request, &plain).1.cycles;
    assert!(cycles(&stage) > 20);
    stage.set_policy(policy(3, PolicyForce::Plain)).expect("taken");
    let (route, speculation) = stage.one(&request, &plain);
    assert_eq!(
        (route.lane(), route.reason(), speculation.cycles),
        (v1::Lane::Plain, v1::RouteReason::Forced, 0)
    );
    // An older policy is dropped.
    stage.set_policy(policy(2, PolicyForce::Speculative)).expect("answered");
    assert_eq!(cycles(&stage), 0);
    stage.set_policy(policy(4, PolicyForce::Speculative)).expect("taken");
    stage.reason = v1::RouteReason::Prior;
    assert!(cycles(&stage) > 20, "it drafts although no draft is right");
    // No memory for drafts: one sequence holds more than this share.
    let none = Policy { kv_pressure: 0.0, ..policy(5, PolicyForce::Speculative).expect("one") };
    stage.set_policy(Some(none)).expect("taken");
    let (route, speculation) = stage.one(&request, &plain);
    assert_eq!((route.reason(), speculation.cycles), (v1::RouteReason::KvPressure, 0));
    for bad in [
        None,
        policy(6, PolicyForce::Unspecified),
        Some(Policy { force: 77, ..none }),
        Some(Policy { kv_pressure: f64::NAN, ..none }),
        Some(Policy { kv_pressure: 1.5, ..none }),
    ] {
        let refused = stage.set_policy(bad).expect_err("it is no policy");
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    }
    assert!(stage.runtime.block_on(stage.worker.figures()).figures.is_some());
}
