use paceline_text::stream::Usage;
use paceline_vocabulary::Reason;
use paceline_vocabulary::generation::{Speculation, TopLogprob};

use super::*;
use crate::inference::error::InferenceError;

/// Room for this number of bytes.
#[derive(Debug)]
struct Room(u64);

impl AnswerRoom for Room {
    fn grow_answer(&self, bytes: u64) -> Result<()> {
        match bytes <= self.0 {
            true => Ok(()),
            false => Err(InferenceError::new(Reason::BodiesFull, "no room")),
        }
    }
}

fn encoder(in_pieces: bool, samples: u32) -> AnswerEncoder {
    let wish = AnswerWish { in_pieces, stop_token_ids: vec![9], ..Default::default() };
    AnswerEncoder::new(wish, samples, Arc::new(Room(64 << 20)))
}

fn tokens(sample_index: u32, ids: &[u32]) -> AnswerEvent {
    let so_far = Some(Usage { prompt_tokens: 4, cached_tokens: 3, ..Default::default() });
    AnswerEvent { sample_index, token_ids: ids.to_vec(), so_far, ..Default::default() }
}

fn last(sample_index: u32, ids: &[u32], end: AnswerEnd) -> AnswerEvent {
    let usage = Usage { prompt_tokens: 4, cached_tokens: 3, ..Default::default() };
    let last = Some(AnswerEnd { usage, ..end });
    AnswerEvent { sample_index, token_ids: ids.to_vec(), last, ..Default::default() }
}

fn stopped() -> AnswerEnd {
    AnswerEnd { finish_reason: Some(FinishReason::Stop), ..Default::default() }
}

/// The messages of these events.
fn messages(encoder: &mut AnswerEncoder, events: Vec<AnswerEvent>) -> Vec<Response> {
    let mut outbox = Outbox::new();
    for event in events {
        encoder.event(event, &mut outbox).expect("room");
    }
    outbox.into_iter().map(|message| message.response.expect("one of two")).collect()
}

fn chunk(response: &Response) -> &vllm::GenerateStreamChunk {
    match response {
        Response::Chunk(chunk) => chunk,
        Response::Complete(complete) => panic!("an end: {complete:?}"),
    }
}

fn end(response: &Response) -> &vllm::GenerateComplete {
    match response {
        Response::Complete(complete) => complete,
        Response::Chunk(chunk) => panic!("a piece: {chunk:?}"),
    }
}

#[test]
fn pieces_have_the_tokens_since_the_last_one_and_the_end_those_of_the_last_piece() {
    let mut encoder = encoder(true, 1);
    let speculation = Speculation { cycles: 2, drafted: 7, accepted: 3 };
    let finish_reason = Some(FinishReason::Length);
    let ending = AnswerEnd { finish_reason, speculation, ..Default::default() };
    let events = vec![tokens(0, &[5, 6]), tokens(0, &[]), last(0, &[7], ending)];
    let all = messages(&mut encoder, events);
    assert_eq!(all.len(), 3, "an event without tokens has no piece");
    assert_eq!(
        (chunk(&all[0]).token_ids.as_slice(), chunk(&all[0]).completion_tokens),
        (&[5, 6][..], 2)
    );
    assert_eq!((chunk(&all[0]).prompt_tokens, chunk(&all[0]).cached_tokens), (4, 3));
    assert_eq!(chunk(&all[1]).token_ids, [7]);
    let end = end(&all[2]);
    assert_eq!((end.output_ids.as_slice(), end.completion_tokens), (&[7][..], 1));
    assert_eq!(
        (end.finish_reason.as_str(), end.prompt_tokens, end.cached_tokens),
        ("length", 4, 3)
    );
    assert_eq!((end.spec_accepted_tokens, end.spec_draft_tokens), (3, 7));
    assert_eq!(end.matched_stop, None);
}

