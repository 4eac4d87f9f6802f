//! `--images` measures two things: the time to the first token of an image, stage by stage, and how
//! much images slow down streams of text beside them.
//!
//! [`paint`] makes new images │ [`stages`] of a first token │ [`ask`] requests about images │
//! [`gaps`] streams beside them │ [`row`] figures over all runs │ [`report`] the tables. This file
//! has the order of the steps.
//!
//! Stage times are the service's own (`Timing` of the last message). Gaps are measured in the
//! client, as a user notices them. There is no drafter, because its own rhythm would be part of the
//! gaps.

mod ask;
mod gaps;
mod paint;
mod report;
mod row;
mod stages;

use bytes::Bytes;
use paceline_client::own_service::report::PrintedReport;
use paceline_client::{Failure, Screen};
use paceline_proto::v1::inference_client::InferenceClient;
use tonic::transport::Channel;

use self::ask::{check_vision, first_token, request, tokens};
use self::gaps::IMAGES;
use self::paint::{Size, paint};
use self::report::{ImageReport, LeftOut, size_line};
use self::row::{ImageRow, Run};
use self::stages::ImageCache;
use crate::args::BenchArgs;
use crate::progress::Progress;
use crate::report::{failed, of_service};
use crate::service::MeasuredService;

/// Sizes as sent: one that usual vision towers take without resizing, a small photograph, a larger
/// one.
const SIZES: [Size; 3] = [
    Size { width: 224, height: 224 },
    Size { width: 640, height: 480 },
    Size { width: 1_280, height: 960 },
];

/// Measures everything and makes the report.
///
/// # Errors
/// The model has no vision, nothing can be measured, or the service refuses a request.
pub async fn bench(args: &BenchArgs, screen: &mut Screen) -> Result<PrintedReport, Failure> {
    let mut settings = args.settings(None)?.without_drafter()?;
    // Without it the next turn would find nothing in the cache.
    settings.config.kv.prefix_cache = true;
    let runs = args.runs(7);
    let work =
        async |service: &MeasuredService, screen: &mut Screen| measure(runs, service, screen).await;
    of_service(args, &settings, screen, work).await
}

async fn measure(
    runs: usize,
    service: &MeasuredService,
    screen: &mut Screen,
) -> Result<ImageReport, Failure> {
    let mut bench = ImageBench {
        texts: service.own.connect().await?,
        images: service.own.connect().await?,
        painted: 0,
    };
    check_vision(&mut bench.images).await?;
    let (mut sizes, mut left_out) = (vec![], vec![]);
    for size in SIZES {
        // The prompt of the next turn is the longest.
        let longest = request(ImageCache::NextTurn, bench.image(size));
        match tokens(&mut bench.images, longest).await? {
            Ok(_) => sizes.push(size),
            Err(why) => left_out.push(LeftOut { size, why }),
        }
    }
    if sizes.is_empty() {
        return Err(failed(
            "expected room for an image in the model's context, found none: serve a model with more",
        ));
    }
    // The first steps of a process are slow in many ways.
    for size in &sizes {
        bench.run(*size).await?;
    }
    let mut measured: Vec<Vec<Run>> = vec![vec![]; sizes.len()];
    let work = |size: &Size| f64::from(size.width * size.height);
    let all: f64 = sizes.iter().map(work).sum();
    let mut progress = Progress::begin(all * runs as f64);
    for run in 0..runs {
        for step in 0..sizes.len() {
            // Each run begins with another size.
            let at = (run + step) % sizes.len();
            progress.show(run, runs, &sizes[at].to_string(), screen);
            let found = bench.run(sizes[at]).await?;
            progress.add(work(&sizes[at]));
            screen.note(&size_line(run, runs, sizes[at], &found));
            measured[at].push(found);
        }
        progress.note(run, runs, screen);
    }
    let rows = sizes.iter().zip(&measured).map(|(size, runs)| ImageRow::of(*size, runs)).collect();
    Ok(ImageReport { runs, rows, left_out })
}

/// Measures on a running service.
struct ImageBench {
    texts: InferenceClient<Channel>,
    images: InferenceClient<Channel>,
    /// Images so far: each is used once.
    painted: u64,
}

impl ImageBench {
    fn image(&mut self, size: Size) -> Bytes {
        self.painted += 1;
        paint(size, self.painted).into()
    }

    /// Measures everything once with images of this size.
    async fn run(&mut self, size: Size) -> Result<Run, Failure> {
        let file = self.image(size);
        let mut first = vec![];
        for cache in ImageCache::ALL {
            first.push(first_token(self.images.clone(), request(cache, file.clone())).await?);
        }
        let files = (0..IMAGES).map(|_| self.image(size)).collect();
        let beside = gaps::measure(&self.texts, &self.images, files).await?;
        Ok(Run { first, beside })
    }
}
