//! Answers that are held to a schema: each is valid by another implementation of JSON schema, and
//! every way to serve it gives the same tokens (I1): alone, beside others, continued from any place,
//! after a preemption, and with drafts that are right, wrong in the middle, guessed or hidden rows.

#![cfg(feature = "mlx")]
#![expect(clippy::print_stdout, reason = "figures of a run, beside what it asserts")]

mod stage;

use std::sync::Arc;

use futures::future::join_all;
use paceline_link::End;
use paceline_proto::internal::v1::grammar_part::Content;
use paceline_proto::internal::v1::{
    DescribeRequest, Generation, Grammar, GrammarPart, Heartbeat, LinkPhase, Permit, SamplingRule,
    ThoughtBudget, ThoughtEndStep, TokenBatch,
};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1;
use paceline_vocabulary::link::{Feed, ProposalKind};
use serde_json::{Map, Value, json};
use tonic::Streaming;

use stage::drafter::{
    BLOCK, HIDDEN, Known, Script, VOCAB, attach, oracle, propose_ids, propose_rows, roll, welcome,
};
use stage::{
    GREEDY, STAMP, Worker, cases, finish, generate, generation, ids, open, tiny, until_link,
};

/// The id that ends answers.
const END: u32 = 256;
/// Pieces of JSON that are tokens of their own, after the bytes and the end.
const PIECES: [&str; 15] = [
    "{\"", "\": ", ", \"", "\"}", "\": \"", "true", "false", "null", "[\"", "\"]", ", ", "}, {\"",
    "kind", "é", "12",
];
/// Most tokens of an answer. Every schema has a longest answer, which is shorter.
const TOKENS: u32 = 440;

/// Requests that run at once: as many as a target takes.
const TOGETHER: usize = 16;

/// The tiny checkpoint with a tokenizer of bytes and pieces. Ids after them are padding.
fn checkpoint() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for entry in std::fs::read_dir(tiny()).expect("the checkpoint") {
        let entry = entry.expect("a file");
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).expect("copied");
    }
    let vocab = words().into_iter().enumerate().filter(|(id, _)| *id != END as usize);
    let vocab: Map<String, Value> = vocab
        .map(|(id, word)| (word.iter().map(|byte| character(*byte)).collect(), Value::from(id)))
        .collect();
    let tokenizer = json!({
        "added_tokens": [{"id": END, "content": "<|end|>", "special": true}],
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "decoder": {"type": "ByteLevel"},
    });
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).expect("written");
    dir
}

/// The bytes of every token.
fn words() -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    words.push(vec![]);
    words.extend(PIECES.iter().map(|piece| piece.as_bytes().to_vec()));
    words
}

/// The character of a byte in a byte-level tokenizer.
fn character(byte: u8) -> char {
    let own = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    match own(byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|other| !own(*other)).count() as u32;
            char::from_u32(0x100 + before).expect("a character")
        }
    }
}

fn text(ids: &[u32]) -> String {
    let words = words();
    let bytes = ids.iter().filter(|id| **id != END).flat_map(|id| words[*id as usize].clone());
    String::from_utf8(bytes.collect()).expect("text")
}

/// A random schema whose answers are short.
fn schema(seed: &mut u64, depth: u32) -> Value {
    let kinds = if depth == 0 { 6 } else { 9 };
    match roll(seed) % kinds {
        0 => json!({"type": "integer", "minimum": -5, "maximum": 120}),
        1 => json!({"type": "boolean"}),
        2 => json!({"enum": ["kind", "a \"b\"", 12, null, [1, "é"]]}),
        3 => json!({"type": "string", "maxLength": 5}),
        4 => json!({"type": "string", "pattern": "^[a-c]{2}-[0-9]{1,3}$"}),
        5 => json!({"const": {"kind": true, "é": [null]}}),
        6 => json!({
            "type": "array", "maxItems": 3, "minItems": roll(seed) % 2, "items": schema(seed, 0),
        }),
        7 => json!({"anyOf": [schema(seed, depth - 1), {"type": "null"}]}),
        _ => object(seed, depth - 1),
    }
}

