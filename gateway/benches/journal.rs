//! CPU time that the journal of a request costs for each token (bound: 2 µs).
//! `cargo bench -p paceline-gateway --bench journal`

use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use paceline_gateway::inference::journal::{Journal, JournalSpace};
use paceline_vocabulary::generation::Generation;

/// Tokens of an answer.
const TOKENS: u32 = 1_000;

/// An answer whose tokens come one at a time, as those of a plain lane do.
fn record(criterion: &mut Criterion) {
    let space = Arc::new(JournalSpace::default());
    let generation = Generation { prompt_ids: vec![7; 500], ..Generation::default() };
    let begun = || (Journal::new(&space, generation.clone(), 1), Vec::new());
    let mut group = criterion.benchmark_group("journal");
    group.throughput(Throughput::Elements(TOKENS.into()));
    group.bench_function("tokens of an answer", |bencher| {
        bencher.iter_batched_ref(
            begun,
            |(journal, sent)| {
                (0..TOKENS).for_each(|id| assert!(journal.record(sent, &[id]), "there is room"));
            },
            // All journals of a batch are in the space at once.
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

criterion_group!(benches, record);
criterion_main!(benches);
