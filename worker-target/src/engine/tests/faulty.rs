//! One sequence with logits that are not finite among seven sound ones.

use std::sync::mpsc::{Receiver, RecvTimeoutError};

use paceline_models::sample::SamplingRule;
use paceline_proto::internal::v1::LinkPhase;
use paceline_proto::status::Reason;
use tonic::Code;

use super::prompt;
use super::test_drafter::{Drafts, LONG};
use super::test_engine::{StreamFault, TOKENS, TestAnswer, TestEngine, TestRequest};

/// Streams that run together.
const STREAMS: usize = 8;
/// A draft may be late on a busy machine. A run in which all drafts were late is repeated, this
/// many times at most.
const RUNS: usize = 20;

/// Requests of all kinds, or only such whose tokens are chosen in the graph, so that a step
/// prepares the next one.
fn requests(mixed: bool) -> Vec<TestRequest> {
    let warm = SamplingRule { temperature: 0.8, top_p: 0.95, ..SamplingRule::GREEDY };
    let request = |at: usize| {
        let prompt = prompt(at as u32);
        let plain =
            TestRequest { prompt, sampling: SamplingRule::GREEDY, margins: false, logprobs: None };
        match at % 4 {
            _ if !mixed => plain,
            0 => plain,
            1 => TestRequest { sampling: warm, ..plain },
            2 => TestRequest { margins: true, logprobs: Some(2), ..plain },
            _ => TestRequest {
                sampling: SamplingRule { repetition_penalty: 1.2, frequency_penalty: 0.3, ..warm },
                ..plain
            },
        }
    };
    (0..STREAMS).map(request).collect()
}

/// Each request alone, without a drafter.
fn solos(engine: &mut TestEngine, requests: &[TestRequest]) -> Vec<Vec<u32>> {
    engine.link(Drafts::None, vec![]);
    let alone =
        requests.iter().map(|request| engine.ask(std::slice::from_ref(request), None).remove(0));
    let check = |answer: TestAnswer| {
        assert!(answer.end.is_ok() && answer.ids.len() == TOKENS, "{answer:?}");
        answer.ids
    };
    alone.map(check).collect()
}

/// The streams as a drafter knows them: prompts and answers.
fn whole(requests: &[TestRequest], solos: &[Vec<u32>]) -> Vec<Vec<u32>> {
    requests
        .iter()
        .zip(solos)
        .map(|(request, ids)| [request.prompt.clone(), ids.clone()].concat())
        .collect()
}

/// Runs all requests, one of them with a fault, and checks every stream. Returns the drafted and
/// the accepted tokens of the sound ones.
fn check(
    engine: &mut TestEngine,
    requests: &[TestRequest],
    solos: &[Vec<u32>],
    fault: StreamFault,
    what: &str,
) -> (u64, u64) {
    let (mut drafted, mut accepted) = (0, 0);
    let answers = engine.ask(requests, Some(fault));
    for (at, (answer, solo)) in answers.into_iter().zip(solos).enumerate() {
        if at == fault.stream {
            assert_eq!(
                answer.end,
                Err((Code::Internal, Some(Reason::Numerics))),
                "{what}: {:?}",
                answer.ids
            );
            assert_eq!(
                answer.ids,
                solo[..fault.tokens],
                "{what}: the tokens before the fault, and no other"
            );
        } else {
            let done =
                answer.end.unwrap_or_else(|end| panic!("{what}: stream {at} ended with {end:?}"));
            assert_eq!(&answer.ids, solo, "{what}: stream {at}");
            let speculation = done.speculation.expect("reported");
            (drafted, accepted) = (drafted + speculation.drafted, accepted + speculation.accepted);
        }
    }
    assert!(engine.is_free(), "{what}: all memory is free");
    (drafted, accepted)
}

