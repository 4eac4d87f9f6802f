use super::*;

fn tensor() -> TensorRef {
    TensorRef { number: 1, offset: 64, length: 8, rows: 1, columns: 2, element: TensorType::F32 }
}

fn hello() -> Hello {
    Hello {
        version: 1,
        generation: 2,
        hidden_size: 3,
        vocab_size: 4,
        n_layers: 5,
        element: TensorType::F16,
        token_digest: "ab".into(),
        context_length: 6,
        max_sessions: 7,
    }
}

fn welcome() -> Welcome {
    Welcome {
        version: 1,
        generation: 2,
        kind: "dflash".into(),
        fingerprint: "dflash 1".into(),
        proposal: ProposalKind::Hidden,
        hidden_size: 3,
        vocab_size: Some(4),
        target_layers: None,
        feature_layers: vec![1, 0],
        block_size: 8,
        embeddings: true,
        token_ids: true,
        reads_at_once: false,
        mask_id: Some(0),
        element: TensorType::Bf16,
        token_digest: String::new(),
        logit_softcap: Some(30.0),
        context_length: None,
    }
}

fn feed() -> Feed {
    let rule =
        SamplingRule { temperature: 0.5, top_k: 7, top_p: 0.9, min_p: 0.1, ..SamplingRule::GREEDY };
    let sampling = DraftSampling { rule, seed: u64::MAX, sample_index: 3 };
    let request_id = RequestId::parse("r-1");
    let trace = TraceContext::parse(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    assert!(trace.is_some());
    let (ids, next_id) = (vec![7], Some(0));
    let images = vec![ImageSpan { first: 2, rows: 5, columns: 4 }];
    let fresh = Context {
        session: 3,
        position: 64,
        rows: 1,
        fresh: true,
        request_id,
        trace,
        ids,
        next_id,
        images,
    };
    Feed {
        closed: vec![1, u64::MAX],
        contexts: vec![
            fresh.clone(),
            Context {
                position: 65,
                fresh: false,
                request_id: None,
                trace: None,
                next_id: None,
                images: vec![],
                ..fresh
            },
        ],
        hidden: Some(tensor()),
        requests: vec![DraftRequest {
            session: 3,
            position: 66,
            block: 8,
            bonus_id: 5,
            sampling,
            least_survival: 0.25,
        }],
        bonus: None,
        round: 4,
        retained: vec![RetainedPages { session: 1, first_page: 7, keys: vec![[9; 32], [8; 32]] }],
        restored: vec![RestoredPrefix { session: 3, key: [1; 32], since: 0 }],
    }
}

fn tokens() -> DraftTokens {
    let (ids, logprobs) = (vec![8, 0], vec![-0.5, 0.0]);
    DraftTokens { session: 1, position: 4, ids, logprobs, drafts_from: 6 }
}

#[test]
fn every_frame_survives_encoding_and_decoding() {
    let shapes = vec![DraftShape { session: 1, position: 4, rows: 3 }];
    let hidden = Drafts::Hidden { shapes, rows: Some(tensor()) };
    let proposal = |drafts| Frame::Proposal(Proposal { round: 9, drafts });
    let sessions = vec![SessionProgress { session: 3, position: 65, drafts_from: 70 }];
    for frame in [
        Frame::Hello(hello()),
        Frame::Welcome(welcome()),
        Frame::Refusal("expected 3, found 4".into()),
        Frame::MaskRow(tensor()),
        Frame::Feed(feed()),
        proposal(hidden),
        proposal(Drafts::Tokens(vec![tokens()])),
        proposal(Drafts::none(ProposalKind::Hidden)),
        proposal(Drafts::none(ProposalKind::Tokens)),
        Frame::Progress(ReadProgress { sessions, missed: vec![4] }),
        Frame::Ack(7),
    ] {
        assert_eq!(Frame::try_from(Message::from(frame.clone())), Ok(frame));
    }
}

fn check_refusals(table: Vec<(Message, &str)>) {
    for (message, expected) in table {
        let error = Frame::try_from(message).expect_err(expected);
        assert_eq!(error.to_string(), expected);
    }
}

fn changed_welcome(change: fn(&mut proto::Welcome)) -> Message {
    let mut welcome = from_welcome(welcome());
    change(&mut welcome);
    Message::Welcome(welcome)
}

#[test]
fn a_handshake_with_unknown_kinds_is_no_frame() {
    check_refusals(vec![
        (
            Message::Hello(proto::Hello { r#type: 0, ..from_hello(hello()) }),
            "type of the target's tensors: expected one of f32, f16, bf16, found 0",
        ),
        (
            changed_welcome(|welcome| welcome.r#type = 7),
            "type of the drafter's tensors: expected one of f32, f16, bf16, found 7",
        ),
        (
            changed_welcome(|welcome| welcome.proposal = 5),
            "proposal kind: expected hidden rows or tokens, found 5",
        ),
        (
            changed_welcome(|welcome| welcome.proposal = 0),
            "proposal kind: expected hidden rows or tokens, found 0",
        ),
        (
            Message::MaskRow(proto::MaskRow { tensor: None }),
            "expected a MaskRow with a tensor, found none",
        ),
    ]);
}

fn changed_feed(change: fn(&mut proto::Feed)) -> Message {
    let mut feed = from_feed(feed());
    change(&mut feed);
    Message::Feed(feed)
}

#[test]
fn a_feed_with_a_broken_or_missing_field_is_no_frame() {
    check_refusals(vec![
        (
            changed_feed(|feed| feed.hidden.iter_mut().for_each(|tensor| tensor.r#type = 9)),
            "type of a tensor: expected one of f32, f16, bf16, found 9",
        ),
        (
            changed_feed(|feed| feed.requests[0].sampling = None),
            "expected a draft request with a sampling rule, found none",
        ),
        (
            changed_feed(|feed| feed.contexts[0].request_id = "a b".into()),
            "session 3: expected a request id or none, found another text",
        ),
        (
            changed_feed(|feed| feed.retained[0].keys = vec![0; 33].into()),
            "session 1: expected up to 256 names of 32 bytes, found 33 bytes",
        ),
        (
            changed_feed(|feed| feed.retained[0].keys = vec![0; 257 * 32].into()),
            "session 1: expected up to 256 names of 32 bytes, found 8224 bytes",
        ),
        (
            changed_feed(|feed| feed.restored[0].key = vec![0; 3].into()),
            "session 3: expected a name of 32 bytes, found 3",
        ),
    ]);
}

fn changed_draft(change: fn(&mut proto::DraftTokens)) -> Message {
    let mut draft = from_tokens(tokens());
    change(&mut draft);
    let drafts = proto::TokenDrafts { drafts: vec![draft] };
    let drafts = Some(proto::proposal::Drafts::Tokens(drafts));
    Message::Proposal(proto::Proposal { round: 1, drafts })
}

#[test]
fn a_proposal_with_impossible_probabilities_is_no_frame() {
    check_refusals(vec![
        (
            Message::Proposal(proto::Proposal { round: 1, drafts: None }),
            "expected a Proposal with drafts, found none",
        ),
        (
            changed_draft(|draft| draft.logprobs.truncate(1)),
            "session 1: expected a logprob for each of 2 ids or none, found 1",
        ),
        (
            changed_draft(|draft| draft.logprobs[0] = 0.5),
            "session 1: expected logprobs up to 0, found 0.5",
        ),
        (
            changed_draft(|draft| draft.logprobs[0] = f32::NAN),
            "session 1: expected logprobs up to 0, found NaN",
        ),
    ]);
}
