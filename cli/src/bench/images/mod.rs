//! `paceline bench --images` measures two things: the time to the first token of an image, stage by
//! stage, and how much images slow down streams of text beside them.
//!
//! [`paint`] makes new images │ [`ask`] requests about them │ [`gaps`] streams beside them │
//! [`row`] figures over all runs │ [`report`] the tables. This file has the order of the steps.
//!
//! Stage times are the service's own (`Timing` of the last message). Gaps are measured in the
//! client, as a user notices them. There is no drafter, because its own rhythm would be part of the
//! gaps.

pub mod ask;
pub mod gaps;
pub mod paint;
pub mod report;
pub mod row;

use std::path::PathBuf;

use bytes::Bytes;
use paceline_process::config::{Config, DrafterModels};
use paceline_process::{Clock, RuntimeDir, chain};
use paceline_proto::v1::inference_client::InferenceClient;
use tonic::transport::Channel;

use self::ask::{ImageCache, check_vision, first_token, request, tokens};
use self::gaps::PICTURES;
use self::paint::{Size, paint};
use self::report::{ImageReport, LeftOut};
use self::row::{ImageRow, Run};
use super::note_time_left;
use crate::args::BenchArgs;
use crate::client;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::selftest::plan::settings;
use crate::selftest::report::Subject;
use crate::selftest::service::until_ready;

/// Sizes as sent: one that usual vision towers take without resizing, a small photograph, a larger
/// one.
const SIZES: [Size; 3] = [
    Size { width: 224, height: 224 },
    Size { width: 640, height: 480 },
    Size { width: 1_280, height: 960 },
];

/// What is measured.
struct ImagePlan {
    file: Option<PathBuf>,
    config: Config,
    runs: usize,
}

impl ImagePlan {
    fn from_args(args: &BenchArgs) -> Result<Self, Failure> {
        let (mut config, file) =
            settings(args.config.config.as_deref(), args.model.as_deref(), None)?;
        config.target.model = config.model_dir()?.display().to_string();
        config.drafter.model = DrafterModels::none();
        // Without it the next turn would find nothing in the cache.
        config.kv.prefix_cache = true;
        Ok(Self { file, config, runs: args.runs.map_or(7, |runs| runs as usize) })
    }
}

/// Measures everything and returns the report.
///
/// # Errors
/// The model has no vision, nothing can be measured, or the service refuses a request.
pub async fn bench(args: &BenchArgs, screen: &mut Screen) -> Result<ImageReport, Failure> {
    let plan = ImagePlan::from_args(args)?;
    let work = async |dir: RuntimeDir, address: String, screen: &mut Screen| {
        measure(&plan, &dir, &address, screen).await
    };
    let (report, seconds) =
        super::staged(args, &plan.config, plan.file.as_deref(), screen, work).await?;
    Ok(ImageReport { seconds, ..report })
}

async fn measure(
    plan: &ImagePlan,
    dir: &RuntimeDir,
    address: &str,
    screen: &mut Screen,
) -> Result<ImageReport, Failure> {
    let (status, _) = until_ready(dir, |what| screen.note(what)).await?;
    let mut bench = ImageBench {
        texts: client::connect(address).await?,
        images: client::connect(address).await?,
        painted: 0,
    };
    check_vision(&mut bench.images).await?;
    let (mut sizes, mut left_out) = (vec![], vec![]);
    for size in SIZES {
        // The prompt of the next turn is the longest.
        let longest = request(ImageCache::NextTurn, bench.picture(size)?);
        match tokens(&mut bench.images, longest).await? {
            Ok(_) => sizes.push(size),
            Err(why) => left_out.push(LeftOut { size, why }),
        }
    }
    if sizes.is_empty() {
        return Err(Failure::bench(
            "expected room for a picture in the model's context, found none: serve a model with more",
        ));
    }
    // The first steps of a process are slow in many ways.
    for size in &sizes {
        bench.run(*size).await?;
    }
    let mut runs: Vec<Vec<Run>> = vec![vec![]; sizes.len()];
    let clock = Clock::start();
    for run in 0..plan.runs {
        for step in 0..sizes.len() {
            // Each run begins with another size.
            let at = (run + step) % sizes.len();
            let found = bench.run(sizes[at]).await?;
            let (first, longest) = (
                found.first.first().map_or(0.0, |first| first.ttft_ms),
                found.beside.beside.longest_ms,
            );
            let (number, all) = (run + 1, plan.runs);
            screen.note(&format!(
                "run {number} of {all}: {}: first token after {first:.0} ms, longest gap of texts {longest:.0} ms",
                sizes[at]
            ));
            runs[at].push(found);
        }
        note_time_left(&clock, run, plan.runs, screen);
    }
    let rows = sizes.iter().zip(&runs).map(|(size, runs)| ImageRow::of(*size, runs)).collect();
    Ok(ImageReport {
        subject: Subject::new(&status, false),
        runs: plan.runs,
        rows,
        left_out,
        seconds: 0.0,
    })
}

/// Measures on a running service.
struct ImageBench {
    texts: InferenceClient<Channel>,
    images: InferenceClient<Channel>,
    /// Images so far: each is used once.
    painted: u64,
}

impl ImageBench {
    fn picture(&mut self, size: Size) -> Result<Bytes, Failure> {
        self.painted += 1;
        let file = paint(size, self.painted);
        file.map(Bytes::from).map_err(|error| Failure::bench(chain(&error)))
    }

    /// Measures everything once with images of this size.
    async fn run(&mut self, size: Size) -> Result<Run, Failure> {
        let file = self.picture(size)?;
        let mut first = vec![];
        for cache in ImageCache::ALL {
            first.push(first_token(self.images.clone(), request(cache, file.clone())).await?);
        }
        let files = (0..PICTURES).map(|_| self.picture(size)).collect::<Result<Vec<_>, _>>()?;
        let beside = gaps::measure(&self.texts, &self.images, files).await?;
        Ok(Run { first, beside })
    }
}
