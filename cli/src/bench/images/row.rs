//! Figures of images of one size over all runs. Pure.

use serde::Serialize;

use super::ask::ImageCache;
use super::gaps::{BesideImages, StreamGaps};
use super::paint::Size;
use crate::answer::{Timing, Usage};
use crate::bench::tables::row::Figure;

/// Time to the first token of a request by stage, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stages {
    /// Decoding, in the gateway.
    pub decode_ms: f64,
    /// Resizing, in the gateway.
    pub resize_ms: f64,
    /// Steps of the vision tower.
    pub tower_ms: f64,
    /// Steps with rows of the prompt.
    pub prefill_ms: f64,
    /// The whole time, by the gateway's clock.
    pub ttft_ms: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that were found in the prefix cache.
    pub cached_tokens: u32,
}

impl Stages {
    /// The figures of an answer.
    pub fn of(timing: &Timing, usage: &Usage) -> Self {
        Self {
            decode_ms: timing.picture_decode_ms,
            resize_ms: timing.picture_resize_ms,
            tower_ms: timing.tower_ms,
            prefill_ms: timing.prefill_ms,
            ttft_ms: timing.ttft_ms,
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
        }
    }

    /// The time outside these stages: template, tokenizing, hops, and waiting for steps of others.
    fn rest_ms(&self) -> f64 {
        self.ttft_ms - self.decode_ms - self.resize_ms - self.tower_ms - self.prefill_ms
    }
}

/// Requests with one state of the caches, over all runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct First {
    /// State of the caches: "new", "next turn" or "elsewhere".
    #[serde(rename = "meeting")]
    pub cache: &'static str,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that were found in the prefix cache, in the run with the most.
    pub cached_tokens: u32,
    /// Milliseconds of decoding, in the gateway.
    pub decode_ms: Figure,
    /// Milliseconds of resizing, in the gateway.
    pub resize_ms: Figure,
    /// Milliseconds of steps of the vision tower.
    pub tower_ms: Figure,
    /// Milliseconds of steps with rows of the prompt.
    pub prefill_ms: Figure,
    /// Milliseconds outside these stages.
    pub rest_ms: Figure,
    /// Milliseconds until the first token.
    pub ttft_ms: Figure,
    /// Runs in which the tower worked.
    pub towers: usize,
}

impl First {
    fn of(cache: ImageCache, runs: &[Stages]) -> Option<Self> {
        let figure = |of: fn(&Stages) -> f64| Figure::of(runs.iter().map(of).collect());
        Some(Self {
            cache: cache.word(),
            prompt_tokens: runs.first()?.prompt_tokens,
            cached_tokens: runs.iter().map(|run| run.cached_tokens).max()?,
            decode_ms: figure(|run| run.decode_ms)?,
            resize_ms: figure(|run| run.resize_ms)?,
            tower_ms: figure(|run| run.tower_ms)?,
            prefill_ms: figure(|run| run.prefill_ms)?,
            rest_ms: figure(Stages::rest_ms)?,
            ttft_ms: figure(|run| run.ttft_ms)?,
            towers: runs.iter().filter(|run| run.tower_ms > 0.0).count(),
        })
    }
}

/// Gaps between messages of streams in a window, over all runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gaps {
    /// Median of a run's gaps, in milliseconds.
    pub median_ms: Figure,
    /// 95th percentile of a run's gaps.
    pub p95_ms: Figure,
    /// A run's longest gap.
    pub longest_ms: Figure,
    /// Tokens per second of all streams together.
    pub tok_s: Figure,
    /// Length of the window, in milliseconds.
    pub window_ms: Figure,
}

impl Gaps {
    fn of(runs: &[&StreamGaps]) -> Option<Self> {
        let figure =
            |of: fn(&StreamGaps) -> f64| Figure::of(runs.iter().map(|run| of(run)).collect());
        Some(Self {
            median_ms: figure(|run| run.median_ms)?,
            p95_ms: figure(|run| run.p95_ms)?,
            longest_ms: figure(|run| run.longest_ms)?,
            tok_s: figure(|run| run.tok_s)?,
            window_ms: figure(|run| run.window_ms)?,
        })
    }
}

/// Figures of images of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImageRow {
    /// Size as sent.
    pub size: Size,
    /// Requests alone, one for each state of the caches.
    pub first: Vec<First>,
    /// Streams of text alone.
    pub alone: Option<Gaps>,
    /// The same streams beside images.
    pub beside: Option<Gaps>,
    /// Speed of the streams beside images over their speed alone, within each run.
    pub kept: Option<Figure>,
    /// Time to the first token of images beside streams: the mean of each run.
    pub beside_ttft_ms: Option<Figure>,
    /// Runs in which a stream ended too early.
    pub short: usize,
}

impl ImageRow {
    /// Computes the figures from all runs of a size.
    pub fn of(size: Size, runs: &[Run]) -> Self {
        let stages = |at: usize| {
            runs.iter().filter_map(|run| run.first.get(at).copied()).collect::<Vec<_>>()
        };
        let first = ImageCache::ALL
            .iter()
            .enumerate()
            .filter_map(|(at, cache)| First::of(*cache, &stages(at)))
            .collect();
        let of = |pick: fn(&BesideImages) -> &StreamGaps| {
            Gaps::of(&runs.iter().map(|run| pick(&run.beside)).collect::<Vec<_>>())
        };
        let kept = runs
            .iter()
            .map(|run| run.beside.beside.tok_s / run.beside.alone.tok_s.max(f64::MIN_POSITIVE));
        let ttft = |run: &Run| {
            let all = &run.beside.pictures;
            all.iter().map(|stages| stages.ttft_ms).sum::<f64>() / all.len().max(1) as f64
        };
        Self {
            size,
            first,
            alone: of(|run| &run.alone),
            beside: of(|run| &run.beside),
            kept: Figure::of(kept.collect()),
            beside_ttft_ms: Figure::of(runs.iter().map(ttft).collect()),
            short: runs.iter().filter(|run| run.beside.short).count(),
        }
    }
}

/// One run of a size.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Requests alone, in the order of `ImageCache::ALL`.
    pub first: Vec<Stages>,
    /// Streams of text, alone and beside images.
    pub beside: BesideImages,
}
