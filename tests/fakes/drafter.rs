//! A drafter that breaks one rule: the real worker's life and the real protocol, with a fault that
//! a file names. For faults that a real drafter does not produce on demand; the supervisor starts
//! it in the real one's place.
//!
//! The file `$FAKE_DRAFTER_FAULT` holds a word and a number: which rule, and at which round of
//! requests (counted from 1 over each link). Until then, and without a file, it is honest and
//! proposes noise.

use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use clap::Parser;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use paceline_link::{End, Frame, Handover, LinkError, Side, frame, handshake};
use paceline_process::worker::{self, Gate, Progress, WorkerContext, WorkerParts};
use paceline_proto::internal::v1::drafter_server::{Drafter, DrafterServer};
use paceline_proto::internal::v1::{
    DescribeDrafterRequest, DescribeDrafterResponse, DrafterInfo, LinkPhase, LinkReport,
    WorkerPhase,
};
use paceline_vocabulary::Exit;
use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::{
    DraftRequest, DraftShape, DraftTokens, Drafts, Feed, Proposal, ProposalKind, ReadProgress,
    SessionProgress, Welcome,
};
use paceline_vocabulary::tensor::TensorRef;
use tonic::service::RoutesBuilder;
use tonic::{Request, Response, Status};

/// Sizes of the demo pair.
const HIDDEN: u32 = 256;
const BLOCK: u32 = 16;
const FEATURE_LAYERS: [u32; 4] = [1, 3, 5, 6];
/// How often an order to stop is looked for.
const LOOK: Duration = Duration::from_millis(20);
/// How long the step of a slow one takes: half of what its test's `hang_s` allows.
const SLOW: Duration = Duration::from_secs(3);

#[derive(Debug, Parser)]
struct Args {
    #[arg(long)]
    epoch: u64,
    #[arg(long)]
    term: u64,
    #[arg(long)]
    config: Option<PathBuf>,
    #[arg(long)]
    model: Option<PathBuf>,
    #[arg(long, default_value = "drafter-0")]
    name: String,
}

enum Order {
    Link(Handover),
    Stop,
}

fn main() -> std::process::ExitCode {
    let Args { epoch, term, config, name, model } = Args::parse();
    let model = model.unwrap_or_default();
    let worker = worker::Args { program: "fake-drafter", name: name.clone(), epoch, term, config };
    worker::run(&worker, |context| parts(&name, model, context)).into()
}

struct Service {
    gate: Gate,
    model: PathBuf,
}

#[tonic::async_trait]
impl Drafter for Service {
    async fn describe(
        &self,
        request: Request<DescribeDrafterRequest>,
    ) -> Result<Response<DescribeDrafterResponse>, Status> {
        self.gate.check_stamp(request.into_inner().stamp)?;
        let drafter = DrafterInfo {
            name: "fake".into(),
            path: self.model.display().to_string(),
            kind: "fake".into(),
            weight_bytes: 1,
            block_size: BLOCK,
            images: true,
        };
        Ok(Response::new(DescribeDrafterResponse {
            epoch: self.gate.epoch(),
            pid: std::process::id(),
            drafter: Some(drafter),
            ..Default::default()
        }))
    }
}

fn parts(name: &str, model: PathBuf, context: &WorkerContext) -> Result<WorkerParts, Exit> {
    let (orders, inbox) = sync_channel(16);
    let links = orders.clone();
    let listener =
        paceline_link::listen(&context.dir.socket(&format!("{name}.link")), move |handover| {
            let _ = links.try_send(Order::Link(handover));
        })
        .map_err(|_| Exit::Unavailable)?;
    let mut services = RoutesBuilder::default();
    services.add_service(DrafterServer::new(Service { gate: context.gate.clone(), model }));
    let context = context.clone();
    Ok(WorkerParts {
        services,
        stop: Arc::new(move |_| orders.try_send(Order::Stop).is_ok()),
        engine: Box::new(move || {
            context.progress.set_load(1, 1);
            context.progress.set_phase(WorkerPhase::Idle);
            context.pulse.now();
            let exit = live(&context, &inbox);
            drop(listener);
            exit
        }),
    })
}