#[test]
fn whole_samples_come_in_the_order_of_their_indexes_when_all_have_ended() {
    let mut encoder = encoder(false, 2);
    let first = vec![tokens(1, &[5]), tokens(0, &[6]), last(1, &[7], stopped())];
    assert!(messages(&mut encoder, first).is_empty());
    let all = messages(&mut encoder, vec![last(0, &[8], stopped())]);
    let ends: Vec<_> =
        all.iter().map(|one| (end(one).index, end(one).output_ids.clone())).collect();
    assert_eq!(ends, [(0, vec![6, 8]), (1, vec![5, 7])]);
    assert_eq!(end(&all[0]).completion_tokens, 2);
}

#[test]
fn the_end_names_what_ended_it() {
    let matched = |ids: &[u32], end_: AnswerEnd| {
        let all = messages(&mut encoder(false, 1), vec![last(0, ids, end_)]);
        (end(&all[0]).finish_reason.clone(), end(&all[0]).matched_stop.clone())
    };
    let stop = |text: &str| AnswerEnd { stop: text.into(), ..stopped() };
    let by_text = Some(MatchedStop::MatchedStopStr("end".into()));
    assert_eq!(matched(&[9], stop("end")), ("stop".into(), by_text));
    assert_eq!(matched(&[5, 9], stopped()), ("stop".into(), Some(MatchedStop::MatchedTokenId(9))));
    assert_eq!(matched(&[5, 2], stopped()), ("stop".into(), None), "the model's own id");
    let cut = AnswerEnd { finish_reason: Some(FinishReason::Length), ..Default::default() };
    assert_eq!(matched(&[9], cut), ("length".into(), None));
}

#[test]
fn log_probabilities_stand_beside_their_tokens() {
    let top =
        vec![TopLogprob { token_id: 5, logprob: -0.5 }, TopLogprob { token_id: 6, logprob: -2.0 }];
    let logprobs = vec![TokenLogprobs { logprob: -0.5, top }];
    let mut encoder = encoder(true, 1);
    encoder.wish.logprobs = Some(2);
    let events = vec![AnswerEvent { logprobs, ..tokens(0, &[5]) }, last(0, &[], stopped())];
    let all = messages(&mut encoder, events);
    let said = chunk(&all[0]).output_logprobs.clone().expect("asked for");
    assert_eq!((said.token_logprobs, said.token_ids), (vec![-0.5], vec![5]));
    assert_eq!(said.top_logprobs[0].values, [-0.5, -2.0]);
    assert_eq!(said.top_logprobs[0].token_ids, [5, 6]);
    assert_eq!(end(&all[1]).output_logprobs.clone().expect("asked for").token_ids, [0; 0]);
}

#[test]
fn the_abort_of_a_request_ends_each_sample_once() {
    let mut encoder = encoder(false, 3);
    assert!(messages(&mut encoder, vec![last(1, &[5], stopped()), tokens(0, &[6])]).is_empty());
    let mut outbox = Outbox::new();
    encoder.aborted(&mut outbox);
    encoder.aborted(&mut outbox);
    let all: Vec<_> = outbox.into_iter().map(|one| one.response.expect("set")).collect();
    let ends: Vec<_> =
        all.iter().map(|one| (end(one).index, end(one).finish_reason.clone())).collect();
    let word = str::to_owned;
    assert_eq!(ends, [(0, word("abort")), (1, word("stop")), (2, word("abort"))]);
    assert_eq!(end(&all[0]).output_ids, [6]);
}

#[test]
fn an_answer_that_is_kept_is_counted_in_the_budget() {
    let kept = |in_pieces| {
        let wish = AnswerWish { in_pieces, ..Default::default() };
        AnswerEncoder::new(wish, 1, Arc::new(Room(1 << 20)))
    };
    let long = tokens(0, &vec![5; 200_000]);
    let mut outbox = Outbox::new();
    let error = kept(false).event(long.clone(), &mut outbox).expect_err("no room");
    assert_ne!(error.kind, Reason::Bug);
    kept(true).event(long, &mut outbox).expect("it is sent at once");
}
