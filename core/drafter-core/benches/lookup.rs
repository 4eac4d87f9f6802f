//! Cost of prompt lookup for one cycle: three committed tokens are read and a proposal is made,
//! after a context of 1,000, 4,000 and 60,000 tokens. A second figure is the cost of reading 4,000
//! tokens. The bound of a cycle after 4,000 tokens is 20 µs.
//!
//! `cargo bench -p paceline-drafter-core --bench lookup`

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use paceline_drafter_core::lookup::LookupSession;

/// Tokens that a cycle commits.
const COMMITTED: usize = 3;

/// Ids as frequent as words are: id n about 1 / n times. One passage in a hundred tokens occurs
/// once more.
fn text(tokens: usize) -> Vec<u32> {
    let (mut text, mut state) = (Vec::with_capacity(tokens), 7u64);
    let mut random = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1u32 << 31)
    };
    while text.len() < tokens {
        if text.len() > 100 && random() < 0.01 {
            let from = (random() * (text.len() - 60) as f64) as usize;
            text.extend_from_within(from..from + 50);
        } else {
            text.push((random() * 10.0).exp() as u32);
        }
    }
    text.truncate(tokens);
    text
}

fn read(text: &[u32]) -> LookupSession {
    let mut session = LookupSession::new(0);
    session.append(0, text);
    session
}

fn lookup(criterion: &mut Criterion) {
    let more = text(100_000);
    for tokens in [1_000, 4_000, 60_000] {
        let mut session = read(&more[..tokens]);
        let mut rest = more[tokens..].chunks(COMMITTED).cycle();
        criterion.bench_function(&format!("a cycle after {tokens} tokens"), |bench| {
            bench.iter(|| {
                session.append(session.end(), rest.next().expect("it repeats"));
                // Criterion runs many more cycles than an answer has.
                if session.n_tokens() > tokens + 1_000 {
                    session = read(&more[..tokens]);
                }
                (session.propose(15, 0.0), session.proposes_from())
            });
        });
    }
    criterion.bench_function("reading 4000 tokens", |bench| {
        bench.iter_batched(|| &more[..4_000], read, BatchSize::SmallInput);
    });
}

criterion_group!(benches, lookup);
criterion_main!(benches);
