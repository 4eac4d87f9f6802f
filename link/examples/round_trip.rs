//! Cost of the link alone for one cycle: hidden states and an embedding one way, hidden rows back,
//! without the work of both models.
//!
//! `cargo run --release -p paceline-link --example round_trip -- [feature bytes a row] [hidden
//! size] [committed rows] [drafted rows]`

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use paceline_link::{End, Frame, Handover, SEGMENT_BYTES, Side, make_pair};
use paceline_proto::internal::v1::Stamp;
use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::{
    Context, DraftRequest, DraftSampling, DraftShape, Drafts, Feed, Proposal,
};

const ROUNDS: usize = 2_000;
const WAIT: Duration = Duration::from_secs(5);

#[expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement for a terminal")]
fn main() {
    // More than 60 lines: a tool's steps in order, with nothing to share.
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u32>().expect("a number"));
    // Those of the demo pair: four feature layers of 256 in float32, ten rows committed a cycle,
    // fifteen drafted.
    let mut number = |default| arguments.next().unwrap_or(default);
    let (feature_bytes, hidden, committed, drafted) =
        (number(4096), number(256), number(10), number(15));

    let pair = make_pair(SEGMENT_BYTES).expect("descriptors");
    let ours = Handover {
        stamp: Stamp::default(),
        generation: 1,
        socket: pair.target,
        segment: pair.segment.as_fd().try_clone_to_owned().expect("a descriptor"),
        segment_bytes: SEGMENT_BYTES,
    };
    let theirs = Handover {
        stamp: Stamp::default(),
        generation: 1,
        socket: pair.drafter,
        segment: pair.segment,
        segment_bytes: SEGMENT_BYTES,
    };
    let drafter = move || {
        let mut end = End::open(theirs, Side::Drafter).expect("a link");
        let rows = vec![0; (drafted * hidden) as usize * 4];
        while let Ok(Some(Frame::Feed(feed))) = end.receive(WAIT) {
            for tensor in [&feed.hidden, &feed.bonus].into_iter().flatten() {
                end.take(tensor).expect("fine");
            }
            let position = feed.requests[0].position;
            let shapes = vec![DraftShape { session: 1, position, rows: drafted }];
            let rows = end.put(drafted, hidden, TensorType::F32, &rows).expect("a tensor");
            let drafts = Drafts::Hidden { shapes, rows };
            end.send(Frame::Proposal(Proposal { round: feed.round, drafts })).expect("sent");
        }
    };
    let drafter =
        std::thread::Builder::new().name("drafter".into()).spawn(drafter).expect("a thread");
    let mut end = End::open(ours, Side::Target).expect("a link");
    let (features, bonus) =
        (vec![0; (committed * feature_bytes) as usize], vec![0; hidden as usize * 4]);
    let mut took = vec![];
    for round in 0..ROUNDS {
        let position = round as u32 * committed;
        let begin = Instant::now();
        let hidden_states =
            end.put(committed, feature_bytes / 4, TensorType::F32, &features).expect("a tensor");
        let bonus = end.put(1, hidden, TensorType::F32, &bonus).expect("a tensor");
        let fresh = round == 0;
        let context =
            Context { session: 1, position, rows: committed, fresh, ..Context::default() };
        let request = DraftRequest {
            session: 1,
            position: position + committed,
            block: drafted + 1,
            bonus_id: 0,
            sampling: DraftSampling::default(),
            least_survival: 0.0,
        };
        let feed = Feed {
            contexts: vec![context],
            hidden: hidden_states,
            requests: vec![request],
            bonus,
            round: round as u64 + 1,
            ..Feed::default()
        };
        end.send(Frame::Feed(feed)).expect("sent");
        match end.receive(WAIT) {
            Ok(Some(Frame::Proposal(Proposal {
                drafts: Drafts::Hidden { rows: Some(rows), .. },
                ..
            }))) => end.take(&rows).expect("fine"),
            other => panic!("{other:?}"),
        };
        took.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    let bytes = end.bytes() / ROUNDS as u64;
    drop(end);
    drafter.join().expect("it ends with the link");
    took.sort_by(f64::total_cmp);
    let at = |share: f64| took[(took.len() as f64 * share) as usize];
    println!(
        "{bytes} bytes a cycle both ways; median {:.0} us, p90 {:.0} us, p99 {:.0} us",
        at(0.5),
        at(0.9),
        at(0.99)
    );
}
