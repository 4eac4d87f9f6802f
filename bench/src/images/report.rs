//! Figures of images of one size over all runs, and their report: two tables with explanations. Pure.

use serde::Serialize;

use super::gaps::{BesideImages, Gaps, IMAGES, STREAMS};
use super::paint::PixelSize;
use super::stages::{FirstToken, ImageCache, Stages};
use crate::output::sheet::{Look, Sheet};
use crate::report::BenchReport;
use crate::statistics::Figure;

/// Requests with one state of the caches, over all runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FirstTokens {
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

impl FirstTokens {
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
    /// PixelSize as sent.
    pub size: PixelSize,
    /// Requests alone, one for each state of the caches.
    pub first: Vec<FirstTokens>,
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
    pub fn of(size: PixelSize, runs: &[ImageRun]) -> Self {
        let first = ImageCache::ALL.iter().enumerate().filter_map(|(at, cache)| {
            let first: Vec<_> = runs.iter().filter_map(|run| run.first.get(at).copied()).collect();
            FirstTokens::of(*cache, &first)
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

    /// The streams of text alone, and beside images.
    fn windows(&self) -> impl Iterator<Item = GapRow<'_>> {
        let Self { size, alone, beside, kept, beside_ttft_ms, .. } = self;
        let alone = alone.as_ref().map(|gaps| (*size, "alone", gaps, None, None));
        let of_beside = |gaps| (*size, "beside", gaps, kept.as_ref(), beside_ttft_ms.as_ref());
        alone.into_iter().chain(beside.as_ref().map(of_beside))
    }
}

/// One run of a size.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageRun {
    /// Requests alone, in the order of `ImageCache::ALL`.
    pub first: Vec<FirstToken>,
    /// Streams of text, alone and beside images.
    pub beside: BesideImages,
}

/// Figures of `--images`: each stage of an image, and streams of text beside images.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ImageReport {
    /// Number of runs; each measures everything once.
    pub runs: usize,
    /// A row for each size.
    pub rows: Vec<ImageRow>,
    /// Sizes that were not measured, and why.
    pub left_out: Vec<SizeLeftOut>,
}

/// A size that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeLeftOut {
    /// The size.
    pub size: PixelSize,
    /// Reason that the service gave.
    pub why: String,
}

impl BenchReport for ImageReport {
    fn sheets(&self) -> Vec<Sheet> {
        let all: Vec<(PixelSize, &FirstTokens)> = self.first().collect();
        let first = Sheet::of("first token", &all)
            .plain("image", "IMAGE", |(size, _)| *size)
            .plain("request", "REQUEST", |(_, first)| first.cache)
            .plain("", "TOKENS", |(_, first)| {
                format!("{} ({})", first.prompt_tokens, first.cached_tokens)
            })
            .look(Look::Alone)
            .plain("prompt_tokens", "TOKENS", |(_, first)| first.prompt_tokens)
            .look(Look::Hidden)
            .plain("cached_tokens", "CACHED", |(_, first)| first.cached_tokens)
            .look(Look::Hidden)
            .number("decode_ms", "DECODE ms", 1, |(_, first)| Some(&first.stages.decode_ms))
            .number("resize_ms", "RESIZE ms", 1, |(_, first)| Some(&first.stages.resize_ms))
            .number("tower_ms", "TOWER ms", 1, |(_, first)| Some(&first.stages.tower_ms))
            .number("prefill_ms", "PREFILL ms", 1, |(_, first)| Some(&first.stages.prefill_ms))
            .number("rest_ms", "REST ms", 1, |(_, first)| Some(&first.stages.rest_ms))
            .number("ttft_ms", "FIRST TOKEN ms", 1, |(_, first)| Some(&first.stages.ttft_ms));
        vec![first.sheet(), self.gaps()]
    }

