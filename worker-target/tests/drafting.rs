//! The target's end of the link, against a drafter that the test plays over a real link: a perfect
//! one, one that guesses, one that is late, and ones that break every rule there is. Whatever it
//! does, tokens are those of the plain lane (I1, I3).

mod stage;

use std::collections::HashSet;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::join_all;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use paceline_link::{
    End, Frame, Handover, LinkError, SEGMENT_BYTES, Side, frame, handover, make_pair,
};
use paceline_proto::internal::v1::{
    Context, Draft, Feed, Generation, Heartbeat, LinkPhase, Permit, PermitChange, Policy,
    PolicyForce, Proposal, ProposalKind, Reach, Refusal, RepermitRequest, SamplingRule,
    SessionReach, SetPolicyRequest, StatsRequest, TargetGenerateRequest, TensorRef, TensorType,
    TokenBatch, Welcome,
};
use paceline_proto::v1;
use tonic::{Status, Streaming};

use stage::drafter::{
    BLOCK, HIDDEN, Known, Script, VOCAB, attach, draft, noise, oracle, propose_ids, propose_rows,
    reach, roll, welcome,
};
use stage::{BOUND, GREEDY, STAMP, Worker, cases, generate, generation, ids, tiny};

fn speculative() -> Permit {
    Permit {
        lane_allowed: v1::Lane::Speculative.into(),
        max_draft: BLOCK - 1,
        reason: v1::RouteReason::Prior.into(),
        policy_epoch: 0,
    }
}

/// The requests of these tests: every way to choose tokens.
fn requests() -> Vec<Generation> {
    let warm = SamplingRule { temperature: 0.8, top_p: 0.95, repetition_penalty: 1.1, ..GREEDY };
    let samplings = [
        GREEDY,
        SamplingRule { repetition_penalty: 1.3, ..GREEDY },
        warm.clone(),
        SamplingRule { temperature: 1.3, top_k: 20, ..GREEDY },
        SamplingRule { min_p: 0.02, ..warm.clone() },
        SamplingRule { presence_penalty: 0.5, frequency_penalty: 0.2, ..GREEDY },
        SamplingRule { logit_bias: vec![v1::LogitBias { token_id: 9, bias: 2.5 }], ..warm },
    ];
    let prompts = cases();
    let request = |(at, sampling): (usize, SamplingRule)| Generation {
        sampling: Some(sampling),
        seed: 1000 + at as u64,
        report_margins: at % 2 == 1,
        ..generation(&format!("r{at}"), &prompts[at % prompts.len()].0, 70)
    };
    samplings.into_iter().enumerate().map(request).collect()
}

struct Stage {
    worker: Worker,
    beats: Streaming<Heartbeat>,
    requests: Vec<Generation>,
    plain: Vec<Vec<u32>>,
    names: AtomicU64,
    /// Of the permits: forced, or left to the target.
    reason: v1::RouteReason,
    runtime: tokio::runtime::Runtime,
}

impl Stage {
    fn new() -> Self {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (worker, beats) = runtime.block_on(async {
            let mut worker = Worker::start(&tiny(), &[]);
            let (_, beats) = worker.ready().await;
            (worker, beats)
        });
        let requests = requests();
        let plain = requests.iter().map(|request| {
            let batches =
                runtime.block_on(generate(worker.client.clone(), request.clone())).expect("served");
            ids(&batches)
        });
        let plain = plain.collect();
        Self {
            worker,
            beats,
            requests,
            plain,
            names: AtomicU64::new(0),
            reason: v1::RouteReason::Forced,
            runtime,
        }
    }

    /// Follows heartbeats until the newest link is `phase`; its reason.
    fn until(&mut self, generation: u64, phase: LinkPhase) -> String {
        let seen = async {
            loop {
                let beat = self.beats.message().await.expect("beats").expect("goes on");
                let link = beat.link.expect("reported");
                if link.generation == generation && link.phase() == phase {
                    return link.reason;
                }
            }
        };
        self.runtime
            .block_on(async { tokio::time::timeout(BOUND, seen).await })
            .unwrap_or_else(|_| panic!("not {phase:?} in time"))
    }

