//! Answers over gRPC.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering};

use paceline_client::channel::sent;
use paceline_proto::v1::GenerateResponse;
use paceline_proto::v1::inference_client::InferenceClient;
use tonic::Status;
use tonic::transport::Channel;

use super::{Choices, Content, Reply};
use crate::ask::Ask;
use crate::prompts::bit_equal;

/// Sends a request and reads its whole answer. `progress` counts the ids that have come.
pub(super) async fn answer(
    mut client: InferenceClient<Channel>,
    ask: Ask,
    progress: &AtomicU32,
) -> Result<Reply, String> {
    let words = |status: Status| format!("{status:?}");
    let (samples, response) = match ask {
        Ask::Chat(ask) => (ask.samples, sent(async || client.chat(ask.clone()).await).await),
        Ask::Continue(ask) => {
            (ask.samples, sent(async || client.generate(ask.clone()).await).await)
        }
    };
    let mut stream = response.map_err(words)?.into_inner();
    let mut gathered = Gathered::default();
    while let Some(message) = stream.message().await.map_err(words)? {
        progress.fetch_add(message.token_ids.len() as u32, Ordering::Relaxed);
        gathered.add(message);
    }
    gathered.reply(samples.max(1))
}

/// An answer as far as it has come.
#[derive(Default)]
struct Gathered {
    content: Content,
    choices: BTreeMap<u32, Choices>,
    /// End of each sample's last step.
    step_ends_ns: BTreeMap<u32, i64>,
    longest_pause_ns: i64,
    ended: u32,
    tokens: u32,
    resumed: u32,
}

impl Gathered {
    fn add(&mut self, message: GenerateResponse) {
        let sample = message.sample_index;
        let mut put = |name: &str, text: &dyn Display| {
            let place = self.content.entry(format!("{sample} {name}")).or_default();
            place.push_str(&text.to_string());
        };
        put("text", &message.text);
        put("reasoning", &message.reasoning);
        message.token_ids.iter().for_each(|id| put("ids", &format!("{id} ")));
        // They are sums, which are equal only where rows are bit-equal.
        let logprobs = message.logprobs.iter().filter(|_| bit_equal());
        logprobs.for_each(|one| put("log-probabilities", &format!("{one:?} ")));
        message.warnings.iter().for_each(|warning| put("warnings", warning));
        for piece in &message.tool_calls {
            put(&format!("tool {}", piece.index), &piece.name);
            put(&format!("arguments {}", piece.index), &piece.arguments);
        }
        if let Some(end) = &message.r#final {
            let tokens = end.usage.unwrap_or_default().completion_tokens;
            put("end", &format!("{:?} {:?} {tokens} tokens", end.finish_reason(), end.stop));
            self.ended += 1;
            self.tokens += tokens;
            self.resumed += end.resumed;
        }
        let before = self.step_ends_ns.insert(sample, message.step_end_ns);
        let pause_ns = before.map_or(0, |before| message.step_end_ns - before);
        self.longest_pause_ns = self.longest_pause_ns.max(pause_ns);
        let choices = self.choices.entry(sample).or_default();
        choices.ids.extend(message.token_ids);
        choices.margins.extend(message.margins);
    }

    fn reply(self, samples: u32) -> Result<Reply, String> {
        let Self { content, choices, longest_pause_ns, ended, tokens, resumed, .. } = self;
        if ended != samples {
            return Err(format!("expected the ends of {samples} samples, found {ended}"));
        }
        let longest_pause_ms = longest_pause_ns as f64 / 1e6;
        Ok(Reply { content, choices, tokens, resumed, longest_pause_ms })
    }
}
