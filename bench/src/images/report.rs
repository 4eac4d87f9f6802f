//! The report of images: two tables with explanations.

use paceline_client::own_service::report::Report;
use paceline_client::print::Table;
use serde::Serialize;

use super::gaps::{Gaps, IMAGES, STREAMS};
use super::paint::Size;
use super::row::{First, ImageRow, Run};
use super::stages::Stages;
use crate::output::sheet::{Column, Sheet, Value, cell};
use crate::report::BenchReport;
use crate::statistics::Figure;

/// Figures of `--images`: each stage of an image, and streams of text beside images.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ImageReport {
    /// Number of runs; each measures everything once.
    pub runs: usize,
    /// A row for each size.
    pub rows: Vec<ImageRow>,
    /// Sizes that were not measured, and why.
    pub left_out: Vec<LeftOut>,
}

/// A size that was not measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeftOut {
    /// The size.
    pub size: Size,
    /// Reason that the service gave.
    pub why: String,
}

impl Report for ImageReport {
    fn failures(&self) -> Vec<String> {
        let runs = self.runs;
        let new = self.first().filter(|(_, first)| first.cache == "new" && first.towers < runs);
        new.map(|(size, First { towers, .. })| {
            format!(
                "{size}: expected the tower to compute a new image in {runs} runs, found {towers}"
            )
        })
        .collect()
    }

    fn text(&self) -> String {
        let runs = self.runs;
        let mut text = self.stages();
        text.push_str(&format!(
            "\nMilliseconds until the first token of a request alone, by stage. REST: time outside the stages (template, hops). NEW: an image\n\
             that the service had not received before. NEXT TURN: of the same conversation, from the prefix cache. ELSEWHERE: after other\n\
             words, with its features retained. TOKENS: of the prompt, and of these from the cache. Medians of {runs} runs, in brackets\n\
             the 95 % interval\n\n"
        ));
        text.push_str(&self.streams());
        text.push_str(&format!(
            "\nMilliseconds between messages of {STREAMS} streams of text at the client: alone, and from the moment when {IMAGES} requests\n\
             with new images are sent until both have their first token. 95 OF 100 and LONGEST: of a run's gaps. KEPT: the streams' tokens\n\
             per second as a share of those alone. IMAGES: their time to the first token meanwhile. All in the plain lane\n"
        ));
        for LeftOut { size, why } in &self.left_out {
            text.push_str(&format!("{size}: not measured: {why}\n"));
        }
        for ImageRow { size, short, .. } in self.rows.iter().filter(|row| row.short > 0) {
            text.push_str(&format!("{size}: in {short} of {runs} runs a stream reached the end of the context too early\n"));
        }
        for (size, First { cache, towers, .. }) in self.first() {
            if *cache != "new" && *towers > 0 {
                text.push_str(&format!("{size}: in {towers} of {runs} runs the tower computed the image once more ({cache})\n"));
            }
        }
        text
    }
}

impl BenchReport for ImageReport {
    fn sheets(&self) -> Vec<Sheet> {
        let mut first = Sheet::new(
            "first token",
            [
                Column::plain("image", "IMAGE"),
                Column::plain("request", "REQUEST"),
                Column::plain("prompt_tokens", "TOKENS"),
                Column::plain("cached_tokens", "CACHED"),
                Column::estimate("decode_ms", "DECODE ms", 1),
                Column::estimate("resize_ms", "RESIZE ms", 1),
                Column::estimate("tower_ms", "TOWER ms", 1),
                Column::estimate("prefill_ms", "PREFILL ms", 1),
                Column::estimate("rest_ms", "REST ms", 1),
                Column::estimate("ttft_ms", "FIRST TOKEN ms", 1),
            ],
        );
        for (size, row) in self.first() {
            let Stages { decode_ms, resize_ms, tower_ms, prefill_ms, rest_ms, ttft_ms } =
                &row.stages;
            let head = [
                Value::Text(size.to_string()),
                row.cache.into(),
                Value::Count(u64::from(row.prompt_tokens)),
                Value::Count(u64::from(row.cached_tokens)),
            ];
            let stages = [decode_ms, resize_ms, tower_ms, prefill_ms, rest_ms, ttft_ms];
            first.row(head.into_iter().chain(stages.map(|figure| Value::from(Some(figure)))));
        }
        vec![first, self.gaps()]
    }
}