fn object(seed: &mut u64, depth: u32) -> Value {
    let count = 1 + roll(seed) % 3;
    let properties: Map<String, Value> =
        (0..count).map(|at| (format!("k{at}"), schema(seed, depth))).collect();
    let required: Vec<&String> =
        properties.keys().filter(|_| roll(seed).is_multiple_of(2)).collect();
    json!({"type": "object", "required": required, "properties": properties, "additionalProperties": false})
}

fn held(request: Generation, schema: &Value) -> Generation {
    let content = Some(Content::JsonSchema(schema.to_string()));
    let part = GrammarPart { field: "response_format".into(), lenient: false, content };
    let frame = "start: @part_0\n".into();
    let grammar = Grammar { frame, parts: vec![part], end_ids: vec![END] };
    Generation { grammar: Some(grammar), stop_token_ids: vec![END], ..request }
}

/// A schema with its greedy and its sampled request.
struct Held {
    schema: Value,
    requests: [Generation; 2],
}

fn requests(count: u64) -> Vec<Held> {
    let (cases, mut seed) = (cases(), 0x5EED);
    let warm = SamplingRule { temperature: 0.9, top_p: 0.95, ..GREEDY };
    let penalized = SamplingRule { presence_penalty: 0.6, repetition_penalty: 1.2, ..GREEDY };
    let cold = SamplingRule { temperature: 1.3, top_k: 12, frequency_penalty: 0.3, ..GREEDY };
    let request = |at: u64| {
        let schema = object(&mut seed, 2);
        let prompt = &cases[at as usize % cases.len()].0;
        let prompt = &prompt[..prompt.len().min(60)];
        let (first, second) = match at % 2 {
            0 => (GREEDY, warm.clone()),
            _ => (penalized.clone(), cold.clone()),
        };
        let of = |how: &str, sampling| Generation {
            sampling: Some(sampling),
            seed: 70 + at,
            sample_index: at as u32 % 3,
            logprobs: at.is_multiple_of(3).then_some(2),
            report_margins: at % 4 == 1,
            tokenizer_vocab: words().len() as u32,
            ..generation(&format!("s{at}-{how}"), prompt, TOKENS)
        };
        let requests = [of("greedy", first), of("sampled", second)];
        Held { requests: requests.map(|request| held(request, &schema)), schema }
    };
    (0..count).map(request).collect()
}

struct Stage {
    worker: Worker,
    beats: Streaming<Heartbeat>,
    _checkpoint: tempfile::TempDir,
}

impl Stage {
    async fn new(environment: &[(&str, &str)]) -> Self {
        let checkpoint = checkpoint();
        let mut worker = Worker::start(checkpoint.path(), environment);
        let (_, beats) = worker.ready().await;
        Self { worker, beats, _checkpoint: checkpoint }
    }

    async fn plain(&self, request: Generation) -> Vec<TokenBatch> {
        let id = request.request_id.clone();
        let served = generate(self.worker.client.clone(), request).await;
        served.unwrap_or_else(|status| panic!("{id}: {status}"))
    }

    async fn speculative(&self, request: Generation) -> Vec<TokenBatch> {
        let permit = Permit {
            lane_allowed: v1::Lane::Speculative.into(),
            max_draft: BLOCK - 1,
            reason: v1::RouteReason::Forced.into(),
            policy_epoch: 0,
        };
        let id = request.request_id.clone();
        let stream = open(self.worker.client.clone(), request, permit).await.expect("served");
        finish(stream).await.unwrap_or_else(|status| panic!("{id}: {status}"))
    }

    async fn link(&mut self, number: u64, kind: ProposalKind, script: Script) {
        attach(&self.worker, number, Some(welcome(number, kind)), script);
        until_link(&mut self.beats, number, LinkPhase::Up).await;
    }
}