fn live(context: &WorkerContext, inbox: &Receiver<Order>) -> Exit {
    let mut link: Option<Play> = None;
    loop {
        match inbox.recv_timeout(if link.is_some() { Duration::ZERO } else { LOOK }) {
            Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return Exit::Asked,
            Ok(Order::Link(handover)) => {
                let generation = handover.generation;
                link = End::open(handover, Side::Drafter)
                    .ok()
                    .map(|end| Play::new(end, Arc::clone(&context.progress)));
                let report =
                    LinkReport { generation, phase: LinkPhase::Up.into(), ..LinkReport::default() };
                context.progress.set_link(report);
                context.pulse.now();
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if link.as_mut().is_some_and(|play| play.turn().is_err()) {
            link = None;
        }
    }
}

/// One link, played until it is over.
struct Play {
    end: End,
    progress: Arc<Progress>,
    fault: String,
    at: u64,
    rounds: u64,
    seed: u64,
    owed: Option<Feed>,
}

impl Play {
    fn new(end: End, progress: Arc<Progress>) -> Self {
        #[expect(clippy::disallowed_methods, reason = "how its test speaks to it")]
        let file = std::env::var("FAKE_DRAFTER_FAULT").unwrap_or_default();
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let (fault, at) = text.trim().split_once(' ').unwrap_or(("none", "0"));
        let at = at.parse().unwrap_or(1);
        let seed = end.generation().wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Self { end, progress, fault: fault.to_owned(), at, rounds: 0, seed, owed: None }
    }

    fn turn(&mut self) -> Result<(), LinkError> {
        match self.end.receive(LOOK)? {
            None => Ok(()),
            Some(Frame::Hello(hello)) if self.fault == "exit_in_the_handshake" => {
                assert!(hello.version > 0);
                #[expect(clippy::disallowed_methods, reason = "the fault")]
                std::process::exit(1)
            }
            Some(Frame::Hello(hello)) if self.fault == "wrong_hidden_size" => {
                self.welcome(hello.generation, HIDDEN + 1)
            }
            Some(Frame::Hello(hello)) => self.welcome(hello.generation, HIDDEN),
            Some(Frame::MaskRow(row)) => self.end.take(&row).map(drop),
            Some(Frame::Feed(feed)) => self.feed(feed),
            Some(other) => panic!("{other:?}"),
        }
    }

    fn welcome(&mut self, generation: u64, hidden_size: u32) -> Result<(), LinkError> {
        self.end.send(Frame::Welcome(Welcome {
            version: handshake::VERSION,
            generation,
            kind: "fake".into(),
            fingerprint: "fake".into(),
            proposal: ProposalKind::Hidden,
            hidden_size,
            vocab_size: None,
            target_layers: None,
            feature_layers: FEATURE_LAYERS.to_vec(),
            block_size: BLOCK,
            embeddings: true,
            token_ids: false,
            reads_at_once: false,
            mask_id: Some(3),
            element: TensorType::F32,
            token_digest: String::new(),
            logit_softcap: None,
            context_length: None,
        }))
    }

    // More than 60 lines: a table, one fault an arm.
    fn feed(&mut self, feed: Feed) -> Result<(), LinkError> {
        for tensor in [&feed.hidden, &feed.bonus].into_iter().flatten() {
            self.end.take(tensor)?;
        }
        if feed.round == 0 {
            let sessions = feed.contexts.iter().map(|c| SessionProgress {
                session: c.session,
                position: c.position + c.rows,
                drafts_from: 0,
            });
            return self.end.send(Frame::Progress(ReadProgress {
                sessions: sessions.collect(),
                missed: vec![],
            }));
        }
        self.rounds += 1;
        if self.rounds < self.at {
            return self.propose(&feed, |_| {});
        }
        let tensor = |proposal: &mut Proposal, change: fn(&mut TensorRef)| {
            if let Drafts::Hidden { rows: Some(rows), .. } = &mut proposal.drafts {
                change(rows);
            }
        };
        match self.fault.as_str() {
            "garbage" => {
                let bytes: Vec<u8> = (0..2048).map(|_| self.roll() as u8).collect();
                self.raw(&bytes)
            }
            "huge_frame" => self.raw(&(1u32 << 30).to_le_bytes()),
            "wrong_shape" => self
                .propose(&feed, |p| tensor(p, |t| (t.columns, t.rows) = (t.columns * t.rows, 1))),
            "offset_out_of_range" => {
                self.propose(&feed, |p| tensor(p, |t| t.offset = u64::MAX - 63))
            }
            "offset_in_the_other_half" => self.propose(&feed, |p| tensor(p, |t| t.offset = 0)),
            "session_out_of_range" => self.propose(&feed, |p| {
                if let Drafts::Hidden { shapes, .. } = &mut p.drafts {
                    shapes[0].session = u64::MAX;
                }
            }),
            "ids_out_of_range" => self.propose_ids(&feed, vec![u32::MAX; 15]),
            "replay" => {
                self.propose(&feed, |_| {})?;
                self.propose(&feed, |_| {})
            }
            "nan" => {
                let rows: u32 = feed.requests.iter().map(|request| request.block - 1).sum();
                let bytes = f32::NAN.to_ne_bytes().repeat((rows * HIDDEN) as usize);
                self.propose_rows(&feed, &bytes, |_| {})
            }
            // Each answer comes when the next round is asked for.
            "late" => match self.owed.replace(feed) {
                Some(old) => self.propose(&old, |_| {}),
                None => Ok(()),
            },
            // Legal frames that report nothing, without end.
            "flood" => self.flood(),
            "silent" => Ok(()),
            "close" => Err(LinkError::Gone),
            "hang" => loop {
                std::thread::park();
            },
            // In a step that never ends. Heartbeats go on, as they come from another thread.
            "wedged" => {
                self.progress.set_phase(WorkerPhase::Decode);
                loop {
                    std::thread::park();
                }
            }
            // No fault: one long step, below the time that it has.
            "slow" if self.rounds == self.at => {
                self.progress.set_phase(WorkerPhase::Prefill);
                std::thread::sleep(SLOW);
                self.progress.step_done(1, 0, SLOW.as_micros() as u64);
                self.progress.set_phase(WorkerPhase::Idle);
                self.propose(&feed, |_| {})
            }
            "abort" => std::process::abort(),
            "close_descriptors" => {
                // The socket under the link, as if a bug had closed the wrong descriptor.
                nix::sys::socket::shutdown(
                    self.end.poll_fd().as_raw_fd(),
                    nix::sys::socket::Shutdown::Both,
                )
                .map_err(|error| LinkError::Io(error.into()))
            }
            _ => self.propose(&feed, |_| {}),
        }
    }

    fn propose(&mut self, feed: &Feed, change: impl Fn(&mut Proposal)) -> Result<(), LinkError> {
        let rows: u32 = feed.requests.iter().map(|request| request.block - 1).sum();
        let bytes: Vec<u8> = (0..rows * HIDDEN)
            .flat_map(|_| ((self.roll() % 4000) as f32 / 1000.0 - 2.0).to_ne_bytes())
            .collect();
        self.propose_rows(feed, &bytes, change)
    }

    fn propose_rows(
        &mut self,
        feed: &Feed,
        bytes: &[u8],
        change: impl Fn(&mut Proposal),
    ) -> Result<(), LinkError> {
        let shape = |request: &DraftRequest| DraftShape {
            session: request.session,
            position: request.position,
            rows: request.block - 1,
        };
        let shapes: Vec<DraftShape> = feed.requests.iter().map(shape).collect();
        let rows = shapes.iter().map(|shape| shape.rows).sum();
        let rows = self.end.put(rows, HIDDEN, TensorType::F32, bytes)?;
        let mut proposal = Proposal { round: feed.round, drafts: Drafts::Hidden { shapes, rows } };
        change(&mut proposal);
        self.end.send(Frame::Proposal(proposal))
    }

    /// Ids in place of hidden rows.
    fn propose_ids(&mut self, feed: &Feed, ids: Vec<u32>) -> Result<(), LinkError> {
        let DraftRequest { session, position, .. } = feed.requests[0];
        let draft = DraftTokens { session, position, ids, logprobs: vec![], drafts_from: 0 };
        let drafts = Drafts::Tokens(vec![draft]);
        self.end.send(Frame::Proposal(Proposal { round: feed.round, drafts }))
    }

    fn raw(&self, bytes: &[u8]) -> Result<(), LinkError> {
        nix::unistd::write(self.end.poll_fd(), bytes)
            .map(drop)
            .map_err(|error| LinkError::Io(error.into()))
    }

    /// Sends empty progress reports until the link is closed.
    fn flood(&self) -> Result<(), LinkError> {
        let mut reports = vec![];
        for _ in 0..4096 {
            let report = Frame::Progress(ReadProgress::default());
            frame::encode(report.into(), &mut reports).expect("an empty report is short");
        }
        let mut sent = 0;
        loop {
            match nix::unistd::write(self.end.poll_fd(), &reports[sent..]) {
                Ok(count) => sent = (sent + count) % reports.len(),
                Err(Errno::EAGAIN) => {
                    let mut writable = [PollFd::new(self.end.poll_fd(), PollFlags::POLLOUT)];
                    poll(&mut writable, PollTimeout::NONE)
                        .map_err(|error| LinkError::Io(error.into()))?;
                }
                Err(_) => return Err(LinkError::Gone),
            }
        }
    }

    fn roll(&mut self) -> u64 {
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        self.seed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 20
    }
}
