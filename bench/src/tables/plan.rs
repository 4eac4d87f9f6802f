//! Lengths of prompts and requests at once. Pure.

use std::fmt;

use paceline_client::Failure;
use serde::Serialize;

use super::model::Model;

/// Requests at once, if none are named.
pub const STREAMS: [usize; 5] = [1, 2, 4, 8, 16];
/// Tokens of the shortest prompt. Each further one is `STEP` times as long, and the last one fills
/// the context.
const SHORTEST: usize = 64;
const STEP: usize = 4;
/// The length, in tokens, of prompts that are also sent several at once.
const BESIDE: usize = 256;
/// Prompt tokens of one measurement, if possible: in a single short prompt a pause of the machine
/// would be half the figure.
const TOKENS: usize = 2_048;
/// Most rounds of requests to reach them.
const ROUNDS: usize = 8;

/// Prompts of one length, and their number at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Tokens of each prompt.
    pub prompt_tokens: usize,
    /// Requests at once.
    pub streams: usize,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens x {}", self.prompt_tokens, self.streams)
    }
}

impl Shape {
    /// Prompts of one measurement: a multiple of the requests at once.
    pub fn prompts(&self) -> usize {
        let rounds = TOKENS.div_ceil(self.prompt_tokens * self.streams).clamp(1, ROUNDS);
        rounds * self.streams
    }

    /// Work of one measurement, in tokens that are prefilled. A token that is generated takes about
    /// as long as this many of a prompt.
    pub fn work(&self, answer_tokens: usize) -> usize {
        const GENERATED: usize = 8;
        self.prompts() * self.prompt_tokens + GENERATED * self.streams * answer_tokens
    }
}

/// All shapes: each length alone, then one length several at once. Without named lengths they go up
/// to the model's context.
///
/// # Errors
/// A named length leaves no room for the answer.
pub fn shapes(
    lengths: &[usize],
    streams: &[usize],
    max_tokens: u32,
    model: &Model,
) -> Result<Vec<Shape>, Failure> {
    let most = (model.context as usize).saturating_sub(max_tokens as usize);
    if let Some(length) = lengths.iter().find(|length| **length > most) {
        return Err(Failure::usage(format!(
            "--lengths: expected at most {most} tokens, which with {max_tokens} of the answer fill the context, found {length}"
        )));
    }
    let lengths = if lengths.is_empty() { up_to(most) } else { lengths.to_vec() };
    let Some(shortest) = lengths.first() else {
        let context = model.context;
        return Err(Failure::usage(format!(
            "--max-tokens: expected fewer than the context's {context} positions"
        )));
    };
    let beside = *lengths.iter().rev().find(|length| **length <= BESIDE).unwrap_or(shortest);
    let several = streams.iter().filter(|streams| **streams > 1);
    let mut shapes: Vec<Shape> = Vec::new();
    if streams.contains(&1) {
        shapes.extend(lengths.iter().map(|length| Shape { prompt_tokens: *length, streams: 1 }));
    }
    shapes.extend(several.map(|streams| Shape { prompt_tokens: beside, streams: *streams }));
    Ok(shapes)
}

/// 64, 256, 1024, ... and the longest.
fn up_to(most: usize) -> Vec<usize> {
    let lengths = std::iter::successors(Some(SHORTEST), |length| length.checked_mul(STEP));
    let mut lengths: Vec<usize> = lengths.take_while(|length| *length < most).collect();
    lengths.extend((most > 0).then_some(most));
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes(
        lengths: &[usize],
        streams: &[usize],
        max_tokens: u32,
    ) -> Result<Vec<(usize, usize)>, Failure> {
        let model = Model { context: 4_096, ..Model::default() };
        let shapes = super::shapes(lengths, streams, max_tokens, &model)?;
        Ok(shapes.iter().map(|shape| (shape.prompt_tokens, shape.streams)).collect())
    }

    #[test]
    fn lengths_go_up_to_what_the_answer_leaves_of_the_context() {
        assert_eq!(shapes(&[], &[1], 64), Ok(vec![(64, 1), (256, 1), (1_024, 1), (4_032, 1)]));
        assert_eq!(up_to(64), [64]);
        assert_eq!(up_to(5), [5]);
        assert_eq!(up_to(1_025), [64, 256, 1_024, 1_025]);
    }

    #[test]
    fn one_length_is_sent_several_at_once() {
        assert_eq!(
            shapes(&[], &STREAMS, 64).map(|shapes| shapes[4..].to_vec()),
            Ok(vec![(256, 2), (256, 4), (256, 8), (256, 16)])
        );
        assert_eq!(shapes(&[500, 900], &[4, 8], 64), Ok(vec![(500, 4), (500, 8)]));
        assert_eq!(shapes(&[32, 900], &[1, 2], 64), Ok(vec![(32, 1), (900, 1), (32, 2)]));
    }

    #[test]
    fn a_length_above_the_context_is_refused_with_both_numbers() {
        let failure = shapes(&[64, 4_033], &[1], 64).expect_err("too long");
        assert!(
            failure.message.contains("at most 4032") && failure.message.contains("found 4033"),
            "{failure}"
        );
        assert!(shapes(&[], &[1], 4_096).is_err());
    }

    #[test]
    fn short_prompts_are_measured_by_the_dozen() {
        let prompts = |prompt_tokens, streams| Shape { prompt_tokens, streams }.prompts();
        assert_eq!(
            [prompts(64, 1), prompts(256, 1), prompts(1_024, 1), prompts(4_032, 1)],
            [8, 8, 2, 1]
        );
        assert_eq!(
            [prompts(256, 2), prompts(256, 4), prompts(256, 16), prompts(64, 3)],
            [8, 8, 16, 24]
        );
    }
}