fn named(request: &Generation, how: &str) -> Generation {
    Generation { request_id: format!("{}-{how}", request.request_id), ..request.clone() }
}

fn speculation(batches: &[TokenBatch]) -> v1::Speculation {
    let done = batches.last().and_then(|batch| batch.done).expect("an end");
    done.speculation.expect("counted")
}

/// Checks an answer: it ended by itself, and it is valid.
fn check_valid(schema: &Value, request: &Generation, batches: &[TokenBatch]) {
    let (ids, done) = (ids(batches), batches.last().and_then(|batch| batch.done));
    let answer = text(&ids);
    let what = format!("{}: {answer:?} of {schema}", request.request_id);
    assert_eq!(done.expect("an end").finish_reason(), v1::FinishReason::Stop, "{what}");
    assert_eq!(ids.last(), Some(&END), "{what}");
    let value: Value =
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {what}"));
    let validator = jsonschema::validator_for(schema).expect("a schema");
    assert!(validator.is_valid(&value), "{what}");
    let reported = batches.iter().map(|batch| batch.logprobs.len()).sum::<usize>();
    assert_eq!(reported, if request.logprobs.is_some() { ids.len() } else { 0 });
}

/// Drafters: right, with a wrong id in the middle, guesses, and hidden rows.
fn drafters(known: &Known) -> Vec<(&'static str, ProposalKind, Script)> {
    let wrong = {
        let known = Arc::clone(known);
        move |end: &mut End, feed: &Feed| {
            propose_ids(end, feed, |request| {
                let at = request.position as usize;
                let streams = known.lock().expect("not poisoned");
                let right = streams.iter().find(|stream| stream.get(at) == Some(&request.bonus_id));
                let draft = right.map(|stream| stream[at + 1..].iter().copied());
                let mut draft: Vec<u32> =
                    draft.into_iter().flatten().take(request.block as usize - 1).collect();
                if let Some(id) = draft.get_mut(at % 5) {
                    *id = (*id + 7) % VOCAB;
                }
                draft
            })
        }
    };
    let (mut seed, mut noise) = (7, 9);
    let guess = move |end: &mut End, feed: &Feed| {
        let own = roll(&mut seed);
        propose_ids(end, feed, |request| {
            let id = |at: u32| ((own + u64::from(at)) % u64::from(VOCAB)) as u32;
            (0..request.block - 1).map(id).collect()
        })
    };
    let rows = move |end: &mut End, feed: &Feed| propose_rows(end, feed, HIDDEN, &mut noise);
    vec![
        ("known", ProposalKind::Tokens, oracle(Arc::clone(known))),
        ("wrong", ProposalKind::Tokens, Box::new(wrong)),
        ("guessed", ProposalKind::Tokens, Box::new(guess)),
        ("rows", ProposalKind::Hidden, Box::new(rows)),
    ]
}