/// Checks that the drafter was ejected for its NaN, and that a stream alone is unchanged.
fn check_ejected(
    engine: &mut TestEngine,
    drafter: &Receiver<()>,
    requests: &[TestRequest],
    solos: &[Vec<u32>],
    what: &str,
) {
    assert_eq!(
        drafter.recv_timeout(LONG),
        Err(RecvTimeoutError::Disconnected),
        "{what}: the drafter's link is closed"
    );
    // The engine reports the link's state before it takes the next request.
    let answer = engine.ask(&requests[..1], None).remove(0);
    assert!(answer.end.is_ok() && answer.ids == solos[0], "{what}: {answer:?}");
    let link = engine.progress.heartbeat(1).link.expect("reported");
    assert_eq!(
        (link.phase(), link.generation, link.serving),
        (LinkPhase::Ejected, engine.links, 0),
        "{what}: {link:?}"
    );
    assert!(link.reason.contains("not finite"), "{what}: {link:?}");
}

#[test]
fn a_sequence_without_finite_logits_ends_alone_and_the_others_equal_their_solo_runs() {
    let mut engine = TestEngine::open();
    for mixed in [false, true] {
        let requests = requests(mixed);
        let solos = solos(&mut engine, &requests);
        // The drafter, the stream at fault, its tokens before the fault, and the faulty number.
        let faults = [
            (Drafts::None, 0, 0, f32::NAN),
            (Drafts::None, 4, 9, f32::INFINITY),
            (Drafts::None, 1, 13, f32::NAN),
            (Drafts::Ids, 0, 10, f32::INFINITY),
            (Drafts::Ids, 3, 11, f32::NAN),
            (Drafts::Rows, 6, 2, f32::NAN),
            (Drafts::RowsWithoutLogits, 2, 7, f32::NAN),
            (Drafts::NotANumber, 5, TOKENS - 1, f32::INFINITY),
        ];
        for (drafts, at, tokens, number) in faults {
            let what =
                format!("{drafts:?}, stream {at} from token {tokens} on {number}, mixed {mixed}");
            let mut run = || {
                let drafter = engine.link(drafts, whole(&requests, &solos));
                let fault = StreamFault { stream: at, tokens, number };
                let (drafted, accepted) = check(&mut engine, &requests, &solos, fault, &what);
                match drafts {
                    Drafts::NotANumber => {
                        check_ejected(&mut engine, &drafter, &requests, &solos, &what)
                    }
                    // The other drafters are right by chance at most.
                    Drafts::Ids => return accepted > 0,
                    Drafts::None | Drafts::Silent | Drafts::Rows | Drafts::RowsWithoutLogits => {}
                }
                assert!(drafted == 0 || drafts.are_verified(), "{what}: {drafted} tokens drafted");
                drafted > 0 || !drafts.are_verified()
            };
            assert!((0..RUNS).any(|_| run()), "{what}: in {RUNS} runs no drafts were verified");
        }
    }
}

#[test]
fn the_prefix_cache_keeps_nothing_of_a_faulty_sequence() {
    let mut engine = TestEngine::open();
    let requests = requests(false);
    let solos = solos(&mut engine, &requests);
    let cached = |engine: &mut TestEngine, at: usize| {
        let answer = engine.ask(&requests[at..=at], None).remove(0);
        assert_eq!(answer.ids, solos[at]);
        answer.end.expect("it is well").cached_tokens
    };
    assert!(
        cached(&mut engine, 3) >= 128 && cached(&mut engine, 5) >= 128,
        "pages of earlier requests are found"
    );
    for tokens in [0, 12] {
        let fault = StreamFault { stream: 0, tokens, number: f32::NAN };
        let answer = engine.ask(&requests[3..=3], Some(fault)).remove(0);
        assert_eq!(answer.end, Err((Code::Internal, Some(Reason::Numerics))));
        assert_eq!(
            cached(&mut engine, 3),
            0,
            "{tokens} tokens: its pages are gone, those of earlier requests too"
        );
        assert!(cached(&mut engine, 3) >= 128, "and come again with a sound run");
        assert!(cached(&mut engine, 5) >= 128, "other prompts keep theirs");
    }
}
