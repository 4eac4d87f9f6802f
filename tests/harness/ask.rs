//! Requests to a stack and their answers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use paceline_client::channel::was_not_sent;
use paceline_proto::v1::content_part::Part;
use paceline_proto::v1::generate_request::Prompt;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{
    self, ChatRequest, ContentPart, Final, GenerateRequest, GenerateResponse, Message,
};
use serde_json::Value;
use tokio::runtime::Handle;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

/// Either kind of request.
#[derive(Clone, Debug)]
pub enum Ask {
    /// A conversation.
    Chat(ChatRequest),
    /// A prompt as it is.
    Continue(GenerateRequest),
}

/// One turn of a conversation.
pub fn message(role: &str, text: &str) -> Message {
    Message {
        role: role.into(),
        content: vec![ContentPart { part: Some(Part::Text(text.into())) }],
        ..Default::default()
    }
}

/// Asks a question, greedily.
pub fn chat(text: &str) -> Ask {
    conversation(vec![message("user", text)])
}

/// Sends a conversation, greedily.
pub fn conversation(messages: Vec<Message>) -> Ask {
    Ask::Chat(ChatRequest {
        messages,
        sampling: Some(greedy()),
        limits: Some(v1::Limits::default()),
        ..Default::default()
    })
}

/// Messages as JSON has them, with plain text as content.
pub fn messages(json: &Value) -> Vec<Message> {
    let one = |value: &Value| {
        message(value["role"].as_str().unwrap(), value["content"].as_str().unwrap())
    };
    json.as_array().unwrap().iter().map(one).collect()
}

/// Continues a text, greedily.
pub fn continue_text(text: &str) -> Ask {
    as_it_is(Prompt::Text(text.into()))
}

/// Continues token ids, greedily.
pub fn continue_ids(ids: &[u32]) -> Ask {
    as_it_is(Prompt::TokenIds(v1::TokenIds { ids: ids.to_vec() }))
}

fn as_it_is(prompt: Prompt) -> Ask {
    Ask::Continue(GenerateRequest {
        prompt: Some(prompt),
        sampling: Some(greedy()),
        limits: Some(v1::Limits::default()),
        ..Default::default()
    })
}

fn greedy() -> v1::Sampling {
    v1::Sampling { temperature: Some(0.0), ..Default::default() }
}

impl Ask {
    /// The sampling parameters.
    pub fn sampling(&mut self) -> &mut v1::Sampling {
        match self {
            Ask::Chat(request) => request.sampling.get_or_insert_default(),
            Ask::Continue(request) => request.sampling.get_or_insert_default(),
        }
    }

    /// The limits.
    pub fn limits(&mut self) -> &mut v1::Limits {
        match self {
            Ask::Chat(request) => request.limits.get_or_insert_default(),
            Ask::Continue(request) => request.limits.get_or_insert_default(),
        }
    }

    /// At most this many tokens.
    pub fn max_tokens(mut self, count: u32) -> Self {
        self.limits().max_tokens = Some(count);
        self
    }

    /// Exactly this many tokens.
    pub fn exactly(mut self, count: u32) -> Self {
        self.limits().ignore_eos = true;
        self.max_tokens(count)
    }

    /// Asks for `count` answers at once.
    pub fn samples(mut self, count: u32) -> Self {
        match &mut self {
            Ask::Chat(request) => request.samples = count,
            Ask::Continue(request) => request.samples = count,
        }
        self
    }

    /// Sampled, not greedy.
    pub fn sampled(mut self, temperature: f32, top_p: f32, seed: u64) -> Self {
        let sampling = self.sampling();
        (sampling.temperature, sampling.top_p, sampling.seed) =
            (Some(temperature), Some(top_p), Some(seed));
        self
    }

    /// With this repetition penalty.
    pub fn penalty(mut self, factor: f32) -> Self {
        self.sampling().repetition_penalty = Some(factor);
        self
    }

    /// With the margin of every choice.
    pub fn with_margins(mut self) -> Self {
        match &mut self {
            Ask::Chat(request) => request.report_margins = true,
            Ask::Continue(request) => request.report_margins = true,
        }
        self
    }

    /// With log-probabilities of the chosen token and of this many most probable tokens.
    pub fn with_logprobs(mut self, count: u32) -> Self {
        match &mut self {
            Ask::Chat(request) => request.logprobs = Some(count),
            Ask::Continue(request) => request.logprobs = Some(count),
        }
        self
    }

    /// In this lane.
    pub fn route(mut self, wish: v1::RouteWish) -> Self {
        match &mut self {
            Ask::Chat(request) => request.route = wish.into(),
            Ask::Continue(request) => request.route = wish.into(),
        }
        self
    }

    /// Of this model.
    pub fn model(mut self, name: &str) -> Self {
        match &mut self {
            Ask::Chat(request) => request.model = name.into(),
            Ask::Continue(request) => request.model = name.into(),
        }
        self
    }

