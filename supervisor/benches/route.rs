//! Cost of one decision (issue's bound: 2 µs). `cargo bench -p paceline-supervisor`.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use paceline_supervisor_core::routing::{DrafterState, Measured, Policy, Signals, route};
use paceline_vocabulary::RouteWish;

fn bench(criterion: &mut Criterion) {
    let policy = Policy::default();
    let pays = Measured { up_to: 16, steps: 1_000, gain: 1.3 };
    // The longest way through: nothing is denied before the last guard.
    let signals = Signals {
        drafter: DrafterState::Ready { max_draft: 15 },
        images: false,
        drafter_images: false,
        place: 9,
        running: 9,
        context_tokens: 1_000,
        kv_pressure: 0.5,
        by_sequences: pays,
        by_context: pays,
        probe: false,
    };
    criterion.bench_function("route", |bencher| {
        bencher.iter(|| route(black_box(RouteWish::Auto), black_box(&signals), black_box(&policy)));
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
