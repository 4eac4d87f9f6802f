//! Clients that ask again and again, each by one protocol and with requests of all its kinds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use paceline_tests::Stack;
use paceline_tests::prompts::Dice;
use paceline_tests::replay::kinds::{self, NamedRequest};
use paceline_tests::replay::{Compared, Reply};

use super::faults::Absent;

/// Clients at once: four by gRPC, four by the protocols of HTTP.
pub const CLIENTS: usize = 8;
/// Tokens of an answer.
const TOKENS: u32 = 300;

/// Words of the refusal while the supervisor is stopped by a signal.
const SUPERVISOR_HANGS: &str = "the supervisor has not answered for 3 s";

/// Pause of a client before it asks again.
const RETRY: Duration = Duration::from_millis(250);

/// What the clients saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Streams with the content of an undisturbed run.
    pub whole: u64,
    /// Those of them that were submitted again.
    pub resumed: u64,
    /// Streams of a gateway that was killed or frozen; their clients ask again.
    pub cut: u64,
    /// Requests that were refused before they began, because the supervisor hung.
    pub refused: u64,
    /// Those of them while no supervisor was frozen.
    pub unprovoked: u64,
    /// Answers that were compared.
    pub compared: Compared,
    /// The longest pause of each resumed stream, in milliseconds.
    pub pauses_ms: Vec<f64>,
}

/// The requests of a client.
pub fn requests(client: usize) -> Vec<NamedRequest> {
    let topic = ["foxes", "ships", "rain", "bread", "glass", "wolves", "trains", "salt"][client];
    let question = &format!("Tell a long story of {topic}.");
    let image = |path: &str, stream: bool| {
        let images = kinds::http_images(client as u64, TOKENS, stream);
        images.into_iter().find(|(kind, _)| kind.starts_with(path)).expect("each has images")
    };
    let with = |mut requests: Vec<NamedRequest>, image: NamedRequest| {
        requests.push(image);
        requests
    };
    match client {
        0..4 => with(kinds::grpc(question, TOKENS), kinds::grpc_image(client as u64, TOKENS)),
        4 => with(kinds::chat_completions(question, TOKENS, true), image("chat", true)),
        5 => with(kinds::responses(question, TOKENS, true), image("responses", true)),
        6 => with(kinds::messages(question, TOKENS, true), image("messages", true)),
        _ => with(kinds::chat_completions(question, TOKENS, false), image("chat", false)),
    }
}

/// Ends the clients and the faults when it is dropped.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Goes on asking until `over`.
pub fn run(
    stack: &Stack,
    requests: &[(NamedRequest, Reply)],
    seed: u64,
    over: &AtomicBool,
    absent: &Absent,
    seen: &Mutex<Seen>,
) {
    let mut dice = Dice(seed);
    // A client that fails ends all others.
    let _ends = Ends(over);
    while !over.load(Ordering::Relaxed) {
        let ((kind, request), expected) = &requests[dice.roll(requests.len() as u64) as usize];
        let [gateway, supervisor] = absent.counts();
        let outcome = stack.request(request);
        let now = absent.counts();
        let disturbed = gateway % 2 == 1 || now[0] != gateway;
        let unsupervised = supervisor % 2 == 1 || now[1] != supervisor;
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(reply) => {
                seen.compared.same(expected, &reply, kind);
                seen.whole += 1;
                if reply.resumed > 0 {
                    seen.resumed += 1;
                    // An answer that is not streamed has no pauses.
                    seen.pauses_ms
                        .extend((reply.longest_pause_ms > 0.0).then_some(reply.longest_pause_ms));
                }
            }
            // Only a request without a token is refused for this; one that runs waits.
            Err(words) if words.contains(SUPERVISOR_HANGS) => {
                seen.unprovoked += u64::from(!unsupervised);
                seen.refused += 1;
                drop(seen);
                std::thread::sleep(RETRY);
            }
            Err(words) => {
                assert!(disturbed, "{kind}: {words}");
                seen.cut += 1;
            }
        }
    }
}
