//! `--images` measures two things: the time to the first token of an image, stage by stage, and how
//! much images slow down streams of text beside them.
//!
//! [`paint`] makes new images │ [`stages`] of a first token │ [`ask`] requests about images │
//! [`gaps`] streams beside them │ [`report`] figures over all runs, and the tables. This file has one
//! measurement.
//!
//! Stage times are the service's own (`Timing` of the last message). Gaps are measured in the
//! client, as a user notices them. There is no drafter, because its own rhythm would be part of the
//! gaps.

mod ask;
mod gaps;
mod paint;
mod report;
mod stages;

use bytes::Bytes;
use paceline_client::own_service::report::PrintedReport;
use paceline_client::{Failure, Screen};
use paceline_proto::v1::inference_client::InferenceClient;
use tonic::transport::Channel;

use self::ask::{check_vision, first_token, request, tokens};
use self::gaps::IMAGES;
use self::paint::{PixelSize, paint};
use self::report::{ImageReport, ImageRow, ImageRun, SizeLeftOut};
use self::stages::ImageCache;
use crate::args::{ANSWER_TOKENS, BenchArgs};
use crate::experiment::{self, BenchPlan, Experiment, rotated};
use crate::progress::Progress;
use crate::report::{failed, of_service};
use crate::service::MeasuredService;

/// Sizes as sent: one that usual vision towers take without resizing, a small photograph, a larger
/// one.
const SIZES: [PixelSize; 3] = [
    PixelSize { width: 224, height: 224 },
    PixelSize { width: 640, height: 480 },
    PixelSize { width: 1_280, height: 960 },
];

/// Measures everything and makes the report.
///
/// # Errors
/// The model has no vision, nothing can be measured, or the service refuses a request.
pub async fn bench(args: &BenchArgs, screen: &mut Screen) -> Result<PrintedReport, Failure> {
    let mut plan = BenchPlan::target_alone(args, 7, ANSWER_TOKENS)?;
    // Without it the next turn would find nothing in the cache.
    plan.settings.config.kv.prefix_cache = true;
    let runs = plan.runs;
    let work = async |service: &MeasuredService, screen: &mut Screen| -> Result<_, Failure> {
        let mut bench = ImageBench {
            texts: service.own.connect().await?,
            images: service.own.connect().await?,
            painted: 0,
        };
        check_vision(&mut bench.images).await?;
        let (sizes, left_out) = bench.sizes().await?;
        let measured = experiment::measure(&mut bench, runs, sizes, screen).await?;
        let rows = measured.iter().map(|one| ImageRow::of(one.cell, &one.runs)).collect();
        Ok(ImageReport { runs, rows, left_out })
    };
    of_service(args, &plan.settings, screen, work).await
}

/// Measures on a running service.
struct ImageBench {
    texts: InferenceClient<Channel>,
    images: InferenceClient<Channel>,
    /// Images so far: each is used once.
    painted: u64,
}

impl Experiment for ImageBench {
    type Cell = PixelSize;
    type Run = ImageRun;

    fn warming(&self) -> usize {
        SIZES.len()
    }

    fn order(&self, run: usize, cells: usize) -> Vec<usize> {
        rotated(run, cells)
    }

    fn work(&self, size: &PixelSize) -> f64 {
        f64::from(size.width * size.height)
    }

    /// Measures everything once with images of this size.
    async fn measure(
        &mut self,
        size: &PixelSize,
        _: &mut Progress<'_>,
    ) -> Result<ImageRun, Failure> {
        let file = self.image(*size);
        let mut first = vec![];
        for cache in ImageCache::ALL {
            first.push(first_token(self.images.clone(), request(cache, file.clone())).await?);
        }
        let files = (0..IMAGES).map(|_| self.image(*size)).collect();
        let beside = gaps::measure(&self.texts, &self.images, files).await?;
        Ok(ImageRun { first, beside })
    }

    fn line(run: &ImageRun) -> String {
        let first_ms = run.first.first().map_or(0.0, |first| first.stages.ttft_ms);
        let longest_ms = run.beside.beside.longest_ms;
        format!("first token after {first_ms:.0} ms, longest gap of texts {longest_ms:.0} ms")
    }
}

impl ImageBench {
    fn image(&mut self, size: PixelSize) -> Bytes {
        self.painted += 1;
        paint(size, self.painted).into()
    }

    /// The sizes that fit into the context, and those that do not.
    async fn sizes(&mut self) -> Result<(Vec<PixelSize>, Vec<SizeLeftOut>), Failure> {
        let (mut sizes, mut left_out) = (vec![], vec![]);
        for size in SIZES {
            // The prompt of the next turn is the longest.
            let longest = request(ImageCache::NextTurn, self.image(size));
            match tokens(&mut self.images, longest).await? {
                Ok(_) => sizes.push(size),
                Err(why) => left_out.push(SizeLeftOut { size, why }),
            }
        }
        if sizes.is_empty() {
            return Err(failed(
                "expected room for an image in the model's context, found none: serve a model with more",
            ));
        }
        Ok((sizes, left_out))
    }
}