/// One story: plain alone, beside others, continued, and each drafter.
async fn every_way_gives_one_valid_answer(count: u64) {
    let mut stage = Stage::new(&[]).await;
    let all = requests(count);
    let mut whole: Vec<(Generation, Vec<u32>)> = vec![];
    for Held { schema, requests } in &all {
        for request in requests {
            let batches = stage.plain(request.clone()).await;
            check_valid(schema, request, &batches);
            whole.push((request.clone(), ids(&batches)));
        }
    }
    for some in whole.chunks(TOGETHER) {
        let together = some.iter().map(|(request, _)| stage.plain(named(request, "beside")));
        for ((request, ids), batches) in some.iter().zip(join_all(together).await) {
            assert_eq!(&stage::ids(&batches), ids, "{} beside others", request.request_id);
        }
    }
    for (request, ids) in &whole {
        for from in [1, ids.len() / 2, ids.len() - 1] {
            let named = named(request, &format!("from-{from}"));
            let resumed = Generation { continuation_ids: ids[..from].to_vec(), ..named };
            let rest = stage::ids(&stage.plain(resumed).await);
            assert_eq!(rest, ids[from..], "{} from {from}", request.request_id);
        }
    }
    let known: Known = Arc::default();
    let stream = |(request, ids): &(Generation, Vec<u32>)| [&request.prompt_ids[..], ids].concat();
    known.lock().expect("not poisoned").extend(whole.iter().map(stream));
    for (number, (how, kind, script)) in (1..).zip(drafters(&known)) {
        stage.link(number, kind, script).await;
        let (mut drafted, mut accepted) = (0, 0);
        for (request, ids) in &whole {
            let batches = stage.speculative(named(request, how)).await;
            assert_eq!(&stage::ids(&batches), ids, "{}, {how}", request.request_id);
            let counts = speculation(&batches);
            (drafted, accepted) = (drafted + counts.drafted, accepted + counts.accepted);
        }
        for some in whole.chunks(TOGETHER) {
            let all = some.iter().map(|(request, _)| stage.speculative(named(request, "all")));
            for ((request, ids), batches) in some.iter().zip(join_all(all).await) {
                assert_eq!(&stage::ids(&batches), ids, "{}, {how}, all", request.request_id);
            }
        }
        println!("{how}: {accepted} of {drafted} drafts were accepted under {count} schemas");
        assert!(how == "guessed" || drafted > 0, "{how}: nothing was drafted");
        assert!(how != "known" || accepted * 2 > drafted, "{accepted} of {drafted}");
    }
}

#[tokio::test]
async fn five_schemas_give_one_valid_answer_in_every_way() {
    every_way_gives_one_valid_answer(5).await;
}

#[tokio::test]
#[ignore = "soak: 50 schemas in every way"]
async fn fifty_schemas_give_one_valid_answer_in_every_way() {
    every_way_gives_one_valid_answer(50).await;
}

#[tokio::test]
async fn a_thought_ends_at_its_budget_with_the_same_tokens_in_every_way() {
    const BUDGET: usize = 20;
    const ENDS: [u32; 2] = [281, 282];
    let mut stage = Stage::new(&[]).await;
    let step = |id| ThoughtEndStep { ids: vec![id] };
    let end = ENDS.map(step).to_vec();
    let thought = ThoughtBudget { max_tokens: BUDGET as u32, open_id: None, end, marks: 1 };
    let warm = SamplingRule { temperature: 0.9, ..GREEDY };
    let mut whole: Vec<(Generation, Vec<u32>)> = vec![];
    for (at, sampling) in [GREEDY, warm].into_iter().enumerate() {
        let prompt = &cases()[at].0;
        let request = generation(&format!("t{at}"), &prompt[..prompt.len().min(60)], 60);
        let free = Generation { sampling: Some(sampling), seed: 7, ..request };
        let bounded = Generation { thought: Some(thought.clone()), ..named(&free, "bounded") };
        let (free, ids) = (ids(&stage.plain(free).await), ids(&stage.plain(bounded.clone()).await));
        assert_eq!((&ids[..BUDGET], &ids[BUDGET..BUDGET + 2]), (&free[..BUDGET], &ENDS[..]));
        assert_eq!(ids.len(), 60, "the answer goes on");
        whole.push((bounded, ids));
    }
    for (request, ids) in &whole {
        for from in [5, BUDGET, BUDGET + 1, BUDGET + 2, 40] {
            let named = named(request, &format!("from-{from}"));
            let resumed = Generation { continuation_ids: ids[..from].to_vec(), ..named };
            assert_eq!(stage::ids(&stage.plain(resumed).await), ids[from..], "from {from}");
        }
    }
    let known: Known = Arc::default();
    let stream = |(request, ids): &(Generation, Vec<u32>)| [&request.prompt_ids[..], ids].concat();
    known.lock().expect("not poisoned").extend(whole.iter().map(stream));
    for (number, (how, kind, script)) in (1..).zip(drafters(&known)) {
        stage.link(number, kind, script).await;
        for (request, ids) in &whole {
            let batches = stage.speculative(named(request, how)).await;
            assert_eq!(&stage::ids(&batches), ids, "{}, {how}", request.request_id);
            let counts = speculation(&batches);
            assert!(how != "known" || counts.accepted > 20, "{counts:?}: few rows were drafted");
        }
    }
}

