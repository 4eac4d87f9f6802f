//! The prefix cache of the real worker: what it finds, what it never finds, and what it costs other
//! requests.

#[cfg(any(debug_assertions, feature = "test-graph"))]
mod graphs;
#[path = "../stage/mod.rs"]
mod stage;
mod states;
mod windows;

use std::path::Path;

use paceline_proto::internal::v1::{Done, Generation, KvUse, TokenBatch};
use paceline_proto::status::{Reason, ReasonStatus as _};

use stage::{STAMP, Worker, generate, generation, ids, open, plain_permit, tiny};

const PAGE: usize = 64;

/// A prompt of this model, the same for the same seed.
fn prompt(length: usize, seed: u32) -> Vec<u32> {
    (0..length as u32).map(|at| 4 + (at * at + at / 5 + seed * 13) % 280).collect()
}

fn done(batches: &[TokenBatch]) -> Done {
    batches.last().and_then(|batch| batch.done).expect("the last batch ends it")
}

struct Stage {
    worker: Worker,
    requests: u32,
}

impl Stage {
    async fn new(environment: &[(&str, &str)]) -> Self {
        Self::of(&tiny(), environment).await
    }

    async fn of(model: &Path, environment: &[(&str, &str)]) -> Self {
        let mut worker = Worker::start(model, environment);
        worker.ready().await;
        Self { worker, requests: 0 }
    }

    fn request(&mut self, prompt: &[u32], max_tokens: u32) -> Generation {
        self.requests += 1;
        generation(&format!("r{}", self.requests), prompt, max_tokens)
    }

    /// Ids of the answer, and how many tokens of the prompt were found.
    async fn ask(&mut self, prompt: &[u32], max_tokens: u32, scope: &str) -> (Vec<u32>, u32) {
        let request = Generation { cache_scope: scope.into(), ..self.request(prompt, max_tokens) };
        let batches = self.worker.generate(request).await.expect("served");
        (ids(&batches), done(&batches).cached_tokens)
    }

    async fn kv(&self) -> KvUse {
        self.worker.figures().await.kv.expect("kv")
    }
}

#[tokio::test]
async fn cached_pages_give_the_same_tokens() {
    let mut without = Stage::new(&[("PACELINE_KV__PREFIX_CACHE", "false")]).await;
    let mut with = Stage::new(&[]).await;
    let whole = prompt(400, 1);
    let mut page_bytes = 0;
    // Ends of pages, and one to each side; the last id is always read.
    for length in [5, 63, 64, 65, 127, 128, 129, 300, 400] {
        let prompt = &whole[..length];
        let (expected, none) = without.ask(prompt, 20, "").await;
        assert_eq!(none, 0);
        for again in [false, true] {
            let (found, cached) = with.ask(prompt, 20, "").await;
            assert_eq!(found, expected, "{length} ids, again: {again}");
            if again {
                assert_eq!(cached as usize, (length - 1) / PAGE * PAGE, "{length} ids");
            }
        }
        let kv = with.kv().await;
        // The whole pages of all that lies there: its rows are all but the last token's.
        let pages = ((length + 19) / PAGE) as u64;
        page_bytes = kv.prefix_bytes.checked_div(pages).unwrap_or(page_bytes);
        assert!(
            kv.prefix_bytes.is_multiple_of(page_bytes.max(1))
                && (kv.held_bytes, kv.tap_bytes) == (0, 0),
            "{kv:?}"
        );
    }
    assert_eq!(without.kv().await.prefix_bytes, 0);
    // Another id in the first page, in a middle one, in the last.
    for (at, expected) in [(3, 0), (130, 128), (399, 384)] {
        let mut other = whole.clone();
        other[at] = other[at] % 280 + 5;
        assert_eq!(with.ask(&other, 3, "").await.1, expected, "another id at {at}");
    }
}

#[tokio::test]
async fn scopes_never_share() {
    let mut stage = Stage::new(&[]).await;
    let prompt = prompt(200, 2);
    for scope in ["", "one", "two"] {
        assert_eq!(stage.ask(&prompt, 4, scope).await.1, 0, "{scope:?} has read nothing yet");
        assert_eq!(stage.ask(&prompt, 4, scope).await.1, 192, "{scope:?}");
    }
}

