//! The worker process, and the target as the tests play it.

#[path = "../../../tests/harness/built.rs"]
mod built;

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use paceline_link::{
    End, Frame, Handover, LinkError, SEGMENT_BYTES, Side, handshake, make_pair, send,
};
use paceline_proto::internal::v1::worker_client::WorkerClient;
use paceline_proto::internal::v1::{
    Heartbeat, LinkPhase, Stamp, StopRequest, WatchRequest, WorkerPhase,
};
use paceline_vocabulary::link::{
    Context, DraftRequest, DraftSampling, DraftShape, Drafts, Feed, Hello, Proposal, ProposalKind,
    ReadProgress, Welcome,
};
use paceline_vocabulary::tensor::TensorRef;
use paceline_vocabulary::{RequestId, TensorType};
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

use self::built::built;

/// Nothing here takes that long; a hang should end the test.
pub const BOUND: Duration = Duration::from_secs(60);
pub const STAMP: Stamp = Stamp { term: 5, epoch: 3 };
pub const HIDDEN: u32 = 256;
/// Width of a context row: hidden states of four layers.
pub const FEATURES: u32 = 4 * HIDDEN;
pub const BLOCK: u32 = 16;

pub struct Worker {
    pub child: Child,
    pub dir: tempfile::TempDir,
    pub runtime: Runtime,
    pub channel: Channel,
    watch: Option<Streaming<Heartbeat>>,
    pub generation: u64,
    /// Size of the links to come.
    pub segment_bytes: u64,
}

/// A directory that only this user may enter, as a worker wants its runtime directory.
fn private_dir(prefix: &str) -> tempfile::TempDir {
    let mode = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new()
        .prefix(prefix)
        .permissions(mode)
        .tempdir_in("/tmp")
        .expect("a temporary directory")
}

impl Worker {
    pub fn start(model: &Path) -> Self {
        Self::start_with(model, &[])
    }

    /// A worker with these variables in its environment.
    pub fn start_with(model: &Path, environment: &[(&str, &Path)]) -> Self {
        let dir = private_dir("pd");
        let log = std::fs::File::create(dir.path().join("log")).expect("a log");
        let child = Command::new(built("paceline-drafter"))
            .args(["--epoch", "3", "--term", "5", "--name", "drafter-1", "--model"])
            .arg(model)
            .env("PACELINE_CONFIG", "")
            .env("PACELINE_SUPERVISOR__RUNTIME_DIR", dir.path())
            .env("PACELINE_TARGET__MODEL", "demo-target")
            .env("PACELINE_TARGET__DEVICE", "cpu")
            .envs(environment.iter().copied())
            // Its descriptors are counted, also by a user who is not root.
            .env(paceline_system::start::DEBUGGABLE, "1")
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("starts");
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let socket = dir.path().join("drafter-1.sock");
        let channel = runtime.block_on(async { paceline_process::socket::channel(socket) });
        let mut worker = Self {
            child,
            dir,
            runtime,
            channel,
            watch: None,
            generation: 0,
            segment_bytes: SEGMENT_BYTES,
        };
        worker.watch = Some(worker.watch_it());
        worker
    }

    /// A worker that is loaded.
    pub fn ready() -> Self {
        let mut worker = Self::start(&demo());
        let beat = worker.beat(|beat| beat.phase() != WorkerPhase::Loading);
        assert_eq!(beat.phase(), WorkerPhase::Idle, "{}", beat.failure);
        worker
    }

    pub fn watch_it(&self) -> Streaming<Heartbeat> {
        let mut client = WorkerClient::new(self.channel.clone());
        let watched = async {
            loop {
                match client.watch(WatchRequest { stamp: Some(STAMP) }).await {
                    Ok(response) => break response.into_inner(),
                    Err(status) if status.code() == Code::Unavailable => {
                        tokio::time::sleep(Duration::from_millis(5)).await
                    }
                    Err(status) => panic!("{status}"),
                }
            }
        };
        self.runtime.block_on(async {
            tokio::time::timeout(BOUND, watched).await.expect("answers in time")
        })
    }