#[tokio::test]
async fn an_answer_beside_a_free_one_changes_nothing_of_it() {
    let stage = Stage::new(&[]).await;
    let Held { requests: [greedy, _], .. } = requests(1).remove(0);
    let free = |id: &str| generation(id, &cases()[0].0, 60);
    let alone = ids(&stage.plain(free("alone")).await);
    let both = [stage.plain(free("beside")), stage.plain(greedy)];
    let both = join_all(both).await;
    assert_eq!(ids(&both[0]), alone);
}

#[tokio::test]
async fn a_preempted_answer_goes_on_in_its_grammar() {
    // A schema whose answers fill the context, so that some of them lose their memory.
    let item = json!({"type": "string", "maxLength": 6});
    let schema = json!({"type": "array", "items": item, "minItems": 60});
    let request = |at: u64| {
        let sampling = Some(SamplingRule { temperature: 0.9, ..GREEDY });
        let free = generation(&format!("long-{at}"), &cases()[0].0[..1], TOKENS);
        held(Generation { sampling, seed: at, ..free }, &schema)
    };
    let stage = Stage::new(&[]).await;
    let mut alone = vec![];
    for at in 0..6 {
        alone.push(ids(&stage.plain(request(at)).await));
    }
    let message = DescribeRequest { stamp: Some(STAMP) };
    let about = stage.worker.client.clone().describe(message).await.expect("described");
    let longest = about.into_inner().kv_classes.last().expect("classes").bytes;
    // Room for two and a half of the longest.
    let budget = (longest * 5 / 2).to_string();
    let small = Stage::new(&[("PACELINE_KV__BUDGET_BYTES", &budget)]).await;
    let together = join_all((0..6).map(|at| small.plain(request(at)))).await;
    for (at, (batches, alone)) in together.iter().zip(&alone).enumerate() {
        assert_eq!(&ids(batches), alone, "long-{at}");
    }
    assert!(small.worker.log().contains("request preempted"), "none was preempted");
}

#[tokio::test]
async fn what_cannot_be_enforced_is_refused_with_its_field() {
    let stage = Stage::new(&[]).await;
    let request = |schema: Value| held(generation("r", &[1, 2], 20), &schema);
    let refused = async |request: Generation| {
        let status = generate(stage.worker.client.clone(), request).await.expect_err("refused");
        assert_eq!(Reason::of(&status), Some(Reason::InvalidArgument), "{status}");
        status.message().to_owned()
    };
    let message = refused(request(json!({"type": "array", "contains": {}}))).await;
    assert!(message.starts_with("response_format: ") && message.contains("contains"), "{message}");
    let deep = (0..70).fold(json!({}), |inner, _| json!({ "items": inner }));
    assert!(refused(request(deep)).await.contains("64 levels"));
    let large = json!({"title": "a".repeat(300 << 10)});
    assert!(refused(request(large)).await.contains("262144 bytes"));
    let fine = request(json!({"type": "object"}));
    let waits = Generation { min_tokens: 3, ..fine.clone() };
    assert!(refused(waits).await.contains("beside a grammar"));
    let endless = Generation { stop_token_ids: vec![], ..fine.clone() };
    assert!(refused(endless).await.contains("stop_token_ids"));
    let left = Generation { continuation_ids: vec![u32::from(b'[')], ..fine };
    assert!(refused(left).await.contains("does not follow"));
    let figures = stage.worker.figures().await;
    let bytes = figures.memory.expect("reported").active_bytes;
    assert!(bytes > 0 && figures.sequences == 0, "{figures:?}");
}