    fn notes(&self) -> String {
        let runs = self.runs;
        let mut text = String::new();
        for SizeLeftOut { size, why } in &self.left_out {
            text.push_str(&format!("{size}: not measured: {why}\n"));
        }
        for ImageRow { size, short, .. } in self.rows.iter().filter(|row| row.short > 0) {
            text.push_str(&format!("{size}: in {short} of {runs} runs a stream reached the end of the context too early\n"));
        }
        for (size, FirstTokens { cache, towers, .. }) in self.first() {
            if *cache != "new" && *towers > 0 {
                text.push_str(&format!("{size}: in {towers} of {runs} runs the tower computed the image once more ({cache})\n"));
            }
        }
        text
    }

    fn text(&self) -> String {
        let (runs, sheets) = (self.runs, self.sheets());
        let [first, gaps] = [&sheets[0], &sheets[1]].map(Sheet::text_in_milliseconds);
        format!(
            "{first}\n\
             Milliseconds until the first token of a request alone, by stage. REST: time outside the stages (template, hops). NEW: an image\n\
             that the service had not received before. NEXT TURN: of the same conversation, from the prefix cache. ELSEWHERE: after other\n\
             words, with its features retained. TOKENS: of the prompt, and of these from the cache. Medians of {runs} runs, in brackets\n\
             the 95 % interval\n\n{gaps}\n\
             Milliseconds between messages of {STREAMS} streams of text at the client: alone, and from the moment when {IMAGES} requests\n\
             with new images are sent until both have their first token. 95 OF 100 and LONGEST: of a run's gaps. KEPT: the streams' tokens\n\
             per second as a share of those alone. IMAGES: their time to the first token meanwhile. All in the plain lane\n{}",
            self.notes()
        )
    }

    fn failures(&self) -> Vec<String> {
        let runs = self.runs;
        let new = self.first().filter(|(_, first)| first.cache == "new" && first.towers < runs);
        new.map(|(size, FirstTokens { towers, .. })| {
            format!(
                "{size}: expected the tower to compute a new image in {runs} runs, found {towers}"
            )
        })
        .collect()
    }
}

/// Streams of text in a window: images' size, name and gaps of the window, the share of their speed
/// that the streams kept, and the times of the images.
type GapRow<'a> =
    (PixelSize, &'static str, &'a Gaps<Figure>, Option<&'a Figure>, Option<&'a Figure>);

impl ImageReport {
    /// Gaps of the streams, a row for each window.
    fn gaps(&self) -> Sheet {
        let all: Vec<GapRow<'_>> = self.rows.iter().flat_map(ImageRow::windows).collect();
        Sheet::of("gaps of streams", &all)
            .plain("image", "IMAGE", |row| row.0)
            .plain("streams", "STREAMS", |row| row.1)
            .number("gap_median_ms", "MEDIAN ms", 1, |row| Some(&row.2.median_ms))
            .number("gap_p95_ms", "95 OF 100 ms", 1, |row| Some(&row.2.p95_ms))
            .number("gap_longest_ms", "LONGEST ms", 1, |row| Some(&row.2.longest_ms))
            .number("tok_s", "tok/s", 1, |row| Some(&row.2.tok_s))
            .number("kept_share", "KEPT", 2, |row| row.3)
            .number("image_ttft_ms", "IMAGES ms", 1, |row| row.4)
            .sheet()
    }