    /// The next heartbeat of which that is true.
    pub fn beat(&mut self, is_so: impl Fn(&Heartbeat) -> bool) -> Heartbeat {
        let stream = self.watch.as_mut().expect("watched");
        let found = async {
            loop {
                let beat = stream.message().await.expect("beats").expect("goes on");
                if is_so(&beat) {
                    break beat;
                }
            }
        };
        self.runtime.block_on(async {
            tokio::time::timeout(BOUND, found).await.expect("comes to that in time")
        })
    }

    pub fn phase(&mut self, phase: LinkPhase) -> Heartbeat {
        let generation = self.generation;
        self.beat(|beat| {
            beat.link
                .as_ref()
                .is_some_and(|link| link.phase() == phase && link.generation == generation)
        })
    }

    /// Hands a link over; our end of it.
    pub fn hand(&mut self, stamp: Stamp) -> End {
        self.generation += 1;
        let (generation, segment_bytes) = (self.generation, self.segment_bytes);
        let pair = make_pair(segment_bytes).expect("made");
        let path = self.dir.path().join("drafter-1.link.sock");
        send(
            &path,
            stamp,
            generation,
            pair.drafter.as_fd(),
            pair.segment.as_fd(),
            segment_bytes,
            BOUND,
        )
        .expect("taken");
        let handover = Handover {
            stamp,
            generation,
            socket: pair.target,
            segment: pair.segment,
            segment_bytes,
        };
        End::open(handover, Side::Target).expect("opens")
    }

    pub fn link(&mut self) -> Target {
        let end = self.hand(STAMP);
        let mut target = Target { end, round: 0 };
        let hello = hello(self.generation);
        target.end.send(Frame::Hello(hello.clone())).expect("sent");
        let welcome = target.welcome();
        handshake::check_welcome(&hello, &welcome).expect("they go together");
        assert_eq!((welcome.proposal, welcome.kind.as_str()), (ProposalKind::Hidden, "dflash"));
        assert_eq!(
            (welcome.block_size, welcome.mask_id, welcome.feature_layers),
            (BLOCK, Some(3), vec![1, 3, 5, 6])
        );
        let tensor = target.put(&rows(1, HIDDEN, 7), 1, HIDDEN);
        target.end.send(Frame::MaskRow(tensor)).expect("sent");
        target
    }

    pub fn stop(&mut self) -> Option<i32> {
        let mut client = WorkerClient::new(self.channel.clone());
        let request = StopRequest { stamp: Some(STAMP), grace_ms: 10_000, cause: "test".into() };
        self.runtime.block_on(async { client.stop(request).await.expect("obeys") });
        self.wait_end()
    }

    pub fn wait_end(&mut self) -> Option<i32> {
        for _ in 0..BOUND.as_millis() / 10 {
            if let Some(status) = self.child.try_wait().expect("our child") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("does not end");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Ended already in some tests.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!(
                "{}",
                std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
            );
        }
    }
}

/// The target's end as the test plays it.
pub struct Target {
    pub end: End,
    pub round: u64,
}

/// The answer to one round.
pub struct Answer {
    pub round: u64,
    pub shapes: Vec<DraftShape>,
    /// Hidden rows of each draft.
    pub drafts: Vec<Vec<f32>>,
}

/// Contexts and draft requests of a Feed with their rows.
#[derive(Default)]
pub struct Meal {
    pub feed: Feed,
    hidden: Vec<f32>,
    bonus: Vec<f32>,
}

impl Meal {
    pub fn closed(sessions: &[u64]) -> Self {
        Self { feed: Feed { closed: sessions.to_vec(), ..Feed::default() }, ..Self::default() }
    }

    pub fn context(mut self, session: u64, position: u32, hidden: &[f32], fresh: bool) -> Self {
        let rows = hidden.len() as u32 / FEATURES;
        let request_id = RequestId::parse(&format!("request-{session}"));
        let context = Context { session, position, rows, fresh, request_id, ..Context::default() };
        self.feed.contexts.push(context);
        self.hidden.extend(hidden);
        self
    }

    pub fn request(mut self, session: u64, position: u32, block: u32) -> Self {
        let sampling = DraftSampling::default();
        let least_survival = 0.0;
        let request =
            DraftRequest { session, position, block, bonus_id: 0, sampling, least_survival };
        self.feed.requests.push(request);
        self.bonus.extend(rows(1, HIDDEN, session));
        self
    }
}