    fn named(&self, request: &Generation) -> Generation {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        Generation { request_id: format!("{}-{number}", request.request_id), ..request.clone() }
    }

    async fn open(&self, request: Generation) -> Streaming<TokenBatch> {
        let permit = Permit { reason: self.reason.into(), ..speculative() };
        let request = TargetGenerateRequest {
            stamp: Some(STAMP),
            generation: Some(request),
            permit: Some(permit),
        };
        self.worker.client.clone().generate(request).await.expect("served").into_inner()
    }

    /// Runs all requests at once with a speculative permit, compares every token, and returns what
    /// speculation did.
    fn same_as_plain(&self, what: &str) -> Vec<v1::Speculation> {
        let all = async {
            let streams =
                join_all(self.requests.iter().map(|request| self.open(self.named(request)))).await;
            join_all(streams.into_iter().map(finish)).await
        };
        let answers = self.runtime.block_on(all);
        let mut done = vec![];
        for ((answer, plain), request) in answers.into_iter().zip(&self.plain).zip(&self.requests) {
            let batches =
                answer.unwrap_or_else(|status| panic!("{what}, {}: {status}", request.request_id));
            assert_eq!(&ids(&batches), plain, "{what}, {}", request.request_id);
            if request.report_margins {
                assert_eq!(
                    batches.iter().map(|batch| batch.margins.len()).sum::<usize>(),
                    plain.len()
                );
            }
            let last = batches.last().and_then(|batch| batch.done).expect("an end");
            done.push(last.speculation.expect("counted"));
        }
        done
    }

    /// Runs one request, compares its tokens, and says how it was served.
    fn one(&self, request: &Generation, plain: &[u32]) -> (v1::Route, v1::Speculation) {
        let stream = self.runtime.block_on(self.open(self.named(request)));
        let batches = self.runtime.block_on(finish(stream)).expect("served");
        assert_eq!(ids(&batches), plain);
        let done = batches.last().and_then(|batch| batch.done).expect("an end");
        (done.route.expect("said"), done.speculation.expect("counted"))
    }

    fn set_policy(&self, policy: Option<Policy>) -> Result<(), Status> {
        let request = SetPolicyRequest { stamp: Some(STAMP), policy };
        self.runtime.block_on(self.worker.client.clone().set_policy(request)).map(|_| ())
    }

    fn pid(&self) -> u32 {
        self.worker.child.id()
    }
}

async fn finish(mut stream: Streaming<TokenBatch>) -> Result<Vec<TokenBatch>, Status> {
    let mut batches = vec![];
    while let Some(batch) =
        tokio::time::timeout(BOUND, stream.message()).await.expect("tokens in time")?
    {
        batches.push(batch);
    }
    Ok(batches)
}

#[test]
fn drafts_change_when_tokens_come_and_not_which() {
    let mut stage = Stage::new();
    // Without a link a speculative permit is served plainly.
    assert!(stage.same_as_plain("no link").iter().all(|speculation| speculation.cycles == 0));

    let known: Known = Arc::default();
    for (request, plain) in stage.requests.iter().zip(&stage.plain) {
        known
            .lock()
            .expect("not poisoned")
            .push([request.prompt_ids.clone(), plain.clone()].concat());
    }
    attach(&stage.worker, 1, Some(welcome(1, ProposalKind::Tokens)), oracle(known));
    stage.until(1, LinkPhase::Up);
    let perfect = stage.same_as_plain("perfect drafts");
    let (cycles, drafted, accepted) = perfect
        .iter()
        .fold((0, 0, 0), |(c, d, a), s| (c + s.cycles, d + s.drafted, a + s.accepted));
    // Where two streams share a token at a position the oracle may confuse them; most of it is
    // right.
    assert!(accepted * 10 >= drafted * 8 && accepted >= 4 * cycles, "{perfect:?}");

    let mut seed = 7;
    let guess = move |end: &mut End, feed: &Feed| {
        let mut own = roll(&mut seed);
        propose_ids(end, feed, |want| {
            (0..want.block - 1)
                .map(|at| ((own + u64::from(at)) % u64::from(VOCAB)) as u32)
                .collect()
        })
        .inspect(|_| own = own.wrapping_add(1))
    };
    attach(&stage.worker, 2, Some(welcome(2, ProposalKind::Tokens)), Box::new(guess));
    stage.until(2, LinkPhase::Up);
    let guessed = stage.same_as_plain("guessed ids");
    assert!(guessed.iter().all(|speculation| speculation.cycles > 20), "{guessed:?}");

    let mut seed = 9;
    let rows = move |end: &mut End, feed: &Feed| propose_rows(end, feed, HIDDEN, &mut seed);
    attach(&stage.worker, 3, Some(welcome(3, ProposalKind::Hidden)), Box::new(rows));
    stage.until(3, LinkPhase::Up);
    let rows = stage.same_as_plain("random hidden rows");
    assert!(rows.iter().all(|speculation| speculation.cycles > 20), "{rows:?}");
}

