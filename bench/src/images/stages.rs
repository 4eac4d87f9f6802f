//! The stages of the time to an image's first token, and the caches that shorten them.

use paceline_client::answer::Answer;
use serde::Serialize;

use crate::statistics::Figure;

/// State of the service's caches for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageCache {
    /// Nothing: it comes for the first time.
    New,
    /// The prefix cache holds the rows of the image: it comes in the next turn of the same
    /// conversation.
    NextTurn,
    /// The features of the image are cached: it comes in another conversation, after other words,
    /// so its rows are prefilled again.
    Elsewhere,
}

impl ImageCache {
    /// All states, in the order of measurement: each needs the ones before it.
    pub const ALL: [Self; 3] = [Self::New, Self::NextTurn, Self::Elsewhere];

    /// Name of the state in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::NextTurn => "next turn",
            Self::Elsewhere => "elsewhere",
        }
    }
}

/// Time to the first token by stage, in milliseconds: of one request, or over all runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stages<T> {
    /// Decoding, in the gateway.
    pub decode_ms: T,
    /// Resizing, in the gateway.
    pub resize_ms: T,
    /// Steps of the vision tower.
    pub tower_ms: T,
    /// Steps with rows of the prompt.
    pub prefill_ms: T,
    /// Outside these stages: template, tokenizing, hops, and waiting for steps of others.
    pub rest_ms: T,
    /// The whole time, by the gateway's clock.
    pub ttft_ms: T,
}

impl Stages<Figure> {
    /// `None` without runs.
    pub fn of(runs: &[FirstToken]) -> Option<Self> {
        let figure =
            |of: fn(&Stages<f64>) -> f64| Figure::of(runs.iter().map(|run| of(&run.stages)));
        Some(Self {
            decode_ms: figure(|run| run.decode_ms)?,
            resize_ms: figure(|run| run.resize_ms)?,
            tower_ms: figure(|run| run.tower_ms)?,
            prefill_ms: figure(|run| run.prefill_ms)?,
            rest_ms: figure(|run| run.rest_ms)?,
            ttft_ms: figure(|run| run.ttft_ms)?,
        })
    }
}

/// The first token of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FirstToken {
    /// The time until it.
    pub stages: Stages<f64>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that were found in the prefix cache.
    pub cached_tokens: u32,
}

impl FirstToken {
    /// The figures of an answer.
    pub fn of(answer: &Answer) -> Self {
        let Answer { timing, usage, .. } = answer;
        let (decode_ms, resize_ms) = (timing.image_decode_ms, timing.image_resize_ms);
        let (tower_ms, prefill_ms, ttft_ms) = (timing.tower_ms, timing.prefill_ms, timing.ttft_ms);
        let rest_ms = ttft_ms - decode_ms - resize_ms - tower_ms - prefill_ms;
        Self {
            stages: Stages { decode_ms, resize_ms, tower_ms, prefill_ms, rest_ms, ttft_ms },
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
        }
    }
}