    /// Requests alone, of all sizes.
    fn first(&self) -> impl Iterator<Item = (PixelSize, &FirstTokens)> {
        self.rows.iter().flat_map(|row| row.first.iter().map(|first| (row.size, first)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use crate::output::sheet::csv;

    use super::*;
    use paceline_client::answer::{Answer, Timing, Usage};

    const SIZE: PixelSize = PixelSize { width: 640, height: 480 };

    fn report(tower_ms: f64) -> ImageReport {
        let stages = |tower_ms, ttft_ms, cached_tokens| {
            let timing = Timing {
                image_decode_ms: 1.0,
                image_resize_ms: 2.0,
                tower_ms,
                prefill_ms: 4.0,
                ttft_ms,
                ..Timing::default()
            };
            let usage = Usage { prompt_tokens: 309, cached_tokens, ..Usage::default() };
            FirstToken::of(&Answer { timing, usage, ..Answer::default() })
        };
        let gaps = |longest_ms: f64, tok_s| Gaps {
            median_ms: 10.0,
            p95_ms: 20.0,
            longest_ms,
            tok_s,
            window_ms: 500.0,
        };
        let run = || ImageRun {
            first: vec![stages(tower_ms, 20.0, 0), stages(0.0, 9.0, 256), stages(0.0, 12.0, 0)],
            beside: BesideImages {
                alone: gaps(25.0, 400.0),
                beside: gaps(90.0, 100.0),
                images: vec![stages(30.0, 50.0, 0), stages(30.0, 70.0, 0)],
                short: false,
            },
        };
        let rows = vec![ImageRow::of(SIZE, &(0..7).map(|_| run()).collect::<Vec<_>>())];
        let left_out = vec![SizeLeftOut {
            size: PixelSize { width: 1_280, height: 960 },
            why: "too long".into(),
        }];
        ImageReport { runs: 7, rows, left_out }
    }

    #[test]
    fn the_tables_have_what_was_measured() {
        let text = report(8.0).text();
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
            .collect();
        let new = [
            "640 x 480",
            "new",
            "309 (0)",
            "1.0 (1.0 to 1.0)",
            "2.0 (2.0 to 2.0)",
            "8.0 (8.0 to 8.0)",
            "4.0 (4.0 to 4.0)",
        ];
        assert_eq!(lines[1][..7], new, "{text}");
        assert_eq!(lines[1][7..], ["5.0 (5.0 to 5.0)", "20.0 (20.0 to 20.0)"], "{text}");
        assert_eq!(lines[2][..3], ["640 x 480", "next turn", "309 (256)"], "{text}");
        assert_eq!(lines[3][1], "elsewhere", "{text}");
        let beside = text.lines().find(|line| line.contains("beside ")).expect("a line");
        assert!(
            beside.contains("90.0 (90.0 to 90.0)") && beside.contains("0.25 (0.25 to 0.25)"),
            "{beside}"
        );
        assert!(beside.ends_with("60.0 (60.0 to 60.0)"), "{beside}");
        assert!(text.contains("1280 x 960: not measured: too long\n"), "{text}");
        assert!(!text.contains("once more") && !text.contains("too early"), "{text}");
    }

    #[test]
    fn csv_has_both_tables() {
        let csv = csv(&report(8.0).sheets(), &[]);
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 1 + 3 + 2, "{csv}");
        assert!(
            lines[1].starts_with("first token,640 x 480,new,309,0,1,1,1,2,2,2,8,8,8,"),
            "{csv}"
        );
        assert!(lines[4].starts_with("gaps of streams,640 x 480,,,,"), "{csv}");
        let fields: HashSet<usize> = lines.iter().map(|line| line.split(',').count()).collect();
        assert_eq!(fields.len(), 1, "{csv}");
    }

    #[test]
    fn a_cached_image_makes_the_figures_invalid() {
        assert_eq!(report(8.0).failures(), Vec::<String>::new());
        assert!(report(0.0).failures()[0].contains("found 0"), "{:?}", report(0.0).failures());
        let mut again = report(8.0);
        again.rows[0].first[2].towers = 3;
        again.rows[0].short = 2;
        let text = again.text();
        assert!(
            text.contains("in 3 of 7 runs the tower computed the image once more (elsewhere)\n"),
            "{text}"
        );
        assert!(text.contains("in 2 of 7 runs a stream reached the end"), "{text}");
    }

    #[test]
    fn the_object_has_everything() {
        let object = serde_json::to_value(report(8.0)).expect("plain");
        let row = &object["rows"][0];
        assert_eq!(
            (&row["size"], &row["first"][0]["meeting"]),
            (&"640 x 480".into(), &ImageCache::New.word().into())
        );
        assert_eq!(row["first"][0]["tower_ms"]["values"].as_array().map(Vec::len), Some(7));
        assert_eq!(
            (&row["beside"]["longest_ms"]["median"], &row["kept"]["median"]),
            (&90.0.into(), &0.25.into())
        );
        assert_eq!(object["left_out"][0]["size"], "1280 x 960");
    }
}
