//! A stream of responses, read as one answer: the text as it arrives, and at the end the one object
//! of `--json`.

use paceline_proto::status::ReasonStatus as _;
use paceline_proto::v1;
use paceline_system::clock::monotonic_ns;
use serde::Serialize;
use tonic::Streaming;

use crate::failure::Failure;

/// Fewest tokens after the first one of an answer that has a speed: the cycles of a drafted answer
/// make several tokens each, so that fewer tokens may be one or two steps.
const SPEED_TOKENS: u32 = 16;
/// Shortest time after the first token of an answer that has a speed. Tokens may arrive some
/// milliseconds late and then together: on a busy machine all tokens of a tiny model at once.
const SPEED_MS: f64 = 25.0;

/// A whole answer; the object `generate --json` prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Answer {
    /// The generated text.
    pub text: String,
    /// The assistant's reasoning before the text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    /// Tool calls of the assistant.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Reasons why texts that looked like tool calls are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Generated ids, the end-of-sequence token included.
    pub token_ids: Vec<u32>,
    /// "stop" or "length".
    pub finish_reason: String,
    /// Lane that served the request, and the reason.
    pub route: Route,
    /// Counts of tokens.
    pub usage: Usage,
    /// Cycles, drafted and accepted tokens.
    pub speculation: Speculation,
    /// Where the time went, as the service measured it.
    pub timing: Timing,
    /// Tokens a second after the first token. `None` if the answer is too short to have a speed.
    pub tokens_per_s: Option<f64>,
    /// How often the stream was resumed after a fault of the supervisor or the target.
    pub resumed: u32,
    /// The seed that was used.
    pub seed: u64,
    /// The stop string that ended it, if one did.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stop: String,
    /// The id of the request in the service's logs.
    pub request_id: String,
    /// Distance of each choice from another outcome, if requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub margins: Vec<f32>,
    /// Log-probabilities, one entry for each id, if requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<Logprobs>,
    /// Tokens of each message, and when the step that chose them ended (ns, the service's clock on
    /// this machine).
    #[serde(skip)]
    pub stamps: Vec<(usize, i64)>,
    /// When each of these messages was received here (ns, the same clock).
    #[serde(skip)]
    pub received_ns: Vec<i64>,
}

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ToolCall {
    /// Id of the tool call, to which the tool's answer refers.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// Arguments: a JSON object as text; the beginning of one if the tool call is cut.
    pub arguments: String,
    #[serde(skip)]
    index: u32,
    #[serde(skip)]
    complete: bool,
    /// Whether the limit of tokens cut it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// How probable a token was (natural logarithms; `TokenLogprobs` of inference.proto).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Logprobs {
    /// Log-probability of the chosen token.
    pub logprob: f32,
    /// The most probable ones, most probable first.
    pub top: Vec<TopLogprob>,
}

/// One of the most probable tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TopLogprob {
    /// Id of the token.
    pub token_id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

impl From<v1::TokenLogprobs> for Logprobs {
    fn from(reported: v1::TokenLogprobs) -> Self {
        let top = reported
            .top
            .into_iter()
            .map(|top| TopLogprob { token_id: top.token_id, logprob: top.logprob })
            .collect();
        Self { logprob: reported.logprob, top }
    }
}

/// Lane and reason, as `paceline status` and the route log name them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Route {
    /// "plain" or "speculative".
    pub lane: String,
    /// "drafter_absent", ...
    pub reason: String,
}

/// Counts of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens of the rendered prompt.
    pub prompt_tokens: u32,
    /// Number of generated tokens.
    pub completion_tokens: u32,
    /// Tokens of the prompt that were found in the prefix cache.
    pub cached_tokens: u32,
}

/// Counts of speculative decoding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Speculation {
    /// Draft-and-verify rounds.
    pub cycles: u64,
    /// Tokens proposed.
    pub drafted: u64,
    /// Proposed tokens that the target chose as well.
    pub accepted: u64,
}

/// Milliseconds since the gateway read the request.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timing {
    /// Time in the queue.
    pub queue_ms: f64,
    /// Time until the first token.
    pub ttft_ms: f64,
    /// Time until the last token.
    pub total_ms: f64,
    /// Part of the time until the first token: decoding images.
    pub image_decode_ms: f64,
    /// Part of it: resizing images for the model.
    pub image_resize_ms: f64,
    /// Part of it: steps of the vision tower.
    pub tower_ms: f64,
    /// Part of it: steps with rows of the prompt.
    pub prefill_ms: f64,
}

impl From<v1::Timing> for Timing {
    fn from(timing: v1::Timing) -> Self {
        let v1::Timing { queue_ms, ttft_ms, total_ms, tower_ms, prefill_ms, .. } = timing;
        let v1::Timing { image_decode_ms, image_resize_ms, .. } = timing;
        Self { queue_ms, ttft_ms, total_ms, image_decode_ms, image_resize_ms, tower_ms, prefill_ms }
    }
}