/// Breaks a rule with its first proposal, and is honest before.
type Crime = fn(&mut End, &Feed, &mut u64) -> Result<(), LinkError>;

fn crimes() -> Vec<(&'static str, ProposalKind, Crime)> {
    use ProposalKind::{Hidden, Tokens};
    fn rows(end: &mut End, feed: &Feed, change: impl Fn(&mut Proposal)) -> Result<(), LinkError> {
        let drafts: Vec<Draft> =
            feed.wants.iter().map(|want| draft(want, want.block - 1)).collect();
        let count: u32 = drafts.iter().map(|draft| draft.rows).sum();
        let hidden = end.put(count, HIDDEN, TensorType::F32, &noise(count * HIDDEN, &mut 5))?;
        let mut proposal = Proposal { round: feed.round, drafts, hidden };
        change(&mut proposal);
        end.send(Frame::Proposal(proposal))
    }
    fn tensor(
        end: &mut End,
        feed: &Feed,
        change: impl Fn(&mut TensorRef),
    ) -> Result<(), LinkError> {
        rows(end, feed, |proposal| change(proposal.hidden.as_mut().expect("there")))
    }
    vec![
        ("an offset in the target's own half", Hidden, |end, feed, _| {
            tensor(end, feed, |t| t.offset = 0)
        }),
        ("an offset behind the segment", Hidden, |end, feed, _| {
            tensor(end, feed, |t| t.offset = SEGMENT_BYTES)
        }),
        ("an offset that overflows", Hidden, |end, feed, _| {
            tensor(end, feed, |t| t.offset = u64::MAX - 63)
        }),
        ("an offset between the lines", Hidden, |end, feed, _| {
            tensor(end, feed, |t| t.offset += 4)
        }),
        ("a length that is not its shape's", Hidden, |end, feed, _| {
            tensor(end, feed, |t| t.length += 4)
        }),
        ("too many columns", Hidden, |end, feed, _| {
            tensor(end, feed, |t| (t.columns, t.rows) = (HIDDEN * t.rows, 1))
        }),
        ("another type", Hidden, |end, feed, _| {
            tensor(end, feed, |t| t.r#type = TensorType::F16.into())
        }),
        ("an unknown type", Hidden, |end, feed, _| tensor(end, feed, |t| t.r#type = 99)),
        ("a tensor's number twice", Hidden, |end, feed, _| tensor(end, feed, |t| t.number += 1)),
        ("a row of NaN", Hidden, |end, feed, _| {
            let want = &feed.wants[0];
            let mut bytes = noise(HIDDEN, &mut 5);
            bytes[40..44].copy_from_slice(&f32::NAN.to_ne_bytes());
            let hidden = end.put(1, HIDDEN, TensorType::F32, &bytes)?;
            end.send(Frame::Proposal(Proposal {
                round: feed.round,
                drafts: vec![draft(want, 1)],
                hidden,
            }))
        }),
        ("rows without a draft", Hidden, |end, feed, _| rows(end, feed, |p| p.drafts.clear())),
        ("drafts without rows", Hidden, |end, feed, _| rows(end, feed, |p| p.hidden = None)),
        ("a session twice", Hidden, |end, feed, _| {
            rows(end, feed, |p| p.drafts.push(p.drafts[0].clone()))
        }),
        ("a session nobody asked for", Hidden, |end, feed, _| {
            rows(end, feed, |p| p.drafts[0].session += 99)
        }),
        ("another position", Hidden, |end, feed, _| rows(end, feed, |p| p.drafts[0].position += 1)),
        ("more rows than were wanted", Hidden, |end, feed, _| {
            rows(end, feed, |p| p.drafts[0].rows = 63)
        }),
        ("a round nobody asked for", Hidden, |end, feed, _| rows(end, feed, |p| p.round += 1000)),
        ("a round twice", Hidden, |end, feed, _| {
            rows(end, feed, |_| {}).and_then(|()| rows(end, feed, |_| {}))
        }),
        ("ids beside rows", Hidden, |end, feed, _| rows(end, feed, |p| p.drafts[0].ids = vec![1])),
        ("ids beyond the vocabulary", Tokens, |end, feed, _| {
            propose_ids(end, feed, |_| vec![VOCAB]).map(|_| ())
        }),
        ("more ids than it says", Tokens, |end, feed, _| {
            let want = &feed.wants[0];
            let drafts = vec![Draft { ids: vec![1, 2], ..draft(want, 1) }];
            end.send(Frame::Proposal(Proposal { round: feed.round, drafts, hidden: None }))
        }),
        ("rows in place of ids", Tokens, |end, feed, _| rows(end, feed, |_| {})),
        ("a position nobody sent", Hidden, |end, feed, _| {
            let session = feed.wants[0].session;
            end.send(Frame::Reach(Reach {
                sessions: vec![SessionReach { session, position: 100_000 }],
                missed: vec![],
            }))
        }),
        ("a session missed that was to begin with nothing kept", Hidden, |end, feed, _| {
            end.send(Frame::Reach(Reach { sessions: vec![], missed: vec![feed.wants[0].session] }))
        }),
        ("empty reports without end", Hidden, |end, _, _| flood(end, Reach::default())),
        ("one position reported without end", Hidden, |end, feed, _| {
            let (session, position) = (feed.wants[0].session, feed.wants[0].position);
            flood(end, Reach { sessions: vec![SessionReach { session, position }], missed: vec![] })
        }),
        ("sessions that are not there reported without end", Hidden, |end, _, _| {
            flood(
                end,
                Reach {
                    sessions: vec![SessionReach { session: u64::MAX, position: 1 }],
                    missed: vec![],
                },
            )
        }),
        ("a second Welcome", Hidden, |end, _, _| {
            end.send(Frame::Welcome(welcome(1, ProposalKind::Hidden)))
        }),
        ("the target's own frame", Hidden, |end, _, _| end.send(Frame::Feed(Feed::default()))),
        ("an acknowledgement of what was not sent", Hidden, |end, _, _| {
            end.send(Frame::Ack(paceline_proto::internal::v1::Ack { number: 1 << 40 }))
        }),
        ("random bytes", Hidden, |end, _, seed| {
            let bytes: Vec<u8> = (0..4096).map(|_| roll(seed) as u8).collect();
            nix::unistd::write(end.poll_fd(), &bytes)
                .map(|_| ())
                .map_err(|error| LinkError::Io(error.into()))
        }),
        ("a frame of a gigabyte", Hidden, |end, _, _| {
            nix::unistd::write(end.poll_fd(), &(1u32 << 30).to_le_bytes())
                .map(|_| ())
                .map_err(|error| LinkError::Io(error.into()))
        }),
    ]
}

/// Sends one legal report again and again until the target closes the link.
fn flood(end: &End, report: Reach) -> Result<(), LinkError> {
    let mut once = vec![];
    frame::encode(Frame::Reach(report), &mut once).expect("a report is short");
    let reports = once.repeat(1024);
    let mut sent = 0;
    loop {
        match nix::unistd::write(end.poll_fd(), &reports[sent..]) {
            Ok(count) => sent = (sent + count) % reports.len(),
            Err(Errno::EAGAIN) => {
                let mut writable = [PollFd::new(end.poll_fd(), PollFlags::POLLOUT)];
                poll(&mut writable, PollTimeout::NONE)
                    .map_err(|error| LinkError::Io(error.into()))?;
            }
            Err(_) => return Ok(()),
        }
    }
}

#[test]
fn who_breaks_a_rule_is_ejected_at_once_and_costs_no_token() {
    let mut stage = Stage::new();
    let before = descriptors(stage.pid());
    for (at, (what, kind, crime)) in crimes().into_iter().enumerate() {
        let generation = at as u64 + 1;
        let (mut rounds, mut seed) = (0, 11 + generation);
        let script = move |end: &mut End, feed: &Feed| {
            rounds += u32::from(feed.round > 0);
            if feed.round > 0 && rounds == 3 {
                crime(end, feed, &mut seed)?;
                return Ok(true);
            }
            match kind {
                ProposalKind::Hidden => propose_rows(end, feed, HIDDEN, &mut seed),
                _ => propose_ids(end, feed, |_| vec![1]),
            }
        };
        let drafter =
            attach(&stage.worker, generation, Some(welcome(generation, kind)), Box::new(script));
        stage.until(generation, LinkPhase::Up);
        stage.same_as_plain(what);
        let reason = stage.until(generation, LinkPhase::Ejected);
        assert!(!reason.is_empty(), "{what}");
        drafter.join().expect("the link was closed on it");
    }
    // After all that a good one is welcome.
    attach(
        &stage.worker,
        99,
        Some(welcome(99, ProposalKind::Tokens)),
        Box::new(|end, feed| propose_ids(end, feed, |_| vec![1])),
    );
    stage.until(99, LinkPhase::Up);
    assert!(stage.same_as_plain("a good one").iter().all(|speculation| speculation.cycles > 0));
    // Of the last link there are a socket and a segment.
    let after = descriptors(stage.pid());
    assert!(after <= before + 2, "{before} descriptors before, {after} after");
}

fn descriptors(pid: u32) -> usize {
    let list = || std::fs::read_dir(format!("/proc/{pid}/fd")).map(|list| list.count()).ok();
    // Elsewhere there is nothing to count.
    list().unwrap_or(0)
}

#[test]
fn a_pair_that_does_not_go_together_is_refused_with_the_reason() {
    let mut stage = Stage::new();
    let good = |generation| welcome(generation, ProposalKind::Hidden);
    let cases: Vec<(Welcome, &str)> = vec![
        (Welcome { hidden_size: 32, ..good(1) }, "hidden"),
        (Welcome { vocab_size: 300, ..good(2) }, "vocab"),
        (Welcome { tap_layers: vec![0, 3], ..good(3) }, "layer"),
        (Welcome { tap_layers: vec![], ..good(4) }, "tap"),
        (Welcome { target_layers: 36, ..good(5) }, "layers"),
        (Welcome { mask_id: VOCAB, ..good(6) }, "mask"),
        (Welcome { block_size: 1, ..good(7) }, "block"),
        (Welcome { version: 99, ..good(8) }, "version"),
        (Welcome { generation: 1, ..good(9) }, "generation"),
        (Welcome { logit_softcap: f32::NAN, ..good(10) }, "cap"),
    ];
    for (at, (welcome, word)) in cases.into_iter().enumerate() {
        let generation = at as u64 + 1;
        attach(
            &stage.worker,
            generation,
            Some(welcome),
            Box::new(|_, _| panic!("it is not spoken to any more")),
        );
        let reason = stage.until(generation, LinkPhase::Refused);
        assert!(reason.to_lowercase().contains(word), "{word}: {reason}");
    }
    // The drafter's own refusal is passed on.
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
    let Ok(Some(Frame::Hello(hello))) = end.receive(BOUND) else { panic!("it says hello") };
    assert_eq!((hello.hidden_size, hello.vocab_size, hello.n_layers), (HIDDEN, VOCAB, 3));
    end.send(Frame::Refusal(Refusal { reason: "made for another model".into() })).expect("sent");
    assert_eq!(stage.until(50, LinkPhase::Refused), "made for another model");
    stage.same_as_plain("after refusals");
}

#[test]
fn who_goes_is_lost_and_who_is_silent_is_suspect() {
    let mut stage = Stage::new();
    attach(&stage.worker, 1, None, Box::new(|_, _| Ok(true)));
    stage.until(1, LinkPhase::Lost);
    // It dies with drafts under way.
    let mut rounds = 0;
    let dies = move |end: &mut End, feed: &Feed| {
        rounds += u32::from(feed.round > 0);
        if rounds == 4 { Ok(false) } else { propose_ids(end, feed, |_| vec![5]) }
    };
    attach(&stage.worker, 2, Some(welcome(2, ProposalKind::Tokens)), Box::new(dies));
    stage.until(2, LinkPhase::Up);
    stage.same_as_plain("it dies");
    stage.until(2, LinkPhase::Lost);
    // It never answers a want.
    let silent = |end: &mut End, feed: &Feed| end.send(Frame::Reach(reach(feed))).map(|()| true);
    attach(&stage.worker, 3, Some(welcome(3, ProposalKind::Tokens)), Box::new(silent));
    stage.until(3, LinkPhase::Up);
    let silent = stage.same_as_plain("it is silent");
    assert!(silent.iter().all(|speculation| speculation.cycles == 0));
    assert!(stage.until(3, LinkPhase::Suspect).contains("late"));
    // It answers every round after the next one was asked for: always late, and each answer is for
    // a position long left.
    let mut owed: Option<Feed> = None;
    let late = move |end: &mut End, feed: &Feed| {
        if feed.round == 0 {
            end.send(Frame::Reach(reach(feed)))?;
        } else if let Some(old) = owed.replace(feed.clone()) {
            propose_ids(end, &old, |_| vec![7, 8, 9])?;
        }
        Ok(true)
    };
    attach(&stage.worker, 4, Some(welcome(4, ProposalKind::Tokens)), Box::new(late));
    stage.until(4, LinkPhase::Up);
    stage.same_as_plain("it is late");
    // It leaves every second session out.
    let partial = |end: &mut End, feed: &Feed| {
        propose_ids(end, feed, |want| {
            if (want.session + u64::from(want.position)) % 2 == 0 { vec![1] } else { vec![] }
        })
    };
    attach(&stage.worker, 5, Some(welcome(5, ProposalKind::Tokens)), Box::new(partial));
    stage.until(5, LinkPhase::Up);
    stage.same_as_plain("it leaves some out");
    // An older link, or one of an earlier supervisor, is no link.
    let pair = make_pair(SEGMENT_BYTES).expect("a pair");
    let path = stage.worker.dir.path().join("target.link.sock");
    let stale = paceline_proto::internal::v1::Stamp { term: 1, ..STAMP };
    for (stamp, generation) in [(STAMP, 4), (stale, 60)] {
        let (end, segment) = (pair.target.as_fd(), pair.segment.as_fd());
        handover::send(&path, stamp, generation, end, segment, SEGMENT_BYTES, BOUND)
            .expect("handed over");
    }
    assert!(stage.same_as_plain("stale links").iter().any(|speculation| speculation.cycles > 0));
}

/// A drafter that serves nobody holds nobody up: behind each of its answers comes a step.
#[test]
fn who_was_left_out_takes_a_step_before_it_is_asked_for_again() {
    let mut stage = Stage::new();
    let asked = Arc::new(Mutex::new(vec![]));
    let all = asked.clone();
    let serves_nobody = move |end: &mut End, feed: &Feed| {
        all.lock()
            .expect("not poisoned")
            .extend(feed.wants.iter().map(|want| (want.session, want.position)));
        propose_ids(end, feed, |_| vec![])
    };
    attach(&stage.worker, 1, Some(welcome(1, ProposalKind::Tokens)), Box::new(serves_nobody));
    stage.until(1, LinkPhase::Up);
    assert!(
        stage.same_as_plain("it serves nobody").iter().all(|speculation| speculation.cycles == 0)
    );
    let asked = asked.lock().expect("not poisoned");
    let places: HashSet<_> = asked.iter().collect();
    assert!(asked.len() >= stage.requests.len(), "{} asked", asked.len());
    assert_eq!(places.len(), asked.len(), "drafts asked for, and places they were asked for");
}

#[test]
fn links_and_permits_come_and_go_in_the_middle_of_a_stream() {
    let mut stage = Stage::new();
    let (request, plain) = (stage.requests[0].clone(), stage.plain[0].clone());
    let known: Known =
        Arc::new(Mutex::new(vec![[request.prompt_ids.clone(), plain.clone()].concat()]));
    // Which positions a drafter was shown, by link.
    let shown: Arc<Mutex<Vec<(u64, Context)>>> = Arc::default();
    let spy = |generation: u64, known: &Known| -> Script {
        let (shown, mut play) = (shown.clone(), oracle(known.clone()));
        Box::new(move |end, feed| {
            shown
                .lock()
                .expect("not poisoned")
                .extend(feed.contexts.iter().map(|context| (generation, *context)));
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
    // A session's contexts follow one another; one that starts anew says so.
    for generation in [1, 2] {
        let of_link: Vec<_> = shown.iter().filter(|context| context.0 == generation).collect();
        for pair in of_link.windows(2) {
            let (before, after) = (pair[0].1, pair[1].1);
            assert!(after.fresh || after.position == before.position + before.rows, "{pair:?}");
        }
        assert!(of_link.first().is_none_or(|first| first.1.fresh));
    }
    assert!(!shown.is_empty(), "a link was shown something");
}

#[test]
fn where_drafts_are_never_right_a_sequence_goes_plain_and_the_drafter_is_left_alone() {
    let mut stage = Stage::new();
    stage.reason = v1::RouteReason::Prior;
    let shown = Arc::new(AtomicU64::new(0));
    let rows = shown.clone();
    // Ids that this model never chooses in these streams.
    let all: Vec<u32> = stage.plain.concat();
    let never = (4..VOCAB).find(|id| !all.contains(id)).expect("an id that is not chosen");
    let wrong = move |end: &mut End, feed: &Feed| {
        rows.fetch_add(
            feed.contexts.iter().map(|context| u64::from(context.rows)).sum(),
            Ordering::Relaxed,
        );
        propose_ids(end, feed, |want| vec![never; want.block as usize - 1])
    };
    attach(&stage.worker, 1, Some(welcome(1, ProposalKind::Tokens)), Box::new(wrong));
    stage.until(1, LinkPhase::Up);
    let (request, plain) = (stage.requests[0].clone(), stage.plain[0].clone());
    let (mut cycles, mut tokens) = (0, 0);
    for _ in 0..12 {
        let (route, speculation) = stage.one(&request, &plain);
        assert_ne!(route.reason(), v1::RouteReason::Forced);
        cycles += speculation.cycles;
        tokens += plain.len() as u64;
    }
    assert!(
        cycles > 0 && cycles * 8 < tokens,
        "{cycles} cycles for {tokens} tokens, none of which was drafted"
    );
    // Its drafter reads what its few drafts need, which is not all.
    let all_rows = 12 * (request.prompt_ids.len() + plain.len()) as u64;
    assert!(
        shown.load(Ordering::Relaxed) * 4 < all_rows * 3,
        "{} of {all_rows} rows",
        shown.load(Ordering::Relaxed)
    );
}

#[test]
fn where_drafts_are_right_they_are_asked_for_and_figures_say_so() {
    let mut stage = Stage::new();
    stage.reason = v1::RouteReason::Prior;
    let known: Known = Arc::new(Mutex::new(vec![
        [stage.requests[0].prompt_ids.clone(), stage.plain[0].clone()].concat(),
    ]));
    attach(&stage.worker, 1, Some(welcome(1, ProposalKind::Tokens)), oracle(known));
    stage.until(1, LinkPhase::Up);
    let (request, plain) = (stage.requests[0].clone(), stage.plain[0].clone());
    let served: Vec<_> = (0..12).map(|_| stage.one(&request, &plain)).collect();
    let (route, speculation) = served[11];
    assert_eq!(
        (route.lane(), route.reason()),
        (v1::Lane::Speculative, v1::RouteReason::Benefit),
        "{served:?}"
    );
    assert!(speculation.accepted as usize * 2 > plain.len(), "{served:?}");
    // A heartbeat that was made behind it has everything.
    let seen = async {
        loop {
            let beat = stage.beats.message().await.expect("beats").expect("goes on");
            if beat.figures.as_ref().is_some_and(|figures| !figures.classes.is_empty()) {
                return beat;
            }
        }
    };
    let beat = stage
        .runtime
        .block_on(async { tokio::time::timeout(BOUND, seen).await })
        .expect("figures in time");
    let figures = beat.figures.expect("there");
    assert!(
        figures.step.expect("measured").observations > 10
            && figures.draft.expect("measured").observations > 0
    );
    assert_eq!(figures.classes[0].class, "default");
    assert!(figures.classes[0].survival[0] > 0.5);
    assert!(
        figures.by_sequences[0].steps > 10
            && figures.by_sequences.iter().all(|range| range.gain >= 1.0)
    );
    let (times, memory) = (beat.step_times.expect("there"), beat.memory.expect("there"));
    assert!(times.decode_p99_us > 0 && times.prefill_p99_us > 0, "{times:?}");
    assert!(memory.active_bytes > 0 && memory.limit_bytes > memory.active_bytes, "{memory:?}");
}

#[test]
fn a_policy_holds_at_once_and_an_older_one_is_dropped() {
    let mut stage = Stage::new();
    attach(
        &stage.worker,
        1,
        Some(welcome(1, ProposalKind::Tokens)),
        Box::new(|end, feed| propose_ids(end, feed, |_| vec![1])),
    );
    stage.until(1, LinkPhase::Up);
    let (request, plain) = (stage.requests[0].clone(), stage.plain[0].clone());
    let policy = |epoch, force: PolicyForce| {
        Some(Policy {
            epoch,
            force: force.into(),
            max_concurrent: None,
            max_context: None,
            kv_pressure: 0.85,
        })
    };
    let cycles = |stage: &Stage| stage.one(&request, &plain).1.cycles;
    assert!(cycles(&stage) > 20);
    stage.set_policy(policy(3, PolicyForce::Plain)).expect("taken");
    let (route, speculation) = stage.one(&request, &plain);
    assert_eq!(
        (route.lane(), route.reason(), speculation.cycles),
        (v1::Lane::Plain, v1::RouteReason::Forced, 0)
    );
    // It is older, and dropped.
    stage.set_policy(policy(2, PolicyForce::Speculative)).expect("answered");
    assert_eq!(cycles(&stage), 0);
    stage.set_policy(policy(4, PolicyForce::Speculative)).expect("taken");
    stage.reason = v1::RouteReason::Prior;
    assert!(cycles(&stage) > 20, "it drafts though nothing comes of it");
    // No room for drafts: what one sequence holds is above this share.
    let none = Policy { kv_pressure: 0.0, ..policy(5, PolicyForce::Speculative).expect("one") };
    stage.set_policy(Some(none)).expect("taken");
    let (route, speculation) = stage.one(&request, &plain);
    assert_eq!((route.reason(), speculation.cycles), (v1::RouteReason::KvPressure, 0));
    for bad in [
        None,
        policy(6, PolicyForce::Unspecified),
        Some(Policy { force: 77, ..none }),
        Some(Policy { kv_pressure: f64::NAN, ..none }),
        Some(Policy { kv_pressure: 1.5, ..none }),
    ] {
        let refused = stage.set_policy(bad).expect_err("it is no policy");
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    }
    let stats = stage.worker.client.clone();
    let stats = stage
        .runtime
        .block_on(async { stats.clone().stats(StatsRequest { stamp: Some(STAMP) }).await });
    assert!(stats.expect("answers").into_inner().now.expect("a heartbeat").figures.is_some());
}