    /// Sends it, and once more if its connection was closed before that, as our own clients do.
    pub(crate) async fn send(
        self,
        client: InferenceClient<Channel>,
        terms: Terms<'_>,
    ) -> Result<Streaming<GenerateResponse>, Status> {
        match self.clone().send_once(client.clone(), terms).await {
            Err(status) if was_not_sent(&status) => self.send_once(client, terms).await,
            outcome => outcome,
        }
    }

    async fn send_once(
        self,
        mut client: InferenceClient<Channel>,
        terms: Terms<'_>,
    ) -> Result<Streaming<GenerateResponse>, Status> {
        let response = match self {
            Ask::Chat(request) => client.chat(terms.put_on(request)).await,
            Ask::Continue(request) => client.generate(terms.put_on(request)).await,
        };
        response.map(tonic::Response::into_inner)
    }
}

/// Terms of a request besides its message: a timeout and a key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms<'a> {
    /// Deadline of the request, from now on.
    pub(crate) within: Option<Duration>,
    /// API key of the request.
    pub(crate) key: Option<&'a str>,
}

impl Terms<'_> {
    fn put_on<T>(self, request: T) -> Request<T> {
        let mut request = Request::new(request);
        self.within.into_iter().for_each(|within| request.set_timeout(within));
        if let Some(key) = self.key {
            let value =
                MetadataValue::try_from(format!("Bearer {key}")).expect("keys are printable");
            request.metadata_mut().insert("authorization", value);
        }
        request
    }
}

/// A whole answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Text of the answer.
    pub text: String,
    /// Ids of the answer.
    pub ids: Vec<u32>,
    /// One per id where asked for.
    pub margins: Vec<f32>,
    /// One per id where asked for.
    pub logprobs: Vec<v1::TokenLogprobs>,
    /// The last message's figures.
    pub end: Final,
    /// Messages it came in.
    pub messages: usize,
    /// When the step of each message ended, in nanoseconds of the machine's clock.
    pub step_ends_ns: Vec<i64>,
}

impl Answer {
    /// Counts of tokens.
    pub fn usage(&self) -> v1::Usage {
        self.end.usage.unwrap_or_default()
    }

    /// The longest pause between two steps, in milliseconds.
    pub fn longest_gap_ms(&self) -> f64 {
        let gaps = self.step_ends_ns.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e6);
        gaps.fold(0.0, f64::max)
    }

    /// Figures of the speculation.
    pub fn speculation(&self) -> v1::Speculation {
        self.end.speculation.unwrap_or_default()
    }

    /// Lane and reason.
    pub fn route(&self) -> (v1::Lane, v1::RouteReason) {
        let route = self.end.route.unwrap_or_default();
        (route.lane(), route.reason())
    }
}

/// An answer that is still coming. Dropping it hangs up.
pub struct Live {
    stream: Streaming<GenerateResponse>,
    runtime: Handle,
    /// Answer so far.
    pub so_far: Answer,
    ended: bool,
}

impl Live {
    pub(crate) fn new(stream: Streaming<GenerateResponse>, runtime: Handle) -> Self {
        Self { stream, runtime, so_far: Answer::default(), ended: false }
    }

    async fn next(&mut self) -> Result<bool, Status> {
        let Some(message) = self.stream.message().await? else {
            assert!(self.ended, "the stream ended without its last message");
            return Ok(false);
        };
        assert!(!self.ended, "a message came after the last one");
        self.so_far.text.push_str(&message.text);
        self.so_far.ids.extend(&message.token_ids);
        self.so_far.margins.extend(&message.margins);
        self.so_far.logprobs.extend(message.logprobs);
        self.so_far.messages += 1;
        self.so_far.step_ends_ns.push(message.step_end_ns);
        if let Some(end) = message.r#final {
            (self.so_far.end, self.ended) = (end, true);
        }
        Ok(true)
    }

    /// Reads until at least this many ids are there.
    ///
    /// # Panics
    /// The stream ended before.
    pub fn read(&mut self, ids: usize) {
        let runtime = self.runtime.clone();
        while self.so_far.ids.len() < ids {
            assert!(
                runtime.block_on(self.next()).unwrap(),
                "the stream ended after {} ids",
                self.so_far.ids.len()
            );
        }
    }

    /// Reads to the end.
    ///
    /// # Errors
    /// The status the stream ended with.
    pub fn finish(self) -> Result<Answer, Status> {
        let runtime = self.runtime.clone();
        let (seen, outcome) = runtime.block_on(self.finish_partial(&AtomicU32::new(0)));
        outcome.map(|()| seen)
    }

    /// Reads to the end. `come` is the number of ids that have come.
    pub(crate) async fn finish_partial(mut self, come: &AtomicU32) -> (Answer, Result<(), Status>) {
        let outcome = loop {
            match self.next().await {
                Ok(true) => come.store(self.so_far.ids.len() as u32, Ordering::Relaxed),
                Ok(false) => break Ok(()),
                Err(status) => break Err(status),
            }
        };
        (self.so_far, outcome)
    }
}