impl Answer {
    /// Reads a stream to its end; `on_message` gets each message.
    ///
    /// # Errors
    /// The service's refusal, a broken connection, an end without the last message (I4), or a
    /// closed output of the text.
    pub async fn read(
        stream: &mut Streaming<v1::GenerateResponse>,
        on_message: impl FnMut(&v1::GenerateResponse) -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let mut answers = Self::read_samples(stream, 1, on_message).await?;
        answers.pop().ok_or_else(|| broken("the stream ended without its last message"))
    }

    /// Reads the answers of several samples, in their order.
    ///
    /// # Errors
    /// As [`Answer::read`].
    pub async fn read_samples(
        stream: &mut Streaming<v1::GenerateResponse>,
        samples: u32,
        mut on_message: impl FnMut(&v1::GenerateResponse) -> Result<(), Failure>,
    ) -> Result<Vec<Self>, Failure> {
        let mut answers: Vec<(Self, Option<v1::Final>)> =
            (0..samples).map(|_| Default::default()).collect();
        while let Some(message) =
            stream.message().await.map_err(|status| Failure::refused(&status))?
        {
            let received_ns = monotonic_ns();
            let Some((answer, last)) = answers.get_mut(message.sample_index as usize) else {
                return Err(broken("a message came of a sample that was not asked for"));
            };
            if last.is_some() {
                return Err(broken("a message came after the last one"));
            }
            on_message(&message)?;
            answer.text.push_str(&message.text);
            answer.reasoning.push_str(&message.reasoning);
            message.tool_calls.into_iter().for_each(|piece| answer.add(piece));
            answer.warnings.extend(message.warnings);
            if !message.token_ids.is_empty() {
                answer.stamps.push((message.token_ids.len(), message.step_end_ns));
                answer.received_ns.push(received_ns);
            }
            answer.token_ids.extend(&message.token_ids);
            answer.margins.extend(&message.margins);
            answer.logprobs.extend(message.logprobs.into_iter().map(Logprobs::from));
            answer.request_id = message.request_id;
            *last = message.r#final;
        }
        let closed = answers.into_iter().map(|(mut answer, last)| {
            answer.close(last.ok_or_else(|| broken("the stream ended without its last message"))?);
            Ok(answer)
        });
        closed.collect()
    }

    /// Adds a piece of a tool call.
    fn add(&mut self, piece: v1::ToolCallPiece) {
        let v1::ToolCallPiece { index, id, name, arguments, complete, cut } = piece;
        match self.tool_calls.last_mut().filter(|last| last.index == index) {
            Some(last) => {
                last.arguments.push_str(&arguments);
                last.complete |= complete;
                last.cut |= cut;
            }
            None => self.tool_calls.push(ToolCall { id, name, arguments, index, complete, cut }),
        }
    }

    fn close(&mut self, last: v1::Final) {
        // The text holds the characters of a tool call that turned out to be none.
        self.tool_calls.retain(|call| call.complete || call.cut);
        self.finish_reason = last.finish_reason().word();
        let route = last.route.unwrap_or_default();
        self.route = Route { lane: route.lane().word(), reason: route.reason().word() };
        let usage = last.usage.unwrap_or_default();
        self.usage = Usage {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            cached_tokens: usage.cached_tokens,
        };
        let speculation = last.speculation.unwrap_or_default();
        self.speculation = Speculation {
            cycles: speculation.cycles,
            drafted: speculation.drafted,
            accepted: speculation.accepted,
        };
        self.timing = last.timing.unwrap_or_default().into();
        self.tokens_per_s = speed(self.usage.completion_tokens, &self.timing);
        self.resumed = last.resumed;
        self.seed = last.seed;
        self.stop = last.stop;
    }

    /// Whether it waited for admission. Then it did not run together with the others.
    pub fn waited(&self) -> bool {
        self.timing.queue_ms > 0.0
    }

    /// One line of figures for a person.
    pub fn summary(&self) -> String {
        let speed = self.tokens_per_s.map_or("-".into(), |speed| format!("{speed:.1}"));
        let drafts = match self.speculation {
            Speculation { drafted: 0, .. } => String::new(),
            Speculation { drafted, accepted, .. } => {
                format!(", {accepted} of {drafted} drafts accepted")
            }
        };
        format!(
            "{} tokens, first after {:.0} ms, {speed} tok/s, {} ({}){drafts}, {}",
            self.usage.completion_tokens,
            self.timing.ttft_ms,
            self.route.lane,
            self.route.reason,
            self.finish_reason
        )
    }
}