impl Target {
    pub fn welcome(&mut self) -> Welcome {
        match self.end.receive(BOUND).expect("alive") {
            Some(Frame::Welcome(welcome)) => welcome,
            other => panic!("expected a Welcome, found {other:?}"),
        }
    }

    pub fn put(&mut self, values: &[f32], rows: u32, columns: u32) -> TensorRef {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        for _ in 0..BOUND.as_millis() {
            if let Some(tensor) =
                self.end.put(rows, columns, TensorType::F32, &bytes).expect("fits")
            {
                return tensor;
            }
            assert!(
                self.end.receive(Duration::from_millis(1)).expect("alive").is_none(),
                "an answer nobody waits for"
            );
        }
        panic!("no room in time");
    }

    pub fn feed(&mut self, meal: Meal) -> u64 {
        let Meal { mut feed, hidden, bonus } = meal;
        if !hidden.is_empty() {
            feed.hidden = Some(self.put(&hidden, hidden.len() as u32 / FEATURES, FEATURES));
        }
        if !bonus.is_empty() {
            feed.bonus = Some(self.put(&bonus, bonus.len() as u32 / HIDDEN, HIDDEN));
            self.round += 1;
            feed.round = self.round;
        }
        self.end.send(Frame::Feed(feed)).expect("sent");
        self.round
    }

    /// The next answer: its round, and the hidden rows of each draft.
    pub fn proposal(&mut self) -> Answer {
        loop {
            match self.end.receive(BOUND).expect("alive") {
                Some(Frame::Proposal(proposal)) => return self.answer(proposal),
                Some(Frame::Progress(_)) => {}
                other => panic!("expected a Proposal, found {other:?}"),
            }
        }
    }

    fn answer(&mut self, proposal: Proposal) -> Answer {
        let Drafts::Hidden { shapes, rows } = proposal.drafts else { panic!("expected rows") };
        let count: u32 = shapes.iter().map(|shape| shape.rows).sum();
        let mut drafts = vec![];
        if let Some(tensor) = &rows {
            assert_eq!((tensor.rows, tensor.columns), (count, HIDDEN));
            let bytes = self.end.take(tensor).expect("fair and finite");
            let number = |word: &[u8]| f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let mut values = bytes.chunks_exact(4).map(number);
            for shape in &shapes {
                drafts.push(values.by_ref().take((shape.rows * HIDDEN) as usize).collect());
            }
        }
        assert_eq!(drafts.len(), shapes.len());
        Answer { round: proposal.round, shapes, drafts }
    }

    /// Drafts for one session.
    pub fn draft(&mut self, meal: Meal) -> Vec<f32> {
        let round = self.feed(meal);
        let mut answer = self.proposal();
        assert_eq!((answer.round, answer.drafts.len()), (round, 1));
        answer.drafts.swap_remove(0)
    }

    /// Waits until the drafter reports that it has read a session up to `position`.
    pub fn read_up_to(&mut self, session: u64, position: u32) {
        loop {
            match self.end.receive(BOUND).expect("alive") {
                Some(Frame::Progress(ReadProgress { sessions, missed })) => {
                    assert_eq!(missed, Vec::<u64>::new());
                    if sessions
                        .iter()
                        .any(|read| read.session == session && read.position == position)
                    {
                        return;
                    }
                }
                other => panic!("expected a ReadProgress, found {other:?}"),
            }
        }
    }

    pub fn gone(&mut self) {
        let error = loop {
            match self.end.receive(BOUND) {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the link goes on"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, LinkError::Gone), "{error}");
    }
}

pub fn demo() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../demo/drafter")
}

pub fn hello(generation: u64) -> Hello {
    Hello {
        version: handshake::VERSION,
        generation,
        hidden_size: HIDDEN,
        vocab_size: 4096,
        n_layers: 8,
        element: TensorType::F32,
        token_digest: "00".into(),
        context_length: 4096,
        max_sessions: 8,
    }
}

/// Some rows, the same for the same seed.
pub fn rows(count: u32, columns: u32, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count * columns).map(|_| next()).collect()
}

pub fn assert_close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    let difference = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let size = b.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    assert!(size > 0.1 && difference < 1e-3 * size, "{difference} of {size}");
}