impl ImageReport {
    /// Gaps of the streams, a row for each window.
    fn gaps(&self) -> Sheet {
        let mut sheet = Sheet::new(
            "gaps of streams",
            [
                Column::plain("image", "IMAGE"),
                Column::plain("streams", "STREAMS"),
                Column::estimate("gap_median_ms", "MEDIAN ms", 1),
                Column::estimate("gap_p95_ms", "95 OF 100 ms", 1),
                Column::estimate("gap_longest_ms", "LONGEST ms", 1),
                Column::estimate("tok_s", "tok/s", 1),
                Column::estimate("kept_share", "KEPT", 2),
                Column::estimate("image_ttft_ms", "IMAGES ms", 1),
            ],
        );
        for ImageRow { size, alone, beside, kept, beside_ttft_ms, .. } in &self.rows {
            let windows = [("alone", alone, None, None)];
            let beside = [("beside", beside, kept.as_ref(), beside_ttft_ms.as_ref())];
            for (window, gaps, kept, ttft_ms) in windows.into_iter().chain(beside) {
                let Some(Gaps { median_ms, p95_ms, longest_ms, tok_s, .. }) = gaps else {
                    continue;
                };
                let head = [Value::Text(size.to_string()), window.into()];
                let gaps = [median_ms, p95_ms, longest_ms, tok_s].map(|one| Value::from(Some(one)));
                sheet.row(head.into_iter().chain(gaps).chain([kept.into(), ttft_ms.into()]));
            }
        }
        sheet
    }

    /// Requests alone, of all sizes.
    fn first(&self) -> impl Iterator<Item = (Size, &First)> {
        self.rows.iter().flat_map(|row| row.first.iter().map(|first| (row.size, first)))
    }

    fn stages(&self) -> String {
        let head = ["IMAGE", "REQUEST", "TOKENS"];
        let stages = ["DECODE", "RESIZE", "TOWER", "PREFILL", "REST", "FIRST TOKEN"];
        let mut table = Table::new(head.into_iter().chain(stages));
        for (size, first) in self.first() {
            let Stages { decode_ms, resize_ms, tower_ms, prefill_ms, rest_ms, ttft_ms } =
                &first.stages;
            let tokens = format!("{} ({})", first.prompt_tokens, first.cached_tokens);
            let stages = [decode_ms, resize_ms, tower_ms, prefill_ms, rest_ms, ttft_ms];
            let head = [size.to_string(), first.cache.to_owned(), tokens];
            table.row(head.into_iter().chain(stages.map(|figure| of(Some(figure), 1))));
        }
        table.text()
    }

    fn streams(&self) -> String {
        let head =
            ["IMAGE", "STREAMS", "MEDIAN", "95 OF 100", "LONGEST", "tok/s", "KEPT", "IMAGES"];
        let mut table = Table::new(head);
        for ImageRow { size, alone, beside, kept, beside_ttft_ms, .. } in &self.rows {
            let mut line = |streams: &str, gaps: &Gaps<Figure>, kept, ttft_ms| {
                let Gaps { median_ms, p95_ms, longest_ms, tok_s, .. } = gaps;
                let figures = [median_ms, p95_ms, longest_ms, tok_s].map(|one| of(Some(one), 1));
                let head = [size.to_string(), streams.to_owned()];
                let images = [of(kept, 2), of(ttft_ms, 1)];
                table.row(head.into_iter().chain(figures).chain(images));
            };
            if let Some(alone) = alone {
                line("alone", alone, None, None);
            }
            if let Some(beside) = beside {
                line("beside", beside, kept.as_ref(), beside_ttft_ms.as_ref());
            }
        }
        table.text()
    }
}

fn of(figure: Option<&Figure>, digits: usize) -> String {
    cell(figure.map(|figure| &figure.estimate), digits)
}

/// A line about a size of a run.
pub fn size_line(run: usize, runs: usize, size: Size, found: &Run) -> String {
    let first_ms = found.first.first().map_or(0.0, |first| first.stages.ttft_ms);
    let longest_ms = found.beside.beside.longest_ms;
    format!(
        "run {} of {runs}: {size}: first token after {first_ms:.0} ms, longest gap of texts {longest_ms:.0} ms",
        run + 1
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use crate::output::sheet::csv;

    use super::super::gaps::BesideImages;
    use super::super::stages::{FirstToken, ImageCache};
    use super::*;
    use paceline_client::answer::{Answer, Timing, Usage};

    const SIZE: Size = Size { width: 640, height: 480 };

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
        let run = || Run {
            first: vec![stages(tower_ms, 20.0, 0), stages(0.0, 9.0, 256), stages(0.0, 12.0, 0)],
            beside: BesideImages {
                alone: gaps(25.0, 400.0),
                beside: gaps(90.0, 100.0),
                images: vec![stages(30.0, 50.0, 0), stages(30.0, 70.0, 0)],
                short: false,
            },
        };
        let rows = vec![ImageRow::of(SIZE, &(0..7).map(|_| run()).collect::<Vec<_>>())];
        let left_out =
            vec![LeftOut { size: Size { width: 1_280, height: 960 }, why: "too long".into() }];
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
