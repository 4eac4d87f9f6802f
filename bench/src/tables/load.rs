//! One measurement: prompts of one shape, first prefilled, then sent again to generate.

use paceline_client::Failure;
use paceline_client::answer::Answer;
use paceline_client::ask::{Choice, whole};
use paceline_proto::v1::generate_request::Prompt;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{GenerateRequest, Limits, RouteWish, TokenIds};
use tonic::transport::Channel;

use crate::load::at_once;

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

impl TableWorkload<'_> {
    /// Sends all requests. Returns the answers in the order of the prompts. The second value is the
    /// time in seconds from the first submission to the end of the last answer.
    ///
    /// # Errors
    /// The service's refusal of one of them.
    pub async fn send(
        &self,
        client: &InferenceClient<Channel>,
    ) -> Result<(Vec<Answer>, f64), Failure> {
        let answer = |ids: &Vec<u32>| {
            let (mut client, request) = (client.clone(), self.request(ids));
            async move { whole(client.generate(request).await).await }
        };
        let (sent, seconds) = at_once(self.prompts, self.streams, answer).await?;
        Ok((sent.into_iter().map(|sent| sent.answer).collect(), seconds))
    }

    fn request(&self, ids: &[u32]) -> GenerateRequest {
        GenerateRequest {
            prompt: Some(Prompt::TokenIds(TokenIds { ids: ids.to_vec() })),
            sampling: Some(Choice::Greedy.sampling()),
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

/// Tokens per second while all answers are generated: from the latest first token to the earliest
/// last token. `None` if an answer ended before another one began.
pub fn together(answers: &[Answer]) -> Option<f64> {
    let ends = |seen: &Answer| Some((seen.stamps.first()?.1, seen.stamps.last()?.1));
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

    fn seen(stamps_ms: &[(usize, i64)]) -> Answer {
        Answer {
            stamps: stamps_ms.iter().map(|(tokens, ms)| (*tokens, ms * 1_000_000)).collect(),
            ..Answer::default()
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
