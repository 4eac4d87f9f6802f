//! Cost of a decision at a cycle border: the lengths of all drafts, sixteen sequences that could
//! all draft. The bound is 50 µs.
//!
//! `cargo bench -p paceline-target-core --bench decide`

use criterion::{Criterion, criterion_group, criterion_main};
use paceline_target_core::{
    Chosen, ClassBytes, Draft, DrafterReadiness, Ledger, Request, Scheduler, SequenceKey, Token,
};
use paceline_vocabulary::{Lane, Millis, Permit, RouteReason};

/// Sequences that decode, with measured prices and beliefs of their own.
fn busy(sequences: usize) -> Scheduler {
    let mut scheduler = Scheduler::new(
        Ledger::new(1 << 40, vec![ClassBytes { positions: 4096, kv: 1, hidden: 0 }]),
        32,
    );
    let permit = Permit {
        lane: Lane::Speculative,
        max_draft: 15,
        reason: RouteReason::Prior,
        policy_epoch: 0,
    };
    let request = Request {
        prompt: vec![7; 20],
        continuation: vec![],
        max_tokens: 4000,
        stop_ids: vec![],
        ignored_ids: vec![],
        deadline: None,
        permit,
        class: "default".into(),
        cache_scope: String::new(),
        images: Default::default(),
        last_turn: None,
    };
    let keys: Vec<SequenceKey> =
        (0..sequences).map(|_| scheduler.add(request.clone()).expect("room")).collect();
    let token = Token { id: 1, margin: 1.0 };
    for round in 0..60 {
        scheduler.start(|_| 0);
        let step = scheduler.next_step(Millis(round), |_| 0);
        let rows: usize = step.parts.iter().map(|part| part.rows).sum();
        let choose = |part: &paceline_target_core::StepPart| Chosen {
            key: part.key,
            tokens: vec![token; 1 + part.drafted.min(part.key.0 as usize)],
        };
        let chosen = step.parts.iter().filter(|part| part.chooses).map(choose).collect();
        scheduler.on_step(&step.parts, chosen, 10_000 + 40 * rows as u64);
        let plan = scheduler.plan(false, |_, _| {
            Some(DrafterReadiness {
                unread_rows: 2,
                can_draft: true,
                has_nothing: false,
                longest: None,
                beyond_context: false,
            })
        });
        for (key, length) in plan.ask {
            scheduler.asked(key, Millis(u64::MAX));
            scheduler.speculation.drafted(keys.len(), 16 * keys.len(), 2_000.0, 0);
            scheduler.proposed(key, length);
        }
    }
    // Verifies the last drafts and requests no others, so that all sequences are at a border.
    while scheduler.iter().any(|(_, sequence)| sequence.draft != Draft::None) {
        scheduler.start(|_| 0);
        let step = scheduler.next_step(Millis(1000), |_| 0);
        let chosen =
            step.parts.iter().map(|part| Chosen { key: part.key, tokens: vec![token] }).collect();
        scheduler.on_step(&step.parts, chosen, 10_000);
    }
    scheduler
}

fn decide(criterion: &mut Criterion) {
    for sequences in [1, 4, 16, 32] {
        let mut scheduler = busy(sequences);
        let name = format!("plan, {sequences} sequences");
        criterion.bench_function(&name, |bench| {
            bench.iter(|| {
                scheduler.plan(false, |_, _| {
                    Some(DrafterReadiness {
                        has_nothing: false,
                        unread_rows: 2,
                        can_draft: true,
                        longest: None,
                        beyond_context: false,
                    })
                })
            });
        });
    }
    let scheduler = busy(16);
    criterion.bench_function("figures", |bench| bench.iter(|| scheduler.speculation.figures()));
}

criterion_group!(benches, decide);
criterion_main!(benches);