/// Tokens a second after the first token, if there are enough tokens in enough time.
fn speed(completion_tokens: u32, timing: &Timing) -> Option<f64> {
    let tokens = completion_tokens.saturating_sub(1);
    let ms = timing.total_ms - timing.ttft_ms;
    (tokens >= SPEED_TOKENS && ms >= SPEED_MS).then(|| f64::from(tokens) * 1e3 / ms)
}

fn broken(what: &str) -> Failure {
    let advice = "; the service may be of another version, or this is our bug";
    Failure::refused(&paceline_proto::status::Reason::Bug.status(format!("{what}{advice}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_become_tool_calls_and_a_void_one_is_left_out() {
        let piece = |index, name: &str, arguments: &str, complete| v1::ToolCallPiece {
            index,
            id: if name.is_empty() { String::new() } else { format!("c{index}") },
            name: name.into(),
            arguments: arguments.into(),
            complete,
            cut: false,
        };
        let mut answer = Answer::default();
        for piece in [
            piece(0, "read", "{\"a\"", false),
            piece(0, "", ": 1}", true),
            piece(1, "time", "{", false),
            piece(2, "time", "{}", true),
            v1::ToolCallPiece { cut: true, ..piece(3, "read", "{", false) },
        ] {
            answer.add(piece);
        }
        answer.close(v1::Final::default());
        assert_eq!(
            serde_json::to_string(&answer.tool_calls).expect("plain"),
            r#"[{"id":"c0","name":"read","arguments":"{\"a\": 1}"},{"id":"c2","name":"time","arguments":"{}"},{"id":"c3","name":"read","arguments":"{","cut":true}]"#
        );
    }

    #[test]
    fn the_object_has_the_contracts_keys_in_order() {
        let mut answer = Answer {
            text: "a\n\"ü".into(),
            token_ids: vec![7],
            request_id: "r".into(),
            ..Answer::default()
        };
        answer.close(v1::Final {
            finish_reason: v1::FinishReason::Length.into(),
            usage: Some(v1::Usage {
                prompt_tokens: 3,
                completion_tokens: 1,
                cached_tokens: 2,
                ..Default::default()
            }),
            route: Some(v1::Route {
                lane: v1::Lane::Plain.into(),
                reason: v1::RouteReason::DrafterAbsent.into(),
            }),
            speculation: None,
            timing: Some(v1::Timing {
                queue_ms: 0.5,
                ttft_ms: 2.0,
                total_ms: 2.0,
                image_decode_ms: 0.125,
                image_resize_ms: 0.25,
                tower_ms: 0.75,
                prefill_ms: 0.625,
            }),
            resumed: 0,
            seed: 9,
            ..Default::default()
        });
        assert_eq!(
            serde_json::to_string(&answer).expect("plain"),
            concat!(
                r#"{"text":"a\n\"ü","token_ids":[7],"finish_reason":"length","route":{"lane":"plain","reason":"drafter_absent"},"#,
                r#""usage":{"prompt_tokens":3,"completion_tokens":1,"cached_tokens":2},"#,
                r#""speculation":{"cycles":0,"drafted":0,"accepted":0},"#,
                r#""timing":{"queue_ms":0.5,"ttft_ms":2.0,"total_ms":2.0,"image_decode_ms":0.125,"image_resize_ms":0.25,"#,
                r#""tower_ms":0.75,"prefill_ms":0.625},"tokens_per_s":null,"resumed":0,"seed":9,"request_id":"r"}"#
            )
        );
        assert_eq!(
            answer.summary(),
            "1 tokens, first after 2 ms, - tok/s, plain (drafter_absent), length"
        );
        answer.speculation = Speculation { cycles: 2, drafted: 8, accepted: 5 };
        let drafted = ", plain (drafter_absent), 5 of 8 drafts accepted, length";
        assert!(answer.summary().ends_with(drafted), "{}", answer.summary());
    }

    #[test]
    fn an_answer_has_a_speed_if_sixteen_tokens_follow_the_first_in_at_least_25_ms() {
        let shown = |completion_tokens, ms: f64| {
            let mut answer = Answer::default();
            answer.close(v1::Final {
                usage: Some(v1::Usage { completion_tokens, ..Default::default() }),
                timing: Some(v1::Timing { ttft_ms: 2.0, total_ms: 2.0 + ms, ..Default::default() }),
                ..Default::default()
            });
            answer.summary().split(", ").nth(2).expect("a speed").to_owned()
        };
        // An image's answer whose tokens arrived together, and the drafted one.
        assert_eq!(shown(48, 3.78), "- tok/s");
        assert_eq!(shown(48, 18.0), "- tok/s");
        assert_eq!(shown(16, 1e3), "- tok/s");
        assert_eq!(shown(17, 24.9), "- tok/s");
        assert_eq!(shown(17, 25.0), "640.0 tok/s");
        assert_eq!(shown(201, 1e3), "200.0 tok/s");
        assert_eq!(shown(0, -1.0), "- tok/s");
    }
}
