//! One measurement: prompts of one shape, first prefilled, then sent again to generate.

use paceline_proto::v1::generate_request::Prompt;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{GenerateRequest, Limits, RouteWish, Sampling, TokenIds};
use tonic::transport::Channel;

use crate::answer::Answer;
use crate::bench::load::at_once;
use crate::failure::Failure;

/// One answer, as the client received it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableAnswer {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Their margins, if they were asked for.
    pub margins: Vec<f32>,
    /// Tokens of each message, and when the step that chose them ended (ns, the service's clock on
    /// this machine).
    pub stamps: Vec<(usize, i64)>,
    /// Prompt tokens that were found in the prefix cache.
    pub cached: u32,
    /// Whether it waited for admission.
    pub waited: bool,
}

/// Requests for greedy answers of a fixed number of tokens, in the plain lane.
#[derive(Clone, Copy, Debug)]
pub struct TableWorkload<'a> {
    /// The prompts.
    pub prompts: &'a [Vec<u32>],
    /// Requests at once: when one ends the next begins.
    pub streams: usize,
    /// Tokens of each answer.
    pub max_tokens: usize,
    /// Whether margins are reported, which costs time.
    pub margins: bool,
}

/// Greedy sampling, independent of the model's own defaults.
pub(in crate::bench) fn greedy() -> Sampling {
    Sampling {
        temperature: Some(0.0),
        top_k: Some(0),
        top_p: Some(1.0),
        min_p: Some(0.0),
        seed: Some(0),
        repetition_penalty: Some(1.0),
        ..Default::default()
    }
}

impl TableWorkload<'_> {
    /// Sends all requests. Returns the answers in the order of the prompts. The second value is the
    /// time in seconds from the first submission to the end of the last answer.
    ///
    /// # Errors
    /// The service's refusal of one of them.
    pub async fn send(
        &self,
        client: &InferenceClient<Channel>,
    ) -> Result<(Vec<TableAnswer>, f64), Failure> {
        at_once(self.prompts, self.streams, |ids| answer(client.clone(), self.request(ids))).await
    }

    fn request(&self, ids: &[u32]) -> GenerateRequest {
        let sampling = greedy();
        GenerateRequest {
            model: String::new(),
            prompt: Some(Prompt::TokenIds(TokenIds { ids: ids.to_vec() })),
            sampling: Some(sampling),
            limits: Some(Limits {
                max_tokens: Some(self.max_tokens as u32),
                ignore_eos: true,
                ..Default::default()
            }),
            route: RouteWish::Plain.into(),
            report_margins: self.margins,
            ..Default::default()
        }
    }
}

async fn answer(
    mut client: InferenceClient<Channel>,
    request: GenerateRequest,
) -> Result<TableAnswer, Failure> {
    let mut stream =
        client.generate(request).await.map_err(|status| Failure::refused(&status))?.into_inner();
    let mut stamps = Vec::new();
    let answer = Answer::read_with(&mut stream, |message| {
        if !message.token_ids.is_empty() {
            stamps.push((message.token_ids.len(), message.step_end_ns));
        }
        Ok(())
    })
    .await?;
    Ok(TableAnswer {
        ids: answer.token_ids,
        margins: answer.margins,
        stamps,
        cached: answer.usage.cached_tokens,
        waited: answer.timing.queue_ms > 0.0,
    })
}

/// Tokens per second while all answers are generated: from the latest first token to the earliest
/// last token. `None` if an answer ended before another one began.
pub fn together(answers: &[TableAnswer]) -> Option<f64> {
    let ends = |seen: &TableAnswer| Some((seen.stamps.first()?.1, seen.stamps.last()?.1));
    let ends = answers.iter().map(ends).collect::<Option<Vec<_>>>()?;
    let begin = ends.iter().map(|(first, _)| *first).max()?;
    let end = ends.iter().map(|(_, last)| *last).min()?;
    let tokens: usize = answers
        .iter()
        .flat_map(|seen| &seen.stamps)
        .filter(|(_, at)| (begin + 1..=end).contains(at))
        .map(|(tokens, _)| tokens)
        .sum();
    (tokens > 0).then(|| tokens as f64 / ((end - begin) as f64 / 1e9))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(stamps_ms: &[(usize, i64)]) -> TableAnswer {
        TableAnswer {
            stamps: stamps_ms.iter().map(|(tokens, ms)| (*tokens, ms * 1_000_000)).collect(),
            ..TableAnswer::default()
        }
    }

    #[test]
    fn one_answer_counts_from_its_first_token_to_its_last() {
        let found = together(&[seen(&[(1, 100), (1, 110), (2, 120), (1, 140)])]).expect("a time");
        assert!((found - 4.0 / 0.04).abs() < 1e-9, "{found}");
        assert_eq!(together(&[seen(&[(4, 100)])]), None);
        assert_eq!(together(&[seen(&[])]), None);
        assert_eq!(together(&[]), None);
    }

    #[test]
    fn several_streams_count_only_while_all_of_them_decode() {
        // The second begins at 120 and the first ends at 140: four tokens of each in 20 ms.
        let first = seen(&[(1, 100), (1, 110), (1, 120), (2, 130), (2, 140)]);
        let second = seen(&[(1, 120), (2, 130), (2, 140), (1, 150), (1, 160)]);
        let found = together(&[first.clone(), second]).expect("a time");
        assert!((found - 8.0 / 0.02).abs() < 1e-9, "{found}");
        assert_eq!(together(&[first, seen(&[(1, 150), (1, 160)])]), None);
    }
}
