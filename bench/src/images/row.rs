//! Figures of images of one size over all runs. Pure.

use serde::Serialize;

use super::gaps::{BesideImages, Gaps};
use super::paint::Size;
use super::stages::{FirstToken, ImageCache, Stages};
use crate::statistics::Figure;

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
    /// The time to the first token.
    #[serde(flatten)]
    pub stages: Stages<Figure>,
    /// Runs in which the tower worked.
    pub towers: usize,
}

impl First {
    fn of(cache: ImageCache, runs: &[FirstToken]) -> Option<Self> {
        Some(Self {
            cache: cache.word(),
            prompt_tokens: runs.first()?.prompt_tokens,
            cached_tokens: runs.iter().map(|run| run.cached_tokens).max()?,
            stages: Stages::of(runs)?,
            towers: runs.iter().filter(|run| run.stages.tower_ms > 0.0).count(),
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
    pub alone: Option<Gaps<Figure>>,
    /// Decode speed of the streams of text while images are processed.
    pub beside: Option<Gaps<Figure>>,
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
        let first = ImageCache::ALL.iter().enumerate().filter_map(|(at, cache)| {
            let first: Vec<_> = runs.iter().filter_map(|run| run.first.get(at).copied()).collect();
            First::of(*cache, &first)
        });
        let kept = |run: &BesideImages| run.beside.tok_s / run.alone.tok_s.max(f64::MIN_POSITIVE);
        let ttft_ms = |run: &BesideImages| {
            let all = &run.images;
            all.iter().map(|first| first.stages.ttft_ms).sum::<f64>() / all.len().max(1) as f64
        };
        let beside = runs.iter().map(|run| &run.beside);
        Self {
            size,
            first: first.collect(),
            alone: Gaps::of(beside.clone().map(|run| &run.alone)),
            beside: Gaps::of(beside.clone().map(|run| &run.beside)),
            kept: Figure::of(beside.clone().map(kept)),
            beside_ttft_ms: Figure::of(beside.clone().map(ttft_ms)),
            short: beside.filter(|run| run.short).count(),
        }
    }
}

/// One run of a size.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Requests alone, in the order of `ImageCache::ALL`.
    pub first: Vec<FirstToken>,
    /// Streams of text, alone and beside images.
    pub beside: BesideImages,
}
