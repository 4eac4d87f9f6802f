//! How much images slow down streams of text beside them: the time between two messages, as the
//! client receives them. The same streams are measured in two windows: alone, and then from sending
//! the images to the first tokens of their answers.

use bytes::Bytes;
use futures::future::{self, BoxFuture, FutureExt as _, try_join_all};
use futures::stream::{FuturesUnordered, StreamExt as _};
use paceline_client::Failure;
use paceline_proto::v1::GenerateResponse;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_system::clock::monotonic_ns;
use serde::Serialize;
use tonic::Streaming;
use tonic::transport::Channel;

use super::ask::{first_token, request, story};
use super::stages::{FirstToken, ImageCache};
use crate::report::failed;
use crate::statistics::Figure;

/// Streams of text.
pub const STREAMS: usize = 4;
/// Requests with images that are sent beside them, all at once.
pub const IMAGES: usize = 2;
/// Messages of each stream before the images are sent, including the uncounted first ones.
const ALONE: usize = 40;
/// First messages of each stream, which are not counted: the prompts of the others are prefilled
/// meanwhile.
const BEGIN: usize = 8;

/// The messages of a stream: when each came (ns), and its number of tokens.
type Arrivals = Vec<(i64, usize)>;

/// Gaps between messages of streams in a window of time: of one run, or over all runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Gaps<T> {
    /// Median of a run's gaps.
    pub median_ms: T,
    /// 95th percentile of a run's gaps.
    pub p95_ms: T,
    /// A run's longest gap.
    pub longest_ms: T,
    /// Tokens a second of all streams together.
    pub tok_s: T,
    /// Length of the window.
    pub window_ms: T,
}

impl Gaps<Figure> {
    /// `None` without runs.
    pub fn of<'a>(runs: impl Iterator<Item = &'a Gaps<f64>> + Clone) -> Option<Self> {
        let figure = |of: fn(&Gaps<f64>) -> f64| Figure::of(runs.clone().map(of));
        Some(Self {
            median_ms: figure(|run| run.median_ms)?,
            p95_ms: figure(|run| run.p95_ms)?,
            longest_ms: figure(|run| run.longest_ms)?,
            tok_s: figure(|run| run.tok_s)?,
            window_ms: figure(|run| run.window_ms)?,
        })
    }
}

impl Gaps<f64> {
    /// The figures of streams between two times (ns). A gap counts if a part of it lies in the
    /// window. `None` without gaps, or if the window has no length.
    pub fn between(streams: &[Arrivals], from: i64, to: i64) -> Option<Self> {
        let pairs = streams
            .iter()
            .flat_map(|arrivals| arrivals.windows(2).map(|pair| (pair[0].0, pair[1].0)));
        let mut gaps: Vec<i64> = pairs
            .filter(|(begin, end)| *end > from && *begin < to)
            .map(|(begin, end)| end - begin)
            .collect();
        gaps.sort_unstable();
        let at = |share: f64| {
            gaps.get(((gaps.len() as f64 * share) as usize).min(gaps.len().saturating_sub(1)))
        };
        let ms = |ns: i64| ns as f64 / 1e6;
        let tokens: usize = streams
            .iter()
            .flatten()
            .filter(|(at, _)| *at > from && *at <= to)
            .map(|(_, tokens)| tokens)
            .sum();
        let (median, p95, longest) = (*at(0.5)?, *at(0.95)?, *gaps.last()?);
        (to > from).then(|| Self {
            median_ms: ms(median),
            p95_ms: ms(p95),
            longest_ms: ms(longest),
            tok_s: tokens as f64 / ((to - from) as f64 / 1e9),
            window_ms: ms(to - from),
        })
    }
}

/// One measurement of streams alone and beside images.
#[derive(Clone, Debug, PartialEq)]
pub struct BesideImages {
    /// Gaps of the streams alone.
    pub alone: Gaps<f64>,
    /// Gaps of the streams beside images.
    pub beside: Gaps<f64>,
    /// Times of the images' first tokens.
    pub images: Vec<FirstToken>,
    /// A stream reached the end of the model's context before the images' answers began.
    pub short: bool,
}

/// Measures once, with images that the service has not seen before. Streams and images have a
/// connection each, as from two clients, so that an image's bytes delay no stream.
///
/// # Errors
/// The service's refusal of one of the requests; streams so short that there is nothing to compare.
pub async fn measure(
    texts: &InferenceClient<Channel>,
    images: &InferenceClient<Channel>,
    files: Vec<Bytes>,
) -> Result<BesideImages, Failure> {
    let begun = (0..STREAMS).map(|number| begin(texts.clone(), number));
    let mut streams = try_join_all(begun).await?;
    let mut texts = TextStreams::of(&mut streams);

    // The streams begin, and then run by themselves.
    let mut from = None;
    while !texts.ended && !texts.have(ALONE) {
        let now = texts.message().await?;
        if texts.have(BEGIN) {
            from.get_or_insert(now);
        }
    }
    // The images are sent.
    let sent = monotonic_ns();
    let asked =
        files.into_iter().map(|file| first_token(images.clone(), request(ImageCache::New, file)));
    let mut answers = try_join_all(asked).boxed();
    let images = loop {
        tokio::select! {
            biased;
            message = texts.message() => { message?; }
            images = &mut answers => break images?,
        }
    };
    let until = monotonic_ns();
    // Close the gaps that were open at the end of the window.
    let ended = texts.ended;
    let arrivals = texts.close().await?;

    // What is dropped here is cancelled.
    let alone = from.and_then(|from| Gaps::between(&arrivals, from, sent));
    match alone.zip(Gaps::between(&arrivals, sent, until)) {
        Some((alone, beside)) => Ok(BesideImages { alone, beside, images, short: ended }),
        None => Err(failed(format!(
            "expected {STREAMS} streams of text that run beside images, found them at their end before that: the model's \
             context, or limits.max_new_tokens, is too short for this"
        ))),
    }
}

