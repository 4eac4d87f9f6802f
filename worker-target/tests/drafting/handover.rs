//! Handshakes, and links and permits that change in the middle of a stream.

use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};

use paceline_link::{End, Frame, Handover, SEGMENT_BYTES, Side, handover, make_pair};
use paceline_proto::internal::v1::{
    Generation, LinkPhase, Permit, PermitChange, RepermitRequest, TokenBatch,
};
use paceline_proto::v1;
use paceline_vocabulary::link::{Context, ProposalKind, Welcome};
use tonic::Streaming;

use super::stage::drafter::{HIDDEN, Known, Script, VOCAB, attach, oracle, welcome};
use super::stage::{BOUND, STAMP, generate, ids};
use super::{Stage, speculative};

#[test]
fn a_pair_that_does_not_go_together_is_refused_with_the_reason() {
    let mut stage = Stage::new();
    let good = |generation| welcome(generation, ProposalKind::Hidden);
    let cases: Vec<(Welcome, &str)> = vec![
        (Welcome { hidden_size: 32, ..good(1) }, "hidden"),
        (Welcome { vocab_size: Some(300), ..good(2) }, "vocab"),
        (Welcome { feature_layers: vec![0, 3], ..good(3) }, "layer"),
        (Welcome { feature_layers: vec![], ..good(4) }, "feature"),
        (Welcome { target_layers: Some(36), ..good(5) }, "layers"),
        (Welcome { mask_id: Some(VOCAB), ..good(6) }, "mask"),
        (Welcome { block_size: 1, ..good(7) }, "block"),
        (Welcome { version: 99, ..good(8) }, "version"),
        (Welcome { generation: 1, ..good(9) }, "generation"),
        (Welcome { logit_softcap: Some(f32::NAN), ..good(10) }, "cap"),
    ];
    for (at, (welcome, word)) in cases.into_iter().enumerate() {
        let generation = at as u64 + 1;
        attach(
            &stage.worker,
            generation,
            Some(welcome),
            Box::new(|_, _| panic!("it gets no frame any more")),
        );
        let reason = stage.until(generation, LinkPhase::Refused);
        assert!(reason.to_lowercase().contains(word), "{word}: {reason}");
    }
    // The drafter's own refusal is reported.
    let pair = make_pair(SEGMENT_BYTES).expect("a pair");
    let path = stage.worker.dir.path().join("target.link.sock");
    handover::send(
        &path,
        STAMP,
        50,
        pair.target.as_fd(),
        pair.segment.as_fd(),
        SEGMENT_BYTES,
        BOUND,
    )
    .expect("handed over");
    drop(pair.target);
    let ours = Handover {
        stamp: STAMP,
        generation: 50,
        socket: pair.drafter,
        segment: pair.segment,
        segment_bytes: SEGMENT_BYTES,
    };
    let mut end = End::open(ours, Side::Drafter).expect("a link");
    let Ok(Some(Frame::Hello(hello))) = end.receive(BOUND) else { panic!("no Hello") };
    assert_eq!((hello.hidden_size, hello.vocab_size, hello.n_layers), (HIDDEN, VOCAB, 3));
    end.send(Frame::Refusal("made for another model".into())).expect("sent");
    assert_eq!(stage.until(50, LinkPhase::Refused), "made for another model");
    stage.same_as_plain("after refusals");
}

#[test]
fn links_and_permits_come_and_go_in_the_middle_of_a_stream() {
    // More than 60 lines: one story from start to end.
    let mut stage = Stage::new();
    let (request, plain) = (stage.requests[0].clone(), stage.plain[0].clone());
    let known: Known =
        Arc::new(Mutex::new(vec![[request.prompt_ids.clone(), plain.clone()].concat()]));
    // Contexts that each link carried.
    let shown: Arc<Mutex<Vec<(u64, Context)>>> = Arc::default();
    let spy = |generation: u64, known: &Known| -> Script {
        let (shown, mut play) = (shown.clone(), oracle(known.clone()));
        Box::new(move |end, feed| {
            shown
                .lock()
                .expect("not poisoned")
                .extend(feed.contexts.iter().cloned().map(|context| (generation, context)));
            play(end, feed)
        })
    };
    let long = Generation { max_tokens: 400, ..stage.named(&request) };
    let whole = {
        let alone = stage.named(&long);
        let batches =
            stage.runtime.block_on(generate(stage.worker.client.clone(), alone)).expect("served");
        ids(&batches)
    };
    known.lock().expect("not poisoned")[0] = [request.prompt_ids.clone(), whole.clone()].concat();
    let mut stream = stage.runtime.block_on(stage.open(long.clone()));
    let mut seen: Vec<u32> = vec![];
    let mut next = |stage: &Stage, stream: &mut Streaming<TokenBatch>| {
        let batch = stage.runtime.block_on(stream.message()).expect("goes on").expect("not over");
        seen.extend(&batch.ids);
        (batch.ids.len(), batch.done, seen.clone())
    };
    attach(&stage.worker, 1, Some(welcome(1, ProposalKind::Tokens)), spy(1, &known));
    stage.until(1, LinkPhase::Up);
    let plain_permit = Permit {
        lane_allowed: v1::Lane::Plain.into(),
        max_draft: 0,
        reason: v1::RouteReason::Forced.into(),
        policy_epoch: 0,
    };
    let mut done = None;
    let mut all = vec![];
    for step in 0.. {
        let (_, end, so_far) = next(&stage, &mut stream);
        all = so_far;
        if end.is_some() {
            done = end;
            break;
        }
        let change = match step {
            20 => Some(plain_permit),
            40 => Some(speculative()),
            _ => None,
        };
        if let Some(permit) = change {
            let changes =
                vec![PermitChange { request_id: long.request_id.clone(), permit: Some(permit) }];
            let repermit = RepermitRequest { stamp: Some(STAMP), changes };
            stage.runtime.block_on(stage.worker.client.clone().repermit(repermit)).expect("taken");
        }
        if step == 60 {
            attach(&stage.worker, 2, Some(welcome(2, ProposalKind::Tokens)), spy(2, &known));
            stage.until(2, LinkPhase::Up);
        }
    }
    assert_eq!(all, whole);
    let done = done.expect("an end");
    assert!(done.speculation.expect("counted").accepted > 0, "drafts came in the middle of it");
    let shown = shown.lock().expect("not poisoned");
    // A session's contexts follow one another; a fresh start is marked.
    for generation in [1, 2] {
        let of_link: Vec<_> = shown.iter().filter(|context| context.0 == generation).collect();
        for pair in of_link.windows(2) {
            let (before, after) = (&pair[0].1, &pair[1].1);
            assert!(after.fresh || after.position == before.position + before.rows, "{pair:?}");
        }
        assert!(of_link.first().is_none_or(|first| first.1.fresh));
    }
    assert!(!shown.is_empty(), "a link carried contexts");
}