#[tokio::test]
async fn the_next_turn_finds_the_generated_pages() {
    let mut stage = Stage::new(&[]).await;
    let first = prompt(100, 3);
    let (answer, _) = stage.ask(&first, 120, "").await;
    // 219 rows lie in the store when it ends: the last token was never read.
    let mut second = [first.clone(), answer.clone()].concat();
    second.extend(prompt(40, 4));
    let (_, cached) = stage.ask(&second, 5, "").await;
    assert_eq!(cached, 192);
    // A stream that is resumed finds what it gave before; of its prompt is counted what is prompt.
    let request =
        Generation { continuation_ids: answer[..100].to_vec(), ..stage.request(&first, 120) };
    let batches = stage.worker.generate(request).await.expect("served");
    assert_eq!((ids(&batches), done(&batches).cached_tokens), (answer[100..].to_vec(), 100));
}

#[tokio::test]
async fn an_abandoned_request_leaves_its_pages() {
    let mut stage = Stage::new(&[]).await;
    let prompt = prompt(150, 5);
    let request = stage.request(&prompt, 300);
    let opened = open(stage.worker.client.clone(), request, plain_permit()).await;
    let mut stream = opened.expect("served");
    stream.message().await.expect("tokens");
    drop(stream);
    assert_eq!(stage.ask(&prompt, 3, "").await.1, 128);
}

#[tokio::test]
async fn requests_with_one_beginning_compute_it_once() {
    let mut stage = Stage::new(&[]).await;
    let common = prompt(320, 6);
    let requests: Vec<Generation> = (0..6)
        .map(|at| {
            let own = [common.clone(), prompt(20 + at, 7 + at as u32)].concat();
            stage.request(&own, 30)
        })
        .collect();
    let mut alone = vec![];
    {
        let mut without = Stage::new(&[("PACELINE_KV__PREFIX_CACHE", "false")]).await;
        for request in &requests {
            alone.push(ids(&without.worker.generate(request.clone()).await.expect("served")));
            without.requests += 1;
        }
    }
    let running: Vec<_> = requests
        .into_iter()
        .map(|request| {
            paceline_process::task::spawn("request", generate(stage.worker.client.clone(), request))
        })
        .collect();
    let mut cached = vec![];
    for (handle, alone) in running.into_iter().zip(alone) {
        let batches = handle.await.expect("runs").expect("served");
        assert_eq!(ids(&batches), alone);
        cached.push(done(&batches).cached_tokens);
    }
    cached.sort_unstable();
    // One of them read it for all.
    assert_eq!(cached, [0, 320, 320, 320, 320, 320]);
}

#[tokio::test]
async fn a_small_budget_serves_every_request() {
    // Two of the longest sequences at once, and room for three: whatever is kept goes when it is
    // needed.
    let about = {
        let mut stage = Stage::new(&[]).await;
        let request = paceline_proto::internal::v1::DescribeRequest { stamp: Some(STAMP) };
        stage.worker.client.describe(request).await.expect("described").into_inner()
    };
    let longest = about.kv_classes.last().expect("classes").bytes;
    let budget = (3 * longest).to_string();
    let mut stage = Stage::new(&[("PACELINE_KV__BUDGET_BYTES", &budget)]).await;
    let mut hits = 0;
    for round in 0..40 {
        let prompt = prompt(250 + round % 7 * 20, round as u32 / 3 % 5);
        let outcome = stage.request(&prompt, 100);
        let both = [
            outcome.clone(),
            Generation { request_id: format!("{}b", outcome.request_id), ..outcome },
        ];
        let running = both.map(|request| {
            paceline_process::task::spawn("request", generate(stage.worker.client.clone(), request))
        });
        for handle in running {
            let batches = handle
                .await
                .expect("runs")
                .unwrap_or_else(|status| panic!("{status}, {:?}", Reason::of(&status)));
            assert_eq!(ids(&batches).len(), 100);
            hits += u32::from(done(&batches).cached_tokens > 0);
        }
        let kv = stage.kv().await;
        assert!(kv.prefix_bytes > 0 && kv.prefix_bytes <= 3 * longest / 2, "{kv:?}");
    }
    assert!(hits >= 10, "{hits} of 80 requests found something");
    // A sequence that needs all of it gets all of it.
    let mut one = Stage::new(&[("PACELINE_KV__BUDGET_BYTES", &longest.to_string())]).await;
    for round in 0..6 {
        let (tokens, _) = one.ask(&prompt(390, round), 112, "").await;
        assert_eq!(tokens.len(), 112);
        let kv = one.kv().await;
        assert!(kv.prefix_bytes > 0 && kv.prefix_bytes <= longest / 2, "{kv:?}");
    }
}