async fn begin(
    mut client: InferenceClient<Channel>,
    number: usize,
) -> Result<Streaming<GenerateResponse>, Failure> {
    let begun = client.chat(story(number)).await;
    Ok(begun.map_err(|status| Failure::refused(&status))?.into_inner())
}

/// A stream whose next message arrived, and its tokens; no stream at the end of the answer.
struct ArrivedText<'a> {
    at: usize,
    tokens: Result<Option<usize>, Failure>,
    stream: &'a mut Streaming<GenerateResponse>,
}

/// Streams of text that are read as their messages come.
struct TextStreams<'a> {
    waiting: FuturesUnordered<BoxFuture<'a, ArrivedText<'a>>>,
    arrivals: Vec<Arrivals>,
    /// One of them is at its end.
    ended: bool,
}

impl<'a> TextStreams<'a> {
    fn of(streams: &'a mut [Streaming<GenerateResponse>]) -> Self {
        let arrivals = vec![vec![]; streams.len()];
        let waiting =
            streams.iter_mut().enumerate().map(|(at, stream)| next(at, stream).boxed()).collect();
        Self { waiting, arrivals, ended: false }
    }

    /// Whether each stream has sent `count` messages.
    fn have(&self, count: usize) -> bool {
        self.arrivals.iter().all(|arrivals| arrivals.len() >= count)
    }

    /// Waits for the next message of any stream and returns its time. Never resolves once all
    /// streams have ended. The wait may be dropped.
    async fn message(&mut self) -> Result<i64, Failure> {
        let Some(came) = self.waiting.next().await else { return future::pending().await };
        let now = monotonic_ns();
        match came.tokens? {
            Some(tokens) => {
                self.arrivals[came.at].push((now, tokens));
                self.waiting.push(next(came.at, came.stream).boxed());
            }
            None => self.ended = true,
        }
        Ok(now)
    }

    /// Reads one more message of each stream.
    async fn close(mut self) -> Result<Vec<Arrivals>, Failure> {
        while let Some(came) = self.waiting.next().await {
            if let Some(tokens) = came.tokens? {
                self.arrivals[came.at].push((monotonic_ns(), tokens));
            }
        }
        Ok(self.arrivals)
    }
}

async fn next(at: usize, stream: &mut Streaming<GenerateResponse>) -> ArrivedText<'_> {
    loop {
        let tokens = match stream.message().await {
            // Only text that was held back.
            Ok(Some(message)) if message.token_ids.is_empty() && message.r#final.is_none() => {
                continue;
            }
            Ok(message) => Ok(message.map(|message| message.token_ids.len())),
            Err(status) => Err(Failure::refused(&status)),
        };
        return ArrivedText { at, tokens, stream };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(ms: &[i64]) -> Arrivals {
        ms.iter().map(|ms| (ms * 1_000_000, 2)).collect()
    }

    #[test]
    fn a_gap_counts_where_any_of_it_is_in_the_window() {
        let streams = [arrivals(&[0, 10, 20, 120, 130, 400]), arrivals(&[5, 15, 115, 125])];
        let pace = Gaps::between(&streams, 20_000_000, 130_000_000).expect("gaps");
        // 20-120, 120-130; of the second 15-115, 115-125. What begins at 130 or ended at 20 does
        // not.
        assert_eq!(
            (pace.median_ms, pace.p95_ms, pace.longest_ms, pace.window_ms),
            (100.0, 100.0, 100.0, 110.0)
        );
        // At 120, 130, 115, 125.
        assert!((pace.tok_s - 8.0 / 0.11).abs() < 1e-9, "{pace:?}");
        let longer = Gaps::between(&streams, 20_000_000, 131_000_000).expect("gaps");
        assert_eq!((longer.median_ms, longer.longest_ms), (100.0, 270.0));
    }

    #[test]
    fn a_stream_without_gaps_has_no_median_gap() {
        assert_eq!(Gaps::between(&[], 0, 1), None);
        assert_eq!(Gaps::between(&[arrivals(&[1])], 0, 2_000_000), None);
        assert_eq!(Gaps::between(&[arrivals(&[1, 2, 3])], 2_000_000, 2_000_000), None);
    }
}
