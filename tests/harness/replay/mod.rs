//! A request by any protocol, and the content of its answer: what must be equal in every run of the
//! request, however often a process ended meanwhile.

mod grpc;
mod http;
pub mod kinds;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use paceline_proto::v1::inference_client::InferenceClient;
use serde_json::Value;

use crate::Stack;
use crate::ask::Ask;
use crate::prompts::{NEAR_TIE, bit_equal};

/// A request by one protocol.
#[derive(Clone, Debug)]
pub enum Request {
    /// By gRPC.
    Grpc(Box<Ask>),
    /// By HTTP. The answer is a stream of events if the body has `"stream": true`.
    Http {
        /// Path of the protocol.
        path: &'static str,
        /// Body of the request.
        body: Value,
    },
}

/// Texts and numbers of an answer by their places. Not in it: ids that are drawn for each answer,
/// times, and the pieces that the answer came in.
pub type Content = BTreeMap<String, String>;

/// The token ids of one sample, and the margin of each choice.
#[derive(Clone, Debug, Default)]
struct Choices {
    ids: Vec<u32>,
    margins: Vec<f32>,
}

/// A whole answer.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// Content of the answer.
    pub content: Content,
    /// Choices of each sample. HTTP does not report them.
    choices: BTreeMap<u32, Choices>,
    /// Tokens of all samples.
    pub tokens: u32,
    /// How often the request was submitted again.
    pub resumed: u32,
    /// The longest pause between two steps of a sample (gRPC), or between two events (HTTP), in
    /// milliseconds.
    pub longest_pause_ms: f64,
}

/// Differences that are allowed on machines whose sums depend on the batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compared {
    /// Tokens that were compared.
    pub tokens: u64,
    /// Answers that parted from their reference at a near-tie.
    pub near_ties: u64,
}

impl Compared {
    /// Compares an answer with that of an undisturbed run.
    ///
    /// # Panics
    /// They differ. On machines whose sums depend on the batch they may part at a near-tie. HTTP
    /// does not report margins, so [`Compared::check`] bounds how often its answers part.
    pub fn same(&mut self, expected: &Reply, found: &Reply, what: &str) {
        self.tokens += u64::from(expected.tokens);
        if expected.content == found.content {
            return;
        }
        let margins: Vec<f32> = expected
            .choices
            .iter()
            .filter_map(|(at, one)| one.parts_at(&found.choices, *at))
            .collect();
        let places = expected.content.keys().chain(found.content.keys());
        let differ =
            places.filter(|place| expected.content.get(*place) != found.content.get(*place));
        let shown: Vec<_> = differ
            .map(|place| (place, expected.content.get(place), found.content.get(place)))
            .collect();
        assert!(
            !bit_equal() && margins.iter().all(|margin| *margin < NEAR_TIE),
            "{what}: place, expected and found: {shown:#?}, margins {margins:?}"
        );
        self.near_ties += 1;
    }

    /// Near-ties are rare: the aim is one in 100,000 tokens (I1).
    ///
    /// # Panics
    /// There are more of them than in one of 20,000 tokens.
    pub fn check(self) {
        let Self { tokens, near_ties } = self;
        let most = 1 + tokens / 20_000;
        assert!(near_ties <= most, "{near_ties} near-ties in {tokens} tokens");
    }
}

impl Choices {
    /// The margin of the first choice that differs from that of the other answer.
    fn parts_at(&self, others: &BTreeMap<u32, Choices>, sample: u32) -> Option<f32> {
        let other = others.get(&sample).map_or(&[][..], |other| &other.ids);
        let at =
            (0..self.ids.len().max(other.len())).find(|at| self.ids.get(*at) != other.get(*at))?;
        Some(self.margins.get(at).copied().unwrap_or(f32::INFINITY))
    }
}

/// A request that runs beside what follows.
#[derive(Debug)]
pub struct Running {
    progress: Arc<AtomicU32>,
    ended: JoinHandle<Result<Reply, String>>,
}

impl Running {
    /// Tokens (gRPC) or events (HTTP) that have come so far. An answer that is not streamed has
    /// none.
    pub fn progress(&self) -> u32 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Waits for the whole answer.
    ///
    /// # Errors
    /// The words of the service's refusal or of the connection's end.
    pub fn finish(self) -> Result<Reply, String> {
        self.ended.join().expect("a request does not panic")
    }
}

impl Stack {
    /// Sends a request on a thread of its own.
    pub fn begin_request(&self, request: &Request) -> Running {
        let progress = Arc::new(AtomicU32::new(0));
        let (request, counter) = (request.clone(), Arc::clone(&progress));
        let (client, runtime) = (InferenceClient::new(self.channel()), self.runtime());
        let address = self.http_address();
        let ended = std::thread::spawn(move || match request {
            Request::Grpc(ask) => runtime.block_on(grpc::answer(client, *ask, &counter)),
            Request::Http { path, body } => http::answer(&address, path, &body, &counter),
        });
        Running { progress, ended }
    }

    /// Sends a request and waits for its whole answer.
    ///
    /// # Errors
    /// Those of [`Running::finish`].
    pub fn request(&self, request: &Request) -> Result<Reply, String> {
        self.begin_request(request).finish()
    }
}
